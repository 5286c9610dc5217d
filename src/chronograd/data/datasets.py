"""Data sets by name: a card that says what a set is, and its images and labels.

    digits              8x8 grey handwritten digits, inside scikit-learn: no download
    fashion-mnist       28x28 grey clothes
    cifar10, cifar100   32x32 colour photographs
    tokens              seeded text of any length and vocabulary, its words as frequent as Zipf's law has it
    inputs              random values of whatever network.inputs states: counted, predicted, measured in one process, exported; not trained
    synthetic           seeded normal images of any shape; labels are drawn, so nothing can be learned beyond chance
    folder:PATH         one folder of pictures per class
    imagenet:PATH       ILSVRC 2012 as it is published
    decathlon:SET       a set of the Visual Decathlon
    voc:, coco:, open-images:PATH   pictures with boxes, in the layouts of these three
    imagenet, places365 … sets of `catalogue.toml`, of images or of text: planned with, never read

A card needs neither torch nor the data; that of a folder is read from the names in it. Images stay whole numbers
(uint8): they are normalised and augmented in the training step, on the training device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from chronograd.data import catalogue, detection, labels, layouts, published, synthetic, text
from chronograd.data.normalisation import scale_shift
from chronograd.data.published import FOLDER_VARIABLE, DatasetCard, data_folder
from chronograd.errors import InputError, MissingExtraError, NotFoundError
from chronograd.job import INPUTS, TOKENS, Data, Job
from chronograd.words import how_many

if TYPE_CHECKING:
    import torch

    from chronograd.data.detection import Annotated
    from chronograd.data.images import Images

# Of a job, that are counted, measured and trained.
TASKS = ("classification", "detection", "language")
__all__ = [
    "FOLDER_VARIABLE",
    "TASKS",
    "Dataset",
    "DatasetCard",
    "card",
    "check_task",
    "data_folder",
    "fetch",
    "load",
    "names",
    "samples_of",
    "training_bytes",
]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Dataset:
    """Images as whole numbers 0 … `top`, and labels. N images, C channels, K classes.

    Attributes:
        train_labels: int64 of shape (N,), or float32 probabilities of shape (N, K) where data.labels has them; of text the next
            token of each of T positions, int64 of shape (N, T).
        scale_C, shift_C: what a network sees is `pixel * scale - shift`, per channel.
        mean_C, std_C: of the training images used, with their own range mapped to 0 … 1.
        notes: files left out, sizes brought to one, labels replaced.
        train_samples_N: number of each training image in the published split.
        annotated: the pictures of both splits with their boxes, where there are any; labels are 0 then.
    """

    card: DatasetCard
    train: Images
    train_labels: torch.Tensor
    test: Images
    test_labels_N: torch.Tensor
    scale_C: tuple[float, ...]
    shift_C: tuple[float, ...]
    mean_C: tuple[float, ...]
    std_C: tuple[float, ...]
    notes: tuple[str, ...] = ()
    top: int = 255
    train_samples_N: Array = field(default_factory=lambda: np.empty(0, np.int64))
    annotated: Annotated | None = None


def card(data: Data) -> DatasetCard:
    """What a job's data set is, without torch and without its pixels.

    Of a folder the names are read; pictures that turn out to be damaged are still in it, and not in that of `load`.

    Raises: NotFoundError for an unknown name, InputError where the job contradicts the set; for folders as
    `layouts.listing`, and FileFormatError for a labels file that is none.
    """
    if detection.is_detection(data.name):
        return detection.card(data)
    if data.class_names is not None:
        raise InputError(
            f"data.class_names is given, and {data.name} has no boxes, of which classes could be chosen",
            "leave data.class_names out",
        )
    if layouts.is_layout(data.name):
        return _folder_card(data, layouts.listing(data.name))
    if text.is_drawn(data):
        return text.card(data)
    if data.name == INPUTS:
        return DatasetCard(
            INPUTS, (), data.classes or 0, (), data.samples or 0, 0, "random values of the network's inputs"
        )
    if data.name == "synthetic":
        drawn = synthetic.card(data)
        return replace(drawn, train_size=labels.num_training(data, drawn.train_size))
    if data.name in catalogue.sets():
        listed = catalogue.sets()[data.name]
        return text.card(data, listed) if listed.is_text else _checked(data, catalogue.card(data.name))
    if data.name not in published.SETS:
        raise NotFoundError("data set", data.name, names(), "`chronograd data --list`")
    return _checked(data, published.SETS[data.name].card)


def names() -> list[str]:
    """Names of the data sets, and how those of folders are written."""
    return [
        *sorted([*published.SETS, *catalogue.sets(), "synthetic", TOKENS, INPUTS]),
        *layouts.names(),
        *detection.names(),
    ]


def check_task(job: Job, described: DatasetCard) -> None:
    """Raise InputError where a job of text has images, or one of images has text."""
    if job.is_text != (len(described.shape) == 1):
        what = "text" if len(described.shape) == 1 else "images"
        raise InputError(
            f"task is {job.task}, and {job.data.name} is {what}",
            "write task=language and data.shape=[1024], a number of tokens" if what == "text" else "leave task out",
        )
    has_boxes = detection.is_detection(job.data.name)
    if has_boxes != (job.task == "detection"):
        raise InputError(
            f"task is {job.task}, and {job.data.name} has {'boxes' if has_boxes else 'no boxes'}",
            "write task=detection" if has_boxes else "name a set with boxes, such as data.name=voc:VOCdevkit/VOC2007",
        )


def _no_samples() -> InputError:
    return InputError(
        "data.name is inputs: the network takes inputs of its own (network.inputs), of which no data set has samples",
        "count, predict, measure or export it; to train it, run your own loop inside chronograd.record()",
    )


def fetch(data: Data) -> None:
    """Make sure that the data is on disk, downloading it where there is a network. One process per machine calls it.

    Raises RunError that names the folder and the variable; for folders as `card`; InputError for synthetic images that
    this machine cannot hold.
    """
    if detection.is_detection(data.name):
        detection.card(data)
    elif layouts.is_layout(data.name):
        layouts.listing(data.name)
    elif text.is_drawn(data):
        text.check_memory(text.card(data))
    elif data.name == INPUTS:
        raise _no_samples()
    elif data.name == "synthetic":
        synthetic.check_memory(synthetic.card(data))
    elif data.name in catalogue.sets():
        raise catalogue.without_data(data.name)
    else:
        if data.name not in published.SETS:
            raise NotFoundError("data set", data.name, names(), "`chronograd data --list`")
        published.fetch(data.name)


def load(data: Data, seed: int = 0) -> Dataset:
    """Images and labels of a data set that is on disk. `seed` draws synthetic images and label noise, nothing else.

    Raises as `card`, and RunError if the data is not on disk (see `fetch`), MissingExtraError if a library is not
    installed.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "vision", f"data set {data.name}") from None
    from chronograd.data import reading

    if data.name == INPUTS:
        raise _no_samples()
    if text.is_drawn(data):
        return _drawn_text(data, seed)
    if detection.is_detection(data.name):
        return _with_boxes(data)
    if layouts.is_layout(data.name):
        listing = layouts.listing(data.name)
        described = _folder_card(data, listing)
        chosen = labels.choose(data, listing.train_labels_N, described.class_names, seed)
        if data.test_samples is not None:
            listing = listing.with_test(labels.choose_test(data, len(listing.test_paths)))
        read = reading.read_folder(data, described, listing, chosen)
    else:
        described = card(data)
        if data.name in catalogue.sets():
            raise catalogue.without_data(data.name)
        if data.name == "synthetic":
            arrays = synthetic.draw(synthetic.card(data), seed)
            data = data.model_copy(update={"samples": None})  # so many were drawn: all are used, in their order
        else:
            arrays = published.read(data.name)
            if data.test_samples is not None:
                arrays = arrays.with_test(labels.choose_test(data, len(arrays.test_images)))
        chosen = labels.choose(data, arrays.train_labels, described.class_names, seed)
        read = reading.read_arrays(data, described, arrays, chosen)
    mean_C, std_C, said = reading.mean_std(read.train, read.top)
    scale_C, shift_C = scale_shift(data.normalisation, mean_C, std_C, read.top)
    if data.normalisation == "imagenet" and described.shape[0] == 1:
        said.append("grey images are normalised by 0.449 and 0.226, the means of ImageNet's three channels")
    train_labels = torch.from_numpy(read.chosen.labels)
    return Dataset(
        card=replace(described, train_size=len(train_labels), test_size=len(read.test_labels_N)),
        train=read.train,
        train_labels=train_labels,
        test=read.test,
        test_labels_N=torch.from_numpy(read.test_labels_N.astype(np.int64)),
        scale_C=scale_C,
        shift_C=shift_C,
        mean_C=mean_C,
        std_C=std_C,
        notes=(*read.notes, *chosen.notes, *said),
        top=read.top,
        train_samples_N=read.chosen.samples_N,
    )


def samples_of(data: Data, seed: int = 0) -> Array:
    """The numbers in the published split (int64) of the images that a job trains on, in their order.

    They are those of `load(data, seed).train_samples_N`, which costs nothing where the set is loaded anyway.
    """
    return load(data, seed).train_samples_N


def _drawn_text(data: Data, seed: int) -> Dataset:
    """Rows of tokens, whose labels are the next token of each; what is of images alone is empty."""
    described = text.card(data)
    train, test = text.draw(described, seed)
    # Read batch by batch as images are; who looks at pixels is not asked about text, and `train.inputs.input_of` tells them apart.
    rows, test_rows = (cast("Images", one.inputs()) for one in (train, test))
    return Dataset(
        card=described,
        train=rows,
        train_labels=train.next_tokens(),
        test=test_rows,
        test_labels_N=test.next_tokens(),
        scale_C=(),
        shift_C=(),
        mean_C=(),
        std_C=(),
    )


def _with_boxes(data: Data) -> Dataset:
    """Pictures with boxes. Their pixels are read as a network sees them untrained; mean and deviation are not looked at."""
    import torch

    described, annotated = detection.card(data), detection.annotated(data)
    side = described.shape[1]
    return Dataset(
        card=described,
        train=detection.pixels(annotated.train, side),
        train_labels=torch.zeros(len(annotated.train), dtype=torch.int64),
        test=detection.pixels(annotated.test, side),
        test_labels_N=torch.zeros(len(annotated.test), dtype=torch.int64),
        scale_C=(1 / detection.PIXEL_SCALE,) * 3,
        shift_C=(detection.PIXEL_MEAN / detection.PIXEL_SCALE,) * 3,
        mean_C=(),
        std_C=(),
        notes=annotated.notes,
        annotated=annotated,
    )


# -- cards -----------------------------------------------------------------------------------------------


def training_bytes(data: Data) -> int:
    """Bytes of the training samples: as published where that is known, else those of the decoded images, of a byte a value.

    Raises InputError for text whose size is not known.

    >>> training_bytes(Data(name="imagenet")), training_bytes(Data(name="digits"))
    (147897477120, 91968)
    """
    listed = catalogue.sets().get(data.name.partition(":")[0])
    if listed is not None and listed.bytes is not None:
        return listed.bytes
    own = card(data)
    if (listed is not None and listed.is_text) or data.name == TOKENS:
        raise InputError(f"the bytes of {data.name} are not known", "say them with --data-size, such as 150GB")
    return own.train_size * math.prod(own.shape)


def _folder_card(data: Data, listing: layouts.Listing) -> DatasetCard:
    own = DatasetCard(
        name=data.name,
        shape=(3, listing.side, listing.side),
        num_classes=len(listing.class_names),
        class_names=listing.class_names,
        train_size=len(listing.train_paths),
        test_size=len(listing.test_paths),
        source=listing.source,
    )
    return _checked(data, own)


def _checked(data: Data, own: DatasetCard) -> DatasetCard:
    """A set's card as a job uses it. Raises InputError where the job contradicts the set."""
    if data.image_size is not None:
        own = replace(own, shape=(own.shape[0], data.image_size, data.image_size))
    if data.shape is not None and tuple(data.shape) != own.shape:
        raise InputError(f"data.shape is {data.shape}; images of {data.name} are {own.shape}", "leave data.shape out")
    if data.classes is not None and data.classes != own.num_classes:
        raise InputError(
            f"data.classes is {data.classes}; {data.name} has {how_many(own.num_classes, 'classes')}",
            "leave data.classes out",
        )
    train_size, test_size = labels.num_training(data, own.train_size), labels.num_test(data, own.test_size)
    return replace(own, train_size=train_size, test_size=test_size)

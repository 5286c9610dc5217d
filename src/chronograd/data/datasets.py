"""Data sets by name: their cards, and their images and labels.

    digits              8x8 grey handwritten digits, inside scikit-learn: no download
    fashion-mnist       28x28 grey clothes
    cifar10, cifar100   32x32 colour photographs
    pride-and-prejudice a novel, in this package: no download
    text:PATH           text files of the user
    tokens              random text of any length and vocabulary; word frequencies follow Zipf's law
    inputs              random values for network.inputs: count, predict, measure in one process, export; no training
    synthetic           random normal images of any shape with random labels: accuracy stays at chance
    folder:PATH         one folder of pictures per class
    imagenet:PATH       ILSVRC 2012 as published
    decathlon:SET       a set of the Visual Decathlon
    voc:, coco:, open-images:PATH   pictures with boxes, in the layouts of these three
    imagenet, places365 … sets of `catalogue.toml`, images or text: for planning only

A card needs neither torch nor the data; the card of a folder is read from its file names. Images stay whole numbers
(uint8): the training step normalises and augments them on the training device.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from chronograd.data import catalogue, corpus, detection, labels, layouts, published, synthetic, text
from chronograd.data.normalisation import scale_shift
from chronograd.data.published import DatasetCard
from chronograd.errors import InputError, MissingExtraError, NotFoundError
from chronograd.job import INPUTS, TOKENS, Data, Job, is_real_text
from chronograd.words import how_many

if TYPE_CHECKING:
    import torch

    from chronograd.data.detection import Annotated
    from chronograd.data.images import Images

# Tasks that can be counted, measured and trained.
TASKS = ("classification", "detection", "language")

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Dataset:
    """Images as whole numbers 0 … `top`, and labels. N images, C channels, K classes.

    Attributes:
        train_labels: int64 of shape (N,), or float32 probabilities of shape (N, K) if data.labels has them. For text:
            the next token of each of T positions, int64 of shape (N, T).
        scale_C, shift_C: a network gets `pixel * scale - shift`, per channel.
        mean_C, std_C: of the training images used, scaled to 0 … 1.
        notes: files left out, images resized, labels replaced.
        train_samples_N: number of each training image in the published split.
        annotated: the pictures of both splits with their boxes, if the set has boxes; labels are then 0.
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
    """Return the card of a job's data set, without torch and without reading pixels.

    The card of a folder counts the file names. It still includes damaged pictures, which the card of `load` leaves out.

    Raises: NotFoundError for an unknown name, InputError where the job contradicts the set; for folders as
    `layouts.listing`, and FileFormatError for an invalid labels file.
    """
    if detection.is_detection(data.name):
        return detection.card(data)
    if data.class_names is not None:
        raise InputError(
            f"data.class_names is given, and {data.name} has no boxes",
            "leave data.class_names out",
        )
    if layouts.is_layout(data.name):
        return _folder_card(data, layouts.listing(data.name))
    if text.is_drawn(data):
        return text.card(data)
    if is_real_text(data.name):
        return corpus.card(data)
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
        raise _unknown(data.name)
    return _checked(data, published.SETS[data.name].card)


def names() -> list[str]:
    """Return the names of the data sets, and the patterns for folders."""
    return [
        *sorted([*published.SETS, *catalogue.sets(), "synthetic", TOKENS, INPUTS, *corpus.names]),
        *layouts.names(),
        *detection.names(),
    ]


def _unknown(name: str) -> NotFoundError:
    """Return the error for a name of no data set, which may be meant as a folder."""
    error = NotFoundError("data set", name, names(), "`chronograd data --list`")
    if os.path.isdir(name):
        error.hint = f"to read the folder of that name, write folder:{name}"
    else:
        error.message += ", and there is no such folder here"
    return error


def check_task(job: Job, described: DatasetCard) -> None:
    """Raise InputError if a text job has image data, or an image job has text data."""
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


def no_samples() -> InputError:
    return InputError(
        "data.name is inputs: no data set has samples of the network's inputs (network.inputs)",
        "count, predict, measure or export it; to train it, run your own loop inside chronograd.record()",
    )


def fetch(data: Data) -> None:
    """Make sure that the data is on disk; download it if possible. Call it from one process per machine.

    Raises: RunError that names the folder and the variable; for folders as `card`; InputError for synthetic images that
    do not fit into this machine's memory.
    """
    if detection.is_detection(data.name):
        detection.card(data)
    elif layouts.is_layout(data.name):
        layouts.listing(data.name)
    elif text.is_drawn(data):
        text.check_memory(text.card(data))
    elif is_real_text(data.name):
        text.check_memory(corpus.card(data))
    elif data.name == INPUTS:
        raise no_samples()
    elif data.name == "synthetic":
        synthetic.check_memory(synthetic.card(data))
    elif data.name in catalogue.sets():
        raise catalogue.without_data(data.name)
    else:
        if data.name not in published.SETS:
            raise _unknown(data.name)
        published.fetch(data.name)


def load(data: Data, seed: int = 0) -> Dataset:
    """Load the images and labels of a data set that is on disk. `seed` draws synthetic images and label noise, nothing else.

    Raises as `card`, and RunError if the data is not on disk (see `fetch`), MissingExtraError if a library is not installed.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "vision", f"data set {data.name}") from None
    from chronograd.data import reading

    if data.name == INPUTS:
        raise no_samples()
    if text.is_drawn(data):
        return _rows_of_text(text.card(data), *text.draw(text.card(data), seed))
    if is_real_text(data.name):
        return _rows_of_text(corpus.card(data), *map(torch.from_numpy, corpus.rows(data)[:2]))
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
            data = data.model_copy(
                update={"samples": None}
            )  # exactly these samples were drawn: use all, in their order
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
    """Return the numbers in the published split (int64) of the images that a job trains on, in their order.

    They equal `load(data, seed).train_samples_N`. Use that if the set is loaded anyway: it costs nothing.
    """
    return load(data, seed).train_samples_N


def _rows_of_text(described: DatasetCard, train: torch.Tensor, test: torch.Tensor) -> Dataset:
    """Return rows of tokens, whose labels are the next token of each. Fields for images are empty."""
    return Dataset(
        card=described,
        # Tensors, where others have images. Code that looks at pixels never gets text; `train.inputs.input_of` distinguishes them.
        train=cast("Images", train[:, :-1]),
        train_labels=train[:, 1:],
        test=cast("Images", test[:, :-1]),
        test_labels_N=test[:, 1:],
        scale_C=(),
        shift_C=(),
        mean_C=(),
        std_C=(),
    )


def _with_boxes(data: Data) -> Dataset:
    """Return pictures with boxes. Their pixels are not augmented, and their mean and deviation are not computed."""
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
    """Return the bytes of the training samples: as published if known, else of the decoded images at one byte a value.

    Raises InputError for text of unknown size.

    >>> training_bytes(Data(name="imagenet")), training_bytes(Data(name="digits"))
    (147897477120, 91968)
    """
    listed = catalogue.sets().get(data.name.partition(":")[0])
    if listed is not None and listed.bytes is not None:
        return listed.bytes
    own = card(data)
    if (listed is not None and listed.is_text) or data.name == TOKENS:
        raise InputError(f"the bytes of {data.name} are not known", "state them with --data-size, such as 150GB")
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
    """Return a set's card as a job uses it. Raises InputError where the job contradicts the set."""
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

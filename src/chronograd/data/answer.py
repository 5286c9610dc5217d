"""The answer of `data`: the card of a data set, images per class, pixels, and on a page sample images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.data import catalogue, datasets, published
from chronograd.data.datasets import Dataset
from chronograd.data.published import DatasetCard
from chronograd.errors import InputError
from chronograd.figure import Figure, Picture, PictureRow, Pictures, png_base64
from chronograd.job import Data
from chronograd.units import percent, si, signed
from chronograd.words import how_many

# A terminal shows this number of classes; a page and the JSON have all.
MAX_CLASSES = 40
SAMPLE_CLASSES = 2
SAMPLES_PER_CLASS = 4


def data_set(data: Data) -> Dataset:
    """Return the data set. Download it first if it is not on disk and torchvision can.

    Raises as `datasets.card`, `fetch` and `load`.
    """
    if len(datasets.card(data).shape) == 1:
        raise InputError(f"{data.name} is text, and has no pictures to show", "use it in a job: data.name=" + data.name)
    datasets.fetch(data)
    return datasets.load(data)


def describe(data: Data, dataset: Dataset, *, is_page: bool = False) -> Answer:
    """Describe a loaded data set.

    Args:
        data: the data section of a job.
        is_page: add sample images, which need Pillow, and list all classes.
    """
    if dataset.annotated is not None:
        return _describe_boxes(dataset)
    card = dataset.card
    train, test = images_per_class(dataset)
    samples = sample_images(dataset)
    stated = data.model_dump(mode="json", exclude_defaults=True)
    return Answer(
        title=f"Data set {card.name}",
        subtitle=card.source,
        asked=[(key, str(value)) for key, value in stated.items() if key != "name"],
        highlights=[
            Highlight("training images", f"{card.train_size:,}", how_many(card.num_classes, "classes")),
            Highlight("test images", f"{card.test_size:,}"),
            Highlight("image", _by(card.shape), "channels, height, width"),
        ],
        sections=[
            _card_section(dataset, samples if is_page else ()),
            _classes_section(dataset, train, test, len(train) if is_page else MAX_CLASSES),
            _pixels_section(data, dataset),
        ],
        data={
            **_facts(card),
            "classes": [
                {"name": name, "train_images": in_train, "test_images": in_test}
                for name, in_train, in_test in zip(card.class_names, train, test, strict=True)
            ],
            "mean": list(dataset.mean_C),
            "std": list(dataset.std_C),
            "scale": list(dataset.scale_C),
            "shift": list(dataset.shift_C),
            "largest_pixel": dataset.top,
            "notes": list(dataset.notes),
            "sample_images": [{"class": s.class_name, "samples": s.samples} for s in samples],
        },
        notes=dataset.notes,
    )


def _describe_boxes(dataset: Dataset) -> Answer:
    """Describe pictures with boxes: the objects of each class and their usual size."""
    import torch

    annotated, card = dataset.annotated, dataset.card
    assert annotated is not None
    rows: list[dict[str, Any]] = []
    for k, name in enumerate(card.class_names, 1):
        own: dict[str, Any] = {"name": name}
        for split, images in (("train", annotated.train), ("test", annotated.test)):
            boxes = [image.objects.boxes_G4[image.objects.labels_G == k] for image in images]
            own |= {f"{split}_objects": sum(map(len, boxes)), f"{split}_images": sum(1 for b in boxes if len(b))}
            sides_G2 = torch.cat([b[:, 2:] - b[:, :2] for b in boxes])
            if split == "train":
                own["sides"] = sides_G2.median(dim=0).values.tolist() if len(sides_G2) else None
        rows.append(own)
    total = sum(row["train_objects"] for row in rows)
    section = Section(
        title=card.name,
        takeaway=f"{how_many(card.train_size, 'training pictures')} with {how_many(total, 'objects')} of {how_many(card.num_classes, 'classes')}, and "
        f"{how_many(card.test_size, 'test pictures')}.",
        table=Table(
            ("class", "training objects", "in pictures", "test objects", "in pictures", "usual size"),
            [
                [row["name"], *(f"{row[key]:,}" for key in _BOX_COUNTS),
                 "–" if row["sides"] is None else " × ".join(f"{100 * side:.0f} %" for side in row["sides"])]
                for row in rows
            ],
            {1, 2, 3, 4, 5},
            most=MAX_CLASSES,
        ),
        caption="The usual size is the median width and height in the training pictures, as shares of the picture's.",
    )  # fmt: skip
    return Answer(
        title=f"Data set {card.name}",
        subtitle=card.source,
        sections=[section],
        data={**_facts(card), "classes": rows, "notes": list(dataset.notes)},
        notes=dataset.notes,
    )  # fmt: skip


def _facts(card: DatasetCard) -> dict[str, Any]:
    names = ("name", "source", "shape", "num_classes", "train_size", "test_size")
    return {name: getattr(card, name) for name in names} | {"shape": list(card.shape)}


_BOX_COUNTS = ("train_objects", "train_images", "test_objects", "test_images")


def _card_section(dataset: Dataset, samples: Sequence[SampleImages]) -> Section:
    card = dataset.card
    rows = [
        ("source", card.source),
        ("image", f"{_by(card.shape)} (channels, height, width), whole numbers 0 … {dataset.top}"),
        ("classes", f"{card.num_classes:,}"),
        ("training images", f"{card.train_size:,}"),
        ("test images", f"{card.test_size:,}"),
    ]
    return Section(
        title=card.name,
        takeaway=f"{card.train_size:,} training and {how_many(card.test_size, 'test images')} of {how_many(card.num_classes, 'classes')}; one image "
        f"is {_by(card.shape)} = {math.prod(card.shape):,} numbers.",
        figure=Figure([Pictures([_picture_row(found) for found in samples])]) if samples else None,
        caption="The first training images of two classes, with their number in the training split as published."
        if samples
        else "",
        table=Table(("property", "value"), rows),
    )


def _picture_row(found: SampleImages) -> PictureRow:
    # Images that are neither grey nor RGB show their first channel.
    channels = found.images_NCHW if found.images_NCHW.shape[1] in (1, 3) else found.images_NCHW[:, :1]
    pictures = (png_base64(pixels.transpose(1, 2, 0)) for pixels in channels)
    titles = (f"number {sample:,}" for sample in found.samples)
    return PictureRow(found.class_name, [Picture(t, p) for t, p in zip(titles, pictures, strict=True)])


def _classes_section(dataset: Dataset, train: Sequence[float], test: Sequence[int], most: int) -> Section:
    card = dataset.card
    largest = max(range(card.num_classes), key=train.__getitem__)
    counts = [f"{n:,}" if isinstance(n, int) else f"{n:,.1f}" for n in train]
    rows = [[name, a, f"{b:,}"] for name, a, b in zip(card.class_names, counts, test, strict=True)]
    return Section(
        title="Classes",
        takeaway=f"Baseline: always guessing {card.class_names[largest]} is right for {percent(test[largest] / card.test_size)} of the "
        "test images.",
        table=Table(("class", "training images", "test images"), rows[:most], {1, 2}),
        caption=f"… and {len(rows) - most:,} more; --json has all" if len(rows) > most else "",
    )


def _pixels_section(data: Data, dataset: Dataset) -> Section:
    channels = list(zip(dataset.scale_C, dataset.shift_C, strict=True))
    low, high = min(0.0 - shift for _, shift in channels), max(dataset.top * scale - shift for scale, shift in channels)
    rows = [
        [str(number), f"{mean:.4f}", f"{std:.4f}", f"{scale:.6g}", f"{shift:.6g}"]
        for number, (mean, std, (scale, shift)) in enumerate(zip(dataset.mean_C, dataset.std_C, channels, strict=True))
    ]
    lowest = signed(f"{low:.3g}")
    return Section(
        title="Pixels",
        takeaway=f"With normalisation {data.normalisation}, pixels of 0 … {dataset.top} become {lowest} … {high:.3g}.",
        table=Table(("channel", "mean", "standard deviation", "scale", "shift"), rows, {1, 2, 3, 4}),
        caption="Mean and standard deviation are those of the training images with their range mapped to 0 … 1. A network "
        "sees pixel × scale − shift.",
    )


def _by(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape))


@dataclass(frozen=True)
class SampleImages:
    """Training images of one class: their numbers in the published split, and their pixels 0 … 255."""

    class_name: str
    samples: Sequence[int]
    images_NCHW: np.ndarray[Any, Any]


def images_per_class(dataset: Dataset) -> tuple[list[float], list[int]]:
    """Return the number of training and of test images of each class. Labels that are probabilities are summed."""
    import torch

    num_classes = dataset.card.num_classes
    test = torch.bincount(dataset.test_labels_N, minlength=num_classes).tolist()
    if dataset.train_labels.ndim == 1:
        return torch.bincount(dataset.train_labels, minlength=num_classes).tolist(), test
    return dataset.train_labels.sum(dim=0, dtype=torch.float64).tolist(), test


def sample_images(dataset: Dataset) -> list[SampleImages]:
    """Return the first training images of two classes. If labels are probabilities, the largest one decides."""
    import torch

    labels_N = dataset.train_labels if dataset.train_labels.ndim == 1 else dataset.train_labels.argmax(dim=1)
    found = []
    for label in torch.unique(labels_N).tolist()[:SAMPLE_CLASSES]:
        positions = np.flatnonzero(labels_N.numpy() == label)[:SAMPLES_PER_CLASS]
        pixels = dataset.train.batch(positions).numpy()
        if dataset.top != 255:
            pixels = np.rint(pixels * (255 / dataset.top)).astype(np.uint8)
        samples = dataset.train_samples_N[positions].tolist()
        found.append(SampleImages(dataset.card.class_names[label], samples, pixels))
    return found


def listed() -> Answer:
    """List every data set that a job can name, including those for planning only."""
    own = [(name, found.card) for name, found in sorted(published.SETS.items())]
    rows = [
        {"name": name, "shape": list(card.shape), "classes": card.num_classes, "train_size": card.train_size,
         "test_size": card.test_size, "tokens": None, "bytes": None, "trained": name, "source": card.source}
        for name, card in own
    ] + [_listed_row(one) for one in catalogue.sets().values()]  # fmt: skip
    return Answer(
        "Data sets",
        sections=[
            Section(
                "Data sets",
                f"{len(own)} sets can be downloaded or read; {len(rows) - len(own)} more are for planning only, without their files.",
                table=Table(
                    ("name", "sample", "classes", "training", "test", "to train"),
                    [
                        (row["name"], _by(row["shape"]) or f"{row['tokens'] / 1e9:,.3g} G tokens",
                         f"{row['classes'] or 0:,}" if row["classes"] else "", f"{row['train_size']:,}", f"{row['test_size']:,}",
                         row["trained"])
                        for row in rows
                    ],
                    {2, 3, 4},
                ),
                data=rows,
            )
        ],
        data=rows,
    )  # fmt: skip


def describe_listed(name: str) -> Answer:
    """Describe a data set of the catalogue: the figures that a prediction uses, with their source."""
    one = catalogue.sets()[name]
    row = _listed_row(one)
    size = None if one.bytes is None else si(one.bytes, "B")
    values = {
        "sample": _by(one.shape),
        "classes": one.classes and f"{one.classes:,}",
        "training": f"{one.train_size:,}",
        "test": f"{one.test_size:,}",
        "training tokens": one.tokens and f"{one.tokens:,}",
        "training part, as published": size,
        "to train": one.trained and f"data.name={one.trained}",
        "source": f"{one.source} ({one.tag})",
    }
    kind = "documents" if one.classes is None else f"images of {how_many(one.classes, 'classes')}"
    return Answer(
        f"Data set {name}",
        sections=[
            Section(
                name,
                f"{one.title}: {one.train_size:,} training {kind}; for planning only; Chronograd cannot read its files.",
                table=Table(("property", "value"), [(key, text) for key, text in values.items() if text]),
                data=[row],
            )
        ],
        data=row,
    )


def _listed_row(one: catalogue.Listed) -> dict[str, Any]:
    return {**asdict(one), "shape": list(one.shape)}

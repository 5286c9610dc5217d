"""`chronograd data NAME`: the card of a data set, with its images per class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from chronograd.answer import Answer
    from chronograd.data.datasets import Dataset
    from chronograd.job import Data

# Classes that the terminal shows; --json and --out have all.
MOST_CLASSES = 40


@click.command("data")
@click.argument("name")
@click.argument("fields", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with sample images.")
@common.json_option
def command(name: str, fields: tuple[str, ...], out: Path | None, as_json: bool) -> None:
    """Show a data set: source, shape, images per class, mean and deviation, and what was left out.

    NAME is that of a job's data.name, FIELDs are the others of its data. A set that torchvision can download is
    downloaded if it is not on disk.

    \b
    chronograd data cifar10 --out cifar10.html
    chronograd data folder:pictures image_size=96 --json
    chronograd data cifar100 samples=5000 long_tail=1
    """
    from chronograd.data import datasets

    data = _data(name, fields)
    datasets.card(data)
    datasets.fetch(data)
    dataset = datasets.load(data)
    if out is not None:
        _write_page(out, _page(data, dataset))
    if as_json:
        common.print_json({**_as_data(dataset), **({"page": str(out)} if out is not None else {})})
        return
    _show(data, dataset)
    if out is not None:
        click.echo(f"wrote {out}")


def _data(name: str, fields: Sequence[str]) -> Data:
    """The data section of a job, validated as a job's is."""
    from chronograd import job as jobs

    given = {key.removeprefix("data."): value for key, value in common.options(fields).items()}
    job = jobs.from_dict({"network": {"name": "none"}, "data": {**given, "name": name}}, "the data set")
    return job.data


def _as_data(dataset: Dataset) -> dict[str, Any]:
    from chronograd.data.summary import images_per_class, sample_images

    card = dataset.card
    train, test = images_per_class(dataset)
    return {
        "name": card.name,
        "source": card.source,
        "shape": list(card.shape),
        "num_classes": card.num_classes,
        "train_size": card.train_size,
        "test_size": card.test_size,
        "classes": [
            {"name": n, "train_images": a, "test_images": b}
            for n, a, b in zip(card.class_names, train, test, strict=True)
        ],
        "mean": list(dataset.mean_C),
        "std": list(dataset.std_C),
        "scale": list(dataset.scale_C),
        "shift": list(dataset.shift_C),
        "largest_pixel": dataset.top,
        "notes": list(dataset.notes),
        "sample_images": [{"class": s.class_name, "samples": s.samples} for s in sample_images(dataset)],
    }


def _rows(data: Data, dataset: Dataset) -> list[tuple[str, str]]:
    """What the card says in a line each."""
    card = dataset.card
    seen = _seen(dataset)
    return [
        ("source", card.source),
        ("image", f"{_by(card.shape)} (channels, height, width), whole numbers 0 … {dataset.top}"),
        ("classes", f"{card.num_classes:,}"),
        ("training images", f"{card.train_size:,}"),
        ("test images", f"{card.test_size:,}"),
        ("mean", _numbers(dataset.mean_C)),
        ("standard deviation", _numbers(dataset.std_C)),
        ("a network sees", f"{seen[0]:.3g} … {seen[1]:.3g} (normalisation {data.normalisation})"),
    ]


def _show(data: Data, dataset: Dataset) -> None:
    common.print_table((dataset.card.name, ""), _rows(data, dataset))
    rows = _class_rows(dataset)
    more = f"… and {len(rows) - MOST_CLASSES:,} more; --json has all" if len(rows) > MOST_CLASSES else ""
    common.print_table(("class", "training images", "test images"), rows[:MOST_CLASSES], right=(1, 2), caption=more)
    for note in dataset.notes:
        click.echo(f"note: {note}")


def _class_rows(dataset: Dataset) -> list[list[str]]:
    from chronograd.data.summary import images_per_class

    train, test = images_per_class(dataset)
    numbers = [f"{n:,}" if isinstance(n, int) else f"{n:,.1f}" for n in train]
    return [[n, a, f"{b:,}"] for n, a, b in zip(dataset.card.class_names, numbers, test, strict=True)]


def _page(data: Data, dataset: Dataset) -> Answer:
    from chronograd.answer import Answer, Highlight, Section, Table
    from chronograd.data.summary import images_per_class, sample_images
    from chronograd.figure import Figure, Picture, PictureRow, Pictures, png_base64
    from chronograd.units import percent

    card = dataset.card
    train, test = images_per_class(dataset)
    largest = max(range(card.num_classes), key=train.__getitem__)
    rows = []
    for found in sample_images(dataset):
        # Of images that are neither grey nor RGB, the first channel.
        channels = found.images_NCHW if card.shape[0] in (1, 3) else found.images_NCHW[:, :1]
        titles = (f"number {sample:,}" for sample in found.samples)
        pictures = (png_base64(pixels.transpose(1, 2, 0)) for pixels in channels)
        rows.append(PictureRow(found.class_name, [Picture(t, p) for t, p in zip(titles, pictures, strict=True)]))
    channel_rows = [
        [str(c), *(f"{values[c]:.4f}" for values in (dataset.mean_C, dataset.std_C)),
         *(f"{values[c]:.6g}" for values in (dataset.scale_C, dataset.shift_C))]
        for c in range(card.shape[0])
    ]  # fmt: skip
    low, high = _seen(dataset)
    sections = [
        Section(
            "Sample images",
            f"One image is {_by(card.shape)} = {_product(card.shape):,} numbers.",
            intro="The first training images of two classes, with their number in the training split as published.",
            figure=Figure([Pictures(rows)]),
        ),
        Section(
            "Classes",
            f"Always to answer {card.class_names[largest]} is right for {percent(test[largest] / card.test_size)} of the "
            "test images.",
            table=Table(("class", "training images", "test images"), _class_rows(dataset), {1, 2}),
        ),
        Section(
            "Pixels",
            f"With normalisation {data.normalisation}, pixels of 0 … {dataset.top} become {low:.3g} … {high:.3g}.",
            intro="Mean and standard deviation are those of the training images with their range mapped to 0 … 1. A "
            "network sees pixel × scale − shift.",
            table=Table(
                ("channel", "mean", "standard deviation", "scale", "shift"), channel_rows, {1, 2, 3, 4}, dataset.notes
            ),
        ),
    ]
    stated = data.model_dump(mode="json", exclude_defaults=True)
    return Answer(
        title=f"Data set {card.name}",
        subtitle=card.source,
        asked=[(key, str(value)) for key, value in stated.items() if key != "name"],
        highlights=[
            Highlight("training images", f"{card.train_size:,}", f"{card.num_classes:,} classes"),
            Highlight("test images", f"{card.test_size:,}"),
            Highlight("image", _by(card.shape), "channels, height, width"),
        ],
        sections=sections,
    )


def _write_page(out: Path, page: Answer) -> None:
    from chronograd.errors import InputError
    from chronograd.record import write_aside
    from chronograd.report.html import render_html

    text = render_html(page)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_aside(out, text)
    except OSError as error:
        raise InputError(
            f"cannot write {out}: {error.strerror}", "name a file in a folder that you can write"
        ) from None


def _seen(dataset: Dataset) -> tuple[float, float]:
    """The least and the largest number that a network can see."""
    pairs = list(zip(dataset.scale_C, dataset.shift_C, strict=True))
    return min(-shift for _, shift in pairs), max(dataset.top * scale - shift for scale, shift in pairs)


def _numbers(values: Sequence[float]) -> str:
    return "  ".join(f"{value:.4f}" for value in values)


def _by(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape))


def _product(shape: Sequence[int]) -> int:
    import math

    return math.prod(shape)

"""Well-known data sets by name, for planning without their data: `catalogue.toml`, whose figures state their source."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from chronograd.data.published import DatasetCard
from chronograd.errors import InputError


@dataclass(frozen=True)
class Listed:
    """A data set of the catalogue.

    Attributes:
        shape: of one image as networks usually get it: channels, height, width; empty for text.
        classes: None for text. train_size, test_size: images, or documents of text.
        bytes, tokens: of the training part; None where the source does not state it.
        trained: the name by which a job reads its files; empty if Chronograd cannot read them.
        source, date, tag: the source of the figures, the year of the set, and the kind of evidence.
    """

    name: str
    title: str
    shape: tuple[int, ...]
    train_size: int
    test_size: int
    trained: str
    source: str
    date: str
    tag: str
    classes: int | None = None
    bytes: int | None = None
    tokens: int | None = None

    @property
    def is_text(self) -> bool:
        return self.tokens is not None


@cache
def sets() -> dict[str, Listed]:
    """The catalogue by name.

    >>> sets()["imagenet"].train_size
    1281167
    """
    text = (resources.files("chronograd.data") / "catalogue.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)
    return {name: Listed(**{**row, "name": name, "shape": tuple(row["shape"])}) for name, row in rows.items()}


def card(name: str) -> DatasetCard:
    """Return the card of an image data set. For text see `text.card`."""
    listed = sets()[name]
    assert listed.classes is not None
    channels, height, width = listed.shape
    return DatasetCard(
        name=name,
        shape=(channels, height, width),
        num_classes=listed.classes,
        class_names=tuple(str(number) for number in range(listed.classes)),
        train_size=listed.train_size,
        test_size=listed.test_size,
        source=listed.source,
    )


def without_data(name: str) -> InputError:
    """Return the error for a job that needs the images, or the text, themselves."""
    how, is_text = sets()[name].trained, sets()[name].is_text
    hint = f"to train, give its files: data.name={how}" if how else "Chronograd cannot read this set yet"
    if is_text:
        hint = "Chronograd cannot read this set yet; data.name=tokens draws text of the same shape and vocabulary"
    return InputError(
        f"{name} is for planning only: its {'text is' if is_text else 'images are'} not available here", hint
    )

"""Well-known data sets by name, for planning without their data: `catalogue.toml`, whose figures name their source."""

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
        bytes, tokens: of the training part; None where the source does not tell.
        trained: how a job names it once its files are there; empty where nothing here reads it.
        source, date, tag: where the figures come from, the year of the set, and how they were seen.
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
    """What a job needs of a set of images; of text see `text.card`."""
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
    """The error where the images, or the text, themselves are asked for."""
    how, is_text = sets()[name].trained, sets()[name].is_text
    hint = f"to train, give its files: data.name={how}" if how else "nothing here reads it yet"
    if is_text:
        hint = "nothing here reads it yet; data.name=tokens draws text of the same shape and vocabulary"
    return InputError(f"{name} is planned without its {'text' if is_text else 'images'}: not at hand", hint)

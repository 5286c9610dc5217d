"""The list of pretrained weights: those of the table, and those of a library."""

from __future__ import annotations

from dataclasses import asdict

from chronograd.answer import Answer, Column, Section, Table
from chronograd.errors import EXTRAS, InputError, require
from chronograd.models import pretrained
from chronograd.units import percent
from chronograd.words import how_many

MOST_SHOWN = 40  # rows in a terminal


def listed(what: str | None = None) -> Answer:
    """List the files of the table, or those of a network, a file or a library.

    Raises: InputError if there are none.
    """
    rows = [file for file in pretrained.all_known() if what in (None, file.file, file.network)]
    library, _, name = (what or "").partition(":")
    if library in pretrained.LIBRARIES:
        require(library, EXTRAS[library], f"weights of {library}")  # before torch
        from chronograd.models.weights import of_library

        rows += of_library(library, name)
    if not rows:
        raise InputError(
            f"no pretrained weights of {what} are known", "`chronograd weights --list` lists the known ones"
        )
    here = sum(file.path is not None for file in rows)
    drop, details = ("sha256", "trained on", "size", "licence"), ("from", "place")
    section = Section(
        "Pretrained weights" if what is None else f"Pretrained weights: {what}",
        f"{how_many(len(rows), 'files')} of weights, {here} of them on this machine.",
        table=Table.of(rows, _COLUMNS, drop=drop, details=details, most=MOST_SHOWN),
        caption="Load one with network.weights=FILE, or network.weights=torchvision or timm for the weights of these libraries: "
        "`chronograd weights timm` lists them.\n`–`: the publisher does not state it. sha256: its first digits.",
    )
    return Answer("Pretrained weights", sections=[section], data=[asdict(file) for file in rows])


_COLUMNS = (
    Column("file", "file"),
    Column("network", "network"),
    Column("trained on", "trained_on"),
    Column("accuracy", "accuracy", format=lambda share: percent(share, 2)),
    Column("licence", "licence"),
    Column("size", "bytes", "B"),
    Column("sha256", "sha256", format=lambda digest: digest[:8]),
    Column("here", lambda file: "no" if file.path is None else "yes"),
    Column("from", lambda file: file.url),
    Column("place", "path"),
)

"""A comparison of platforms: their offers by the criteria of the exercise, with a source for every cell.

offered/PLATFORM.toml    the offer of one platform, dated; a cell without a source reads "not found"
"""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from chronograd.answer import Answer, Section, Table
from chronograd.clouds import registry
from chronograd.hardware import catalog
from chronograd.hardware.instances import Date
from chronograd.words import how_many

NOT_FOUND = "not found"
# Vendors first, in the order of the exercise; then platforms that run on the machines of any vendor.
VENDORS = ("sagemaker", "vertex", "azureml", "watsonx")
COMPARED = (*VENDORS, "skypilot", "kubernetes", "slurm")
# Name in the files, title, and question.
CRITERIA = (
    ("frameworks", "Frameworks", "Which frameworks come in ready images, and in which versions?"),
    ("accelerators", "Accelerators", "Which kinds can be asked for?"),
    ("registry", "Model registry", "Are trained models stored with their versions?"),
    ("pipelines", "Pipelines", "Can steps be put together and run again?"),
    ("endpoints", "Endpoints", "Can a model be served?"),
    ("lineage", "Experiments and lineage", "Does it record which run made what, and with which metrics?"),
    ("logs", "Application logs", "Where does what the job prints go?"),
    ("hardware", "GPU, CPU and memory", "What is measured of the machines while it trains?"),
    ("curves", "Pictures while it trains", "Can curves be watched?"),
    ("file", "Job file", "In which form is a job described?"),
)


class Cell(BaseModel):
    """The offer of a platform for one criterion.

    Attributes:
        source: the pages or files with this statement, each with its date.
        has: names in the vendor's package that prove it; a test looks them up there.
        items: the offer by name. A framework has its versions, and in brackets the versions with a condition. An accelerator has
            the names by which a job asks for it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    says: str
    source: str = ""
    has: tuple[str, ...] = ()
    items: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_a_source(self) -> Cell:
        if not self.says.startswith(NOT_FOUND) and not (self.source or self.has):
            raise ValueError(f"{self.says!r} has no source")
        return self


class Offered(BaseModel):
    """The offer of a platform.

    Attributes:
        date: when the sources were last read.
        package: the vendor's package with its version and its date, in which `has` of the cells is looked up.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    date: Date
    package: str
    cells: dict[str, Cell] = Field(min_length=len(CRITERIA), max_length=len(CRITERIA))

    def source(self, cell: Cell) -> str:
        """Return the source of a cell; empty if it has none."""
        looked_up = f"{self.package}: {', '.join(cell.has)}" if cell.has else ""
        return "; ".join(filter(None, (cell.source, looked_up)))


@functools.cache
def offered(platform: str) -> Offered:
    """Return the offer of a platform of `COMPARED`."""
    path = resources.files("chronograd.clouds") / "offered" / f"{platform}.toml"
    given = tomllib.loads(path.read_text(encoding="utf-8"))
    cells = {name: given.pop(name) for name, _, _ in CRITERIA}
    return Offered.model_validate({**given, "cells": cells})


def offers() -> list[dict[str, Any]]:
    """Return every cell: criterion, platform, statement, items by name, its source and the date of reading it."""
    return [
        {
            "criterion": title,
            "platform": name,
            "says": offered(name).cells[criterion].says,
            "items": offered(name).cells[criterion].items,
            "source": offered(name).source(offered(name).cells[criterion]),
            "date": str(offered(name).date),
        }
        for criterion, title, _ in CRITERIA
        for name in COMPARED
    ]


def described(cell: dict[str, Any]) -> str:
    """Return the statement of a cell, with a line for its items.

    >>> print(described({"says": "ready images", "items": {"PyTorch": "2.9, 2.10", "Ray": "2.47"}}))
    ready images
    PyTorch 2.9, 2.10; Ray 2.47
    """
    items = "; ".join(f"{name} {text}" for name, text in cell["items"].items())
    return f"{cell['says']}\n{items}" if items else str(cell["says"])


def is_found(cell: dict[str, Any]) -> bool:
    """Return whether a cell has a statement."""
    return not cell["says"].startswith(NOT_FOUND)


def rented() -> list[dict[str, Any]]:
    """Return the instances that each vendor rents with each device, from the known instance types."""
    rows = []
    for name in VENDORS:
        known = registry.platform(name).catalogue
        for device in dict.fromkeys(one.device for one in known.instance if one.count):
            types = [one for one in known.instance if one.device == device]
            rows.append(
                {
                    "platform": name,
                    "device": device,
                    "memory_bytes": catalog.device(device).memory_bytes,
                    "types": len(types),
                    "counts": sorted({one.count for one in types}),
                    "host_gib": max((one.memory_gib or 0 for one in types), default=0) or None,
                    "source": known.source,
                    "tag": known.tag,
                    "date": str(known.date),
                }
            )
    return rows


def compared() -> Answer:
    """Return the comparison, with a table for each criterion."""
    cells = offers()
    rents = rented()
    sections = comparison_sections(cells, rents)
    missing = sum(not is_found(cell) for cell in cells)
    dates = sorted({cell["date"] for cell in cells})
    summary = [
        f"{len(cells) - missing} of {len(cells)} cells have a source, read in {' and '.join(dates)}; the other {missing} have none."
    ]
    return Answer("Platforms compared", sections=sections, data={"offers": cells, "rented": rents}, summary=summary)


def comparison_sections(cells: list[dict[str, Any]], rents: list[dict[str, Any]]) -> list[Section]:
    """Return a table of the platforms for each criterion, and after accelerators a table of their instances."""
    sections = []
    for _, title, asks in CRITERIA:
        own = [cell for cell in cells if cell["criterion"] == title]
        found = [cell for cell in own if is_found(cell)]
        rows = [[offered(cell["platform"]).title, described(cell), cell["source"]] for cell in own]
        sections.append(
            Section(
                title,
                f"A source was found for {len(found)} of {how_many(len(own), 'platforms')}.",
                asks,
                table=Table(("platform", "what it has", "source"), rows, details=(2,)),
                data=own,
            )
        )
    return [*sections[:2], rented_section(rents), *sections[2:]]


def rented_section(rents: list[dict[str, Any]]) -> Section:
    """Return a table of devices, their number in an instance, and their memory."""
    rows = [
        [
            offered(row["platform"]).title,
            row["device"],
            f"{row['memory_bytes'] / 2**30:.0f} GiB",
            ", ".join(map(str, row["counts"])),
            f"{row['host_gib']:g} GiB" if row["host_gib"] else "–",
            f"{row['source']} ({row['tag']}, {row['date']})",
        ]
        for row in rents
    ]
    kinds = {
        name: len({row["device"] for row in rents if row["platform"] == name})
        for name in {r["platform"] for r in rents}
    }
    most = max(kinds.values())
    names = [offered(name).title for name in COMPARED if kinds.get(name) == most]
    return Section(
        "Instance types",
        f"The most kinds of GPU among the types that are known here has {' and '.join(names)}: {most}.",
        "How many GPUs an instance has, their memory, and that of the largest host; --full has the sources.",
        table=Table(
            ("platform", "device", "its memory", "in an instance", "host up to", "source"),
            rows,
            {2, 3, 4},
            notes=("–: not known here.",),
            details=(5,),
        ),
        data=rents,
    )

"""Platforms: their offers, one job as a file of each, equivalent fields, and the changes needed to move."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from chronograd.answer import Table
from chronograd.clouds import comparing, field_map
from chronograd.clouds.comparing import COMPARED, VENDORS, is_found, offered
from chronograd.words import listed as in_words
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import ends, grouped, matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed, table
from chronograd_lab.common.written import Block

# The criteria of the questions whose answers are statements.
TOOLS = ("Model registry", "Pipelines", "Endpoints", "Experiments and lineage")
MONITORING = ("Application logs", "GPU, CPU and memory")
PICTURES = ("Pictures while it trains",)
NONE = "–"


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    made = field_map.files()
    rows = {
        "offers": comparing.offers(),
        "rented": comparing.rented(),
        "fields": field_map.field_map(),
        "files": made,
        "aligned": field_map.side_by_side(VENDORS),
        "moves": field_map.moves(made),
    }
    return runner.results(settings, rows=rows)


def values(results: Results) -> dict[str, Any]:
    rows = results.rows
    own = [row for row in rows["offers"] if row["platform"] in VENDORS]
    lengths = {row["platform"]: _lines(row) for row in rows["files"]}
    between = [row for row in rows["moves"] if row["from"] in VENDORS and row["to"] in VENDORS]
    kinds = {name: len(of_name) for name, of_name in grouped(rows["rented"], "platform").items()}
    return {
        "offers": {
            "cells": len(own), "criteria": len(own) // len(VENDORS), "missing": sum(not is_found(row) for row in own),
            "partly": sum(comparing.NOT_FOUND in comparing.described(row) for row in own),
            "sourced": sum(map(is_found, rows["offers"])), "all": len(rows["offers"]),
        },
        "frameworks": _frameworks(_items(rows["offers"], "Frameworks")),
        "units": _units(_items(rows["offers"], "Accelerators")),
        "tools": {"missing": sum(not is_found(row) for row in own if row["criterion"] in TOOLS)},
        "logs": {"missing": sum(not is_found(row) for row in matching(own, criterion="Application logs"))},
        "gpus": _titles(row["platform"] for row in matching(own, criterion="GPU, CPU and memory") if _measures_gpus(row)),
        "boards": _titles(row["platform"] for row in matching(own, criterion=PICTURES[0]) if "TensorBoard" in row["says"]),
        "words": _fielded(rows["fields"]),
        "vendors": _fielded([row for row in rows["fields"] if row["platform"] in VENDORS]),
        "aligned": {
            "rows": len(rows["aligned"]),
            "json": sum(row["file"].endswith(".json") for row in rows["files"] if row["platform"] in VENDORS),
            **ends([len(row["values"]) for row in rows["files"] if row["platform"] in VENDORS]),
        },
        "shortest": min(lengths, key=lengths.__getitem__), "longest": max(lengths, key=lengths.__getitem__),
        "least": min(lengths.values()), "most": max(lengths.values()),
        "move": {
            **ends([row["new_values"] / row["values"] for row in between]),
            "fewest": min(row["changed_options"] for row in between),
            "options": max(row["changed_options"] for row in between),
        },
        "kinds": {"of": max(kinds, key=kinds.__getitem__), "most": max(kinds.values())},
    }  # fmt: skip


def _items(offers: Sequence[Row], criterion: str) -> dict[str, dict[str, str]]:
    """Return the items of a criterion by name, with the text of each vendor; those of the most vendors first."""
    found: dict[str, dict[str, str]] = {}
    for name in VENDORS:
        for item, text in matching(offers, criterion=criterion, platform=name)[0]["items"].items():
            found.setdefault(item, {})[name] = text
    return dict(sorted(found.items(), key=lambda one: -len(one[1])))


def _frameworks(items: dict[str, dict[str, str]]) -> dict[str, Any]:
    everywhere = [item for item, of in items.items() if len(of) == len(VENDORS)]
    return {
        "everywhere": in_words(everywhere),
        **{item.lower().replace("-", "_"): _newest_of(items[item]) for item in everywhere},
    }


def _newest_of(texts: dict[str, str]) -> str:
    """Return the newest version of each vendor, the highest first, and the vendors whose newest version is unknown.

    >>> _newest_of({"sagemaker": "2.6 to 2.10", "vertex": "1.11 to 2.4 (for serving)", "azureml": "1.13, 2.10"})
    '2.10 on SageMaker and Azure ML and 2.4 for serving on Vertex AI'
    >>> _newest_of({"sagemaker": "2.10", "watsonx": "2.1 (Runtime 24.1; the version in 25.1: not found)"})
    '2.10 on SageMaker; that of watsonx.ai is unknown'
    """
    newest: dict[tuple[tuple[int, ...], str], list[str]] = {}
    unknown = [name for name, text in texts.items() if comparing.NOT_FOUND in text]
    for name, text in texts.items():
        if name not in unknown:
            newest.setdefault((_version(text), " for serving" if "(for serving" in text else ""), []).append(name)
    parts = [
        f"{'.'.join(map(str, version))}{condition} on {_titles(newest[version, condition])}"
        for version, condition in sorted(newest, reverse=True)
    ]
    return in_words(parts) + (f"; that of {_titles(unknown)} is unknown" if unknown else "")


def _version(text: str) -> tuple[int, ...]:
    """Return the highest version outside brackets, where versions have conditions."""
    unbracketed = re.sub(r"\([^()]*\)", "", text)
    return max(tuple(map(int, version.split("."))) for version in re.findall(r"\d+(?:\.\d+)+", unbracketed))


def _units(items: dict[str, dict[str, str]]) -> dict[str, Any]:
    def shared(names: Iterable[str]) -> str:
        wanted = set(names)
        return in_words([item for item, of in items.items() if set(of) == wanted])

    return {
        "everywhere": shared(VENDORS),
        "without_watsonx": shared(name for name in VENDORS if name != "watsonx"),
        "only": {name: shared([name]) for name in VENDORS},
        "num": {name: sum(name in of for of in items.values()) for name in VENDORS},
    }


def _measures_gpus(row: Row) -> bool:
    return "GPU" in row["says"] and f"of GPUs: {comparing.NOT_FOUND}" not in row["says"]


def _titles(names: Iterable[str]) -> str:
    return in_words([offered(name).title for name in names])


def _fielded(fields: Sequence[Row]) -> dict[str, Any]:
    """Return the words with a field on all platforms of some rows, and those with a field on none."""
    fielded = field_map.with_field(fields)
    everywhere, nowhere = (
        [field_map.WORDS[word] for word, each in fielded.items() if is_so(each)]
        for is_so in (all, lambda each: not any(each))
    )
    return {
        "of": len(fielded), "num_everywhere": len(everywhere), "num_nowhere": len(nowhere),
        "everywhere": ", ".join(everywhere), "nowhere": ", ".join(nowhere),
    }  # fmt: skip


def blocks(results: Results) -> dict[str, Block]:
    rows = results.rows
    (rents,) = [s for s in comparing.comparison_sections(rows["offers"], rows["rented"]) if s.title == "Instance types"]
    return {
        "Frameworks and versions": Block(_matrix(rows["offers"], "Frameworks", "framework")),
        "Compute units": Block(_matrix(rows["offers"], "Accelerators", "accelerator")),
        "Instance types": Block(rents.table),
        "Life-cycle tools": Block(_statements(rows["offers"], TOOLS)),
        "Monitoring": Block(_statements(rows["offers"], MONITORING)),
        "Visualisation while training": Block(_statements(rows["offers"], PICTURES)),
        "The four job files, field by field": Block(_aligned(rows["aligned"], rows["offers"])),
        "One job on all": Block(_files(rows["files"])),
        "The same thing in each platform's words": Block(field_map.field_map_section(rows["fields"]).table),
        "What one must rewrite to move": Block(_moves(rows["moves"])),
    }


def _columns(first: str) -> tuple[str, ...]:
    return (first, *(offered(name).title for name in VENDORS))


def _matrix(offers: Sequence[Row], criterion: str, first: str) -> Table:
    """Return a table of items with a column for each vendor, and notes on the other platforms."""
    cells = {row["platform"]: row for row in matching(offers, criterion=criterion)}
    items = [
        [item, *(of.get(name, NONE) for name in VENDORS)] for item, of in _items(offers, criterion).items()
    ]  # fmt: skip
    body = [
        ["in general", *(cells[name]["says"] for name in VENDORS)],
        *items,
        ["source", *(cells[name]["source"] for name in VENDORS)],
    ]
    notes = [
        f"{offered(name).title}: {cells[name]['says']} ({cells[name]['source']})"
        for name in COMPARED
        if name not in VENDORS
    ]
    return listed(_columns(first), body, 1 + len(VENDORS), [f"{NONE}: not in our sources.", *notes])


def _statements(offers: Sequence[Row], criteria: Sequence[str]) -> Table:
    """Return a table of the statements for some criteria, with their sources."""
    body = [
        [title, offered(name).title, cell["says"], cell["source"]]
        for title in criteria
        for name in COMPARED
        for cell in matching(offers, criterion=title, platform=name)
    ]
    return listed(("criterion", "platform", "what it has", "source"), body, 4)


def _aligned(aligned: Sequence[Row], offers: Sequence[Row]) -> Table:
    """Return the files of the vendors next to each other: a row for each word, a line for each value."""
    forms = {row["platform"]: row["says"] for row in matching(offers, criterion="Job file")}
    body = [["form", *(forms[name] for name in VENDORS)]]
    for row in aligned:
        cells = ("\n".join(" = ".join(line) for line in row["lines"][name]) or NONE for name in VENDORS)
        body.append([field_map.WORDS.get(row["word"], row["word"]), *cells])
    note = (
        f"{NONE}: no value in this file. The job's arguments are in the command of Azure ML and watsonx.ai; so are the variable and "
        "the time limit of watsonx.ai."
    )
    return listed(_columns(""), body, 1 + len(VENDORS), [note])


def _lines(file: Row) -> int:
    return len(file["text"].splitlines())


def _files(files: Sequence[Row]) -> Table:
    return table(files, {
        "platform": "platform", "file": "file", "lines": lambda row: str(_lines(row)), "values": lambda row: str(len(row["values"])),
        "arguments": "arguments", "our options": lambda row: str(len(row["options"])),
    }, text=2)  # fmt: skip


def _moves(moves: Sequence[Row]) -> Table:
    return table(moves, {
        "from": "from", "to": "to", "new lines": lambda row: f"{row['new_lines']} of {row['lines']}",
        "new values": lambda row: f"{row['new_values']} of {row['values']}", "options": "changed_options",
    }, text=2)  # fmt: skip


_SIZE: Settings = {"job": field_map.EXAMPLE}

STUDY = Study(
    name="platforms",
    question="What do four vendors' platforms offer, and how do their files for one job compare?",
    hypothesis="All platforms express the same settings in other words, so a table of fields is enough to move a job",
    sizes={"smoke": _SIZE, "laptop": _SIZE},
    conduct=conduct,
    values=values,
    blocks=blocks,
)

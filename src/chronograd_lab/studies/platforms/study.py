"""Platforms: their offers, one job as a file of each, equivalent fields, and the changes needed to move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chronograd.answer import Table
from chronograd.clouds import comparing, field_map
from chronograd.clouds.comparing import VENDORS, is_found, offered
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import ends, grouped, matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed, table
from chronograd_lab.common.written import Block


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    made = field_map.files()
    rows = {
        "offers": comparing.offers(),
        "rented": comparing.rented(),
        "fields": field_map.field_map(),
        "files": made,
        "moves": field_map.moves(made),
    }
    return runner.results(settings, rows=rows)


def values(results: Results) -> dict[str, Any]:
    rows = results.rows
    own = [row for row in rows["offers"] if row["platform"] in VENDORS]
    fielded = {
        word: [bool(row["paths"]) for row in of_word] for word, of_word in grouped(rows["fields"], "word").items()
    }
    lengths = {row["platform"]: _lines(row) for row in rows["files"]}
    between = [row for row in rows["moves"] if row["from"] in VENDORS and row["to"] in VENDORS]
    shares, options = (
        [row["new_values"] / row["values"] for row in between],
        [row["changed_options"] for row in between],
    )
    kinds = {name: len(of_name) for name, of_name in grouped(rows["rented"], "platform").items()}
    return {
        "offers": {
            "whole": ", ".join(name.lower() for name, cells in grouped(own, "criterion").items() if all(map(is_found, cells))),
            "cells": len(own), "criteria": len(own) // len(VENDORS), "missing": sum(not is_found(row) for row in own),
            "sourced": sum(map(is_found, rows["offers"])), "all": len(rows["offers"]),
        },
        "words": {
            "of": len(fielded), "num_everywhere": sum(map(all, fielded.values())), "num_nowhere": sum(not any(own) for own in fielded.values()),
            "everywhere": ", ".join(field_map.WORDS[word] for word, own in fielded.items() if all(own)),
            "nowhere": ", ".join(field_map.WORDS[word] for word, own in fielded.items() if not any(own)),
        },
        "shortest": min(lengths, key=lengths.__getitem__), "longest": max(lengths, key=lengths.__getitem__),
        "least": min(lengths.values()), "most": max(lengths.values()),
        "move": {**ends(shares), "fewest": min(options), "options": max(options)},
        "kinds": {"of": max(kinds, key=kinds.__getitem__), "most": max(kinds.values())},
    }  # fmt: skip


def blocks(results: Results) -> dict[str, Block]:
    rows = results.rows
    shown = {
        "What four vendors offer": Block(_overview(rows["offers"])),
        "One job on all": Block(_files(rows["files"])),
        "The same thing in each platform's words": Block(field_map.field_map_section(rows["fields"]).table),
        "What one must rewrite to move": Block(_moves(rows["moves"])),
    }
    for section in comparing.comparison_sections(rows["offers"], rows["rented"]):
        cells = matching(rows["offers"], criterion=section.title)
        shown[section.title] = Block(
            section.table, values={"asks": section.intro, "found": sum(map(is_found, cells)), "of": len(cells)}
        )
    return shown


def _overview(offers: Sequence[Row]) -> Table:
    body = [
        [title, *(matching(offers, criterion=title, platform=name)[0]["says"] for name in VENDORS)]
        for _, title, _ in comparing.CRITERIA
    ]
    return listed(("criterion", *(offered(name).title for name in VENDORS)), body, 1 + len(VENDORS))


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

"""Platforms: what they offer, one job as a file of each, which fields say the same, and what one must rewrite to move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chronograd.answer import Answer, Highlight, Section
from chronograd.clouds import comparing, field_map
from chronograd.clouds.comparing import VENDORS, is_found, offered
from chronograd.units import percent
from chronograd.words import how_many
from chronograd_lab.common.results import Results, Settings
from chronograd_lab.common.rows import matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed


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


def page(results: Results) -> Answer:
    rows = results.rows
    mapped, moved = field_map.field_map_section(rows["fields"]), _moves_section(rows["moves"])
    files = _files_section(rows["files"])
    criteria = comparing.comparison_sections(rows["offers"], rows["rented"])
    own = [row for row in rows["offers"] if row["platform"] in VENDORS]
    missing = [row for row in own if not is_found(row)]
    whole = [title for _, title, _ in comparing.CRITERIA if not matching(missing, criterion=title)]
    offers = (
        f"All four vendors offer something, by a source, in {', '.join(title.lower() for title in whole)}; of "
        f"{len(own)} cells, {len(comparing.CRITERIA)} criteria of four vendors, {len(missing)} are “not found”."
    )
    overview = Section(
        "What four vendors offer",
        offers,
        "Read in the vendors' software and documentation; “not found” says that no source was found, not that there is no such thing.",
        table=listed(
            ("criterion", *(offered(name).title for name in VENDORS)),
            [[title, *(matching(own, criterion=title, platform=name)[0]["says"] for name in VENDORS)]
             for _, title, _ in comparing.CRITERIA],
            text=1 + len(VENDORS),
        ),
    )  # fmt: skip
    words = len(field_map.WORDS)
    highlights = [
        Highlight("words with a field on every platform", f"{_fielded(rows['fields'])}", f"of {words}"),
        Highlight("cells with a source", f"{sum(map(is_found, rows['offers']))}", f"of {len(rows['offers'])}"),
    ]
    sections = [overview, files, mapped, moved, *criteria]
    return STUDY.answer(results, sections, highlights, [moved.takeaway, offers, mapped.takeaway])


def _fielded(rows: Sequence[dict[str, Any]]) -> int:
    """Words that every platform has a field for."""
    return sum(all(row["paths"] for row in matching(rows, word=word)) for word in field_map.WORDS)


def _files_section(files: Sequence[dict[str, Any]]) -> Section:
    sizes = {row["platform"]: len(row["text"].splitlines()) for row in files}
    least, most = (choose(sizes, key=sizes.__getitem__) for choose in (min, max))
    body = [
        [row["platform"], row["file"], f"{sizes[row['platform']]}", f"{len(row['values'])}", f"{row['arguments']}",
         f"{len(row['options'])}"]
        for row in files
    ]  # fmt: skip
    return Section(
        "One job on all",
        f"The same job takes {how_many(sizes[least], 'lines')} for {least} and {sizes[most]} for {most}.",
        "ResNet-20 on digits, on one CPU machine, with data, output, checkpoints, a time limit, a secret, a variable and two tags. "
        "What of it is an argument of the command is the same everywhere but for paths.",
        table=listed(("platform", "file", "lines", "values", "arguments", "options of ours"), body, text=2),
    )


def _moves_section(moves: Sequence[dict[str, Any]]) -> Section:
    between = [row for row in moves if row["from"] in VENDORS and row["to"] in VENDORS]
    shares = sorted(row["new_values"] / row["values"] for row in between)
    options = sorted(row["changed_options"] for row in between)
    body = [
        [row["from"], row["to"], f"{row['new_lines']} of {row['lines']}", f"{row['new_values']} of {row['values']}",
         f"{row['changed_options']}"]
        for row in moves
    ]  # fmt: skip
    return Section(
        "What one must rewrite to move",
        f"From one vendor to another {percent(shares[0], 0)} to {percent(shares[-1], 0)} of the new file's values do not stand in the "
        f"old one; in our command {options[0]} to {options[-1]} options are others.",
        "Lines without their indentation and commas that the old file does not have in this order; values with a word that it does not "
        "have; options of “chronograd launch” that are given otherwise, are new, or go.",
        table=listed(("from", "to", "new lines", "new values", "options"), body, text=2),
    )


_SIZE: Settings = {"job": field_map.EXAMPLE}

STUDY = Study(
    name="platforms",
    question="What do four vendors' platforms offer, and how do their files for one job compare?",
    hypothesis="All say the same in other words, so that a table of fields is enough to move a job",
    sizes={"smoke": _SIZE, "laptop": _SIZE},
    conduct=conduct,
    computed=page,
)

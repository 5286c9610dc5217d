"""The study of platforms: its results are those of today's renderers and data files, and the figures of its page are counted again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from chronograd_lab.common.results import Results
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.studies.platforms import STUDY

KEPT = Results.load(Path(__file__).parents[3] / "docs" / "studies" / "platforms" / "results.json")
PAGE = STUDY.page(KEPT)
FOUR = {"sagemaker", "vertex", "azureml", "watsonx"}


def takeaway(title: str) -> str:
    return next(section.takeaway for section in PAGE.sections if section.title == title)


def numbers(text: str) -> list[int]:
    return [int(one) for one in re.findall(r"(?<![\w.])\d+(?![\w.]\w)", text)]


def test_its_results_are_those_of_today(tmp_path: Path) -> None:
    made = STUDY.conduct(StudyRunner(tmp_path, "platforms", "smoke", lambda _: None), STUDY.sizes["smoke"])
    assert json.loads(json.dumps(made.rows)) == KEPT.rows, (
        "run `chronograd study run platforms --out docs/studies/platforms`"
    )


def test_what_vendors_offer_is_counted() -> None:
    cells = [row for row in KEPT.rows["offers"] if row["platform"] in FOUR]
    without = {(row["platform"], row["criterion"]) for row in cells if not row["source"]}
    text = takeaway("What four vendors offer")
    assert numbers(text) == [len(cells), len(cells) // 4, len(without)]
    for criterion in {row["criterion"] for row in cells}:
        is_everywhere = all(criterion != name for _, name in without)
        assert (criterion.lower() in text.partition(";")[0]) == is_everywhere
    assert PAGE.highlights[1].value == str(sum(bool(row["source"]) for row in KEPT.rows["offers"]))


def test_words_with_a_field_are_counted() -> None:
    words: dict[str, list[dict[str, Any]]] = {}
    for row in KEPT.rows["fields"]:
        words.setdefault(row["word"], []).append(row)
    have = [sum(bool(row["paths"]) for row in rows) for rows in words.values()]
    assert numbers(takeaway("The same thing in each platform's words")) == [have.count(7), len(words), have.count(0)]
    assert PAGE.highlights[0].value == str(have.count(7))


def test_lines_and_values_are_counted() -> None:
    lengths = [row["text"].count("\n") for row in KEPT.rows["files"]]
    assert numbers(takeaway("One job on all")) == [min(lengths), max(lengths)]
    between = [row for row in KEPT.rows["moves"] if {row["from"], row["to"]} <= FOUR]
    assert len(between) == 12
    shares = [100 * row["new_values"] / row["values"] for row in between]
    options = [row["changed_options"] for row in between]
    told = numbers(takeaway("What one must rewrite to move"))
    assert told == [round(min(shares)), round(max(shares)), min(options), max(options)]


def test_kinds_of_gpus_are_counted() -> None:
    kinds = [row["platform"] for row in KEPT.rows["rented"]]
    assert numbers(takeaway("Instance types"))[-1] == max(kinds.count(name) for name in FOUR)

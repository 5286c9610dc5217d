"""The study of platforms: results match today's renderers and data files, and page figures are counted again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chronograd_lab.common.results import Results
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.studies.platforms.study import STUDY, values

KEPT = Results.load(Path(__file__).parents[3] / "docs" / "studies" / "platforms" / "results.json")
VALUES = values(KEPT)
FOUR = {"sagemaker", "vertex", "azureml", "watsonx"}


def test_results_are_current(tmp_path: Path) -> None:
    made = STUDY.conduct(StudyRunner(tmp_path, "platforms", "smoke", lambda _: None), STUDY.sizes["smoke"])
    assert json.loads(json.dumps(made.rows)) == KEPT.rows, (
        "run `chronograd study run platforms --out docs/studies/platforms`"
    )


def test_vendor_offers_are_counted() -> None:
    cells = [row for row in KEPT.rows["offers"] if row["platform"] in FOUR]
    without = {(row["platform"], row["criterion"]) for row in cells if not row["source"]}
    offers = VALUES["offers"]
    assert (offers["cells"], offers["criteria"], offers["missing"]) == (len(cells), len(cells) // 4, len(without))
    criteria = list(dict.fromkeys(row["criterion"] for row in cells))
    assert offers["whole"].split(", ") == [c.lower() for c in criteria if all(c != name for _, name in without)]
    assert offers["sourced"] == sum(bool(row["source"]) for row in KEPT.rows["offers"])


def test_words_with_a_field_are_counted() -> None:
    words: dict[str, list[dict[str, Any]]] = {}
    for row in KEPT.rows["fields"]:
        words.setdefault(row["word"], []).append(row)
    have = [sum(bool(row["paths"]) for row in rows) for rows in words.values()]
    found = VALUES["words"]
    assert (found["num_everywhere"], found["of"], found["num_nowhere"]) == (have.count(7), len(words), have.count(0))


def test_lines_and_values_are_counted() -> None:
    lengths = [row["text"].count("\n") for row in KEPT.rows["files"]]
    assert (VALUES["least"], VALUES["most"]) == (min(lengths), max(lengths))
    between = [row for row in KEPT.rows["moves"] if {row["from"], row["to"]} <= FOUR]
    assert len(between) == 12
    shares = [row["new_values"] / row["values"] for row in between]
    options = [row["changed_options"] for row in between]
    assert VALUES["move"] == {
        "least": min(shares),
        "most": max(shares),
        "fewest": min(options),
        "options": max(options),
    }


def test_gpu_types_are_counted() -> None:
    kinds = [row["platform"] for row in KEPT.rows["rented"]]
    assert VALUES["kinds"] == {"of": "sagemaker", "most": max(kinds.count(name) for name in FOUR)}


def test_sources_of_every_criterion_are_counted() -> None:
    takeaways = {section.title: section.takeaway for section in STUDY.page(KEPT).sections}
    for criterion in {row["criterion"] for row in KEPT.rows["offers"]}:
        cells = [row for row in KEPT.rows["offers"] if row["criterion"] == criterion]
        found = sum(bool(row["source"]) for row in cells)
        assert takeaways[criterion] == f"We found a source for {found} of {len(cells)} platforms."

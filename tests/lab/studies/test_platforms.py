"""The study of platforms: results match today's renderers and data files, and page figures are counted again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from chronograd_lab.common.results import Results
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.studies.platforms.study import STUDY, _newest_of, values

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
    assert offers["partly"] == sum("not found" in json.dumps(row) for row in cells)
    assert offers["sourced"] == sum(bool(row["source"]) for row in KEPT.rows["offers"])


def test_words_with_a_field_are_counted() -> None:
    words: dict[str, list[dict[str, Any]]] = {}
    for row in KEPT.rows["fields"]:
        words.setdefault(row["word"], []).append(row)
    # A word within the command has no field: watsonx.ai has its time limit and its variables there.
    commands = {row["platform"]: row["paths"] for row in words["command"]}
    fielded = {
        word: {
            row["platform"]
            for row in rows
            if row["paths"] and (word == "command" or row["paths"] != commands[row["platform"]])
        }
        for word, rows in words.items()
    }
    assert "watsonx" not in fielded["limit_s"] | fielded["environment"]
    have = [len(names) for names in fielded.values()]
    found = VALUES["words"]
    assert (found["num_everywhere"], found["of"], found["num_nowhere"]) == (have.count(7), len(words), have.count(0))
    assert VALUES["vendors"]["num_everywhere"] == sum(names >= FOUR for names in fielded.values()) == 7


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


def test_sections_have_all_vendors_and_dated_sources() -> None:
    sections = {section.title: section for section in STUDY.page(KEPT).sections}
    titles = ("Frameworks and versions", "Compute units", "The four job files, field by field")
    for title in titles:
        table = sections[title].table
        assert table is not None
        assert table.columns[1:] == ("SageMaker", "Vertex AI", "Azure ML", "watsonx.ai")
    for title in titles[:2]:
        table = sections[title].table
        assert table is not None
        name, *sources = table.rows[-1]
        assert (name, all(re.search(r"\([^()]*20\d\d", source) for source in sources)) == ("source", True)
    for title, criteria in (("Life-cycle tools", 4), ("Monitoring", 2), ("Visualisation while training", 1)):
        table = sections[title].table
        assert table is not None
        assert len(table.rows) == criteria * 7
        assert all(row[3] for row in table.rows if row[1] in ("SageMaker", "Vertex AI", "Azure ML", "watsonx.ai"))


def test_items_of_vendors_are_in_the_tables() -> None:
    """Count the frameworks and accelerators of all vendors again, from the data files."""
    for criterion, shared in (("Frameworks", VALUES["frameworks"]), ("Accelerators", VALUES["units"])):
        names = [set(row["items"]) for row in KEPT.rows["offers"] if row["criterion"] == criterion and row["items"]]
        assert len(names) == 4
        assert set(re.split(", | and ", shared["everywhere"])) == set.intersection(*names)


def test_newest_version_leaves_conditions_out() -> None:
    assert _newest_of(
        {"sagemaker": "2.9, 2.10 (2.11 for serving)", "vertex": "2.10", "watsonx": "2.1 (Runtime 24.1)"}
    ) == ("2.10 on SageMaker and Vertex AI and 2.1 on watsonx.ai")


def test_newest_version_is_not_that_of_an_older_runtime() -> None:
    newest = VALUES["frameworks"]["pytorch"]
    assert newest == "2.10 on SageMaker and Azure ML and 2.4 for serving on Vertex AI; that of watsonx.ai is unknown"


def test_job_files_side_by_side_have_every_value_once() -> None:
    files = {row["platform"]: row["values"] for row in KEPT.rows["files"]}
    for name in FOUR:
        shown = [value for row in KEPT.rows["aligned"] for _, value in row["lines"][name]]
        assert sorted(shown) == sorted(files[name])

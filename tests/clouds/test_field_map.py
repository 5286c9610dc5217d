"""The field map, which comes from rendering, agrees with the tables used for writing and reading files."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.platforms import fields_csv, files_page
from tests.clouds.cases import PLATFORMS

from chronograd.cli.main import main
from chronograd.clouds import field_map, fields, registry
from chronograd.clouds.field_map import WORDS, example, moved
from chronograd.clouds.submission import UNSAID, Submission

DOCS = Path(__file__).parents[2] / "docs"
ROWS = {(row["word"], row["platform"]): row for row in field_map.field_map()}


def test_field_map_has_every_requested_word() -> None:
    apart = {"command", "hyper_parameter"}
    assert set(WORDS) - apart == set(Submission.model_fields) - {"job", "devices"}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_words_have_the_fields_of_the_table(platform: str) -> None:
    tabled = {word for one in registry.platform(platform).fields for word in one.words}
    for word in (word for word in WORDS if word != "hyper_parameter"):
        row = ROWS[word, platform]
        assert bool(row["paths"]) == (word in tabled), row
        assert bool(row["arguments"]) == (word not in tabled), row
        assert row["arguments"] == [] or f"{UNSAID}.{word}" in row["arguments"]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_paths_lead_to_the_example_values(platform: str) -> None:
    where = registry.platform(platform)
    document, asked = fields.document(where, example(where)), example(where)
    for word in ("name", "image", "environment"):
        (path,) = ROWS[word, platform]["paths"]
        value = getattr(asked, word)
        wanted = value["NCCL_DEBUG"] if word == "environment" else value
        assert wanted in str(fields.get(document, path))


def test_renamed_field_gets_its_new_path() -> None:
    where = registry.platform("sagemaker")
    other = [dataclasses.replace(one, path="Elsewhere.Image") if one.says == "image" else one for one in where.fields]
    assert moved(dataclasses.replace(where, fields=other), "image") == {"paths": ["Elsewhere.Image"], "arguments": []}
    without = [one for one in where.fields if one.says != "image"]
    assert moved(dataclasses.replace(where, fields=without), "image") == {"paths": [], "arguments": ["launch.image"]}


def test_word_within_the_command_has_no_field() -> None:
    rows = [
        {"word": "command", "platform": "a", "paths": ["run"], "arguments": []},
        {"word": "command", "platform": "b", "paths": ["run"], "arguments": []},
        {"word": "limit_s", "platform": "a", "paths": ["limits.timeout"], "arguments": []},
        {"word": "limit_s", "platform": "b", "paths": ["run"], "arguments": []},
        {"word": "disk_gb", "platform": "a", "paths": [], "arguments": ["launch.disk_gb"]},
        {"word": "disk_gb", "platform": "b", "paths": ["run", "disk"], "arguments": []},
    ]
    assert field_map.with_field(rows) == {"command": [True, True], "limit_s": [True, False], "disk_gb": [False, True]}
    assert ROWS["limit_s", "watsonx"]["paths"] == ROWS["command", "watsonx"]["paths"]  # timeout 7200 python -m …


def test_side_by_side_has_every_value_of_a_file_once() -> None:
    rows = field_map.side_by_side(PLATFORMS)
    for name in PLATFORMS:
        where = registry.platform(name)
        shown = [path for row in rows for path, _ in row["lines"][name]]
        assert sorted(shown) == sorted(path for path, _ in fields.leaves(fields.document(where, example(where))))
    lines = {row["word"]: row["lines"] for row in rows}
    assert lines["name"]["sagemaker"] == [("TrainingJobName", "digits-resnet20")]
    assert ("jobSpec.workerPoolSpecs.0.replicaCount", "1") in lines["nodes"]["vertex"]
    assert [path for path, _ in lines["data"]["azureml"]] == [
        "inputs.data.type",
        "inputs.data.path",
        "inputs.data.mode",
    ]
    assert ("type", "command") in lines["rest"]["azureml"]


def test_words_to_rewrite_are_counted() -> None:
    old: dict[str, Any] = {"platform": "a", "text": "{\n  x: 1,\n  y: u v\n}", "values": ["1", "u v"], "options": {"image": "i", "role": "r"}}  # fmt: skip
    new: dict[str, Any] = {"platform": "b", "text": "{\n x: 1\n z: v=1\n w: 2\n}", "values": ["1", "v=1", "2"], "options": {"image": "i", "disk": "3"}}  # fmt: skip
    there, back = field_map.moves([old, new])
    assert there == {"from": "a", "to": "b", "lines": 5, "new_lines": 2, "values": 3, "new_values": 1, "options": 2, "changed_options": 2}  # fmt: skip
    assert (back["new_lines"], back["new_values"], back["changed_options"]) == (1, 1, 2)


def test_page_and_table_are_up_to_date() -> None:
    assert (DOCS / "platform-files.md").read_text() == files_page(), "run `python -m benchmarks.platforms`"
    assert (DOCS / "platform-fields.csv").read_text() == fields_csv(), "run `python -m benchmarks.platforms`"
    read = list(csv.DictReader(fields_csv().splitlines()))
    assert {"word": "nodes", "platform": "sagemaker", "paths": "ResourceConfig.InstanceCount", "arguments": ""} in read
    assert len(read) == len(WORDS) * len(PLATFORMS)


def test_field_map_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["platforms", "--fields", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == list(ROWS.values())

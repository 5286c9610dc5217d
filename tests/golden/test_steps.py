"""Sixty questions about one training step, with the answers of this version; and networks that both paths of prediction know.

`steps.toml` has the words after `chronograd predict`, the time and the memory. CHRONOGRAD_REFRESH_GOLDEN=1, in one process,
writes its numbers again; review the changes in the diff. A pair asks about the same step twice: of a network of code, and of the same network as the
`config.json` of a large model. The differences of a pair only shrink, also when they are written again.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from chronograd.cli.main import main

HERE = Path(__file__).parent
FILE = HERE / "steps.toml"
IS_REFRESHING = os.environ.get("CHRONOGRAD_REFRESH_GOLDEN") == "1"
QUANTITIES = {"step_s": "step_time_s", "memory_bytes": "memory_peak_bytes"}
TOLERANCE = 1e-4  # numbers are stored with five digits
STEPS = tomllib.loads(FILE.read_text())
HEAD = "# Questions about a step, and what this version answers; see test_steps.py.\n"


def asked(words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    """Return the time and the memory that `chronograd predict WORDS` states."""
    assert main(["predict", *shlex.split(words), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)["quantities"]
    return {name: float(f"{values[quantity]['value']:.5g}") for name, quantity in QUANTITIES.items()}


def apart(pair: Mapping[str, Any], capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    """Return the difference of the two answers of a pair, over the larger one, rounded up to 0.1 %."""
    one, other = (asked(pair[words], capsys) for words in ("network", "config"))
    return {
        name: math.ceil(1000 * abs(one[name] - other[name]) / max(one[name], other[name]) - 1e-9) / 1000
        for name in QUANTITIES
    }


@pytest.mark.parametrize("question", STEPS["questions"], ids=lambda question: question["words"])
def test_answer_is_the_stored_one(
    question: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(HERE)
    found = asked(question["words"], capsys)
    if IS_REFRESHING:
        question.update(found)
        write()
    assert found == pytest.approx({name: question.get(name) for name in QUANTITIES}, rel=TOLERANCE)


@pytest.mark.parametrize("pair", STEPS["pairs"], ids=lambda pair: pair["network"])
def test_two_paths_differ_no_more_than_before(
    pair: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(HERE)
    found = apart(pair, capsys)
    if IS_REFRESHING:
        pair.update({name: min(value, pair.get(name, math.inf)) for name, value in found.items()})
        write()
    assert all(found[name] <= pair[name] for name in QUANTITIES), (found, pair)


def test_questions_are_thirty_of_each_kind() -> None:
    words = [question["words"] for question in STEPS["questions"]]
    assert len(words) == len(set(words)) == 60
    assert [question["kind"] for question in STEPS["questions"]].count("large") == 30


def write() -> None:
    """Write the numbers of `STEPS` again."""
    lines = [HEAD]
    for table, rows in STEPS.items():
        for row in rows:
            lines += [f"[[{table}]]", *(f"{name} = {json.dumps(value)}" for name, value in row.items()), ""]
    FILE.write_text("\n".join(lines))

"""The lab's verbs are called from Python as on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import chronograd
from chronograd.cli.main import main


def test_a_study_gives_the_same_answer_both_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["study", "run", "receptive-field", "--size", "smoke", "--out", str(tmp_path)]
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    answer = chronograd.study_run("receptive-field", size="smoke", out=tmp_path)
    assert answer.data == printed
    assert [section.title for section in answer.sections] == list(printed["takeaways"])
    assert Path(printed["folder"], "report.html").is_file()
    assert main([*words, "--report-only"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{answer.sections[0].title}: ")
    assert said.endswith(f"report     {tmp_path / 'report.html'}\n")

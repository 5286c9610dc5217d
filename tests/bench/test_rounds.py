"""Two jobs measured in alternating rounds: order, resuming, and the gate on their pairs."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import chronograd
from chronograd import job as jobs
from chronograd.bench.rounds import PLAN, measure_rounds
from chronograd.cli.main import main
from chronograd.errors import JobError, RunError
from chronograd.measure.result import Timing
from chronograd.record import Record

# B processes eight times the samples in a step.
TINY = {
    "network": {"name": "lenet5"},
    "data": {"name": "synthetic", "shape": [1, 28, 28], "classes": 10, "samples": 512},
    "training": {"batch": 16},
    "cluster": {"device": "cpu", "threads": 1},
}
TIMING = {"num_steps": 4, "warmup": 1}
TIMED = Timing(**TIMING)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Three rounds of a job and of one with more work, measured by the command line."""
    folder = tmp_path_factory.mktemp("rounds")
    for name, batch in (("a", 16), ("b", 128)):
        one = jobs.changed(jobs.from_dict(TINY), [f"training.batch={batch}"])
        (folder / f"{name}.yaml").write_text(jobs.to_yaml(one))
    command = ["compare", "jobs", str(folder / "a.yaml"), str(folder / "b.yaml"), "--rounds", "3"]
    command += ["--steps", "4", "--warmup", "1", "--out", str(folder / "ab")]
    return folder / "ab", command


def test_rounds_alternate_and_the_gate_uses_pairs(measured, capsys):
    """The interval of three changes uses t = 4.303. On the busiest machine, it does not reach down to -99.999999 %."""
    folder, command = measured
    assert main([*command, "--fail-if", "step_time > -99.999999%", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    (condition,) = told["conditions"]
    assert (told["folder"], told["rounds"], condition["verdict"]) == (str(folder), 3, "fails")
    a, b = (
        np.log([Record.load(folder / side / f"round-{number}").value("step_time_s") for number in (1, 2, 3)])
        for side in "ab"
    )
    half = 4.302652729911275 * np.std(b - a, ddof=1) / math.sqrt(3)
    assert condition["low"] == pytest.approx(100 * math.expm1(np.mean(b - a) - half))
    assert condition["high"] == pytest.approx(100 * math.expm1(np.mean(b - a) + half))
    assert condition["spread_is_assumed"] is False
    begun = sorted((json.loads(line)["time"], f"{side}{number}") for side in "ab" for number in (1, 2, 3)
                   for line in (folder / side / f"round-{number}" / "steps.0.jsonl").read_text().splitlines()[:1])  # fmt: skip
    assert [name for _, name in begun] == ["a1", "b1", "b2", "a2", "a3", "b3"]


def test_interrupted_rounds_continue_with_missing_runs(measured, capsys, tmp_path: Path):
    folder, command = measured
    main(command)
    copy = shutil.copytree(folder, tmp_path / "ab")
    kept = (copy / "a" / "round-1" / "record.json").read_bytes()
    shutil.rmtree(copy / "b" / "round-2")
    capsys.readouterr()
    main([*command[:-1], str(copy), "--rounds", "4"])
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("round")]
    assert said == ["round 2 of 4: job B", "round 4 of 4: job B", "round 4 of 4: job A"]
    assert (copy / "a" / "round-1" / "record.json").read_bytes() == kept
    assert {path.name for path in (copy / "b").iterdir()} == {f"round-{number}" for number in (1, 2, 3, 4)}


def test_saved_rounds_can_be_judged_again(measured, capsys):
    folder, command = measured
    main([*command, "--json", "--fail-if", "throughput < -5%"])
    first = json.loads(capsys.readouterr().out)["conditions"]
    main(["compare", str(folder / "a"), str(folder / "b"), "--paired", "--json", "--fail-if", "throughput < -5%"])
    (again,) = json.loads(capsys.readouterr().out)["conditions"]
    assert again["spread"].endswith("interval from the spread of their changes")
    if len(list((folder / "a").iterdir())) == 3:
        assert first == [again]


def test_python_result_equals_the_command_lines(tmp_path: Path):
    job = jobs.from_dict(TINY)
    answer = chronograd.compare_jobs(job, job, "training.batch=8", rounds=3, out=str(tmp_path / "ab"), **TIMING)
    assert answer.data["rounds"] == 3
    assert [found["condition"] for found in answer.data["conditions"]] == ["step_time > 5%"]
    assert json.loads((tmp_path / "ab" / PLAN).read_text())["b"]["training"]["batch"] == 8


def test_other_jobs_and_folders_are_refused(tmp_path: Path):
    job = jobs.from_dict(TINY)
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / PLAN).write_text(json.dumps({"a": jobs.resolved(job), "b": {}, "timing": asdict(TIMED)}))
    with pytest.raises(JobError, match="rounds with another job B"):
        measure_rounds(job, job, 3, out=tmp_path / "ab", timing=TIMED)
    (tmp_path / "ab" / PLAN).rename(tmp_path / "ab" / "notes.txt")
    with pytest.raises(RunError, match="is not empty and has no rounds"):
        measure_rounds(job, job, 3, out=tmp_path / "ab", timing=TIMED)
    assert [path.name for path in (tmp_path / "ab").iterdir()] == ["notes.txt"]

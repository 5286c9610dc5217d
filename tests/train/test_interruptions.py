"""The cost of interruptions, in closed form."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from chronograd.rundir import RunDir, StepLine
from chronograd.rundir.steps import merged
from chronograd.train.interruptions import Interruptions, interruptions
from chronograd.train.result import settled


def line(attempt: int, time: float, step: int, **values: Any) -> dict[str, Any]:
    return {"attempt": attempt, "time": time, "step": step, "step_time_s": 1.0, **values}


def event(attempt: int, time: float, step: int, name: str) -> dict[str, Any]:
    figures = {"epoch": 1, "seconds": 1.0, "epoch_time_s": 1.0} if name == "epoch" else {}
    return {"attempt": attempt, "time": time, "step": step, "event": name, **figures}


def written(tmp_path: Path, *lines: dict[str, Any], rank: int = 0) -> RunDir:
    run = RunDir(tmp_path)
    run.steps_path(rank).write_text("".join(json.dumps(one) + "\n" for one in lines))
    return run


def test_uninterrupted_run_loses_nothing(tmp_path: Path) -> None:
    run = written(tmp_path, event(1, 100, 0, "attempt"), line(1, 111, 1), line(1, 112, 2))
    assert interruptions(run.read_steps()) == Interruptions(1, 0, 0.0, 0.0)


def test_two_interruptions(tmp_path: Path) -> None:
    """Epochs have two steps. Two kills in step 4 discard step 3 twice. The first epoch is saved at 113.5; steps
    continue at 130 and, finally, at 150.
    """
    run = written(
        tmp_path,
        *(event(1, 100, 0, "attempt"), line(1, 111, 1), line(1, 112, 2), event(1, 113.5, 2, "epoch"), line(1, 115, 3)),
        *(event(2, 120, 0, "attempt"), line(2, 131, 3, step_time_s=1.0)),
        *(event(3, 140, 0, "attempt"), line(3, 151, 3), line(3, 152, 4), event(3, 153, 4, "epoch")),
    )
    found = interruptions(run.read_steps())
    assert found == Interruptions(3, 2, 2.0, (130 - 113.5) + (150 - 113.5))
    quantities = found.quantities()
    assert {name: q.value for name, q in quantities.items()} == {"redone_steps": 2, "redone_s": 2.0, "lost_s": 53.0}
    assert found.note == "started 3 times; 2 steps were repeated and count once"


def test_everything_before_the_first_checkpoint_is_lost(tmp_path: Path) -> None:
    run = written(tmp_path, line(1, 111, 1), line(1, 112, 2), line(2, 131, 1), line(2, 132, 2))
    assert interruptions(run.read_steps()) == Interruptions(2, 2, 2.0, 130.0 - 110.0)


def test_killed_before_any_step(tmp_path: Path) -> None:
    run = written(tmp_path, event(1, 100, 0, "attempt"), event(2, 125, 0, "attempt"), line(2, 140, 1))
    assert interruptions(run.read_steps()) == Interruptions(2, 0, 0.0, 25.0)


def test_killed_after_all_steps(tmp_path: Path) -> None:
    run = written(tmp_path, line(1, 111, 1), event(1, 112, 1, "epoch"), event(2, 125, 0, "attempt"))
    assert interruptions(run.read_steps()) == Interruptions(2, 0, 0.0, 13.0)


def test_lines_of_an_older_version_have_no_time(tmp_path: Path) -> None:
    lines = [{k: v for k, v in line(attempt, 0, 1).items() if k != "time"} for attempt in (1, 2)]
    found = interruptions(written(tmp_path, *lines).read_steps())
    assert (found.redone_steps, found.redone_s) == (1, 1.0)
    assert math.isnan(found.lost_s)
    assert found.quantities()["lost_s"].value is None


def test_learner_updates_are_merged_into_one_log(tmp_path: Path) -> None:
    """Learner 1 made update 3, and learner 0 made it again."""
    written(tmp_path, line(1, 111, 1), line(2, 131, 3), rank=0)
    run = written(tmp_path, line(1, 112, 2), line(1, 113, 3), line(2, 132, 4), rank=1)
    log = merged(run.logs().values())
    assert [(one.step, one.attempt) for one in log.steps] == [(1, 1), (2, 1), (3, 2), (4, 2)]
    assert interruptions(log) == Interruptions(2, 1, 1.0, 130.0 - 112.0)


@pytest.mark.parametrize(("counts", "remaining"), [((7,), [5, 6]), ((7, 6), [5, 6, 12]), ((3,), [2]), ((3, 2), [4])])
def test_first_steps_of_every_start_are_excluded(counts: tuple[int, ...], remaining: list[int]) -> None:
    attempts = [attempt for attempt, count in enumerate(counts) for _ in range(count)]
    lines = [StepLine(attempt=attempt, step=number) for number, attempt in enumerate(attempts)]
    assert [one.step for one in settled(lines)] == remaining

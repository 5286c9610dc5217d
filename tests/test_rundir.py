"""Run directories: one writer per file, torn lines, attempts, and many processes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronograd import job as jobs
from chronograd.errors import FileFormatError, RunError
from chronograd.record import Quantity, Record
from chronograd.rundir import RunDir, StepFollower, list_runs, read_steps
from chronograd.rundir.steps import EpisodeLine, Epoch, NoteLine, Ready, Start, StepLine, merged

JOB = jobs.from_dict({"network": {"name": "torchvision:vgg19"}, "data": {"name": "digits"}})


def test_new_run_has_a_name_and_the_resolved_job(tmp_path: Path) -> None:
    run = RunDir.create(JOB, {"cores": 2}, parent=tmp_path)
    assert run.path.parent == tmp_path
    date, clock, *label, suffix = run.path.name.split("-")
    assert (len(date), len(clock), "-".join(label), len(suffix)) == (8, 6, "digits-torchvision-vgg19", 4)
    again = RunDir.open(run.path)
    assert again.job() == JOB
    assert again.environment() == {"cores": 2}
    assert not again.is_finished


def test_directory_is_claimed_once(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    RunDir.create(JOB, out=out)
    with pytest.raises(RunError, match="holds a run already"):
        RunDir.create(JOB, out=out)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(RunError, match="is not empty"):
        RunDir.create(JOB, out=tmp_path / "full")
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot make a run directory"):
        RunDir.create(JOB, out=tmp_path / "file")


def test_invalid_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run directory"):
        RunDir.open(tmp_path / "absent")
    with pytest.raises(FileFormatError, match="not a run directory"):
        RunDir.open(tmp_path)
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(FileFormatError, match="round is a symbolic link that leads back to itself"):
        RunDir.open(tmp_path / "round")
    (tmp_path / "gone").symlink_to("absent")
    with pytest.raises(FileFormatError, match="gone is a symbolic link to absent, which does not exist"):
        RunDir.open(tmp_path / "gone")
    run = RunDir.create(out=tmp_path / "own")
    with pytest.raises(RunError, match="custom training loop"):
        run.job()
    with pytest.raises(FileFormatError, match="no record"):
        run.record()


def test_steps_are_read_back_with_their_attempt(tmp_path: Path) -> None:
    run = RunDir.create(JOB, out=tmp_path / "run")
    with run.step_writer() as lines:
        lines.write(StepLine(step=1, loss=2.5))
        lines.write(StepLine(step=2, loss=float("nan")))
        lines.write(
            Epoch(
                step=2,
                epoch=1,
                seconds=1.5,
                epoch_time_s=1.5,
                train_loss=float("nan"),
                test_loss=None,
                test_accuracy=None,
            )
        )
    log = run.read_steps()
    (first, second), (epoch,) = log.steps, log.events
    assert (first.attempt, first.step, first.loss) == (1, 1, 2.5)
    assert (second.attempt, second.step, second.mode) == (1, 2, None)
    assert math.isnan(second.loss or 0.0)
    assert log.starts[1] <= first.time <= second.time <= epoch.time == log.ended
    figures = {"epoch": 1, "seconds": 1.5, "epoch_time_s": 1.5, "train_loss": None, "test_loss": None}
    assert epoch == Epoch(attempt=1, time=epoch.time, step=2, **figures, test_accuracy=None)
    written = run.steps_path().read_text().splitlines()
    assert [list(json.loads(line)) for line in written] == [
        ["attempt", "time", "step", "loss"],
        ["attempt", "time", "step", "loss"],
        ["attempt", "time", "event", "step", *figures, "test_accuracy"],
    ]
    assert run.read_steps(rank=1).steps == []
    assert run.ranks() == [0]


def test_last_attempt_of_a_step_wins_and_redone_ones_count(tmp_path: Path) -> None:
    run = RunDir.create(JOB, out=tmp_path / "run")
    for attempt, steps in enumerate([(1, 2, 3, 4), (3, 4, 5)], start=1):
        with run.step_writer() as lines:
            assert lines.attempt == attempt
            for step in steps:
                lines.write(StepLine(step=step, loss=float(attempt)))
    log = run.read_steps()
    assert [(line.step, line.loss) for line in log.steps] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]
    assert (log.attempts, log.redone, log.torn) == (2, 2, 0)
    assert [line.step for line in log.last_attempt()] == [3, 4, 5]


def test_episodes_and_notes_of_discarded_steps_are_dropped(tmp_path: Path) -> None:
    """Several actors end episodes at one step. The second attempt resumes at step 100, with other line ends."""
    run = RunDir.create(JOB, out=tmp_path / "run")

    def write(begin: int, ends: Sequence[int], total: float) -> None:
        with run.step_writer() as lines:
            lines.write(NoteLine(step=begin, text="told at each start"))
            lines.write(Ready(step=begin))
            for before, end in pairwise([begin, *ends]):
                lines.write(StepLine(step=end, num_steps=end - before))
                for number in range(3):
                    lines.write(EpisodeLine(step=end, total=total + number, length=5, epsilon=0.1))
                lines.write(NoteLine(step=end, text="actor 0 died"))
                lines.write(NoteLine(step=end, text="actor 1 died"))

    write(0, [40, 100, 150], 10.0)
    write(100, [130, 160], 20.0)
    log = run.read_steps()
    assert [(line.attempt, line.step) for line in log.steps] == [(1, 40), (1, 100), (2, 130), (2, 160)]
    assert [(line.step, line.total) for line in log.of(EpisodeLine)] == [
        (step, total + number) for step, total in ((40, 10), (100, 10), (130, 20), (160, 20)) for number in range(3)
    ]
    texts = Counter((note.attempt, note.text) for note in log.of(NoteLine))
    assert texts == {
        (1, "told at each start"): 1, (2, "told at each start"): 1,
        **{(attempt, f"actor {number} died"): 2 for attempt in (1, 2) for number in (0, 1)},
    }  # fmt: skip
    assert log.redone == 50
    assert sum(line.num_steps or 0 for line in log.steps) == 160


def test_torn_line_is_dropped_before_the_next_attempt(tmp_path: Path) -> None:
    run = RunDir.create(JOB, out=tmp_path / "run")
    run.steps_path().write_bytes(b'{"attempt": 1, "step": 1}\n{"attempt": 1, "st')
    assert (len(run.read_steps().steps), run.read_steps().torn) == (1, 1)
    with run.step_writer() as lines:
        lines.write(StepLine(step=2))
    log = run.read_steps()
    assert [line.step for line in log.steps] == [1, 2]
    assert (log.attempts, log.torn) == (2, 1)


def test_damage_in_the_middle_of_an_attempt_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "steps.0.jsonl"
    path.write_bytes(b'{"attempt": 1, "step": 1}\n{"attempt": 1, \x00\x00}\n{"attempt": 1, "step": 3}\n')
    with pytest.raises(FileFormatError, match="line 2"):
        read_steps(path)


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 400))
def test_truncated_file_returns_its_complete_lines(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "steps.0.jsonl"
    whole = b"".join(json.dumps({"attempt": 1, "step": s, "loss": s / 7}).encode() + b"\n" for s in range(1, 9))
    path.write_bytes(whole[:cut])
    log = read_steps(path)
    complete = whole[:cut].count(b"\n")
    assert complete <= len(log.steps) <= complete + 1
    assert [line.step for line in log.steps] == list(range(1, len(log.steps) + 1))


def test_one_writer_per_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chronograd.rundir.steps.LOCK_WAIT_S", 0.0)
    run = RunDir.create(JOB, out=tmp_path / "run")
    with run.step_writer(), pytest.raises(RunError, match="being written by another process"):
        run.step_writer()
    run.step_writer().close()


def test_follower_sees_each_complete_line_once(tmp_path: Path) -> None:
    path = tmp_path / "steps.0.jsonl"
    follower = StepFollower(path)
    assert follower.new_lines() == []
    with path.open("ab", buffering=0) as stream:
        stream.write(b'{"attempt": 1, "step": 1}\n{"attempt": 1,')
        assert [line.step for line in follower.new_lines()] == [1]
        stream.write(b' "step": 2}\n')
        assert [line.step for line in follower.new_lines()] == [2]
    assert StepFollower(path).new_lines() == []


def test_first_error_among_the_ranks(tmp_path: Path) -> None:
    run = RunDir.create(JOB, out=tmp_path / "run")
    for rank in (1, 0):
        with pytest.raises(ValueError), run.step_writer(rank):
            raise ValueError(f"rank {rank}")
    assert run.first_error() == (1, "ValueError: rank 1")


def test_errors_of_earlier_attempts_are_ignored(tmp_path: Path) -> None:
    """The clock went back by a day before the second attempt."""
    run = RunDir.create(JOB, out=tmp_path / "run")
    for rank, text in ((0, "old"), (1, "older")):
        run.steps_path(rank).write_text(
            f'{{"attempt": 1, "time": 100000, "event": "error", "step": 0, "text": "{text}"}}\n'
        )
    before = run.attempts()
    assert run.first_error(before) is None
    with run.steps_path(0).open("a") as stream:
        stream.write('{"attempt": 2, "time": 13600, "event": "error", "step": 0, "text": "new"}\n')
    assert run.first_error(before) == (0, "new")


def test_times_are_monotonic_if_the_clock_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir.create(JOB, out=tmp_path / "run")
    with run.step_writer() as lines:
        lines.write(StepLine(step=1))
        yesterday = time.time() - 86_400
        monkeypatch.setattr(time, "time", lambda: yesterday)
        lines.write(StepLine(step=2))
    first, second = (line.time for line in run.read_steps().steps)
    assert 0 <= second - first < 3600


def test_attempts_stay_in_order_if_the_clock_goes_back(tmp_path: Path) -> None:
    """Attempts of 60 s: the second is a day early by its clock, the third 10 s later."""
    run = RunDir.create(JOB, out=tmp_path / "run")
    written = [(1, 100_000), (1, 100_060), (2, 13_600), (2, 13_660), (3, 13_670), (3, 13_730)]
    for rank in (0, 1):
        lines = [
            {"attempt": attempt, "step": 2 * step + rank, "time": at, **extra}
            for step, (attempt, at) in enumerate(written, start=1)
            for extra in ({}, {"event": "start", "threads": 1, "process_time": at - 1})
        ]
        run.steps_path(rank).write_text("".join(json.dumps(line) + "\n" for line in lines))
    log = run.read_steps()
    assert [line.time for line in log.steps] == [100_000, 100_060, 100_060, 100_120, 100_130, 100_190]
    assert [start.time - (start.process_time or 0.0) for start in log.of(Start)] == [1.0] * 6
    assert log.set_back_s == 86_460
    assert log.starts == {1: 100_000, 2: 100_060, 3: 100_130}
    assert log.ended == 100_190
    updates = merged(run.logs().values())
    assert (updates.starts, updates.ended, updates.set_back_s) == (log.starts, log.ended, log.set_back_s)


def test_listing_survives_damaged_runs(tmp_path: Path) -> None:
    record = Record(kind="measured", title="t", job=jobs.resolved(JOB))
    record.put("step_time_s", Quantity(value=0.1, unit="s"))
    RunDir.create(JOB, out=tmp_path / "a-finished").save_record(record)
    RunDir.create(JOB, out=tmp_path / "b-unfinished")
    (RunDir.create(JOB, out=tmp_path / "c-damaged").path / "record.json").write_text("{")
    record.save(tmp_path / "d-alone.json")
    (tmp_path / "e-other.json").write_text("[]")
    (tmp_path / "f-other").mkdir()
    listed = [(s.path.name, s.state) for s in list_runs(tmp_path)]
    assert listed == [
        ("a-finished", "measured"),
        ("b-unfinished", "unfinished"),
        ("c-damaged", "damaged"),
        ("d-alone.json", "measured"),
    ]
    assert list_runs(tmp_path / "absent") == []


WRITER = """
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from chronograd import job as jobs
from chronograd.errors import RunError
from chronograd.rundir import RunDir, StepLine
parent, shared, me = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
job = jobs.from_dict({"network": {"name": "n"}, "data": {"name": "d"}})
for _ in range(20):
    print(RunDir.create(job, parent=parent).path.name)
try:
    RunDir.create(job, out=shared)
    print("claimed")
except RunError:
    print("refused")
run = RunDir(shared)
with run.step_writer(me) as lines:
    for step in range(200):
        lines.write(StepLine(step=step, extra={"writer": me}))
"""


def test_concurrent_writers_never_collide(tmp_path: Path) -> None:
    """Four real processes create runs in one folder, claim the same one, and write steps into it."""
    parent, shared = tmp_path / "runs", tmp_path / "shared"
    command = [sys.executable, "-c", WRITER, str(parent), str(shared)]
    processes = [
        subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, text=True, env=os.environ) for i in range(4)
    ]
    printed = [p.communicate(timeout=600)[0].split() for p in processes]
    assert all(p.returncode == 0 for p in processes)
    names = [word for words in printed for word in words if word not in ("claimed", "refused")]
    assert len(names) == len(set(names)) == 80 == len(list_runs(parent))
    assert sorted(words[-1] for words in printed) == ["claimed", "refused", "refused", "refused"]
    run = RunDir.open(shared)
    assert run.ranks() == [0, 1, 2, 3]
    for rank in run.ranks():
        log = run.read_steps(rank)
        assert [line.extra["writer"] for line in log.steps] == [rank] * 200

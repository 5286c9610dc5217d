"""Notes of where ranks are, and who is blamed for what they tell: without processes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from chronograd.rundir import RunDir
from chronograd.train import watchdog
from chronograd.train.watchdog import GRADIENTS, Watchdog, note_path, read_note


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(out=tmp_path / "run")


@pytest.fixture(autouse=True)
def _signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """As often for every rank, as with one time-out."""
    monkeypatch.setattr(watchdog, "BEAT_LEAST_S", 0.3)
    monkeypatch.setattr(watchdog, "BEAT_MOST_S", 0.3)


def test_a_note_tells_part_step_and_collective(run: RunDir) -> None:
    here = Watchdog()
    with run.step_writer(0) as lines, here.watch(run, 0, 2, 60, lines):
        here.set_collectives({"backward": GRADIENTS})
        here.at("input", 7)
        note = read_note(note_path(run, 0))
        assert note is not None
        assert (note.process, note.what, note.step, note.count, note.waits) == (os.getpid(), "input", 7, 0, False)
        here.at("backward", 7)
        note = read_note(note_path(run, 0))
        assert note is not None
        assert (note.what, note.count, note.waits) == (GRADIENTS, 1, True)
        here.at("evaluation", 8)
        with here.waiting("sum"):
            note = read_note(note_path(run, 0))
            assert note is not None
            assert (note.what, note.count, note.waits) == ("sum (evaluation)", 2, True)
        note = read_note(note_path(run, 0))
        assert note is not None
        assert (note.what, note.step, note.count, note.waits) == ("evaluation", 8, 2, False)
    assert not note_path(run, 0).exists()


def test_a_single_rank_notes_nothing(run: RunDir) -> None:
    here = Watchdog()
    with run.step_writer(0) as lines, here.watch(run, 0, 1, 60, lines):
        here.at("input", 1)
        assert not note_path(run, 0).exists()


def test_a_note_takes_microseconds(run: RunDir) -> None:
    """A step notes six parts: far less than a thousandth of a step of 10 ms, were it not for a busy machine."""
    here = Watchdog()
    with run.step_writer(0) as lines, here.watch(run, 0, 2, 60, lines):
        best_s = min(_seconds_of_notes(here, 2000) for _ in range(5)) / 2000
    assert best_s < 10e-6


def _seconds_of_notes(here: Watchdog, count: int) -> float:
    start = time.perf_counter()
    for step in range(count):
        here.at("input", step)
    return time.perf_counter() - start


def end_of_wait(run: RunDir, monkeypatch: pytest.MonkeyPatch, *others: Watchdog | None) -> dict[str, Any]:
    """What rank 0, which is in its third collective, writes after a second, where the others are as they are."""
    ended: list[int] = []
    monkeypatch.setattr(watchdog.os, "_exit", ended.append)
    here = Watchdog()
    with run.step_writer(0) as lines, here.watch(run, 0, 1 + len(others), 1.0, lines):
        here.set_collectives({"backward": GRADIENTS})
        for step in (1, 2, 3):
            here.at("backward", step)
        deadline = time.monotonic() + 20
        while not ended and time.monotonic() < deadline:
            time.sleep(0.05)
    assert set(ended) == {1}
    errors = [json.loads(line) for line in run.steps_path(0).read_text().splitlines()]
    return dict(errors[0])


def test_the_rank_that_is_behind_is_blamed_not_one_that_waits_too(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, behind = Watchdog(), Watchdog()
    with (
        run.step_writer(1) as one,
        run.step_writer(2) as two,
        waits.watch(run, 1, 3, 60, one),
        behind.watch(run, 2, 3, 60, two),
    ):
        for rank in (waits, behind):
            rank.set_collectives({"backward": GRADIENTS})
            rank.at("backward", 1)
            rank.at("backward", 2)
        behind.at("input", 3)
        error = end_of_wait(run, monkeypatch, waits, behind)
    assert (error["event"], error["rank"]) == ("error", 2)
    told = "a time-out: it did not come to the all-reduce of gradients of step 3 within 1 s; it has been in input of step 3"
    assert error["text"].startswith(told)
    assert "missing, too" not in error["text"]
    assert run.first_error() == (2, error["text"])


def test_a_rank_that_has_not_started_is_blamed_whatever_an_earlier_one_left(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_PORT", "1")
    earlier = Watchdog()
    with run.step_writer(1) as lines, earlier.watch(run, 1, 2, 60, lines):
        for step in range(9):
            earlier.at("input", step)
        left = note_path(run, 1).read_bytes()
    note_path(run, 1).write_bytes(left)
    monkeypatch.setenv("MASTER_PORT", "2")
    error = end_of_wait(run, monkeypatch, None)
    assert error["rank"] == 1
    assert error["text"].endswith("within 1 s; it has not started, or has ended")


def test_where_all_have_come_the_link_is_to_blame(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Watchdog()
    with run.step_writer(1) as lines, other.watch(run, 1, 2, 1.0, lines):
        other.set_collectives({"forward": GRADIENTS})
        for step in (1, 2, 3):
            other.at("forward", step)
        other.now = other.now._replace(since_s=time.monotonic() + 1000)  # it is not the one to say so here
        error = end_of_wait(run, monkeypatch, other)
    assert error["text"] == (
        "a time-out: all ranks came to the all-reduce of gradients of step 3, which did not end within 1 s"
    )


@pytest.mark.parametrize("data", [b"", b"short", b"\0" * 64])
def test_what_is_no_note_is_none(run: RunDir, data: bytes) -> None:
    note_path(run, 0).write_bytes(data)
    assert read_note(note_path(run, 0)) is None

"""Notes of rank positions and the blame derived from them, without processes."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from chronograd.rundir import RunDir
from chronograd.rundir.steps import Stall
from chronograd.train import watchdog
from chronograd.train.watchdog import GRADIENTS, Watchdog, note_path, read_note


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(out=tmp_path / "run")


@pytest.fixture(autouse=True)
def _signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the same interval for every rank, like with one time-out."""
    monkeypatch.setattr(watchdog, "MIN_BEAT_S", 0.3)
    monkeypatch.setattr(watchdog, "MAX_BEAT_S", 0.3)


def test_note_has_part_step_and_collective(run: RunDir) -> None:
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


def test_single_rank_writes_notes(run: RunDir) -> None:
    here = Watchdog()
    with run.step_writer(0) as lines, here.watch(run, 0, 1, 60, lines):
        here.at("input", 1)
        note = read_note(note_path(run, 0))
        assert note is not None
        assert (note.place, note.address) == ("input of step 1", "")
    assert not note_path(run, 0).exists()


def stay(here: Watchdog, seconds: float, is_stopped: bool) -> None:
    """Pretend that this rank stayed at its place, with its process stopped or its watching thread awake."""
    here.now = here.now._replace(since_s=here.now.since_s - seconds)
    watcher = here._watcher
    assert watcher is not None
    with watcher.lock:
        watcher.place = here.now
        if is_stopped:
            watcher.ticked_s, watcher.used_s = time.monotonic() - seconds, time.process_time()


def stalls(run: RunDir) -> list[Stall]:
    return run.read_steps(0).of(Stall)


def test_stopped_process_reports_its_place(run: RunDir) -> None:
    here = Watchdog()
    with run.step_writer(0) as lines, here.watch(run, 0, 2, 1000, lines):
        here.set_collectives({"backward": GRADIENTS})
        here.at("backward", 7)
        stay(here, 25, is_stopped=True)
        here.at("update", 7)
        (one,) = stalls(run)
    assert (one.step, one.place, one.is_waiting) == (7, GRADIENTS, 1)
    assert one.seconds == pytest.approx(25, abs=2)
    assert one.stopped_s == pytest.approx(25, abs=2)


def test_long_stay_is_a_stall_only_after_short_ones(run: RunDir) -> None:
    here = Watchdog()
    with run.step_writer(0) as lines, here.watch(run, 0, 2, 1000, lines):
        here.at("evaluation", 7)
        stay(here, 25, is_stopped=False)  # the first stay may take long
        here.at("input", 8)
        assert not stalls(run)
        for step in (8, 9, 10):
            here.at("forward", step)
            here.at("input", step + 1)
        stay(here, 25, is_stopped=False)
        here.at("forward", 11)
        (one,) = stalls(run)
    assert (one.step, one.place, one.is_waiting, one.stopped_s) == (11, "input", 0, 0.0)


def test_delayed_thread_is_not_a_stopped_process(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same applies to a thread that waited for the interpreter's lock while the process computed."""
    here = Watchdog()
    with run.step_writer(0) as lines, here.watch(run, 0, 2, 1000, lines):
        watcher = here._watcher
        assert watcher is not None
        for used_s, queued_s, is_stop in ((0, 0, True), (20, 0, False), (0, 20, False)):
            with watcher.lock:
                monkeypatch.setattr(watchdog, "queued_s", lambda thread, now_s=1.0 + queued_s: now_s)
                watcher.stops.clear()
                watcher.ticked_s, watcher.queued_s, watcher.rate = time.monotonic() - 20, 1.0, 1.0
                watcher.used_s = time.process_time() - used_s
            watcher.tick()
            assert bool(watcher.stops) == is_stop, (used_s, queued_s)


def test_note_takes_microseconds(run: RunDir) -> None:
    """A step writes six notes, which is well below 0.1 % of a step of 10 ms on a quiet machine."""
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
    """Return what rank 0 writes after a second in its third collective, for the given state of the others."""
    ended: list[int] = []
    monkeypatch.setattr(watchdog.os, "_exit", ended.append)
    here = Watchdog()
    with run.step_writer(0) as lines, here.watch(run, 0, 1 + len(others), 1.0, lines):
        here.set_collectives({"backward": GRADIENTS})
        for step in (1, 2, 3):
            here.at("backward", step)
        deadline = time.monotonic() + 600
        while not ended and time.monotonic() < deadline:
            time.sleep(0.05)
    assert set(ended) == {1}
    errors = [json.loads(line) for line in run.steps_path(0).read_text().splitlines()]
    return dict(errors[0])


def test_rank_that_is_behind_is_blamed(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert "also missing" not in error["text"]
    assert run.first_error() == (2, error["text"])


def test_rank_that_never_started_is_blamed(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_link_is_blamed_if_all_ranks_arrived(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Watchdog()
    with run.step_writer(1) as lines, other.watch(run, 1, 2, 1.0, lines):
        other.set_collectives({"forward": GRADIENTS})
        for step in (1, 2, 3):
            other.at("forward", step)
        other.now = other.now._replace(since_s=time.monotonic() + 1000)  # this rank must not report it
        error = end_of_wait(run, monkeypatch, other)
    assert error["text"] == (
        "a time-out: no rank is missing, all have waited for more than 1 s, in the all-reduce of gradients of step 3, "
        f"on {socket.gethostname()} (rank 0, 1)"
    )


def test_rank_in_an_earlier_broadcast_is_not_blamed(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link between both hosts is blamed: rank 0's part of a broadcast ends when the data are sent."""
    other = Watchdog()
    with run.step_writer(1) as lines, other.watch(run, 1, 2, 60, lines):
        other.set_collectives({"forward": "broadcast of buffers"})
        other.at("forward", 3)
        memory = other._memory
        assert memory is not None
        memory[4 + 8 : 4 + 8 + 5] = b"node2"
        memory[watchdog._ADDRESS_AT : watchdog._ADDRESS_AT + 8] = b"10.9.0.2"
        error = end_of_wait(run, monkeypatch, other)
    text = str(error["text"])
    assert text.startswith("a time-out: no rank is missing, all have waited for more than 1 s, in the ")
    assert "all-reduce of gradients of step 3 or the broadcast of buffers of step 3" in text
    assert f"the link between {socket.gethostname()} (rank 0) and node2 (10.9.0.2) (rank 1) passes nothing" in text
    assert "sign of life" not in text


def test_rank_that_just_timed_out_counts_as_alive(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Watchdog()
    with run.step_writer(1) as lines, other.watch(run, 1, 2, 1000, lines):
        other.set_collectives({"backward": GRADIENTS})
        for step in (1, 2, 3):
            other.at("backward", step)
        left = bytearray(note_path(run, 1).read_bytes())
    left[watchdog._BEAT_AT : watchdog._BEAT_AT + 8] = b"\xff" * 8
    note_path(run, 1).write_bytes(left)
    error = end_of_wait(run, monkeypatch, None)
    assert str(error["text"]).startswith(watchdog.LINK_DOWN)


@pytest.mark.parametrize("data", [b"", b"short", b"\0" * 64])
def test_invalid_note_is_ignored(run: RunDir, data: bytes) -> None:
    note_path(run, 0).write_bytes(data)
    assert read_note(note_path(run, 0)) is None

"""Launcher messages about ranks without progress, from made-up notes and states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chronograd.launch.silence import Seen, Silence
from chronograd.rundir import RunDir
from chronograd.train.processes import RUNNING, STOPPED
from chronograd.train.watchdog import GRADIENTS, Note


def at(what: str, waits: bool, stood_s: float, host: str = "node1", rank: int = 0, **seen: object) -> Seen:
    address = "" if host == "node1" else "10.0.0.2"
    note = Note(1, 100 + rank, host, 5, 3, 7, 1000.0, waits, what, address)
    return Seen(note, stood_s, **seen)  # type: ignore[arg-type]


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def silence(tmp_path: Path, messages: list[str]) -> Silence:
    return Silence(RunDir.create(out=tmp_path / "run"), 2, messages.append)


def test_stopped_rank_is_reported_and_its_continuation(silence: Silence, messages: list[str]) -> None:
    silence.take({0: at(GRADIENTS, True, 1.0), 1: at("backward", False, 1.0, rank=1, state=STOPPED, looks=1)})
    assert not messages
    for stood_s in (2.0, 3.0, 4.0):  # once, not at every check
        silence.take({0: at(GRADIENTS, True, 2.0), 1: at("backward", False, stood_s, rank=1, state=STOPPED, looks=2)})
    assert messages == [
        "rank 1 is stopped in backward of step 7, process 101 on node1; rank 0 waits for it; `kill -CONT 101` lets it go on"
    ]
    silence.take({0: at("update", False, 0.1), 1: at("update", False, 0.1, rank=1, state=RUNNING)})
    assert messages[1:] == ["rank 1 goes on, after 4 s in backward of step 7"]


def test_computing_rank_is_reported_after_ten_seconds(silence: Silence, messages: list[str]) -> None:
    for stood_s in (9.0, 11.0):
        silence.take(
            {0: at(GRADIENTS, True, stood_s), 1: at("input", False, stood_s, rank=1, state=RUNNING, idle_s=0.0)}
        )
        assert bool(messages) == (stood_s > 10)
    (line,) = messages
    assert line == (
        "rank 0 has waited in all-reduce of gradients of step 7 for 11 s; rank 1 has been in input of step 7 for 11 s, and its "
        "process 101 on node1 uses the processor"
    )


def test_both_ends_of_a_dead_link_are_reported(silence: Silence, messages: list[str]) -> None:
    silence.take({0: at(GRADIENTS, True, 12.0), 1: at("broadcast of buffers", True, 12.0, "node2", 1)})
    (line,) = messages
    assert line.endswith("so has every other rank: the link between node1 and node2 (10.0.0.2) may be down")


def test_single_rank_waiting_for_its_disk_is_reported(silence: Silence, messages: list[str]) -> None:
    silence.take({0: at("input", False, 12.0, state="is waiting for a disk", idle_s=11.0)})
    (line,) = messages
    assert "input of step 7 for 12 s without using the processor" in line
    assert line.endswith("process 100 on node1 is waiting for a disk")


def test_working_rank_and_usual_wait_are_not_reported(silence: Silence, messages: list[str]) -> None:
    silence.take({0: at("evaluation", False, 3000.0, state=RUNNING)})
    silence.take({0: at(GRADIENTS, True, 17.0), 1: at("input", False, 17.0, rank=1, state=RUNNING)})
    assert not messages
    silence.take({0: at(GRADIENTS, True, 19.0), 1: at("input", False, 19.0, rank=1, state=RUNNING)})
    assert len(messages) == 1


def test_rank_that_never_started_is_reported(silence: Silence, messages: list[str]) -> None:
    silence.take({0: at("rendezvous", True, 20.0)})
    assert messages == ["rank 0 has waited in rendezvous of step 7 for 20 s; rank 1 has not started, or has ended"]


def test_remote_rank_uses_the_local_clock(silence: Silence) -> None:
    """The note's own time may be hours off."""
    note = at(GRADIENTS, True, 0.0, "node2", 1).note
    for stood_s in (0.0, 1.5, 3.0):
        seen = silence._now(1, note, 1.5)
        assert (seen.stood_s, seen.state) == (stood_s, "")
        silence.take({1: seen})
    assert silence._now(1, replace(note, step=8), 1.5).stood_s == 0.0

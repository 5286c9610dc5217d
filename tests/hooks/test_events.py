"""Loops recorded by events, in any order of calls."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from chronograd.hooks.events import LoopEvents
from chronograd.rundir import RunDir


def test_steps_parts_and_pauses(tmp_path: Path) -> None:
    events = LoopEvents(tmp_path / "run", warmup=1, quiet=True)
    events.begin_step()  # ignored before begin()
    network = torch.nn.Linear(4, 2)
    events.begin(batch=8, device=None)
    events.begin(batch=99)
    for _ in range(4):
        events.begin_step()
        events.begin_step()
        events.part("forward")
        loss = network(torch.ones(8, 4)).sum()
        time.sleep(0.004)
        events.part("backward")
        loss.backward()
        events.end_step()
        events.end_step()
        events.pause()
        time.sleep(0.05)
        events.go_on()
        time.sleep(0.006)  # loading of the next batch
    events.end()
    events.end()
    record = RunDir.open(tmp_path / "run").record()
    assert record["step_time_s"].n == 3
    assert record.value("forward_s") >= 0.004
    assert record.value("input_s") >= 0.006
    assert record.value("step_time_s") < 0.05
    assert record.value("throughput_samples_per_s") == pytest.approx(8 / record.value("step_time_s"))


def test_failed_loop_excludes_its_last_step(tmp_path: Path) -> None:
    events = LoopEvents(tmp_path / "run", warmup=1, quiet=True)
    events.begin()
    for _ in range(3):
        events.begin_step()
        events.part("forward")
        events.end_step()
    events.begin_step()
    events.part("forward")
    events.end(ValueError("no luck"))
    record = RunDir.open(tmp_path / "run").record()
    assert record["step_time_s"].n == 2
    assert any("ValueError: no luck" in note for note in record.notes)

"""Custom training loops: the same record, also after an exception; real steps on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import chronograd
from chronograd.errors import InputError, NotFoundError, RunError
from chronograd.rundir import RunDir, list_runs


def test_import_without_torch_and_record_is_callable(tmp_path: Path) -> None:
    code = (
        "import sys, chronograd; assert not {'torch', 'pydantic'} & set(sys.modules); "
        "context = chronograd.record('x'); "
        "from chronograd.record import Record; import chronograd.record; assert callable(chronograd.record); "
        "from chronograd import record; assert record.Record is Record; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    assert not list(tmp_path.iterdir())


def test_loop_is_recorded_with_parts_and_pauses(tmp_path: Path) -> None:
    network = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with chronograd.record(tmp_path / "mine", batch=8, warmup=2, flops_per_step=1e6) as rec:
        for _ in range(6):
            time.sleep(0.01)
            with rec.step():
                with rec.part("forward"):
                    loss = network(torch.ones(8, 4)).sum()
                    time.sleep(0.004)
                with rec.part("backward"):
                    loss.backward()
                with rec.part("update"):
                    optimizer.step()
            with rec.pause():
                time.sleep(0.05)
    record = RunDir.open(tmp_path / "mine").record()
    assert record.kind == "measured"
    assert record["step_time_s"].n == 4
    assert 0.010 <= record.value("input_s") < 0.04
    assert record.value("forward_s") >= 0.004
    parts = sum(record.value(f"{p}_s") for p in ("input", "forward", "backward", "update"))
    assert parts <= record.value("step_time_s") < 0.05
    assert record.value("throughput_samples_per_s") == pytest.approx(8 / record.value("step_time_s"))
    assert record.value("achieved_flops_per_s") == pytest.approx(1e6 / record.value("step_time_s"))
    assert record["transfer_s"].reason == "this part was not marked"
    assert record.value("memory_resident_bytes") >= 0
    assert "only resident memory was measured" in (record["memory_peak_bytes"].reason or "")
    assert record.versions["torch"]


def test_failed_loop_leaves_a_record(tmp_path: Path) -> None:
    def loop() -> None:
        with chronograd.record(tmp_path / "mine", warmup=1) as rec:
            for number in range(5):
                with rec.step():
                    1 / (3 - number)

    with pytest.raises(ZeroDivisionError):
        loop()
    record = RunDir.open(tmp_path / "mine").record()
    assert record["step_time_s"].n == 2  # three steps, one of them warm-up
    assert any("ZeroDivisionError" in note for note in record.notes)
    assert record["forward_s"].value is None


def test_too_few_steps_are_reported(tmp_path: Path) -> None:
    with chronograd.record(tmp_path / "mine", warmup=5) as rec, rec.step():
        pass
    record = rec.run.record()
    assert record["step_time_s"].value is None
    assert "only 1 step" in record.notes[0]


def test_misuse_raises_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with chronograd.record() as rec:
        with pytest.raises(InputError, match=r"outside of rec\.step"), rec.part("forward"):
            pass
        with pytest.raises(NotFoundError, match="did you mean forward"), rec.step(), rec.part("foward"):
            pass
        with pytest.raises(InputError, match=r"within rec\.part"), rec.step(), rec.part("forward"), rec.part("update"):
            pass
        with pytest.raises(InputError, match=r"within rec\.step"), rec.step(), rec.step():
            pass
    assert [s.state for s in list_runs("runs")] == ["measured"]
    with pytest.raises(RunError, match="holds a run already"), chronograd.record(rec.run.path):
        pass
    with pytest.raises(InputError, match="batch is 0"):
        chronograd.record(batch=0)


@pytest.mark.slow
def test_torchrun_ranks_share_one_directory(tmp_path: Path) -> None:
    code = (
        "import chronograd, sys\n"
        "with chronograd.record(sys.argv[1], batch=4, warmup=1) as rec:\n"
        "    for _ in range(4):\n"
        "        with rec.step(): pass\n"
    )
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "mine")],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"},
        )
        for rank in (0, 1)
    ]
    assert [p.wait(60) for p in ranks] == [0, 0]
    run = RunDir.open(tmp_path / "mine")
    assert run.ranks() == [0, 1]
    assert run.record().cluster.count == 2

"""Watching a run: events through a kill -9 of the launcher, `records --follow`, and the terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import types
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from chronograd import job as jobs
from chronograd.cli.main import main
from chronograd.record import Quantity, Record
from chronograd.rundir import RunDir
from chronograd.rundir.steps import StepLine
from chronograd.watch import terminal
from chronograd.watch.terminal import Screen

NETWORKS = Path(__file__).parent.parent / "train"
STEPS = 32  # 4 epochs of 8
JOB = """
network: {name: "tiny_networks:random", options: {sleep_s: 0.1}}
data: {name: synthetic, shape: [1, 8, 8], classes: 10, samples: 131}
training: {batch: 16, epochs: 4}
cluster: {device: cpu, threads: 1, count: 2}
backend: ddp
"""


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(NETWORKS), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(NETWORKS))
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)


def values(folder: Path, tag: str) -> list[tuple[int, float]]:
    # TensorBoard's own reader would import TensorFlow if it is installed; triton cannot be loaded after that.
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if not folder.exists():
        return []
    read = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    read.Reload()
    return [(e.step, e.value) for e in read.Scalars(tag)] if tag in read.Tags()["scalars"] else []


def expected_losses(run: RunDir) -> list[tuple[int, float]]:
    """Return the mean over the ranks' samples of the last attempt, as 32-bit floats like the events."""
    logs = [run.read_steps(rank).steps for rank in run.ranks()]
    means = []
    for lines in zip(*logs, strict=True):
        total = sum(line.samples for line in lines)
        means.append(sum(line.loss * line.samples for line in lines) / total)
    return [(step, pytest.approx(mean, rel=1e-6)) for step, mean in enumerate(means, 1)]


@pytest.mark.slow
def test_events_are_complete_after_kill_and_resume(capsys: pytest.CaptureFixture[str]) -> None:
    """kill -9 in the second epoch, before its checkpoint, cuts the events off at an arbitrary byte."""
    command = [sys.executable, "-m", "chronograd", "train", "job.yaml", "--out", "run", "--tensorboard"]
    with subprocess.Popen([*command, "--launcher", "local"], stderr=subprocess.DEVNULL) as launcher:
        run, folder = RunDir(Path("run")), Path("run/tensorboard")
        deadline = time.monotonic() + 600  # a busy machine takes minutes to start
        while sum(path.stat().st_size for path in folder.glob("events*")) < 800:  # an event has 60 to 80 bytes
            assert launcher.poll() is None, "the run ended before it was killed"
            assert time.monotonic() < deadline, "waited too long"
            time.sleep(0.05)
        os.kill(launcher.pid, signal.SIGKILL)
    assert not run.is_finished
    assert 0 < len(values(folder, "loss/train")) < STEPS
    newest = max(folder.glob("events*"))
    newest.write_bytes(newest.read_bytes()[:-7])  # and in the middle of an event

    assert main(["--trust", "tiny_networks", "train", "--resume", "run"]) == 0
    assert set(run.read_steps().starts) == {1, 2}  # ranks outlive their launcher briefly, perhaps until a checkpoint
    assert values(folder, "loss/train") == expected_losses(run)
    assert [step for step, _ in values(folder, "accuracy/test")] == [8, 16, 24, 32]
    for rank in (0, 1):
        lines = run.read_steps(rank).steps
        shares = [pytest.approx(line.exchange_wait_s / line.step_time_s, rel=1e-5) for line in lines]
        assert values(folder / f"rank-{rank}", "exchange_wait_share") == list(enumerate(shares, 1))
        assert [step for step, _ in values(folder / f"rank-{rank}", "steps_per_s")] == list(range(1, STEPS + 1))

    (newest,) = (path for path in folder.glob("events*") if path.stat().st_size)  # replaced files are empty
    newest.write_bytes(newest.read_bytes()[:200])  # the last minute of a finished run is lost
    assert len(values(folder, "loss/train")) < STEPS
    assert main(["report", "run"]) == 0
    assert values(folder, "loss/train") == expected_losses(run)
    assert "\x1b" not in capsys.readouterr().err


# -- a run started by another process -------------------------------------------------------------------------


def new_run() -> RunDir:
    return RunDir.create(jobs.load("job.yaml"), out="run")


def write(run: RunDir, rank: int, steps: range, wait_s: float) -> None:
    with run.step_writer(rank) as lines:
        for step in steps:
            lines.write(StepLine(step=step, epoch=1, seconds=step / 10, step_time_s=0.1, loss=1.0, samples=8,
                        exchange_wait_s=wait_s, input_s=0.01))  # fmt: skip


def test_follow_shows_progress_until_the_record(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "SAY_EVERY_S", 0.0)
    monkeypatch.setattr("chronograd.watch.terminal.DRAW_EVERY_S", 0.05)
    run = new_run()
    write(run, 0, range(1, 4), 0.05)
    write(run, 1, range(1, 4), 0.01)

    def finish() -> None:
        time.sleep(1.0)
        ended = Record(kind="measured", title="mine")
        ended.put("step_time_s", Quantity(value=0.1, unit="s"))
        run.save_record(ended)

    elsewhere = threading.Thread(target=finish)
    elsewhere.start()
    assert main(["records", "run", "--follow"]) == 0
    elsewhere.join()
    printed = capsys.readouterr()
    first = printed.err.splitlines()[0]
    assert first.startswith("training · step 3/32 · loss 1.0000 · 10.0 steps/s · communication 10 % of a step")
    assert "the others wait 40 ms (40 %) for rank 1" in first
    assert printed.err.splitlines()[-1].startswith("ended")
    assert "mine (measured)" in printed.out
    assert "\x1b" not in printed.err + printed.out


def test_follow_ends_with_the_error_of_a_failed_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "RESTART_S", 0.5)
    monkeypatch.setattr(terminal, "SAY_EVERY_S", 0.0)
    run = new_run()
    with pytest.raises(ValueError), run.step_writer(0):
        raise ValueError("boom")
    assert main(["records", "run", "--follow"]) == 1
    assert "rank 0 failed with ValueError: boom" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "status"), [(["--follow"], 2), (["nowhere", "--follow"], 1)])
def test_follow_needs_a_run(arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["records", *arguments]) == status
    assert "run" in capsys.readouterr().err


def test_terminal_is_restored_and_shows_the_last_figures() -> None:
    run = new_run()
    write(run, 0, range(1, 4), 0.05)
    write(run, 1, range(1, 4), 0.01)
    console = Console(file=StringIO(), width=100, height=30, force_terminal=True)

    def interrupted() -> None:
        with Screen(console) as screen:
            screen(run)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert isinstance(console.file, StringIO)
    drawn = console.file.getvalue()
    assert drawn.count("\x1b[?25l") == drawn.count("\x1b[?25h") == 1  # the cursor was hidden and shown again
    assert "waits for gradients" in drawn
    assert "for rank 1" in drawn

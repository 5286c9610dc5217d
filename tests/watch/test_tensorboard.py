"""TensorBoard shows the steps and epochs that the run wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from datetime import datetime

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from chronograd.errors import RunError
from chronograd.rundir import RunDir
from chronograd.rundir.steps import Epoch, Start, StepLine, parse_line
from chronograd.watch.tensorboard import Events, LiveEvents, RunEvents, write_events

CREATED = "2026-11-21T08:30:00+00:00"
START = datetime.fromisoformat(CREATED).timestamp()
LOSSES = [2.25, 1.75, 1.5, 1.25]


def write_steps(run, rank=0, first=1, losses=LOSSES, samples=64):
    """Write steps of 0.1 s; an epoch has two of them."""
    with run.step_writer(rank) as lines:
        lines.write(Start(device="cpu", threads=1))
        for step, loss in enumerate(losses, first):
            seconds = step / 10
            lines.write(
                StepLine(step=step, epoch=(step + 1) // 2, seconds=seconds, step_time_s=0.1, loss=loss, samples=samples)
            )
            if step % 2 == 0 and rank == 0:
                accuracy = None if step == 2 else step / 8
                lines.write(Epoch(step=step, epoch=step // 2, seconds=seconds, epoch_time_s=0.2, train_loss=9.0,
                            test_loss=None if step == 2 else 1 / step, test_accuracy=accuracy))  # fmt: skip


@pytest.fixture
def run(tmp_path):
    return RunDir.create(environment={"created": CREATED}, out=tmp_path / "run")


def scalars(folder):
    """Return tag → (step, value, wall time) of each event, as TensorBoard shows them."""
    read = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    read.Reload()
    return {tag: [(e.step, e.value, e.wall_time) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def points(steps, values):
    """Return expected events; TensorBoard stores 32-bit floats."""
    return [(s, pytest.approx(v, rel=1e-6), pytest.approx(START + s / 10)) for s, v in zip(steps, values, strict=True)]


def test_events_contain_steps_and_epochs(run):
    write_steps(run)
    assert write_events(run) == run.path / "tensorboard"
    assert scalars(run.path / "tensorboard") == {
        "loss/train": points([1, 2, 3, 4], LOSSES),
        "step_time_s": points([1, 2, 3, 4], [0.1] * 4),
        "loss/test": points([4], [0.25]),
        "accuracy/test": points([4], [0.5]),
    }


def test_rewriting_replaces_events_and_keeps_other_files(run, tmp_path):
    write_steps(run)
    folder = tmp_path / "events"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    assert write_events(run, folder) == write_events(run, folder) == folder
    full = [
        path.relative_to(folder).parts[0].split(".")[0]
        for path in folder.rglob("*")
        if path.is_file() and path.stat().st_size
    ]
    assert sorted(full) == ["events", "notes", "rank-0"]
    assert len(scalars(folder)["loss/train"]) == 4


def test_loss_is_the_mean_over_all_samples(run):
    write_steps(run, rank=0, samples=48)
    write_steps(run, rank=1, losses=[loss + 1 for loss in LOSSES], samples=16)
    write_events(run)
    assert scalars(run.path / "tensorboard")["loss/train"] == points([1, 2, 3, 4], [loss + 0.25 for loss in LOSSES])


def test_repeated_steps_appear_once(run, tmp_path):
    write_steps(run)
    write_steps(run, first=3, losses=[1.0, 0.5, 0.25])
    expected = points([1, 2, 3, 4, 5], [*LOSSES[:2], 1.0, 0.5, 0.25])
    write_events(run)
    assert scalars(run.path / "tensorboard")["loss/train"] == expected
    with closing(Events(tmp_path / "live", started=START)) as events:
        for line in run.steps_path().read_text().splitlines():
            events(parse_line(line.encode()))
    assert scalars(tmp_path / "live")["loss/train"] == expected


def test_live_file_is_readable_after_each_line(tmp_path):
    events = Events(tmp_path, started=START)
    for step, loss in enumerate(LOSSES, 1):
        events(StepLine(attempt=1, step=step, seconds=step / 10, step_time_s=0.1, loss=loss))
        assert scalars(tmp_path)["loss/train"] == points(range(1, step + 1), LOSSES[:step])
    events.close()
    events.close()


def test_each_rank_has_a_folder(run):
    for rank, wait_s in ((0, 0.03), (1, 0.01)):
        with run.step_writer(rank) as lines:
            lines.write(
                StepLine(
                    step=1, seconds=0.1, step_time_s=0.1, loss=1.0, samples=8, input_s=0.02, exchange_wait_s=wait_s
                )
            )
    write_events(run)
    for rank, share in ((0, 0.3), (1, 0.1)):
        assert scalars(run.path / "tensorboard" / f"rank-{rank}") == {
            "steps_per_s": points([1], [10]),
            "input_share": points([1], [0.2]),
            "exchange_wait_share": points([1], [share]),
        }


def test_learners_have_their_updates_and_the_run_has_all(run):
    """Learner 1 made update 3, and after a restart learner 0 made it again."""
    parts = {"pull_s": 0.01, "compute_s": 0.08, "push_s": 0.01}
    with run.step_writer(0) as first, run.step_writer(1) as second:
        first.write(StepLine(step=1, seconds=0.1, step_time_s=0.1, loss=3.0, samples=8, staleness=0, **parts))
        second.write(StepLine(step=2, seconds=0.2, step_time_s=0.1, loss=2.0, samples=8, staleness=1, **parts))
        second.write(StepLine(step=3, seconds=0.3, step_time_s=0.1, loss=9.0, samples=8, staleness=1, **parts))
    with run.step_writer(0) as first:
        first.write(StepLine(step=3, seconds=0.3, step_time_s=0.1, loss=1.0, samples=8, staleness=2, **parts))
    write_events(run)
    assert scalars(run.path / "tensorboard")["loss/train"] == points([1, 2, 3], [3.0, 2.0, 1.0])
    learner = scalars(run.path / "tensorboard" / "rank-0")
    assert learner["staleness"] == points([1, 3], [0, 2])
    assert learner["compute_share"] == points([1, 3], [0.8, 0.8])


def test_events_wait_for_all_ranks(run):
    folder = run.path / "tensorboard"
    with run.step_writer(0) as first, run.step_writer(1) as second, closing(RunEvents(run)) as events:
        write = {"seconds": 0.1, "step_time_s": 0.1, "samples": 8}
        first.write(StepLine(step=1, loss=1.0, **write))
        first.write(StepLine(step=2, loss=5.0, **write))
        second.write(StepLine(step=1, loss=2.0, **write))
        events.poll()
        assert [(step, value) for step, value, _ in scalars(folder)["loss/train"]] == [(1, 1.5)]
        assert len(scalars(folder / "rank-0")["steps_per_s"]) == 2
        second.write(StepLine(step=2, loss=7.0, **write))
        first.write(
            Epoch(step=2, epoch=1, seconds=0.2, epoch_time_s=0.2, train_loss=9.0, test_loss=4.0, test_accuracy=0.5)
        )
        events.poll()
        assert [(step, value) for step, value, _ in scalars(folder)["loss/train"]] == [(1, 1.5), (2, 6.0)]
        assert [(step, value) for step, value, _ in scalars(folder)["loss/test"]] == [(2, 4.0)]


def test_events_of_an_agent_with_many_steps_per_line(run):
    with run.step_writer(0) as lines, closing(RunEvents(run)) as events:
        for step in (10, 20, 30):
            lines.write(StepLine(step=step, num_steps=10, seconds=step / 10, step_time_s=0.1, loss=1.0))
            events.poll()
    assert [step for step, _, _ in scalars(run.path / "tensorboard")["loss/train"]] == [10, 20, 30]


def test_late_follower_gets_all_events_and_restarts(run):
    folder = run.path / "tensorboard"
    write_steps(run)
    with closing(LiveEvents()) as live:
        live(run)
        write_steps(run, first=3, losses=[1.0, 0.5, 0.25])  # a second attempt, from step 3
    expected = points([1, 2, 3, 4, 5], [*LOSSES[:2], 1.0, 0.5, 0.25])
    assert scalars(folder)["loss/train"] == expected
    assert [step for step, _, _ in scalars(folder / "rank-0")["steps_per_s"]] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "reader", ["tensorboard.compat.notf", ""], ids=["without TensorFlow", "with installed packages"]
)
def test_reader_sees_no_step_twice_after_replacement(run, tmp_path, reader):
    write_steps(run)
    write_events(run)
    code = tmp_path / "look.py"
    code.write_text(LOOKING_ON)
    command = [sys.executable, str(code), str(run.path / "tensorboard"), reader]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as looking:
        assert json.loads(looking.stdout.readline()) == [list(pair) for pair in enumerate(LOSSES, 1)]
        for last in (1.0, 0.5):
            write_steps(run, first=5, losses=[last])
            write_events(run)
            looking.stdin.write("again\n")
            looking.stdin.flush()
            assert json.loads(looking.stdout.readline()) == [list(pair) for pair in enumerate([*LOSSES, last], 1)]
        looking.stdin.close()


# TensorBoard chooses its reader at import, so use a new process with TensorFlow's or its own reader.
LOOKING_ON = """
import json, sys, types
if sys.argv[2]:
    sys.modules[sys.argv[2]] = types.ModuleType("notf")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
looking = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
while True:
    looking.Reload()
    print(json.dumps([(e.step, e.value) for e in looking.Scalars("loss/train")]), flush=True)
    if not sys.stdin.readline():
        break
"""


def test_events_stay_ordered_when_the_clock_is_set_back(run, monkeypatch):
    write_steps(run)
    folder = write_events(run)
    first = max(folder.glob("events.*"))
    monkeypatch.setattr("chronograd.watch.tensorboard.time.time", lambda: START - 3600)
    write_events(run)
    assert max(path for path in folder.glob("events.*") if path.stat().st_size) > first
    write_events(run)
    assert sum(path.stat().st_size > 0 for path in folder.glob("events.*")) == 1
    assert len(list(folder.glob("events.*"))) == 2


def test_non_finite_loss_is_skipped(run):
    write_steps(run, losses=[1.0, float("nan"), 0.5])
    write_events(run)
    assert scalars(run.path / "tensorboard")["loss/train"] == points([1, 3], [1.0, 0.5])


def test_custom_loop_has_step_times(run):
    with run.step_writer() as lines:
        for step in (1, 2, 3):
            lines.write(StepLine(step=step, mode="fused", step_time_s=0.1))
    write_events(run)
    assert scalars(run.path / "tensorboard") == {"step_time_s": points([1, 2, 3], [0.1] * 3)}


def test_run_without_steps_is_refused(run):
    with pytest.raises(RunError, match="has no steps to show"):
        write_events(run)
    assert not (run.path / "tensorboard").exists()


def test_tensorflow_and_torch_are_not_imported(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise SystemError('tensorflow was imported')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from pathlib import Path\n"
        "from chronograd.watch.tensorboard import Events\n"
        f"Events(Path({str(tmp_path / 'events')!r})).close()\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

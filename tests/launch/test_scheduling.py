"""Jobs that really run under a policy: resized at checkpoints, interrupted, continued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from chronograd.errors import InputError, RunError
from chronograd.job import Job, from_dict
from chronograd.launch import jobs as runs
from chronograd.launch.scheduling import EVENTS, RealJob, here, run_schedule
from chronograd.rundir import RunDir
from chronograd.rundir.steps import Epoch
from chronograd.schedule.events import Conditions, Timetable
from chronograd.schedule.jobs import Allocation, Moment, Pool, ScheduledJob, Sizes
from chronograd.schedule.policies import Policy, policy
from chronograd.train.checkpoint_folder import MODEL, list_checkpoints

pytestmark = pytest.mark.slow

TWO_CORES = Pool(2, title="core")


def digits(epochs: int = 3) -> Job:
    """Return a job of a second or two."""
    parts = {"network": {"name": "small-cnn"}, "data": {"name": "digits", "samples": 256, "test_samples": 64}}
    return from_dict(
        {
            **parts,
            "training": {"epochs": epochs, "batch": 32, "learning_rate": 0.01},
            "cluster": {"device": "cpu", "count": 1, "threads": 1},
        }
    )


def real(name: str, arrival_s: float = 0.0, epochs: int = 3, job: Job | None = None) -> RealJob:
    scheduled = ScheduledJob(name, arrival_s, 256.0 * epochs, [[0.0], [400.0], [600.0]], Allocation(1))
    return RealJob(scheduled, job or digits(epochs))


def run(jobs: list[RealJob], folder: Path, own: Policy | None = None) -> Timetable:
    return run_schedule(jobs, TWO_CORES, own or policy("optimus"), folder, Conditions(interval_s=1.0))


def weights_of(path: Path) -> dict[str, list[float]]:
    newest = list_checkpoints(RunDir.open(path).checkpoints)[-1]
    return {name: values.tolist() for name, values in load_file(newest / MODEL).items()}


def test_jobs_share_the_cores_and_are_resized(tmp_path: Path) -> None:
    decisions = []

    def two_then_one(moment: Moment) -> Sizes:
        """Give the first job both cores, and from the second decision on one core to each job."""
        decisions.append(moment.now_s)
        return {s.index: Allocation(2 if len(decisions) == 1 else 1) for s in moment.jobs[: min(len(decisions), 2)]}

    # The second decision comes while the first job starts, so it is resized at its first checkpoint.
    own, conditions = Policy("two then one", "", two_then_one, "interval"), Conditions(interval_s=0.1)
    jobs = [real("a", epochs=30), real("b"), real("c")]
    found = run_schedule(jobs, TWO_CORES, own, tmp_path / "queue", conditions)
    for at in [stay.start_s for stay in found.stays]:
        assert sum(s.size.workers for s in found.stays if s.start_s <= at < s.end_s) <= 2
    assert [stay.size.workers for stay in found.stays if stay.index == 0] == [2, 1]
    assert found.restarts.tolist() == [1, 0, 0]
    assert found.waiting_s[1] > 0
    resized = RunDir.open(tmp_path / "queue" / "a")
    alone = runs.train(digits(30), out=tmp_path / "alone")
    ends = [log.read_steps(0).last(Epoch) for log in (resized, alone)]
    assert ends[0] is not None
    assert ends[1] is not None
    assert ends[0].step == ends[1].step
    # A resize changes only the order of sums. At a rate of 0.1 that grows after 12 epochs, as between seeds.
    assert ends[0].test_loss == pytest.approx(ends[1].test_loss, rel=0.05)


def test_a_job_of_constant_size_ends_with_its_usual_weights(tmp_path: Path) -> None:
    run([real("a"), real("b")], tmp_path / "queue", policy("fifo"))
    runs.train(digits(), out=tmp_path / "alone")
    assert weights_of(tmp_path / "queue" / "a") == weights_of(tmp_path / "alone")


def test_a_killed_schedule_continues(tmp_path: Path) -> None:
    folder = tmp_path / "queue"
    code = (
        "import sys; sys.path.insert(0, sys.argv[2]); from pathlib import Path; from tests.launch.test_scheduling import real, run; "
        "run([real('a', epochs=40), real('b', epochs=40)], Path(sys.argv[1]))"
    )
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen([sys.executable, "-c", code, str(folder), root], env={**os.environ}, cwd=root)
    deadline = time.monotonic() + 120
    while (
        not all(list((folder / name / "checkpoints").glob("step-*")) for name in "ab") and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = len((folder / EVENTS).read_text().splitlines())
    found = run([real("a", epochs=40), real("b", epochs=40)], folder)
    assert (found.completion_s > 0).all()
    assert len((folder / EVENTS).read_text().splitlines()) > before
    for name in "ab":
        log = RunDir.open(folder / name).read_steps(0)
        assert log.attempts > 1
        assert log.steps[-1].step == 40 * 256 // 32


def test_a_failing_job_leaves_the_others_alone(tmp_path: Path) -> None:
    def way(own: RunDir, must_stop: Callable[[], bool]) -> None:
        if own.path.name == "bad":
            raise RunError("its rank was killed")
        here(own, must_stop)

    with pytest.raises(RunError, match="bad: its rank was killed"):
        run_schedule([real("bad"), real("good")], TWO_CORES, policy("fifo"), tmp_path, Conditions(), way)
    assert RunDir.open(tmp_path / "good").is_finished


def test_a_folder_of_another_schedule_is_refused(tmp_path: Path) -> None:
    (tmp_path / EVENTS).write_text(json.dumps({"time": 0.0, "job": "other", "event": "start", "workers": 1}) + "\n")
    with pytest.raises(InputError, match="other jobs"):
        run([real("a")], tmp_path)
    with pytest.raises(InputError, match="same name"):
        run([real("a"), real("a")], tmp_path / "new")

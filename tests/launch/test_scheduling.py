"""Jobs that really run under a policy: resized at checkpoints, interrupted, continued."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from tools.slurm_cluster import cluster

from chronograd.cli.main import main
from chronograd.errors import InputError, RunError
from chronograd.job import Job, from_dict
from chronograd.launch import jobs as runs
from chronograd.launch.jobs import OnPoll
from chronograd.launch.scheduling import Machines, RealJob, by_slurm, here, run_schedule, time_start
from chronograd.rundir import RunDir
from chronograd.rundir.steps import Epoch
from chronograd.schedule.events import Conditions, Timetable
from chronograd.schedule.jobs import Allocation, Moment, Pool, ScheduledJob, Sizes
from chronograd.schedule.log import EVENTS, ScheduleLog
from chronograd.schedule.policies import Policy, policy
from chronograd.train.checkpoint_folder import MODEL, list_checkpoints
from chronograd.watch.queue import queue_answer

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
    scheduled = ScheduledJob(name, arrival_s, 256.0 * epochs, [[0.0], [400.0], [600.0], [700.0]], Allocation(1))
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
    began = {event.job: event.time for event in ScheduleLog.read(folder).events}
    assert queue_answer(folder).result[0].state == "runs"
    found = run([real("a", epochs=40), real("b", epochs=40)], folder)
    rows = queue_answer(folder).result
    assert [(row.state, row.done, row.restarts) for row in rows] == [("done", 1.0, 1), ("done", 1.0, 1)]
    for name in "ab":
        # The stay that the kill ended lasts until the last step that its ranks wrote.
        killed, last = (stay for stay in found.stays if found.jobs[stay.index].name == name)
        assert 0 < killed.end_s - killed.start_s < last.start_s - killed.start_s
        assert killed.start_s == pytest.approx(began[name] - ScheduleLog.read(folder).start)
        log = RunDir.open(folder / name).read_steps(0)
        assert log.attempts > 1
        assert log.steps[-1].step == 40 * 256 // 32


def test_a_failing_job_leaves_the_others_alone(tmp_path: Path) -> None:
    def run_or_fail(own: RunDir, on_poll: OnPoll) -> None:
        if own.path.name == "bad":
            raise RunError("its rank was killed")
        here().run(own, on_poll)

    machines = Machines(here().open, run_or_fail)
    with pytest.raises(RunError, match="bad: its rank was killed"):
        run_schedule([real("bad"), real("good")], TWO_CORES, policy("fifo"), tmp_path, Conditions(), machines)
    assert RunDir.open(tmp_path / "good").is_finished


def test_a_folder_of_another_schedule_is_refused(tmp_path: Path) -> None:
    run([real("a", epochs=1)], tmp_path)
    with pytest.raises(InputError, match="another schedule"):
        run([real("b")], tmp_path)
    with pytest.raises(InputError, match="same name"):
        run([real("a"), real("a")], tmp_path / "new")


def test_a_start_takes_seconds(tmp_path: Path) -> None:
    assert 0 < time_start(here(), tmp_path / "new") < 120
    assert not list((tmp_path / "new").iterdir())


def test_a_queue_is_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run([real("a", epochs=1)], tmp_path)
    assert main(["records", str(tmp_path), "--follow"]) == 0
    told = " ".join("".join(capsys.readouterr()).split())
    assert told.count("1 job under optimus: 1 done; 0 of 2 cores in use.") == 2  # while following, and as the answer
    with (tmp_path / EVENTS).open("a") as file:
        file.write('{"time": 1.0, "job"')  # a scheduler that is writing
    assert main(["records", str(tmp_path)]) == 0
    (tmp_path / EVENTS).write_text("[]\n")
    assert main(["records", str(tmp_path)]) == 2
    assert "events.jsonl, line 1, is damaged" in capsys.readouterr().err


@pytest.mark.slurm
def test_jobs_are_resized_in_slurm(tmp_path: Path) -> None:
    decisions = []

    def three_then_one(moment: Moment) -> Sizes:
        decisions.append(moment.now_s)
        return {s.index: Allocation(3 if len(decisions) == 1 else 1) for s in moment.jobs[: min(len(decisions), 2)]}

    own, conditions = Policy("three then one", "", three_then_one, "interval"), Conditions(interval_s=0.1)
    with cluster(3) as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        found = run_schedule(
            [real("a", epochs=30), real("b")], Pool(3, title="node"), own, tmp_path, conditions, by_slurm()
        )
    assert [stay.size.workers for stay in found.stays if stay.index == 0] == [3, 1]
    runs.train(digits(), out=tmp_path / "alone")
    assert weights_of(tmp_path / "b") == weights_of(tmp_path / "alone")
    log = RunDir.open(tmp_path / "a").read_steps(0)
    assert log.attempts == 2
    assert log.steps[-1].step == 30 * 256 // 32

"""A schedule that really runs, with jobs of no time: its folder, its rules, and schedulers that were killed."""

import json

import pytest

import chronograd
from chronograd.errors import InputError, RunError
from chronograd.files import write_json
from chronograd.job import changed, from_dict
from chronograd.launch import scheduling
from chronograd.launch.scheduling import Machines, RealJob, run_schedule
from chronograd.rundir import RunDir
from chronograd.schedule.events import Conditions
from chronograd.schedule.jobs import Allocation, Pool, ScheduledJob
from chronograd.schedule.log import EVENTS, SCHEDULE, ScheduleLog, is_locked
from chronograd.schedule.policies import names, policy

DIGITS = from_dict(
    {
        "network": {"name": "small-cnn"},
        "data": {"name": "digits", "samples": 256, "test_samples": 64},
        "training": {"epochs": 3, "batch": 32},
        "cluster": {"device": "cpu", "count": 1, "threads": 1},
    }
)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(scheduling, "POLL_S", 0.001)


def real(name, arrival_s=0.0, work=768.0, speed=400.0, gpus=1):
    speeds = [[speed * n] for n in range(5)]
    return RealJob(ScheduledJob(name, arrival_s, work, speeds, Allocation(gpus)), DIGITS)


def finish(run, on_poll):
    """End a run at once, as its ranks do: with a record."""
    on_poll(run)
    write_json(run.path / "record.json", {})


def opened(job, path):
    return RunDir.open(path) if path.exists() else RunDir.create(job, out=path)


INSTANT = Machines(opened, finish)


def run(jobs, folder, name="fifo", machines=INSTANT):
    return run_schedule(jobs, Pool(2), policy(name), folder, Conditions(interval_s=0.01), machines)


@pytest.mark.parametrize("name", names())
def test_each_job_ends_once_under_every_policy(tmp_path, name):
    """Equal arrivals, almost no work, a huge speed, and a job that asks for all cores."""
    jobs = [real("a"), real("b", work=1e-12), real("c", speed=1e12), real("d", arrival_s=0.1, gpus=2)]
    found = run(jobs, tmp_path, name)
    ends = [event.job for event in ScheduleLog.read(tmp_path).events if event.event == "end"]
    assert sorted(ends) == ["a", "b", "c", "d"]
    assert (found.ended_s > 0).all()
    for at in [stay.start_s for stay in found.stays]:
        assert sum(stay.size.workers for stay in found.stays if stay.start_s <= at < stay.end_s) <= 2


@pytest.mark.parametrize("policies", [["fifo"], ["fair", "fifo"]])
def test_the_first_policy_really_runs(tmp_path, monkeypatch, policies):
    monkeypatch.setattr(scheduling, "here", lambda: INSTANT)
    workload = tmp_path / "jobs.csv"
    workload.write_text("name,arrival,job,data,gpus,epochs\na,0,small-cnn,digits,1,1\n")
    chronograd.schedule(str(workload), on="2xt4", policy=policies, run=tmp_path / "runs", start=0.01, draws=2)
    log = ScheduleLog.read(tmp_path / "runs")
    assert log.queue.policy == policies[0]
    assert [event.job for event in log.events if event.event == "end"] == ["a"]


def test_a_run_that_finished_while_its_scheduler_was_killed_ends(tmp_path):
    """The scheduler was killed after the record was written and before the line of the end."""
    run([real("a")], tmp_path)
    lines = (tmp_path / EVENTS).read_text().splitlines(keepends=True)
    assert [json.loads(line)["event"] for line in lines] == ["start", "end"]
    (tmp_path / EVENTS).write_text(lines[0])
    found = run([real("a")], tmp_path)
    log = ScheduleLog.read(tmp_path)
    assert [event.event for event in log.events] == ["start", "stop", "end"]
    assert found.ended_s[0] == pytest.approx((tmp_path / "a" / "record.json").stat().st_mtime - log.start)


def test_a_failed_job_is_run_again_by_the_next_call(tmp_path):
    def fail(run, on_poll):
        raise RunError("its rank was killed")

    with pytest.raises(RunError, match="a: its rank was killed"):
        run([real("a")], tmp_path, machines=Machines(opened, fail))
    assert [event.event for event in ScheduleLog.read(tmp_path).events] == ["start", "fail"]
    run([real("a")], tmp_path)
    assert [event.event for event in ScheduleLog.read(tmp_path).events] == ["start", "fail", "start", "end"]


@pytest.mark.parametrize("name", ["../out", "events.jsonl", "a/b"])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path, name):
    with pytest.raises(InputError, match="a job has the name"):
        run([real(name)], tmp_path / "queue")
    assert list(tmp_path.iterdir()) == []


def test_equal_names_and_a_job_that_is_too_large_are_refused(tmp_path):
    with pytest.raises(InputError, match="two jobs have the same name 'a'"):
        run([real("a"), real("A")], tmp_path / "queue")
    with pytest.raises(InputError, match="a requests 3 GPUs, and the cluster has 2"):
        run([real("a", gpus=3)], tmp_path / "queue")
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_folder_is_not_followed(tmp_path):
    elsewhere = RunDir.create(DIGITS, out=tmp_path / "elsewhere")
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue" / "a").symlink_to(elsewhere.path)
    with pytest.raises(InputError, match="a is a link"):
        run([real("a")], tmp_path / "queue")
    assert not elsewhere.is_finished
    assert not is_locked(tmp_path / "queue" / EVENTS)


def test_a_run_of_another_job_is_not_continued(tmp_path):
    other = changed(DIGITS, ["training.epochs=90", "cluster.count=2", "backend=ddp"])
    RunDir.create(other, out=tmp_path / "a")
    with pytest.raises(InputError, match="a is a run of another job; it differs in training"):
        run([real("a")], tmp_path)
    # Another number of ranks is a resize.
    (tmp_path / "a" / "job.yaml").unlink()
    RunDir(tmp_path / "a").replace_job(changed(other, ["training.epochs=3"]))
    run([real("a")], tmp_path)
    assert RunDir(tmp_path / "a").job().cluster.count == 1


def test_a_second_scheduler_on_a_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("chronograd.schedule.log._LOCK_WAIT_S", 0.0)

    def again(own, on_poll):
        with pytest.raises(RunError, match="another process schedules the jobs"):
            run([real("a")], tmp_path)
        finish(own, on_poll)

    run([real("a")], tmp_path, machines=Machines(opened, again))


def test_a_scheduler_that_waits_shows_that_it_lives(tmp_path, monkeypatch):
    monkeypatch.setattr(scheduling, "BEAT_S", 0.01)
    waited_s = []

    def late(job, path):
        waited_s.append((tmp_path / EVENTS).stat().st_mtime - (tmp_path / SCHEDULE).stat().st_mtime)
        return opened(job, path)

    run([real("late", arrival_s=0.3)], tmp_path, machines=Machines(late, finish))
    assert waited_s[0] > 0.1

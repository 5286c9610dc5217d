"""The folder of a schedule: what is read, what is refused, who may write, and times computed by hand."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict

import pytest

from chronograd.errors import FileFormatError, InputError, RunError
from chronograd.schedule import log as module
from chronograd.schedule.jobs import Allocation, Pool, ScheduledJob
from chronograd.schedule.log import EVENTS, SCHEDULE, JobQueue, QueuedJob, ScheduleLog, check_name, is_locked

QUEUE = JobQueue("fifo", 2, (QueuedJob("a", 0.0, 100.0, 64), QueuedJob("b", 1.0, 100.0, 64)))


@pytest.fixture
def folder(tmp_path):
    """Return the folder of a schedule that began long ago and has no event."""
    (tmp_path / SCHEDULE).write_text(json.dumps({"start": 1.7e9, **asdict(QUEUE)}))
    return tmp_path


def scheduled(name, arrival_s=0.0):
    return ScheduledJob(name, arrival_s, 100.0, [[0.0], [1.0], [2.0]], Allocation(1))


def write(folder, *lines):
    (folder / EVENTS).write_text("".join(f"{line}\n" for line in lines))


def event(**changes):
    return json.dumps({"time": 1.7e9, "job": "a", "event": "start", "workers": 1} | changes)


def test_the_times_of_jobs_follow_from_their_events(folder):
    """Job a runs from 10 to 30 s with two workers and from 40 to 50 s with one, job b from 5 to 25 s."""
    log = ScheduleLog.open(folder, QUEUE)
    for name, kind, workers, at in [
        ("b", "start", 1, 5), ("a", "start", 2, 10), ("b", "end", 1, 25), ("a", "stop", 2, 30), ("a", "start", 1, 40), ("a", "end", 1, 50),
    ]:  # fmt: skip
        log.note(name, kind, workers, 1.7e9 + at)
    log.close()
    schedule = ScheduleLog.read(folder).timetable([scheduled("a"), scheduled("b", 1.0)], Pool(2))
    assert schedule.ended_s.tolist() == [50, 25]
    assert schedule.gpu_s.tolist() == [2 * 20 + 10, 20]
    assert schedule.running_s.tolist() == [30, 20]
    assert schedule.restarts.tolist() == [1, 0]
    assert schedule.waiting_s.tolist() == [20, 4]
    assert schedule.utilization == (50 + 20) / (2 * 50)


def test_a_job_that_ended_while_no_scheduler_lived_has_its_end(folder):
    write(
        folder,
        event(time=1.7e9 + 10),
        event(event="stop", time=1.7e9 + 20),
        event(event="end", workers=0, time=1.7e9 + 30),
    )
    schedule = ScheduleLog.read(folder).timetable([scheduled("a"), scheduled("b", 1.0)], Pool(2))
    assert (schedule.ended_s[0], schedule.running_s[0], schedule.restarts[0]) == (30, 10, 0)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (event(time="x"), "time: should be a valid number, got 'x'"),
        (event(time=-1), "time: should be greater than or equal to 0"),
        ('{"time": NaN, "job": "a", "event": "start", "workers": 1}', "time: should be"),
        (event(workers="x"), "workers: should be a valid integer, got 'x'"),
        (event(workers=True), "workers: should be a valid integer"),
        (event(workers=2**70), "workers"),
        (event(job=["a"]), "job: should be a valid string"),
        (event(job="c"), "its job 'c' is not in schedule.json"),
        (event(job="../a"), "its job '../a' is not in schedule.json"),
        (event(event="begin"), "event: 'begin' is not one of its values"),
        ('{"time": 1.0}', "job: is required and not there"),
        ("[]", "should be an object"),
        ("[" * 10**6, "recursion limit exceeded"),
        ("{", "Invalid JSON"),
    ],
)
def test_a_damaged_event_is_reported_with_its_line(folder, line, complaint):
    write(folder, event(), line)
    with pytest.raises(FileFormatError, match=r"events\.jsonl, line 2, is damaged: ") as error:
        ScheduleLog.read(folder)
    assert complaint in error.value.message


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"start": "now"}, "start: should be a valid number"),
        ({"cores": 1e400}, "cores"),
        ({"jobs": [{"name": "a", "arrival_s": 0, "work": 0, "batch": 1}]}, "jobs.0.work: should be greater than 0"),
        ({"jobs": [{"name": "../a", "arrival_s": 0, "work": 1, "batch": 1}]}, "'../a', which cannot be the name"),
        ({"jobs": [{"name": "a", "arrival_s": 0, "work": 1, "batch": 1}] * 2}, "two jobs have the same name 'a'"),
        ({"jobs": 1}, "jobs: should be a valid"),
    ],
)
def test_a_damaged_schedule_is_reported(folder, change, complaint):
    (folder / SCHEDULE).write_text(json.dumps(json.loads((folder / SCHEDULE).read_text()) | change))
    with pytest.raises(FileFormatError, match=r"schedule\.json is damaged: ") as error:
        ScheduleLog.read(folder)
    assert complaint in error.value.message


def test_fields_of_other_versions_are_ignored(folder):
    write(folder, event(host="node7"))
    assert ScheduleLog.read(folder).running()["a"].workers == 1


def test_an_incomplete_last_line_is_left_out_and_overwritten(folder):
    write(folder, event())
    with (folder / EVENTS).open("a") as file:
        file.write('{"time": 1.0, "job"')
    assert len(ScheduleLog.read(folder).events) == 1
    log = ScheduleLog.open(folder, QUEUE)
    log.note("a", "stop", 1)
    log.close()
    assert [each.event for each in ScheduleLog.read(folder).events] == ["start", "stop"]


@pytest.mark.parametrize("name", ["..", "../x", "/x", "a/b", "a\\b", ".x", "", "a\nb", "\x1b[2J", "events.jsonl", "Schedule.JSON", "x" * 201])  # fmt: skip
def test_a_name_that_cannot_be_a_folder_is_refused(name):
    with pytest.raises(InputError, match="a job has"):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "torchvision:resnet18", "Jöb 7", "a.b-c_d+e", "x" * 200])
def test_plain_names_are_allowed(name):
    check_name(name)


def test_events_are_not_written_through_a_link(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / EVENTS).symlink_to(tmp_path / "victim")
    with pytest.raises(RunError, match="cannot write "):
        ScheduleLog.open(tmp_path / "out", QUEUE)
    assert not (tmp_path / "victim").exists()


def test_a_second_scheduler_is_refused(folder, monkeypatch):
    monkeypatch.setattr(module, "_LOCK_WAIT_S", 0.0)
    log = ScheduleLog.open(folder, QUEUE)
    assert is_locked(folder / EVENTS)
    with pytest.raises(RunError, match="another process schedules the jobs in"):
        ScheduleLog.open(folder, QUEUE)
    log.close()
    assert not is_locked(folder / EVENTS)
    ScheduleLog.open(folder, QUEUE).close()


def test_another_schedule_is_refused_and_leaves_the_folder_free(folder):
    with pytest.raises(InputError, match="has another schedule"):
        ScheduleLog.open(folder, JobQueue("fair", 2, QUEUE.jobs))
    assert not is_locked(folder / EVENTS)


def test_a_schedule_of_the_future_is_refused(folder):
    """The jobs would never arrive: after a clock was set back, or in a folder of others."""
    (folder / SCHEDULE).write_text((folder / SCHEDULE).read_text().replace("1700000000.0", str(time.time() + 1e6)))
    with pytest.raises(InputError, match="begins in the future"):
        ScheduleLog.open(folder, QUEUE)


def test_a_folder_without_a_scheduler_is_reported_as_abandoned(folder):
    def aged(seconds):
        for path in folder.iterdir():
            os.utime(path, (time.time() - seconds,) * 2)
        return ScheduleLog.read(folder).abandoned()

    write(folder, event())
    assert aged(30) == ""
    assert aged(7200) == "2 h 00 min"
    log = ScheduleLog.open(folder, QUEUE)
    assert aged(7200) == ""  # a scheduler holds it
    log.beat()
    log.close()
    assert ScheduleLog.read(folder).abandoned() == ""  # it was alive a moment ago
    (folder / "a").mkdir()
    (folder / "a" / "steps.0.jsonl").write_text("")
    for name in (SCHEDULE, EVENTS):
        os.utime(folder / name, (time.time() - 7200,) * 2)
    assert ScheduleLog.read(folder).abandoned() == ""  # a job still writes, such as in SLURM
    write(folder, event(event="end"), event(job="b", event="fail"))
    assert aged(7200) == ""  # all jobs are over


def test_a_killed_scheduler_frees_its_folder(folder):
    code = (
        "import sys, time; from pathlib import Path; from chronograd.schedule.log import *; "
        "log = ScheduleLog.open(Path(sys.argv[1]), ScheduleLog.read(Path(sys.argv[1])).queue); print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    assert is_locked(folder / EVENTS)
    process.kill()
    process.wait()
    process.stdout.close()
    assert not is_locked(folder / EVENTS)

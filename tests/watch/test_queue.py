"""Schedules and runs that are followed: what is printed, and when following ends."""

import json
import os
import time
from io import StringIO

import pytest
from rich.console import Console

from chronograd import job as jobs
from chronograd.cli.main import main
from chronograd.errors import RunError
from chronograd.rundir import RunDir
from chronograd.rundir.steps import StepLine
from chronograd.schedule.log import EVENTS, SCHEDULE
from chronograd.watch import terminal
from chronograd.watch.queue import DONE, FAILED, RUNS, WAITS, follow_queue, queue_answer

STEERING = "\x1b]0;own\x07\x1b[31m[bold]x :smile:"


def schedule(folder, *events, policy="fifo", names=("a", "b"), age_s=7200.0):
    """Write a folder of a schedule whose last line is that old."""
    queue = [{"name": name, "arrival_s": 0, "work": 100, "batch": 10} for name in names]
    (folder / SCHEDULE).write_text(json.dumps({"start": 1.7e9, "policy": policy, "cores": 2, "jobs": queue}))
    lines = ({"time": 1.7e9 + at, "job": job, "event": kind, "workers": 1} for at, job, kind in events)
    (folder / EVENTS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    for path in folder.iterdir():
        os.utime(path, (time.time() - age_s,) * 2)


@pytest.fixture(params=[True, False], ids=["terminal", "file"])
def console(request):
    """Return a console as `terminal.console` makes it, on a terminal or not."""
    return Console(file=StringIO(), width=120, force_terminal=request.param, highlight=False, color_system=None)


def test_a_queue_counts_its_jobs_by_state(tmp_path):
    names = ("done", "again", "failed", "waits")
    schedule(
        tmp_path,
        *[(0, "done", "start"), (9, "done", "end"), (0, "again", "start"), (5, "again", "stop"), (6, "again", "start")],
        *[(0, "failed", "start"), (3, "failed", "fail")],
        names=names,
    )
    answer = queue_answer(tmp_path)
    rows = {row.name: row for row in answer.result}
    assert [rows[name].state for name in names] == [DONE, RUNS, FAILED, WAITS]
    assert [rows[name].restarts for name in names] == [0, 1, 0, 0]
    assert [rows[name].cores for name in names] == [0, 1, 0, 0]
    assert [rows[name].done for name in names] == [1.0, 0.0, 0.0, 0.0]
    assert [rows[name].since_s for name in ("done", "failed")] == [9, 3]
    assert answer.sections[0].takeaway == "4 jobs under fifo: 1 runs, 1 waits, 1 done, 1 failed; 1 of 2 cores in use."
    assert answer.notes == [
        "No process schedules these jobs. Nothing was written for 2 h 00 min. To go on, repeat the `chronograd schedule` command "
        "that began it."
    ]


def test_following_ends_when_all_jobs_are_over(tmp_path, console):
    schedule(tmp_path, (0, "a", "start"), (1, "a", "end"), (1, "b", "start"), (2, "b", "fail"))
    follow_queue(tmp_path, console)
    assert "2 jobs under fifo: 1 done, 1 failed" in console.file.getvalue()
    assert queue_answer(tmp_path).notes == []


def test_following_ends_if_no_scheduler_lives(tmp_path, console):
    schedule(tmp_path, (0, "a", "start"))
    with pytest.raises(RunError, match="nothing was written there for 2 h 00 min") as error:
        follow_queue(tmp_path, console)
    assert "repeat the `chronograd schedule` command" in error.value.hint


def test_following_from_the_command_line_ends_with_status_1(tmp_path, capsys):
    schedule(tmp_path, (0, "a", "start"))
    assert main(["records", str(tmp_path), "--follow"]) == 1
    assert "no process schedules the jobs in" in capsys.readouterr().err


def test_text_of_a_folder_does_not_steer_the_terminal(tmp_path, console):
    name = "[link=evil]a"
    schedule(tmp_path, (0, name, "start"), (1, name, "end"), policy=STEERING, names=(name,))
    follow_queue(tmp_path, console)
    text = console.file.getvalue()
    assert r"\x1b]0;own\x07\x1b[31m[bold]x :smile:" in text
    assert "\x1b]0" not in text
    assert "\x07" not in text
    assert "\x1b[31m" not in text
    if console.is_terminal:
        assert name in text


def test_the_console_of_runs_takes_no_markup(capsys):
    terminal.console().print("[link=evil]a[/link] :smile:")
    assert capsys.readouterr().err == "[link=evil]a[/link] :smile:\n"


def test_following_a_run_ends_if_no_rank_lives(tmp_path, monkeypatch):
    """A rank that was killed leaves no line and no record."""
    one = jobs.from_dict({"network": {"name": "lenet5"}, "data": {"name": "digits"}, "training": {"epochs": 1}})
    run = RunDir.create(one, out=tmp_path / "run")
    console = Console(file=StringIO(), width=120)
    with run.step_writer(0) as lines:
        lines.write(StepLine(step=1, epoch=1, seconds=0.1, step_time_s=0.1, loss=1.0, samples=1))
        os.utime(run.steps_path(0), (time.time() - 7200,) * 2)
        assert terminal._abandoned(run) == ""  # the rank is alive: it holds its file
    os.utime(run.steps_path(0), (time.time() - 7200,) * 2)
    with pytest.raises(RunError, match="is alive, and nothing was written there for 2 h 00 min") as error:
        terminal.follow(run, console)
    assert "chronograd train --resume" in error.value.hint
    os.utime(run.steps_path(0))
    assert terminal._abandoned(run) == ""  # a rank may restart
    assert terminal._abandoned(RunDir.create(one, out=tmp_path / "new")) == ""  # it has not begun

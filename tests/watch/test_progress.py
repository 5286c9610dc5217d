"""Live figures of a run, each from hand-written lines with its expected value."""

from __future__ import annotations

import gc
import os
import time
from io import StringIO

import pytest
from rich.console import Console

from chronograd import job as jobs
from chronograd.rundir import RunDir
from chronograd.rundir.steps import Epoch, Error, NoteLine, StepLine
from chronograd.watch.progress import LiveRun
from chronograd.watch.terminal import Screen, drawing, line_of

# 256 samples in batches of 32: 8 steps per epoch.
JOB = jobs.from_dict(
    {
        "network": {"name": "lenet5"},
        "data": {"name": "synthetic", "shape": [1, 28, 28], "classes": 10, "samples": 256},
        "training": {"batch": 32, "epochs": 5},
    }
)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def run(tmp_path):
    return RunDir.create(JOB, out=tmp_path / "run")


def write(lines, steps, wait_s=None, step_time_s=0.1, loss=1.0, **more):
    for step in steps:
        parts = {} if wait_s is None else {"exchange_wait_s": wait_s, "input_s": 0.01}
        lines.write(StepLine(step=step, epoch=1, seconds=step * step_time_s, step_time_s=step_time_s, loss=loss, samples=16,
                    **parts, **more))  # fmt: skip


def end_epoch(lines, step, accuracy):
    lines.write(Epoch(step=step, epoch=step // 8, seconds=1.0, epoch_time_s=1.0, train_loss=1.0, test_loss=1.0,
                test_accuracy=accuracy))  # fmt: skip


def test_slow_rank_of_two(run):
    """Rank 1 waits 5 ms of 100 ms, which is communication. Rank 0 waits 25 ms longer, which is for rank 1."""
    live = LiveRun(run)
    assert live.figures().phase == "starting"
    with run.step_writer(0) as first, run.step_writer(1) as second:
        write(first, range(1, 5), wait_s=0.030)
        write(second, range(1, 4), wait_s=0.005)
        live.poll()
        figures = live.figures()
    assert (figures.phase, figures.step, figures.num_steps, figures.num_epochs) == ("training", 3, 40, 5)
    assert [rank.step for rank in figures.ranks] == [4, 3]
    assert [rank.steps_per_s for rank in figures.ranks] == pytest.approx([10, 10])
    assert [rank.exchange_share for rank in figures.ranks] == pytest.approx([0.30, 0.05])
    assert [rank.input_share for rank in figures.ranks] == pytest.approx([0.1, 0.1])
    assert figures.communication_share == pytest.approx(0.05)
    assert figures.straggler is not None
    assert figures.straggler.rank == 1
    assert (figures.straggler.wait_s, figures.straggler.share) == pytest.approx((0.025, 0.25))
    assert figures.left_s == pytest.approx((40 - 3) / 10)


def test_equal_waits_have_no_straggler(run):
    with run.step_writer(0) as first, run.step_writer(1) as second:
        for step in range(1, 7):  # each rank is last in every other step
            write(first, [step], wait_s=0.02 if step % 2 else 0.01)
            write(second, [step], wait_s=0.01 if step % 2 else 0.02)
    live = LiveRun(run)
    live.poll()
    assert live.figures().straggler is None
    assert live.figures().communication_share == pytest.approx(0.1)


def test_untimed_values_are_missing(run):
    with run.step_writer(0) as first, run.step_writer(1) as second:
        write(first, range(1, 4))
        write(second, range(1, 4))
    live = LiveRun(run)
    live.poll()
    figures = live.figures()
    assert figures.communication_share is None
    assert figures.straggler is None
    assert all(rank.exchange_share is None and rank.input_share is None for rank in figures.ranks)
    assert "–" in display_text(figures)


def test_only_the_last_ten_seconds_count(run):
    with run.step_writer() as lines:
        write(lines, range(1, 31), step_time_s=1.0, loss=9.0)
        write(lines, range(31, 131), step_time_s=0.1, loss=0.5)
    live = LiveRun(run)
    live.poll()
    assert live.figures().steps_per_s == pytest.approx(10)
    assert live.figures().loss == pytest.approx(0.5)


def test_epochs_accuracy_and_evaluation(run):
    live = LiveRun(run)
    with run.step_writer() as lines:
        write(lines, range(1, 9))
        live.poll()
        assert live.figures().phase == "evaluating"
        end_epoch(lines, 8, 0.5)
        assert [end.epoch for end in live.poll()] == [1]
        assert live.figures().phase == "training"
        write(lines, range(9, 17))
        end_epoch(lines, 16, 0.4)
        assert [end.epoch for end in live.poll()] == [2]
        figures = live.figures()
        assert (figures.epoch, figures.test_accuracy, figures.best_accuracy) == (2, 0.4, 0.5)
        write(lines, range(17, 41))
        end_epoch(lines, 40, 0.6)
        live.poll()
        assert live.figures().phase == "finishing"


def test_non_finite_loss_is_reported(run):
    with run.step_writer() as lines:
        write(lines, range(1, 4))
        write(lines, [4], loss=float("nan"))
    live = LiveRun(run)
    live.poll()
    assert "loss not finite" in line_of(live.figures())


def test_attempts_and_repeated_steps(run):
    """Run 12 steps, again 9 to 11, then 9 to 14: 3 and then 4 steps are repeats."""
    for steps in (range(1, 13), range(9, 12), range(9, 15)):
        with run.step_writer(0) as lines:
            write(lines, steps)
    live = LiveRun(run)
    live.poll()
    figures = live.figures()
    assert (figures.attempts, figures.redone, figures.step) == (3, run.read_steps().redone, 14) == (3, 7, 14)


def test_failed_rank_until_restart(run):
    with run.step_writer(0) as lines:
        write(lines, range(1, 4))
        lines.write(Error(step=0, text="ValueError: boom"))
    live = LiveRun(run)
    live.poll()
    assert live.figures().phase == "failed"
    assert live.figures().error == "rank 0 failed with ValueError: boom"
    with run.step_writer(0) as lines:
        write(lines, range(1, 2))
        live.poll()
    assert (live.figures().phase, live.figures().error) == ("training", "")


def test_silent_rank_is_reported_but_not_during_evaluation(run):
    clock = Clock()
    live = LiveRun(run, clock)
    with run.step_writer(0) as first, run.step_writer(1) as second:
        write(first, range(1, 4))
        write(second, range(1, 4))
        live.poll()
        clock.now += 30
        write(first, [4])
        live.poll()
        live.poll()
        assert [rank.silent_s for rank in live.figures().ranks] == [None, pytest.approx(30, abs=1)]
        assert "silent: rank 1" in line_of(live.figures())
        write(first, range(5, 9))
        write(second, range(4, 9))
        live.poll()
        clock.now += 60
        assert live.figures().phase == "evaluating"
        assert all(rank.silent_s is None for rank in live.figures().ranks)


def test_run_stopped_earlier_is_silent_immediately(run):
    with run.step_writer() as lines:
        write(lines, range(1, 4))
    an_hour_ago = time.time() - 3600
    os.utime(run.steps_path(), (an_hour_ago, an_hour_ago))
    live = LiveRun(run)
    live.poll()
    assert live.figures().ranks[0].silent_s == pytest.approx(3600, abs=5)


def test_learners_of_an_asynchronous_run(run):
    """Learner 0 takes 10 + 80 + 10 ms per update and learner 1 twice that: 10 and 5 updates a second."""
    shares = {"pull_s": 0.010, "compute_s": 0.080, "push_s": 0.010}
    with run.step_writer(0) as first, run.step_writer(1) as second:
        for step in (1, 2, 4, 5):
            write(first, [step], step_time_s=0.07, staleness=1, **shares)
        for step in (3, 6):
            write(second, [step], step_time_s=0.07, staleness=2, **{name: 2 * s for name, s in shares.items()})
    live = LiveRun(run)
    live.poll()
    figures = live.figures()
    assert figures.is_asynchronous
    assert (figures.step, figures.steps_per_s) == (6, pytest.approx(15))
    assert [rank.steps_per_s for rank in figures.ranks] == pytest.approx([10, 5])
    assert [rank.staleness for rank in figures.ranks] == pytest.approx([1, 2])
    assert [rank.compute_share for rank in figures.ranks] == pytest.approx([0.8, 0.8])
    assert figures.straggler is not None
    assert (figures.straggler.rank, figures.straggler.share) == (1, pytest.approx(1.0))
    assert figures.left_s == pytest.approx((40 - 6) / 15)
    text = display_text(figures)
    assert "staleness" in text
    assert "waits for gradients" not in text


def test_measured_loop_has_no_known_end(run):
    with run.step_writer() as lines:
        lines.write(StepLine(step=6, mode="parts", step_time_s=0.5, input_s=0.1))
        lines.write(StepLine(step=7, mode="no_exchange", input_s=0.1))
    live = LiveRun(run)
    live.poll()
    figures = live.figures()
    assert (figures.num_steps, figures.left_s, figures.loss) == (None, None, None)
    assert figures.steps_per_s == pytest.approx(2)


def test_each_line_is_read_once(run, monkeypatch):
    live = LiveRun(run)
    with run.step_writer() as lines:
        write(lines, range(1, 101))
        live.poll()
        size = run.steps_path().stat().st_size
        write(lines, [101])
        read = []
        follower = live._lines._followers[0]
        own = follower.new_lines
        monkeypatch.setattr(follower, "new_lines", lambda: read.append(follower._offset) or own())
        live.poll()
    assert read == [size]
    assert live.figures().step == 101


# -- the display ------------------------------------------------------------------------------------------


def display_text(figures, width=100, height=30):
    console = Console(file=StringIO(), width=width, height=height, force_terminal=False)
    console.print(drawing(figures, height))
    return console.file.getvalue()


def test_display_of_two_ranks(run):
    with run.step_writer(0) as first, run.step_writer(1) as second:
        write(first, range(1, 5), wait_s=0.030)
        write(second, range(1, 5), wait_s=0.005)
    live = LiveRun(run)
    live.poll()
    lines = [line.rstrip() for line in display_text(live.figures()).splitlines()]
    assert lines[0].split() == ["training", "step", "4/40", "━" * 3, "10.0", "steps/s", "3.6", "s", "left"]
    assert lines[1:] == [
        "loss 1.0000",
        "",
        "rank   step   steps/s   waits for gradients   input",
        "─────────────────────────────────────────────────────────────",
        "   0      4      10.0                  30 %    10 %",
        "   1      4      10.0                   5 %    10 %   slowest",
        "communication 5 % of a step · the others wait 25 ms (25 %) for rank 1",
    ]


def test_display_of_one_rank(run):
    with run.step_writer() as lines:
        write(lines, range(1, 5), wait_s=None, input_s=0.02)
    live = LiveRun(run)
    live.poll()
    text = display_text(live.figures()).splitlines()
    assert len(text) == 2
    assert text[1].rstrip() == "loss 1.0000 · input 20 % of a step"


def test_display_selects_from_many_ranks(run):
    writers = [run.step_writer(rank) for rank in range(40)]
    for rank, lines in enumerate(writers):
        write(lines, range(1, 4), wait_s=0.01 if rank == 33 else 0.05)
        lines.close()
    live = LiveRun(run)
    live.poll()
    text = display_text(live.figures(), height=20)
    assert len(text.splitlines()) <= 20
    assert "33" in text
    assert "and 28 more" in text


def test_without_terminal_epochs_are_lines(run):
    with run.step_writer() as lines:
        write(lines, range(1, 9))
        end_epoch(lines, 8, 0.25)
        console = Console(file=StringIO(), width=200)
        with Screen(console, say_every_s=0.0) as screen:
            screen(run)  # earlier lines are not printed again
            write(lines, range(9, 17))
            end_epoch(lines, 16, 0.5)
            lines.write(NoteLine(step=16, text="the network is blind [/to]"))
        printed = console.file.getvalue().splitlines()
    assert [line for line in printed if line.startswith("epoch 2/5")] == [
        "epoch 2/5  step 16  train loss 1.0000  test accuracy 50.0 %  1 s"
    ]
    assert not any(line.startswith("epoch 1/5") for line in printed)
    assert printed.count("note: the network is blind [/to]") == 1
    assert (
        printed[-1]
        == "training · step 16/40 · epochs 2/5 · loss 1.0000 · test accuracy 50.0 % · 10.0 steps/s · 2.4 s left"
    )


def test_screen_uses_little_processor_time(run, monkeypatch):
    """Poll as often as a launcher for 3 s, with 64 ranks that write two steps per poll."""
    gc.collect()
    gc.freeze()  # exclude objects of earlier tests from collections in these 3 s
    monkeypatch.setattr("chronograd.watch.terminal.DRAW_EVERY_S", 0.0)
    writers = [run.step_writer(rank) for rank in range(64)]
    console = Console(file=StringIO(), width=100, height=30, force_terminal=True)
    spent = 0.0
    with Screen(console) as screen:
        screen(run)
        begun = time.monotonic()
        step = 0
        while time.monotonic() < begun + 3:
            step += 2
            for lines in writers:
                write(lines, [step - 1, step], wait_s=0.01)
            time.sleep(0.1)
            start = time.process_time()
            screen(run)
            spent += time.process_time() - start
        lasted = time.monotonic() - begun
    gc.unfreeze()
    for lines in writers:
        lines.close()
    assert screen.figures is not None
    assert spent < 0.15 * lasted  # 2 % on a quiet core; more if other processes share its caches


def test_run_files_cannot_control_the_terminal(run):
    """Only the screen's own escape sequences reach the terminal, not those in a run's files."""
    stream = StringIO()
    with (
        run.step_writer(0) as lines,
        Screen(Console(file=stream, force_terminal=True, width=120, highlight=False)) as screen,
    ):
        screen(run)
        lines.write(NoteLine(text="a note\x1b]0;owned\x07"))
        lines.write(Error(text="an error\x1b]0;owned\x07"))
    shown = stream.getvalue()
    assert r"a note\x1b]0;owned\x07" in shown
    assert r"an error\x1b]0;owned\x07" in shown
    assert "\x1b]0;" not in shown

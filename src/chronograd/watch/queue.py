"""A schedule that really runs, followed: each job's state, progress and accuracy."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chronograd.answer import Answer, Column, Section, Table
from chronograd.errors import RunError, printable
from chronograd.rundir import RunDir, is_run_dir
from chronograd.schedule.log import Event, QueuedJob, ScheduleLog
from chronograd.units import percent, whole_percent
from chronograd.watch.progress import LiveRun, RunFigures
from chronograd.words import how_many

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Drawn

POLL_S, SAY_EVERY_S = 0.5, 10.0
_TO_GO_ON = "repeat the `chronograd schedule` command that began it"
EXPECTED, WAITS, RUNS, DONE, FAILED = "expected", "waits", "runs", "done", "failed"


@dataclass(frozen=True)
class QueueRow:
    """A job of a queue.

    Attributes:
        state: expected (it has not arrived), waits, runs, done or failed.
        cores: that it has now. done: share of its work.
        since_s: since the arrival; the time from arrival to end of a job that is done or failed.
        left_s: training time left at the present speed; None if it does not run.
    """

    name: str
    state: str
    cores: int
    done: float
    accuracy: float | None
    restarts: int
    since_s: float
    left_s: float | None


class LiveQueue:
    """A follower of a schedule's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs: dict[str, LiveRun] = {}

    def rows(self) -> tuple[ScheduleLog, list[QueueRow]]:
        """Return the log and the present state of each job."""
        log = ScheduleLog.read(self.folder)
        starts = Counter(event.job for event in log.events if event.event == "start")
        running, over = log.running(), log.over()
        return log, [
            self._row(job, log.start, running.get(job.name), over.get(job.name), starts[job.name])
            for job in log.queue.jobs
        ]

    def _row(
        self, job: QueuedJob, start: float, running: Event | None, over: Event | None, num_starts: int
    ) -> QueueRow:
        now_s = (time.time() if over is None else over.time) - start
        state = RUNS if running else WAITS if now_s >= job.arrival_s else EXPECTED
        if over is not None:
            state = DONE if over.event == "end" else FAILED
        figures = self._figures(job.name)
        done = figures.step * job.batch / job.work if figures is not None else 0.0
        return QueueRow(
            job.name,
            state,
            running.workers if running else 0,
            1.0 if state == DONE else min(done, 1.0),
            figures.test_accuracy if figures is not None else None,
            max(0, num_starts - 1),
            max(0.0, now_s - job.arrival_s),
            figures.left_s if figures is not None and running else None,
        )

    def _figures(self, name: str) -> RunFigures | None:
        if name not in self._runs and is_run_dir(self.folder / name):
            self._runs[name] = LiveRun(RunDir(self.folder / name))
        if name not in self._runs:
            return None
        self._runs[name].poll()
        return self._runs[name].figures()


COLUMNS = (
    Column("job", "name"),
    Column("state", "state"),
    Column("cores", lambda row: row.cores or None, format="d"),
    Column("done", "done", format=whole_percent),
    Column("accuracy", "accuracy", format=percent),
    Column("restarts", "restarts", format="d"),
    Column("since arrival", lambda row: None if row.state == EXPECTED else row.since_s, "s"),
    Column("left", "left_s", "s"),
)


def summary(log: ScheduleLog, rows: Sequence[QueueRow]) -> str:
    """Return a sentence on the queue."""
    counts = {state: sum(row.state == state for row in rows) for state in (RUNS, WAITS, EXPECTED, DONE, FAILED)}
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    used = sum(row.cores for row in rows)
    return f"{how_many(len(rows), 'jobs')} under {log.queue.policy}: {told}; {used} of {log.queue.cores} cores in use."


def queue_answer(folder: Path) -> Answer[list[QueueRow]]:
    """Return the present state of a schedule that runs or ran."""
    log, rows = LiveQueue(folder).rows()
    section = Section(title="Jobs", takeaway=summary(log, rows), table=Table.of(rows, COLUMNS))
    silent = log.abandoned()
    note = f"No process schedules these jobs. Nothing was written for {silent}. To go on, {_TO_GO_ON}."
    return Answer(f"schedule in {folder}", sections=[section], result=rows, notes=[note] if silent else [])


def follow_queue(folder: Path, console: Console) -> None:
    """Show a schedule until all its jobs are done or failed. Raises RunError if no process schedules the others."""
    from rich.live import Live
    from rich.text import Text

    queue, said_s = LiveQueue(folder), 0.0
    with Live(console=console, auto_refresh=False) as live:
        while True:
            log, rows = queue.rows()
            if console.is_terminal:
                live.update(_drawn(log, rows), refresh=True)
            elif time.monotonic() - said_s >= SAY_EVERY_S:
                said_s = time.monotonic()
                console.print(Text(printable(summary(log, rows))), soft_wrap=True)
            if all(row.state in (DONE, FAILED) for row in rows):
                return
            if silent := log.abandoned():
                raise RunError(
                    f"no process schedules the jobs in {folder}, and nothing was written there for {silent}", _TO_GO_ON
                )
            time.sleep(POLL_S)


def _drawn(log: ScheduleLog, rows: Sequence[QueueRow]) -> Drawn:
    from rich import box
    from rich.table import Table as Drawn
    from rich.text import Text

    plain = Table.of(rows, COLUMNS)
    title = Text(printable(summary(log, rows)))
    drawn = Drawn(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, name in enumerate(plain.columns):
        drawn.add_column(name, justify="right" if i in plain.right else "left", no_wrap=True)
    for cells in plain.rows:
        drawn.add_row(*(Text(printable(cell)) for cell in cells))
    return drawn

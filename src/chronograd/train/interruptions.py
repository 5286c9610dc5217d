"""The cost of interruptions of a run, from its steps files. Pure; needs no torch."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from chronograd.record import Quantity
from chronograd.rundir import StepLine, StepLog
from chronograd.rundir.steps import Epoch


@dataclass(frozen=True)
class Interruptions:
    """Steps and time that a run lost because it was started again.

    Attributes:
        redone_steps: steps that were lost and repeated. `redone_s`: the seconds of the lost ones.
        lost_s: wall time between a checkpoint and the moment when the run had restarted from it. It covers the lost steps, the
            detection of the failure, and the start of the ranks. NaN if lines have no time.
    """

    starts: int
    redone_steps: int
    redone_s: float
    lost_s: float

    @property
    def note(self) -> str:
        return f"started {self.starts} times; {self.redone_steps} steps were repeated and count once"

    def quantities(self) -> dict[str, Quantity]:
        source = "steps that were lost and repeated; other figures count them once"
        found = {"redone_steps": Quantity(value=self.redone_steps, unit="count", source=source)}
        for name, seconds, source in (
            ("redone_s", self.redone_s, "time of steps that were lost; wall_time_s includes it, other figures do not"),
            (
                "lost_s",
                self.lost_s,
                "wall time from a checkpoint until the run continued from there; includes redone_s",
            ),
        ):
            found[name] = (
                Quantity.missing("s", "the lines of the steps files have no times")
                if not math.isfinite(seconds)
                else Quantity(value=seconds, unit="s", n=self.starts - 1, source=source)
            )
        return found


def interruptions(log: StepLog) -> Interruptions:
    """Return the interruptions of one rank, or of all if each step is done by one of them (chronograd.rundir.steps.merged)."""
    redone_s = sum((line.step_time_s or 0.0) * (line.num_steps or 1) for line in log.discarded)
    return Interruptions(log.attempts, log.redone, redone_s, _lost_s(log))


def _lost_s(log: StepLog) -> float:
    lines = sorted([*log.steps, *log.discarded], key=lambda line: (line.attempt, line.step))
    if not lines:
        return log.starts.get(log.attempts, math.nan) - log.starts.get(min(log.starts, default=0), math.nan)
    lost_s = log.starts[lines[0].attempt] - log.starts[min(log.starts)]
    saved = {epoch.step: epoch.time for epoch in log.of(Epoch)}
    done = {lines[0].step - (lines[0].num_steps or 1): _begin(lines[0])}
    for before, after in itertools.pairwise(lines):
        done[before.step] = before.time
        if after.attempt > before.attempt:
            kept, again = after.step - (after.num_steps or 1), _begin(after)
            ends = [at[kept] for at in (done, saved) if kept in at and not at[kept] > again]
            lost_s += again - max(ends, default=math.nan)
    last = lines[-1]
    if log.attempts > last.attempt:  # all steps were done and saved; only the record was missing
        lost_s += log.ended - max(last.time, saved.get(last.step, last.time))
    return lost_s


def _begin(line: StepLine) -> float:
    return line.time - (line.step_time_s or 0.0) * (line.num_steps or 1)

"""What interruptions of a run cost, from its steps files. Pure; needs no torch."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from chronograd.record import Quantity
from chronograd.rundir import StepLine, StepLog
from chronograd.rundir.steps import Epoch


@dataclass(frozen=True)
class Interruptions:
    """Of a run that was started again, by itself or by hand.

    Attributes:
        redone_steps: steps that were thrown away and done again. `redone_s`: the seconds that the thrown away ones took.
        lost_s: wall time between a checkpoint and the moment at which the run went on from there: the steps thrown away,
            until the failure was found, until the ranks were started and had met again. NaN where lines have no time.
    """

    starts: int
    redone_steps: int
    redone_s: float
    lost_s: float

    @property
    def note(self) -> str:
        return f"started {self.starts} times; {self.redone_steps} steps were done again and are counted once"

    def quantities(self) -> dict[str, Quantity]:
        lost = {
            "redone_s": (self.redone_s, "time of steps that were thrown away; in no other figure but wall_time_s"),
            "lost_s": (self.lost_s, "wall time from a checkpoint until the run went on from there; holds redone_s"),
        }
        found = {
            "redone_steps": Quantity(
                value=self.redone_steps, unit="count", source="steps thrown away and done again; counted once elsewhere"
            )
        }
        for name, (seconds, source) in lost.items():
            found[name] = (
                Quantity.missing("s", "the steps files do not say when their lines were written")
                if not math.isfinite(seconds)
                else Quantity(value=seconds, unit="s", n=self.starts - 1, source=source)
            )
        return found


def interruptions(log: StepLog) -> Interruptions:
    """Of one rank, or of all where each step is done by one of them (chronograd.rundir.steps.merged)."""
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
    if log.attempts > last.attempt:  # all steps were done and saved; the record alone was missing
        lost_s += log.ended - max(last.time, saved.get(last.step, last.time))
    return lost_s


def _begin(line: StepLine) -> float:
    return line.time - (line.step_time_s or 0.0) * (line.num_steps or 1)

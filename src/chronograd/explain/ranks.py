"""Runs of one job on different numbers of ranks: did the time fall, and did the work stay the same?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chronograd.compare.scaling import efficiency
from chronograd.explain.causes import PADDING, Diagnosis
from chronograd.explain.evidence import Evidence
from chronograd.explain.remedies import Remedy, ranked
from chronograd.units import percent
from chronograd.words import how_many

# Ranks whose data fit their caches may each be slightly faster than one rank alone. More means a disturbed run. Assumed.
MAX_EFFICIENCY = 1.25


@dataclass(frozen=True)
class Compared:
    """One run compared with the one with the fewest ranks.

    Attributes:
        seconds: of the whole run from its first step on; of one step if any of the runs is a sample of steps.
        samples: processed in that time by all ranks; None if the batch is unknown.
        speedup: of `seconds`. `throughput`: samples per second over those of the first run; None if unknown.
    """

    name: str
    world: int
    seconds: float
    samples: float | None
    speedup: float
    throughput: float | None

    @property
    def efficiency(self) -> float | None:
        """Return the throughput over ideal throughput for the number of ranks."""
        return efficiency(self.throughput, self.world)


def _are_whole(runs: Sequence[Evidence]) -> bool:
    """Return whether whole runs are compared, from the first step to the end; else steps, because a record is a sample of
    steps.
    """
    return all(run.kind in ("training", "own loop") and run.num_steps and run.wall_s for run in runs)


def _time_s(run: Evidence, is_whole: bool) -> float:
    return run.wall_s if is_whole and run.wall_s else run.step_time_s


def _samples(run: Evidence, is_whole: bool) -> float | None:
    """Return the samples over all ranks; None if the batch is unknown."""
    batch = run.batch if run.batch else None if run.rank_batch is None else run.rank_batch * run.world
    return batch * run.num_steps if is_whole and batch and run.num_steps else batch


def compare(runs: Sequence[Evidence]) -> list[Compared]:
    """Return the runs in order of ranks, compared with the first. Efficiency is relative to one rank only if the first has one."""
    ordered, is_whole = sorted(runs, key=lambda run: run.world), _are_whole(runs)
    first_s, first_samples = _time_s(ordered[0], is_whole), _samples(ordered[0], is_whole)
    rows = []
    for run in ordered:
        seconds, samples = _time_s(run, is_whole), _samples(run, is_whole)
        rate = None
        if samples and first_samples:
            rate = samples / seconds * first_s / first_samples * ordered[0].world
        rows.append(Compared(run.name, run.world, seconds, samples, first_s / seconds, rate))
    return rows


def work_scaled(first: Evidence, run: Evidence) -> Diagnosis:
    """Test whether more ranks did more work, so that the time stays: epochs, or the batch with the same number of steps, grew."""
    experiment = (
        "run both for the same number of samples (steps × global batch): if the time still does not fall, growing work is "
        "not the cause"
    )
    is_whole = _are_whole((first, run))
    first_s, run_s = _time_s(first, is_whole), _time_s(run, is_whole)
    before, after = _samples(first, is_whole), _samples(run, is_whole)
    if before is None or after is None:
        return Diagnosis("work_scaled", "not measured", "samples per step are unknown", None, (), experiment)
    # Samples that several ranks share are trained several times, which is another cause.
    redundant = run.coverage if run.world > 1 and run.coverage and run.coverage >= PADDING else 1.0
    ratio = after / before / redundant
    shared = ", not counting those that ranks share" if redundant > 1 else ""
    evidence = (
        f"{run.title} processed {after:,.0f} samples on {how_many(run.world, 'ranks')}, {first.title} {before:,.0f} on "
        f"{first.world}: a factor of {ratio:.2f}{shared}",
        f"the time went from {first_s:.3g} to {run_s:.3g} s; for the same samples it would be {run_s / max(ratio, 1e-9):.3g} s",
    )
    if ratio < PADDING:
        return Diagnosis("work_scaled", "not found", "more ranks did the same work", 0.0, evidence[:1], experiment)
    title = f"the work grew with the ranks: {_what_grew(first, run)}"
    how = "divide epochs, or the batch of a rank, by the ranks"
    to_do = ranked([Remedy("train on the same number of samples as the other run", how, run_s, run_s / ratio, "run")])
    return Diagnosis("work_scaled", "found", title, 1 - 1 / ratio, evidence, experiment, to_do)


def _what_grew(first: Evidence, run: Evidence) -> str:
    if first.batch and run.batch and run.batch / first.batch >= PADDING:
        return f"a step has {run.batch:g} samples instead of {first.batch:g}"
    steps = f"{how_many(run.num_steps, 'steps')} instead of {first.num_steps}"
    epochs = [one.job.training.epochs for one in (first, run)]
    if all(epochs) and epochs[0] != epochs[1]:
        return f"{how_many(epochs[1], 'epochs')} instead of {epochs[0]}, {steps}"
    return steps


def scaling_text(rows: Sequence[Compared], names: Sequence[str] = ()) -> str:
    """Return a sentence on the time by number of ranks; `names` are short names of the runs."""
    last, names = rows[-1], names or [row.name for row in rows]
    rate = "" if last.throughput is None else f", {last.throughput:.2f} times the samples per second"
    if last.world == rows[0].world:
        return f"on the same number of ranks {names[-1]} is {last.speedup:.2f} times as fast as {names[0]}{rate}"
    efficiency = "" if last.efficiency is None or rows[0].world != 1 else f" ({percent(last.efficiency, 0)} efficiency)"
    return f"from {rows[0].world} to {how_many(last.world, 'ranks')} {last.speedup:.2f} times as fast{rate}{efficiency}"

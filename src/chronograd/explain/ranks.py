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

# Ranks that fit their caches may each be somewhat faster than one alone; more is a run that was disturbed. Assumed.
MAX_EFFICIENCY = 1.25


@dataclass(frozen=True)
class Compared:
    """One run beside the one with the fewest ranks.

    Attributes:
        seconds: of the whole run from its first step on; of a step where any of the runs is a sample of steps.
        samples: done in that time by all ranks; None if the batch is not known.
        speedup: of `seconds`. `throughput`: samples per second over those of the first run; None if not known.
    """

    name: str
    world: int
    seconds: float
    samples: float | None
    speedup: float
    throughput: float | None

    @property
    def efficiency(self) -> float | None:
        """Throughput over what as many ranks would give."""
        return efficiency(self.throughput, self.world)


def _are_whole(runs: Sequence[Evidence]) -> bool:
    """Whether whole runs are compared, from the first step to the end; else steps, of which a record is a sample."""
    return all(run.kind in ("training", "own loop") and run.num_steps and run.wall_s for run in runs)


def _time_s(run: Evidence, is_whole: bool) -> float:
    return run.wall_s if is_whole and run.wall_s else run.step_time_s


def _samples(run: Evidence, is_whole: bool) -> float | None:
    """Over all ranks; None if the batch is not known."""
    batch = run.batch if run.batch else None if run.rank_batch is None else run.rank_batch * run.world
    return batch * run.num_steps if is_whole and batch and run.num_steps else batch


def compare(runs: Sequence[Evidence]) -> list[Compared]:
    """Runs in order of ranks, beside the first. Efficiency is against one rank only where the first has one."""
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
    """More ranks did more work, so that the time stays: epochs, or the batch at as many steps, grew with them."""
    experiment = (
        "run both for the same number of samples (steps × global batch): if the time still does not fall, growing work is "
        "not the cause"
    )
    is_whole = _are_whole((first, run))
    first_s, run_s = _time_s(first, is_whole), _time_s(run, is_whole)
    before, after = _samples(first, is_whole), _samples(run, is_whole)
    if before is None or after is None:
        return Diagnosis("work_scaled", "not measured", "samples per step were not told", None, (), experiment)
    # Samples that ranks share are trained several times: another cause.
    redundant = run.coverage if run.world > 1 and run.coverage and run.coverage >= PADDING else 1.0
    ratio = after / before / redundant
    shared = ", not counting those that ranks share" if redundant > 1 else ""
    evidence = (
        f"{run.title} worked through {after:,.0f} samples on {how_many(run.world, 'ranks')}, {first.title} through {before:,.0f} on "
        f"{first.world}: {ratio:.2f} times as many{shared}",
        f"the time went from {first_s:.3g} to {run_s:.3g} s; for the same samples it would be {run_s / max(ratio, 1e-9):.3g} s",
    )
    if ratio < PADDING:
        return Diagnosis("work_scaled", "not found", "more ranks did the same work", 0.0, evidence[:1], experiment)
    title = f"the work grew with the ranks: {_what_grew(first, run)}"
    how = "divide epochs, or the batch of a rank, by the ranks"
    to_do = ranked([Remedy("train as many samples as the other run", how, run_s, run_s / ratio, "run")])
    return Diagnosis("work_scaled", "found", title, 1 - 1 / ratio, evidence, experiment, to_do)


def _what_grew(first: Evidence, run: Evidence) -> str:
    if first.batch and run.batch and run.batch / first.batch >= PADDING:
        return f"a step has {run.batch:g} samples in place of {first.batch:g}"
    steps = f"{how_many(run.num_steps, 'steps')} in place of {first.num_steps}"
    epochs = [one.job.training.epochs for one in (first, run)]
    if all(epochs) and epochs[0] != epochs[1]:
        return f"{how_many(epochs[1], 'epochs')} in place of {epochs[0]}, {steps}"
    return steps


def scaling_text(rows: Sequence[Compared], names: Sequence[str] = ()) -> str:
    """One sentence on how the time follows the ranks; `names` are what text calls the runs, if not by their own."""
    last, names = rows[-1], names or [row.name for row in rows]
    rate = "" if last.throughput is None else f", {last.throughput:.2f} times the samples per second"
    if last.world == rows[0].world:
        return f"on as many ranks {names[-1]} is {last.speedup:.2f} times as fast as {names[0]}{rate}"
    efficiency = "" if last.efficiency is None or rows[0].world != 1 else f" ({percent(last.efficiency, 0)} efficiency)"
    return f"from {rows[0].world} to {how_many(last.world, 'ranks')} {last.speedup:.2f} times as fast{rate}{efficiency}"

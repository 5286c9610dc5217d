"""Repeats: the same job over several seeds, run in sequence, and one record of their mean and spread."""

from __future__ import annotations

from collections.abc import Sequence

from chronograd.errors import JobError
from chronograd.job import Job, changed
from chronograd.launch import jobs
from chronograd.launch.jobs import OnPoll, PathLike
from chronograd.measure import environment
from chronograd.record import Curve, Quantity, Record
from chronograd.rundir import RunDir, is_run_dir
from chronograd.words import how_many

SEEDS_KEY = "seeds"
# Columns in the curve of an agent.
RETURNS = {"mean_return", "return_low", "return_high"}


def train_over_seeds(
    job: Job,
    seeds: int,
    *,
    out: PathLike | None = None,
    initial_weights: PathLike | None = None,
    launcher: str | None = None,
    on_poll: OnPoll = lambda run: None,
) -> RunDir:
    """Train a job once per seed, starting at the job's seed. Returns a run directory with the record of all and, in it, one
    directory per seed.

    Raises: JobError for fewer than two seeds; else as `jobs.train`.
    """
    if seeds < 2:
        raise JobError(f"{seeds} seeds have no spread", "ask for two or more, or leave the option out")
    jobs.check(job, launcher)
    whole = RunDir.create(job, environment.environment() | {SEEDS_KEY: seeds}, out)
    return resume_over_seeds(whole, initial_weights=initial_weights, launcher=launcher, on_poll=on_poll)


def seeds_of(run: RunDir) -> int | None:
    """Return the number of seeds that a run directory repeats; None if it is a single run."""
    found = run.environment().get(SEEDS_KEY)
    return found if isinstance(found, int) else None


def resume_over_seeds(
    whole: RunDir,
    *,
    initial_weights: PathLike | None = None,
    launcher: str | None = None,
    on_poll: OnPoll = lambda run: None,
) -> RunDir:
    """Continue repeats: finished seeds stay, the others are trained or resumed. Raises as `jobs.resume`."""
    job, seeds = whole.job(), seeds_of(whole)
    if seeds is None:
        raise JobError(f"{whole.path} is a single run, not one over several seeds", "resume it without --seeds")
    records = []
    for seed in range(job.training.seed, job.training.seed + seeds):
        one = changed(job, [f"training.seed={seed}"])
        path = whole.path / f"seed-{seed}"
        run = (
            RunDir.open(path)
            if is_run_dir(path)
            else jobs.create(one, path, initial_weights=initial_weights, launcher=launcher)
        )
        records.append(jobs.resume(run, one, launcher=launcher, on_poll=on_poll).record())
    whole.save_record(record_of_all(records))
    return whole


def record_of_all(records: Sequence[Record]) -> Record:
    """Return one record of several: each quantity is the mean over those that have it, with their standard deviation.

    Their curves by epoch are averaged up to the length of the shortest. An agent's curves have the lowest and highest seed as
    bounds.
    """
    first = records[0]
    whole = first.model_copy(
        deep=True, update={"title": f"{first.title}, {how_many(len(records), 'seeds')}", "curves": {}}
    )
    for name in dict.fromkeys(name for record in records for name in record.quantities):
        known = [r[name].value for r in records if r[name].value is not None]
        values = [v for v in known if v is not None]
        if values:
            source = f"mean over {len(values)} of {how_many(len(records), 'seeds')}; of each: {first[name].source}"
            whole.put(name, Quantity.of_samples(values, first[name].unit, source))
        else:
            whole.put(name, Quantity.missing(first[name].unit, f"no seed has it; of the first: {first[name].reason}"))
    for name in first.curves:
        if name == "training" and all(name in record.curves for record in records):
            whole.curves[name] = _mean_curve([r.curves[name] for r in records])
    return whole


def _mean_curve(curves: Sequence[Curve]) -> Curve:
    first, source = curves[0], f"mean over {how_many(len(curves), 'seeds')}"
    lengths = [len(curve.columns["step"]) for curve in curves]
    if len(set(lengths)) > 1:
        source += f", of the first {min(lengths)} epochs, which all have"
    # For each column, the rows of the epochs that all seeds have; a row has one value per seed.
    rows = {name: list(zip(*(curve.columns[name] for curve in curves))) for name in first.columns}  # noqa: B905
    columns: dict[str, list[float | None]] = {name: [_mean(row) for row in own] for name, own in rows.items()}
    if rows.keys() >= RETURNS:
        source += "; return_low and return_high: the lowest and the highest mean return of a seed"
        for name, bound in (("return_low", min), ("return_high", max)):
            columns[name] = [
                None if None in row else bound(v for v in row if v is not None) for row in rows["mean_return"]
            ]
    return Curve(columns=columns, units=first.units, source=source)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def record_of_rounds(records: Sequence[Record]) -> Record:
    """Return one record of several rounds of one measurement: that of the round with the median step, so that its parts add up.

    Bounds are the lowest and the highest of any round, and counts are over all rounds.
    """
    middle = sorted(records, key=lambda record: record.value("step_time_s"))[len(records) // 2]
    quantities = {name: _over_rounds(q, [r[name] for r in records]) for name, q in middle.quantities.items()}
    return middle.model_copy(update={"quantities": quantities})


def _over_rounds(middle: Quantity, rounds: Sequence[Quantity]) -> Quantity:
    if middle.value is None:
        return middle
    lows, highs = (
        [v for one in rounds for v in (getattr(one, bound), one.value) if v is not None] for bound in ("low", "high")
    )
    has_bounds = middle.low is not None and middle.high is not None
    return middle.model_copy(
        update={
            "low": min(lows) if has_bounds else None,
            "high": max(highs) if has_bounds else None,
            "n": None if middle.n is None else sum(one.n or 0 for one in rounds),
            "source": f"{middle.source}; the median of {len(rounds)} rounds",
        }
    )

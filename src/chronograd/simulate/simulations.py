"""The answers of `simulate`: the staleness of gradients in asynchronous SGD, and the best number of workers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chronograd.answer import IF_KNOWN, Answer, Column, Section, Table, as_json
from chronograd.errors import InputError
from chronograd.figure import Figure, Lanes, Lines, Mark, Push, Role, Series, Span
from chronograd.predict.speed import SpeedModel
from chronograd.simulate.staleness import NO_TIME, NS, Duration, Learner, Updates
from chronograd.units import percent
from chronograd.words import how_many

PULL, COMPUTE, PUSH = "pull", "compute", "push"
COLORS = {PULL: "sky", COMPUTE: "grey", PUSH: "orange"}
MAX_LANES, MAX_GRADIENTS = 12, 60
# A terminal prints no more; the JSON has all.
_MAX_ROWS, _MAX_LEARNERS = 20, 8


def learners(
    count: int, compute: Sequence[Duration], pull: Sequence[Duration] = (), push: Sequence[Duration] = ()
) -> list[Learner]:
    """Return `count` learners; a duration applies to all of them, or there is one for each. Raises InputError."""

    def each(name: str, given: Sequence[Duration]) -> Sequence[Duration]:
        if len(given) not in (0, 1, count):
            raise InputError(
                f"{len(given)} times --{name} for {how_many(count, 'learners')}", "give it once, or for each"
            )
        return given if len(given) == count else [given[0] if given else NO_TIME] * count

    parts = [each(name, given) for name, given in (("compute", compute), ("pull", pull), ("push", push))]
    return [Learner(*of_one) for of_one in zip(*parts, strict=True)]


# -- staleness -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AppliedGradient:
    """A gradient in an update: `index` counts those of its learner, `staleness` the updates since it read the weights."""

    learner: int
    index: int
    time_s: float
    staleness: int
    update: int
    pushed_s: float
    read_s: float


@dataclass(frozen=True)
class StalenessShare:
    """The number of gradients of a staleness, and their share of all."""

    staleness: int
    gradients: int
    share: float


@dataclass(frozen=True)
class LearnerStaleness:
    """The staleness of a learner's gradients; None if none was applied."""

    learner: int
    gradients: int
    mean_staleness: float | None
    max_staleness: int | None


@dataclass(frozen=True)
class SimulatedStaleness:
    """The result of `simulate staleness`; `waiting` gradients arrived and are in no update yet."""

    updates: list[AppliedGradient]
    mean_staleness: float | None
    updates_per_s: float | None
    waiting: int
    distribution: list[StalenessShare]
    learners: list[LearnerStaleness]


def staleness_answer(updates: Updates, count: int, per_update: int = 1) -> Answer[SimulatedStaleness]:
    """Return every gradient of `count` learners with its staleness, and the distribution of staleness.

    Args:
        per_update: gradients in one update.
    """
    result = _staleness(updates, count)
    rest = len(result.updates) - _MAX_ROWS
    gradients = Section(
        title=f"{len(result.updates)} gradients of {count} learner{'s' * (count > 1)}"
        + (f", {per_update} to an update" if per_update > 1 else ""),
        takeaway=_staleness_takeaway(result),
        lines=[f"{updates.num_waiting} gradients arrived and wait for an update."] if updates.num_waiting else [],
        figure=Figure([panel(updates, count)]) if result.updates else None,
        table=Table.of(
            result.updates[:_MAX_ROWS],
            (
                Column("applied", "time_s", "s"),
                Column("gradient", lambda one: f"{one.index} of learner {one.learner}"),
                Column("weights read", "read_s", "s"),
                Column("staleness", "staleness", format="d"),
            ),
            [f"and {rest:,} more: --json has all"] if rest > 0 else [],
        ),
    )
    distribution = Section(
        title="Distribution of staleness",
        takeaway=_distribution_takeaway(result.distribution),
        table=Table.of(
            result.distribution[:_MAX_ROWS],
            (
                Column("staleness", "staleness", format="d"),
                Column("gradients", "gradients", format="d"),
                Column("share", "share", "1"),
            ),
        ),
        data=as_json(result.distribution),
    )
    return Answer("Staleness of asynchronous SGD", sections=[gradients, distribution], result=result)


def _staleness(updates: Updates, count: int) -> SimulatedStaleness:
    columns = (updates.learner, updates.index, updates.applied_ns / NS, updates.staleness, updates.update,
               updates.pushed_ns / NS, updates.read_ns / NS)  # fmt: skip
    return SimulatedStaleness(
        updates=[AppliedGradient(*row) for row in zip(*(column.tolist() for column in columns), strict=True)],
        mean_staleness=_known(updates.mean),
        updates_per_s=_known(updates.updates_per_s),
        waiting=updates.num_waiting,
        distribution=[
            StalenessShare(value, number, number / len(updates.staleness)) for value, number in updates.distribution()
        ],
        learners=_learners(updates, count),
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _learners(updates: Updates, count: int) -> list[LearnerStaleness]:
    """Return the figures of each learner. Sums over all gradients at once: there may be 100,000 learners."""
    numbers, sums = (np.bincount(updates.learner, by, count + 1) for by in (None, updates.staleness))
    largest = np.zeros(count + 1, dtype=int)
    np.maximum.at(largest, updates.learner, updates.staleness)
    return [
        LearnerStaleness(i, int(n), float(s / n) if n else None, int(most) if n else None)
        for i, (n, s, most) in enumerate(zip(numbers[1:], sums[1:], largest[1:], strict=True), 1)
    ]


def _staleness_takeaway(result: SimulatedStaleness) -> str:
    if result.mean_staleness is None:
        return "No update was made, so staleness is unknown."
    rate = "" if result.updates_per_s is None else f", {result.updates_per_s:.4g} updates per second"
    each = ", ".join(
        f"learner {one.learner} {one.mean_staleness:.3g}"
        for one in result.learners[:_MAX_LEARNERS]
        if one.mean_staleness is not None
    )
    return f"The mean staleness is {result.mean_staleness:.4g}{rate}; {each}."


def _distribution_takeaway(rows: Sequence[StalenessShare]) -> str:
    if not rows:
        return "There is no gradient in an update."
    usual = max(rows, key=lambda row: row.gradients)
    return (
        f"The most frequent staleness is {usual.staleness} ({percent(usual.share)}), the largest {rows[-1].staleness}."
    )


def panel(updates: Updates, count: int, most_gradients: int = MAX_GRADIENTS, role: Role = "predicted") -> Lanes:
    """Return the first updates of `count` learners: whole updates up to `most_gradients` gradients, at least one.

    With more than MAX_LANES learners, the first ones have lanes; versions count the updates of all.

    Raises: ValueError if there is no update.
    """
    if not len(updates.update):
        raise ValueError("there is no update to draw; simulate at least one")
    last = int(updates.update[min(most_gradients, len(updates.update)) - 1])
    in_time = updates.update <= last
    end_ns = int(updates.applied_ns[in_time][-1])
    scale, unit = next((s, u) for s, u in ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns")) if end_ns >= s or s == 1)
    spans, pushes = [], []
    is_beside = _overlaps(updates)
    version_read = updates.update - 1 - updates.staleness
    for i in np.flatnonzero((updates.read_ns < end_ns) & (updates.learner <= MAX_LANES)).tolist():
        lane = int(updates.learner[i]) - 1
        times = (updates.read_ns[i], updates.pulled_ns[i], updates.computed_ns[i], updates.pushed_ns[i])
        ends = [min(int(t), end_ns) / scale for t in times]
        for part, start, end in zip((PULL, COMPUTE, PUSH), ends, ends[1:], strict=False):
            if end > start:
                note = f"v{version_read[i]}" if part == COMPUTE else ""
                spans.append(Span(lane, part, start, end, note, is_beside and part == PUSH))
        if in_time[i]:
            pushes.append(Push(lane, ends[3], int(updates.update[i]), int(updates.staleness[i])))
    numbers, first = np.unique(updates.update[in_time], return_index=True)
    versions = zip((updates.applied_ns[in_time][first] / scale).tolist(), numbers.tolist(), strict=True)
    names = [f"learner {number}" for number in range(1, min(count, MAX_LANES) + 1)]
    return Lanes(f"time, {unit}", names, spans, pushes, list(versions), COLORS, role)


def _overlaps(updates: Updates) -> bool:
    """Return whether a learner reads before its last gradient has arrived."""
    order = np.lexsort((updates.index, updates.learner))
    learner, read, pushed = updates.learner[order], updates.read_ns[order], updates.pushed_ns[order]
    return bool(((learner[1:] == learner[:-1]) & (read[1:] < pushed[:-1])).any())


# -- speed -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerSpeeds:
    """Steps per second by number of workers, and seconds to a target if its steps are known.

    Attributes:
        closed_form_workers: the number, whole or not, with the shortest step; None if more would always be faster.
    """

    best_workers: int
    closed_form_workers: float | None
    steps_per_s: dict[int, float]
    time_s: dict[int, float] | None = field(default=None, metadata=IF_KNOWN)


@dataclass(frozen=True)
class SimulatedSpeed:
    """The result of `simulate speed`: for parameter servers, and for an all-reduce if requested."""

    mode: str
    coefficients: tuple[float, ...]
    batch: float | None
    servers: int
    by_servers: WorkerSpeeds
    all_reduce: WorkerSpeeds | None

    def as_data(self) -> dict[str, Any]:
        own = {"mode": self.mode, "coefficients": self.coefficients, "batch": self.batch, "servers": self.servers}
        return {**own, **as_json(self.by_servers)} | ({"all_reduce": self.all_reduce} if self.all_reduce else {})


def speed_answer(
    model: SpeedModel, servers: int, counts: Sequence[int], steps: float | None = None, with_all_reduce: bool = False
) -> Answer[SimulatedSpeed]:
    """Return steps per second by number of workers, and the best number.

    Args:
        counts: numbers of workers. steps: until a target, to state their time.
        with_all_reduce: also the same work and link without servers.
    """
    with np.errstate(over="ignore"):  # infinite values are refused below
        speeds = _speeds(model, servers, counts, steps)
    if not np.isfinite(list(speeds.steps_per_s.values())).all():
        raise InputError(f"coefficients {list(model.coefficients)} give an infinite speed", "give larger coefficients")
    if not np.isfinite(list((speeds.time_s or {}).values())).all():
        raise InputError(f"{steps:g} steps take an infinite time", "give fewer steps")
    reduced = _speeds(model.all_reduce(), servers, counts, steps) if with_all_reduce else None
    title = f"{model.mode}, {servers} server{'s' * (servers > 1)}" + (f", batch {model.batch:g}" if model.batch else "")
    sections = [_speed_section(title, speeds, model.steps_per_s(1, servers))]
    if reduced is not None:
        sections.append(_speed_section("all-reduce, no servers", reduced, model.all_reduce().steps_per_s(1)))
    result = SimulatedSpeed(model.mode, tuple(model.coefficients), model.batch, servers, speeds, reduced)
    return Answer("Speed by number of workers", sections=sections, result=result)


def _speeds(model: SpeedModel, servers: int, counts: Sequence[int], steps: float | None) -> WorkerSpeeds:
    def by_workers(values: Sequence[float]) -> dict[int, float]:
        return {workers: float(value) for workers, value in zip(counts, values, strict=True)}

    return WorkerSpeeds(
        model.best_workers(servers, counts),
        model.closed_form(servers),
        by_workers(model.steps_per_s(counts, servers)),
        None if steps is None else by_workers(model.time_s(steps, counts, servers)),
    )


def _speed_section(title: str, speeds: WorkerSpeeds, one: float) -> Section:
    """Return the section of one model; speed-up is relative to `one`, the steps per second of one worker."""
    best, exact, times, by_workers = speeds.best_workers, speeds.closed_form_workers, speeds.time_s, speeds.steps_per_s
    workers, rates = [float(w) for w in by_workers], list(by_workers.values())
    marks = [Mark("x", exact, "shortest step")] if exact is not None and workers[0] <= exact <= workers[-1] else []
    optimum = "more would always be faster" if exact is None else f"a step is shortest with exactly {exact:.2f}"
    return Section(
        title=title,
        takeaway=f"The best of these numbers of workers is {best}: {by_workers[best]:.4g} steps/s, {by_workers[best] / one:.2f} times "
        f"those of one; {optimum}.",
        figure=Figure([Lines("workers", "steps/s", [Series("steps/s", "predicted", workers, rates)], marks)]),
        table=Table.of(
            by_workers,
            (
                Column("workers", lambda w: w, format="d"),
                Column("steps/s", lambda w: by_workers[w], format=".4g"),
                Column("speed-up", lambda w: by_workers[w] / one, format=".2f"),
                Column("time", lambda w: times and times[w], "s", empty=""),
                Column("", lambda w: "best" * (w == best)),
            ),
        ).without_empty_columns(),
    )

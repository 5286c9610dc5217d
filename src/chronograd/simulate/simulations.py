"""What `simulate` says: how stale gradients of asynchronous SGD are, and how many workers are best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from chronograd.answer import Answer, Section, Table
from chronograd.errors import InputError
from chronograd.figure import Figure, Lanes, Lines, Mark, Push, Role, Series, Span
from chronograd.predict.speed import SpeedModel
from chronograd.simulate.staleness import NO_TIME, NS, Duration, Learner, Updates
from chronograd.units import percent, seconds
from chronograd.words import how_many

PULL, COMPUTE, PUSH = "pull", "compute", "push"
COLORS = {PULL: "sky", COMPUTE: "grey", PUSH: "orange"}
MAX_LANES, MAX_GRADIENTS = 12, 60
# More are not printed in a terminal; the data have all.
_MAX_ROWS, _MAX_LEARNERS = 20, 8


def learners(
    count: int, compute: Sequence[Duration], pull: Sequence[Duration] = (), push: Sequence[Duration] = ()
) -> list[Learner]:
    """So many learners; each duration is that of all of them, or there is one for each. Raises InputError."""

    def each(name: str, given: Sequence[Duration]) -> Sequence[Duration]:
        if len(given) not in (0, 1, count):
            raise InputError(
                f"{len(given)} times --{name} for {how_many(count, 'learners')}", "give it once, or for each"
            )
        return given if len(given) == count else [given[0] if given else NO_TIME] * count

    parts = [each(name, given) for name, given in (("compute", compute), ("pull", pull), ("push", push))]
    return [Learner(*of_one) for of_one in zip(*parts, strict=True)]


# -- staleness -------------------------------------------------------------------------------------


def staleness_answer(updates: Updates, count: int, per_update: int = 1) -> Answer:
    """Every gradient of `count` learners with its staleness, and how staleness is spread.

    Args:
        per_update: gradients that an update takes in.
    """
    data = _staleness_data(updates, count)
    shown = data["updates"][:_MAX_ROWS]
    rest = len(data["updates"]) - len(shown)
    gradients = Section(
        title=f"{len(data['updates'])} gradients of {count} learner{'s' * (count > 1)}"
        + (f", {per_update} to an update" if per_update > 1 else ""),
        takeaway=_staleness_takeaway(data),
        lines=[f"{updates.num_waiting} gradients arrived and wait for an update."] if updates.num_waiting else [],
        figure=Figure([panel(updates, count)]) if data["updates"] else None,
        table=Table(
            ("applied", "gradient", "weights read", "staleness"),
            [
                [
                    seconds(u["time_s"]),
                    f"{u['index']} of learner {u['learner']}",
                    seconds(u["read_s"]),
                    str(u["staleness"]),
                ]
                for u in shown
            ],
            {0, 2, 3},
            [f"and {rest:,} more: --json has all"] if rest > 0 else [],
        ),
    )
    distribution = Section(
        title="How staleness is spread",
        takeaway=_distribution_takeaway(data["distribution"]),
        table=Table(
            ("staleness", "gradients", "share"),
            [[str(d["staleness"]), str(d["gradients"]), percent(d["share"])] for d in data["distribution"][:_MAX_ROWS]],
            {0, 1, 2},
        ),
        data=data["distribution"],
    )
    return Answer("Staleness of asynchronous SGD", sections=[gradients, distribution], data=data)


def _staleness_data(updates: Updates, count: int) -> dict[str, Any]:
    columns = {
        "learner": updates.learner,
        "index": updates.index,
        "time_s": updates.applied_ns / NS,
        "staleness": updates.staleness,
        "update": updates.update,
        "pushed_s": updates.pushed_ns / NS,
        "read_s": updates.read_ns / NS,
    }
    return {
        "updates": [
            dict(zip(columns, row, strict=True)) for row in zip(*(c.tolist() for c in columns.values()), strict=True)
        ],
        "mean_staleness": _known(updates.mean),
        "updates_per_s": _known(updates.updates_per_s),
        "waiting": updates.num_waiting,
        "distribution": [
            {"staleness": value, "gradients": number, "share": number / len(updates.staleness)}
            for value, number in updates.distribution()
        ],
        "learners": [_learner(updates, number) for number in range(1, count + 1)],
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _learner(updates: Updates, number: int) -> dict[str, Any]:
    own = updates.of_learner(number)
    mean, most = (float(own.mean()), int(own.max())) if len(own) else (None, None)
    return {"learner": number, "gradients": len(own), "mean_staleness": mean, "max_staleness": most}


def _staleness_takeaway(data: dict[str, Any]) -> str:
    if data["mean_staleness"] is None:
        return "No update was made, so nothing is known of staleness."
    rate = "" if data["updates_per_s"] is None else f", {data['updates_per_s']:.4g} updates per second"
    each = ", ".join(
        f"learner {one['learner']} {one['mean_staleness']:.3g}"
        for one in data["learners"][:_MAX_LEARNERS]
        if one["mean_staleness"] is not None
    )
    return f"The mean staleness is {data['mean_staleness']:.4g}{rate}; {each}."


def _distribution_takeaway(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "There is no gradient in an update."
    usual = max(rows, key=lambda row: row["gradients"])
    return f"The most frequent staleness is {usual['staleness']} ({percent(usual['share'])}), the largest {rows[-1]['staleness']}."


def panel(updates: Updates, count: int, most_gradients: int = MAX_GRADIENTS, role: Role = "predicted") -> Lanes:
    """The first updates of `count` learners, in whole updates up to `most_gradients` gradients, at least one.

    Of more than MAX_LANES learners the first have lanes; versions count the updates of all.
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
    """Whether a learner reads before its last gradient has arrived."""
    order = np.lexsort((updates.index, updates.learner))
    learner, read, pushed = updates.learner[order], updates.read_ns[order], updates.pushed_ns[order]
    return bool(((learner[1:] == learner[:-1]) & (read[1:] < pushed[:-1])).any())


# -- speed -----------------------------------------------------------------------------------------


def speed_answer(
    model: SpeedModel, servers: int, counts: Sequence[int], steps: float | None = None, with_all_reduce: bool = False
) -> Answer:
    """Steps per second by numbers of workers, and the best number of them.

    Args:
        counts: numbers of workers. steps: until a target, to say how long they take.
        with_all_reduce: beside it the same work and link without servers.
    """
    data: dict[str, Any] = {
        "mode": model.mode,
        "coefficients": list(model.coefficients),
        "batch": model.batch,
        "servers": servers,
        **_speeds(model, servers, counts, steps),
    }
    title = f"{model.mode}, {servers} server{'s' * (servers > 1)}" + (f", batch {model.batch:g}" if model.batch else "")
    sections = [_speed_section(title, data, model.steps_per_s(1, servers))]
    if with_all_reduce:
        data["all_reduce"] = _speeds(model.all_reduce(), servers, counts, steps)
        sections.append(_speed_section("all-reduce, no servers", data["all_reduce"], model.all_reduce().steps_per_s(1)))
    return Answer("Speed by numbers of workers", sections=sections, data=data)


def _speeds(model: SpeedModel, servers: int, counts: Sequence[int], steps: float | None) -> dict[str, Any]:
    speeds: dict[str, Any] = {
        "best_workers": model.best_workers(servers, counts),
        "closed_form_workers": model.closed_form(servers),
        "steps_per_s": {str(w): float(f) for w, f in zip(counts, model.steps_per_s(counts, servers), strict=True)},
    }
    if steps is not None:
        times_s = model.time_s(steps, counts, servers)
        speeds["time_s"] = {str(w): float(t) for w, t in zip(counts, times_s, strict=True)}
    return speeds


def _speed_section(title: str, speeds: dict[str, Any], one: float) -> Section:
    """One model; speed-up is over `one`, the steps per second of one worker."""
    best, exact, times = str(speeds["best_workers"]), speeds["closed_form_workers"], speeds.get("time_s", {})
    by_workers: dict[str, float] = speeds["steps_per_s"]
    workers, rates = [float(w) for w in by_workers], list(by_workers.values())
    marks = [Mark("x", exact, "shortest step")] if exact is not None and workers[0] <= exact <= workers[-1] else []
    optimum = "more would always be faster" if exact is None else f"a step is shortest with exactly {exact:.2f}"
    return Section(
        title=title,
        takeaway=f"The best of these numbers of workers is {best}: {by_workers[best]:.4g} steps/s, {by_workers[best] / one:.2f} times "
        f"those of one; {optimum}.",
        figure=Figure([Lines("workers", "steps/s", [Series("steps/s", "predicted", workers, rates)], marks)]),
        table=Table(
            ("workers", "steps/s", "speed-up", "time", ""),
            [
                [w, f"{f:.4g}", f"{f / one:.2f}", seconds(times[w]) if times else "", "best" * (w == best)]
                for w, f in by_workers.items()
            ],
            {0, 1, 2, 3},
        ).without_empty_columns(),
    )

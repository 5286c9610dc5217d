"""The answer of `schedule`: policies compared, each job's end, the timeline, and what one node more or one job fewer changes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from chronograd.answer import IF_KNOWN, Answer, Column, Section, Table
from chronograd.figure import Figure
from chronograd.record import INTERVAL
from chronograd.schedule.events import Conditions, Stay, Timetable, simulate
from chronograd.schedule.fairness import finish_time_fairness, jain_index
from chronograd.schedule.jobs import Pool, ScheduledJob
from chronograd.schedule.policies import Policy
from chronograd.schedule.timelines import in_use, timeline
from chronograd.units import NOTHING_S, dollars, percent, seconds, signed, whole_percent
from chronograd.words import how_many

_MAX_ROWS = 40
FAIR = 1 + 1e-9  # a finish-time fairness up to here is fair; the rest is rounding


@dataclass(frozen=True)
class Likely:
    """The mean over draws, and their 80 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, draws: Sequence[float]) -> Likely:
        low, high = np.quantile(draws, INTERVAL)
        return cls(float(np.mean(draws)), float(low), float(high))


@dataclass(frozen=True)
class PolicyResult:
    """A policy on the workload: means over its jobs. `completion` is the time from arrival to end, `missed` counts deadlines.

    Attributes:
        worst_rho: largest finish-time fairness of a job; above 1, it would have ended sooner with its own part of the cluster.
        unfair: share of jobs with a finish-time fairness above 1. jain: Jain's index of 1/rho.
    """

    policy: str
    title: str
    completion_s: Likely
    completion_p50_s: Likely
    completion_p95_s: Likely
    waiting_s: Likely
    makespan_s: Likely
    utilization: Likely
    restarts: Likely
    missed: Likely
    worst_rho: Likely
    unfair: Likely
    jain: Likely
    cost_usd: Likely | None = field(default=None, metadata=IF_KNOWN)


@dataclass(frozen=True)
class JobResult:
    """A job under the first policy."""

    name: str
    arrival_s: float
    requested: int
    end_s: Likely
    waiting_s: Likely
    gpu_hours: Likely
    in_time: float | None = field(default=None, metadata=IF_KNOWN)


@dataclass(frozen=True)
class WhatIf:
    """The effect of another cluster or workload under the first policy: differences, draw by draw."""

    what: str
    completion_s: Likely
    makespan_s: Likely


@dataclass(frozen=True)
class RealTimes:
    """A job that ran, and its simulation: the time from arrival to end, and its stays.

    Attributes:
        error: simulated over measured, minus 1. restarts: of the real job.
    """

    name: str
    measured_s: float
    simulated_s: float
    error: float
    restarts: int
    measured: list[Stay]
    simulated: list[Stay]


@dataclass(frozen=True)
class SchedulePlan:
    """The result of `schedule`; the first policy is the one that the user named first."""

    gpus: int
    device: str
    jobs: list[JobResult]
    policies: list[PolicyResult]
    changes: list[WhatIf]
    draws: int
    real: list[RealTimes] | None = field(default=None, metadata=IF_KNOWN)


def schedule_answer(
    jobs: Sequence[ScheduledJob],
    pool: Pool,
    policies: Sequence[Policy],
    conditions: Conditions,
    *,
    draws: int = 20,
    seed: int = 0,
    assumed: Sequence[str] = (),
) -> Answer[SchedulePlan]:
    """Return the answer for a workload.

    Args:
        draws: simulations of each policy, with the same true work and speed of each job for all policies.
        assumed: sentences on jobs and speeds.
    Raises: InputError, as `simulate`.
    """

    def drawn(on: Pool, own: Sequence[ScheduledJob], policy: Policy) -> list[Timetable]:
        return [simulate(own, on, policy, conditions, np.random.default_rng([seed, n])) for n in range(draws)]

    schedules = {policy.name: drawn(pool, jobs, policy) for policy in policies}
    first = policies[0]
    result = SchedulePlan(
        pool.gpus,
        pool.title,
        _job_results(schedules[first.name]),
        [_policy_result(policy, schedules[policy.name], pool) for policy in policies],
        _changes(jobs, pool, schedules[first.name], lambda on, own: drawn(on, own, first)),
        draws,
    )
    expected = simulate(jobs, pool, first, conditions)
    sections = [
        _policies_section(result, schedules, [_assumptions(conditions, draws), *assumed]),
        _jobs_section(result, first, expected, pool),
        _changes_section(result, first),
    ]
    return Answer(
        f"{how_many(len(jobs), 'jobs')} on {pool.gpus} × {pool.title}",
        sections=sections,
        result=result,
        notes=["Not included: evaluation and checkpoints, the time to load data to another node, and other users."],
    )


def with_real(
    answer: Answer[SchedulePlan], real: Timetable, pool: Pool, policy: Policy, conditions: Conditions
) -> Answer[SchedulePlan]:
    """Return the answer of a workload that really ran under a policy, with the times of its jobs next to the simulated ones."""
    simulated = simulate(real.jobs, pool, policy, conditions)
    errors = simulated.completion_s / real.completion_s - 1
    rows = [
        RealTimes(
            job.name,
            float(real.completion_s[i]),
            float(simulated.completion_s[i]),
            float(errors[i]),
            int(real.restarts[i]),
            *([stay for stay in one.stays if stay.index == i] for one in (real, simulated)),
        )
        for i, job in enumerate(real.jobs)
    ]
    section = Section(
        title=f"Run under {policy.name}",
        takeaway=f"{how_many(len(rows), 'jobs')} ended {seconds(float(real.completion_s.mean()))} after their arrival on average, simulated "
        f"{seconds(float(simulated.completion_s.mean()))}. Simulated times are {percent(float(np.abs(errors).mean()))} off on average "
        f"(bias {percent(float(errors.mean()))}).",
        figure=Figure([timeline(real, "measured"), timeline(simulated)]),
        caption="First the run, then its simulation.",
        table=Table.of(
            rows,
            (
                Column("job", "name"),
                Column("measured", "measured_s", "s"),
                Column("simulated", "simulated_s", "s"),
                Column("error", lambda row: signed(f"{100 * row.error:+.0f} %"), format=str),
                Column("restarts", "restarts", format="d"),
            ),
        ),
    )
    result = replace(answer.result, real=rows)
    return replace(answer, sections=[section, *answer.sections], result=result, data=None)


def _assumptions(conditions: Conditions, draws: int) -> str:
    start = f" A job needs {seconds(conditions.start_s)} to start." if conditions.start_s else ""
    regular = (
        f" Policies with rounds or regular decisions have one every {seconds(conditions.interval_s)}."
        if conditions.interval_s
        else ""
    )
    return (
        f"Assumed: a resize pauses a job for {seconds(conditions.resize_s)} and keeps its batch, except under Pollux.{start} Intervals are those of "
        f"{how_many(draws, 'draws')} of work and speed from their predictions.{regular}"
    )


# -- results ---------------------------------------------------------------------------------------


def _policy_result(policy: Policy, schedules: Sequence[Timetable], pool: Pool) -> PolicyResult:
    def over(value: Callable[[Timetable], float]) -> Likely:
        return Likely.of([value(one) for one in schedules])

    price = None if pool.usd_per_hour is None else pool.usd_per_hour / 3600
    rhos = [finish_time_fairness(schedule, pool.gpus) for schedule in schedules]
    return PolicyResult(
        policy.name,
        policy.title,
        over(lambda s: float(s.completion_s.mean())),
        over(lambda s: float(np.median(s.completion_s))),
        over(lambda s: float(np.quantile(s.completion_s, 0.95))),
        over(lambda s: float(s.waiting_s.mean())),
        over(lambda s: s.makespan_s),
        over(lambda s: s.utilization),
        over(lambda s: float(s.restarts.sum())),
        over(lambda s: float(s.missed)),
        Likely.of([float(rho.max()) for rho in rhos]),
        Likely.of([float((rho > FAIR).mean()) for rho in rhos]),
        Likely.of([jain_index(1 / rho) for rho in rhos]),
        None if price is None else over(lambda s: price * s.capacity_s),
    )


def _job_results(schedules: Sequence[Timetable]) -> list[JobResult]:
    found = []
    for i, job in enumerate(schedules[0].jobs):
        ends = [float(s.ended_s[i]) for s in schedules]
        found.append(
            JobResult(
                job.name,
                job.arrival_s,
                job.requested.workers,
                Likely.of(ends),
                Likely.of([float(s.waiting_s[i]) for s in schedules]),
                Likely.of([float(s.gpu_s[i]) / 3600 for s in schedules]),
                None if job.deadline_s is None else float(np.mean(np.array(ends) <= job.deadline_s)),
            )
        )
    return found


def _changes(
    jobs: Sequence[ScheduledJob],
    pool: Pool,
    now: Sequence[Timetable],
    drawn: Callable[[Pool, Sequence[ScheduledJob]], list[Timetable]],
) -> list[WhatIf]:
    """Return the effect of one more node, and of the jobs without the one that holds the cluster longest."""
    node = pool.gpus_per_node
    more = drawn(replace(pool, gpus=pool.gpus + node), jobs)
    found = [_change(f"{how_many(node, 'GPUs')} more", now, more, list(range(len(jobs))))]
    if len(jobs) > 1:
        largest = int(np.argmax(np.mean([s.gpu_s for s in now], axis=0)))
        rest = [i for i in range(len(jobs)) if i != largest]
        # Without draws for this job, the others would get other numbers: it stays, with almost no work.
        tiny = replace(jobs[largest], work=max(1e-6 * jobs[largest].work, sys.float_info.min))
        without = drawn(pool, [tiny if i == largest else job for i, job in enumerate(jobs)])
        found.append(_change(f"without {jobs[largest].name}", now, without, rest))
    return found


def _change(what: str, now: Sequence[Timetable], then: Sequence[Timetable], kept: Sequence[int]) -> WhatIf:
    pairs = list(zip(then, now, strict=True))
    return WhatIf(
        what,
        Likely.of([float((a.completion_s[kept] - b.completion_s[kept]).mean()) for a, b in pairs]),
        Likely.of([float(a.ended_s[kept].max() - b.ended_s[kept].max()) for a, b in pairs]),
    )


# -- sections --------------------------------------------------------------------------------------


def _policies_section(
    result: SchedulePlan, schedules: Mapping[str, Sequence[Timetable]], assumed: Sequence[str]
) -> Section:
    rows = result.policies
    columns = [
        Column("policy", "policy"),
        Column("completion", lambda r: _range(r.completion_s, seconds), format=str),
        Column("median", lambda r: r.completion_p50_s.value, "s"),
        Column("95 %", lambda r: r.completion_p95_s.value, "s"),
        Column("waiting", lambda r: r.waiting_s.value, "s"),
        Column("makespan", lambda r: _range(r.makespan_s, seconds), format=str),
        Column("in use", lambda r: whole_percent(r.utilization.value), format=str),
        Column("restarts", lambda r: r.restarts.value, format=".0f"),
        Column("worst rho", lambda r: r.worst_rho.value, format=".2f"),
        Column("unfair", lambda r: whole_percent(r.unfair.value), format=str),
        Column("Jain", lambda r: r.jain.value, format=".2f"),
        Column("late", lambda r: r.missed.value, format=".1f"),
        Column("cost", lambda r: r.cost_usd and dollars(r.cost_usd.value), format=str),
    ]
    if not any(job.in_time is not None for job in result.jobs):
        columns = [column for column in columns if column.name != "late"]
    return Section(
        title="Policies",
        takeaway=_verdict(rows, schedules),
        lines=assumed,
        table=Table.of(
            rows,
            columns,
            [
                "completion: mean time from arrival to end, with the 80 % interval",
                "in use: share of GPU time that jobs hold",
                "rho: finish-time fairness, the time from arrival to end over that on an n-th of the cluster for n jobs",
                "unfair: share of jobs with rho above 1; Jain: Jain's index of 1/rho",
            ],
            drop=["median", "restarts", "Jain", "95 %"],
        ).without_empty_columns(),
    )


def _verdict(rows: Sequence[PolicyResult], schedules: Mapping[str, Sequence[Timetable]]) -> str:
    """Return which policy ends jobs soonest on average, and whether the draws support that."""
    best = min(rows, key=lambda r: r.completion_s.value)
    means = {name: np.array([s.completion_s.mean() for s in own]) for name, own in schedules.items()}
    others = [r for r in rows if r is not best]
    if not others:
        return f"A job is done {_range(best.completion_s, seconds)} after its arrival on average."
    second = min(others, key=lambda r: r.completion_s.value)
    if not means[best.policy].all():
        return f"Under {best.policy} jobs end as they arrive: they need no time that a clock could show."
    ratio = means[second.policy] / means[best.policy]
    low, high = np.quantile(ratio, INTERVAL)
    start = f"{best.policy} ends jobs soonest, {seconds(best.completion_s.value)} after their arrival on average"
    if low <= 1:
        return f"{start}; that {second.policy} is slower is not certain ({low:.2f} to {high:.2f} times its time)."
    return f"{start}; {second.policy} takes {np.mean(ratio):.2f} times as long ({low:.2f} to {high:.2f})."


def _jobs_section(result: SchedulePlan, policy: Policy, expected: Timetable, pool: Pool) -> Section:
    last = max(result.jobs, key=lambda job: job.end_s.value)
    late = [job for job in result.jobs if job.in_time is not None and job.in_time < 0.5]
    more = f" {how_many(len(late), 'jobs')} will probably miss the deadline." if late else ""
    return Section(
        title=f"Jobs under {policy.name}: {policy.title}",
        takeaway=f"The last job, {last.name}, ends after {_range(last.end_s, seconds)}.{more}",
        figure=Figure([timeline(expected), in_use(expected, pool)]),
        caption="Expected schedule, without errors of predictions; a number is that of GPUs.",
        table=Table.of(
            result.jobs[:_MAX_ROWS],
            (
                Column("job", "name"),
                Column("arrives", "arrival_s", "s"),
                Column("requested", "requested", format="d"),
                Column("ends", lambda j: _range(j.end_s, seconds), format=str),
                Column("waits", lambda j: j.waiting_s.value, "s"),
                Column("GPU-hours", lambda j: j.gpu_hours.value, format=".3g"),
                Column("in time", lambda j: None if j.in_time is None else whole_percent(j.in_time), format=str),
            ),
            [f"and {len(result.jobs) - _MAX_ROWS} more: --json has all"] if len(result.jobs) > _MAX_ROWS else [],
            drop=["requested"],
        ).without_empty_columns(),
    )


def _changes_section(result: SchedulePlan, policy: Policy) -> Section:
    more = result.changes[0]
    return Section(
        title="What a change would bring",
        takeaway=f"With {more.what}, mean completion changes by {_signed(more.completion_s)} under {policy.name}.",
        table=Table.of(
            result.changes,
            (
                Column("change", "what"),
                Column("mean completion", lambda c: _signed(c.completion_s), format=str),
                Column("end of the last job", lambda c: _signed(c.makespan_s), format=str),
            ),
        ),
    )


def _range(value: Likely, form: Callable[[float], str]) -> str:
    if value.low == value.high:
        return form(value.value)
    return f"{form(value.value)} ({form(value.low)} … {form(value.high)})"


def _signed(value: Likely) -> str:
    def form(amount: float) -> str:
        return signed(f"{'-' if amount < 0 else '+'}{seconds(abs(amount))}") if abs(amount) >= NOTHING_S else "0 s"

    return _range(value, form)

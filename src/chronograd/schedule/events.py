"""A cluster's day, event by event: jobs arrive, get workers, are resized at a cost, fail, and end.

A policy sees predictions; the simulation follows the true work and speed. `draw` chooses them once for each job from the
intervals of its predictions. The speed of a job is known as soon as it has run. The predicted work approaches the true work in
proportion to the progress, because a forecast from half a run has half the error of one before it (our assumption).

A job is resized at a checkpoint: it stops for `resize_s`, and keeps what it has done. After a failure it returns to its last
checkpoint. Its workers are placed on as few nodes as the free GPUs allow, and stay there until its size changes. A job whose batch
changes while it runs goes on at the speed of its new batch without a pause.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np

from chronograd.errors import InputError
from chronograd.schedule.jobs import NOTHING, Allocation, JobState, Moment, Pool, ScheduledJob, Sizes
from chronograd.schedule.placement import FreeNodes, Place
from chronograd.schedule.policies import Policy
from chronograd.units import seconds
from chronograd.words import some

_ROUNDING = 1e-9  # of the work
_LEAST_LEFT = 0.01  # of the predicted work: what is predicted to be left of a job that has exceeded its prediction
# Events without an arrival or an end: nearly 4 years of decisions every 10 minutes. They take 3 to 8 seconds of simulation.
MAX_EVENTS = 200_000
# Decisions during the longest job, by default.
_USUAL_DECISIONS = 10_000
# A job that repeats the time between two checkpoints more often than this, on average, never ends.
MAX_REPEATS = 1000


@dataclass(frozen=True)
class Conditions:
    """The costs and risks of a cluster.

    Attributes:
        resize_s: pause when a job that has run gets another size.
        start_s: pause before a job's first step. interval_s: between decisions of policies that decide regularly;
            with 0 they decide at events.
        mtbf_s: mean time between failures of one GPU; infinite without failures. checkpoint_s: of running between checkpoints.
        slow_share: probability that a job is a straggler. slow_factor: of its speed.
        reclaim_s: mean time until a spot node is reclaimed; infinite without spot nodes. outage_s: until it is back.
    """

    resize_s: float = 30.0
    start_s: float = 0.0
    interval_s: float = 600.0
    mtbf_s: float = math.inf
    checkpoint_s: float = 600.0
    slow_share: float = 0.0
    slow_factor: float = 0.5
    reclaim_s: float = math.inf
    outage_s: float = 1800.0

    def __post_init__(self) -> None:
        for name in ("mtbf_s", "checkpoint_s", "reclaim_s", "slow_factor", "outage_s"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name):g}", "give a number above 0")
        if not (self.resize_s >= 0 and self.start_s >= 0 and self.interval_s >= 0 and 0 <= self.slow_share <= 1):
            raise InputError(
                f"a start of {self.start_s:g} s, a resize of {self.resize_s:g} s, an interval of {self.interval_s:g} s, {self.slow_share:g} of jobs slow",
                "give times of at least 0, and a share from 0 to 1",
            )


def usual_interval_s(jobs: Sequence[ScheduledJob], pause_s: float = Conditions.resize_s) -> float:
    """Return a tenth of the mean time of a job at its requested size, at most the ten minutes of Optimus.

    It is longer if the longest job would have more than _USUAL_DECISIONS. It is at least twice the pause of `pause_s` at a start:
    jobs that take turns would otherwise stop before they have worked.
    """
    times_s = [job.requested_s for job in jobs]
    least_s = max(max(times_s) / _USUAL_DECISIONS, 2 * pause_s)
    return max(min(Conditions.interval_s, float(np.mean(times_s)) / 10), least_s)


@dataclass(frozen=True)
class Stay:
    """A job at one size for a while; `is_paused` while it restarts, `is_spread` on more nodes than necessary."""

    index: int
    start_s: float
    end_s: float
    size: Allocation
    is_paused: bool = False
    is_spread: bool = False


@dataclass(frozen=True, eq=False)
class Timetable:
    """The fate of each job, in the order of the jobs that were given.

    Attributes:
        ended_s: seconds. gpu_s: GPU-seconds that each job held. running_s: time with at least one GPU, pauses included.
        restarts, failures: of each job.
        capacity_s: GPU-seconds that the cluster had until the last job ended.
    """

    jobs: Sequence[ScheduledJob]
    ended_s: np.ndarray
    gpu_s: np.ndarray
    running_s: np.ndarray
    restarts: np.ndarray
    failures: np.ndarray
    capacity_s: float
    stays: list[Stay]

    @property
    def arrived_s(self) -> np.ndarray:
        return np.array([job.arrival_s for job in self.jobs])

    @property
    def completion_s(self) -> np.ndarray:
        """Return the time from arrival to end of each job."""
        return np.asarray(self.ended_s - self.arrived_s)

    @property
    def waiting_s(self) -> np.ndarray:
        """Return the time without a GPU of each job."""
        return np.asarray(self.completion_s - self.running_s)

    @property
    def makespan_s(self) -> float:
        return float(self.ended_s.max() - self.arrived_s.min())

    @property
    def utilization(self) -> float:
        """Return the share of GPU time that jobs hold; 0 if no time passed."""
        return float(self.gpu_s.sum() / self.capacity_s) if self.capacity_s else 0.0

    @property
    def missed(self) -> int:
        """Return the number of deadlines that were missed."""
        return sum(j.deadline_s is not None and e > j.deadline_s for j, e in zip(self.jobs, self.ended_s, strict=True))


@dataclass
class _Active(JobState):
    """A job with what only the simulation knows: its true work, and `rate` in samples per second at its present size.

    It has done `base` at `base_s`, from which it runs: after a start, a resize, a failure or another batch. It is paused until
    then. `place`: its workers by node, if placement matters.
    """

    work: float = 0.0
    true_pace: float = 1.0
    rate: float = 0.0
    done: float = 0.0
    base: float = 0.0
    base_s: float = 0.0
    since_s: float = 0.0
    fails_s: float = math.inf
    place: Place | None = None
    is_spread: bool = False

    @property
    def goal(self) -> float:
        """Return the work at which its phase ends: that of its next batch, or all."""
        if self.phase == len(self.job.phases):
            return self.work
        return self.job.phases[self.phase].start / self.job.work * self.work

    def ends_s(self, now: float) -> float:
        """Return when its phase ends."""
        return max(now, self.base_s) + (self.goal - self.done) / self.rate if self.rate > 0 else math.inf

    def is_done(self) -> bool:
        return self.done >= self.work * (1 - _ROUNDING)


def simulate(
    jobs: Sequence[ScheduledJob],
    pool: Pool,
    policy: Policy,
    conditions: Conditions | None = None,
    draw: np.random.Generator | None = None,
) -> Timetable:
    """Return the schedule of jobs under a policy.

    Args:
        draw: chooses the true work and speed of each job, failures and stragglers; None for the predicted values and no failure.
    Raises: InputError without a job, if one cannot fit, or if one never ends.
    """
    if not jobs:
        raise InputError("no job to schedule", "give one or more")
    conditions = conditions or Conditions()
    for job in jobs:
        pool.check(job.name, job.requested)
        pool.check(job.name, job.smallest)
        _check_ends(job, policy, conditions if draw is not None else replace(conditions, mtbf_s=math.inf))
    return _Simulation(jobs, pool, policy, conditions, draw).run()


def _check_ends(job: ScheduledJob, policy: Policy, conditions: Conditions) -> None:
    """Raise InputError for a job with too many decisions to simulate, or that fails before nearly every checkpoint."""
    needed_s = conditions.start_s + job.requested_s + conditions.resize_s
    if policy.decides != "events" and needed_s > MAX_EVENTS * conditions.interval_s > 0:
        raise InputError(
            f"{job.name} needs {seconds(needed_s)}, and {policy.name} decides every {conditions.interval_s:g} s",
            f"give a longer --interval: a simulation has at most {MAX_EVENTS:,} decisions",
        )
    part_s = min(conditions.checkpoint_s, job.work / job.fastest)
    if part_s / conditions.mtbf_s > math.log(MAX_REPEATS):
        raise InputError(
            f"{job.name} needs {seconds(part_s)} until a checkpoint, and a GPU fails every {seconds(conditions.mtbf_s)}",
            "give a longer time between failures (--mtbf)",
        )


class _Simulation:
    def __init__(
        self,
        jobs: Sequence[ScheduledJob],
        pool: Pool,
        policy: Policy,
        conditions: Conditions,
        draw: np.random.Generator | None,
    ) -> None:
        self.jobs, self.pool, self.policy, self.conditions, self.draw = jobs, pool, policy, conditions, draw
        count = len(jobs)
        self.ended_s, self.gpu_s, self.running_s = np.zeros(count), np.zeros(count), np.zeros(count)
        self.restarts, self.failures = np.zeros(count, int), np.zeros(count, int)
        self.factors = self._factors()
        self.now = min(job.arrival_s for job in jobs)
        self.capacity_s = 0.0
        self.active: dict[int, _Active] = {}
        self.stays: list[Stay] = []
        self.back_s: list[float] = []  # when each reclaimed node is back
        has_places = pool.gpus_per_node > 1 and any(job.spread for job in jobs)
        self.nodes = (
            FreeNodes(pool.gpus, pool.gpus_per_node, (job.most_workers for job in jobs)) if has_places else None
        )
        self.reclaim_s = self.now + self._wait(conditions.reclaim_s, pool.gpus // pool.gpus_per_node)

    def run(self) -> Timetable:
        coming = deque(sorted(range(len(self.jobs)), key=lambda i: self.jobs[i].arrival_s))
        regular = self.conditions.interval_s if self.policy.decides != "events" else 0.0
        at_events = self.policy.decides != "interval" or not regular
        first, events = self.now, 0
        tick = first if regular else math.inf
        while coming or self.active:
            arrival = self.jobs[coming[0]].arrival_s if coming else math.inf
            if regular and not self.active:  # nothing happens before the next arrival
                tick = max(tick, arrival + (first - arrival) % regular)
            then = min(arrival, tick, self._next())
            if math.isinf(then) or events > MAX_EVENTS:
                raise self._endless()
            self._advance(then)
            self._change_batches()
            has_changed = self._finish()
            self._fail()
            has_nodes = self._change_nodes()
            while coming and self.jobs[coming[0]].arrival_s <= self.now:
                self._arrive(coming.popleft())
                has_changed = True
            if self.now >= tick or has_nodes or (has_changed and at_events):
                self._decide()
            if self.now >= tick:
                tick = max(tick + regular, math.nextafter(self.now, math.inf))
            events = 0 if has_changed else events + 1
        held = (self.ended_s, self.gpu_s, self.running_s, self.restarts, self.failures)
        return Timetable(self.jobs, *held, self.capacity_s, self.stays)

    def _endless(self) -> InputError:
        """Return the error of a simulation in which no job ends any more."""
        names = some([one.job.name for one in self.active.values()]) or "the next job"
        return InputError(
            f"no end in sight for {names}: after {seconds(self.now)} there are only failures, reclaimed nodes and decisions",
            "give a longer --mtbf, --reclaim or --interval, or a shorter --resize",
        )

    # -- chance --

    def _factors(self) -> np.ndarray:
        """Return true over predicted work and speed, shape (num_jobs, 2)."""
        sigmas = np.array([(job.work_sigma, job.speed_sigma) for job in self.jobs])
        if self.draw is None:
            return np.ones_like(sigmas)
        factors = np.exp(self.draw.standard_normal(sigmas.shape) * sigmas)
        factors[self.draw.random(len(sigmas)) < self.conditions.slow_share, 1] *= self.conditions.slow_factor
        return np.asarray(factors)

    def _wait(self, mean_s: float, count: int) -> float:
        """Return the time until the first of `count` parts fails."""
        return (
            math.inf if self.draw is None or math.isinf(mean_s) or not count else self.draw.exponential(mean_s / count)
        )

    # -- time --

    def _next(self) -> float:
        """Return when the next job ends or fails, or a node goes or comes back."""
        own = (min(one.ends_s(self.now), one.fails_s) for one in self.active.values() if one.rate)
        return min(min(own, default=math.inf), self.reclaim_s, self.back_s[0] if self.back_s else math.inf)

    def _advance(self, then: float) -> None:
        passed = then - self.now
        self.capacity_s += passed * self._present().gpus if self._num_nodes() else 0.0
        for one in self.active.values():
            if one.size != NOTHING:
                gpus, _ = self.pool.places(one.size)
                one.attained += gpus * passed
                self.running_s[one.index] += passed
                if one.ends_s(self.now) <= then:  # also if its time left is shorter than the clock's resolution
                    one.done = one.goal
                else:
                    one.done += one.rate * max(0.0, then - max(self.now, one.base_s))
        self.now = then

    def _arrive(self, index: int) -> None:
        job, (work, pace) = self.jobs[index], self.factors[index]
        self.active[index] = _Active(index, job, job.work, work=job.work * work, true_pace=pace)

    def _change_batches(self) -> None:
        """Let jobs that have reached their next phase go on with another batch."""
        for one in self.active.values():
            while one.phase < len(one.job.phases) and one.done >= one.goal:
                one.phase += 1
                one.base, one.base_s = one.done, self.now
                one.rate = self._rate(one)

    def _finish(self) -> bool:
        ended = [one for one in self.active.values() if one.is_done()]
        for one in ended:
            self._close(one)
            self._leave(one)
            self.ended_s[one.index], self.gpu_s[one.index] = self.now, one.attained
            self.restarts[one.index] = one.restarts
            del self.active[one.index]
        return bool(ended)

    def _fail(self) -> None:
        """Return failed jobs to their last checkpoint."""
        for one in self.active.values():
            if one.fails_s <= self.now:
                ran = max(0.0, self.now - one.base_s)
                one.done = one.base + one.rate * (ran - ran % self.conditions.checkpoint_s)
                self.failures[one.index] += 1
                self._close(one)
                self._begin(one, self.conditions.resize_s)

    # -- the cluster --

    def _num_nodes(self) -> int:
        return self.pool.gpus // self.pool.gpus_per_node - len(self.back_s)

    def _present(self) -> Pool:
        """Return the cluster without reclaimed nodes."""
        return replace(self.pool, gpus=self.pool.gpus - len(self.back_s) * self.pool.gpus_per_node)

    def _change_nodes(self) -> bool:
        """Take a reclaimed node away, and bring back those whose outage is over; return whether anything changed."""
        is_reclaimed, away = self.reclaim_s <= self.now, len(self.back_s)
        while self.back_s and self.back_s[0] <= self.now:
            heappop(self.back_s)
        if not is_reclaimed and len(self.back_s) == away:
            return False
        if is_reclaimed:
            heappush(self.back_s, self.now + self.conditions.outage_s)
        if self.nodes is not None:
            self.nodes.lose(len(self.back_s))
        self.reclaim_s = self.now + self._wait(self.conditions.reclaim_s, self._num_nodes())
        return True

    def _decide(self) -> None:
        for one in self.active.values():
            one.pace = one.true_pace if one.started_s is not None else 1.0
            predicted = one.work * (one.job.work / one.work) ** (1 - one.done / one.work)
            one.left = max(predicted - one.done, _LEAST_LEFT * one.job.work)
        sizes = Sizes()
        if self.active and self._num_nodes():
            regular_s = self.conditions.interval_s if self.policy.decides != "events" else 0.0
            jobs = list(self.active.values())
            sizes = self.policy.allocate(Moment(jobs, self._present(), self.now, self.conditions.resize_s, regular_s))
        changed = [
            one for one in self.active.values() if sizes.get(one.index, NOTHING) != one.size or self._is_lost(one)
        ]
        for one in changed:
            self._close(one)
            self._leave(one)
            one.size = sizes.get(one.index, NOTHING)
        for one in sorted(changed, key=lambda one: -one.size.workers):
            if self.nodes is not None and one.size != NOTHING:
                one.place = self.nodes.take(one.size.workers)
                one.is_spread = self.nodes.is_spread(one.place)
            self._begin(one, self.conditions.start_s if one.started_s is None else self.conditions.resize_s)

    def _is_lost(self, one: _Active) -> bool:
        """Return whether a job has workers on a node that was reclaimed."""
        return self.nodes is not None and one.place is not None and self.nodes.is_lost(one.place)

    def _leave(self, one: _Active) -> None:
        """Free the GPUs of a job."""
        if self.nodes is not None and one.place is not None:
            self.nodes.give_back(one.place)
        one.place, one.is_spread = None, False

    def _rate(self, one: _Active) -> float:
        """Return the true samples per second of a job."""
        return one.true_pace * one.job.speed(one.size, self.policy.adapts_batch, one.phase, one.is_spread)

    def _begin(self, one: _Active, pause_s: float) -> None:
        """Let a job run at its present size after a pause."""
        one.base, one.base_s, one.since_s = one.done, self.now + pause_s, self.now
        one.rate = self._rate(one)
        if one.size != NOTHING:
            one.restarts += one.started_s is not None
            one.started_s = self.now if one.started_s is None else one.started_s
        one.fails_s = one.base_s + self._wait(self.conditions.mtbf_s, one.size.workers)

    def _close(self, one: _Active) -> None:
        """Note how a job spent the time at its present size."""
        if one.size == NOTHING:
            return
        ready = min(max(one.base_s, one.since_s), self.now)
        for start, end, is_paused in ((one.since_s, ready, True), (ready, self.now, False)):
            if end > start:
                self.stays.append(Stay(one.index, start, end, one.size, is_paused, one.is_spread))

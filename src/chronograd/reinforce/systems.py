"""The figures of a run of actors, replay and learners, from their reports: rates, ages, queues, idle shares, bottleneck.

Needs no torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from chronograd.record import AtWork
from chronograd.reinforce.balance import Components
from chronograd.units import percent

Bottleneck = Literal["environments", "acting", "learner", "replay", "link", "cores"]
# A part that is idle for less than this share counts as always busy, because handing over work takes some time.
BUSY_BELOW = 0.25
# With cores this busy, speeding up another part gains nothing.
CORES_BUSY = 0.93


# Rates of each role.
_OF_ROLES = {
    "actor": ("steps_per_s_of_actor", "parameter_age_s", "parameter_age_updates", "actor_idle"),
    "learner": ("batches_per_s", "bytes_per_update", "learner_idle"),
    "replay": ("added_per_s", "drawn_per_s", "priority_age_s", "blocks_waiting", "draws_of_top_tenth", "replay_idle"),
}


@dataclass
class Report:
    """The work of one part since its last report.

    Attributes:
        amount: steps of an actor, updates of a learner, calls of a shard.
        parts: seconds of each part of its work; `idle_s` is from the end of its last work to the start of this.
        lost: shards that did not answer.
        more: figures of this kind of part. `lines`: one for each gradient, where gradients are sent.
    """

    role: str
    number: int
    pid: int
    amount: int
    begin_s: float
    end_s: float
    cpu_s: float
    parts: dict[str, float]
    lost: tuple[int, ...] = ()
    episodes: list[tuple[float, int]] = field(default_factory=list)
    more: dict[str, float] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Part:
    """One actor, shard or learner over the whole run: sums, and means weighted by its reports."""

    role: str
    number: int
    amount: int = 0
    cpu_s: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    means: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    begin_s: float = float("inf")
    end_s: float = 0.0

    def add(self, report: Report, paused_s: float = 0.0) -> None:
        """Add a report. Subtract `paused_s`, the seconds that the whole run was paused, from its idle time."""
        self.amount += report.amount
        self.cpu_s += report.cpu_s
        for name, value in report.parts.items():
            self.seconds[name] += max(0.0, value - paused_s) if name == "idle_s" else value
        for name, value in report.more.items():
            self.means[name].append(value)
        self.begin_s, self.end_s = min(self.begin_s, report.begin_s), max(self.end_s, report.end_s)

    @property
    def wall_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def idle(self) -> float:
        """Return the share of its time without work."""
        return self.seconds["idle_s"] / self.wall_s if self.wall_s else 0.0

    def share(self, *names: str) -> float:
        return sum(self.seconds[name] for name in names) / self.wall_s if self.wall_s else 0.0

    def mean(self, name: str) -> float:
        values = self.means.get(name, [])
        return sum(values) / len(values) if values else 0.0

    def total(self, name: str) -> float:
        return sum(self.means.get(name, []))


@dataclass(frozen=True)
class Verdict:
    """The bottleneck of a run, and the figures that show it."""

    bottleneck: Bottleneck
    evidence: tuple[str, ...]


class SystemsView:
    """The sum of a run's reports. Its figures exclude times in which the whole run was paused, as for an evaluation."""

    def __init__(self, cores: int, batch: int) -> None:
        self.cores, self.batch = cores, batch
        self.parts: dict[tuple[str, int], Part] = {}
        self.spans: list[dict[str, Any]] = []
        self.lines: list[dict[str, Any]] = []  # of gradients, for runs that send them
        # Times and updates of the learner; times and versions of the actors' parameters.
        self._updates: list[tuple[float, float]] = []
        self._versions: list[tuple[float, float]] = []
        self._pauses: list[tuple[float, float]] = []
        self.others_cpu_s = 0.0  # of the processes outside all parts: the driver and the transport of messages

    def pause(self, begin_s: float, end_s: float) -> None:
        """Record a pause of the run. Call it before adding reports of later work."""
        self._pauses.append((begin_s, end_s))

    def _paused_s(self, begin_s: float, end_s: float) -> float:
        return sum(max(0.0, min(end, end_s) - max(begin, begin_s)) for begin, end in self._pauses)

    def add(self, reports: Iterable[Report]) -> None:
        for report in reports:
            part = self.parts.setdefault((report.role, report.number), Part(report.role, report.number))
            # A shard is idle within the time of its report, other parts before it.
            idle_s = 0.0 if report.role == "replay" else report.parts.get("idle_s", 0.0)
            part.add(report, self._paused_s(report.begin_s - idle_s, report.end_s))
            if report.role == "learner":
                self._updates.append((report.end_s, report.more["updates"]))
            elif report.role == "actor":
                self._versions.append((report.end_s, report.more["version"]))
            self.lines += report.lines
            if report.role != "replay":
                self.spans.append(
                    {"role": report.role, "number": report.number, "start": report.begin_s, "end": report.end_s}
                )

    def of(self, role: str) -> list[Part]:
        return [part for (name, _), part in sorted(self.parts.items()) if name == role]

    @property
    def seconds(self) -> float:
        """Return the seconds from the first start to the last end of work, without pauses."""
        parts = [part for part in self.parts.values() if part.role != "replay"]
        if not parts:
            return 0.0
        begin_s, end_s = min(p.begin_s for p in parts), max(p.end_s for p in parts)
        return end_s - begin_s - self._paused_s(begin_s, end_s)

    def rates(self) -> dict[str, float]:
        """Return the rates between parts per second, ages, and shares of time of the whole run; 0 for missing parts."""
        actors, learners, shards = self.of("actor"), self.of("learner"), self.of("replay")
        seconds = max(self.seconds, 1e-9)  # an attempt may have nothing left to do
        added, drawn = (sum(shard.total(name) for shard in shards) for name in ("added", "drawn"))
        calls = max(1, sum(actor.amount for actor in actors))
        waited = sum(shard.total("waited_s") for shard in shards)
        acted = sum(actor.amount for actor in actors) + sum(learner.total("steps") for learner in learners)
        return {
            "steps_per_s": acted / seconds,
            "steps_per_s_of_actor": calls / seconds / max(1, len(actors)),
            "added_per_s": added / seconds,
            "drawn_per_s": drawn / seconds,
            "batches_per_s": sum(learner.amount for learner in learners) / seconds,
            "parameter_age_s": _mean([actor.mean("age_s") for actor in actors]),
            "parameter_age_updates": self._parameter_age(),
            "priority_age_s": _mean([learner.mean("priority_age_s") for learner in learners]),
            "blocks_waiting": waited / seconds,  # Little's law: items waiting = arrival rate · waiting time
            "bytes_per_update": sum(part.total("bytes") for part in self.parts.values())
            / max(1, sum(learner.amount for learner in learners)),
            "draws_of_top_tenth": _mean([shard.mean("top_tenth") for shard in shards]),
            "actor_idle": _mean([actor.idle for actor in actors]),
            "learner_idle": _mean([learner.idle + learner.share("sample_s") for learner in learners]),
            "replay_idle": _mean([shard.idle for shard in shards]),
            "cores_busy": (sum(part.cpu_s for part in self.parts.values()) + self.others_cpu_s)
            / (self.cores * seconds),
        }

    def rates_of_its_parts(self) -> dict[str, float]:
        """Return the rates without those of missing roles. Bundles, which alternate between acting and learning, are learners."""
        lacking = {name for role, names in _OF_ROLES.items() if not self.of(role) for name in names}
        return {name: value for name, value in self.rates().items() if name not in lacking}

    def _parameter_age(self) -> float:
        """Return the mean updates by which the learner was ahead of actors, interpolated between its reports."""
        if not self._updates or not self._versions:
            return 0.0
        learned, had = np.array(sorted(self._updates)), np.array(self._versions)
        within = had[(had[:, 0] >= learned[0, 0]) & (had[:, 0] <= learned[-1, 0])]
        if not len(within):
            within = had[-1:]
        ages = np.interp(within[:, 0], learned[:, 0], learned[:, 1]) - within[:, 1]
        return float(np.maximum(ages, 0.0).mean())

    def components(self) -> Components:
        """Return the core time and wall time of each part per unit, as input of `balance`. Needs actors and learners."""
        actors, learners, shards = self.of("actor"), self.of("learner"), self.of("replay")
        steps, updates = (max(1, sum(part.amount for part in parts)) for parts in (actors, learners))
        added = max(1.0, sum(shard.total("added") for shard in shards))
        return Components(
            actor_s=sum(part.wall_s - part.seconds["idle_s"] for part in actors) / steps,
            actor_cpu_s=sum(part.cpu_s for part in actors) / steps,
            learner_s=sum(part.wall_s - part.seconds["idle_s"] for part in learners) / updates,
            learner_cpu_s=sum(part.cpu_s for part in learners) / updates,
            add_s=sum(shard.seconds["add_s"] for shard in shards) / added,
            draw_s=sum(shard.seconds["draw_s"] + shard.seconds["update_s"] for shard in shards) / updates,
            overhead_cpu_s=max(0.0, self.others_cpu_s) / updates,
        )

    def verdict(self) -> Verdict:
        """Return the bottleneck: the part that works while the others wait for it. For actors, name their longest activity."""
        rates = self.rates()
        actors, learners, shards = self.of("actor"), self.of("learner"), self.of("replay")
        replay_busy = max((1 - shard.idle for shard in shards), default=0.0)
        sending = _mean([actor.share("send_s") for actor in actors])
        sampling = _mean([learner.share("sample_s") for learner in learners])
        evidence = (
            f"idle: actors {percent(rates['actor_idle'], 0)}, learner {percent(rates['learner_idle'], 0)}, "
            f"replay {percent(rates['replay_idle'], 0)}; cores {percent(rates['cores_busy'], 0)} busy",
            f"actors spend {percent(sending, 0)} sending; the learner {percent(sampling, 0)} waiting for minibatches",
        )
        if replay_busy > 1 - BUSY_BELOW:
            return Verdict(
                "replay", (f"a shard of the replay is busy {percent(replay_busy, 0)} of the time", *evidence)
            )
        if max(sending, sampling) > 0.5:
            reason = "messages wait in transit although the replay is not busy"
            return Verdict("link", (reason, *evidence))
        learner_busy = 1 - rates["learner_idle"]
        actors_busy = 1 - rates["actor_idle"]
        if rates["cores_busy"] > CORES_BUSY:
            return Verdict("cores", (f"all {self.cores} cores are busy; parts wait for them", *evidence))
        if learner_busy > actors_busy:
            return Verdict("learner", (f"the learner works {percent(learner_busy, 0)} of the time", *evidence))
        stepping = _mean([actor.share("environment_s") for actor in actors])
        choosing = _mean([actor.share("act_s") for actor in actors])
        reason = f"actors work {percent(actors_busy, 0)} of the time: {percent(stepping, 0)} in environments, {percent(choosing, 0)} choosing actions"
        return Verdict("environments" if stepping >= choosing else "acting", (reason, *evidence))

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per part for a record: amount, seconds by part, idle share."""
        return [
            {
                "role": part.role,
                "number": part.number,
                "amount": part.amount,
                "per_s": part.amount / self.seconds if self.seconds else 0.0,
                "idle": part.idle,
                "cpu_s": part.cpu_s,
                "seconds": dict(part.seconds),
            }
            for _, part in sorted(self.parts.items())
        ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def timeline(spans: Sequence[Mapping[str, Any]], until_s: float) -> list[AtWork]:
    """Return the activity that starts before `until_s`, with times since the first start."""
    begin = min((span["start"] for span in spans), default=0.0)
    return [
        AtWork(
            role=span["role"],
            number=span["number"],
            start=span["start"] - begin,
            end=min(span["end"] - begin, until_s),
        )
        for span in spans
        if span["start"] - begin < until_s
    ]

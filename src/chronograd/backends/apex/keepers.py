"""The mailbox and the replay between actors and learners, and the reports of all parts. Without torch, which takes long
to import.

Times are seconds on the clock of the machine, which all of its processes share.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chronograd.job import Job
from chronograd.reinforce import environments
from chronograd.reinforce.replay import ProportionalReplay, Transitions
from chronograd.reinforce.replay.transitions import Array, Indices
from chronograd.reinforce.systems import Report


@dataclass(frozen=True)
class ApexLayout:
    """The distribution of the work.

    Attributes:
        environments: of each actor; its network handles all of them at once.
        block: transitions that an actor sends at a time.
        refresh_every: steps of an actor between two reads of the mailbox.
        publish_every: updates of the learner.
        prefetch: minibatches that the learner requests ahead.
        is_paced: whether actors and learner wait for each other, with one update for every `update_every` steps.
    """

    num_actors: int = 2
    learners: int = 1
    environments: int = 1
    block: int = 50
    refresh_every: int = 100
    shards: int = 1
    publish_every: int = 10
    prefetch: int = 2
    is_paced: bool = True


class Stopwatch:
    """A stopwatch for each part of a piece of work, from one `lap` to the next."""

    def __init__(self) -> None:
        self.began = self._at = self._ended = time.monotonic()
        self._cpu = time.process_time()
        self.parts: dict[str, float] = {}

    def begin(self) -> None:
        """Begin a piece of work; the time before was idle."""
        self.parts = {}
        self.began = self._at = time.monotonic()
        self.parts["idle_s"] = self.began - self._ended

    def lap(self, part: str) -> None:
        now = time.monotonic()
        self.parts[part] = self.parts.get(part, 0.0) + now - self._at
        self._at = now

    def report(self, role: str, number: int, amount: int, **more: Any) -> Report:
        self._ended = time.monotonic()
        cpu, self._cpu = self._cpu, time.process_time()
        return Report(
            role, number, os.getpid(), amount, self.began, self._ended, self._cpu - cpu, self.parts, **more
        )  # fmt: skip


class Mailbox:
    """The newest parameters."""

    def __init__(self) -> None:
        self._version, self._published_s = -1, 0.0
        self._values: dict[str, Array] = {}

    def put(self, version: int, values: dict[str, Array]) -> None:
        self._version, self._values, self._published_s = version, values, time.monotonic()

    def get(self, known: int) -> tuple[int, float, dict[str, Array]] | None:
        """Return version, time of arrival, and parameters by name; None if the version is the known one."""
        return None if self._version == known else (self._version, self._published_s, self._values)


@dataclass
class Drawn:
    """Transitions drawn from a shard. `within`: probability of each in the shard. `age_s`: time since its priority was set."""

    transitions: Transitions
    places: Indices
    within: Array
    total: float
    age_s: float


class ReplayShard:
    """One part of the replay, with priorities."""

    def __init__(self, number: int, job: Job, layout: ApexLayout, path: Sequence[str] = ()) -> None:
        sys.path += [folder for folder in path if folder not in sys.path]
        settings = job.reinforcement
        assert settings is not None
        capacity = -(-settings.replay_size // layout.shards)
        self.number = number
        self.replay = ProportionalReplay(
            capacity,
            0.0 if settings.replay == "uniform" else settings.priority_exponent,
            slack=capacity // 10 + layout.block * layout.num_actors,
            stores_frames_once=environments.space_of(job).dtype == np.uint8,
        )
        self._set_at = np.zeros(self.replay.num_places)
        self._watch = Stopwatch()
        self._watch.begin()
        self._restart()

    def _restart(self) -> None:
        self._calls = self._added = self._drawn = 0
        self._waited_s = self._age_s = 0.0

    def add(self, transitions: Transitions, priorities: Array, sent_s: float) -> int:
        """Store transitions. Return the number in the shard."""
        self._begin()
        self._waited_s += time.monotonic() - sent_s
        places = (self.replay.next_place + np.arange(len(transitions))) % self.replay.num_places
        self.replay.add(transitions, priorities)
        self._set_at[places] = time.monotonic()
        self._added += len(transitions)
        self._watch.lap("add_s")
        return len(self.replay)

    def draw(self, shares: Array) -> Drawn | None:
        """Draw at shares of this shard's sum; None if it is empty."""
        self._begin()
        if not len(self.replay):
            return None
        places, within = self.replay.draw(shares)
        age_s = time.monotonic() - float(self._set_at[places].mean())
        self._age_s += age_s * len(places)
        self._drawn += len(places)
        drawn = Drawn(self.replay.read(places), places, within, self.replay.total, age_s)
        self._watch.lap("draw_s")
        return drawn

    def update(self, places: Indices, priorities: Array) -> None:
        self._begin()
        self.replay.update(places, priorities)
        self._set_at[places] = time.monotonic()
        self._watch.lap("update_s")

    def trim(self) -> int:
        self._begin()
        dropped = self.replay.trim()
        self._watch.lap("trim_s")
        return dropped

    def total(self) -> float:
        return self.replay.total if len(self.replay) else 0.0

    def report(self) -> Report:
        """Return the work since the last report. `waited_s`: of blocks, from sending to their start here; `age_s`: of
        drawn priorities.

        `top_tenth`: share of draws that fall on the tenth of transitions with the highest priorities.
        """
        self._begin()
        more = {
            "size": float(len(self.replay)),
            "capacity": float(self.replay.capacity),
            "added": float(self._added),
            "drawn": float(self._drawn),
            "waited_s": self._waited_s,
            "age_s": self._age_s / self._drawn if self._drawn else 0.0,
            "top_tenth": self.replay.share_of_highest(0.1),
        }
        told = self._watch.report("replay", self.number, self._calls, more=more)
        self._watch.begin()
        self._watch.parts.clear()
        self._restart()
        return told

    def _begin(self) -> None:
        self._calls += 1
        self._watch.lap("idle_s")

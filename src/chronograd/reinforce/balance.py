"""The balance of actors, replay and learner: the part that limits the others, and the number of actors that is enough.

Each part has a maximum rate; the whole system runs at the lowest of these, in minibatches per second:

    actors    N · q / (B · a)                 a: seconds of an actor per transition; q: draws of a transition; B: minibatch
    learner   L / l                           l: seconds of a learner per minibatch
    replay    S / (r_out + B / q · r_in)      r: seconds of a shard per minibatch drawn, and per transition added
    cores     C / (k_l + r_out + B / q · (k_a + r_in))    k: busy core seconds within a and l
    link      b / (bytes per minibatch + B / q · bytes per transition)

Every other part waits for the slowest: its idle share is 1 minus the lowest rate over its own rate. Without pacing, q follows
from the rates: actors and learner each run at their own rate, on the cores that the other leaves free.

Not modelled: queues between parts with varying times, which cost most where two rates are close; caches shared by parts. Needs
no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from chronograd.errors import InputError

MAX_ACTORS = 10_000  # of a job


@dataclass(frozen=True)
class Components:
    """Seconds that each part needs per unit of work, measured or given.

    Attributes:
        actor_s: seconds of one actor per transition, including its share of environments, network and sending.
            `actor_cpu_s`: the part of it on a core.
        learner_s: seconds of one learner per minibatch, including its wait for a prefetched one. `learner_cpu_s`: on a core.
        add_s, draw_s: seconds of a shard per added transition, and per drawn minibatch including its new priorities.
        overhead_cpu_s: core seconds of everything else per minibatch: the driver and the transport of messages.
        transition_bytes, batch_bytes: bytes sent to replay per transition, and to the learner per minibatch.
    """

    actor_s: float
    learner_s: float
    add_s: float = 0.0
    draw_s: float = 0.0
    actor_cpu_s: float | None = None
    learner_cpu_s: float | None = None
    overhead_cpu_s: float = 0.0
    transition_bytes: float = 0.0
    batch_bytes: float = 0.0

    def __post_init__(self) -> None:
        if not (self.actor_s > 0 and self.learner_s > 0 and self.add_s >= 0 and self.draw_s >= 0):
            raise InputError(
                f"an actor takes {self.actor_s} s, a learner {self.learner_s} s", "give times above 0, in seconds"
            )


@dataclass(frozen=True)
class BalanceSetting:
    """Numbers of actors, learners and shards, and the resources that they share.

    Attributes:
        batch: transitions per minibatch. `draws`: average draws of a transition while it is in replay.
        cores: of the machine that all parts share; None if each part has its own.
        bytes_per_s: of the link to and from replay; None for a link without limit.
    """

    batch: int
    draws: float
    num_actors: int = 1
    learners: int = 1
    shards: int = 1
    cores: int | None = None
    bytes_per_s: float | None = None


@dataclass(frozen=True)
class Balance:
    """The result of `balance`. `rates`: maximum minibatches per second of each part."""

    setting: BalanceSetting
    rates: Mapping[str, float]

    @property
    def bottleneck(self) -> str:
        return min(self.rates, key=lambda part: self.rates[part])

    @property
    def batches_per_s(self) -> float:
        return min(self.rates.values())

    def idle(self, part: str) -> float:
        """Return the share of time in which a part is idle."""
        return 1 - self.batches_per_s / self.rates[part]


def balance(parts: Components, setting: BalanceSetting) -> Balance:
    """Return the maximum rates of all parts of a paced run.

    >>> parts = Components(actor_s=4 / 139, learner_s=1 / 19)  # the 360 actors of Ape-X, 4 frames a transition
    >>> round(balance(parts, BalanceSetting(batch=512, draws=1.0, num_actors=360)).rates["actors"], 2)
    24.43
    """
    if min(setting.batch, setting.num_actors, setting.learners, setting.shards) < 1 or not setting.draws > 0:
        raise InputError(f"{setting} has a value below its minimum", "give 1 or more of each, and draws above 0")
    new = setting.batch / setting.draws  # new transitions per minibatch
    rates = {
        "actors": setting.num_actors / (new * parts.actor_s),
        "learner": setting.learners / parts.learner_s,
        "replay": _per_s(setting.shards, parts.draw_s + new * parts.add_s),
    }
    if setting.cores is not None:
        actor = parts.actor_s if parts.actor_cpu_s is None else parts.actor_cpu_s
        learner = parts.learner_s if parts.learner_cpu_s is None else parts.learner_cpu_s
        busy = learner + parts.draw_s + new * (actor + parts.add_s) + parts.overhead_cpu_s
        rates["cores"] = _per_s(setting.cores, busy)
    if setting.bytes_per_s is not None:
        rates["link"] = _per_s(setting.bytes_per_s, parts.batch_bytes + new * parts.transition_bytes)
    return Balance(setting, rates)


def _per_s(amount: float, each: float) -> float:
    return amount / each if each > 0 else math.inf


def enough_actors(parts: Components, setting: BalanceSetting) -> int:
    """Return the smallest number of actors that do not limit the run, at most MAX_ACTORS. More actors would only wait."""
    one = balance(parts, replace(setting, num_actors=1))
    others = min(rate for part, rate in one.rates.items() if part != "actors")
    return max(1, min(MAX_ACTORS, math.ceil(others / one.rates["actors"] - 1e-9)))


def gain(parts: Components, setting: BalanceSetting) -> float:
    """Return the relative gain in minibatches per second from one more learner."""
    more = replace(setting, learners=setting.learners + 1)
    return balance(parts, more).batches_per_s / balance(parts, setting).batches_per_s - 1

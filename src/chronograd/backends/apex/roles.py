"""The parts of Ape-X: Horgan et al., Distributed prioritized experience replay, arXiv 1803.00933.

Actors act, each with its own ε, and compute the first priority of their transitions. Shards of the replay store them.
One learner draws minibatches, learns, and sends back new priorities. It publishes its parameters in a mailbox, where
actors fetch them now and then. All run at once and wait only for data. These are plain classes;
chronograd.backends.apex.group makes Ray actors of them. Their messages are in chronograd.backends.apex.keepers.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chronograd.backends.apex.keepers import ApexLayout, Stopwatch
from chronograd.backends.ray_session import ray_module
from chronograd.errors import InputError
from chronograd.job import Job
from chronograd.reinforce import environments
from chronograd.reinforce.dqn import DQN
from chronograd.reinforce.replay import Minibatch, NStep, Transitions
from chronograd.reinforce.replay.prioritised import importance_weights, priorities_of, stratified
from chronograd.reinforce.replay.sharded import PLACE_BITS, split_shares
from chronograd.reinforce.replay.transitions import Array, Indices, joined
from chronograd.reinforce.systems import Report
from chronograd.train import checkpoint_folder
from chronograd.train.checkpoint_folder import Progress

# Blocks that an actor has sent and no shard has taken yet; with more, it waits.
MAX_UNDER_WAY = 2
# Updates between two cuts of the replay to its capacity.
TRIM_EVERY = 100
# A learner with an empty replay tries again after this time.
EMPTY_S = 0.05


class NothingToDraw(InputError):
    """All shards are empty or gone."""


class RemoteReplay:
    """The shards as one replay, for the learner. Minibatches are requested ahead.

    Attributes:
        lost: shards that did not answer; they get no call until `replace`. Minibatches come from the others.
    """

    def __init__(self, shards: Sequence[Any], batch: int, prefetch: int, beta: float, rng: np.random.Generator) -> None:
        self._shards = list(shards)
        self._totals = [0.0] * len(shards)
        self._under_way: deque[list[tuple[int, float, Any]]] = deque()
        self._batch, self._prefetch, self.beta, self._rng = batch, prefetch, beta, rng
        self.lost: set[int] = set()
        self.age_s = 0.0

    def __len__(self) -> int:
        raise NotImplementedError("shards know how many they have")

    def replace(self, number: int, shard: Any) -> None:
        """Replace a lost shard. Requests to the old one are forgotten, because it will not answer."""
        self._shards[number], self._totals[number] = shard, 0.0
        self._under_way.clear()
        self.lost.discard(number)

    def add(self, transitions: Transitions, priorities: Array | None = None) -> None:
        raise NotImplementedError("actors add")

    def sample(self, batch: int, rng: np.random.Generator) -> Minibatch:
        """Return the minibatch that was requested first. Raises NothingToDraw if all shards are empty."""
        while True:
            while len(self._under_way) < self._prefetch:
                self._under_way.append(self._ask())
            sample = self._taken(self._under_way.popleft())
            if sample is not None:
                return sample

    def update(self, indices: Indices, priorities: Array) -> None:
        numbers = indices >> PLACE_BITS
        for number in np.unique(numbers).tolist():
            if number not in self.lost:
                own = numbers == number
                self._shards[number].update.remote(indices[own] & ((1 << PLACE_BITS) - 1), priorities[own])

    def trim(self) -> int:
        """Let shards drop the oldest transitions beyond their capacity, and read their sizes. Return the number dropped."""
        calls = [(n, shard.trim.remote()) for n, shard in enumerate(self._shards) if n not in self.lost]
        dropped = sum(self._answer(number, call) or 0 for number, call in calls)
        self._look()
        return dropped

    def state(self) -> dict[str, Array]:
        """Return nothing: actors refill shards faster than a file of them is written."""
        return {"nothing": np.zeros(0)}

    def restore(self, state: dict[str, Array]) -> None:
        """Do nothing; see `state`."""

    def _ask(self) -> list[tuple[int, float, Any]]:
        shares = stratified(self._batch, self._rng)
        if not any(self._totals):
            self._look()
        if not any(self._totals):
            raise NothingToDraw("the replay is empty", "let actors fill it before the learner draws")
        parts = split_shares(self._totals, shares)
        return [(number, part, self._shards[number].draw.remote(own)) for number, own, part in parts]

    def _look(self) -> None:
        """Ask all shards for their sums."""
        calls = [(n, shard.total.remote()) for n, shard in enumerate(self._shards) if n not in self.lost]
        for number, call in calls:
            self._totals[number] = self._answer(number, call) or 0.0

    def _taken(self, asked: list[tuple[int, float, Any]]) -> Minibatch | None:
        """Return the minibatch; None if a part of it is lost."""
        drawn = [(number, part, self._answer(number, call)) for number, part, call in asked]
        given = [(number, part, one) for number, part, one in drawn if one is not None]
        for number, _, one in given:
            self._totals[number] = one.total
        if len(given) < len(drawn):
            self._under_way.clear()
            self._totals = [0.0] * len(self._shards)
            return None
        self.age_s = float(np.average([one.age_s for *_, one in given], weights=[len(one.places) for *_, one in given]))
        probabilities = np.concatenate([part * one.within for _, part, one in given])
        indices = np.concatenate([one.places + (number << PLACE_BITS) for number, _, one in given])
        return Minibatch(
            joined([one.transitions for *_, one in given]), indices, importance_weights(probabilities, self.beta)
        )

    def _answer(self, number: int, call: Any) -> Any:
        """Return the answer of a shard; None if it is gone."""
        ray = ray_module()
        try:
            return ray.get(call)
        except ray.exceptions.RayActorError:
            self.lost.add(number)
            self._totals[number] = 0.0
            return None


class Actor:
    """An actor: it acts in its environments and sends transitions with priorities to its shard."""

    def __init__(
        self, number: int, job: Job, layout: ApexLayout, epsilon: float, shards: Sequence[Any], mailbox: Any,
        life: tuple[int, int],
        path: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Set up an actor.

        `life`: number of earlier actors with this number, and steps of the run before it was resumed. They keep random
        numbers from repeating.
        """
        sys.path += [folder for folder in path if folder not in sys.path]
        torch.set_num_threads(1)
        settings = job.reinforcement
        assert settings is not None
        self._number, self._layout, self._epsilon, self._mailbox = number, layout, epsilon, mailbox
        self._shard_number = number % len(shards)
        self._shard = shards[self._shard_number]
        self._is_lost = False
        self._clip = settings.clip_rewards
        self._environments = [environments.make(job) for _ in range(layout.environments)]
        self._agent = DQN(job, environments.space(self._environments[0]), None, torch.device("cpu"))
        self._agent.target = self._agent.network  # priorities use its own values
        self._rng = np.random.default_rng((job.training.seed, number, *life))
        self._seen = [environment.reset(seed=int(self._rng.integers(2**31)))[0] for environment in self._environments]
        self._steps = NStep(settings.n_step, settings.discount, layout.environments)
        self._waiting: list[Transitions] = []
        self._under_way: deque[Any] = deque()
        self._version, self._published_s, self._since_refresh = -1, time.monotonic(), layout.refresh_every
        self._bytes = 0  # sent and received since the last report
        self._returns, self._lengths = [0.0] * layout.environments, [0] * layout.environments
        self._watch = Stopwatch()

    def replace_shard(self, number: int, shard: Any) -> None:
        """Replace a lost shard."""
        if number == self._shard_number:
            self._shard, self._is_lost = shard, False
            self._under_way.clear()

    def work(self, num_steps: int) -> Report:
        """Make `num_steps` steps, summed over its environments and rounded up."""
        watch = self._watch
        watch.begin()
        episodes: list[tuple[float, int]] = []
        rounds = -(-num_steps // self._layout.environments)
        for _ in range(rounds):
            self._since_refresh += self._layout.environments
            if self._since_refresh >= self._layout.refresh_every:
                self._refresh()
                watch.lap("refresh_s")
            actions = self._choose()
            watch.lap("act_s")
            self._step(actions, episodes)
            watch.lap("environment_s")
            if sum(map(len, self._waiting)) >= self._layout.block:
                self._send()
        more = {
            "version": float(self._version), "age_s": time.monotonic() - self._published_s, "bytes": float(self._bytes),
        }  # fmt: skip
        self._bytes = 0
        lost = (self._shard_number,) if self._is_lost else ()
        return watch.report(
            "actor", self._number, rounds * self._layout.environments, lost=lost, episodes=episodes, more=more
        )  # fmt: skip

    def _refresh(self) -> None:
        """Fetch the newest parameters, if they are newer than its own."""
        ray = ray_module()
        news = ray.get(self._mailbox.get.remote(self._version))
        self._since_refresh = 0
        if news is not None:
            self._version, self._published_s, values = news
            self._bytes += sum(value.nbytes for value in values.values())
            self._agent.network.load_state_dict({name: torch.tensor(value) for name, value in values.items()})

    def _choose(self) -> Array:
        values = self._agent.values(np.stack(self._seen))
        at_random = self._rng.random(len(self._seen)) < self._epsilon
        return np.where(at_random, self._rng.integers(values.shape[1], size=len(values)), values.argmax(1))

    def _step(self, actions: Array, episodes: list[tuple[float, int]]) -> None:
        results = [
            environment.step(int(action)) for environment, action in zip(self._environments, actions, strict=True)
        ]
        following, rewards, terminated, truncated, _ = zip(*results, strict=True)
        learned = np.clip(rewards, -1, 1) if self._clip else np.array(rewards)
        complete = self._steps.step(
            np.stack(self._seen), actions, learned, np.stack(following), np.array(terminated), np.array(truncated)
        )
        if complete is not None:
            self._waiting.append(complete)
        self._seen = list(following)
        for i, environment in enumerate(self._environments):
            self._returns[i] += float(rewards[i])
            self._lengths[i] += 1
            if terminated[i] or truncated[i]:
                episodes.append((self._returns[i], self._lengths[i]))
                self._returns[i], self._lengths[i] = 0.0, 0
                self._seen[i], _ = environment.reset()

    def _send(self) -> None:
        """Send the waiting transitions with their priorities. They are dropped if their shard is gone."""
        transitions = joined(self._waiting)
        self._waiting.clear()
        priorities = self._priorities(transitions)
        self._watch.lap("priorities_s")
        while len(self._under_way) >= MAX_UNDER_WAY and not self._is_lost:
            self._confirm()
        self._bytes += transitions.nbytes + priorities.nbytes
        if not self._is_lost:
            self._under_way.append(self._hand_over(transitions, priorities))
        self._watch.lap("send_s")

    def _hand_over(self, transitions: Transitions, priorities: Array) -> Any:
        return self._shard.add.remote(transitions, priorities, time.monotonic())

    def _confirm(self) -> None:
        ray = ray_module()
        try:
            ray.get(self._under_way.popleft())
        except ray.exceptions.RayActorError:
            self._is_lost = True

    @torch.no_grad()
    def _priorities(self, transitions: Transitions) -> Array:
        """Return priorities by the actor's own, slightly old network, so that new data need no invented priority. A
        priority that is not finite becomes 1: then the learner has diverged, and its loss shows it.
        """
        sample = Minibatch.of(transitions)
        errors: Array = (self._agent.targets(sample) - self._agent.chosen(sample)).cpu().numpy()
        return np.where(np.isfinite(errors), priorities_of(errors), 1.0)


class ApexLearner:
    """The learner: it draws, learns, sends back priorities, and publishes its parameters."""

    def __init__(
        self, job: Job, layout: ApexLayout, shards: Sequence[Any], mailbox: Any, checkpoints: Path | None, device: str,
        threads: int, path: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Set up a learner. It continues from the newest of `checkpoints`, and writes new ones there."""
        sys.path += [folder for folder in path if folder not in sys.path]
        torch.set_num_threads(threads)
        settings = job.reinforcement
        assert settings is not None
        self._job, self._layout, self._mailbox, self._checkpoints = job, layout, mailbox, checkpoints
        newest, state, _ = checkpoint_folder.newest_sound(checkpoints)
        done = int(state["agent"]["updates"]) if newest is not None else 0
        self._rng = np.random.default_rng((job.training.seed, 2**20, done))  # does not repeat earlier draws
        self._beta = settings.importance_exponent, settings.importance_updates
        self._replay = RemoteReplay(shards, job.training.batch, layout.prefetch, self._beta[0], self._rng)
        self._agent = DQN(job, environments.space_of(job), self._replay, torch.device(device))
        if newest is not None:
            self._agent.restore(newest)
            self._agent.updates = done
        ray_module().get(self._publish())  # from now on the mailbox has parameters
        self._watch = Stopwatch()

    def describe(self) -> tuple[int, int, int]:
        """Return its process, its updates so far, and its parameters."""
        return os.getpid(), self._agent.updates, self._agent.num_params()

    def replace_shard(self, number: int, shard: Any) -> None:
        self._replay.replace(number, shard)

    def work(self, num_updates: int) -> Report:
        watch = self._watch
        watch.begin()
        losses, ages, num_bytes = [], [], 0
        for _ in range(num_updates):
            start, rise = self._beta
            self._replay.beta = start if rise is None else start + (1 - start) * min(1.0, self._agent.updates / rise)
            try:
                sample = self._replay.sample(self._job.training.batch, self._rng)
            except NothingToDraw:  # a new shard is being filled in the place of a lost one
                time.sleep(EMPTY_S)
                break
            finally:
                watch.lap("sample_s")
            losses.append(self._agent.update(sample))
            ages.append(self._replay.age_s)
            num_bytes += sample.transitions.nbytes
            watch.lap("learn_s")
            if self._agent.updates % TRIM_EVERY == 0:
                self._replay.trim()
            if self._agent.updates % self._layout.publish_every == 0:
                self._publish()
                watch.lap("publish_s")
        more = {"updates": float(self._agent.updates), "bytes": float(num_bytes)}
        if losses:
            more |= {"loss": float(torch.stack(losses).mean()), "priority_age_s": float(np.mean(ages))}
        return watch.report("learner", 0, len(losses), lost=tuple(sorted(self._replay.lost)), more=more)

    def save(self, progress: Progress) -> None:
        """Write a checkpoint if there is a folder for it."""
        if self._checkpoints is not None:
            state = {"seed": self._job.training.seed, "agent": {"updates": self._agent.updates}}
            checkpoint_folder.write(self._checkpoints, progress, self._agent.save(), state)

    def _publish(self) -> Any:
        values = {name: value.detach().cpu().numpy().copy() for name, value in self._agent.network.state_dict().items()}
        return self._mailbox.put.remote(self._agent.updates, values)

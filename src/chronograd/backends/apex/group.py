"""The actors, shards and learner of Ape-X as Ray actors: work for each, and replacement of those that died.

The driver sends work in small pieces, two to each part, so that no part waits for the driver. In paced mode there is
one update for every `reinforcement.update_every` steps. The learner gets updates after the steps they belong to, and
actors get steps unless they are too far ahead. The slower of the two then never waits.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch

from chronograd.backends.apex.keepers import ApexLayout, Mailbox, ReplayShard
from chronograd.backends.apex.roles import Actor, ApexLearner
from chronograd.backends.parameter_server.group import HANDED_OUT
from chronograd.backends.ray_session import ray_module, task_error
from chronograd.errors import RunError
from chronograd.job import Job
from chronograd.reinforce.agent import epsilon_ladder
from chronograd.reinforce.systems import Report
from chronograd.train import checkpoint_folder
from chronograd.train.checkpoint_folder import Progress

# Updates in one piece of the learner's work.
UPDATES_AT_A_TIME = 10
# In paced mode, actors may be this many pieces ahead of the learner, in pieces of the larger kind.
AHEAD = 6
# After this number of deaths of one part a run gives up, because something kills it every time.
MAX_DEATHS = 10


@dataclass(frozen=True)
class Roles:
    """Classes that become Ray actors."""

    actor: type[Actor] = Actor
    shard: type[ReplayShard] = ReplayShard
    learner: type[ApexLearner] = ApexLearner


@dataclass(frozen=True)
class Death:
    """The death of a part that was replaced. `lost`: its loss, in words."""

    role: str
    number: int
    time_s: float
    lost: str

    @property
    def text(self) -> str:
        name = {"replay": "replay shard"}.get(self.role, self.role)
        who = name if self.role == "learner" else f"{name} {self.number}"
        return f"{who} died and was replaced: {self.lost}"


@dataclass
class Ledger:
    """Work handed out and work done in the whole run. Steps are summed over all environments.

    `written_off`: updates that were due when all steps of an epoch were made, and for which no transition was left.
    """

    steps_handed: int = 0
    steps: int = 0
    updates_handed: int = 0
    updates: int = 0
    written_off: int = 0
    deaths: list[Death] = field(default_factory=list)


class ApexGroup:
    """All parts of a job. Use it within `ray_session`; as a context manager it ends them.

    Ape-X has one learner. Subclasses such as Gorila's change `_start` and `_hand_out`.

    Attributes:
        active: actors that get work, the first ones; at first all of them.
        steps_before: of the checkpoint from which the run continues; the ledger counts later steps.
        pids: known process of each part, by role and number.
    """

    def __init__(
        self, job: Job, layout: ApexLayout, checkpoints: Path | None = None, roles: Roles = Roles(), device: str = "cpu",
        threads: int = 1,
    ) -> None:  # fmt: skip
        assert job.reinforcement is not None
        ray = ray_module()
        self._job, self._layout, self._settings = job, layout, job.reinforcement
        self._checkpoints, self._device, self._threads = checkpoints, device, threads
        self._classes = {
            "actor": ray.remote(num_cpus=0)(roles.actor),
            "replay": ray.remote(num_cpus=0)(roles.shard),
            "learner": ray.remote(num_cpus=0, num_gpus=int(device == "cuda"))(roles.learner),
        }
        self.ledger = Ledger()
        newest, state, _ = checkpoint_folder.newest_sound(checkpoints)
        self.steps_before = Progress.read(state["progress"]).step if newest is not None else 0
        self.active = layout.num_actors
        self.pids: dict[tuple[str, int], int] = {}
        self._lives: dict[tuple[str, int], int] = {}
        self._sizes: dict[int, float] = {}
        self._epsilons = epsilon_ladder(max(1, layout.num_actors))
        self._out: dict[Any, tuple[str, int, int]] = {}
        self._saving: Any = None
        self._refill_until = 0  # steps that actors may make even far ahead of the learner, because a shard is empty
        self._start_servers()
        self.shards = [self._start("replay", number) for number in range(layout.shards)]
        self.learners = [self._start("learner", number) for number in range(layout.learners)]
        self.actors = [self._start("actor", number) for number in range(layout.num_actors)]
        for number in range(layout.learners):
            self.updates_before, self.num_params = self._describe(number)
        self.ledger.updates = self.ledger.updates_handed = self.updates_before

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        ray = ray_module()
        for part in (*self.actors, *self.learners, *self.shards, *self.servers):
            ray.kill(part)

    # -- work ------------------------------------------------------------------------------------------

    def run(self, until_steps: int) -> Iterator[Report]:
        """Run all parts up to a number of steps since the start, with their updates. Yield their reports.

        Raises: RunError if a part raises, or dies again and again.
        """
        ray = ray_module()
        self._hand_out(until_steps)
        while self._out:
            done, _ = ray.wait(list(self._out), num_returns=1, timeout=self._job.cluster.timeout_s)
            if not done:
                silent = sorted({f"{role} {number}" for role, number, _ in self._out.values()})
                raise RunError(f"{', '.join(silent)} hung: no answer within {self._job.cluster.timeout_s:g} s")
            for call in done:
                if call in self._out and (report := self._taken(call, until_steps)) is not None:
                    yield report
            self._hand_out(until_steps)

    def shard_reports(self) -> list[Report]:
        """Return the shards' reports since the last call; replace a dead shard."""
        ray = ray_module()
        reports = []
        for number, shard in enumerate(self.shards):
            try:
                report: Report = ray.get(shard.report.remote())
            except ray.exceptions.RayActorError:
                self._replace_shard(number)
                continue
            self._sizes[number] = report.more["size"]
            self.pids["replay", number] = report.pid
            reports.append(report)
        return reports

    def parameters(self) -> dict[str, torch.Tensor]:
        """Return the newest published parameters."""
        news = self._asked(self.servers[0].get.remote(-2), "mailbox")
        return {name: torch.tensor(value) for name, value in news[2].items()}

    def save(self, progress: Progress) -> None:
        """Let the learner write a checkpoint between two pieces of its work."""
        self._saving = self.learners[0].save.remote(progress), progress

    def wait_for_checkpoint(self) -> None:
        """Wait until the last checkpoint is written, by another learner if that one died. Raises RunError."""
        ray = ray_module()
        while self._saving is not None:
            call, progress = self._saving
            try:
                self._asked(call, "learner 0", is_death_told=True)
                return
            except ray.exceptions.RayActorError:
                self._replace("learner", 0)
                self.save(progress)

    def _hand_out(self, until_steps: int) -> None:
        for _ in range(HANDED_OUT):
            for number in range(self.active):
                self._hand_actor(number, until_steps)
            for number in range(len(self.learners)):
                self._hand_learner(number, until_steps)

    def _hand_actor(self, number: int, until_steps: int) -> None:
        ledger, settings, layout = self.ledger, self._settings, self._layout
        done = ledger.updates_handed + ledger.written_off - self.updates_before
        ahead = AHEAD * max(self.active * layout.block, UPDATES_AT_A_TIME * settings.update_every)
        limit = max(self._refill_until, settings.replay_start + done * settings.update_every + ahead)
        may_act = not layout.is_paced or ledger.steps_handed < limit
        count = min(layout.block, until_steps - ledger.steps_handed)
        if self._is_free("actor", number) and may_act and count > 0:
            self._out[self._call_of_actor(number, count)] = "actor", number, count
            ledger.steps_handed += count

    def _call_of_actor(self, number: int, count: int) -> Any:
        return self.actors[number].work.remote(count)

    def _hand_learner(self, number: int, until_steps: int) -> None:
        ledger, settings, count = self.ledger, self._settings, UPDATES_AT_A_TIME
        if self._layout.is_paced:
            count = min(count, self._due())
            if count < UPDATES_AT_A_TIME and ledger.steps < until_steps:
                return  # small pieces cost more than they gain
        elif not settings.replay_start <= ledger.steps < until_steps:
            return
        if count > 0 and self._is_free("learner", number):
            self._out[self.learners[number].work.remote(count)] = "learner", number, count
            ledger.updates_handed += count

    def _due(self) -> int:
        """Return the updates to hand out for the steps so far, in paced mode."""
        ledger, settings = self.ledger, self._settings
        due = (ledger.steps - settings.replay_start) // settings.update_every + self.updates_before
        return due - ledger.written_off - ledger.updates_handed

    def _found_nothing(self, until_steps: int) -> None:
        """Handle a learner's empty draw: let actors go on although it is behind; if all steps are made, do not wait for it."""
        if self.ledger.steps_handed < until_steps:
            ahead = self.ledger.steps_handed + self.active * self._layout.block
            self._refill_until = max(self._refill_until, ahead)
        elif self.ledger.steps >= until_steps and self._layout.is_paced and self._is_replay_empty():
            self.ledger.written_off += max(0, self._due())

    def _is_replay_empty(self) -> bool:
        ray = ray_module()
        try:
            return not any(ray.get([shard.total.remote() for shard in self.shards]))
        except ray.exceptions.RayActorError:
            return False  # the learner will report it

    def _is_free(self, role: str, number: int) -> bool:
        return sum(held[:2] == (role, number) for held in self._out.values()) < HANDED_OUT

    def _taken(self, call: Any, until_steps: int) -> Report | None:
        """Return the report of a piece of work; None if its part died and was replaced."""
        ray = ray_module()
        role, number, count = self._out.pop(call)
        try:
            report: Report = ray.get(call)
        except ray.exceptions.RayActorError as error:
            # Ray raises the same error for a live caller that called a dead part.
            if isinstance(error, ray.exceptions.RayTaskError):
                self._check_servers()
            self._forget(role, count)
            for other in [c for c, held in self._out.items() if held[:2] == (role, number)]:
                self._forget(role, self._out.pop(other)[2])
            self._replace(role, number)
            return None
        except ray.exceptions.RayTaskError as error:
            raise task_error(f"{role} {number}", error) from None
        self.pids[role, number] = report.pid
        for lost in report.lost:
            self._replace_shard(lost)
        self._count(role, report, count)
        if role == "learner" and self.shards and not report.amount:
            self._found_nothing(until_steps)
        return report

    def _count(self, role: str, report: Report, count: int) -> None:
        """Count a piece of work of `count` as done."""
        if role == "actor":
            # Rounded up to whole rounds of the environments.
            self.ledger.steps += report.amount
            self.ledger.steps_handed += report.amount - count
        else:
            self.ledger.updates += report.amount
            self.ledger.updates_handed += report.amount - count  # fewer if the replay was empty

    # -- death -----------------------------------------------------------------------------------------

    def _forget(self, role: str, count: int) -> None:
        if role == "actor":
            self.ledger.steps_handed -= count
        else:
            self.ledger.updates_handed -= count

    def _replace(self, role: str, number: int) -> None:
        if role == "actor":
            self.actors[number] = self._start(role, number)
            self._note(role, number, "steps that it had not sent yet")
            return
        self.learners[number] = self._start("learner", number)
        updates, _ = self._describe(number)
        self._note(role, number, self._lost_with_learner(number, updates))

    def _lost_with_learner(self, number: int, updates: int) -> str:
        """Describe the loss: the next learner continues after `updates` updates and catches up with the steps."""
        lost = self.ledger.updates - updates
        self.ledger.updates, self.ledger.updates_handed = updates, self.ledger.updates_handed - lost
        return f"{lost:,} updates since its checkpoint after {updates:,}"

    def _replace_shard(self, number: int) -> None:
        """Replace a shard once, because several parts may report the same death."""
        ray = ray_module()
        try:
            ray.get(self.shards[number].total.remote())
            return
        except ray.exceptions.RayActorError:
            pass
        shard = self.shards[number] = self._start("replay", number)
        for part in (*self.actors, *self.learners):
            part.replace_shard.remote(number, shard)
        self._refill_until = self.ledger.steps_handed + self._settings.replay_start
        size = self._sizes.pop(number, None)
        held = "its transitions" if size is None else f"its {size:,.0f} transitions"
        others = len(self.shards) - 1
        rest = f"; {others} other{'s' * (others > 1)} kept theirs" if others else ""
        self._note("replay", number, held + rest)

    def _note(self, role: str, number: int, lost: str) -> None:
        self.ledger.deaths.append(Death(role, number, time.monotonic(), lost))

    # -- parts -----------------------------------------------------------------------------------------

    def _start_servers(self) -> None:
        self.servers = [ray_module().remote(num_cpus=0)(Mailbox).remote()]

    def _start(self, role: str, number: int) -> Any:
        """Start a part as at the beginning; a learner starts at its newest checkpoint."""
        life = self._life(role, number), self.steps_before
        job, layout = self._job, self._layout
        if role == "replay":
            return self._classes[role].remote(number, job, layout, sys.path)
        if role == "learner":
            return self._classes[role].remote(
                job, layout, self.shards, self.servers[0], self._checkpoints, self._device, self._threads, sys.path
            )
        return self._classes[role].remote(
            number, job, layout, self._epsilons[number], self.shards, self.servers[0], life, sys.path
        )

    def _life(self, role: str, number: int) -> int:
        life = self._lives[role, number] = self._lives.get((role, number), -1) + 1
        if life > MAX_DEATHS:
            raise RunError(f"{role} {number} died {life} times", "read the messages of its processes")
        return life

    def _describe(self, number: int) -> tuple[int, int]:
        """Return the updates of a learner so far, and its parameters; wait until it has started."""
        pid, updates, params = self._asked(self.learners[number].describe.remote(), f"learner {number}")
        self.pids["learner", number] = pid
        return updates, params

    def _asked(self, call: Any, who: str, is_death_told: bool = False) -> Any:
        """Return an answer. Raises RunError for an error or a death; with `is_death_told`, Ray's own error for a death."""
        ray = ray_module()
        try:
            return ray.get(call)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error, ray.exceptions.RayActorError):
                self._check_servers()
            raise task_error(who, error) from None
        except ray.exceptions.RayActorError as error:
            if is_death_told:
                raise
            raise RunError(f"{who} died: {_exit_detail(str(error))}") from None

    def _check_servers(self) -> None:
        """Raise RunError if a server has died: its data are lost, so the run can continue only from a checkpoint."""
        ray = ray_module()
        for number, server in enumerate(self.servers):
            try:
                ray.get(server.__ray_ready__.remote())
            except ray.exceptions.RayActorError as error:
                raise RunError(f"{self._server_name(number)} died: {_exit_detail(str(error))}") from None

    def _server_name(self, number: int) -> str:
        return "the mailbox, which has the newest parameters,"


def _exit_detail(text: str) -> str:
    """Return how a process ended, from Ray's text about its death; otherwise the first sentence.

    >>> _exit_detail("The actor died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker exits unexpectedly by a signal. More")
    'Worker exits unexpectedly by a signal'
    """
    told = " ".join(text.split())
    found = re.search(r"exit detail: ([^.]+)", told)
    return found[1] if found else told.partition(". ")[0].rstrip(".")[:200]

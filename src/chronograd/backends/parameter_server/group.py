"""Servers and learners as Ray actors, and their Ray."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from chronograd.backends.parameter_server.actors import (
    GradientLearner,
    ParameterServer,
    Shard,
    group_fields,
    load_buffers,
    shards,
    trained_parameters,
)
from chronograd.backends.ray_session import answer, ray_module, ray_session
from chronograd.errors import RunError
from chronograd.job import Job
from chronograd.rundir import RunDir, StepLine
from chronograd.rundir.steps import MemoryLine, Start
from chronograd.train.rank_context import RankContext, threads_per_rank
from chronograd.train.step import TrainingStep
from chronograd.words import how_many

# Maximum time for an answer of a server, and for the start of learners and servers.
ANSWER_S, START_S = 5.0, 600.0
# Minibatches in the queue of a learner: while it works on one, the next is there, so it never waits for the driver.
HANDED_OUT = 2
# Shared memory for messages: for each learner the parameters and a gradient, each once in use and once in transit.
COPIES_PER_LEARNER = 4


class ParameterServerGroup:
    """The servers and learners of a job. Use it within `ray_session`; as a context manager it ends them."""

    def __init__(
        self, job: Job, place: RankContext, step: TrainingStep, parts: Sequence[Shard], initial_weights: Path | None
    ) -> None:
        """Start all and wait until they are ready; `starts` then has the place of each learner.

        Args:
            place: of the driver, where `step` has the network that they train.
            parts: its parameters, distributed over the servers.
        """
        ray = ray_module()

        communication, num_learners = job.communication, job.cluster.count
        self._shards = parts
        threads = threads_per_rank(job.cluster, num_learners)
        server = ray.remote(num_cpus=1)(ParameterServer)
        self._servers = [
            server.remote(
                shard,
                type(step.optimizer),
                group_fields(step.optimizer, shard),
                job.training,
                step.num_steps,
                communication.staleness_aware,
            )
            for shard in self._shards
        ]
        is_cuda = place.device.type == "cuda"
        learner = ray.remote(num_cpus=threads, num_gpus=int(is_cuda))(GradientLearner)
        device = "cuda" if is_cuda else "cpu"  # Ray shows each learner only its own GPU
        self._learners = [
            learner.remote(number, job, initial_weights, device, threads, self._shards, self._servers, sys.path)
            for number in range(num_learners)
        ]
        self._timeout_s = START_S
        self.starts: list[Start] = [self._of_learner(number, "describe") for number in range(num_learners)]
        self._timeout_s = job.cluster.timeout_s
        self._version = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End all actors at once. A polite request would let them finish their queue."""
        ray = ray_module()

        for actor in (*self._learners, *self._servers):
            ray.kill(actor)

    # -- what they hold ----------------------------------------------------------------------------------

    def load(self, step: TrainingStep, version: int) -> None:
        """Load the state of a network and its optimizer after `version` updates into all."""
        parameters = trained_parameters(step.optimizer)
        state = step.optimizer.state_dict()["state"]
        for number, shard in enumerate(self._shards):
            own = {place: state[member] for place, member in enumerate(shard.members) if member in state}
            self._of_server(number, "load", shard.flat(parameters), own, version)
        buffers = {name: buffer.cpu().numpy() for name, buffer in step.network.named_buffers()}
        for number in range(len(self._learners)):
            self._of_learner(number, "load_buffers", buffers)
        self._version = version

    def fetch(self, step: TrainingStep, learner: int) -> None:
        """Copy the state of the servers, and the buffers of a learner, to a network and its optimizer."""
        parameters = trained_parameters(step.optimizer)
        state: dict[int, dict[str, Any]] = {}
        for number, shard in enumerate(self._shards):
            _, values = self._of_server(number, "pull")
            own = self._of_server(number, "optimizer_state")
            state |= {shard.members[place]: tensors for place, tensors in own.items()}
            shard.copy_to(parameters, values)
        groups = step.optimizer.state_dict()["param_groups"]
        step.optimizer.load_state_dict({"state": state, "param_groups": groups})
        load_buffers(step.network, self._of_learner(learner, "buffers"))

    def _of_learner(self, number: int, method: str, *arguments: Any) -> Any:
        call = getattr(self._learners[number], method).remote(*arguments)
        return answer(call, f"learner {number}", self._timeout_s)

    def _of_server(self, number: int, method: str, *arguments: Any) -> Any:
        call = getattr(self._servers[number], method).remote(*arguments)
        return answer(call, f"parameter server {number}", self._timeout_s)

    # -- work --------------------------------------------------------------------------------------------

    def updates(self, minibatches: Iterable[int]) -> Iterator[StepLine]:
        """Let learners process minibatches; yield their updates in the order of server 0.

        Raises RunError that names an actor if it dies, raises, or is silent for `cluster.timeout_s`.
        """
        ray = ray_module()

        left = iter(minibatches)
        out: dict[Any, tuple[int, int]] = {}
        early: dict[int, StepLine] = {}

        def hand_out(learner: int) -> None:
            for minibatch in itertools.islice(left, 1):
                out[self._learners[learner].learn.remote(minibatch)] = learner, minibatch

        for _ in range(HANDED_OUT):
            for learner in range(len(self._learners)):
                hand_out(learner)
        while out:
            done, _ = ray.wait(list(out), num_returns=1, timeout=self._timeout_s)
            if not done:
                raise self._hung(sorted(out.values()))
            for call in done:
                learner, _ = out.pop(call)
                hand_out(learner)
                update: StepLine = answer(call, f"learner {learner}")
                early[update.step] = update
            while self._version + 1 in early:
                self._version += 1
                yield early.pop(self._version)

    def _hung(self, out: Sequence[tuple[int, int]]) -> RunError:
        """Return the error that names the actor for which all wait. `out`: learners and their minibatches."""
        ray = ray_module()
        calls = [server.pull.remote() for server in self._servers]
        answered, _ = ray.wait(calls, num_returns=len(calls), timeout=ANSWER_S)
        silent = [number for number, call in enumerate(calls) if call not in answered]
        told = f"within {self._timeout_s:g} s"
        if silent:
            return RunError(
                f"parameter server {silent[0]} hung: it did not answer the pulls and pushes of learners {told}"
            )
        learner, minibatch = out[0]
        return RunError(f"learner {learner} hung: it did not push its gradient of step {minibatch + 1} {told}")

    # -- what they tell ----------------------------------------------------------------------------------

    def memory(self, step: int) -> list[MemoryLine]:
        """Return the peak memory of each learner until a step."""
        return [self._of_learner(number, "memory", step) for number in range(len(self._learners))]


@contextlib.contextmanager
def running_group(run: RunDir, job: Job, place: RankContext, step: TrainingStep) -> Iterator[ParameterServerGroup]:
    """Start a Ray for a job, with its servers and learners; end all with the context. See `ray_session`."""
    parts = shards(trained_parameters(step.optimizer), job.communication.servers)
    learners, servers = job.cluster.count, job.communication.servers
    with (
        ray_session(
            run.path,
            f"{how_many(learners, 'learners')} and {servers} parameter servers",
            num_cpus=learners * threads_per_rank(job.cluster, learners) + servers,
            num_gpus=learners if place.device.type == "cuda" else 0,
            store_bytes=COPIES_PER_LEARNER * learners * sum(4 * part.size for part in parts),
        ),
        ParameterServerGroup(job, place, step, parts, run.given_weights) as group,
    ):
        yield group

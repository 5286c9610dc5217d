"""Servers and learners as Ray actors, and the Ray they live in."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import psutil
import torch

from chronograd.backends.parameter_server.actors import (
    Learner,
    Server,
    Shard,
    flattened,
    group_fields,
    load_buffers,
    trained_parameters,
)
from chronograd.errors import ChronogradError, RunError
from chronograd.job import Job
from chronograd.rundir import RunDir, Step
from chronograd.rundir.steps import Memory, Start
from chronograd.train.rank_context import RankContext, threads_per_rank
from chronograd.train.step import TrainingStep

ADDRESS_VARIABLE = "RAY_ADDRESS"
FOLDER_VARIABLE = "CHRONOGRAD_RAY_FOLDER"
# In the folder of a Ray: the run that it is for.
MARK = "chronograd-run"
# A server that works answers within this, learners and servers have started within that.
ANSWER_S, START_S = 5.0, 600.0
STARTS = 3
# Minibatches that a learner has been handed: while it works on one the next is there, so it never waits for the driver.
HANDED_OUT = 2
# Shared memory for what is sent: of each learner the parameters and a gradient, each in use and on its way.
COPIES_PER_LEARNER = 4
LEAST_STORE_BYTES = 128 * 2**20
# The path of a socket has at most 107 characters, of which Ray needs 70 behind its folder.
LONGEST_FOLDER = 36


class Group:
    """The servers and learners of a job. Within `ray_session`; as a context it ends them."""

    def __init__(
        self, job: Job, place: RankContext, step: TrainingStep, parts: Sequence[Shard], initial_weights: Path | None
    ) -> None:
        """Starts all and waits until they are ready; `starts` then says where each learner runs.

        Args:
            place: of the driver, where `step` has the network that they are to train.
            parts: its parameters, shared out over the servers.
        """
        ray = _ray()

        communication, num_learners = job.communication, job.cluster.count
        self._shards = parts
        threads = threads_per_rank(job.cluster, num_learners)
        server = ray.remote(num_cpus=1)(Server)
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
        learner = ray.remote(num_cpus=threads, num_gpus=int(is_cuda))(Learner)
        device = "cuda" if is_cuda else "cpu"  # Ray shows each learner its own GPU only
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
        """Actors that are asked to end would finish what they were handed; these are ended at once."""
        ray = _ray()

        for actor in (*self._learners, *self._servers):
            ray.kill(actor)

    # -- what they hold ----------------------------------------------------------------------------------

    def load(self, step: TrainingStep, version: int) -> None:
        """Give all the state of a network and its optimizer after `version` updates."""
        parameters = trained_parameters(step.optimizer)
        state = step.optimizer.state_dict()["state"]
        for number, shard in enumerate(self._shards):
            own = {place: state[member] for place, member in enumerate(shard.members) if member in state}
            self._of_server(number, "load", flattened([parameters[i] for i in shard.members]), own, version)
        buffers = {name: buffer.cpu().numpy() for name, buffer in step.network.named_buffers()}
        for number in range(len(self._learners)):
            self._of_learner(number, "load_buffers", buffers)
        self._version = version

    def fetch(self, step: TrainingStep, learner: int) -> None:
        """Bring a network and its optimizer to the state of the servers, and to the buffers of a learner."""
        parameters = trained_parameters(step.optimizer)
        state: dict[int, dict[str, Any]] = {}
        for number, shard in enumerate(self._shards):
            _, values = self._of_server(number, "pull")
            own = self._of_server(number, "optimizer_state")
            state |= {shard.members[place]: tensors for place, tensors in own.items()}
            with torch.no_grad():
                for member, piece in zip(shard.members, shard.pieces(torch.tensor(values)), strict=True):
                    parameters[member].copy_(piece)
        groups = step.optimizer.state_dict()["param_groups"]
        step.optimizer.load_state_dict({"state": state, "param_groups": groups})
        load_buffers(step.network, self._of_learner(learner, "buffers"))

    def _of_learner(self, number: int, method: str, *arguments: Any) -> Any:
        call = getattr(self._learners[number], method).remote(*arguments)
        return _answer(call, f"learner {number}", self._timeout_s)

    def _of_server(self, number: int, method: str, *arguments: Any) -> Any:
        call = getattr(self._servers[number], method).remote(*arguments)
        return _answer(call, f"parameter server {number}", self._timeout_s)

    # -- work --------------------------------------------------------------------------------------------

    def updates(self, minibatches: Iterable[int]) -> Iterator[Step]:
        """Have learners do minibatches; their updates in the order of server 0.

        Raises RunError that names an actor if it dies or raises, or nothing has come from it for `cluster.timeout_s`.
        """
        ray = _ray()

        left = iter(minibatches)
        out: dict[Any, tuple[int, int]] = {}
        early: dict[int, Step] = {}

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
                update: Step = _answer(call, f"learner {learner}")
                early[update.step] = update
            while self._version + 1 in early:
                self._version += 1
                yield early.pop(self._version)

    def _hung(self, out: Sequence[tuple[int, int]]) -> RunError:
        """The actor for which all wait. `out`: learners and the minibatches that they have."""
        ray = _ray()
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

    def memory(self, step: int) -> list[Memory]:
        """The peak of each learner until a step."""
        return [self._of_learner(number, "memory", step) for number in range(len(self._learners))]


def take_along() -> None:
    """End what Ray has started: its agents would live a minute longer than this process."""
    _end_offspring()
    if folder := os.environ.get(FOLDER_VARIABLE):
        shutil.rmtree(folder, ignore_errors=True)


def tidy_after(run: RunDir) -> None:
    """End the Ray of an earlier driver of this run that was killed, and remove its folder."""
    for note in {*Path(tempfile.gettempdir()).glob(f"ray-*/{MARK}"), *Path("/tmp").glob(f"ray-*/{MARK}")}:
        folder = note.parent
        with contextlib.suppress(OSError):
            is_own = not folder.is_symlink() and folder.stat().st_uid == os.getuid()
            if not is_own or note.read_text() != str(run.path.absolute()):
                continue
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error):
                    # By their logs: some of Ray's processes overwrite their environment with their title.
                    if any(Path(file.path).is_relative_to(folder) for file in process.open_files()):
                        process.kill()
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def ray_session(job: Job, place: RankContext, parts: Sequence[Shard], run: RunDir) -> Iterator[None]:
    """A Ray of this process's own, which ends with it and which only this process may use; or that of RAY_ADDRESS.

    Raises RunError if there is no Ray, or it has not the CPUs and GPUs that the job's actors need.
    """
    num_learners = job.cluster.count
    num_cpus = num_learners * threads_per_rank(job.cluster, num_learners) + job.communication.servers
    num_gpus = num_learners if place.device.type == "cuda" else 0
    address = os.environ.get(ADDRESS_VARIABLE)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    folder = None
    if not address:
        # Read when Ray is imported. Without them Ray leaves a token in the user's home.
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    ray = _ray()
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            tidy_after(run)
            folder = os.environ[FOLDER_VARIABLE] = _short_folder()
            Path(folder, MARK).write_text(str(run.path.absolute()))
            sent_bytes = num_learners * sum(4 * part.size for part in parts)
            _start_own(
                num_cpus=num_cpus,  # as many as are asked for: learners may outnumber cores
                include_dashboard=False,
                object_store_memory=max(LEAST_STORE_BYTES, COPIES_PER_LEARNER * sent_bytes),
                _node_ip_address="127.0.0.1",
                _temp_dir=folder,
                **quiet,
            )
        signal.signal(signal.SIGTERM, _leave)  # Ray's own handler would end the process before it is tidy
        there = ray.cluster_resources()
        if there.get("CPU", 0) < num_cpus or there.get("GPU", 0) < num_gpus:
            raise RunError(
                f"{num_learners} learners and {job.communication.servers} parameter servers need {num_cpus} CPUs and "
                f"{num_gpus} GPUs of Ray, which has {there.get('CPU', 0):g} and {there.get('GPU', 0):g}",
                "lower cluster.count or cluster.threads, or start Ray with more",
            )
        yield
    except (ConnectionError, ray.exceptions.RaySystemError) as error:
        where = f"{ADDRESS_VARIABLE}={address}" if address else "a Ray of its own"
        raise RunError(f"cannot use {where}: {' '.join(str(error).split())[:300]}") from None
    finally:
        started = psutil.Process().children(recursive=True)
        ray.shutdown()
        if folder is not None:
            for process in started:  # an actor that was stopped does not end by itself
                with contextlib.suppress(psutil.Error):
                    process.kill()
            shutil.rmtree(folder, ignore_errors=True)


def _ray() -> Any:
    """Ray, less its types, which cover a part of it."""
    import ray

    return ray


def _start_own(**settings: Any) -> None:
    """Ray gives its own processes 30 s to come up, which a crowded machine may not have; then they are started again.

    Raises RunError if they do not come up in several tries.
    """
    ray = _ray()
    for _ in range(STARTS):
        try:
            ray.init(address="local", **settings)
            return
        except Exception as error:  # Ray has no kind of its own for this
            if "timed out during startup" not in str(error):
                raise
            _end_offspring()
    raise RunError(f"Ray did not start in {STARTS} times 30 s", "free some cores of this machine")


def _end_offspring() -> None:
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()


def _leave(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


def _short_folder() -> str:
    """A new folder for Ray's sockets and logs."""
    folder = tempfile.mkdtemp(prefix="ray-")
    if len(folder) <= LONGEST_FOLDER:
        return folder
    Path(folder).rmdir()
    return tempfile.mkdtemp(prefix="ray-", dir="/tmp")


def _answer(call: Any, who: str, timeout_s: float | None = None) -> Any:
    """What an actor returns. Raises RunError that names it if it died, raised or did not answer."""
    ray = _ray()

    try:
        return ray.get(call, timeout=timeout_s)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, ChronogradError):
            raise RunError(f"{who}: {cause.message}", cause.hint) from None
        print(error, file=sys.stderr, flush=True)
        raise RunError(f"{who} failed with {type(cause).__name__}: {cause}") from None
    except ray.exceptions.RayActorError:
        raise RunError(f"{who} died") from None
    except ray.exceptions.GetTimeoutError:
        raise RunError(f"{who} hung: it did not answer within {timeout_s:g} s") from None

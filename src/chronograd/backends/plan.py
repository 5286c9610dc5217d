"""The interface of backends: the plan of ranks that a backend gives to a launcher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Protocol

from chronograd import trust
from chronograd.errors import JobError, install_command
from chronograd.job import Job
from chronograd.rundir import RunDir
from chronograd.train.rank_context import threads_per_rank

# Packages of the PyTorch backends.
TORCH = ("torch", "safetensors", "psutil")
# For the process that starts Ray, and so for everything that Ray starts.
RAY_ENVIRONMENT = {
    "RAY_worker_niceness": "0",  # Ray's default of 15 starves actors next to other programs; other backends run at 0
    "RAY_USAGE_STATS_ENABLED": "0",  # no usage reports
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's future default; silences its warning
}


@dataclass(frozen=True)
class RayActors:
    """Actors that a run's one rank starts in Ray: servers have one core each, learners `cluster.threads`."""

    learners: int
    servers: int


@dataclass(frozen=True)
class RankPlan:
    """The ranks of a run, as pure data.

    Attributes:
        command: of every rank.
        world_size: number of ranks.
        environment: variables of every rank, in addition to those by which a launcher tells it its number and the place of the
            others (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT).
        launcher: the best launcher if the user asks for none.
        max_restarts: times that a launcher restarts all ranks after one has failed.
        actors: what the rank starts in Ray, which may be on several nodes; None if it starts nothing.
    """

    command: tuple[str, ...]
    world_size: int
    environment: dict[str, str] = field(default_factory=dict)
    launcher: str = "local"
    max_restarts: int = 0
    actors: RayActors | None = None


class Backend(Protocol):
    """The interface of a file of this folder. `NEEDED`: the packages that it needs; the extra of the first has all."""

    NEEDED: tuple[str, ...]

    def available(self) -> tuple[bool, str]:
        """Return whether it can run here, and if not, why."""

    def plan(self, job: Job, run: Path, arguments: Sequence[str]) -> RankPlan:
        """Return the ranks that do `arguments` (a verb of the worker and its options) on the job in a run directory.

        Raises JobError if the job does not fit the backend.
        """

    def prepare(self, job: Job, run: RunDir) -> None:
        """Put files for the ranks into the run directory, in addition to the job."""


def prepare_nothing(job: Job, run: RunDir) -> None:
    """Do nothing: the ranks read only the job."""


def refuse_noise_scale(job: Job) -> None:
    """Raise JobError if the job measures the noise scale, for backends that do not see a rank's own gradient."""
    if job.training.noise_scale_every:
        raise JobError(
            f"training.noise_scale_every is {job.training.noise_scale_every}; "
            f"backend {job.backend} does not measure the gradient noise scale",
            "write training.noise_scale_every=0, or backend=ddp or single",
        )


# The values of fields that backends with sharded parameters support.
_SHARDED_ONLY: dict[str, tuple[object, ...]] = {
    "task": ("classification", "language"),
    "mode": ("training",),
    "training.precision": ("fp32", "tf32", "bf16"),
    "training.compile": (False,),
    "training.channels_last": (False,),
    "training.ema_decay": (0.0,),
    "training.trainable": ("all",),
    "communication.compression": ("none",),
    "communication.bucket_bytes": (None,),
}


def sharded_plan(job: Job, run: Path, arguments: Sequence[str]) -> RankPlan:
    """Plan all ranks on this machine, of a backend that shards parameters. Raises JobError for what it does not support."""
    refuse_noise_scale(job)
    for name, only in _SHARDED_ONLY.items():
        if (value := attrgetter(name)(job)) not in only:
            raise JobError(
                f"{name} is {value}, which backend {job.backend} does not support",
                f"write {name}={only[0]}, or backend=ddp",
            )
    ranks = job.cluster.count
    environment = {"OMP_NUM_THREADS": str(threads_per_rank(job.cluster, ranks))}
    return RankPlan(torch_worker(run, arguments), ranks, environment, "torchrun", job.cluster.max_restarts)


def torch_worker(run: Path, arguments: Sequence[str], worker: str = "chronograd.train.worker") -> tuple[str, ...]:
    """Return the command of a rank of the PyTorch backends."""
    return trust.python("-m", worker, str(run.absolute()), *arguments)


def installed(packages: Sequence[str] = TORCH, extra: str = "torch") -> tuple[bool, str]:
    """Return whether packages are installed, and if not, the extra that installs them."""
    missing = " and ".join(name for name in packages if find_spec(name) is None)
    return not missing, f"{missing} not installed; {install_command(extra)}" if missing else ""

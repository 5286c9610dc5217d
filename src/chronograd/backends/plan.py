"""What a backend hands to a launcher, and what it is asked."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from chronograd.errors import JobError, install_command
from chronograd.job import Job
from chronograd.rundir import RunDir

# Packages of the PyTorch backends.
TORCH = ("torch", "safetensors", "psutil")
# For the process that starts Ray, and so for what Ray starts.
RAY_ENVIRONMENT = {
    "RAY_worker_niceness": "0",  # Ray's own 15 has actors starve beside anything else, which other backends do not
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anybody
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # as Ray is going to have it; silences its warning
}


@dataclass(frozen=True)
class RankPlan:
    """What the ranks of a run are: pure data.

    Attributes:
        command: what every rank runs.
        world_size: how many there are.
        environment: variables of every rank, beside those by which a launcher tells it its number and where
            the others are (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT).
        launcher: the launcher that fits best where nobody asks for another.
        max_restarts: times that a launcher starts all ranks again after one has failed.
    """

    command: tuple[str, ...]
    world_size: int
    environment: dict[str, str] = field(default_factory=dict)
    launcher: str = "local"
    max_restarts: int = 0


class Backend(Protocol):
    """A file of this folder. `NEEDED` are the packages that it needs; the extra of the first brings them all."""

    NEEDED: tuple[str, ...]

    def available(self) -> tuple[bool, str]:
        """Whether it can run here, and if not, why."""

    def plan(self, job: Job, run: Path, arguments: Sequence[str]) -> RankPlan:
        """The ranks that do `arguments` (a verb of the worker and its options) on the job in a run directory.

        Raises JobError if the job does not fit the backend.
        """

    def prepare(self, job: Job, run: RunDir) -> None:
        """Put into the run directory what the ranks will read beside its job, if anything."""


def prepare_nothing(job: Job, run: RunDir) -> None:
    """The `prepare` of backends whose ranks read the job alone."""


def refuse_noise_scale(job: Job) -> None:
    """For backends that do not see a rank's own gradient. Raises JobError."""
    if job.training.noise_scale_every:
        raise JobError(
            f"training.noise_scale_every is {job.training.noise_scale_every}; "
            f"backend {job.backend} does not measure the gradient noise scale",
            "write training.noise_scale_every=0, or backend=ddp or single",
        )


def torch_worker(run: Path, arguments: Sequence[str], worker: str = "chronograd.train.worker") -> tuple[str, ...]:
    """The command of a rank of the PyTorch backends."""
    return (sys.executable, "-m", worker, str(run.absolute()), *arguments)


def installed(packages: Sequence[str] = TORCH, extra: str = "torch") -> tuple[bool, str]:
    """Whether packages are there, and if not, which extra brings them."""
    missing = " and ".join(name for name in packages if find_spec(name) is None)
    return not missing, f"{missing} not installed; {install_command(extra)}" if missing else ""

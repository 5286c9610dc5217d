"""Asynchronous SGD over parameter servers, on Ray: J. Dean et al., Large scale distributed deep networks, 2012 (Downpour).

`cluster.count` learners compute gradients, `communication.servers` servers hold the parameters and update them. A learner pulls
parameters, computes the gradient of one minibatch, and pushes it. Nobody waits, so other learners may have updated those
parameters in the meantime: the number of these updates is the staleness.

`training.batch` is the minibatch of one learner, and a step is one update by one learner. For any number of learners, an epoch
has the same number of updates and the same samples as with the backend `single`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from chronograd.backends.plan import (
    RAY_ENVIRONMENT,
    TORCH,
    RankPlan,
    RayActors,
    installed,
    prepare_nothing,
    refuse_noise_scale,
    torch_worker,
)
from chronograd.errors import JobError, install_command
from chronograd.job import Job
from chronograd.train.rank_context import threads_per_rank

NEEDED = ("ray", *TORCH)
prepare = prepare_nothing


def available() -> tuple[bool, str]:
    is_there, reason = installed()
    if is_there and find_spec("ray") is None:
        return False, f"ray not installed; {install_command('ray')}"
    return is_there, reason


def plan(job: Job, run: Path, arguments: Sequence[str]) -> RankPlan:
    """Plan one process, the driver. It starts a private Ray, or joins RAY_ADDRESS, and in it servers and learners.

    `cluster.threads` are the threads of a learner.
    """
    refuse_noise_scale(job)
    for is_asked, what, instead in (
        (job.training.ema_decay > 0, "training.ema_decay", "write training.ema_decay=0"),
        (job.training.precision == "fp16", "training.precision fp16, whose loss scale is one rank's own", "use bf16"),
        (job.communication.compression != "none", "communication.compression", "write communication.compression=none"),
    ):
        if is_asked:
            raise JobError(f"backend parameter_server has no {what}", instead)
    command = torch_worker(run, arguments, "chronograd.backends.parameter_server.run")
    threads = threads_per_rank(job.cluster, job.cluster.count)
    environment = {**RAY_ENVIRONMENT, "OMP_NUM_THREADS": str(threads)}
    actors = RayActors(job.cluster.count, job.communication.servers)
    return RankPlan(command, 1, environment, max_restarts=job.cluster.max_restarts, actors=actors)

"""Horovod: gradients averaged by Gloo's all-reduce while backward runs, through its own optimizer and launcher.

It runs in an environment of its own (chronograd.backends.horovod.build). `python -m chronograd.backends.horovod
RUN_DIR train|measure`, started by horovodrun, is one rank.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from chronograd.backends.horovod import build as horovod_build
from chronograd.backends.plan import RankPlan, prepare_nothing, refuse_noise_scale, torch_is_there
from chronograd.errors import JobError, RunError
from chronograd.job import Job
from chronograd.measure import environment
from chronograd.train.place import threads_per_rank

prepare = prepare_nothing

# What a rank knows itself by, and what horovodrun calls it.
NAMES = {
    "RANK": "HOROVOD_RANK",
    "WORLD_SIZE": "HOROVOD_SIZE",
    "LOCAL_RANK": "HOROVOD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "HOROVOD_LOCAL_SIZE",
}


def available() -> tuple[bool, str]:
    is_there, reason = torch_is_there()
    if is_there and not horovod_build.is_built():
        return False, f"Horovod is not built for this Python and PyTorch; {horovod_build.COMMAND}"
    return is_there, reason


def plan(job: Job, run: Path, arguments: Sequence[str]) -> RankPlan:
    """All ranks on the CPUs of this machine; with one rank it does what `single` does."""
    refuse_noise_scale(job)
    if job.cluster.device != "cpu" and environment.gpus():
        raise JobError(
            f"cluster.device is {job.cluster.device}; Horovod is built with Gloo here, which averages on the CPU",
            "write cluster.device=cpu, or backend=ddp",
        )
    if job.training.channels_last:
        raise JobError(
            "training.channels_last is true; Horovod sends contiguous tensors only",
            "write training.channels_last=false, or backend=ddp",
        )
    ranks = job.cluster.count
    variables = {"OMP_NUM_THREADS": str(threads_per_rank(job.cluster, ranks))}
    if job.communication.bucket_bytes is not None:
        variables["HOROVOD_FUSION_THRESHOLD"] = str(job.communication.bucket_bytes)
    command = (str(horovod_build.python()), "-m", "chronograd.backends.horovod", str(run.absolute()), *arguments)
    return RankPlan(command, ranks, variables, "horovodrun", job.cluster.max_restarts)


def main() -> int:
    """Run one rank. Returns its exit status."""
    if NAMES["RANK"] not in os.environ:
        error = RunError("a rank of Horovod was started without horovodrun", "leave the launcher to the backend")
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_status
    from chronograd.backends.horovod.rank import exchange_of
    from chronograd.train import worker

    os.environ.update({ours: os.environ[theirs] for ours, theirs in NAMES.items()})
    return worker.main(exchange_of=exchange_of)


if __name__ == "__main__":
    sys.exit(main())

"""Horovod: Gloo's all-reduce averages gradients while backward runs, with Horovod's own optimizer and launcher.

It runs in a separate environment (chronograd.backends.horovod.build). horovodrun starts the ranks, each `python -m
chronograd.backends.horovod.rank RUN_DIR train|measure`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chronograd import trust
from chronograd.backends.horovod import build as horovod_build
from chronograd.backends.plan import TORCH, RankPlan, installed, prepare_nothing, refuse_noise_scale
from chronograd.errors import JobError
from chronograd.job import Job
from chronograd.measure import environment
from chronograd.train.rank_context import threads_per_rank

NEEDED = TORCH
prepare = prepare_nothing


def available() -> tuple[bool, str]:
    is_there, reason = installed()
    if is_there and not horovod_build.is_built():
        return False, f"Horovod is not built for this Python and PyTorch; {horovod_build.COMMAND}"
    return is_there, reason


def plan(job: Job, run: Path, arguments: Sequence[str]) -> RankPlan:
    """Plan all ranks on the CPUs of this machine; with one rank it equals `single`."""
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
    of_rank = (str(run.absolute()), *arguments)
    command = trust.python("-m", "chronograd.backends.horovod.rank", *of_rank, interpreter=str(horovod_build.python()))
    return RankPlan(command, ranks, variables, "horovodrun", job.cluster.max_restarts)

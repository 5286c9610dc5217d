"""torch.nn.DataParallel: one process drives all GPUs of a machine, and copies the network to them in every step.

Parameters go from the first GPU to all, inputs are scattered, outputs gathered, gradients summed on the first GPU.
PyTorch recommends DistributedDataParallel; this backend exists to measure the cost of the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chronograd.backends.plan import TORCH, RankPlan, installed, prepare_nothing, refuse_noise_scale, torch_worker
from chronograd.job import Job
from chronograd.measure import environment
from chronograd.train.rank_context import threads_per_rank

NEEDED = TORCH
prepare = prepare_nothing


def available() -> tuple[bool, str]:
    is_there, reason = installed()
    if is_there and not environment.gpus():
        return False, "torch.nn.DataParallel makes replicas on GPUs only, and this machine has no NVIDIA GPU"
    return is_there, reason


def plan(job: Job, run: Path, arguments: Sequence[str]) -> RankPlan:
    """Plan one process for all GPUs: it splits the batch over `cluster.count` of them."""
    refuse_noise_scale(job)
    environment = {"OMP_NUM_THREADS": str(threads_per_rank(job.cluster, 1))}
    return RankPlan(torch_worker(run, arguments), 1, environment, max_restarts=job.cluster.max_restarts)

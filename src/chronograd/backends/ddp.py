"""PyTorch's DistributedDataParallel: all-reduce averages gradients while backward runs, with NCCL, or gloo on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chronograd.backends.plan import TORCH, RankPlan, installed, prepare_nothing, torch_worker
from chronograd.job import Job
from chronograd.train.rank_context import threads_per_rank

NEEDED = TORCH
prepare = prepare_nothing
available = installed


def plan(job: Job, run: Path, arguments: Sequence[str]) -> RankPlan:
    """Plan all ranks on this machine; with one rank it equals `single`."""
    ranks = job.cluster.count
    environment = {"OMP_NUM_THREADS": str(threads_per_rank(job.cluster, ranks))}
    return RankPlan(torch_worker(run, arguments), ranks, environment, "torchrun", job.cluster.max_restarts)

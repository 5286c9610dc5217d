"""One process, one device, no communication: the reference for all other backends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chronograd.backends.plan import RAY_ENVIRONMENT, TORCH, RankPlan, installed, prepare_nothing, torch_worker
from chronograd.job import Job, check_backend
from chronograd.recipes import DISTRIBUTED
from chronograd.train.rank_context import threads_per_rank

NEEDED = TORCH
prepare = prepare_nothing
available = installed


def plan(job: Job, run: Path, arguments: Sequence[str]) -> RankPlan:
    check_backend(job)
    environment = {"OMP_NUM_THREADS": str(threads_per_rank(job.cluster, 1))}
    worker = "chronograd.train.worker"
    if job.reinforcement is not None:
        worker = "chronograd.reinforce.worker"
        if job.reinforcement.algorithm in DISTRIBUTED:
            worker = "chronograd.backends.apex.run"
            environment |= RAY_ENVIRONMENT
    return RankPlan(
        torch_worker(run, arguments, worker),
        world_size=1,
        environment=environment,
        max_restarts=job.cluster.max_restarts,
    )

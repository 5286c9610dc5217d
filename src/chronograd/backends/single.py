"""One process, one device, no communication: what all other backends must agree with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chronograd.backends.plan import TORCH, RankPlan, installed, prepare_nothing, torch_worker
from chronograd.job import Job, check_backend
from chronograd.train.rank_context import threads_per_rank

NEEDED = TORCH
prepare = prepare_nothing
available = installed


def plan(job: Job, run: Path, arguments: Sequence[str]) -> RankPlan:
    check_backend(job)
    environment = {"OMP_NUM_THREADS": str(threads_per_rank(job.cluster, 1))}
    return RankPlan(
        torch_worker(run, arguments), world_size=1, environment=environment, max_restarts=job.cluster.max_restarts
    )

"""One process, one device, no communication: what all other backends must agree with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chronograd.backends.plan import TORCH, RankPlan, installed, prepare_nothing, torch_worker
from chronograd.errors import JobError
from chronograd.job import Job
from chronograd.train.rank_context import threads_per_rank

NEEDED = TORCH
prepare = prepare_nothing
available = installed


def plan(job: Job, run: Path, arguments: Sequence[str]) -> RankPlan:
    if job.cluster.count != 1:
        raise JobError(
            f"cluster.count is {job.cluster.count} and backend is single, which has one rank",
            "write backend=ddp, or cluster.count=1",
        )
    environment = {"OMP_NUM_THREADS": str(threads_per_rank(job.cluster, 1))}
    return RankPlan(
        torch_worker(run, arguments), world_size=1, environment=environment, max_restarts=job.cluster.max_restarts
    )

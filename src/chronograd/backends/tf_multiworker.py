"""TensorFlow's MultiWorkerMirroredStrategy: one process per rank, gradients summed by TensorFlow's own collectives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chronograd.backends.plan import RankPlan
from chronograd.backends.tensorflow.checks import NEEDED, check, is_there, worker
from chronograd.backends.tensorflow.prepared import prepare
from chronograd.job import Job

__all__ = ["NEEDED", "available", "plan", "prepare"]

available = is_there
# Values of a job's `communication.all_reduce`, and whether each needs GPUs.
ALL_REDUCE = {"auto": False, "ring": False, "nccl": True}


def plan(job: Job, run: Path, arguments: Sequence[str]) -> RankPlan:
    """Plan `cluster.count` processes, which exchange addresses at MASTER_ADDR and MASTER_PORT. Raises JobError."""
    check(job, ALL_REDUCE)
    return RankPlan(*worker(run, arguments, world_size=job.cluster.count))

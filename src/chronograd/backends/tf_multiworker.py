"""TensorFlow's MultiWorkerMirroredStrategy: one process per rank, gradients summed by TensorFlow's own collectives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chronograd.backends.plan import RankPlan
from chronograd.backends.tensorflow import checks, prepared
from chronograd.job import Job

NEEDED = checks.NEEDED
prepare = prepared.prepare
available = checks.is_there
# Values of a job's `communication.all_reduce`, and whether each needs GPUs.
ALL_REDUCE = {"auto": False, "ring": False, "nccl": True}


def plan(job: Job, run: Path, arguments: Sequence[str]) -> RankPlan:
    """Plan `cluster.count` processes, which exchange addresses at MASTER_ADDR and MASTER_PORT. Raises JobError."""
    return checks.plan(job, run, arguments, ALL_REDUCE, world_size=job.cluster.count)

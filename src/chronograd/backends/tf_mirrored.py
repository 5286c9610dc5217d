"""TensorFlow's MirroredStrategy: one process, a replica of the network on each of its devices, gradients summed over them.

Devices are GPUs if the machine has any, else logical devices that share the CPU.
"""

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
ALL_REDUCE = {"auto": False, "hierarchical_copy": False, "reduction_to_one_device": False, "nccl": True}


def plan(job: Job, run: Path, arguments: Sequence[str]) -> RankPlan:
    """Plan one process for all `cluster.count` replicas, which split the batch. Raises JobError."""
    return checks.plan(job, run, arguments, ALL_REDUCE, world_size=1)

"""PyTorch's fully sharded data parallelism (FSDP2): each rank stores its shard of every parameter, gradient and optimizer state.

Ranks gather the parameters of a block before it runs. With `training.zero_stage` 3 they free them after it and gather them again in
backward; with 2 they keep them until backward. Gradients are averaged and sharded while backward runs, with NCCL, or gloo on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chronograd.backends.plan import TORCH, RankPlan, installed, prepare_nothing, sharded_plan
from chronograd.errors import JobError
from chronograd.job import Job

NEEDED = TORCH
prepare = prepare_nothing
available = installed


def plan(job: Job, run: Path, arguments: Sequence[str]) -> RankPlan:
    """Plan all ranks on this machine; with one rank it equals `single`. Raises JobError."""
    if job.training.zero_stage not in (2, 3):
        raise JobError(
            f"training.zero_stage is {job.training.zero_stage}, and backend fsdp shards at least gradients",
            "write training.zero_stage=3 or 2, or backend=ddp",
        )
    return sharded_plan(job, run, arguments)

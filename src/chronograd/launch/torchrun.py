"""Starts the ranks through torchrun, standalone on this machine, meeting on the loopback interface."""

from __future__ import annotations

import sys
from collections.abc import Callable

from chronograd.backends.plan import RankPlan
from chronograd.launch.local import LOOPBACK, loopback_only
from chronograd.launch.processes import Process, run_together
from chronograd.rundir import RunDir

# Each start of the ranks is to meet at a store of its own: in one shared by all starts, a rank that was started again
# can read the address of one that is dead (seen with torch 2.14).
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def launch(plan: RankPlan, run: RunDir, watch: Callable[[], None] = lambda: None) -> None:
    """Run all ranks to their end. Raises RunError with the last lines that a rank printed."""
    environment = {**plan.environment, **loopback_only(), **OWN_STORE}
    process = Process("torchrun", command(plan), environment, run.output_path("torchrun"))
    run_together([process], watch)


def command(plan: RankPlan) -> tuple[str, ...]:
    """The command line, as one could type it."""
    return (
        *(sys.executable, "-m", "torch.distributed.run"),
        "--standalone",
        f"--local-addr={LOOPBACK}",
        f"--nproc-per-node={plan.world_size}",
        *((f"--max-restarts={plan.max_restarts}",) if plan.max_restarts else ()),
        "--no-python",
        *plan.command,
    )

"""A launcher that starts the ranks itself, on this machine, meeting at a free port of the loopback interface."""

from __future__ import annotations

import sys
from collections.abc import Callable

from chronograd.backends.meeting import LOOPBACK as LOOPBACK
from chronograd.backends.meeting import free_port as free_port
from chronograd.backends.plan import RankPlan
from chronograd.launch.processes import Process, run_together, with_restarts
from chronograd.rundir import RunDir


def launch(plan: RankPlan, run: RunDir, watch: Callable[[], None] = lambda: None) -> None:
    """Run all ranks until they end. Restarts them up to the plan's limit, each time at a new port.

    Raises RunError with the last lines of the rank that failed.
    """
    with_restarts(lambda: run_together(processes(plan, run), watch), plan.max_restarts)


def processes(plan: RankPlan, run: RunDir) -> list[Process]:
    """Return one process per rank."""
    meeting = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(free_port()), **loopback_only()}
    return [
        Process(
            name=f"rank {rank}",
            command=plan.command,
            environment={
                **plan.environment,
                **meeting,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(plan.world_size),
                "LOCAL_WORLD_SIZE": str(plan.world_size),
            },
            output=run.output_path(rank),
        )
        for rank in range(plan.world_size)
    ]


def loopback_only() -> dict[str, str]:
    """Return variables that make Gloo use loopback instead of the host name, which may not resolve."""
    return {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}

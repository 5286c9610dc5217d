"""Starts the ranks through horovodrun, on this machine, meeting at 127.0.0.1 by Gloo.

Horovod's own server of addresses is not bound to that interface.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from chronograd.backends.plan import RankPlan
from chronograd.launch.local import LOOPBACK
from chronograd.launch.processes import Process, run_together, with_restarts
from chronograd.rundir import RunDir
from chronograd.train.rank_command import PARENT_VARIABLE, exit_with_parent


def launch(plan: RankPlan, run: RunDir, watch: Callable[[], None] = lambda: None) -> None:
    """Run all ranks to their end. Raises RunError with the last lines that they printed."""
    process = Process("horovodrun", command(plan), plan.environment, run.output_path("horovodrun"))
    with_restarts(lambda: run_together([process], watch), plan.max_restarts)


def command(plan: RankPlan) -> tuple[str, ...]:
    """horovodrun by the interpreter of the ranks, which has Horovod. Given as an address, the host needs no name.

    Its cache, a folder in the user's home, is about other hosts.
    """
    python = plan.command[0]
    return (
        *(python, "-m", "chronograd.launch.horovodrun"),
        *("--gloo", "--disable-cache", "-np", str(plan.world_size), "-H", f"{LOOPBACK}:{plan.world_size}"),
        *plan.command,
    )


def main() -> None:
    """horovodrun, which ends with its parent. The ranks end with it: their standard input is closed."""
    exit_with_parent()
    os.environ.pop(PARENT_VARIABLE, None)
    from horovod.runner.launch import run_commandline

    try:
        run_commandline()
    except RuntimeError as error:
        sys.exit(f"horovodrun: {error}")


if __name__ == "__main__":
    main()

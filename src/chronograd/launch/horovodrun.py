"""A launcher that starts the ranks through horovodrun, on this machine, meeting at 127.0.0.1 by Gloo.

Horovod's own address server is not bound to that interface.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable

from chronograd import trust
from chronograd.backends.plan import RankPlan
from chronograd.errors import RunError
from chronograd.launch.local import LOOPBACK
from chronograd.launch.processes import KilledError, Process, run_together, tail, with_restarts
from chronograd.rundir import RunDir
from chronograd.train.rank_command import PARENT_VARIABLE, exit_with_parent

# The line in which horovodrun names the process that ended first. After a signal, a shell adds SHELL_KILLED to its number.
_FIRST = re.compile(r"Process name: (\d+)\s+Exit code: (-?\d+)")
SHELL_KILLED = 128


def launch(plan: RankPlan, run: RunDir, watch: Callable[[], None] = lambda: None) -> None:
    """Run all ranks until they end. Raises RunError with the last lines of their output."""
    process = Process("horovodrun", command(plan), plan.environment, run.output_path("horovodrun"))

    def start() -> None:
        try:
            run_together([process], watch)
        except RunError as error:
            raise killed(tail(process.output)) or error from None

    with_restarts(start, plan.max_restarts)


def killed(printed: str) -> KilledError | None:
    """Return the error of a rank that a signal ended, from horovodrun's last lines; None if the rank ended otherwise.

    Horovod names the first process that ended badly. The others then fail because it is missing.
    """
    found = _FIRST.findall(printed)
    if not found:
        return None
    rank, code = int(found[-1][0]), int(found[-1][1])
    number = -code if code < 0 else code - SHELL_KILLED
    if number not in {int(one) for one in signal.Signals}:
        return None
    return KilledError(
        f"rank {rank} was killed by {signal.Signals(number).name}; the other ranks failed because of that"
    )


def command(plan: RankPlan) -> tuple[str, ...]:
    """Return the horovodrun command, run by the interpreter of the ranks, which has Horovod. The host is an address, so it
    needs no name.

    It does not use horovodrun's cache in the home folder, which is about other hosts.
    """
    return (
        *trust.python("-m", "chronograd.launch.horovodrun", interpreter=plan.command[0]),
        *("--gloo", "--disable-cache", "-np", str(plan.world_size), "-H", f"{LOOPBACK}:{plan.world_size}"),
        *plan.command,
    )


def main() -> None:
    """Run horovodrun so that it ends with its parent. The ranks then end too, because their standard input closes."""
    exit_with_parent()
    os.environ.pop(PARENT_VARIABLE, None)
    from horovod.runner.launch import run_commandline

    try:
        run_commandline()
    except RuntimeError as error:
        sys.exit(f"horovodrun: {error}")


if __name__ == "__main__":
    main()

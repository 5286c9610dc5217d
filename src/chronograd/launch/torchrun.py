"""A launcher that starts the ranks through torchrun, on this machine alone, meeting on the loopback interface and in a file."""

from __future__ import annotations

import re
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

from chronograd import trust
from chronograd.backends.plan import RankPlan
from chronograd.errors import RunError
from chronograd.files import read_text
from chronograd.launch.local import LOOPBACK, loopback_only
from chronograd.launch.processes import KilledError, Process, how_it_ended, run_together
from chronograd.rundir import RunDir

# Each start of the ranks needs a new store. In a shared store, a restarted rank can read the address of a dead one (seen with
# torch 2.14).
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def launch(plan: RankPlan, run: RunDir, watch: Callable[[], None] = lambda: None) -> None:
    """Run all ranks until they end; torchrun restarts them up to the plan's limit.

    Raises RunError with the last lines that a rank printed, or KilledError that names the rank that was killed.
    """
    environment = {**plan.environment, **loopback_only(), **OWN_STORE}
    with tempfile.TemporaryDirectory() as folder:
        process = Process("torchrun", command(plan, Path(folder) / "store"), environment, run.output_path("torchrun"))
        try:
            run_together([process], watch)
        except RunError as error:
            if cause := killed(read_text(process.output, "replace")):
                raise KilledError(cause) from None
            raise error from None


def killed(printed: str) -> str:
    """Return the rank that was killed first and how, from torchrun's last report; empty if none was killed.

    torchrun ends the others by SIGTERM. It writes the first failure last; of several in one second it counts the lowest rank as
    first.
    """
    report = printed[printed.rfind("Failures:") :]
    found = [
        (int(code), rank)
        for rank, code in re.findall(r"rank\s{1,20}: (\d+) .{0,200}\n\s{0,20}exitcode\s{1,20}: (-\d+) ", report)
    ]
    first = [one for one in found if one[0] != -signal.SIGTERM] or found[-1:]
    text = "; ".join(f"rank {rank} {how_it_ended(code)}" for code, rank in reversed(first))
    return text + ("; torchrun then ended the other ranks" if len(first) < len(found) else "")


def command(plan: RankPlan, store: Path) -> tuple[str, ...]:
    """Return the command line, as a user could type it.

    Args:
        store: a file that does not exist yet, for torchrun's store, which would otherwise listen on every interface.
    """
    return (
        *trust.python("-m", "torch.distributed.run"),
        *("--rdzv-backend=c10d", "--rdzv-conf=store_type=file", f"--rdzv-endpoint={store}"),
        f"--local-addr={LOOPBACK}",
        f"--nproc-per-node={plan.world_size}",
        *((f"--max-restarts={plan.max_restarts}",) if plan.max_restarts else ()),
        "--no-python",
        *plan.command,
    )

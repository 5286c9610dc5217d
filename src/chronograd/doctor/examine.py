"""What a machine can do before a run: everything that is looked at, in about five seconds.

Whatever could hang or crash runs in processes with a deadline (`doctor.process`); what is not done in time is said so.
PyTorch is imported in one of them while the rest is looked at here. With hosts and with a job it takes longer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chronograd.doctor import cores
from chronograd.doctor.finding import Finding
from chronograd.doctor.process import asked
from chronograd.models import names

if TYPE_CHECKING:
    from chronograd.job import Job

GROUPS = ("job", "devices", "cores", "memory", "storage", "link", "hosts", "software")
CLEANING_S = 0.3


def examine(job: Job | None = None, hosts: str = "", out: str = "runs", everything: bool = False) -> list[Finding]:
    """What was found: what costs most of the job's time first, then by group.

    Args:
        job: what is to run; without one, what any job may meet.
        hosts: as of --hosts: `netns:h1,netns:h2` or names for ssh; without, a link is measured on this machine.
        out: the run directory, or its parent.
        everything: also backends and launchers that are not here, and that the job does not ask for.
    Raises: InputError for hosts that cannot be read.
    """
    started, load = time.monotonic(), cores.Load()
    with asked(_about(job, hosts)) as machine, asked({"of": "folder", "path": out}) as folder:
        from chronograd.doctor.checks import check  # takes a second, in which PyTorch is imported elsewhere

        found = check(machine, folder, job, hosts, Path(out), started, everything)
        folder.tell({"end": True})
        folder.wait("removed", time.monotonic() + CLEANING_S)
    return sorted([*found, load.finding()], key=lambda one: (-one.share, GROUPS.index(one.group)))


def can_start(found: Sequence[Finding]) -> bool:
    return not any(one.state == "obstacle" for one in found)


def _about(job: Job | None, hosts: str) -> dict[str, Any]:
    """What the process with PyTorch is asked."""
    if job is not None:
        names.check_code(job)
    return {
        "of": "machine",
        "has_link": not hosts and (job is None or job.cluster.count > 1),
        "precision": job.training.precision if job else "fp32",
        "threads": cores.usable_cores(),
        "on_cpu": job is not None and job.cluster.device == "cpu",
        "job": job.model_dump(mode="json") if job else None,
        "ranks": cores.ranks_here(job, hosts),
    }

"""All checks of a machine before a run, in about five seconds.

Checks that could hang or crash run in processes with a deadline (`doctor.process`); a finding reports those that miss it. One
process imports PyTorch while the other checks run here. Hosts and a job take longer.
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
    """Return all findings, by the share of the job's time that they cost, then by group.

    Args:
        job: the job to run; without one, the checks cover any job.
        hosts: as for --hosts: `netns:h1,netns:h2` or names for ssh; without them, a link is measured on this machine.
        out: the run directory, or its parent.
        everything: also report unavailable backends and launchers that the job does not need.
    Raises: InputError for hosts that cannot be parsed.
    """
    started, load = time.monotonic(), cores.Load()
    with asked(_about(job, hosts)) as machine, asked({"of": "folder", "path": out}) as folder:
        from chronograd.doctor.checks import check  # takes a second, while another process imports PyTorch

        found = check(machine, folder, job, hosts, Path(out), started, everything)
        folder.tell({"end": True})
        folder.wait("removed", time.monotonic() + CLEANING_S)
    return sorted([*found, load.finding()], key=lambda one: (-one.share, GROUPS.index(one.group)))


def can_start(found: Sequence[Finding]) -> bool:
    return not any(one.state == "obstacle" for one in found)


def _about(job: Job | None, hosts: str) -> dict[str, Any]:
    """Return the request to the process with PyTorch."""
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

"""Lines of a process at its start, before its first step, and at its end. Needs no torch.

From these lines of a steps file, chronograd.explain derives start-up, processor time and crowding.
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
from pathlib import Path

from chronograd.measure import environment
from chronograd.rundir.steps import End, Ready, Start, wall_clock_s

# Variables in which schedulers and containers name the GPUs of a process.
_GPU_VARIABLES = (
    "SLURM_GPUS_ON_NODE",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
    "CUDA_VISIBLE_DEVICES",
)


_has_started = False


def start(device: str, device_name: str, threads: int) -> Start:
    """Return the start line of this process. `process_time`: when it began, in seconds since 1970.

    `busy_s`: seconds until now that the process computed, plus those that its first thread waited for a core. A second run in
    one process has only its own start-up: it begins now and has not computed. `host` is a digest: ranks of one host have the
    same, and the name stays private.
    """
    global _has_started
    now, is_first = wall_clock_s(), not _has_started
    _has_started = True
    return Start(
        time=now,
        device=device,
        device_name=device_name,
        threads=threads,
        process_time=_process_start() if is_first else now,
        busy_s=time.process_time() + queued_s() if is_first else 0.0,
        cores=environment.cores(),
        host=_host(),
        gpus_given=gpus_given(),
    )


def ready(step: int = 0) -> Ready:
    """Return the line before the first step after `step`, which begins now."""
    return Ready(time=wall_clock_s(), step=step, queued_s=queued_s())


def end(step: int) -> End:
    """Return the line after all steps up to `step`, with seconds of processor time."""
    times = os.times()
    return End(time=wall_clock_s(), step=step, queued_s=queued_s(), user_s=times.user, system_s=times.system)


def gpus_given() -> str:
    """Return the variable that gives this process its GPUs, with its value; empty if none does."""
    for name in _GPU_VARIABLES:
        value = os.environ.get(name, "")
        if value not in ("", "-1", "0" if name == "SLURM_GPUS_ON_NODE" else "", "none", "void", "NoDevFiles"):
            return f"{name}={value}"
    return ""


def _process_start() -> float:
    """Return the start of the process, from /proc on Linux; elsewhere the current time."""
    try:
        ticks = int(stat_fields()[19])  # starttime, the 22nd field
        booted = wall_clock_s() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return booted + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return wall_clock_s()


def stat_fields(process: int | str = "self") -> list[str]:
    """Return the fields of /proc/PID/stat after the name in brackets: from the third, the state. Raises OSError if there are
    none.
    """
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def queued_s(thread: int | None = None) -> float:
    """Return the seconds that a thread of this process, by default the first, was ready to run while others had the core.

    It is 0 if the system does not report it.
    """
    path = "/proc/self/schedstat" if thread is None else f"/proc/self/task/{thread}/schedstat"
    try:
        return int(Path(path).read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _host() -> str:
    """Return a digest for each host and each network namespace of it, because processes of two namespaces communicate over a
    link.
    """
    try:
        inode = str(os.stat("/proc/self/ns/net").st_ino)
    except OSError:
        inode = ""
    return hashlib.sha256(f"{platform.node()} {inode}".encode()).hexdigest()[:8]

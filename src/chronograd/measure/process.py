"""What a process says of itself at the start, before its first step, and at its end. Needs no torch.

From these lines of a steps file start-up, processor time and crowding are told afterwards (chronograd.explain).
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
from pathlib import Path
from typing import Any

from chronograd.measure import environment
from chronograd.stepline import wall_clock_s

# Schedulers and containers that gave a process GPUs name them here.
_GPU_VARIABLES = (
    "SLURM_GPUS_ON_NODE",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
    "CUDA_VISIBLE_DEVICES",
)


_has_started = False


def at_start() -> dict[str, Any]:
    """`time`: now, seconds since 1970. `process_time`: when this process began. `cores`, `host`, `gpus_given`.

    `busy_s`: seconds that the process has computed, and that its first thread has waited for a processor, until now. A
    second run in one process has no start-up but its own: it began now and has not computed.
    `host` is a digest: ranks of one host have the same, and the name is not passed around.
    """
    global _has_started
    now, is_first = wall_clock_s(), not _has_started
    _has_started = True
    return {
        "time": now,
        "process_time": _process_start() if is_first else now,
        "busy_s": time.process_time() + _queued_s() if is_first else 0.0,
        "cores": environment.cores(),
        "host": _host(),
        "gpus_given": gpus_given(),
    }


def at_first_step() -> dict[str, float]:
    """`time`, and `queued_s`: seconds that this thread was ready to run and another process or thread had the processor."""
    return {"time": wall_clock_s(), "queued_s": _queued_s()}


def at_end() -> dict[str, float]:
    """As at the first step, and seconds of processor time, `user_s` and `system_s`."""
    times = os.times()
    return {**at_first_step(), "user_s": times.user, "system_s": times.system}


def gpus_given() -> str:
    """The variable by which this process was given GPUs, with its value; empty if none says so."""
    for name in _GPU_VARIABLES:
        value = os.environ.get(name, "")
        if value not in ("", "-1", "0" if name == "SLURM_GPUS_ON_NODE" else "", "none", "void", "NoDevFiles"):
            return f"{name}={value}"
    return ""


def _process_start() -> float:
    """From /proc on Linux; elsewhere this moment."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[19])  # starttime, the 22nd field; the first two are before the closing bracket
        booted = wall_clock_s() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return booted + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return wall_clock_s()


def _queued_s() -> float:
    """Of this thread; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _host() -> str:
    """One for each host, and for each network namespace of it, as processes of two meet over a link."""
    try:
        inode = str(os.stat("/proc/self/ns/net").st_ino)
    except OSError:
        inode = ""
    return hashlib.sha256(f"{platform.node()} {inode}".encode()).hexdigest()[:8]

"""What a process says of itself at the start, before its first step, and at its end. Needs no torch.

From these lines of a steps file start-up, processor time and crowding are told afterwards (chronograd.explain).
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
from pathlib import Path

from chronograd.measure import environment
from chronograd.rundir.steps import End, Ready, Start, wall_clock_s

# Schedulers and containers that gave a process GPUs name them here.
_GPU_VARIABLES = (
    "SLURM_GPUS_ON_NODE",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
    "CUDA_VISIBLE_DEVICES",
)


_has_started = False


def start(device: str, device_name: str, threads: int) -> Start:
    """Where this process is, from now on. `process_time`: when it began, in seconds since 1970.

    `busy_s`: seconds that the process has computed, and that its first thread has waited for a processor, until now. A
    second run in one process has no start-up but its own: it began now and has not computed.
    `host` is a digest: ranks of one host have the same, and the name is not passed around.
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
    """The first step after `step` begins now."""
    return Ready(time=wall_clock_s(), step=step, queued_s=queued_s())


def end(step: int) -> End:
    """All steps up to `step` are done; seconds of processor time."""
    times = os.times()
    return End(time=wall_clock_s(), step=step, queued_s=queued_s(), user_s=times.user, system_s=times.system)


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
        ticks = int(stat_fields()[19])  # starttime, the 22nd field
        booted = wall_clock_s() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return booted + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return wall_clock_s()


def stat_fields(process: int | str = "self") -> list[str]:
    """Fields of /proc/PID/stat after the name in brackets: from the third, the state. Raises OSError if there are none."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def queued_s(thread: int | None = None) -> float:
    """Seconds that a thread of this process, by default the first, was ready to run while others had the processor.

    0 where the system does not say.
    """
    path = "/proc/self/schedstat" if thread is None else f"/proc/self/task/{thread}/schedstat"
    try:
        return int(Path(path).read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _host() -> str:
    """One for each host, and for each network namespace of it, as processes of two meet over a link."""
    try:
        inode = str(os.stat("/proc/self/ns/net").st_ino)
    except OSError:
        inode = ""
    return hashlib.sha256(f"{platform.node()} {inode}".encode()).hexdigest()[:8]

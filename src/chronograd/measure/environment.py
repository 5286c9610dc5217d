"""The environment of a measurement: versions, processor, memory, GPUs, commit. Needs no torch.

The host's name is left out, because people share records.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LIBRARIES = (
    "chronograd",
    "torch",
    "torchvision",
    "timm",
    "numpy",
    "safetensors",
    "scikit-learn",
    "tensorflow-cpu",
    "ray",
)
COMMAND_TIMEOUT_S = 10.0


def environment() -> dict[str, Any]:
    """Return everything that belongs to a figure, as data for JSON.

    `versions`: of Python and of the installed libraries. `cores`: those this process may use. `gpus`: name, driver, memory and
    power limit from the driver. `git_commit`: of the current directory's checkout, and `git_is_dirty` if files of that commit were
    changed; absent outside of one.
    """
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": platform.platform(),
        "versions": versions(),
        "processor": processor_name(),
        "cores": cores(),
        "ram_bytes": ram_bytes(),
        "gpus": gpus(),
        **_git(),
    }


def versions() -> dict[str, str]:
    installed = {name: version_of(name) for name in LIBRARIES}
    return {"python": platform.python_version(), **{name: version for name, version in installed.items() if version}}


def version_of(name: str) -> str:
    """Return the version of an installed distribution; empty if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def cores() -> int:
    """Return the number of logical cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


def slice_s(release: str = platform.release()) -> float:
    """Return the seconds that Linux lets a thread continue although another one that wants its core wakes; 0 if the woken one
    runs first.

    Source: the scheduler of Linux 6.6 and later (kernel/sched/fair.c, RUN_TO_PARITY): 0.7 ms, times 1 + the binary logarithm of
    the machine's cores, at most 8 of them; 0.75 ms before 6.13.
    """
    version = re.match(r"(\d+)\.(\d+)", release)
    if platform.system() != "Linux" or not version or (number := tuple(map(int, version.groups()))) < (6, 6):
        return 0.0
    return (0.75e-3 if number < (6, 13) else 0.7e-3) * min(os.cpu_count() or 1, 8).bit_length()


def processor_ticks() -> tuple[float, float]:
    """Return the ticks of the allowed cores since the machine booted, as counted by Linux; zeros elsewhere.

    Returns: ticks in any process (user, nice, system, interrupts), and ticks that the host of a virtual machine took although a
    process
        was ready to run ("steal"). Source: proc(5), /proc/stat.
    """
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return 0.0, 0.0
    allowed = {f"cpu{cpu}" for cpu in os.sched_getaffinity(0)}
    rows = [[float(v) for v in line.split()[1:9]] for line in lines if line.split()[0] in allowed]
    return sum(row[0] + row[1] + row[2] + row[5] + row[6] for row in rows), sum(row[7] for row in rows)


def taken_share(before: tuple[float, float], after: tuple[float, float]) -> float:
    """Return the share of the wanted CPU time between two `processor_ticks` that the host took.

    >>> taken_share((100.0, 0.0), (400.0, 100.0))
    0.25
    """
    busy, taken = (now - then for now, then in zip(after, before, strict=True))
    return taken / (busy + taken) if taken > 0 else 0.0


def processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def ram_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def gpus() -> list[dict[str, Any]]:
    """Return the NVIDIA GPUs from `nvidia-smi`; empty if there are none, or if they are hidden."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return []
    fields = "name,driver_version,memory.total,power.limit"
    text = nvidia_smi(f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    found = []
    for line in (text or "").splitlines():
        name, driver, memory_mib, power_w = (part.strip() for part in line.rsplit(",", 3))
        found.append(
            {
                "name": name,
                "driver": driver,
                "memory_bytes": int(float(memory_mib) * 2**20) if _is_number(memory_mib) else None,
                "power_limit_w": float(power_w) if _is_number(power_w) else None,
            }
        )
    return found


def nvidia_smi(*options: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str | None:
    """Return the output of the driver's program; None if it is missing, fails or hangs."""
    return _output(["nvidia-smi", *options], timeout_s)


def _git() -> dict[str, Any]:
    """Return the commit of the working directory, and whether its files were changed.

    The directory may be a stranger's, and its `.git` may name programs that `git status` would run (`core.fsmonitor`, filters,
    hooks, a remote with missing objects). `git rev-parse` runs none. `git status` gets a repository with the same commit, index
    and objects, but without any configuration and hooks.
    """
    paths = ("--show-toplevel", "--git-path", "index", "--git-path", "objects")
    lines = (_output(["git", "--no-pager", "rev-parse", "HEAD", *paths]) or "").split("\n")[:-1]
    if len(lines) != 4:
        return {}
    commit, top, index, objects = lines
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "refs").mkdir()
        (Path(folder) / "HEAD").write_text(commit)
        places = {"GIT_DIR": folder, "GIT_WORK_TREE": top}
        places |= {"GIT_INDEX_FILE": os.path.abspath(index), "GIT_OBJECT_DIRECTORY": os.path.abspath(objects)}
        status = [
            "git",
            "--no-optional-locks",
            "status",
            "--porcelain",
            "--untracked-files=no",
            "--ignore-submodules=all",
        ]
        changes = _output(status, environment={**os.environ, **places})
    return {"git_commit": commit, **({} if changes is None else {"git_is_dirty": bool(changes)})}


def _output(
    command: list[str], timeout_s: float = COMMAND_TIMEOUT_S, environment: dict[str, str] | None = None
) -> str | None:
    """Return the output of a command; None if it is missing, fails or hangs."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=timeout_s,
            check=False,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

"""Checks of cores, threads and memory: the limits of this process, its settings, and the use by other programs."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chronograd.doctor.finding import Finding, judged
from chronograd.measure import environment
from chronograd.words import how_many

if TYPE_CHECKING:
    from chronograd.job import Job

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
CPUS = Path("/sys/devices/system/cpu")
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
# Share of the allowed cores: if other programs use more, a step on all cores becomes slower.
MAX_TAKEN = 0.25
MIN_FILES = 1_024
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


# -- cores -----------------------------------------------------------------------------------------------


def ranks_here(job: Job | None, hosts: str) -> int:
    """Return the ranks of a job on this machine. Namespaces are on this machine; other hosts each take their share."""
    count = job.cluster.count if job else 1
    names = hosts.split(",") if hosts else []
    others = sum(not name.strip().startswith("netns:") for name in names)
    return max(1, -(-count // others)) if others else count


def quota_cores(root: Path = CGROUPS, own: Path = OWN_CGROUP) -> float | None:
    """Return the cores that a control group grants (`docker run --cpus`, Kubernetes limits, SLURM); None without a limit.

    Neither the affinity nor PyTorch shows this limit. Reads cpu.max of version 2 and cpu.cfs_quota_us of version 1, of this
    process's group and of its parents.
    """
    found = []
    for folder in _groups(root, own, "cpu"):
        try:
            quota, _, period = (folder / "cpu.max").read_text().partition(" ")
        except OSError:
            try:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            except OSError:
                continue
        if quota.strip() not in ("max", "-1"):
            found.append(float(quota) / float(period))
    return min(found, default=None)


def _groups(root: Path, own: Path, controller: str) -> list[Path]:
    """Return the folders of this process's control group and of its parents, of either version."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return []
    folders = []
    for _, controllers, path in lines:
        if controllers and controller not in controllers.split(","):
            continue
        top = root / controllers if controllers else root
        here = top / path.strip("/")
        while here != top.parent:
            folders.append(here)
            here = here.parent
    return folders


def physical_cores(cpus: Path = CPUS) -> int:
    """Return the number of physical cores that this process may use."""
    seen = set()
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(environment.cores())
    for cpu in allowed:
        try:
            seen.add((cpus / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text())
        except OSError:
            seen.add(str(cpu))
    return len(seen)


def usable_cores() -> int:
    """Return the threads that can work simultaneously: physical cores, within the quota, at least 1."""
    quota = quota_cores()
    return max(1, min(physical_cores(), int(quota) if quota else physical_cores()))


def cores(ranks: int, threads: int | None, quota: float | None) -> list[Finding]:
    """Compare the cores with the ranks of a job on this machine and the threads of each (None: an equal share)."""
    logical, physical = environment.cores(), physical_cores()
    numbers = {"logical": logical, "physical": physical, "machine": os.cpu_count(), "quota": quota}
    if quota is not None and quota < logical:
        seen = f"this machine shows {logical} cores, but a control group grants {quota:g}"
        share = max(1, int(quota) // ranks)
        to_do = f"set cluster.threads={share}, set OMP_NUM_THREADS={share} for your own loops, or raise the limit"
        return [Finding("cores", "quota", seen, "warning", f"{to_do}: the system pauses threads beyond it", numbers)]
    seen = f"{logical} of the machine's {os.cpu_count()}, {physical} without hyper-threads, no quota"
    found = [Finding("cores", "cores", seen, numbers=numbers)]
    total = ranks * (threads or max(1, logical // ranks))
    if total > logical:
        seen = f"{how_many(ranks, 'ranks')} with {threads or 1} threads each on {how_many(logical, 'cores')}"
        most = max(1, logical // ranks)
        to_do = f"set cluster.threads={most}" + ("" if ranks <= logical else f", and cluster.count={logical} at most")
        found.append(Finding("cores", "ranks", seen, "warning", to_do, {"ranks": ranks, "threads": total}))
    return found


def thread_variables(ranks: int, variables: Mapping[str, str]) -> list[Finding]:
    """Compare OMP_NUM_THREADS and MKL_NUM_THREADS with cores / ranks. Ranks of chronograd ignore them."""
    share = max(1, usable_cores() // ranks)
    found = []
    for name in VARIABLES:
        text = variables.get(name)
        if text is None:
            continue
        count = int(text) if text.isdigit() else None
        why = (
            "is not a number"
            if count is None
            else "threads wait for each other"
            if count > share
            else "cores stay idle"
        )
        of = f"{share} {'core' if share == 1 else 'cores'} per rank"
        seen = f"{text}, with {of}" if count == share else f"{text!r} with {of}: {why}"
        to_do = f"export {name}={share}, or unset it; chronograd gives each of its ranks {share} regardless"
        numbers = {"threads": count, "cores_per_rank": share}
        found.append(judged("cores", name, seen, numbers, (count != share, "warning", to_do)))
    return found


class Load:
    """The allowed cores that other programs keep busy, measured from its creation on."""

    def __init__(self) -> None:
        self._start, self._ticks, self._own_s = time.monotonic(), environment.processor_ticks(), self._used_s()

    def finding(self) -> Finding:
        """Return the finding. Call it after our own processes have ended and were waited for."""
        seconds = max(time.monotonic() - self._start, 0.05)
        busy, stolen = (
            (now - then) / _TICKS_PER_S for now, then in zip(environment.processor_ticks(), self._ticks, strict=True)
        )
        others = max(0.0, (busy - (self._used_s() - self._own_s)) / seconds)
        taken, of = stolen / seconds, environment.cores()
        is_overbooked = taken > MAX_TAKEN * of
        stealing = f"; {taken:.1f} are used by other virtual machines" if is_overbooked else ""
        return judged(
            "cores",
            "load",
            f"other programs keep {others:.1f} of {of} cores busy (load average {os.getloadavg()[0]:.1f}){stealing}",
            {
                "busy_cores_of_others": round(others, 2),
                "stolen_cores": round(taken, 2),
                "seconds": round(seconds, 1),
            },
            (is_overbooked, "warning",
             "the host of this virtual machine is overbooked: ask for dedicated cores, or measure at another time"),
            (others > MAX_TAKEN * of, "warning", "find the program with `top`; wait for it, or end it"),
        )  # fmt: skip

    @staticmethod
    def _used_s() -> float:
        both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(usage.ru_utime + usage.ru_stime for usage in both)


def blas(build: Mapping[str, Any]) -> list[Finding]:
    """Check the libraries of linear algebra that PyTorch and NumPy use, from `measure.probe.build`."""
    name, numpy = str(build["blas"]), str(build["numpy_blas"])
    seen = f"{name or 'none'} in PyTorch ({build['vectors']}), {numpy or 'none'} in NumPy"
    numbers = {"torch": name, "numpy": numpy, "vectors": str(build["vectors"])}
    to_do = "matrix products are slow without one: install PyTorch from its official wheels, which have MKL or OpenBLAS"
    found = [judged("cores", "BLAS", seen, numbers, (name in ("", "generic"), "warning", to_do))]
    libraries = build["openmp"]
    if len({library.split(".")[0].split("-")[0] for library in libraries}) > 1:
        seen = f"{len(libraries)} OpenMP libraries in one process ({', '.join(libraries)}), each with its own threads"
        to_do = "install PyTorch and NumPy from one source, pip or conda, not both"
        found.append(Finding("cores", "OpenMP", seen, "warning", to_do, {"libraries": len(libraries)}))
    return found


# -- memory and limits -------------------------------------------------------------------------------------


def free_memory_bytes(root: Path = CGROUPS, own: Path = OWN_CGROUP) -> int | None:
    """Return the RAM available to new processes, within the control group's limit."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    free = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
    for folder in _groups(root, own, "memory"):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            try:
                free.append(int((folder / limit).read_text()) - int((folder / used).read_text()))
            except (OSError, ValueError):  # another version, or `max`
                continue
    return max(0, min(free)) if free else None


def open_files() -> Finding:
    """Check the limit on open files: loaders, Ray and many ranks need hundreds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    seen = f"{soft:,} open files per process" if soft != resource.RLIM_INFINITY else "open files without a limit"
    is_low = soft != resource.RLIM_INFINITY and soft < MIN_FILES
    to_do = f"ulimit -n {min(hard, 65536)}"
    return judged("memory", "open files", seen, {"soft": soft, "hard": hard}, (is_low, "warning", to_do))

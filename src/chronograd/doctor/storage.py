"""Checks of the run directory and other places on disk: file system, speed, locks, room for a job's files."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from chronograd.calibrate.workers import Worker
from chronograd.doctor.cores import free_memory_bytes
from chronograd.doctor.finding import SHARE, Finding, judged, late
from chronograd.train.checkpoint_folder import KEEP
from chronograd.units import percent, seconds, si
from chronograd.words import how_many

DEADLINE_S = 6.0
SHARED_MEMORY = Path("/dev/shm")
# A run without checkpoints writes a few MB of records and lines. With less free space than the second, any write may fail.
MIN_FREE_BYTES, NO_FREE_BYTES = 10**9, 10**7
MIN_INODES = 1_000
MIN_SHARED_BYTES = 2**28  # docker gives 64 MiB
MAX_SHARE = 0.05  # largest acceptable share of a run's time for checkpoints
SLOW_FSYNC_S, SLOW_BYTES_PER_S = 0.05, 50e6
MIN_FREE_MEMORY_BYTES = 2 * 10**9
_REASONS = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EROFS: "mount it for writing",
    errno.EACCES: "get permission to write there",
    errno.EPERM: "get permission to write there",
}
_PASSING = {
    "tmpfs": "is in memory: it uses RAM and is lost at a restart",
    "overlay": "is a container's own layer: it is lost with the container",
}


def run_directory(
    checks: Worker, path: Path, need_bytes: int | None, started: float, between_s: float | None = None
) -> list[Finding]:
    """Compare a process's measurements of a folder with a job's checkpoints and the time between them (None if unknown)."""
    until = started + DEADLINE_S
    what, elsewhere = f"run directory {path}", "name another folder with --out"
    room = checks.wait("room", until)
    if room is None:
        to_do = f"check that its file system responds (`df`), or {elsewhere}"
        if checks.why_ended:
            return [Finding("storage", str(path), checks.why_ended, "obstacle", to_do)]
        return [late("storage", what, DEADLINE_S, to_do, "obstacle")]
    on = f"{room['kind'] or 'unknown'} at {room['mount']}"
    measured = checks.wait("measured", until)
    if measured is None:
        to_do = f"{on} accepts no writes: check that its server responds, or {elsewhere}"
        return [late("storage", what, DEADLINE_S, to_do, "obstacle")]
    numbers = {**room, **measured}
    if "error" in measured:
        seen = f"cannot be written ({on}, {si(room['free_bytes'], 'B')} free): {measured['error']}"
        to_do = f"{_REASONS[measured['errno']]}, or {elsewhere}" if measured["errno"] in _REASONS else elsewhere
        return [Finding("storage", what, seen, "obstacle", to_do, numbers)]
    found = [_room(what, on, room, need_bytes), _speed(measured, need_bytes, numbers, between_s)]
    if not measured["has_locks"]:
        to_do = "do not let two processes use the same run directory; mount it with locks (NFS: without nolock)"
        found.append(Finding("storage", "locks", f"flock does not lock files on {on}", "warning", to_do))
    return found


def checkpoint_room_bytes(checkpoint_bytes: int) -> int:
    """Return the bytes of the stored checkpoints plus the new one, which is written before the oldest is deleted."""
    return (KEEP + 1) * checkpoint_bytes


def _room(what: str, on: str, room: dict[str, Any], need_bytes: int | None) -> Finding:
    free, inodes = room["free_bytes"], room["free_inodes"]
    need = checkpoint_room_bytes(need_bytes) if need_bytes is not None else None
    of = "" if need is None else f", {si(need, 'B')} needed for {KEEP} checkpoints and the next"
    seen = f"{on}, {si(free, 'B')} free{of}"
    to_do = "free some space, or name another folder with --out"
    return judged(
        "storage",
        what,
        seen if inodes is None or inodes >= MIN_INODES else f"{seen}, {inodes} inodes free",
        {"free_bytes": free, "free_inodes": inodes, "need_bytes": need, "kind": room["kind"]},
        (free < max(NO_FREE_BYTES, need or 0), "obstacle", to_do),
        (inodes is not None and inodes < MIN_INODES, "warning", f"remove small files; {to_do}"),
        (free < max(MIN_FREE_BYTES, 2 * (need or 0)), "warning", to_do),
        (
            room["kind"] in _PASSING,
            "warning",
            f"name a folder on a disk with --out; this folder {_PASSING.get(room['kind'])}",
        ),
    )


def _speed(
    measured: dict[str, Any], checkpoint_bytes: int | None, numbers: dict[str, Any], between_s: float | None = None
) -> Finding:
    """Return the finding on write speed; with a job, judge it by the share of time that its checkpoints take."""
    rate, fsync_s = measured["write_bytes_per_s"], measured["fsync_s"]
    seen = f"{si(rate, 'B/s')} written and synced; fsync {seconds(fsync_s)}, rename {seconds(measured['rename_s'])}"
    if checkpoint_bytes:
        written_s = checkpoint_bytes / rate + fsync_s
        seen += f"; a checkpoint of {si(checkpoint_bytes, 'B')} takes {seconds(written_s)}"
    to_do = "write checkpoints less often (training.checkpoint_every), or name a folder on a faster disk with --out"
    is_slow = fsync_s > SLOW_FSYNC_S or rate < SLOW_BYTES_PER_S
    if checkpoint_bytes and between_s is not None:
        share = written_s / (written_s + between_s)
        seen += f", once in {seconds(between_s)}" + (f": {percent(share, 0)} of the time" if share > MAX_SHARE else "")
        is_slow, numbers = share > MAX_SHARE, {**numbers, SHARE: share}
    return judged("storage", "speed", seen, numbers, (is_slow, "warning", to_do))


def shared_memory(path: Path = SHARED_MEMORY) -> list[Finding]:
    """Check /dev/shm, through which loader workers, NCCL and Ray exchange data. Return nothing if it does not exist."""
    try:
        status = os.statvfs(path)
    except OSError:
        return []
    size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    seen, numbers = f"{path}: {si(free, 'B')} free of {si(size, 'B')}", {"free_bytes": free, "bytes": size}
    to_do = f"mount -o remount,size=2G {path}; in a container start it with --shm-size=2g or --ipc=host"
    return [judged("memory", "shared memory", seen, numbers, (free < MIN_SHARED_BYTES, "warning", to_do))]


def memory(need_bytes: int | None, ranks: int) -> Finding:
    """Compare free RAM with the need of a job's ranks on this machine's processors (None if unknown)."""
    free = free_memory_bytes()
    if free is None:
        return Finding("memory", "memory", "this system does not report its free RAM", "absent")
    need = None if need_bytes is None else need_bytes * ranks
    each = "" if ranks == 1 else f" ({how_many(ranks, 'ranks')} of {si(need_bytes or 0, 'B')})"
    of = "" if need is None else f", {si(need, 'B')} needed{each}"
    to_do = "make training.batch smaller, or raise training.accumulation; end other processes"
    return judged(
        "memory",
        "memory",
        f"{si(free, 'B')} of RAM free{of}",
        {"free_bytes": free, "need_bytes": need},
        (need is not None and need > free, "obstacle", to_do),
        (free < max(MIN_FREE_MEMORY_BYTES, 1.25 * (need or 0)), "warning", to_do),
    )

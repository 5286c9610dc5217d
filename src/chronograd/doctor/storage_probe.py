"""Measurements of a folder as a run would use it: its file system, the speed of small files, and whether locks work.

They may hang on a dead network file system: call them in a process that can be abandoned.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

MOUNTS = Path("/proc/mounts")
MARK = ".chronograd-doctor-"
SMALL_FILES = 8
SMALL_BYTES = 4_096
BLOCK_BYTES = 2**22
MAX_BYTES = 2**25
WRITE_S = 0.3


def existing(path: Path) -> Path:
    """Return the folder itself, or its nearest existing parent."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def room(path: Path) -> dict[str, Any]:
    """Return file system, free bytes and free inodes (None if it does not count them) of an existing folder."""
    status = os.statvfs(path)
    kind, mount = _file_system(path)
    return {
        "path": str(path),
        "kind": kind,
        "mount": mount,
        "is_read_only": bool(status.f_flag & os.ST_RDONLY),
        "free_bytes": status.f_bavail * status.f_frsize,
        "free_inodes": status.f_favail if status.f_files else None,
    }


def make_mark(folder: Path) -> Path:
    """Create a new hidden folder in it, for `measure`, and for other hosts to see.

    Raises: OSError.
    """
    return Path(tempfile.mkdtemp(prefix=MARK, dir=folder))


def measure(mark: Path) -> dict[str, Any]:
    """Return seconds to sync and to rename a small file, bytes per second written and synced, and whether flock works.

    Raises: OSError, such as for a full disk.
    """
    syncs, renames = [], []
    for i in range(SMALL_FILES):
        aside, final = mark / f"{i}.aside", mark / str(i)
        with aside.open("wb") as stream:
            stream.write(b"x" * SMALL_BYTES)
            stream.flush()
            start = time.perf_counter()
            os.fsync(stream.fileno())
            syncs.append(time.perf_counter() - start)
        start = time.perf_counter()
        aside.rename(final)
        renames.append(time.perf_counter() - start)
    return {
        "fsync_s": statistics.median(syncs),
        "rename_s": statistics.median(renames),
        "write_bytes_per_s": _write_rate(mark / "large"),
        "has_locks": _has_locks(mark / "0"),
    }


def remove(mark: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(mark)


def _write_rate(path: Path) -> float:
    block, written = os.urandom(BLOCK_BYTES), 0
    start = time.perf_counter()
    with path.open("wb") as stream:
        while written < MAX_BYTES and time.perf_counter() - start < WRITE_S:
            stream.write(block)
            stream.flush()
            os.fsync(stream.fileno())
            written += BLOCK_BYTES
    return written / (time.perf_counter() - start)


def _has_locks(path: Path) -> bool:
    """Return whether a second lock on a file fails while the first is held."""
    try:
        import fcntl
    except ImportError:
        return False
    with path.open("ab") as first, path.open("ab") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _file_system(path: Path) -> tuple[str, str]:
    """Return type and mount point of the last mount above a folder."""
    whole, kind, mount = str(path.resolve()), "", ""
    try:
        lines = MOUNTS.read_text().splitlines()
    except OSError:
        return "", ""
    for line in lines:
        fields = line.split()
        point = fields[1].encode().decode("unicode_escape")  # /proc/mounts writes blanks as \040
        inside = whole == point or whole.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(mount):
            kind, mount = fields[2], point
    return kind, mount

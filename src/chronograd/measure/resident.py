"""Peak resident memory of this process. Never imports torch."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import psutil

_STATUS = Path("/proc/self/status")


class PeakResident:
    """Peak resident memory after `__init__` less what was resident then; so it also holds what libraries load on first use.

    `source` says how it was read.
    """

    def __init__(self) -> None:
        self._start_bytes: int = psutil.Process().memory_info().rss
        what = "peak resident memory" if _forget_peak() else "peak resident memory of the process's life"
        self.source = f"{what} less what was resident at the start"

    def peak_bytes(self) -> int:
        return max(0, _peak_resident_bytes() - self._start_bytes)


def _forget_peak() -> bool:
    """Ask Linux to forget the peak so far. Other systems remember it for the life of the process."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _peak_resident_bytes() -> int:
    try:
        found = re.search(r"VmHWM:\s*(\d+) kB", _STATUS.read_text())
    except OSError:
        found = None
    if found:
        return int(found[1]) * 1024
    import resource  # not on Windows

    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit

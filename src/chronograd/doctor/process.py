"""The processes in which `doctor` looks: at this machine, a folder, or one of several hosts."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from chronograd.calibrate.workers import Worker

WORKER = (sys.executable, "-m", "chronograd.doctor.worker")
# Left to each rank of a run by its backend; what is measured is what a run would get.
_OURS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "GLOO_SOCKET_IFNAME")


def asked(about: dict[str, Any], command: Sequence[str] = WORKER) -> Worker:
    """A process that was told what to look at."""
    worker = Worker(command, {name: value for name, value in os.environ.items() if name not in _OURS})
    worker.tell(about)
    return worker

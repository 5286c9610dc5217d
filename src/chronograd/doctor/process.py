"""The processes that run the checks of `doctor`: of this machine, of a folder, or of one of several hosts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from chronograd import trust
from chronograd.calibrate.workers import Worker

WORKER = trust.python("-m", "chronograd.doctor.worker")
# Unset, because the backend of a run sets them for each rank; so we measure the speed of a run.
_OURS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "GLOO_SOCKET_IFNAME")


def asked(about: dict[str, Any], command: Sequence[str] = WORKER) -> Worker:
    """Start a process and send it the description of its checks."""
    worker = Worker(command, {name: value for name, value in os.environ.items() if name not in _OURS})
    worker.tell(about)
    return worker

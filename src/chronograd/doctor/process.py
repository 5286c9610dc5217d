"""Checks in a process of their own, which may hang or die without harm to who asked.

It reads a line of JSON, prints `STAGE JSON` as each check is done, and may read more lines between them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any, Self

WORKER = (sys.executable, "-m", "chronograd.doctor.worker")
# Left to each rank of a run by its backend; what is measured is what a run would get.
_OURS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "GLOO_SOCKET_IFNAME")
GRACE_S = 0.5


class Checks:
    """A process of `doctor_worker`, or of another command. As a context it ends it."""

    def __init__(self, asked: dict[str, Any], command: Sequence[str] = WORKER) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in _OURS}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True, bufsize=0
        )
        self._said: dict[str, Any] = {}
        self._errors: list[str] = []
        self._has_ended = False
        self._news = threading.Condition()
        self._readers = [threading.Thread(target=target, daemon=True) for target in (self._read_errors, self._read)]
        for reader in self._readers:
            reader.start()
        self.tell(asked)

    def tell(self, data: dict[str, Any]) -> None:
        """One line for it to read; nothing happens if it is gone."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(data).encode() + b"\n")
            self._process.stdin.flush()

    def wait(self, stage: str, until: float) -> Any:
        """What it says of a stage; None if it says nothing until then (time.monotonic), or ends before."""
        with self._news:
            while stage not in self._said and not self._has_ended and time.monotonic() < until:
                self._news.wait(max(0.0, until - time.monotonic()))
            return self._said.get(stage)

    @property
    def why_ended(self) -> str:
        """The last line of its errors, if it has ended; empty while it runs."""
        return (self._errors[-1] if self._errors else "it ended without a word") if self._has_ended else ""

    def end(self) -> None:
        """End it and its children. One that hangs in the kernel is left behind, for when it comes back."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            threading.Thread(target=self._process.wait, daemon=True).start()
        for reader in self._readers:
            reader.join(GRACE_S)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in _lines(self._process.stdout):
            stage, _, rest = line.partition(" ")
            with contextlib.suppress(ValueError), self._news:  # libraries print too
                self._said[stage] = json.loads(rest)
                self._news.notify_all()
        self._readers[0].join(GRACE_S)
        with self._news:
            self._has_ended = True
            self._news.notify_all()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors += filter(None, map(str.strip, _lines(self._process.stderr)))


def _lines(stream: IO[bytes]) -> Iterator[str]:
    """Until its end, or until `end` closes it."""
    with contextlib.suppress(OSError, ValueError):
        for line in stream:
            yield line.decode(errors="replace")

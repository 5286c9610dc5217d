"""Measuring processes and their protocol: each reads lines of JSON and prints `STAGE JSON`, by `read` and `say`.

A process that hangs or dies does not harm its caller. Needs no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from subprocess import Popen  # imported by name because tests replace it with a faster one: tests/fork_server.py
from typing import IO, Any, Protocol, Self

from chronograd import trust
from chronograd.errors import RunError, require
from chronograd.train.rank_command import PARENT_VARIABLE

# Called with the completed share, 0 to 1, and the current activity.
Progress = Callable[[float, str], None]
TIMEOUT_S = 600.0
GRACE_S = 0.5


class Worker:
    """A started process. Its context manager ends it.

    Args:
        lines: queue of its lines, each with the worker and its stage, `ended` last; several workers may share one.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        lines: queue.SimpleQueue[tuple[Worker, str, Any]] | None = None,
    ) -> None:
        pipe = subprocess.PIPE
        self._process: Popen[bytes] = Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True, bufsize=0
        )
        self._lines = queue.SimpleQueue() if lines is None else lines
        self._reported: dict[str, Any] = {}
        self.errors: list[str] = []
        self._readers = [threading.Thread(target=target, daemon=True) for target in (self._read_errors, self._read)]
        for reader in self._readers:
            reader.start()

    def tell(self, data: Any) -> None:
        """Send one line to the process; do nothing if it has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(data).encode() + b"\n")
            self._process.stdin.flush()

    def wait(self, stage: str, until: float) -> Any:
        """Return the data that it prints for a stage; None if it prints none by `until` (time.monotonic), or ends before."""
        while stage not in self._reported and "ended" not in self._reported:
            try:
                _, reported, data = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            self._reported[reported] = data
        return self._reported.get(stage)

    @property
    def why_ended(self) -> str:
        """Return the last line of its errors if it ended during a wait; else empty."""
        return (
            (self.errors[-1] if self.errors else "it ended without an error message")
            if "ended" in self._reported
            else ""
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End the process and its children. Leave a process that hangs in the kernel to a background thread."""
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

    def _read(self) -> None:
        for line in _text(self._process.stdout):
            stage, _, rest = line.partition(" ")
            with contextlib.suppress(ValueError):  # libraries print too
                self._lines.put((self, stage, json.loads(rest)))
        self._readers[0].join(GRACE_S)
        self._lines.put((self, "ended", True))

    def _read_errors(self) -> None:
        self.errors += filter(None, map(str.strip, _text(self._process.stderr)))


def _text(stream: IO[bytes] | None) -> Iterator[str]:
    """Yield lines until the stream ends or is closed."""
    assert stream is not None
    with contextlib.suppress(OSError, ValueError):
        for line in stream:
            yield line.decode(errors="replace")


class WorkerSeat(Protocol):
    """The host of a worker, if it does not simply run here; see chronograd.launch.hosts."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the variables with its rank and the addresses of the others."""

    def command(self, command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
        """Return the command to start here that runs `command` there."""


def part_of(progress: Progress, index: int, count: float, prefix: str = "") -> Progress:
    """Return the progress of part `index` of `count` equal parts."""
    return lambda share, text: progress((index + share) / count, prefix + text)


def run_workers(
    module: str,
    arguments: Sequence[Sequence[str]],
    report: Progress = lambda share, name: None,
    steps: int = 1,
    seats: Sequence[WorkerSeat] = (),
) -> list[dict[str, Any]]:
    """Run one `python -m module` per entry of `arguments`, started together, and return the `result` of each.

    A worker prints `ready`, reads a line, and prints `progress` with a name any number of times. `report` is called with the
    completed share of all workers' `steps` progress lines, and the name of the last. With `seats`, one for each worker, they
    run there.

    Raises: RunError; MissingExtraError without torch, which the modules here need.
    """
    if not seats:
        require("torch", "torch", "timing in processes of this machine")
    lines: queue.SimpleQueue[tuple[Worker, str, Any]] = queue.SimpleQueue()
    results: dict[Worker, dict[str, Any]] = {}
    num_ready = num_steps = 0
    with ExitStack() as stack:
        workers = []
        for number, words in enumerate(arguments):
            command: Sequence[str] = trust.python("-m", module, *words)
            environment = {PARENT_VARIABLE: "1"}
            if seats:
                environment |= seats[number].environment
                command = seats[number].command(command, environment)
            workers.append(stack.enter_context(Worker(command, {**os.environ, **environment}, lines)))
        while len(results) < len(workers):
            try:
                worker, stage, data = lines.get(timeout=TIMEOUT_S)
            except queue.Empty:
                raise RunError(f"a calibration process did not respond for {TIMEOUT_S:.0f} s") from None
            if stage == "ready":
                num_ready += 1
                for one in workers if num_ready == len(workers) else ():
                    one.tell("go")
            elif stage == "progress":
                num_steps += 1
                report(num_steps / (steps * len(workers)), data)
            elif stage == "result":
                results[worker] = data
            elif stage == "ended" and worker not in results:
                errors = "\n".join(worker.errors)
                raise RunError(f"a calibration process failed:\n{errors[-2000:]}")
    return [results[worker] for worker in workers]


# -- within a worker ---------------------------------------------------------------------------------------------------


def say(stage: str, data: Any = True) -> None:
    sys.stdout.write(f"{stage} {json.dumps(data)}\n")
    sys.stdout.flush()


def read() -> Any:
    """Return the next line. Exit the process at the end of input: its caller has ended."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)

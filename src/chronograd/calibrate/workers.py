"""Processes that measure. Each reads lines of JSON and prints `STAGE JSON` as it goes, by `read` and `say`; it may hang or die
without harm to who asked. Needs no torch.
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
from subprocess import Popen  # by its name, as tests put a quicker one in its place: tests/fork_server.py
from typing import IO, Any, Protocol, Self

from chronograd.errors import RunError, require
from chronograd.train.rank_command import PARENT_VARIABLE

# Called with the share done, 0 to 1, and what is being done.
Progress = Callable[[float, str], None]
TIMEOUT_S = 600.0
GRACE_S = 0.5


class Worker:
    """A process that was started. As a context it ends it.

    Args:
        lines: where its lines go, each with the worker and its stage, `ended` last; several may share one.
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
        self._said: dict[str, Any] = {}
        self.errors: list[str] = []
        self._readers = [threading.Thread(target=target, daemon=True) for target in (self._read_errors, self._read)]
        for reader in self._readers:
            reader.start()

    def tell(self, data: Any) -> None:
        """One line for it to read; nothing happens if it is gone."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(data).encode() + b"\n")
            self._process.stdin.flush()

    def wait(self, stage: str, until: float) -> Any:
        """What it says of a stage; None if it says nothing until then (time.monotonic), or ends before."""
        while stage not in self._said and "ended" not in self._said:
            try:
                _, said, data = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            self._said[said] = data
        return self._said.get(stage)

    @property
    def why_ended(self) -> str:
        """The last line of its errors, if it ended while it was waited for; else empty."""
        return (self.errors[-1] if self.errors else "it ended without a word") if "ended" in self._said else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
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
    """Lines until the end, or until the stream is closed."""
    assert stream is not None
    with contextlib.suppress(OSError, ValueError):
        for line in stream:
            yield line.decode(errors="replace")


class WorkerSeat(Protocol):
    """Where a worker runs, if not simply here; see chronograd.launch.hosts."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that say its rank and where the others are."""

    def command(self, command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
        """A command as it is started from here, to run there."""


def part_of(progress: Progress, index: int, count: float, prefix: str = "") -> Progress:
    """The progress of one of so many equal parts."""
    return lambda share, text: progress((index + share) / count, prefix + text)


def run_workers(
    module: str,
    arguments: Sequence[Sequence[str]],
    report: Progress = lambda share, name: None,
    steps: int = 1,
    seats: Sequence[WorkerSeat] = (),
) -> list[dict[str, Any]]:
    """Run one `python -m module` per entry of `arguments`, begun together, and return what each said as its `result`.

    A worker says `ready`, reads a line, and says `progress` with a name as often as it likes. `report` is called with the share of
    `steps` such lines of all workers, and the name of the last. With `seats`, one for each worker, they run there. Raises
    RunError, and MissingExtraError without torch, which the modules here need.
    """
    if not seats:
        require("torch", "torch", "timing in processes of this machine")
    lines: queue.SimpleQueue[tuple[Worker, str, Any]] = queue.SimpleQueue()
    results: dict[Worker, dict[str, Any]] = {}
    num_ready = num_steps = 0
    with ExitStack() as stack:
        workers = []
        for number, words in enumerate(arguments):
            command: Sequence[str] = (sys.executable, "-m", module, *words)
            environment = {PARENT_VARIABLE: "1"}
            if seats:
                environment |= seats[number].environment
                command = seats[number].command(command, environment)
            workers.append(stack.enter_context(Worker(command, {**os.environ, **environment}, lines)))
        while len(results) < len(workers):
            try:
                worker, stage, data = lines.get(timeout=TIMEOUT_S)
            except queue.Empty:
                raise RunError(f"a calibration process said nothing for {TIMEOUT_S:.0f} s") from None
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
    """The next line. Ends the process when there is none: who asked is gone."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)

"""Processes that measure at the same time: started together, begun together, each printing its result as JSON.

A worker prints `ready`, waits for a line on its standard input, prints `progress NAME` as often as it likes and
`result JSON` at its end.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from subprocess import Popen  # by its name, as tests put a quicker one in its place: tests/fork_server.py
from typing import Any, Protocol

from chronograd.errors import RunError, require

TIMEOUT_S = 600.0


class Seat(Protocol):
    """Where a worker runs, if not simply here; see chronograd.launch.hosts."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that say its rank and where the others are."""

    def command(self, command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
        """A command as it is started from here, to run there."""


def run_workers(
    module: str,
    arguments: Sequence[Sequence[str]],
    report: Callable[[float, str], None] = lambda share, name: None,
    steps: int = 1,
    environment: Mapping[str, str] | None = None,
    seats: Sequence[Seat] = (),
) -> list[dict[str, Any]]:
    """Run one `python -m module` per entry of `arguments` and return what each printed as its result.

    `report` is called with the share of `steps` progress lines of all workers, and the name of the last. With `seats`,
    one for each worker, they run there. Raises RunError, and MissingExtraError without torch, which the modules here need.
    """
    if not seats:
        require("torch", "torch", "timing in processes of this machine")
    with _started(module, arguments, environment or {}, seats) as running:
        lines: queue.Queue[tuple[int, str]] = queue.Queue()
        for i, process in enumerate(running):
            threading.Thread(target=_read, args=(i, process, lines), daemon=True).start()
        waiting, done = len(running), 0
        results: list[dict[str, Any]] = [{} for _ in running]
        while not all(results):
            try:
                i, line = lines.get(timeout=TIMEOUT_S)
            except queue.Empty:
                raise RunError(f"a calibration process said nothing for {TIMEOUT_S:.0f} s") from None
            word, _, rest = line.partition(" ")
            if word == "ready":
                waiting -= 1
                if waiting == 0:
                    _begin(running)
            elif word == "progress":
                done += 1
                report(done / (steps * len(running)), rest)
            elif word == "result":
                results[i] = json.loads(rest)
            elif word == "ended" and not results[i]:
                raise RunError(f"a calibration process failed:\n{rest[-2000:]}")
        return results


@contextmanager
def _started(
    module: str, arguments: Sequence[Sequence[str]], environment: Mapping[str, str], seats: Sequence[Seat]
) -> Iterator[list[Popen[str]]]:
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    running = []
    for number, words in enumerate(arguments):
        command, own = (sys.executable, "-m", module, *words), {"PYTHONUNBUFFERED": "1", **environment}
        if seats:
            own |= seats[number].environment
            command = seats[number].command(command, own)
        running.append(Popen(command, env={**os.environ, **own}, **pipes))
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def _begin(running: Sequence[Popen[str]]) -> None:
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()


def _read(index: int, process: Popen[str], lines: queue.Queue[tuple[int, str]]) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        for line in process.stdout:
            lines.put((index, line.rstrip("\n")))
        lines.put((index, "ended " + process.stderr.read()))
    except ValueError:  # closed by the parent, which has what it needs
        return

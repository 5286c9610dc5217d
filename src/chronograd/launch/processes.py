"""Processes that live and die together: started, watched, ended, reaped.

The parent holds the other end of each rank's standard input. When the parent dies, even by `kill -9`, the rank reads the end of
the file and ends itself (chronograd.train.worker).
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen  # imported by name, because tests replace it with a faster one: tests/fork_server.py
from typing import IO, Any

from chronograd.errors import DiskFullError, RunError
from chronograd.files import disk_full, filling, open_to_append, read_bytes
from chronograd.train.rank_command import DISK_FULL_STATUS, PARENT_VARIABLE

POLL_S = 0.1
GRACE_S = 5.0
TAIL_LINES = 20


class KilledError(RunError):
    """A process was killed from outside, so the errors of the other processes are not the cause."""


@dataclass(frozen=True)
class Process:
    """A process to start. Its output goes to `output`."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]
    output: Path


def with_restarts(start: Callable[[], None], max_restarts: int) -> None:
    """Start processes, and again after a failure up to `max_restarts` times. Raises the RunError of the last start."""
    for restart in range(max_restarts + 1):
        try:
            start()
            return
        except RunError:
            if restart == max_restarts:
                raise


def run_together(processes: Sequence[Process], watch: Callable[[], None] = lambda: None) -> None:
    """Run processes until all have ended successfully. `watch` is called about ten times a second, and once at the end.

    If one fails, the others are ended, and RunError has the end of its output. A killed process is blamed before one that
    failed, because it may be the cause. An interrupt or SIGTERM is passed on to the processes. No process, nor any that it
    started, outlives the call.
    """
    started: list[Popen[bytes]] = []
    with _sigterm_raises():
        ending = signal.SIGTERM
        try:
            for process in processes:
                started.append(_start(process))
            codes = [p.poll() for p in started]
            while None in codes and not any(codes):
                watch()
                time.sleep(POLL_S)
                codes = [p.poll() for p in started]
        except KeyboardInterrupt:
            ending = signal.SIGINT
            raise
        finally:
            _end(started, ending)
    watch()
    bad = [(code, process) for process, code in zip(processes, codes, strict=True) if code]
    for code, process in sorted(bad, key=lambda one: one[0] > 0):
        if code == DISK_FULL_STATUS:
            full = disk_full(process.output.parent, OSError(errno.ENOSPC, ""))
            assert full is not None
            raise DiskFullError(f"{process.name}: {full.message}", full.hint)
        ended = f"{process.name} {how_it_ended(code)}"
        kind = KilledError if code < 0 else RunError
        raise kind(f"{ended}; the end of {process.output}:\n{tail(process.output)}")


def _start(process: Process) -> Popen[bytes]:
    """Start a process in a new session, so that a terminal's interrupt reaches it through us only."""
    environment = {**os.environ, **process.environment, PARENT_VARIABLE: "1"}
    with filling(process.output), _output(process) as output:
        return Popen(
            process.command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _output(process: Process) -> IO[bytes]:
    """Open the output of a process. Raises RunError where a link or a pipe takes its place: a run may be a stranger's."""
    try:
        return open_to_append(process.output)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EINVAL, errno.ENXIO):
            raise RunError(f"cannot write {process.output}: it is a link, or no file", "remove it") from None
        raise


def _end(started: Sequence[Popen[bytes]], ending: signal.Signals) -> None:
    """Ask the running processes to end, then force them and their children; reap all."""
    offspring = _offspring(started)
    for process in started:
        if process.poll() is None:
            _signal_group(process, ending)
    deadline = time.monotonic() + GRACE_S
    for process in started:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        if process.poll() is None:
            _signal_group(process, signal.SIGKILL)
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
    for child in offspring:  # a child that was stopped, or runs in another session, is still alive
        with contextlib.suppress(Exception):
            child.kill()


def _offspring(started: Sequence[Popen[bytes]]) -> list[Any]:
    """Return running processes that these have started; none if psutil is not installed."""
    try:
        import psutil
    except ImportError:
        return []
    found = []
    for process in started:
        with contextlib.suppress(psutil.Error):
            found += psutil.Process(process.pid).children(recursive=True)
    return found


def _signal_group(process: Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Make SIGTERM unwind the stack, with the usual exit status 143. Only the main thread can do this."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def how_it_ended(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit status {code}"


def tail(path: Path, mark: str = "") -> str:
    """Return the last lines of a file; with `mark` only lines that begin with it."""
    try:
        text = read_bytes(path).decode(errors="replace")
    except OSError:
        text = ""
    lines = [line for line in text.splitlines() if line.strip() and line.startswith(mark)][-TAIL_LINES:]
    return "\n".join(f"  {line}" for line in lines) or "  (nothing was printed)"

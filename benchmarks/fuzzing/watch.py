"""The definition of a finding: anything except a good parse, or one clear error, in time, without execution or changes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.fuzzing.targets import Target
from chronograd.errors import ChronogradError

# CPU time of one input. Instrumented code runs three to five times slower.
MAX_CPU_S = 5.0
# Seconds of idle waiting, and of CPU time, after which an input counts as hanging and is interrupted.
MAX_WAIT_S, MAX_BUSY_S = 10.0, 20.0
_TICK_S = 0.5
# Largest error message that a person will read.
MAX_LETTERS, MAX_LINES = 10_000, 40
OUTSIDE = b"the user's own\n"
_EXECUTES = ("os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen", "pty.spawn", "socket.connect")
_CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.truncate", "os.chmod", "os.chown", "os.link", "shutil.rmtree")


@dataclass(frozen=True)
class Finding:
    """The kind of a fault in one word, and its place; findings at the same place count once."""

    kind: str
    place: str
    text: str


class Hang(BaseException):
    """Exception raised by the clock inside a hanging input. No parser catches it."""


class _Guard:
    """Observer of a parser's actions through Python's audit events. A process can install it once and cannot remove it."""

    def __init__(self) -> None:
        self.scratch = ""
        self.seen = ""
        self.is_up = False

    def put_up(self) -> None:
        self.is_up = True
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.scratch or self.seen:
            return
        if event in _EXECUTES:
            self.seen = f"executed: {event} {arguments[:1]!r}"
        elif event == "open" or event in _CHANGES:
            path, flags = arguments[0], arguments[2] if event == "open" and len(arguments) > 2 else os.O_RDWR
            is_writing = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            if is_writing and isinstance(path, str | bytes | os.PathLike) and not self._is_own(os.fsdecode(path)):
                self.seen = f"changed: {event} {os.fsdecode(path)!r}"

    def _is_own(self, path: str) -> bool:
        """Return whether a path is in the scratch folder, or is an import's compiled file."""
        return os.path.abspath(path).startswith(self.scratch) or "__pycache__" in path or path == os.devnull


class _Clock:
    """Clock that interrupts waiting, such as for a pipe, and endless computation. It pauses while the process is stopped."""

    def __init__(self) -> None:
        self._is_running = False
        self._start_s, self._max_s = 0.0, MAX_BUSY_S

    def put_up(self) -> None:
        """Start the clock in the main thread, because a signal interrupts its waits."""
        signal.signal(signal.SIGUSR1, self._ring)
        threading.Thread(target=self._tick, daemon=True).start()

    @contextlib.contextmanager
    def running(self, max_cpu_s: float) -> Iterator[None]:
        self._max_s = max(MAX_BUSY_S, max_cpu_s)
        self._start_s, self._is_running = time.process_time(), True
        try:
            yield
        finally:
            self._is_running = False

    def _tick(self) -> None:
        waited, seen = 0.0, (0.0, 0.0)
        while True:
            time.sleep(_TICK_S)
            start_s, now_s = self._start_s, time.process_time()
            is_waiting = seen[0] == start_s and now_s - seen[1] < _TICK_S / 100
            waited, seen = (waited + _TICK_S if is_waiting else 0.0), (start_s, now_s)
            if self._is_running and (waited >= MAX_WAIT_S or now_s - start_s >= self._max_s):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if self._is_running:
            self._is_running = False
            raise Hang


_GUARD, _CLOCK = _Guard(), _Clock()


def _put_up() -> None:
    if not _GUARD.is_up:
        _GUARD.put_up()
        _CLOCK.put_up()


@contextlib.contextmanager
def watching() -> Iterator[Path]:
    """Yield a scratch folder for inputs, with the guard installed and a separate home instead of the user's devices."""
    _put_up()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        before = {name: os.environ.get(name) for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME")}
        os.environ["XDG_DATA_HOME"] = os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "in" / "home")
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def tried(target: Target, data: bytes, scratch: Path) -> Finding | None:
    """Give one input to a parser. Returns None if the parser accepted it, or refused it correctly."""
    folder, outside = scratch / "in", scratch / "outside"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if not outside.is_dir():
        outside.mkdir()
        (outside / "file").write_bytes(OUTSIDE)
    target.lay_out(data, folder, outside)
    _GUARD.seen, _GUARD.scratch = "", str(scratch)
    start, most_s = time.process_time(), MAX_CPU_S if target.max_cpu_s is None else target.max_cpu_s
    try:
        with _CLOCK.running(most_s):
            target.parse(folder)
        finding = None
    except ChronogradError as error:
        finding = _unclear(error)
    except Hang as error:
        finding = Finding("hang", _place(error), f"waited {MAX_WAIT_S:g} s, or computed {max(most_s, MAX_BUSY_S):g} s")
    except Exception as error:
        finding = Finding("traceback", _place(error), f"{type(error).__name__}: {str(error)[:300]}")
    finally:
        _GUARD.scratch = ""
    seconds = time.process_time() - start
    if _GUARD.seen:
        return Finding(_GUARD.seen.partition(":")[0], _GUARD.seen[:80], _GUARD.seen)
    if [p.name for p in outside.iterdir()] != ["file"] or (outside / "file").read_bytes() != OUTSIDE:
        shutil.rmtree(outside)
        return Finding("changed", "a file outside", "a file that a link points to was changed")
    if finding is None and seconds > most_s:
        return Finding("slow", target.name, f"{seconds:.1f} s of CPU time for {len(data):,} bytes")
    return finding


def _unclear(error: ChronogradError) -> Finding | None:
    text = str(error)
    if error.message.strip() and len(text) <= MAX_LETTERS and text.count("\n") < MAX_LINES:
        return None
    return Finding("unclear", _place(error), f"{len(text):,} letters, {text.count(chr(10)) + 1:,} lines: {text[:200]}")


def _place(error: BaseException) -> str:
    """Return the innermost line of our code that was running."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f"{os.sep}chronograd{os.sep}" in f.filename and "src" in f.filename] or frames[-1:]
    where = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "?"
    return f"{type(error).__name__} at {where}"

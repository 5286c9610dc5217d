"""Fast start of ranks: a process that has imported PyTorch or TensorFlow forks them, which saves seconds of imports.

`popen` starts a command like `subprocess.Popen`. The fork has the same session, environment, folder, files and exit
status as a new interpreter, and runs its module from the first line, like `python -P -m`. Other commands start as usual.
Tests marked `real_exec` show that new interpreters behave the same.

    python fork_server.py SOCKET LIBRARY    # the server; it ends with its standard input
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Self


class Library(NamedTuple):
    """The ranks of one library.

    Attributes:
        modules: the server can run these. It imports them and the imports of nearly every rank, `beside`.
        environment: variables that all these ranks have, and that the library reads at its import.
        at_start: beginnings of the names of other such variables.
    """

    modules: tuple[str, ...]
    beside: tuple[str, ...]
    environment: Mapping[str, str] = {}
    at_start: tuple[str, ...] = ()


LIBRARIES = {
    "torch": Library(
        (
            "chronograd.train.worker",
            "chronograd.reinforce.worker",
            "chronograd.backends.apex.run",
            "chronograd.backends.parameter_server.run",
            "chronograd.calibrate.worker",
            "chronograd.calibrate.links_worker",
            "torch.distributed.run",
        ),
        ("chronograd.models.registry", "torchvision", "sklearn.datasets"),
    ),
    # Its ranks never import PyTorch, so neither does their server.
    "tensorflow": Library(
        ("chronograd.backends.tensorflow.worker",),
        ("tensorflow", "keras", "safetensors.numpy"),
        {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"},
        ("KERAS_", "TF_"),
    ),
}
# Read at the start of an interpreter or a library: other values than the server's need a new interpreter.
AT_START = ("PYTHON", "LD_", "MALLOC_", "ATEN_", "TORCH_LOGS")
NOT_AT_START = ("PYTHONPATH", "PYTHONUNBUFFERED")
START_S = 300.0
_NUMBER = struct.Struct("<i")


# -- in tests ----------------------------------------------------------------------------------------------------------


class Server:
    """The forking processes, one for each library, started at their first command. The context manager ends them."""

    def __init__(self) -> None:
        self.is_used = True
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="fork-")
        # Recorded at the start of the tests; the first test that uses the server may have another environment.
        self._environment = dict(os.environ)
        self._lock = threading.Lock()

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any] | ForkedProcess:
        """Start a command: forked if it is a module of a library, otherwise in a new interpreter."""
        environment, name = options.get("env") or os.environ, library_of(command)
        if not self.is_used or name is None:
            return subprocess.Popen(command, **options)
        library = LIBRARIES[name]
        if _at_start(environment, library) != _at_start({**self._environment, **library.environment}, library):
            return subprocess.Popen(command, **options)
        with self._lock:
            path = self._started(name)
        return ForkedProcess(path, command, **options)

    def _started(self, library: str) -> str:
        path = str(Path(self._folder.name) / library)
        if library not in self._processes:
            # NumPy would start threads at its import.
            own = {**LIBRARIES[library].environment, "OPENBLAS_NUM_THREADS": "1"}
            process = self._processes[library] = subprocess.Popen(
                [sys.executable, __file__, path, library],
                env={**self._environment, **own},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            assert process.stdout is not None
            process.stdout.readline()  # the ready line, or nothing
        if not Path(path).exists():
            raise RuntimeError(f"the fork server ended with status {self._processes[library].wait(START_S)}")
        return path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            process.communicate(timeout=START_S)
        self._folder.cleanup()


class ForkedProcess:
    """The part of `subprocess.Popen` that launchers use."""

    def __init__(
        self,
        path: str,
        args: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool = False,
        bufsize: int = -1,
        start_new_session: bool = False,
    ) -> None:
        self.args = args
        self.returncode: int | None = None
        self._lock = threading.Lock()
        request = {
            "words": list(args[3:]),
            "environment": dict(os.environ if env is None else env),
            "folder": os.fspath(cwd or os.getcwd()),
            "new_session": start_new_session,
        }
        with contextlib.ExitStack() as theirs:
            files = []
            self.stdin, self.stdout, self.stderr = None, None, None
            for number, (name, target) in enumerate({"stdin": stdin, "stdout": stdout, "stderr": stderr}.items()):
                if target == subprocess.PIPE:
                    ends = os.pipe()
                    ours, given = ends if number else ends[::-1]
                    theirs.callback(os.close, given)
                    mode = ("r" if number else "w") + ("" if text else "b")
                    setattr(self, name, open(ours, mode, buffering=bufsize))  # noqa: SIM115
                elif target == subprocess.DEVNULL:
                    given = os.open(os.devnull, os.O_RDWR)
                    theirs.callback(os.close, given)
                elif target == subprocess.STDOUT:
                    given = files[1]
                else:
                    given = number if target is None else target if isinstance(target, int) else target.fileno()
                files.append(given)
            self._connection = socket.socket(socket.AF_UNIX)
            self._connection.connect(path)
            data = json.dumps(request).encode()
            socket.send_fds(self._connection, [_NUMBER.pack(len(data))], files)
            self._connection.sendall(data)
            (self.pid,) = _NUMBER.unpack(_read(self._connection, _NUMBER.size))

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        with self._lock:
            if self.returncode is None:
                with selectors.DefaultSelector() as selector:
                    selector.register(self._connection, selectors.EVENT_READ)
                    if not selector.select(timeout):
                        raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                (self.returncode,) = _NUMBER.unpack(_read(self._connection, _NUMBER.size))
                self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and the server has its status
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream is not None:
                stream.close()
        self.wait()


def library_of(command: Sequence[str]) -> str | None:
    """Return the library whose server runs this command; None if none does."""
    if tuple(command[:3]) != (sys.executable, "-P", "-m"):
        return None
    return next((name for name, library in LIBRARIES.items() if command[3] in library.modules), None)


def _at_start(environment: Mapping[str, str], library: Library) -> dict[str, str]:
    read = (*AT_START, *library.at_start)
    return {n: v for n, v in environment.items() if n.startswith(read) and n not in NOT_AT_START}


def _read(connection: socket.socket, size: int) -> bytes:
    data = connection.recv(size, socket.MSG_WAITALL)
    if len(data) < size:
        raise RuntimeError("the fork server is gone")
    return data


# -- the server --------------------------------------------------------------------------------------------------------


def main(path: str, library: str) -> None:
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    libraries = [entry for entry in sys.path[1:] if entry not in own]
    for name in LIBRARIES[library].modules:
        importlib.import_module(name)
    for name in LIBRARIES[library].beside:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the garbage collector of a fork skips these objects and so does not copy their pages
    threads = len(os.listdir("/proc/self/task")) if Path("/proc").exists() else threading.active_count()
    if threads > 1:
        raise SystemExit(f"a process of {threads} threads cannot be forked soundly")
    if library != "torch" and "torch" in sys.modules:
        raise SystemExit("ranks without PyTorch could not show that they do not import it")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        os.write(1, b"ready\n")
        request = _serve(listener)
    if request is not None:
        _run(request, libraries, path)


def _serve(listener: socket.socket) -> dict[str, Any] | None:
    """Fork for each request and report the end of each fork. Returns None at the end, and in a fork its request."""
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    children: dict[int, socket.socket] = {}
    with woken, wakes, selectors.DefaultSelector() as selector:
        for source in (0, listener, woken):
            selector.register(source, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if woken in ready:
                woken.recv(4096)
                _tell_ended(children)
            if listener in ready:
                connection, _ = listener.accept()
                size, files, _, _ = socket.recv_fds(connection, _NUMBER.size, 3)
                if len(size) < _NUMBER.size:  # the requesting process was killed
                    connection.close()
                    continue
                request: dict[str, Any] = json.loads(_read(connection, *_NUMBER.unpack(size)))
                child = os.fork()
                if child == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for other in children.values():
                        other.close()
                    _take_place(request, files, connection)
                    return request
                for file in files:
                    os.close(file)
                children[child] = connection
            if 0 in ready and not os.read(0, 1):
                return None


def _tell_ended(children: dict[int, socket.socket]) -> None:
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            return
        with children.pop(child) as connection, contextlib.suppress(OSError):
            connection.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))


def _take_place(request: Mapping[str, Any], files: Sequence[int], connection: socket.socket) -> None:
    """Set up the session and files of this fork, before it reports its process id and may receive signals."""
    if request["new_session"]:
        os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    with connection:
        connection.sendall(_NUMBER.pack(os.getpid()))


def _run(request: Mapping[str, Any], libraries: Sequence[str], path: str) -> None:
    """Run a module as `python -P -m MODULE ...` does after the start of the interpreter."""
    environment: dict[str, str] = request["environment"]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(request["folder"])
    if environment.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    of_environment = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [*of_environment, *libraries]
    importlib.invalidate_caches()
    module, *words = request["words"]
    sys.argv[:] = [module, *words]
    if module == "torch.distributed.run":  # its ranks are also forked, but not from it, as it has threads
        from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

        setattr(subprocess_handler, "Popen", lambda args, **options: _popen_of_fork(path, args, **options))  # noqa: B010
    sys.modules.pop(module)  # a new interpreter does not list its main module by name
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        _end(end.code)
    _end(0)


def _end(status: int) -> None:
    """End like the interpreter, but without the slow teardown of its modules."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _popen_of_fork(path: str, command: Sequence[str], **options: Any) -> subprocess.Popen[Any] | ForkedProcess:
    if library_of(command) == "torch":
        return ForkedProcess(path, command, **options)
    return subprocess.Popen(command, **options)


if __name__ == "__main__":
    main(*sys.argv[1:])

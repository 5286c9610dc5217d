"""The process that runs checks for `doctor` (see `doctor.process`): of this machine, of a folder, or as one of several hosts."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chronograd.calibrate.workers import read, say

# It ends by itself if its parent cannot end it: on another host, or when the parent was killed.
LIFETIME_S = 300
CONNECT_TIMEOUT_S = 1.5


def main() -> None:
    signal.alarm(LIFETIME_S)
    asked = read()
    {"machine": machine, "folder": folder, "host": host}[asked["of"]](asked)


# -- this machine ----------------------------------------------------------------------------------------


def machine(asked: dict[str, Any]) -> None:
    """Report PyTorch's build, a link between two processes, peaks, and the needs of a job; peaks wait for a line of input."""
    try:
        from chronograd.doctor import probe
    except Exception as error:  # a broken PyTorch raises many kinds of errors
        say("build", {"error": _words(error)})
        return
    say("build", {**probe.build(), "has_link": asked["has_link"]})
    if asked["has_link"]:
        from chronograd.launch.local import loopback_only

        os.environ.update(loopback_only())
        _say_link(probe.pair)
    read()
    found = probe.devices(asked["precision"], asked["threads"], asked["on_cpu"])
    say("devices", found)
    if asked["job"]:
        from chronograd.doctor.job import needs

        say("job", needs(asked["job"], found["gpu_names"], found["rows"], asked["ranks"]))


# -- a folder --------------------------------------------------------------------------------------------


def folder(asked: dict[str, Any]) -> None:
    from chronograd.doctor import storage_probe as storage

    where = storage.existing(Path(asked["path"]))
    try:
        say("room", storage.room(where))
        if not where.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "not a folder")
        mark = storage.make_mark(where)
    except OSError as error:
        say("measured", _refusal(error))
        return
    say("mark", str(mark))
    try:
        try:
            say("measured", storage.measure(mark))
        except OSError as error:
            say("measured", _refusal(error))
        read()  # other hosts check the mark meanwhile
    finally:
        storage.remove(mark)
        say("removed", str(mark))


def _refusal(error: OSError) -> dict[str, Any]:
    return {"error": error.strerror or str(error), "errno": error.errno}


# -- one of several hosts ----------------------------------------------------------------------------------


def host(asked: dict[str, Any]) -> None:
    """Report versions, whether this host sees a folder, TCP to the others, and an all-reduce among all."""
    from chronograd.measure import environment

    with socket.create_server((asked["address"], 0), backlog=64) as listener:
        with socket.create_server((asked["address"], 0)) as free:
            ports = {"port": listener.getsockname()[1], "free_port": free.getsockname()[1]}
        facts = {"versions": environment.versions(), "cores": environment.cores(), "gpus": environment.gpus()}
        say("facts", {**ports, **facts})
        looks = threading.Thread(target=lambda: say("sees", os.path.isdir(asked["mark"] or "")), daemon=True)
        looks.start()
        peers = read()["peers"]
        say("clock", time.time())
        say("reached", {name: _connect(address) for name, address in peers.items()})
        os.environ["GLOO_SOCKET_IFNAME"] = asked["interface"]
        try:
            from chronograd.doctor import probe
        except Exception as error:
            say("link", {"error": _words(error)})
            return
        meeting = read()["meeting"]  # all have reached all, so the listener can close
    _say_link(lambda: probe.all_reduce(asked["rank"], asked["world"], meeting))


def _connect(address: list[Any]) -> dict[str, Any]:
    """Return the minimum seconds to open a connection, which is one round trip, or the error."""
    found: list[float] = []
    try:
        for _ in range(3):
            start = time.perf_counter()
            with socket.create_connection((address[0], address[1]), timeout=CONNECT_TIMEOUT_S):
                found.append(time.perf_counter() - start)
    except OSError as error:
        return {"error": error.strerror or str(error)}
    return {"seconds": min(found)}


def _say_link(measure: Callable[[], dict[str, float]]) -> None:
    try:
        say("link", measure())
    except Exception as error:
        say("link", {"error": _words(error)})


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


if __name__ == "__main__":
    main()

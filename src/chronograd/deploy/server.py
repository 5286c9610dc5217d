"""A server of models in ONNX: where it listens, how it starts, and an end without a lost request. What it answers is in `app`."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from chronograd.answer import Answer, Section, Table
from chronograd.deploy.access import is_loopback
from chronograd.deploy.app import App, Limits, Metrics
from chronograd.deploy.connection import strict, timed
from chronograd.deploy.event_loop import loop_factory
from chronograd.deploy.repository import Repository, Settings
from chronograd.errors import InputError, require

if TYPE_CHECKING:
    import uvicorn

LOG = logging.getLogger("chronograd.serve")
QUIET_S = 5.0  # after SIGTERM, without a request: by then an orchestrator has told all who would send one
QUIET_ON_INTERRUPT_S = 1.0  # after SIGINT, from a terminal
HANDSHAKE_S = 0.1  # for connections that are being made when the server stops listening
LINGER_S = 1.0  # that a connection without a request is left open when the server no longer listens
KEEP_ALIVE_S = 75
_SO_ATTACH_FILTER = 26  # of Linux; the socket module has no name for it


def _uvicorn_server(app: App, started: Callable[[], None]) -> uvicorn.Server:
    """A server that on SIGTERM goes on answering until nobody asks any more, and then ends with 0."""
    import uvicorn

    class HttpServer(uvicorn.Server):
        drain_from = 0.0
        quiet_s = 0.0

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            started()

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if app.is_draining:  # asked a second time
                self.should_exit = self.force_exit = True
            app.is_draining = True
            self.drain_from = time.monotonic()
            self.quiet_s = QUIET_ON_INTERRUPT_S if sig == signal.SIGINT else QUIET_S

        async def on_tick(self, counter: int) -> bool:
            if app.is_draining:
                now = time.monotonic()
                quiet_until = max(app.last_request, self.drain_from) + self.quiet_s
                self.should_exit |= now > min(self.drain_from + app.limits.drain_s, quiet_until)
            is_over: bool = await super().on_tick(counter)
            return is_over

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            for one in sockets or ():
                _take_no_more(one)
            await asyncio.sleep(HANDSHAKE_S)
            for server in self.servers:
                server.close()
            # Whoever has just connected is about to ask; answers close their connections, so few are left.
            until = time.monotonic() + LINGER_S
            while self.server_state.connections and time.monotonic() < until and not self.force_exit:
                await asyncio.sleep(0.02)
            await super().shutdown(sockets=sockets)

    config = uvicorn.Config(
        app.asgi(),
        http=timed(_http_protocol(), app.limits.timeout_s),
        lifespan="off",
        ws="none",
        log_config=None,  # lines go where those of chronograd.serve go
        log_level="error",  # below it a line for each malformed request: whoever sends them would fill the log
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=round(app.limits.timeout_s) + 5,
    )
    return HttpServer(config)


def _http_protocol() -> Any:
    """httptools; h11, which is strict by itself, where it is not installed."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ModuleNotFoundError:
        from uvicorn.protocols.http.h11_impl import H11Protocol

        return H11Protocol
    return strict(HttpToolsProtocol)


def _take_no_more(listening: socket.socket) -> None:
    """Make a socket that listens drop requests for new connections, where the system can.

    Connections that are complete but not accepted would be reset when it is closed, with what they have sent. After this
    there are none: who connects now gets no answer, asks again after a second, and is then refused.
    Source: Linux, Documentation/networking/filter.rst; the filter of a TCP socket sees the segment from its header on.
    """
    if sys.platform != "linux":
        return
    # Load byte 13, the flags; if SYN is set, keep nothing of the segment, else all.
    code = ((0x30, 0, 0, 13), (0x45, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in code))
    with suppress(OSError):
        listening.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(code), ctypes.addressof(program))
        )


def serve(paths: Sequence[Path], *, host: str = "127.0.0.1", port: int = 8000, token: str | None = None,
          settings: Settings | None = None, limits: Limits | None = None, started: Callable[[Answer], None] = lambda _: None) -> None:  # fmt: skip
    """Serve models until SIGTERM or SIGINT. SIGHUP loads anew what has changed.

    Args:
        paths: as of `repository.find`.
        port: 0 for any that is free.
        token: that clients send; needed unless `host` is of this machine only.
        started: called with what is served and where, once requests are taken.
    Raises: InputError, FileFormatError, MissingExtraError.
    """
    for package in ("onnxruntime", "onnx", "starlette", "uvicorn", "prometheus_client"):
        require(package, "serve", "serving")
    if token is None and not is_loopback(host):
        raise InputError(
            f"{host} can be reached from other machines, and there is no token",
            "write one into a file and name it with --token-file, or leave --host out",
        )
    if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token != ""):
        raise InputError("the token is empty, or has characters that no HTTP header can have", "use letters and digits")
    with _bound(host, port) as sock:
        runner = asyncio.Runner(loop_factory=loop_factory())
        with runner:
            runner.run(_serve(paths, sock, token, settings or Settings(), limits or Limits(), started))


async def _serve(paths: Sequence[Path], sock: socket.socket, token: str | None, settings: Settings, limits: Limits,
                 started: Callable[[Answer], None]) -> None:  # fmt: skip
    metrics = Metrics()
    repository = Repository(paths, settings, metrics.observe)
    await repository.load()
    gc.collect()
    gc.freeze()  # what is there now stays: looking through it again would stop all answers for tens of milliseconds
    app = App(repository, limits, metrics, token)
    server = _uvicorn_server(app, lambda: started(_answer(repository, sock)))
    tasks: set[asyncio.Task[None]] = set()

    def on_hangup() -> None:
        task = asyncio.get_running_loop().create_task(_reload(repository))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    if hasattr(signal, "SIGHUP"):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)
    try:
        await server.serve(sockets=[sock])
    finally:
        await repository.close()


async def _reload(repository: Repository) -> None:
    for problem in await repository.reload():
        LOG.error("%s", problem)


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(
            f"cannot listen on {host}: {error.strerror or error}", "name an address of this machine"
        ) from None
    with sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(address)
        except OSError as error:
            raise InputError(
                f"cannot listen on {host} port {port}: {error.strerror}", "take another port, or 0 for any that is free"
            ) from None
        yield sock


def _answer(repository: Repository, sock: socket.socket) -> Answer:
    """What is served, and where."""
    host, port = sock.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    served = repository.all()
    rows = [
        {
            "model": one.place.name,
            "version": int(one.place.version),
            "path": str(one.place.path),
            "inputs": [spec.as_json() for spec in one.model.inputs],
            "outputs": [spec.as_json() for spec in one.model.outputs],
            "most_rows": one.model.most_rows,
            "batching": one.model.batching_words(),
        }
        for one in served
    ]
    names = dict.fromkeys(one.place.name for one in served)
    table = Table(
        ("model", "version", "inputs", "batching"),
        [
            [
                one.place.name,
                one.place.version,
                "\n".join(f"{spec.name} {spec.datatype} {list(spec.shape)}" for spec in one.model.inputs),
                one.model.batching_words(),
            ]
            for one in served
        ],
    )
    section = Section(
        title=f"Serving at {url}",
        takeaway=f"{len(names)} model{'s' * (len(names) != 1)} answer{'s' * (len(names) == 1)} the Open Inference Protocol v2 at {url}.",
        table=table,
        data=rows,
    )
    return Answer(title=f"serving at {url}", sections=[section], data={"url": url, "models": rows})

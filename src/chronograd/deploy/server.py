"""A server of models in ONNX: its address, its start, and its end without a lost request. Its answers are in `app`."""

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
from chronograd.deploy.repository import Repository, Settings
from chronograd.errors import InputError, require

if TYPE_CHECKING:
    import uvicorn

LOG = logging.getLogger("chronograd.serve")
QUIET_S = 5.0  # without a request after SIGTERM: by then an orchestrator has informed all clients
QUIET_ON_INTERRUPT_S = 1.0  # after SIGINT, from a terminal
HANDSHAKE_S = 0.1  # for connections that are being opened when the server stops listening
LINGER_S = 1.0  # that an idle connection stays open after the server has stopped listening
KEEP_ALIVE_S = 75
_SO_ATTACH_FILTER = 26  # Linux; the socket module has no name for it


def _uvicorn_server(app: App, started: Callable[[], None]) -> uvicorn.Server:
    """Return a server that after SIGTERM answers until no requests come, and then ends with status 0."""
    import uvicorn

    class HttpServer(uvicorn.Server):
        drain_from = 0.0
        quiet_s = 0.0

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            started()

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if app.is_draining:  # the second request to end
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
            # New connections are about to send a request. Answers close their connections, so few remain.
            until = time.monotonic() + LINGER_S
            while self.server_state.connections and time.monotonic() < until and not self.force_exit:
                await asyncio.sleep(0.02)
            await super().shutdown(sockets=sockets)

    config = uvicorn.Config(
        app.asgi(),
        http=timed(_http_protocol(), app.limits.timeout_s),
        lifespan="off",
        ws="none",
        log_config=None,  # use the log of chronograd.serve
        log_level="error",  # a lower level logs each malformed request, so a client could fill the log
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=round(app.limits.timeout_s) + 5,
    )
    return HttpServer(config)


def _http_protocol() -> Any:
    """Return httptools, or h11, which is strict by itself, if httptools is not installed."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ModuleNotFoundError:
        from uvicorn.protocols.http.h11_impl import H11Protocol

        return H11Protocol
    return strict(HttpToolsProtocol)


def _take_no_more(listening: socket.socket) -> None:
    """Make a listening socket drop requests for new connections, if the system can.

    Closing it resets connections that are complete but not accepted, and loses what they have sent. After this there are none:
    new clients get no answer, try again after a second, and are then refused. Source: Linux,
    Documentation/networking/filter.rst; the filter of a TCP socket sees the segment from its header on.
    """
    if sys.platform != "linux":
        return
    # Load byte 13, the flags; if SYN is set, drop the segment, else pass all of it.
    code = ((0x30, 0, 0, 13), (0x45, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in code))
    with suppress(OSError):
        listening.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(code), ctypes.addressof(program))
        )


def serve(paths: Sequence[Path], *, host: str = "127.0.0.1", port: int = 8000, token: str | None = None,
          settings: Settings | None = None, limits: Limits | None = None, started: Callable[[Answer], None] = lambda _: None) -> None:  # fmt: skip
    """Serve models until SIGTERM or SIGINT. SIGHUP reloads changed models.

    Args:
        paths: as of `repository.find`.
        port: 0 for any free port.
        token: that clients send; required unless `host` belongs to this machine only.
        started: called with the models and the address, once the server accepts requests.

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
    with _bound(host, port) as sock, asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(paths, sock, token, settings or Settings(), limits or Limits(), started))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory of an event loop for `asyncio.Runner`; None if it is not installed."""
    try:
        import uvloop
    except ModuleNotFoundError:  # Windows has none
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _serve(paths: Sequence[Path], sock: socket.socket, token: str | None, settings: Settings, limits: Limits,
                 started: Callable[[Answer], None]) -> None:  # fmt: skip
    metrics = Metrics()
    repository = Repository(paths, settings, metrics.observe)
    await repository.load()
    gc.collect()
    gc.freeze()  # present objects stay: scanning them again would stop all answers for tens of milliseconds
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
                f"cannot listen on {host} port {port}: {error.strerror}", "choose another port, or 0 for any free one"
            ) from None
        yield sock


def _answer(repository: Repository, sock: socket.socket) -> Answer:
    """Return an answer with the served models and the address."""
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

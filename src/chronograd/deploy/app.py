"""The application of a server: the routes of the Open Inference Protocol over a repository of models, with limits and metrics."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from chronograd.deploy.access import stranger
from chronograd.deploy.aside import Aside
from chronograd.deploy.batching import Done, QueueFull
from chronograd.deploy.classification import OUTPUT, Classifier
from chronograd.deploy.detection import MIN_ANSWERED_SCORE, DetectorFormat
from chronograd.deploy.model import OnnxModel
from chronograd.deploy.protocol import (
    BINARY_ADVICE,
    HEADER_LENGTH,
    Array,
    InferenceRequest,
    ProtocolError,
    check_inputs,
    check_load,
    decompressed,
    is_long,
    read_request,
    write_answer,
)
from chronograd.deploy.repository import Place, Repository, ServedModel
from chronograd.files import without_collection
from chronograd.measure.environment import version_of

if TYPE_CHECKING:
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
T = TypeVar("T")
R = TypeVar("R", Classifier, DetectorFormat)

LOG = logging.getLogger("chronograd.serve")
OPEN_PATHS = ("/v2/health/live", "/v2/health/ready")  # requests of orchestrators, which have no token
MAX_DECODERS = 4  # pictures at a time; one takes up to 8 bytes for each of MAX_PIXELS
RAN_AT = "chronograd.ran_at"  # key of a request's state: processor time of this thread when its batch had run
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Limits:
    """The limits of the server.

    Attributes:
        most_bytes: of the body of a request, packed or unpacked.
        most_json_bytes: of its JSON, which takes memory and time for each value: 0.06 s a MiB. During that time Python's reader
            lets no other thread work. A picture of 224 pixels takes 3 MiB.
        most_held_bytes: of all bodies, and of the pictures being decoded, at a time.
        most_waiting: bodies that wait to be read, if reading takes long.
        timeout_s: from the first byte of a request's body to its answer.
        drain_s: maximum time for further requests after SIGTERM.
    """

    most_bytes: int = 64 * 2**20
    most_json_bytes: int = 4 * 2**20
    most_held_bytes: int = 2**30
    most_waiting: int = 256
    timeout_s: float = 30.0
    drain_s: float = 10.0


@dataclass
class App:
    """The routes of the protocol over a repository."""

    repository: Repository
    limits: Limits
    metrics: Metrics
    token: str | None = None
    is_draining: bool = False
    last_request: float = field(default_factory=time.monotonic)
    _held_bytes: int = 0
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self._pictures = Aside(min(os.cpu_count() or 1, MAX_DECODERS), self.limits.most_waiting)
        self._bodies = Aside(1, self.limits.most_waiting)

    def asgi(self) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
        """Return the application, behind the check of the token."""
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route

        model, version = "/v2/models/{name}", "/v2/models/{name}/versions/{version}"
        routes = [
            Route("/v2/health/live", self._live),
            Route("/v2/health/ready", self._ready),
            Route("/v2", self._server),
            *(Route(path, self._model) for path in (model, version)),
            *(Route(f"{path}/ready", self._model_ready) for path in (model, version)),
            *(Route(f"{path}/infer", self._infer, methods=["POST"]) for path in (model, version)),
            *(Route(f"{path}/detect", self._detect, methods=["POST"]) for path in (model, version)),
            Route("/v2/repository/index", self._index, methods=["POST"]),
            Route("/v2/repository/models/{name}/load", self._load, methods=["POST"]),
            Route("/v2/repository/models/{name}/unload", self._unload, methods=["POST"]),
            Route("/metrics", self._metrics),
        ]
        handlers: dict[Any, Any] = {
            HTTPException: self._on_http,
            ProtocolError: self._on_protocol,
            Exception: self._on_any,
        }
        inner = Starlette(routes=routes, exception_handlers=handlers)
        inner.router.redirect_slashes = False

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            refusal = self._refusal(scope) if scope["type"] == "http" else None
            if refusal is not None:
                await refusal(scope, receive, send)
                return
            await inner(scope, receive, send)
            if RAN_AT in scope:
                self.metrics.answer_s.inc(time.thread_time() - scope[RAN_AT])

        return guarded

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the refusal of a request without permission, or None."""
        if scope["path"] in OPEN_PATHS:
            return None
        if self.token is None:
            other = stranger(scope["headers"])
            message = f"{other} is not this machine; name it localhost, or serve with a token (--token-file)"
            return self._error(message, 403) if other else None
        given = b" ".join(value for name, value in scope["headers"] if name == b"authorization")
        if hmac.compare_digest(_lower_scheme(given), b"bearer " + self.token.encode()):
            return None
        message = "send the token of this server: Authorization: Bearer TOKEN"
        return self._error(message, 401, {"WWW-Authenticate": "Bearer"})

    def _reply(self, content: bytes | dict[str, Any] | list[Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:  # fmt: skip
        from starlette.responses import Response

        headers = dict(headers or {})
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
            headers["Content-Type"] = "application/json"
        if self.is_draining:
            headers["Connection"] = "close"
        return Response(content, status, headers)

    def _error(self, message: str, status: int, headers: dict[str, str] | None = None) -> Response:
        return self._reply({"error": message}, status, headers)

    async def _on_http(self, request: Request, error: HTTPException) -> Response:
        path = request.scope["path"][:200]
        messages = {
            404: f"there is nothing at {path}; the protocol is at /v2",
            405: f"{request.method[:20]} is not for {path}",
        }
        return self._error(messages.get(error.status_code, error.detail), error.status_code, dict(error.headers or {}))

    async def _on_protocol(self, request: Request, error: ProtocolError) -> Response:
        retry = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
        return self._error(str(error), error.status, retry)

    async def _on_any(self, request: Request, error: Exception) -> Response:
        return self._error("the server failed; its log says why", 500)

    async def _live(self, request: Request) -> Response:
        return self._reply({"live": True})

    async def _ready(self, request: Request) -> Response:
        is_ready = not self.is_draining
        return self._reply({"ready": is_ready}, 200 if is_ready else 503)

    async def _server(self, request: Request) -> Response:
        extensions = ["binary_tensor_data", "model_repository"]
        return self._reply({"name": "chronograd", "version": version_of("chronograd"), "extensions": extensions})

    def _asked(self, request: Request) -> ServedModel:
        return self.repository.get(request.path_params["name"], request.path_params.get("version"))

    async def _model(self, request: Request) -> Response:
        served = self._asked(request)
        model, name = served.model, served.place.name
        return self._reply(
            {
                "name": name,
                "versions": self.repository.versions(name),
                "platform": "onnxruntime_onnx",
                "inputs": [spec.as_json() for spec in model.inputs],
                "outputs": [spec.as_json() for spec in model.outputs],
                "parameters": {
                    "version": served.place.version,
                    "batching": model.batching_words(),
                    "most_rows": model.most_rows,
                },
            }
        )

    async def _model_ready(self, request: Request) -> Response:
        place = self._asked(request).place
        return self._reply({"name": place.name, "ready": not self.is_draining}, 503 if self.is_draining else 200)

    async def _index(self, request: Request) -> Response:
        places = [served.place for served in self.repository.all()]
        return self._reply([{"name": p.name, "version": p.version, "state": "READY", "reason": ""} for p in places])

    async def _load(self, request: Request) -> Response:
        name, started = request.path_params["name"], time.monotonic()
        with self._holding() as hold:
            body = await self._body(request, hold, self.limits.most_json_bytes)
            await self._read(partial(check_load, body), is_long(body), started)
        problems = await self.repository.reload(name)
        if problems:
            raise ProtocolError("; ".join(problem.message for problem in problems))
        self.repository.get(name)
        return self._reply({})

    async def _unload(self, request: Request) -> Response:
        await self.repository.unload(request.path_params["name"])
        return self._reply({})

    async def _metrics(self, request: Request) -> Response:
        for served in self.repository.all():
            self.metrics.waiting.labels(served.place.name, served.place.version).set(len(served.batcher))
        self.metrics.loop_s.set(time.thread_time())  # of the thread that runs this, which does everything except models
        import prometheus_client

        content = prometheus_client.generate_latest(self.metrics.registry)
        return self._reply(content, headers={"Content-Type": prometheus_client.CONTENT_TYPE_LATEST})

    async def _infer(self, request: Request) -> Response:
        is_picture = request.headers.get("Content-Type", "").strip().lower().startswith("image/")
        return await self._counted(request, self._labels if is_picture else self._tensors)

    async def _detect(self, request: Request) -> Response:
        return await self._counted(request, self._objects)

    async def _counted(self, request: Request, answer: Callable[[Request, float, Callable[[int], None]], Awaitable[Response]]) -> Response:  # fmt: skip
        """Return the answer, or the error of the request; count and time it."""
        self.last_request = started = time.monotonic()
        place = Place("", "", Path())  # names that a client invents must not become labels
        try:
            place = self._asked(request).place  # before its body is read
            with self._holding() as hold:
                response = await answer(request, started, hold)
        except ProtocolError as error:
            response = await self._on_protocol(request, error)
        except Exception:
            LOG.exception("a request to %s version %s failed", place.name, place.version)
            response = await self._on_any(request, Exception())
        self.metrics.requests.labels(place.name, place.version, str(response.status_code)).inc()
        self.metrics.request_s.labels(place.name, place.version).observe(time.monotonic() - started)
        self.last_request = time.monotonic()
        return response

    async def _tensors(self, request: Request, started: float, hold: Callable[[int], None]) -> Response:
        encoding, header_length = request.headers.get("Content-Encoding", ""), request.headers.get(HEADER_LENGTH)
        limits = self.limits
        most = limits.most_bytes if header_length else min(limits.most_bytes, limits.most_json_bytes)
        advice = BINARY_ADVICE if most < limits.most_bytes else ""
        body = await self._body(request, hold, most, advice)

        def read() -> InferenceRequest:
            plain = decompressed(body, encoding, most, advice)
            if encoding:
                hold(len(plain))
            return read_request(plain, header_length, limits.most_json_bytes)

        asked = await self._read(read, bool(encoding) or is_long(body, header_length), started)
        # Look it up again: it may have been replaced while the body arrived. From here on nothing waits.
        served = self._asked(request)
        check_inputs(asked.inputs, served.model.inputs)
        names = asked.names(served.model.output_names)
        done = await self._done(served, asked.inputs, names, started, asked.timeout_s)
        request.scope[RAN_AT] = time.thread_time()
        headers, content = write_answer(served.place.name, served.place.version, asked, done.outputs)
        return self._reply(content, headers=headers)

    async def _labels(self, request: Request, started: float, hold: Callable[[int], None]) -> Response:
        """Return the most likely classes of a picture, for a classifier."""
        served, classifier, picture = await self._read_by(Classifier.of, request, started, hold)
        done = await self._done(served, {classifier.input: picture}, [OUTPUT], started)
        place = served.place
        labels = classifier.labels(done.outputs[OUTPUT][0])
        return self._reply({"model_name": place.name, "model_version": place.version, "classes": labels})

    async def _read_by(self, of: Callable[[OnnxModel], R], request: Request, started: float,
                       hold: Callable[[int], None]) -> tuple[ServedModel, R, Any]:  # fmt: skip
        """Return the requested model, its reader of pictures from `of`, and the picture of the body as read by it."""
        body = await self._body(request, hold, self.limits.most_bytes)
        served: ServedModel | None = None
        while served is not (
            now := self._asked(request)
        ):  # repeat if the model was replaced while the picture was read
            served, reader = now, of(now.model)
            left_s = self._left_s(started)
            with _in_time(left_s):
                picture = await self._pictures.run(partial(reader.read, body, hold), left_s)
        return served, reader, picture

    async def _objects(self, request: Request, started: float, hold: Callable[[int], None]) -> Response:
        """Return the objects that a detection model detects in a picture."""
        least = _share(request.query_params.get("least"), MIN_ANSWERED_SCORE)
        served, detector, (picture, width, height) = await self._read_by(DetectorFormat.of, request, started, hold)
        done = await self._done(served, {detector.input: picture}, detector.outputs, started)
        outputs = [done.outputs[name][0] for name in detector.outputs]
        objects = await asyncio.to_thread(detector.objects, outputs, width, height, least)
        size = {"width": width, "height": height}
        place = served.place
        return self._reply({"model_name": place.name, "model_version": place.version, **size, "objects": objects})

    async def _done(self, served: ServedModel, inputs: Mapping[str, Array], names: Sequence[str], started: float, timeout_s: float | None = None) -> Done:  # fmt: skip
        """Return the outputs of a model. Raises ProtocolError if it has no time, or does not answer in time."""
        left_s = min(self._left_s(started), math.inf if timeout_s is None else timeout_s)
        with _in_time(left_s):
            done = await served.batcher.submit(inputs, names, left_s)
        self.metrics.queue_s.labels(served.place.name, served.place.version).observe(done.queue_s)
        return done

    async def _read(self, work: Callable[[], T], takes_long: bool, started: float) -> T:
        """Read a body. If that takes long, use a thread next to the one that answers, one body after another."""
        if not takes_long:
            return work()
        left_s = self._left_s(started)
        with _in_time(left_s):
            return await self._bodies.run(partial(_uncollected, work), left_s)

    def _left_s(self, started: float) -> float:
        return max(self.limits.timeout_s - (time.monotonic() - started), 0.0)

    @contextmanager
    def _holding(self) -> Iterator[Callable[[int], None]]:
        """Count the bytes of a body as held until its request is answered. Threads may count, too."""
        own, is_over = 0, False

        def hold(count: int) -> None:
            nonlocal own
            with self._lock:
                if is_over:  # a thread took too long
                    raise ProtocolError("the request has been answered", 504)
                if self._held_bytes + count > self.limits.most_held_bytes:
                    raise ProtocolError("the server holds the maximum of request bytes; try again in 1 s", 503, 1)
                own += count
                self._held_bytes += count

        try:
            yield hold
        finally:
            with self._lock:
                is_over = True
                self._held_bytes -= own

    async def _body(self, request: Request, hold: Callable[[int], None], limit: int, advice: str = "") -> bytes:
        from starlette.requests import ClientDisconnect

        chunks: list[bytes] = []
        size = 0
        problem: ProtocolError | None = None
        try:
            async with asyncio.timeout(self.limits.timeout_s):
                async for chunk in request.stream():
                    size += len(chunk)
                    if problem is None and size > limit:
                        problem = ProtocolError(f"the body has more than {limit} bytes, the maximum{advice}", 413)
                    if problem is None:
                        try:
                            hold(len(chunk))
                            chunks.append(chunk)
                        except ProtocolError as error:
                            problem = error
                    if problem is not None:
                        chunks.clear()  # the rest is dropped: most clients read no answer before they have sent everything
                        if size > 4 * limit:
                            break
        except TimeoutError:
            raise ProtocolError(f"the body did not arrive within {self.limits.timeout_s:.3g} s", 408) from None
        except ClientDisconnect:
            raise ProtocolError("the client closed the connection") from None
        if problem is not None:
            raise problem
        return b"".join(chunks)


class Metrics:
    """Metrics for Prometheus."""

    def __init__(self) -> None:
        import prometheus_client

        self.registry = prometheus_client.CollectorRegistry()
        names = ["model", "version"]

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Any:
            return prometheus_client.Histogram(
                f"chronograd_{name}", text, names, buckets=buckets, registry=self.registry
            )

        self.requests = prometheus_client.Counter(
            "chronograd_requests", "Requests for inference, by status of HTTP", [*names, "code"], registry=self.registry
        )
        self.waiting = prometheus_client.Gauge(
            "chronograd_waiting_requests", "Requests in the queue", names, registry=self.registry
        )
        self.loop_s = prometheus_client.Gauge(
            "chronograd_loop_cpu_seconds", "Processor time of the thread that reads and writes", registry=self.registry
        )
        self.answer_s = prometheus_client.Counter(
            "chronograd_answer_cpu_seconds",
            "Processor time of that thread from the end of a batch until its answers are written",
            registry=self.registry,
        )
        self.request_s = histogram("request_seconds", "From a request's head to its answer", _SECONDS)
        self.queue_s = histogram("queue_seconds", "From a request in the queue to the start of its batch", _SECONDS)
        self.run_s = histogram("run_seconds", "Run of a batch", _SECONDS)
        self.rows = histogram("batch_rows", "Rows of a batch", _ROWS)

    def observe(self, place: Place, rows: int, run_s: float) -> None:
        self.run_s.labels(place.name, place.version).observe(run_s)
        self.rows.labels(place.name, place.version).observe(rows)


def _uncollected(work: Callable[[], T]) -> T:
    """Run the work without garbage collection: among millions of new lists, a collection stops all threads."""
    with without_collection():
        return work()


@contextmanager
def _in_time(left_s: float) -> Iterator[None]:
    """Turn a full queue, and the end of the remaining time, into errors for the client."""
    try:
        yield
    except QueueFull as error:
        raise ProtocolError(f"{error}; try again in {error.retry_after_s} s", 503, error.retry_after_s) from None
    except TimeoutError:
        raise ProtocolError(f"there was no answer within {left_s:.3g} s", 504) from None


def _share(text: str | None, default: float) -> float:
    """Read a number from 0 to 1 from a query. Raises ProtocolError."""
    try:
        share = default if text is None else float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ProtocolError(f"least is {str(text)[:20]!r}; send a number from 0 to 1")
    return share


def _lower_scheme(given: bytes) -> bytes:
    """Return the value of an Authorization header with its scheme in lower case: RFC 9110, 11.1, allows any case."""
    scheme, blank, token = given.partition(b" ")
    return scheme.lower() + blank + token.lstrip(b" ")

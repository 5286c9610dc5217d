"""Load on a server of the Open Inference Protocol: latency and errors against the rate of requests, or the number of clients.

Open loop: requests come at random times of a Poisson process, whether or not earlier ones were answered, as from many
independent users. Closed loop: each connection sends its next request after the answer to the last.
"""

from __future__ import annotations

import asyncio
import json
import select
import selectors
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import numpy as np

from chronograd.answer import Answer, Section, Table
from chronograd.deploy.protocol import (
    DATATYPES,
    HEADER_LENGTH,
    Array,
    ProtocolError,
    TensorSpec,
    invented,
    read_answer,
    write_request,
)
from chronograd.errors import InputError, RunError
from chronograd.figure import Figure, Lines, Series
from chronograd.files import without_collection
from chronograd.measure import environment
from chronograd.measure.result import MIN_COUNTS, percentile
from chronograd.record import Z80, JobHeader, Named, Provenance, Quantity, Record, RecordedCluster
from chronograd.units import quantity, seconds
from chronograd.words import listed

Loop = Literal["open", "closed"]
DISTINCT = 8  # different requests, sent in turn, so that a cache of answers is not measured
MAX_CONNECTIONS = 1_000  # of the open loop; a request beyond this number fails and is counted
MAX_ANSWER_BYTES = 2**30
_SHOWN = ("throughput_requests_per_s", "latency_mean_s", *MIN_COUNTS)  # quantities in the table
# Share of the median latency, and minimum.
LATE_SHARE = 0.1
LATE_S = 0.005


@dataclass(frozen=True)
class RequestOutcome:
    """One request: due time and sending time, in seconds since the start; latency; reason of a failure, or empty."""

    due: float
    sent: float
    latency_s: float
    problem: str = ""


@dataclass(frozen=True)
class Measured:
    """The outcomes of one rate, or of one number of connections, `level`, over `seconds` after the warm-up."""

    loop: Loop
    level: float
    seconds: float
    outcomes: list[RequestOutcome]

    @property
    def label(self) -> str:
        return f"{self.level:g}/s" if self.loop == "open" else f"{self.level:g} connection{'s' * (self.level != 1)}"

    @property
    def latencies(self) -> list[float]:
        return [one.latency_s for one in self.outcomes if not one.problem]

    @property
    def problems(self) -> Counter[str]:
        return Counter(one.problem for one in self.outcomes if one.problem)

    @property
    def late_p99_s(self) -> float:
        """Return the delay of this process in sending requests: the 99th percentile."""
        return float(np.quantile([one.sent - one.due for one in self.outcomes], 0.99)) if self.outcomes else 0.0

    def quantities(self) -> dict[str, Quantity]:
        latencies = self.latencies
        source = "clock of the client, from a request's first byte sent to its answer's last"
        values = {"latency_mean_s": _mean(latencies, source)}
        for name, (share, least) in MIN_COUNTS.items():
            if len(latencies) < least:
                reason = f"{len(latencies)} requests were answered, and it takes {least}"
                values[name] = Quantity.missing("s", reason)
            else:
                values[name] = percentile(latencies, share, source)
        counts = {"offered_requests_per_s": len(self.outcomes), "throughput_requests_per_s": len(latencies)}
        for name, count in counts.items():
            values[name] = Quantity(
                value=count / self.seconds, unit="request/s", n=count, source="counted by the client"
            )
        failed = len(self.outcomes) - len(latencies)
        values["failed_requests"] = Quantity(
            value=failed, unit="count", n=len(self.outcomes), source="counted by the client"
        )
        return values


def _mean(latencies: Sequence[float], source: str) -> Quantity:
    """Return the mean with its 80 % interval, assuming independent latencies; this is not the interval of a request."""
    if not latencies:
        return Quantity.missing("s", "no request was answered")
    mean, n = float(np.mean(latencies)), len(latencies)
    half = Z80 * float(np.std(latencies)) / n**0.5
    return Quantity(value=mean, unit="s", low=mean - half, high=mean + half, n=n, source=source)


@dataclass(frozen=True)
class Target:
    """A model of a server, and the way to reach it.

    Attributes:
        messages: whole requests for inference, as bytes for the wire, sent in turn.
        server: its name and version, as it reports them.
    """

    url: str
    model: str
    version: str
    rows: int
    server: str
    messages: list[bytes]
    outputs: list[str] = field(default_factory=list)


class Connection:
    """One HTTP/1.1 connection that stays open between requests."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, message: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers (names in lower case) and body of the answer. Raises OSError, EOFError, ValueError."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address)
        reader, writer = self._streams
        try:
            writer.write(message)
            await writer.drain()
            status, headers = _head(await reader.readuntil(b"\r\n\r\n"))
            body = await _body(reader, headers)
        except asyncio.LimitOverrunError as error:
            self.close()
            raise ValueError(str(error)) from None
        except BaseException:
            self.close()
            raise
        if headers.get("connection", "").lower() == "close":
            self.close()
        return status, headers, body

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def _head(text: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = text.decode("latin-1").split("\r\n")
    protocol, _, rest = first.partition(" ")
    if not protocol.startswith("HTTP/1."):
        raise ValueError(f"{first[:80]!r} is not an HTTP/1.1 answer")
    pairs = (line.partition(":") for line in lines if line)
    return int(rest[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if "chunked" not in headers.get("transfer-encoding", "").lower():
        length = int(headers.get("content-length", 0))
        if not 0 <= length <= MAX_ANSWER_BYTES:
            raise ValueError(f"an answer of {length} bytes")
        return await reader.readexactly(length)
    chunks: list[bytes] = []
    total = 0
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        total += size
        if size < 0 or total > MAX_ANSWER_BYTES:
            raise ValueError(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        chunks.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return b"".join(chunks)


@dataclass(frozen=True)
class RequestOptions:
    """Options of all requests.

    Attributes:
        model: its name; by default the only one of the server.
        rows: of each request, if the first axis of an input may have any length.
        shapes: of inputs by name, all axes, if others may have any length, too.
        is_binary: send tensors as binary data, not as JSON.
        token: of the server.
        seed: of the random inputs, and of the arrivals of an open loop.
    """

    model: str | None = None
    rows: int = 1
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    is_binary: bool = True
    token: str | None = None
    seed: int = 0


def load(
    url: str,
    options: RequestOptions = RequestOptions(),
    *,
    rates: Sequence[float] = (),
    connections: Sequence[int] = (),
    seconds_each: float = 10.0,
    warmup_s: float = 1.0,
    timeout_s: float = 30.0,
    say: Callable[[str], None] = lambda _: None,
) -> Answer:
    """Send requests to a server and time the answers: a record for each rate and each number of connections.

    Args:
        url: such as `http://127.0.0.1:8000`.
        rates: requests per second of an open loop. `connections`: of a closed loop; one if neither is given.
        seconds_each: of each rate, after `warmup_s` that do not count.
        timeout_s: a request fails after this time.

    Raises: InputError, RunError where the server cannot be reached.
    """
    levels: list[tuple[Loop, float]] = [("open", rate) for rate in rates]
    levels += [("closed", count) for count in connections or ((1,) if not rates else ())]
    with asyncio.Runner(loop_factory=_fine_loop) as runner:
        return load_answer(*runner.run(_load(url, levels, options, warmup_s, seconds_each, timeout_s, say)))


def _fine_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop with microsecond timing: epoll rounds up to milliseconds, so requests would come in bunches."""
    if not hasattr(selectors, "EpollSelector"):  # only Linux has it; other systems have finer clocks
        return asyncio.new_event_loop()

    class Selector(selectors.EpollSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and timeout > 0:
                select.select([self], [], [], timeout)
                timeout = 0
            return super().select(timeout)

    return asyncio.SelectorEventLoop(Selector())


async def _load(
    url: str,
    levels: Sequence[tuple[Loop, float]],
    options: RequestOptions,
    warmup_s: float,
    seconds_each: float,
    timeout_s: float,
    say: Callable[[str], None],
) -> tuple[Target, list[Measured]]:
    """Send all requests."""
    address, head = _address(url, options.token)
    connection = Connection(*address)
    try:
        async with asyncio.timeout(timeout_s):
            target = await _find(url, connection, head, options)
    except (OSError, EOFError, ValueError) as error:  # TimeoutError is an OSError
        raise RunError(
            f"no answer from {url}: {error or type(error).__name__}",
            "is the server running? `chronograd serve` starts one",
        ) from None
    finally:
        connection.close()
        await asyncio.sleep(0)  # so that the loop releases it
    measured = []
    for loop, level in levels:
        one = Measured(loop, level, seconds_each, [])
        say(f"{target.model}: {one.label}, {seconds(warmup_s + seconds_each)}")
        drive = _open_loop if loop == "open" else _closed_loop
        with without_collection():  # a collection takes tens of milliseconds, in which no answer would be read
            outcomes = await drive(target, address, level, warmup_s + seconds_each, timeout_s, options.seed)
        measured.append(Measured(loop, level, seconds_each, [o for o in outcomes if o.due >= warmup_s]))
    await asyncio.sleep(0)
    return target, measured


def arrivals(rate: float, until: float, seed: int) -> Iterator[float]:
    """Yield the due times of an open loop, in seconds: a Poisson process."""
    random = np.random.default_rng(seed)
    due = random.exponential(1 / rate)
    while due < until:
        yield due
        due += random.exponential(1 / rate)


async def _closed_loop(target: Target, address: tuple[str, int], level: float, until: float, timeout_s: float, seed: int) -> list[RequestOutcome]:  # fmt: skip
    outcomes: list[RequestOutcome] = []
    start = time.perf_counter()

    async def client(number: int) -> None:
        connection = Connection(*address)
        while (now := time.perf_counter() - start) < until:
            message = target.messages[number % len(target.messages)]
            number += 1
            outcomes.append(await _one(connection, message, start, now, timeout_s, target))
            if outcomes[-1].problem:
                await asyncio.sleep(0.01)  # pause after a refused connection
        connection.close()

    await asyncio.gather(*(client(number) for number in range(int(level))))
    return outcomes


async def _open_loop(target: Target, address: tuple[str, int], level: float, until: float, timeout_s: float, seed: int) -> list[RequestOutcome]:  # fmt: skip
    outcomes: list[RequestOutcome] = []
    free: list[Connection] = []
    tasks: set[asyncio.Task[None]] = set()
    start = time.perf_counter()

    async def client(due: float, message: bytes) -> None:
        connection = free.pop() if free else Connection(*address)
        outcomes.append(await _one(connection, message, start, due, timeout_s, target))
        free.append(connection)

    for number, due in enumerate(arrivals(level, until, seed)):
        wait_s = start + due - time.perf_counter()
        await asyncio.sleep(max(wait_s, 0))  # even if it is late, because answers must be read
        if len(tasks) >= MAX_CONNECTIONS:
            outcomes.append(
                RequestOutcome(due, due, 0.0, f"{MAX_CONNECTIONS} requests are already waiting for their answers")
            )
        else:
            task = asyncio.create_task(client(due, target.messages[number % len(target.messages)]))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    for connection in free:
        connection.close()
    return outcomes


async def _one(connection: Connection, message: bytes, start: float, due: float, timeout_s: float, target: Target) -> RequestOutcome:  # fmt: skip
    sent = time.perf_counter()
    problem = ""
    try:
        async with asyncio.timeout(timeout_s):
            status, headers, body = await connection.ask(message)
        latency_s = time.perf_counter() - sent
        problem = f"status {status}" if status != 200 else _why_wrong(headers, body, target)
    except TimeoutError:
        latency_s, problem = time.perf_counter() - sent, f"no answer within {seconds(timeout_s)}"
    except (OSError, EOFError, ValueError) as error:
        latency_s, problem = time.perf_counter() - sent, f"connection: {type(error).__name__}"
    return RequestOutcome(due, sent - start, latency_s, problem)


def _why_wrong(headers: Mapping[str, str], body: bytes, target: Target) -> str:
    """Return what is wrong with an answer of status 200, without reading its numbers; empty if nothing is."""
    if not body:
        return "empty answer"
    missing = [name for name in target.outputs if json.dumps(name).encode() not in body]
    return "answer without an output" if missing else ""


def _address(url: str, token: str | None) -> tuple[tuple[str, int], str]:
    """Return host and port, and the header lines of every request."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 80
    except ValueError:
        parts, host, port = urlsplit(""), None, 0
    if parts.scheme != "http" or not host or parts.path.strip("/") or parts.query:
        raise InputError(
            f"{url!r} is not the address of a server", "write http://HOST:PORT, such as http://127.0.0.1:8000"
        )
    if token is not None and not (token.isascii() and token.isprintable()):
        raise InputError("the token has characters that no HTTP header can have")
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = f"Host: {authority}\r\n" + (f"Authorization: Bearer {token}\r\n" if token is not None else "")
    return (host, port), lines


def _message(method: str, path: str, head: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> bytes:
    own = {**(headers or {}), "Content-Length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in own.items())
    return f"{method} {path} HTTP/1.1\r\n{head}{lines}\r\n".encode() + body


async def _find(url: str, connection: Connection, head: str, options: RequestOptions) -> Target:
    """Ask the server for its models, and make requests for one."""

    async def ask(method: str, path: str) -> Any:
        status, _, body = await connection.ask(_message(method, path, head))
        if status == 401:
            raise InputError(f"{url} requires a token", "--token-file FILE, the one that the server was started with")
        try:
            data = json.loads(body)
        except ValueError:
            raise InputError(f"{url}{path} answers with {status} and no JSON", "is it an inference server?") from None
        if status != 200:
            raise InputError(f"{url}{path} answers with {status}: {str(data)[:200]}", "--model names another model")
        return data

    model = options.model
    if model is None:
        index = await ask("POST", "/v2/repository/index")
        names = sorted({one["name"] for one in index})
        if len(names) != 1:
            raise InputError(f"{url} serves {len(names)} models: {', '.join(names)}", "name one: --model NAME")
        model = names[0]
    server = await ask("GET", "/v2")
    path = f"/v2/models/{quote(model, safe='')}"
    metadata = await ask("GET", path)
    try:
        specs = [TensorSpec(i["name"], i["datatype"], tuple(map(int, i["shape"]))) for i in metadata["inputs"]]
        outputs = [str(one["name"]) for one in metadata["outputs"]]
        version = str((metadata.get("parameters") or {}).get("version") or "")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its metadata of {model} cannot be read: {error!r}") from None
    random = np.random.default_rng(options.seed)
    messages = []
    for _ in range(DISTINCT):
        headers, body = write_request(_inputs(specs, options.rows, options.shapes, random), is_binary=options.is_binary)
        messages.append(_message("POST", f"{path}/infer", head, headers, body))
    # One answer is read completely before any is timed.
    status, answered, body = await connection.ask(messages[0])
    if status != 200:
        raise InputError(f"the server answers the first request with {status}: {body[:300].decode(errors='replace')}",
                         "--shape NAME=1,3,224,224 gives an input its shape, --model names another model")  # fmt: skip
    try:
        read_answer(body, answered.get(HEADER_LENGTH.lower()))
    except ProtocolError as error:
        raise ValueError(f"its answer cannot be read: {error}") from None
    name = f"{server.get('name', '')} {server.get('version', '')}".strip()
    return Target(url, model, version, options.rows, name, messages, outputs)


def _inputs(
    specs: Sequence[TensorSpec], rows: int, shapes: Mapping[str, Sequence[int]], random: np.random.Generator
) -> dict[str, Array]:
    """Return random inputs of `rows` rows."""
    for name in shapes:
        if name not in {spec.name for spec in specs}:
            raise InputError(f"there is no input {name!r}", f"inputs: {', '.join(spec.name for spec in specs)}")
    inputs: dict[str, Array] = {}
    for spec in specs:
        shape = tuple(shapes.get(spec.name) or (rows if i == 0 and n < 0 else n for i, n in enumerate(spec.shape)))
        if min(shape, default=1) < 0:
            raise InputError(
                f"input {spec.name} has shape {list(spec.shape)}: axes of any length",
                f"--shape {spec.name}={','.join(str(n) if n > 0 else '8' for n in shape)} gives them one",
            )
        if spec.datatype not in DATATYPES:
            raise InputError(
                f"input {spec.name} is {spec.datatype}, which cannot be sent; known: {', '.join(DATATYPES)}"
            )
        inputs[spec.name] = invented(spec.datatype, shape, random)
    return inputs


def load_record(target: Target, measured: Measured) -> Record:
    """Return the measurements at one rate, or with one number of connections."""
    is_open = measured.loop == "open"
    method = "open loop, Poisson arrivals" if is_open else "closed loop, each connection sends after its last answer"
    around = environment.environment()
    return Record(
        kind="measured",
        title=f"{target.model} at {target.url}, {measured.label}",
        job=JobHeader(mode="inference", network=Named(name=target.model)),
        cluster=RecordedCluster(batch_per_rank=target.rows),
        versions={**around["versions"], "server": target.server, "model": target.version},
        provenance=Provenance(method=method, date=around["created"], environment=around),
        quantities=measured.quantities(),
        notes=[f"{count:,} requests failed: {problem}" for problem, count in measured.problems.most_common()],
    )


def load_answer(target: Target, measured: Sequence[Measured]) -> Answer:
    """Return latency and errors by rate or connections, with a record for each."""
    records = {one.label: load_record(target, one) for one in measured}
    rows = [
        {
            "loop": one.loop,
            "level": one.level,
            "requests": len(one.outcomes),
            **{name: record[name].value for name in ("offered_requests_per_s", *_SHOWN, "failed_requests")},
            "late_p99_s": one.late_p99_s,
            "problems": dict(one.problems),
        }
        for one, record in zip(measured, records.values(), strict=True)
    ]
    notes = [f"{label}: {note}" for label, record in records.items() for note in record.notes]
    for one in measured:
        if one.loop == "open" and one.latencies and one.late_p99_s > max(LATE_SHARE * median(one.latencies), LATE_S):
            late = seconds(one.late_p99_s)
            notes.append(
                f"{one.label}: 1 % of the requests were sent more than {late} late: this machine is at its limit"
            )
    section = Section(
        title=f"Latency of {target.model} against load",
        takeaway=" ".join(_sentence(one, record) for one, record in zip(measured, records.values(), strict=True)),
        table=_table(measured, records),
        figure=_figure(measured) if len(measured) > 1 else None,
        data=rows,
    )
    data = {
        "url": target.url,
        "model": target.model,
        "version": target.version,
        "server": target.server,
        "rows": target.rows,
        "load": rows,
        "records": {label: record.model_dump(mode="json") for label, record in records.items()},
    }
    return Answer(
        title=f"load on {target.model} at {target.url}",
        sections=[section],
        records=records,
        data=data,
        notes=notes,
        exit_status=0 if all(one.latencies for one in measured) else 1,
    )


def _table(measured: Sequence[Measured], records: Mapping[str, Record]) -> Table:
    return Table(
        ("load", "answered", "mean", "median", "p95", "p99", "requests", "failed"),
        [
            [
                label,
                *(quantity(record[name].value, record[name].unit) for name in _SHOWN),
                f"{len(one.outcomes):,}",
                f"{len(one.outcomes) - len(one.latencies):,}",
            ]
            for one, (label, record) in zip(measured, records.items(), strict=True)
        ],
        set(range(1, 8)),
        [f"{name}: {record[name].reason}" for name in MIN_COUNTS for record in records.values() if record[name].reason][
            :1
        ],
    )


def _sentence(one: Measured, record: Record) -> str:
    known = [
        f"{share} within {seconds(record.value(name))}"
        for name, share in (("latency_p50_s", "half"), ("latency_p99_s", "99 %"))
        if record[name].value is not None
    ]
    failed = len(one.outcomes) - len(one.latencies)
    loss = f"{failed:,} of {len(one.outcomes):,} requests failed" if failed else "no request failed"
    answered = f"{listed(known)} of the requests got an answer; " if known else ""
    return f"At {one.label} {answered}{loss}."


def _figure(measured: Sequence[Measured]) -> Figure | None:
    """Return percentiles against requests answered per second, with a panel for each kind of loop."""
    panels = []
    for loop in ("open", "closed"):
        own = [one for one in measured if one.loop == loop and one.latencies]
        if len(own) < 2:
            continue
        rates = [len(one.latencies) / one.seconds for one in own]
        series = [
            Series(
                label,
                "measured",
                rates,
                [float(np.quantile(one.latencies, share)) * 1e3 for one in own],
                is_joined=True,
            )
            for label, share in (("median", 0.5), ("95th percentile", 0.95), ("99th percentile", 0.99))
        ]
        panels.append(
            Lines("requests answered per second", "latency (ms)", series, from_zero=True, title=f"{loop} loop")
        )
    return Figure(panels) if panels else None

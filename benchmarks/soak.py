"""An hour's worth of requests at full speed: does the memory of `chronograd serve` grow?

    python -m benchmarks.soak --requests 20000
    python -m benchmarks.soak --requests 360000 --json benchmarks/results/soak.json

Half of the requests are valid. Most of the others have a body with some changed bytes. The rest are changed anywhere and end
their connection. A valid request must get a 200. An invalid one must get a 200, a 4xx or a closed connection. Resident memory
is read in even steps; its growth is counted from the first tenth, in which caches fill, to the end.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from chronograd.deploy.protocol import write_request
from chronograd.errors import RunError
from chronograd.files import write_json
from chronograd.measure import environment

READINGS = 100
DISTINCT = 4_000  # distinct messages, sent in turn: enough that no cache holds all invalid ones
RIGHT, WRONG_BODY, WRONG = "right", "wrong body", "wrong anywhere"
SHARES = {RIGHT: 0.5, WRONG_BODY: 0.45, WRONG: 0.05}
TIMEOUT_S = 20.0
INSERTED = (b"9", b"-", b"[", b"null", b'"', b"1e999", b"\xff", b"\r\n")


@dataclass(frozen=True)
class Message:
    """A request as it goes over the wire."""

    kind: str
    content: bytes


@dataclass
class Soaked:
    """Answers, and the server's memory after each number of requests."""

    statuses: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def growth_bytes(self) -> float:
        """Return the growth from the first tenth of the requests to the last: the median of each, because memory fluctuates."""
        last, most = self.memory[-1][0], max(len(self.memory) // 10, 1)
        settled = [size for count, size in self.memory if count >= last / 10][:most]
        return float(np.median([size for _, size in self.memory[-most:]]) - np.median(settled))

    def row(self, requests: int) -> dict[str, Any]:
        return {
            "requests": requests,
            "seconds": round(self.seconds, 1),
            "requests_per_s": round(requests / self.seconds, 1),
            "statuses": dict(sorted(self.statuses.items())),
            "problems": self.problems,
            "growth_bytes": self.growth_bytes,
            "growth_bytes_per_1000_requests": self.growth_bytes / (0.9 * requests / 1000),
            "memory": [list(reading) for reading in self.memory],
        }


def messages(count: int = DISTINCT, seed: int = 0) -> list[Message]:
    """Return requests for the model of `serving`: each kind by its share, in random order."""
    random = np.random.default_rng(seed)
    kinds = random.choice(list(SHARES), count, p=list(SHARES.values()))
    made = []
    for kind in kinds.tolist():
        x = random.standard_normal((int(random.integers(1, 5)), 4)).astype(np.float32)
        headers, body = write_request({"x": x}, is_binary=bool(random.integers(2)))
        whole = _whole(headers, changed(body, random) if kind == WRONG_BODY else body)
        made.append(Message(kind, changed(whole, random) if kind == WRONG else whole))
    return made


def _whole(headers: dict[str, str], body: bytes) -> bytes:
    lines = [
        f"{name}: {value}" for name, value in {**headers, "Host": "localhost", "Content-Length": len(body)}.items()
    ]
    return "\r\n".join(["POST /v2/models/double/infer HTTP/1.1", *lines, "", ""]).encode() + body


def changed(content: bytes, random: np.random.Generator) -> bytes:
    """Return the content with some bytes overwritten, removed or inserted."""
    new = bytearray(content)
    for _ in range(random.integers(1, 4)):
        place = int(random.integers(len(new)))
        kind = random.integers(3)
        if kind == 0:
            new[place] = random.integers(256)
        elif kind == 1:
            del new[place : place + int(random.integers(1, 8))]
        else:
            new[place:place] = INSERTED[random.integers(len(INSERTED))]
        new = new or bytearray(b"{")
    return bytes(new)


class Client:
    """One connection, which reopens after it is closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None
        self._received = b""

    def ask(self, message: Message) -> str:
        """Return the status of the answer, or "closed". Raises OSError on timeout."""
        if message.kind == WRONG:
            return self._last_of_its_connection(message.content)
        for _ in range(2):  # the server may have closed an idle connection after an answer
            is_new = self._socket is None
            if self._socket is None:
                self._socket, self._received = self._connected(), b""
            with suppress(ConnectionError):
                self._socket.sendall(message.content)
                if status := self._answer(self._socket):
                    return status
            self.close()
            if is_new:
                break
        return "closed"

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def _connected(self) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self._port), TIMEOUT_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return plain

    def _answer(self, plain: socket.socket) -> str:
        """Return the status after the whole answer has arrived; empty if the connection was closed before."""
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            if not self._more(plain):
                return ""
        head = self._received[:end].lower()
        length = re.search(rb"\r\ncontent-length: (\d+)", head)
        whole = end + 4 + (int(length[1]) if length else 0)
        while len(self._received) < whole:
            if not self._more(plain):
                return ""
        self._received = self._received[whole:]
        if b"\r\nconnection: close" in head:
            self.close()
        return head[9:12].decode()

    def _more(self, plain: socket.socket) -> bool:
        part = plain.recv(65536)
        self._received += part
        return bool(part)

    def _last_of_its_connection(self, content: bytes) -> str:
        """Send a request on a connection that sends nothing afterwards: a changed request may announce more bytes than it
        has.
        """
        received = b""
        with self._connected() as plain, suppress(ConnectionError):
            plain.sendall(content)
            plain.shutdown(socket.SHUT_WR)
            while part := plain.recv(65536):
                received += part
        return received[9:12].decode("latin-1") or "closed"


def is_right(kind: str, status: str) -> bool:
    """Return whether a status is a valid answer to a message of a kind.

    >>> is_right(RIGHT, "200"), is_right(RIGHT, "400"), is_right(WRONG, "closed"), is_right(WRONG_BODY, "500")
    (True, False, True, False)
    """
    if kind == RIGHT:
        return status == "200"
    return status == "200" or status.startswith("4") or (kind == WRONG and status == "closed")


def soak(pid: int, port: int, requests: int, connections: int) -> Soaked:
    """Send `requests` requests, in turn over a few connections, and read the server's memory meanwhile."""
    sent, soaked, lock = iter(range(1, requests + 1)), Soaked(), threading.Lock()
    prepared, process = messages(), psutil.Process(pid)
    every = max(requests // READINGS, 1)

    def work() -> None:
        client, statuses, problems = Client(port), Counter[str](), list[str]()
        while not soaked.problems:
            with lock:
                number = next(sent, None)
            if number is None:
                break
            message = prepared[number % len(prepared)]
            try:
                status = client.ask(message)
            except OSError as error:
                status = type(error).__name__
                client.close()
            statuses[status] += 1
            if not is_right(message.kind, status):
                problems.append(f"{message.kind}: {status} for {message.content[:300]!r}")
                break
            if number % every == 0:
                with lock:
                    soaked.memory.append((number, process.memory_info().rss))
        client.close()
        with lock:
            soaked.statuses.update(statuses)
            soaked.problems += problems

    start = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    soaked.seconds = time.perf_counter() - start
    soaked.memory.sort()
    return soaked


@contextmanager
def serving(folder: Path) -> Iterator[tuple[int, int]]:
    """Start `chronograd serve` of a model that doubles rows of four numbers; yield its process and port. Raises RunError."""
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "factor"], ["y"])],
        "double",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(np.asarray(2, np.float32), "factor")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "double.onnx").write_bytes(model.SerializeToString())
    command = [sys.executable, "-m", "chronograd", "serve", str(folder / "double.onnx"), "--port", "0", "--json"]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen([*command, "--drain", "0.5"], stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line == "}\n":
                break
        if not lines:
            raise RunError("the server did not start", (folder / "log.txt").read_text()[-500:])
        yield process.pid, int(json.loads("".join(lines))["url"].rpartition(":")[2])
        if process.poll() is not None:
            raise RunError(
                f"the server ended with status {process.returncode}", (folder / "log.txt").read_text()[-500:]
            )
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=20_000, help="360000 are an hour's worth at 100 a second")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as (pid, port):
        soaked = soak(pid, port, arguments.requests, arguments.connections)
    row = soaked.row(arguments.requests)
    print(
        f"{row['requests']:,} requests in {row['seconds']:,.0f} s, {row['requests_per_s']:,.0f} a second: {row['statuses']}\n"
        f"memory {soaked.memory[0][1] / 1e6:.1f} MB at first, {soaked.memory[-1][1] / 1e6:.1f} MB at last; from the first tenth on "
        f"{soaked.growth_bytes / 1e6:+.2f} MB, {row['growth_bytes_per_1000_requests'] / 1e3:+.2f} kB per 1,000 requests",
        *soaked.problems,
        sep="\n",
    )
    if arguments.json is not None:
        versions = {
            name: environment.version_of(name) for name in ("chronograd", "onnxruntime", "uvicorn", "starlette")
        }
        seen = {name: environment.environment()[name] for name in ("processor", "cores")}
        about = {"created": datetime.now(UTC).isoformat(timespec="seconds"), "connections": arguments.connections}
        write_json(arguments.json, {**about, **row, "versions": versions, "environment": seen})
    return int(bool(soaked.problems))


if __name__ == "__main__":
    sys.exit(main())

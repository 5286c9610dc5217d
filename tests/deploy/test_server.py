"""The server from its clients' view: answers, refusals, and no lost requests during reloads and shutdown."""

from __future__ import annotations

import gzip
import http.client
import importlib.util
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.deploy import onnx_models
from tests.deploy.running import Running, floats, serving
from tests.deploy.test_protocol import JSON, body_of

from chronograd.cli.main import main
from chronograd.deploy import timing
from chronograd.deploy.protocol import HEADER_LENGTH, LONG_BYTES, write_request

pytestmark = pytest.mark.serve
OF_ANY_FORM = int(os.environ.get("CHRONOGRAD_MALFORMED", "400"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of `double`, which merges requests within 5 ms, `lookup`, whose inputs may be wrong, and `words`."""
    folder = tmp_path_factory.mktemp("models")
    onnx_models.heavy(folder / "heavy.onnx")
    onnx_models.scale(folder / "double.onnx", 2.0)
    onnx_models.lookup(folder / "lookup.onnx")
    onnx_models.text(folder / "words.onnx")
    with serving(folder, "--batch-wait", "5", "--most-mb", "1", "--timeout", "20") as running:
        yield running


def post(server: Running, model: str, data: Any, **headers: str) -> tuple[int, Any]:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    status, _, content = server.ask("POST", f"/v2/models/{model}/infer", body, **headers)
    return status, json.loads(content)


def test_server_and_model_metadata(server: Running) -> None:
    assert server.ask("GET", "/v2/health/live")[0] == 200
    assert server.ask("GET", "/v2/health/ready")[0] == 200
    assert server.ask("GET", "/v2/models/double/ready")[0] == 200
    assert json.loads(server.ask("GET", "/v2")[2])["name"] == "chronograd"
    told = json.loads(server.ask("GET", "/v2/models/double/versions/1")[2])
    assert told["versions"] == ["1"]
    assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert told["outputs"][1] == {"name": "total", "datatype": "FP32", "shape": [-1]}
    index = json.loads(server.ask("POST", "/v2/repository/index")[2])
    assert [one["name"] for one in index] == ["double", "heavy", "lookup", "words"]


def test_json_answer(server: Running) -> None:
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [[1, 2, 3, 4.5]]}]
    status, answer = post(server, "double", {"id": "7", "inputs": inputs})
    assert status == 200
    assert answer == {
        "model_name": "double",
        "model_version": "1",
        "id": "7",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [2.0, 4.0, 6.0, 9.0]},
            {"name": "total", "datatype": "FP32", "shape": [1], "data": [21.0]},
        ],
    }


def test_string_tensors_round_trip(server: Running) -> None:
    words = np.array([["a", "ü"], ["", "日本"]], object)
    encoded = np.vectorize(lambda word: word.encode(), otypes=[object])(words)
    assert [w.decode() for w in server.infer("words", words=encoded)["same"].ravel()] == words.ravel().tolist()
    inputs = [{"name": "words", "datatype": "BYTES", "shape": [1, 1], "data": ["ü"]}]
    assert post(server, "words", {"inputs": inputs})[1]["outputs"][0]["data"] == ["ü"]


def test_merged_requests_get_their_own_answers(server: Running) -> None:
    before = [server.metric(f"chronograd_batch_rows_{part}", model="double") for part in ("sum", "count")]

    def client(number: int) -> None:
        connection = server.client()
        for i in range(25):
            x = floats(*[[number, i, row, 1] for row in range(1 + number % 3)])
            answer = server.infer("double", connection, x=x)
            np.testing.assert_array_equal(answer["y"], 2 * x)
            np.testing.assert_array_equal(answer["total"], (2 * x).sum(axis=1))
        connection.close()

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(client, range(12)))
    rows, batches = (
        server.metric(f"chronograd_batch_rows_{part}", model="double") - old
        for part, old in zip(("sum", "count"), before, strict=True)
    )
    assert rows == 25 * sum(1 + number % 3 for number in range(12))
    assert batches < 12 * 25 / 2  # otherwise the test shows nothing


def test_requested_outputs_are_returned(server: Running) -> None:
    """Single requests, and merged requests of different outputs."""
    asked = [("y",), ("total",), ("total", "y"), ()] * 6

    def client(number: int) -> list[str]:
        return list(server.infer("double", outputs=asked[number], x=floats([number] * 4)))

    assert [client(number) for number in range(4)] == [["y"], ["total"], ["total", "y"], ["y", "total"]]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(client, range(len(asked))))
    assert answers == [list(names) or ["y", "total"] for names in asked]


def test_keep_alive_connection_answers_every_request(server: Running) -> None:
    """Three requests with and without pipelining."""
    connection = server.client()
    for i in range(3):
        assert server.infer("double", connection, x=floats([i] * 4))["y"].tolist() == [[2 * i] * 4]
    connection.close()
    _, body = write_request({"x": floats([1, 2, 3, 4])}, is_binary=False)
    head = f"POST /v2/models/double/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=20) as plain:  # type: ignore[arg-type]
        plain.sendall((head + body) * 3)
        received = b""
        while received.count(b'"data":[2.0,4.0,6.0,8.0]') < 3:
            part = plain.recv(65536)
            assert part, received
            received += part
    assert received.count(b"HTTP/1.1 200") == 3


def test_batching_is_used_if_it_saves_time(server: Running) -> None:
    by_name = {one["model"]: one for one in server.data["models"]}
    assert by_name["heavy"]["most_rows"] >= 4
    assert "together" in by_name["heavy"]["batching"]


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("GET /v2/models/nobody", 404, "there is no model 'nobody'; served: double"),
        ("GET /v2/models/double/versions/9", 404, "has no version '9'"),
        ("POST /v2/models/nobody/infer", 404, "there is no model"),
        ("GET /v2/models/double/infer", 405, "GET is not for"),
        ("GET /favicon.ico", 404, "there is nothing at /favicon.ico"),
        ("GET /v2/", 404, "there is nothing"),
        ("POST /v2/models/double/infer", 400, "not JSON"),
        ("POST /v2/repository/models/nobody/load", 404, "there is no model"),
    ],
)
def test_unknown_paths_and_models(server: Running, path: str, status: int, words: str) -> None:
    got, headers, content = server.ask(*path.split())
    assert (got, headers["content-type"]) == (status, "application/json")
    assert words in json.loads(content)["error"]


def test_invalid_requests_state_the_fault(server: Running) -> None:
    def tensor(**changes: Any) -> dict[str, Any]:
        return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]} | changes]}

    for data, words in (
        (tensor(name="z"), "no input 'z'"),
        (tensor(datatype="FP64"), "is FP64, and the model takes FP32"),
        (tensor(shape=[2, 2]), "the model takes [-1, 4]"),
        (tensor() | {"outputs": [{"name": "q"}]}, "no output 'q'; the model has y, total"),
    ):
        status, answer = post(server, "double", data)
        assert (status, words in answer["error"]) == (400, True), answer
    index = {"inputs": [{"name": "index", "datatype": "INT64", "shape": [1], "data": [3]}]}
    status, answer = post(server, "lookup", index)
    assert (status, "cannot run with these inputs" in answer["error"]) == (400, True)


def test_body_size_limits(server: Running) -> None:
    """1 MiB, compressed or not; the server answers the next request."""
    for body, headers in ((bytes(2**20 + 1), {}), (gzip.compress(bytes(2**20 + 1)), {"Content_Encoding": "gzip"})):
        status, answer = post(server, "double", body, **headers)
        assert (status, "1048576 bytes" in answer["error"]) == (413, True)
    assert server.ask("GET", "/v2/health/ready")[0] == 200


def test_clients_allowed_without_a_token(server: Running) -> None:
    """Web pages of other sites and rebound host names are refused."""
    for headers in (
        {"Host": "evil.example"},
        {"Host": "evil.example:8000", "Origin": "http://localhost"},
        {"Host": "localhost@evil.example"},
        {"Host": "[::1"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ):
        status, _, content = server.ask("POST", "/v2/repository/index", **headers)
        assert (status, "is not this machine" in json.loads(content)["error"]) == (403, True), headers
        assert server.ask("GET", "/v2/health/live", **headers)[0] == 200
    for headers in ({}, {"Host": "LOCALHOST:1"}, {"Host": "[::1]:8000", "Origin": "http://127.0.0.1:3000"}):
        assert server.ask("POST", "/v2/repository/index", **headers)[0] == 200


def test_model_is_loaded_from_its_own_file_only(server: Running) -> None:
    for parameters in ({"config": "{}"}, {"file:1/model.onnx": "eA=="}):
        body = json.dumps({"parameters": parameters}).encode()
        status, _, content = server.ask("POST", "/v2/repository/models/double/load", body)
        assert (status, f"{next(iter(parameters))}' is not supported" in json.loads(content)["error"]) == (400, True)
    for body in (b"", b"{}", b'{"parameters": {"other": 1}}'):
        assert server.ask("POST", "/v2/repository/models/double/load", body)[0] == 200


def test_compressed_requests_are_read(server: Running) -> None:
    _, body = write_request({"x": floats([1, 2, 3, 4])}, is_binary=False)
    status, answer = post(server, "double", gzip.compress(body), Content_Encoding="gzip")
    assert (status, answer["outputs"][1]["data"]) == (200, [20.0])


def test_client_timeout_limits_the_batching_delay(server: Running) -> None:
    """The client's timeout ends before the server's batching delay."""
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]
    status, answer = post(server, "double", {"inputs": inputs, "parameters": {"timeout": 1}})
    assert (status, "no answer within" in answer["error"]) == (504, True)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=100), body_of(), JSON), st.one_of(st.none(), st.integers(0, 300), st.sampled_from(["x", "-1", ""])))  # fmt: skip
def test_malformed_requests_are_refused(server: Running, data: Any, length: Any) -> None:
    headers = {} if length is None else {HEADER_LENGTH.replace("-", "_"): str(length)}
    status, answer = post(server, "double", data, **headers)
    assert 400 <= status < 500
    assert list(answer) == ["error"]


def answers(server: Running, data: bytes) -> list[int]:
    """Return the statuses of all answers to these bytes until the server closes the connection."""
    with socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=20) as plain:  # type: ignore[arg-type]
        received = b""
        with suppress(ConnectionError):  # the server may cut it off
            plain.sendall(data)
            plain.shutdown(socket.SHUT_WR)
            while part := plain.recv(65536):
                received += part
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


TOKEN = st.text(st.characters(codec="latin-1"), max_size=12).map(lambda text: text.encode("latin-1"))


def mostly(usual: st.SearchStrategy[bytes], other: st.SearchStrategy[bytes] = TOKEN) -> st.SearchStrategy[bytes]:
    """Return a strategy that is valid most of the time, as several wrong parts would stop at the parser."""
    return st.sampled_from([usual] * 9 + [other]).flatmap(lambda chosen: chosen)


METHOD = mostly(st.sampled_from([b"POST", b"POST", b"GET", b"GET", b"PUT", b"HEAD", b"OPTIONS", b"CONNECT", b"post"]))
TARGET = mostly(
    st.sampled_from(
        [
            *(
                b"/v2/models/double/infer",
                b"/v2/models/double",
                b"/v2",
                b"/v2/models/%00/infer",
                b"/v2/models/double/versions/-1",
            ),
            *(
                b"/metrics",
                b"//",
                b"/v2/models/../../etc/passwd",
                b"/v2/repository/index",
                b"*",
                b"http://h/v2",
                b"/" + b"a" * 9000,
            ),
        ]
    ),
    TOKEN.map(lambda text: b"/" + text),
)
HEADER = st.tuples(
    mostly(st.sampled_from(
        [b"Content-Length", b"Transfer-Encoding", b"Content-Encoding", b"Inference-Header-Content-Length", b"Expect", b"Host",
         b"Connection", b"Connection", b"Upgrade", b"Upgrade", b"Accept"]
    )),
    mostly(st.sampled_from([b"0", b"5", b"-1", b"99999999999999999999", b"chunked", b"gzip", b"deflate", b"100-continue", b"close",
                     b"websocket", b"1, 2", b"h2c", b"Upgrade, HTTP2-Settings"])),
)  # fmt: skip
BODY = st.binary(max_size=60) | body_of().map(lambda data: json.dumps(data).encode()) | st.sampled_from(
    [b"5\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffff\r\nx", gzip.compress(b"{}"), b"{" * 5000, b"[" * 50]
)  # fmt: skip


@st.composite
def malformed(draw: st.DrawFn) -> bytes:
    """Return a request with arbitrary parts, or arbitrary bytes."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    head = (
        draw(METHOD)
        + b" "
        + draw(TARGET)
        + b" "
        + draw(st.sampled_from([b"HTTP/1.1"] * 16 + [b"HTTP/1.0", b"HTTP/9", b""]))
    )
    lines = [name + b": " + value for name, value in draw(st.lists(HEADER, max_size=3))]
    if draw(st.integers(0, 9)) == 0:
        lines += [b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c"]
    body = draw(BODY)
    if draw(st.booleans()):
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([head, *lines, b"", body])


@settings(max_examples=150, deadline=None)
@given(malformed())
def test_any_bytes_are_answered_or_cut_off(server: Running, data: bytes) -> None:
    """The server answers the next request."""
    assert all(200 <= status < 500 for status in answers(server, data)), data
    assert server.ask("GET", "/v2/health/live")[0] == 200


def answers_in_turn(server: Running, *parts: bytes) -> list[int]:
    """Return the statuses of the answers to bytes sent part by part, up to a request that closes the connection."""
    received = b""
    with socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=20) as plain:  # type: ignore[arg-type]
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            plain.sendall(part)
            time.sleep(0.03)  # so they arrive individually
        plain.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        while part := plain.recv(65536):
            received += part
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


def test_upgrade_request_is_one_request(server: Running) -> None:
    """Java's client requests HTTP/2 this way: its body stays its body, at any content and packet boundary."""
    upgrade = b"Host: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"

    def request(body: bytes) -> bytes:
        return b"POST /v2/models/double/infer HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s" % (upgrade, len(body), body)

    right = request(write_request({"x": floats([1, 2, 3, 4])}, is_binary=False)[1])
    hidden = request(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for data, status in ((right, 200), (hidden, 400)):
        end = data.index(b"\r\n\r\n") + 4
        for place in (20, end - 2, end, end + 5):
            assert answers_in_turn(server, data[:place], data[place:]) == [status, 200], place
        assert answers_in_turn(server, data * 3) == [status] * 3 + [200]
    assert answers_in_turn(server, b"CONNECT h:80 HTTP/1.1\r\n\r\n" + right) == [400]


@pytest.mark.parametrize("long", [b"X-%d: a\r\n", b"%d"])
def test_trailers_are_ignored_up_to_a_limit(server: Running, long: bytes) -> None:
    """A few are ignored; 64 KiB of them, many or one, are refused."""
    head = b"POST /v2/models/double/infer HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    assert answers_in_turn(server, head + b"Host: elsewhere\r\n\r\n") == [400, 200]
    text = b"X: " + b"".join(long % number for number in range(20_000))
    with socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=20) as plain:  # type: ignore[arg-type]
        plain.sendall(head)
        with pytest.raises(OSError):  # noqa: PT012
            for _ in range(1_000):
                plain.sendall(text)
    assert server.ask("GET", "/v2/health/live")[0] == 200


def test_endless_header_is_cut_off(server: Running) -> None:
    """The connection is new, or has already answered a request."""
    for before in (b"", b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        with socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=20) as plain:  # type: ignore[arg-type]
            received = b""
            if before:
                plain.sendall(before)
                received = plain.recv(65536)
                assert received.startswith(b"HTTP/1.1 200")
            with pytest.raises(OSError), closing(plain):  # noqa: PT012
                plain.sendall(b"GET /v2 HTTP/1.1\r\nX-Long: ")
                for _ in range(10_000):
                    plain.sendall(bytes(b"a" * 10_000))
    assert server.ask("GET", "/v2/health/live")[0] == 200


def test_metrics_count_the_requests(server: Running) -> None:
    labels = {"model": "double", "version": "1", "code": "200"}
    before, seconds = server.metric("chronograd_requests_total", **labels), "chronograd_request_seconds_count"
    timed = server.metric(seconds, model="double")
    for _ in range(3):
        server.infer("double", x=floats([1, 2, 3, 4]))
    post(server, "nobody", b"")
    assert server.metric("chronograd_requests_total", **labels) == before + 3
    assert server.metric(seconds, model="double") == timed + 3
    assert server.metric("chronograd_requests_total", model="nobody") == 0  # invented model names take no memory


def test_metrics_of_one_model_and_of_the_decoding_thread(server: Running) -> None:
    """The metrics separate the models; the model's metadata states the largest batch."""
    before = timing.runs(server.url, "double")
    for _ in range(3):
        server.infer("double", x=floats([1, 2, 3, 4]))
    ran = timing.runs(server.url, "double").since(before)
    assert (ran.batches, ran.rows) == (3, 3)
    assert 0 < ran.seconds < 3
    assert 0 < ran.answer_s < ran.loop_s < 3
    by_name = {row["model"]: row["most_rows"] for row in server.data["models"]}
    assert timing.largest_batch(server.url, "heavy") == by_name["heavy"] > 1


@pytest.mark.slow
def test_ten_thousand_malformed_requests(server: Running) -> None:
    """Valid requests with a few wrong bytes: each gets 200 or a 4xx, and memory does not grow."""
    random = np.random.default_rng(0)
    plain = write_request({"x": floats([1, 2, 3, 4])}, is_binary=False)
    binary = write_request({"x": floats([1, 2, 3, 4])}, is_binary=True, outputs=("y",))
    statuses: Counter[int] = Counter()

    def ask(count: int) -> None:
        with closing(server.client()) as connection:
            for i in range(count):
                headers, body = (plain, binary)[i % 2]
                connection.request("POST", "/v2/models/double/infer", changed(body, random), headers)
                answer = connection.getresponse()
                content = answer.read()
                statuses[answer.status] += 1
                assert answer.status == 200 or (400 <= answer.status < 500 and json.loads(content)["error"]), content

    ask(1_000)
    before = psutil.Process(server.process.pid).memory_info().rss
    ask(10_000)
    assert statuses[400] > 5_000
    assert psutil.Process(server.process.pid).memory_info().rss - before < 20e6
    assert server.infer("double", x=floats([1, 2, 3, 4]))["y"].tolist() == [[2, 4, 6, 8]]


@pytest.mark.slow
def test_requests_of_any_form(server: Running) -> None:
    """The whole surface of HTTP: methods, paths, false headers, bodies, and bytes that are not HTTP.

    `OF_ANY_FORM` sets the number of requests: `CHRONOGRAD_MALFORMED=10000` in the environment sends ten thousand.
    """
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=OF_ANY_FORM,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(malformed())
    def ask(data: bytes) -> None:
        seen = answers(server, data)
        assert all(200 <= status < 500 for status in seen), data
        statuses.update(seen or [0])

    for data in (b"", b"GET /v2 HTTP/1.1\r\n\r\n") * 200:
        answers(server, data)
    before, written = psutil.Process(server.process.pid).memory_info().rss, len(server.errors())
    ask()
    growth = psutil.Process(server.process.pid).memory_info().rss - before
    print(f"{sum(statuses.values()):,} requests: {dict(sorted(statuses.items()))}; memory {growth / 1e6:+.1f} MB")
    assert sum(statuses.values()) >= 0.9 * OF_ANY_FORM
    assert min(statuses[status] for status in (200, 400, 404, 405)) > 5, statuses
    assert growth < 20e6
    assert len(server.errors()) == written  # such requests cannot fill the log
    assert server.infer("double", x=floats([1, 2, 3, 4]))["y"].tolist() == [[2, 4, 6, 8]]


def changed(body: bytes, random: np.random.Generator) -> bytes:
    """Return a body with some bytes overwritten, removed or inserted."""
    content = bytearray(body)
    for _ in range(random.integers(1, 4)):
        place = int(random.integers(len(content)))
        kind = random.integers(3)
        if kind == 0:
            content[place] = random.integers(256)
        elif kind == 1:
            del content[place : place + int(random.integers(1, 8))]
        else:
            content[place:place] = random.choice([b"9", b"-", b"[", b"null", b'"', b"1e999", b"\xff"])
        content = content or bytearray(b"{")
    return bytes(content)


CLIENT = """
import sys
import numpy as np
import tritonclient.http as http
client = http.InferenceServerClient(sys.argv[1])
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("double")
assert client.get_server_metadata()["name"] == "chronograd"
assert client.get_model_metadata("double")["inputs"][0]["shape"] == [-1, 4]
assert [one["name"] for one in client.get_model_repository_index()] == ["double", "heavy", "lookup", "words"]
for rows in (1, 5):
    x = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4)
    for is_binary in (True, False):
        asked = http.InferInput("x", list(x.shape), "FP32")
        asked.set_data_from_numpy(x, binary_data=is_binary)
        wanted = [http.InferRequestedOutput(name, binary_data=is_binary) for name in ("total", "y")]
        for outputs in (None, wanted, wanted[:1]):
            for packed in (None, "gzip", "deflate"):
                answer = client.infer("double", [asked], outputs=outputs, request_id="7", request_compression_algorithm=packed)
                names = [one["name"] for one in answer.get_response()["outputs"]]
                assert names == ([one.name() for one in outputs] if outputs else ["y", "total"]), names
                assert answer.get_response()["id"] == "7"
                assert (answer.as_numpy("total") == (2 * x).sum(axis=1)).all()
                assert answer.as_numpy("y") is None if outputs == wanted[:1] else (answer.as_numpy("y") == 2 * x).all()
words = http.InferInput("words", [1, 2], "BYTES")
words.set_data_from_numpy(np.array([["a", "b"]], object))
assert client.infer("words", [words]).as_numpy("same").tolist() == [[b"a", b"b"]]
waiting = [client.async_infer("double", [asked]) for _ in range(8)]
assert all((one.get_result().as_numpy("y") == 2 * x).all() for one in waiting)
try:
    client.infer("nobody", [asked])
except http.InferenceServerException as error:
    assert "there is no model 'nobody'" in str(error), error
else:
    raise AssertionError("no error")
client.load_model("double")
client.close()
print("done")
"""


@pytest.mark.skipif(importlib.util.find_spec("tritonclient") is None, reason="tritonclient[http] is not installed")
def test_unmodified_triton_client(server: Running) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, server.url.removeprefix("http://")], capture_output=True, text=True, timeout=110, check=False
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


# -- separate servers -------------------------------------------------------------------------------------


def test_full_queue_returns_retry_after(tmp_path: Path) -> None:
    onnx_models.heavy(tmp_path / "m.onnx")
    x = np.ones((1000, 512), np.float32)
    headers, body = write_request({"x": x}, is_binary=True)
    with serving(tmp_path, "--queue", "1") as server:

        def ask(_: int) -> tuple[int, dict[str, str]]:
            length = headers[HEADER_LENGTH]
            status, got, _ = server.ask("POST", "/v2/models/m/infer", body, Inference_Header_Content_Length=length)
            return status, got

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, range(16)))
    assert {status for status, _ in answers} == {200, 503}
    assert all(int(got["retry-after"]) >= 1 for status, got in answers if status == 503)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with a token and a limit of two seconds per request."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "token").write_text("secret\n")
    model = onnx_models.scale(folder / "m.onnx")
    with serving(model, "--token-file", folder / "token", "--timeout", "2") as running:
        yield running


def test_reachable_server_needs_a_token(
    guarded: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CHRONOGRAD_TOKEN", raising=False)
    model = onnx_models.scale(tmp_path / "m.onnx")
    assert main(["serve", str(model), "--host", "0.0.0.0", "--port", "0"]) == 2
    assert "there is no token" in capsys.readouterr().err
    assert guarded.ask("GET", "/v2/health/ready")[0] == 200
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}):
        for path in ("/v2", "/metrics", "/v2/models/m"):
            assert guarded.ask("GET", path, **headers)[0] == 401
    assert guarded.ask("GET", "/v2", Authorization="Bearer secret")[0] == 200


def test_stalled_client_is_cut_off(guarded: Running) -> None:
    """It sends nothing, half a header, half a header after an answer, or does not read its answer."""
    x = np.zeros((500_000, 4), np.float32)  # more than the buffers of the system hold
    headers, body = write_request({"x": x}, is_binary=True)
    lines = {"Authorization": "Bearer secret", "Content-Length": len(body), HEADER_LENGTH: headers[HEADER_LENGTH]}
    head = "POST /v2/models/m/infer HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    half = b"GET /v2/health/live HTTP/1.1\r\n"
    process = psutil.Process(guarded.process.pid)
    with ExitStack() as stack:
        for data, more in ((b"", b""), (half, b""), (half + b"\r\n", half), (head.encode() + b"\r\n" + body, b"")):
            plain = stack.enter_context(socket.socket())
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            host, port = guarded.url.removeprefix("http://").split(":")
            plain.connect((host, int(port)))
            plain.sendall(data)
            if more:
                assert plain.recv(4096).startswith(b"HTTP/1.1 200")
                plain.sendall(more)
        assert len(process.net_connections("tcp")) == 1 + 4
        until(lambda: len(process.net_connections("tcp")) == 1)  # the listening socket


@pytest.mark.parametrize("is_reset", [False, True], ids=["cut-off", "reset"])
def test_client_that_never_reads_is_cut_off_without_traceback(guarded: Running, is_reset: bool) -> None:
    """Also one that closes the connection while the server answers its requests."""
    process = psutil.Process(guarded.process.pid)
    before = guarded.errors()
    with socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = guarded.url.removeprefix("http://").split(":")
        plain.connect((host, int(port)))
        with suppress(OSError):  # cut off while it sends
            plain.sendall(b"GET /v2/models/m HTTP/1.1\r\nAuthorization: Bearer secret\r\n\r\n" * 17_150)
        if is_reset:
            until(lambda: is_idle(process))  # its answers fill the buffers, so it waits for a reader
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            plain.close()
        until(lambda: len(process.net_connections("tcp")) == 1)  # the listening socket
    assert guarded.ask("GET", "/v2/health/live")[0] == 200
    assert guarded.errors() == before


def test_json_size_limit(guarded: Running) -> None:
    """4 MiB, compressed or not: enough for a picture of 224 pixels; larger ones are sent as binary data."""
    token = {"Authorization": "Bearer secret"}
    zeros = b"0," * (3 * 2**20)
    for body, headers in ((zeros, {}), (gzip.compress(zeros, 1), {"Content_Encoding": "gzip"})):
        status, answer = post(guarded, "m", body, **headers, **token)
        assert (status, "4194304 bytes" in answer["error"], "send binary data" in answer["error"]) == (413, True, True)
    x = np.random.default_rng(0).standard_normal((3 * 224 * 224 // 4, 4)).astype(np.float32)
    _, body = write_request({"x": x}, is_binary=False, outputs=("total",))
    assert len(body) > 10 * LONG_BYTES
    status, answer = post(guarded, "m", body, **token)
    assert status == 200
    np.testing.assert_allclose(answer["outputs"][0]["data"], (2 * x).sum(axis=1), atol=1e-5)
    x = np.ones((600_000, 4), np.float32)
    packed, binary = write_request({"x": x}, is_binary=True, outputs=("total",))
    status, _, content = guarded.ask(
        "POST", "/v2/models/m/infer", binary, Inference_Header_Content_Length=packed[HEADER_LENGTH], **token
    )
    assert (status, len(content) > 4 * len(x)) == (200, True)


class Asking:
    """Clients that send requests until they stop; each answer must be from a served model."""

    def __init__(self, server: Running, factors: tuple[float, ...], clients: int = 4) -> None:
        self.server, self.factors = server, factors
        self.seen: dict[float, int] = dict.fromkeys(factors, 0)
        self.lost: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._client) for _ in range(clients)]

    def __enter__(self) -> Asking:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _client(self) -> None:
        with closing(self.server.client()) as connection:
            self._ask(connection)

    def _ask(self, connection: http.client.HTTPConnection) -> None:
        while not self._stop.is_set():
            try:
                connection.connect() if connection.sock is None else None
            except ConnectionRefusedError:  # the server has ended, so nothing was sent
                return
            try:
                answer = self.server.infer("m", connection, x=floats([1, 0, 0, 0]))
                self.seen[float(answer["y"][0, 0])] += 1
            except (OSError, EOFError, AssertionError, KeyError, ValueError) as error:
                self.lost.append(repr(error))
                connection.close()


def is_idle(process: psutil.Process) -> bool:
    before = process.cpu_times()
    time.sleep(0.2)
    return bool(process.cpu_times() == before)


def until(condition: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("way", ["hangup", "protocol"])
def test_reload_loses_no_request(tmp_path: Path, way: str) -> None:
    onnx_models.scale(tmp_path / "m.onnx", 1.0)
    factors = (1.0, 2.0, 3.0, 4.0)
    with serving(tmp_path) as server, Asking(server, factors) as asking:
        for factor in factors:
            onnx_models.scale(tmp_path / "m.onnx", factor)
            if way == "hangup":
                os.kill(server.process.pid, signal.SIGHUP)
            else:
                assert server.ask("POST", "/v2/repository/models/m/load")[0] == 200
            until(lambda factor=factor: asking.seen[factor] > 20)
    assert asking.lost == []


def test_shutdown_under_load_loses_no_request(tmp_path: Path) -> None:
    onnx_models.scale(tmp_path / "m.onnx", 2.0)
    with serving(tmp_path, "--drain", "3") as server, Asking(server, (2.0,), clients=6) as asking:
        until(lambda: asking.seen[2.0] > 50)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.ask("GET", "/v2/health/ready")[0] == 503, 2.5)
        assert server.process.wait(20) == 0
    assert asking.lost == []


def test_waiting_requests_are_answered_before_the_shutdown(tmp_path: Path) -> None:
    """A request that waits in a batch at SIGTERM, and one from a client that does not know about the shutdown yet."""
    onnx_models.scale(tmp_path / "m.onnx", 2.0)
    with serving(tmp_path, "--batch-wait", "500", "--drain", "2.5") as server, ThreadPoolExecutor(1) as pool:
        task = pool.submit(server.infer, "m", x=floats([1, 0, 0, 0]))
        time.sleep(0.2)
        before = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert task.result()["y"][0, 0] == 2
        time.sleep(1.4)
        assert server.infer("m", x=floats([1, 0, 0, 0]))["y"][0, 0] == 2
        assert server.process.wait(20) == 0
        assert server.errors() == ""
        assert time.monotonic() - before < 10


def test_timed_server_needs_neither_token_nor_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx_models.scale(tmp_path / "m.onnx")
    monkeypatch.setenv("CHRONOGRAD_TOKEN", "secret")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with timing.serving(model, "--batch", "1") as url:
        assert timing.largest_batch(url, "m") == 1
        assert timing.runs(url, "m").batches == 0


def test_model_versions(tmp_path: Path) -> None:
    """The highest version answers by default; a refresh adds and removes versions."""
    onnx_models.scale(tmp_path / "m" / "1" / "model.onnx", 1.0)
    onnx_models.scale(tmp_path / "m" / "10" / "model.onnx", 10.0)
    onnx_models.scale(tmp_path / "m" / "9" / "model.onnx", 9.0)
    with serving(tmp_path / "m") as server:

        def factor(path: str) -> float:
            return float(server.infer(path, x=floats([1, 0, 0, 0]))["y"][0, 0])

        assert [factor("m"), factor("m/versions/1"), factor("m/versions/9")] == [10, 1, 9]
        assert json.loads(server.ask("GET", "/v2/models/m")[2])["versions"] == ["1", "9", "10"]
        (tmp_path / "m" / "10" / "model.onnx").unlink()
        onnx_models.scale(tmp_path / "m" / "2" / "model.onnx", 2.0)
        assert server.ask("POST", "/v2/repository/models/m/load")[0] == 200
        assert [factor("m"), factor("m/versions/2")] == [9, 2]
        assert server.ask("GET", "/v2/models/m/versions/10")[0] == 404
        # A broken file does not replace the loaded model.
        (tmp_path / "m" / "9" / "model.onnx").write_bytes(b"no model")
        status, _, content = server.ask("POST", "/v2/repository/models/m/load")
        assert (status, "is not an ONNX model" in json.loads(content)["error"]) == (400, True)
        assert factor("m") == 9
        assert server.ask("POST", "/v2/repository/models/m/unload")[0] == 200
        assert server.ask("GET", "/v2/models/m")[0] == 404
        os.kill(server.process.pid, signal.SIGHUP)  # a model unloaded by name stays unloaded
        time.sleep(0.3)
        assert server.ask("GET", "/v2/models/m/ready")[0] == 404


def test_used_port_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx_models.scale(tmp_path / "m.onnx")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["serve", str(model), "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err

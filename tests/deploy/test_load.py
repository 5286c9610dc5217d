"""Load on a server: sent requests, counted answers, and the summary."""

from __future__ import annotations

import asyncio
import json
import selectors
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy import onnx_models
from tests.deploy.running import serving

from chronograd.cli.main import main
from chronograd.deploy.load import RequestOptions, _fine_loop, arrivals, load
from chronograd.deploy.protocol import read_request, write_answer
from chronograd.errors import InputError, RunError
from chronograd.record import Record


class Handler(BaseHTTPRequestHandler):
    """A standard-library server of the protocol with known delays and faults."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise separate headers and bodies wait 40 ms for each other
    delay_s = 0.02
    fails_every = 0
    is_chunked = False
    count = 0

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        spec = [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
        is_model = self.path == "/v2/models/m"
        data = {"name": "m", "inputs": spec, "outputs": spec} if is_model else {"name": "other", "version": "3"}
        self._send(200, json.dumps(data).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v2/repository/index":
            self._send(200, b'[{"name": "m"}]')
            return
        kind = type(self)
        kind.count += 1
        number = kind.count
        time.sleep(self.delay_s)
        if self.fails_every and number % self.fails_every == 0:
            self._send(503, b'{"error": "full"}')
            return
        request = read_request(body, self.headers["Inference-Header-Content-Length"])
        headers, content = write_answer("m", "1", request, {"x": request.inputs["x"]})
        self._send(200, content, headers)

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
            content = (
                b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (content[:7], content[7:])) + b"0\r\n\r\n"
            )
        else:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def other(**attributes: Any) -> Iterator[str]:
    """Return the address of a server with these delays and faults."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), attributes))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_closed_loop_sends_after_each_answer() -> None:
    """Two connections and answers after 20 ms: at most 100 requests a second."""
    with other() as url:
        answer = load(url, connections=[1, 2], seconds_each=1.0, warmup_s=0.2)
    assert list(answer.records) == ["1 connection", "2 connections"]
    for clients, record in zip((1, 2), answer.records.values(), strict=True):
        assert 0.02 <= record.value("latency_p50_s") < 0.06
        rate = record.value("throughput_requests_per_s")
        assert clients * 10 < rate <= clients * 50 + 2
        assert record.value("failed_requests") == 0
    assert answer.exit_status == 0


def test_open_loop_sends_without_waiting_for_answers() -> None:
    """60 requests a second of 100 ms each: six are in flight on average."""
    with other(delay_s=0.1) as url:
        answer = load(url, rates=[60], seconds_each=2.0, warmup_s=0.2)
    (record,) = answer.records.values()
    # 120 of a Poisson process: within four standard deviations.
    assert 120 - 44 <= record["offered_requests_per_s"].n <= 120 + 44  # type: ignore[operator]
    assert record.value("latency_p50_s") < 0.2
    assert record.value("failed_requests") == 0


@pytest.mark.parametrize("is_chunked", [False, True])
def test_failures_are_counted_but_not_timed(is_chunked: bool) -> None:
    with other(fails_every=4, delay_s=0.005, is_chunked=is_chunked) as url:
        answer = load(url, RequestOptions(is_binary=False), connections=[2], seconds_each=0.8, warmup_s=0.0)
    (record,) = answer.records.values()
    sent = record["offered_requests_per_s"].n or 0
    assert record.value("failed_requests") == pytest.approx(sent / 4, abs=2)
    assert record["latency_p50_s"].n == sent - record.value("failed_requests")
    assert any("status 503" in note for note in answer.notes)


def test_ended_server_is_reported() -> None:
    with other() as url:
        pass
    with pytest.raises(RunError, match="no answer from"):
        load(url, seconds_each=0.1)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "https://h", "http://", "http://h/v2", "http://h:port", "ftp://h"])
def test_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="is not the address of a server"):
        load(url)


@pytest.mark.serve
def test_load_on_our_server_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx_models.scale(tmp_path / "m@4.onnx")
    onnx_models.text(tmp_path / "words.onnx")
    with serving(tmp_path, CHRONOGRAD_TOKEN="secret") as server:
        assert main(["load", server.url, "--seconds", "0.1"]) == 2
        assert "requires a token" in capsys.readouterr().err
        (tmp_path / "token").write_text("secret")
        common = ["--seconds", "0.5", "--warmup", "0.1", "--token-file", str(tmp_path / "token")]
        assert main(["load", server.url, *common]) == 2
        assert "serves 2 models: m, words" in capsys.readouterr().err
        assert main(["load", server.url, *common, "--model", "words"]) == 2
        assert "--shape words=1,8" in capsys.readouterr().err
        assert main(["load", server.url, *common, "--model", "words", "--shape", "words=2,3", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["load"][0]["failed_requests"] == 0
        out = tmp_path / "loads"
        words = ["--model", "m", "--rate", "100,200", "--batch", "3", "--out", str(out)]
        assert main(["load", server.url, *common, *words]) == 0
    shown = capsys.readouterr().out
    assert "no request failed" in shown
    records = [Record.load(out / f"{rate}-per-s.json") for rate in (100, 200)]
    assert [record.kind for record in records] == ["measured"] * 2
    assert records[0].versions["model"] == "4"
    assert records[0].cluster.batch_per_rank == 3
    assert main(["compare", str(out / "100-per-s.json"), str(out / "200-per-s.json")]) == 0
    assert "latency" in capsys.readouterr().out


def test_open_loop_arrivals_are_a_poisson_process() -> None:
    due = np.array(list(arrivals(50.0, 400.0, seed=3)))
    assert len(due) == pytest.approx(50 * 400, rel=0.03)
    gaps = np.diff(due)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)
    assert list(arrivals(50.0, 2.0, seed=3)) == [at for at in due if at < 2.0]


@pytest.mark.skipif(not hasattr(selectors, "EpollSelector"), reason="other systems' loops do not round")
def test_client_loop_has_sub_millisecond_resolution() -> None:
    async def waits() -> list[float]:
        times = []
        for _ in range(50):
            before = time.perf_counter()
            await asyncio.sleep(0.0002)
            times.append(time.perf_counter() - before)
        return times

    with asyncio.Runner(loop_factory=_fine_loop) as runner:
        times = runner.run(waits())
    assert 0.0002 <= min(times) < 0.0009

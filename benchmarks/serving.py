"""Serving: requests per second and 99th percentile compared with ONNX Runtime in a bare loop, LitServe and MLServer.

    python -m benchmarks.serving [--network NAME ... --rounds R --seconds S --connections C --json FILE]
    python -m benchmarks.serving --drains 20 --reloads 20 [--json FILE]
    python -m benchmarks.serving --overload [--network NAME --seconds S --json FILE]

All run the same file with the same ONNX Runtime and its default number of threads. A round sends requests to each contender for
some seconds, in an order that rotates. A ratio is paired within a round. The clients are connections of one process on the same
machine that send the next request after each answer. They share the cores with the server. The bare loop shares its cores with
nothing: it runs one row after another in a separate process.

Each server takes tensors in its cheapest format: ours as binary, the others as base64 in JSON, which avoids parsing individual
numbers. The others batch up to 8 rows for up to 2 ms; ours chooses its batches. LitServe and MLServer run in separate
environments in --cache, which are created if missing. If one cannot be created, the output names it with the reason.

Drains and reloads: connections send requests without pause while a server receives the signal to end and restarts, and while
its model is replaced. A request is lost if it was sent and not answered with a 200. Requests that a stopped server refuses
count as not sent.

Overload: requests arrive at twice the rate of the knee, so the queue is always full. The benchmark compares the 99th percentile
of the answered requests with the time to process a full queue, and checks that all others were refused with a 503. Server and
client have a core each.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.training import Ratio
from chronograd import ask
from chronograd.deploy import export_source
from chronograd.deploy.export import write_onnx
from chronograd.deploy.load import Connection
from chronograd.deploy.protocol import write_request
from chronograd.deploy.server import loop_factory
from chronograd.measure import environment
from chronograd.measure.result import MIN_COUNTS

SAVED = Path(__file__).parent / "results" / "serving.json"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "chronograd" / "benchmarks"
OTHERS = Path(__file__).parent / "other_servers"
NETWORKS = ("torchvision:resnet50", "resnet20")  # the heavier one first
BARE, OURS = "bare loop", "chronograd"
ROUNDS = 6
SECONDS = 4.0
CONNECTIONS = 8
WARMUP_S = 1.0
START_S = 90.0


# -- contenders ------------------------------------------------------------------------------------------


def export(network: str, folder: Path) -> Path:
    """Return the ONNX file of the network, with initial weights."""
    path = folder / f"{network.rpartition(':')[2]}.onnx"
    source = export_source.of_job(ask.job_of(network), network)
    write_onnx(source.network, source.random(4, None).fed, path)
    return path


def sample_of(model: Path) -> tuple[str, np.ndarray]:
    """Return the name of a model's input, and one row for it."""
    import onnxruntime

    (spec,) = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).get_inputs()
    return spec.name, np.random.default_rng(0).standard_normal((1, *spec.shape[1:])).astype(np.float32)


def _post(path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in {**headers, "Content-Length": str(len(body))}.items())
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}\r\n".encode() + body


def _ours(model: Path) -> bytes:
    name, x = sample_of(model)
    return _post(f"/v2/models/{model.stem}/infer", *write_request({name: x}, is_binary=True))


def _of_litserve(model: Path) -> bytes:
    data = {"x": base64.b64encode(sample_of(model)[1].tobytes()).decode()}
    return _post("/predict", {"Content-Type": "application/json"}, json.dumps(data).encode())


def _of_mlserver(model: Path) -> bytes:
    text = base64.b64encode(sample_of(model)[1].tobytes()).decode()
    data = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "BYTES", "data": [text]}]}
    return _post("/v2/models/model/infer", {"Content-Type": "application/json"}, json.dumps(data).encode())


def _command_of_mlserver(python: Path, model: Path, port: int, folder: Path) -> list[str]:
    others = {"grpc_port": free_port(), "metrics_port": free_port(), "metrics_endpoint": None}
    (folder / "settings.json").write_text(
        json.dumps({"http_port": port, "host": "127.0.0.1", "debug": False, **others})
    )
    own = {"name": "model", "implementation": "with_mlserver.Model", "max_batch_size": 8, "max_batch_time": 0.002,
           "parameters": {"uri": str(model)}}  # fmt: skip
    (folder / "model-settings.json").write_text(json.dumps(own))
    return [str(python.parent / "mlserver"), "start", str(folder)]


@dataclass(frozen=True)
class Contender:
    """A server: the command that starts it on a model at a port, and a request."""

    name: str
    command: Callable[[Path, Path, int, Path], list[str]]  # its Python, the model, the port, a folder for its files
    message: Callable[[Path], bytes]
    packages: tuple[str, ...] = ()  # installed in a separate environment


CONTENDERS = (
    Contender(OURS, lambda python, model, port, _: [str(python), "-m", "chronograd", "serve", str(model), "--port", str(port)], _ours),
    Contender("LitServe", lambda python, model, port, _: [str(python), str(OTHERS / "with_litserve.py"), str(model), str(port)],
              _of_litserve, ("litserve",)),
    Contender("MLServer", _command_of_mlserver, _of_mlserver, ("mlserver", "uvloop<0.22")),
)  # fmt: skip


def python_of(contender: Contender, cache: Path) -> Path:
    """Return the interpreter with the contender, in an environment created once. Raises CalledProcessError."""
    if not contender.packages:
        return Path(sys.executable)
    name, runtime = contender.packages[0], f"onnxruntime=={environment.version_of('onnxruntime')}"
    folder = cache / name
    python, mark = folder / "bin" / "python", folder / f"has-{runtime}"
    if not mark.exists():
        print(f"installing {name} into {folder}", flush=True)
        if not python.exists():
            venv.create(folder, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", *contender.packages, runtime]
        subprocess.run(command, check=True, capture_output=True, text=True)
        mark.touch()
    return python


def version_in(python: Path, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@contextmanager
def running(contender: Contender, python: Path, model: Path) -> Iterator[tuple[int, bytes]]:
    """Start the server in a process. Yields its port and a request that it answers. Raises RuntimeError if it does not
    answer.
    """
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+") as log:
        port, message = free_port(), contender.message(model)
        paths = os.pathsep.join([str(OTHERS), *filter(None, [os.environ.get("PYTHONPATH")])])
        with subprocess.Popen(
            contender.command(python, model, port, Path(folder)),
            stdout=log,
            stderr=log,
            cwd=folder,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": paths if not contender.packages else str(OTHERS)},
        ) as process:
            try:
                why = asyncio.run(_wait_for(port, message, process))
                if why:
                    log.seek(0)
                    raise RuntimeError(f"{why}: {' '.join(log.read().splitlines()[-3:])[-300:]}")
                yield port, message
            finally:
                os.killpg(process.pid, signal.SIGKILL)  # with its workers


async def _wait_for(port: int, message: bytes, process: subprocess.Popen[bytes]) -> str:
    """Send requests until a 200 arrives; return the reason for a failure, or an empty string."""
    until, why = time.monotonic() + START_S, ""
    while time.monotonic() < until and process.poll() is None:
        connection = Connection("127.0.0.1", port)
        try:
            status, _, body = await connection.ask(message)
            if status == 200:
                return ""
            why = f"status {status}, {body[:200]!r}"
        except (OSError, EOFError, ValueError) as error:
            why = repr(error)
        finally:
            connection.close()
        await asyncio.sleep(0.3)
    return f"it does not answer ({why})"


# -- requests per second ---------------------------------------------------------------------------------


async def closed_loop(port: int, message: bytes, connections: int, duration_s: float) -> tuple[float, float]:
    """Return requests per second and the 99th percentile of latencies in seconds. Raises RuntimeError if a request fails."""
    latencies: list[float] = []
    start = time.perf_counter() + WARMUP_S
    until = start + duration_s

    async def client() -> None:
        connection = Connection("127.0.0.1", port)
        while (sent := time.perf_counter()) < until:
            status, _, body = await connection.ask(message)
            if status != 200:
                raise RuntimeError(f"status {status}: {body[:200]!r}")
            if start <= (now := time.perf_counter()) <= until:
                latencies.append(now - sent)
        connection.close()

    await asyncio.gather(*(client() for _ in range(connections)))
    return len(latencies) / duration_s, float(np.quantile(latencies, 0.99))


def bare(model: Path, duration_s: float) -> tuple[float, float]:
    """Return the same figures for one row after another in this process, without a server."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    feeds = dict([sample_of(model)])
    latencies: list[float] = []
    start = time.perf_counter() + WARMUP_S
    while (sent := time.perf_counter()) < start + duration_s:
        session.run(None, feeds)
        if sent >= start:
            latencies.append(time.perf_counter() - sent)
    return len(latencies) / sum(latencies), float(np.quantile(latencies, 0.99))


def measure(network: str, contenders: Mapping[Contender, Path], rounds: int, duration_s: float, connections: int) -> dict[str, Any]:  # fmt: skip
    """Return the rounds of all contenders on one network."""
    rows: dict[str, list[tuple[float, float]]] = {}
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        model = export(network, Path(folder))
        ports: dict[str, tuple[int, bytes]] = {}
        for contender, python in contenders.items():
            try:
                ports[contender.name] = stack.enter_context(running(contender, python, model))
            except RuntimeError as error:
                failed[contender.name] = str(error)
        names = [BARE, *ports]
        for number in range(rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                if name == BARE:
                    command = [sys.executable, "-m", "benchmarks.serving", "--bare", str(model), str(duration_s)]
                    done = subprocess.run(command, check=True, capture_output=True, text=True)
                    found = tuple(json.loads(done.stdout))
                else:
                    with asyncio.Runner(loop_factory=loop_factory()) as runner:
                        found = runner.run(closed_loop(*ports[name], connections, duration_s))
                rows.setdefault(name, []).append(found)
                print(
                    f"{network:<22} round {number + 1} {name:<12} {found[0]:8.1f}/s  p99 {1e3 * found[1]:8.2f} ms",
                    flush=True,
                )
    return {"network": network, "failed": failed, "rounds": {name: list(map(list, own)) for name, own in rows.items()}}


def ratios(rounds: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Ratio]:
    """Return our requests per second over those of each other contender."""
    ours = [rate for rate, _ in rounds[OURS]]
    return {name: Ratio.paired(ours, [rate for rate, _ in own]) for name, own in rounds.items() if name != OURS}


def shown(row: Mapping[str, Any]) -> str:
    """Return the lines of a network's results."""
    lines = [f"{row['network']}: requests/s and p99, medians of {len(row['rounds'][OURS])} rounds"]
    by_name = ratios(row["rounds"])
    for name, own in row["rounds"].items():
        rate, p99 = (statistics.median(values) for values in zip(*own, strict=True))
        ratio = by_name.get(name)
        beside = "" if ratio is None or ratio.high is None else (
            f"   chronograd / {name}: {ratio.value:.3f} ({ratio.low:.3f} … {ratio.high:.3f})")  # fmt: skip
        lines.append(f"  {name:<12} {rate:9.1f}/s {1e3 * p99:9.2f} ms{beside}")
    return "\n".join([*lines, *(f"  {name}: {why}" for name, why in row["failed"].items())])


# -- drains and reloads ----------------------------------------------------------------------------------


async def _asking(
    port: int, message: bytes, is_over: Callable[[], bool], lost: list[str], answered: list[float]
) -> None:
    """Send requests on one connection without pause, reconnecting after a server closes it, until no server listens."""
    connection = Connection("127.0.0.1", port)
    while not is_over():
        try:
            status, _, _ = await connection.ask(message)
            if status != 200:
                lost.append(f"status {status}")
        except ConnectionRefusedError:
            return
        except (OSError, EOFError, ValueError) as error:
            lost.append(repr(error))
        answered.append(time.perf_counter())
    connection.close()


async def drain_once(
    port: int, message: bytes, process: subprocess.Popen[bytes], connections: int
) -> tuple[int, list[str]]:
    """Return the number of requests sent around a SIGTERM, and the lost ones."""
    lost: list[str] = []
    answered: list[float] = []
    tasks = [asyncio.create_task(_asking(port, message, lambda: False, lost, answered)) for _ in range(connections)]
    await asyncio.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    await asyncio.gather(*tasks)
    return len(answered), lost


async def reload_all(port: int, message: bytes, model: Path, reloads: int, connections: int) -> tuple[int, list[str]]:
    """Return the number of requests sent while a model was replaced `reloads` times, and the lost ones."""
    lost: list[str] = []
    answered: list[float] = []
    is_over = False
    tasks = [asyncio.create_task(_asking(port, message, lambda: is_over, lost, answered)) for _ in range(connections)]
    content, control = model.read_bytes(), Connection("127.0.0.1", port)
    for _ in range(reloads):
        aside = model.with_suffix(".new")  # a different file with the same bytes
        aside.write_bytes(content)
        aside.rename(model)
        status, _, body = await control.ask(_post(f"/v2/repository/models/{model.stem}/load", {}, b""))
        if status != 200:
            raise RuntimeError(f"the model was not loaded: {body[:200]!r}")
    control.close()
    is_over = True
    await asyncio.gather(*tasks)
    return len(answered), lost


def changes(drains: int, reloads: int, connections: int = 6) -> dict[str, Any]:
    """Return requests and losses of `drains` drains and `reloads` reloads under load."""
    found: dict[str, Any] = {"drains": drains, "reloads": reloads}
    with tempfile.TemporaryDirectory() as folder:
        model = export("lenet5", Path(folder))
        message = _ours(model)

        def start() -> tuple[subprocess.Popen[bytes], int]:
            port = free_port()
            command = [sys.executable, "-m", "chronograd", "serve", str(model), "--port", str(port), "--drain", "0.5"]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            if why := asyncio.run(_wait_for(port, message, process)):
                raise RuntimeError(why)
            return process, port

        total, all_lost, statuses = 0, list[str](), list[int]()
        for number in range(drains):
            process, port = start()
            sent, lost = asyncio.run(drain_once(port, message, process, connections))
            statuses.append(process.wait(30))
            total, all_lost = total + sent, all_lost + lost
            print(f"drain {number + 1}: {sent} requests, {len(lost)} lost, exit {statuses[-1]}", flush=True)
        found |= {"drain_requests": total, "drain_lost": all_lost, "drain_exits": sorted(set(statuses))}
        if reloads:
            process, port = start()
            sent, lost = asyncio.run(reload_all(port, message, model, reloads, connections))
            process.terminate()
            process.wait(30)
            print(f"{reloads} reloads: {sent} requests, {len(lost)} lost", flush=True)
            found |= {"reload_requests": sent, "reload_lost": lost}
    return found


# -- overload --------------------------------------------------------------------------------------------


def overload(network: str, duration_s: float, queue: int = 32) -> dict[str, Any]:
    """Return the outcome of requests at twice the knee."""
    from chronograd.deploy.load import load
    from chronograd.deploy.timing import bound, own_cores, served_here, serving
    from chronograd.simulate.queueing import Server, knee

    with tempfile.TemporaryDirectory() as folder:
        model = export(network, Path(folder))
        cores = own_cores()
        server = served_here(model, Server({1: 0.0}, most_waiting=queue), 32, 1 if cores else None, cores=cores).server
        rate = 2 * knee(server)
        enough_s = 2 * MIN_COUNTS["latency_p99_s"][1] / min(rate, server.most_per_s)
        threads = ("--threads", "1") if cores else ()
        with (
            serving(model, "--queue", str(queue), *threads, core=cores and cores.server) as url,
            bound(cores and cores.client),
        ):
            found = load(url, rates=[rate], seconds_each=max(duration_s, enough_s))
    (row,) = found.data["load"]
    # The waiting requests, the current batch, and the batch of the request.
    most_s = (queue + 2 * server.most_rows) / row["throughput_requests_per_s"]
    print(f"{network} at {rate:.0f}/s, twice its knee: p99 {1e3 * row['latency_p99_s']:.1f} ms of {row['requests']} requests, a full queue "
          f"takes {1e3 * most_s:.1f} ms; {row['problems']}")  # fmt: skip
    return {"network": network, "rate": rate, "queue": queue, "p99_s": row["latency_p99_s"], "full_queue_s": most_s,
            "answered_per_s": row["throughput_requests_per_s"], "requests": row["requests"], "problems": row["problems"]}  # fmt: skip


def _versions() -> dict[str, str | None]:
    return {name: environment.version_of(name) for name in ("chronograd", "onnxruntime")}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", action="append")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--drains", type=int)
    parser.add_argument("--reloads", type=int, default=0)
    parser.add_argument("--overload", action="store_true")
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--json", type=Path, default=SAVED)
    parser.add_argument("--bare", nargs=2, metavar=("MODEL", "SECONDS"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.bare:
        print(json.dumps(bare(Path(options.bare[0]), float(options.bare[1]))))
        return 0
    date = datetime.now(UTC).date().isoformat()
    saved = json.loads(options.json.read_text()) if options.json.exists() else {"networks": []}
    if options.drains is not None:
        saved["changes"] = {**changes(options.drains, options.reloads), "date": date}
    elif options.overload:
        own = {row["network"]: row for row in saved.get("overload", [])}
        for name in options.network or NETWORKS:
            own[name] = overload(name, options.seconds)
        saved["overload"] = [
            {**row, "date": row.get("date") or date, "versions": row.get("versions") or _versions()}
            for row in own.values()
        ]
    else:
        contenders, missing, versions = {}, {}, {}
        for contender in CONTENDERS:
            try:
                contenders[contender] = python = python_of(contender, options.cache)
                versions[contender.name] = version_in(python, (*contender.packages, "chronograd")[0])
            except (subprocess.CalledProcessError, OSError) as error:
                reason = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
                missing[contender.name] = f"could not be installed: {reason[-1] if reason else error!r}"
        around = environment.environment()
        setting = {
            "date": date,
            "processor": around.get("processor"),
            "cores": environment.cores(),
            "connections": options.connections,
            "seconds": options.seconds,
            "versions": {**versions, **_versions()},
        }
        for network in options.network or NETWORKS:
            row = {**measure(network, contenders, options.rounds, options.seconds, options.connections), **setting}
            row["failed"] |= missing
            row["ratios"] = {name: ratio.to_json() for name, ratio in ratios(row["rounds"]).items()}
            saved["networks"] = [*(one for one in saved["networks"] if one["network"] != network), row]
            print(shown(row), flush=True)
    options.json.write_text(json.dumps(saved, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

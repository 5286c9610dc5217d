"""Timing of a server of an ONNX file on this machine: batches in ONNX Runtime, and separate requests in the server.

The time of batches by their rows, and its spread, is measured in ONNX Runtime alone. Requests one after another give the time
of a batch of one in the server. They also give the processor time of the thread that reads and writes. A request to an idle
server takes longer, so some requests come after pauses.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chronograd import trust
from chronograd.deploy import model as models
from chronograd.deploy.load import RequestOptions, load
from chronograd.deploy.repository import find
from chronograd.errors import InputError, RunError, require
from chronograd.measure import environment
from chronograd.record import Provenance
from chronograd.simulate.queueing import Server, batch_sizes
from chronograd.simulate.server import Served, measured_header
from chronograd.units import seconds

EACH_S = 0.6  # for the batches of one size, and minimum number:
MIN_BATCHES = 12
PAUSES_S = (0.003, 0.01, 0.03, 0.1)  # before requests to an idle server
RARE_REQUESTS = 25  # after pauses of about each length
RARE_SHARE = 0.3  # maximum load of the server by them, so that half of them meet no other request
# Minimum for requests one after another.
LONE_S = 1.5
LONE_REQUESTS = 20
_FACTORS = 200  # quantiles of the spread of times of the same batch


class Cores(NamedTuple):
    """The core of a server, and that of its client."""

    server: int
    client: int


def own_cores() -> Cores | None:
    """Return a core for a server and one for its client; None without two cores, or if processes cannot be bound."""
    if not hasattr(os, "sched_setaffinity") or environment.cores() < 2:
        return None
    return Cores(*sorted(os.sched_getaffinity(0))[:2])


def served_here(path: Path, options: Server, most_rows: int, threads: int | None, say: Callable[[str], None] = lambda _: None,
                cores: Cores | None = None) -> Served:  # fmt: skip
    """Return the timing of a model as `chronograd serve` would serve it here.

    Args:
        options: settings that do not depend on the model. most_rows, threads: as of the server.
        cores: reserved for server and client; None if they share all cores.

    Raises: FileFormatError as `model.load`; MissingExtraError.
    """
    for package in ("onnxruntime", "onnx", "starlette", "uvicorn", "prometheus_client"):
        require(package, "serve", "timing a server")
    if not path.is_file():
        raise InputError(f"there is no file {path}", "`chronograd export RUN` writes one")
    with bound(cores and cores.server):
        model = models.load(path, most_rows=most_rows, threads=threads)
        times, factors = batch_times(model)
    say("timing separate requests")
    requests = request_times(model, threads, times[1], cores)
    slower = requests.run_s / times[1] / float(np.mean(factors))
    batch_s = {rows: slower * batch_s for rows, batch_s in times.items()}
    travel_s = max(requests.lone_s - batch_s[1] - requests.loop_s, 0.0)
    server = replace(options, batch_s=batch_s, most_rows=model.most_rows, factors=factors, has_one_core=cores is not None,
                     loop_s=requests.loop_s, answer_s=requests.answer_s, slice_s=environment.slice_s(), travel_s=travel_s, wake_s=requests.wake_s)  # fmt: skip
    around = environment.environment()
    header = measured_header(
        path.stem,
        f"{path.stem} in ONNX Runtime on this machine",
        versions=around["versions"],
        provenance=Provenance(
            predicted_from=f"batches of up to {model.most_rows} rows, {seconds(times[1])} of one and {seconds(batch_s[1])} in a server, "
            f"and separate requests, {seconds(requests.loop_s + travel_s)} each; measured here",
            date=around["created"],
            environment=around,
        ),
        notes=[] if model.most_rows > 1 else [f"requests run individually: {model.why_alone}"],
    )
    return Served(header.title, server, header)


def batch_times(model: models.OnnxModel) -> tuple[dict[int, float], list[float]]:
    """Return the median seconds of a batch by its rows, and the spread of single times: equally likely factors."""
    random = np.random.default_rng(0)
    one = models.example(model.inputs, random)
    times: dict[int, float] = {}
    ratios: list[float] = []
    for rows in batch_sizes(model.most_rows):
        inputs = {name: np.repeat(array, rows, axis=0) for name, array in one.items()}
        for _ in range(2):
            model.run(inputs, model.output_names)
        samples: list[float] = []
        until = time.perf_counter() + EACH_S
        while len(samples) < MIN_BATCHES or time.perf_counter() < until:
            before = time.perf_counter()
            model.run(inputs, model.output_names)
            samples.append(time.perf_counter() - before)
        times[rows] = float(np.median(samples))
        ratios += [sample / times[rows] for sample in samples]
    return times, [float(q) for q in np.quantile(ratios, (np.arange(_FACTORS) + 0.5) / _FACTORS)]


class Requests(NamedTuple):
    """Seconds of requests that meet no other request.

    Attributes:
        run_s: the mean of their batches, in the server. lone_s: the median from a request to its answer, one after another.
        loop_s: work of the thread that reads and writes, for one request. answer_s: its part after the batch.
        wake_s: increase of `lone_s`, by the pause before.
    """

    run_s: float
    lone_s: float
    loop_s: float
    answer_s: float
    wake_s: dict[float, float]


def request_times(model: models.OnnxModel, threads: int | None, alone_s: float, cores: Cores | None = None) -> Requests:
    """Send requests to a server of a model, one after another with long pauses. `alone_s`: approximate time of a batch of
    one row without the server.
    """
    (place,) = find([model.path])
    options = ["--batch", "1", *(() if threads is None else ("--threads", str(threads)))]
    shapes = {spec.name: [1, *(n if n > 0 else models.ASSUMED for n in spec.shape[1:])] for spec in model.inputs}
    with serving(model.path, *options, core=cores and cores.server) as url, bound(cores and cores.client):

        def median_s(seconds_each: float, **levels: Any) -> float:
            answer = load(url, RequestOptions(shapes=shapes), seconds_each=seconds_each, warmup_s=0.3, **levels)
            return float(answer.data["load"][0]["latency_p50_s"])

        median_s(max(0.3, 2 * MIN_BATCHES * alone_s), connections=[1])  # of warm-up
        before = runs(url, place.name)
        lone_s = median_s(max(LONE_S, 2 * LONE_REQUESTS * alone_s), connections=[1])
        ran = runs(url, place.name).since(before)
        wake_s: dict[float, float] = {}
        for pause_s in PAUSES_S:
            rate = math.log(2) / pause_s  # half the pauses of a Poisson process are shorter
            if rate * lone_s < RARE_SHARE:
                rare_s = median_s(RARE_REQUESTS / rate, rates=[rate])
                wake_s[pause_s] = max(rare_s - lone_s, *wake_s.values(), 0.0)
    run_s = ran.seconds / ran.batches
    loop_s = min(ran.loop_s / ran.batches, max(lone_s - run_s, 0.0))
    return Requests(run_s, lone_s, loop_s, min(ran.answer_s / ran.batches, loop_s), wake_s)


class Runs(NamedTuple):
    """Counters of a model in a server.

    Attributes:
        batches, seconds, rows: of the model's batches.
        loop_s: of the thread that reads and writes, for all models; `answer_s`: the part of it after a batch.
    """

    batches: float
    seconds: float
    rows: float
    loop_s: float
    answer_s: float

    def since(self, before: Runs) -> Runs:
        return Runs(*(now - then for now, then in zip(self, before, strict=True)))


# without a proxy, because the server is on this machine
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def largest_batch(url: str, model: str) -> int:
    """Return the rows of the largest batch that a server makes of a model, as determined at loading."""
    with _open(f"{url}/v2/models/{model}") as answer:
        return int(json.load(answer)["parameters"]["most_rows"])


def runs(url: str, model: str) -> Runs:
    """Return a server's counters of a model since its start."""
    with _open(f"{url}/metrics") as answer:
        text = answer.read().decode()
    own = rf'^chronograd_(\w+?)(?:{{model="{re.escape(model)}",[^\n}}]*}})? (\S+)$'
    sums = {name: float(value) for name, value in re.findall(own, text, re.MULTILINE)}
    names = ("run_seconds_count", "run_seconds_sum", "batch_rows_sum", "loop_cpu_seconds", "answer_cpu_seconds_total")
    return Runs(*(sums.get(name, 0.0) for name in names))


@contextmanager
def bound(core: int | None) -> Iterator[None]:
    """Run this thread, and those that it starts, on one core only."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def serving(*arguments: str | Path, core: int | None = None) -> Iterator[str]:
    """Run `chronograd serve` with these arguments in a separate process, at a free port, on one core if given; yield its
    address.
    """
    command = trust.python("-m", "chronograd", "serve", *map(str, arguments), "--port", "0", "--json")
    environment = {name: value for name, value in os.environ.items() if name != "CHRONOGRAD_TOKEN"}
    with (
        tempfile.TemporaryFile("w+") as errors,  # an unread pipe would fill up and stop the server
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process,
    ):
        try:
            if core is not None:
                os.sched_setaffinity(process.pid, {core})  # before it has other threads
            assert process.stdout is not None
            text = ""
            for line in process.stdout:
                text += line
                if line == "}\n":
                    break
            else:
                process.wait()
                errors.seek(0)
                raise RunError(f"the server did not start: {(errors.read().splitlines() or [''])[-1]}")
            yield json.loads(text)["url"]
        finally:
            process.kill()

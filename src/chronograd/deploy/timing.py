"""What a server of an ONNX file takes on this machine: batches in ONNX Runtime, and requests that meet no other in the server.

How batches grow with their rows, and how single ones differ, is timed in ONNX Runtime alone. Requests one after another tell what a batch
of one takes in the server, and what the thread that reads and writes works for each, by its own processor time. What finds all idle takes
longer, and so requests come after pauses too.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chronograd.deploy import model as models
from chronograd.deploy.load import load
from chronograd.deploy.repository import find
from chronograd.errors import InputError, RunError, require
from chronograd.measure import environment
from chronograd.record import Provenance
from chronograd.simulate.queueing import Server, batch_sizes
from chronograd.simulate.server import Served, measured_header
from chronograd.units import seconds

EACH_S = 0.6  # for the batches of one size, and at least so many:
MIN_BATCHES = 12
PAUSES_S = (0.003, 0.01, 0.03, 0.1)  # before requests that find all idle
RARE_REQUESTS = 25  # after pauses of about each length
RARE_SHARE = 0.3  # of the time that they may keep the server busy, so that half of them meet none
LONE_S, LONE_REQUESTS = 1.5, 20  # for requests that follow each other, at least
_FACTORS = 200  # quantiles of how times of the same batch differ


class Cores(NamedTuple):
    """The core that a server is bound to, and that of its client."""

    server: int
    client: int


def own_cores() -> Cores | None:
    """A core for a server and one for its client; None where there are no two, or processes cannot be bound."""
    if not hasattr(os, "sched_setaffinity") or environment.cores() < 2:
        return None
    return Cores(*sorted(os.sched_getaffinity(0))[:2])


def served_here(path: Path, options: Server, most_rows: int, threads: int | None, say: Callable[[str], None] = lambda _: None,
                cores: Cores | None = None) -> Served:  # fmt: skip
    """A model as `chronograd serve` would serve it here.

    Args:
        options: what does not depend on the model. most_rows, threads: as of the server.
        cores: that server and client have to themselves; None where they share all there are.
    Raises: FileFormatError as `model.load`; MissingExtraError.
    """
    for package in ("onnxruntime", "onnx", "starlette", "uvicorn", "prometheus_client"):
        require(package, "serve", "timing a server")
    if not path.is_file():
        raise InputError(f"there is no file {path}", "`chronograd export RUN` writes one")
    with bound(cores and cores.server):
        model = models.load(path, most_rows=most_rows, threads=threads)
        times, factors = batch_times(model)
    say("timing requests that meet no other")
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
            f"and requests beside them, {seconds(requests.loop_s + travel_s)} each; measured here",
            date=around["created"],
            environment=around,
        ),
        notes=[] if model.most_rows > 1 else [f"requests are run one by one: {model.why_alone}"],
    )
    return Served(header.title, server, header)


def batch_times(model: models.OnnxModel) -> tuple[dict[int, float], list[float]]:
    """Seconds of a batch by its rows, the median, and how single times differ from it: factors, each as likely as the other."""
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
    """Seconds of requests that meet no other.

    Attributes:
        run_s: the mean of their batches, in the server. lone_s: the median from a request to its answer, of one after another.
        loop_s: that the thread which reads and writes works for one. answer_s: of it, after the batch.
        wake_s: more of `lone_s`, by the pause before.
    """

    run_s: float
    lone_s: float
    loop_s: float
    answer_s: float
    wake_s: dict[float, float]


def request_times(model: models.OnnxModel, threads: int | None, alone_s: float, cores: Cores | None = None) -> Requests:
    """Send requests to a server of a model, one after another and far apart. `alone_s`: a batch of one row without it, about."""
    (place,) = find([model.path])
    options = ["--batch", "1", *(() if threads is None else ("--threads", str(threads)))]
    shapes = {spec.name: [1, *(n if n > 0 else models.ASSUMED for n in spec.shape[1:])] for spec in model.inputs}
    with serving(model.path, *options, core=cores and cores.server) as url, bound(cores and cores.client):

        def median_s(seconds_each: float, **levels: Any) -> float:
            answer = load(url, seconds_each=seconds_each, warmup_s=0.3, shapes=shapes, **levels)
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
    """Of a model in a server: how many batches it ran, in how many seconds, of how many rows; and seconds that the server's thread which
    reads and writes has worked, for all models, and those of them from the end of a batch until its answers are written."""

    batches: float
    seconds: float
    rows: float
    loop_s: float
    answer_s: float

    def since(self, before: Runs) -> Runs:
        return Runs(*(now - then for now, then in zip(self, before, strict=True)))


_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # of this machine: past any proxy


def largest_batch(url: str, model: str) -> int:
    """Rows of the largest batch that a server makes of a model, as it found when it loaded it."""
    with _open(f"{url}/v2/models/{model}") as answer:
        return int(json.load(answer)["parameters"]["most_rows"])


def runs(url: str, model: str) -> Runs:
    """What a server's metrics say of a model since it began."""
    with _open(f"{url}/metrics") as answer:
        text = answer.read().decode()
    own = rf'^chronograd_(\w+?)(?:{{model="{re.escape(model)}",[^\n}}]*}})? (\S+)$'
    sums = {name: float(value) for name, value in re.findall(own, text, re.MULTILINE)}
    names = ("run_seconds_count", "run_seconds_sum", "batch_rows_sum", "loop_cpu_seconds", "answer_cpu_seconds_total")
    return Runs(*(sums.get(name, 0.0) for name in names))


@contextmanager
def bound(core: int | None) -> Iterator[None]:
    """Let this thread, and those that it starts, run on one core only."""
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
    """`chronograd serve` with these arguments in a process of its own, at a port that is free, on one core if given; its address."""
    command = [sys.executable, "-m", "chronograd", "serve", *map(str, arguments), "--port", "0", "--json"]
    environment = {name: value for name, value in os.environ.items() if name != "CHRONOGRAD_TOKEN"}
    with (
        tempfile.TemporaryFile("w+") as errors,  # a pipe that nobody reads would fill, and stop the server
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

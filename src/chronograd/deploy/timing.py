"""What a server of an ONNX file takes on this machine: batches in ONNX Runtime, and a request beside its model.

A request's own cost is that of a server, of one model with the same inputs and outputs that computes nothing: a connection
that sends one request after another tells how long it is under way, and several of them how many the server's one thread answers. What
finds everything asleep takes longer: batches are timed after pauses too, and requests that come one by one, far apart.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.deploy import model as models
from chronograd.deploy.load import load
from chronograd.deploy.protocol import DATATYPES, TensorSpec
from chronograd.errors import InputError, RunError, require
from chronograd.measure import environment
from chronograd.predict.queueing import Server, batch_sizes
from chronograd.predict.server import Served, measured_header
from chronograd.record import Provenance
from chronograd.units import seconds

EACH_S = 0.6  # for the batches of one size, and at least so many:
LEAST_BATCHES = 12
CONNECTIONS = 6  # that keep a server busy which computes nothing
PAUSES_S = (0.001, 0.003, 0.01, 0.03)  # before batches that find the model idle
LEAST_PAUSED = 15  # batches after each
RARE_PER_S = 25.0  # requests, of which none meets another at a server that computes nothing
_FACTORS = 200  # quantiles of how times of the same batch differ


def served_here(path: Path, options: Server, most_rows: int, threads: int | None, say: Callable[[str], None] = lambda _: None) -> Served:  # fmt: skip
    """A model as `chronograd serve` would serve it here.

    Args:
        options: what does not depend on the model. most_rows, threads: as of the server.
    Raises: FileFormatError as `model.load`; MissingExtraError.
    """
    for package in ("onnxruntime", "onnx", "starlette", "uvicorn", "prometheus_client"):
        require(package, "serve", "timing a server")
    if not path.is_file():
        raise InputError(f"there is no file {path}", "`chronograd export RUN` writes one")
    model = models.load(path, most_rows=most_rows, threads=threads)
    times, factors = batch_times(model)
    woken = wake_times(model)
    say("timing a server that computes nothing")
    server = replace(options, batch_s=times, most_rows=model.most_rows, factors=factors)
    loop_s, travel_s, asleep_s = request_times(model.inputs, model.outputs)
    wake_s = {pause_s: more_s + asleep_s * min(pause_s * RARE_PER_S, 1.0) for pause_s, more_s in woken.items()}
    around = environment.environment()
    header = measured_header(
        path.stem,
        f"{path.stem} in ONNX Runtime on this machine",
        versions=around["versions"],
        provenance=Provenance(
            predicted_from=f"batches of up to {model.most_rows} rows, {seconds(times[1])} of one, and requests to a model that "
            f"computes nothing, {seconds(loop_s + travel_s)} each; measured here",
            date=around["created"],
            environment=around,
        ),
        notes=[] if model.most_rows > 1 else [f"requests are run one by one: {model.why_alone}"],
    )
    return Served(header.title, replace(server, loop_s=loop_s, travel_s=travel_s, wake_s=wake_s), header)


def batch_times(model: models.Model) -> tuple[dict[int, float], list[float]]:
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
        while len(samples) < LEAST_BATCHES or time.perf_counter() < until:
            before = time.perf_counter()
            model.run(inputs, model.output_names)
            samples.append(time.perf_counter() - before)
        times[rows] = float(np.median(samples))
        ratios += [sample / times[rows] for sample in samples]
    return times, [float(q) for q in np.quantile(ratios, (np.arange(_FACTORS) + 0.5) / _FACTORS)]


def wake_times(model: models.Model) -> dict[float, float]:
    """More seconds of a batch of one row after a pause than after another batch, by the pause; of medians, and no less after longer."""
    one = models.example(model.inputs, np.random.default_rng(0))

    def run_s() -> float:
        before = time.perf_counter()
        model.run(one, model.output_names)
        return time.perf_counter() - before

    def paused_s(pause_s: float) -> float:
        time.sleep(pause_s)
        return run_s()

    more: dict[float, float] = {}
    least = 0.0
    for pause_s in PAUSES_S:
        pairs = [(run_s(), paused_s(pause_s)) for _ in range(LEAST_PAUSED)]
        least = max(
            least, float(np.median([after for _, after in pairs]) - np.median([at_once for at_once, _ in pairs]))
        )
        more[pause_s] = least
    return more


def request_times(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[float, float, float]:
    """Seconds that the server's one thread is busy with a request, those that it is under way besides, and more where all is idle."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "idle.onnx"
        idle_model(path, inputs, outputs)
        idle = models.load(path, most_rows=1)
        (own_s,) = batch_times(idle)[0].values()
        with serving(path, "--batch", "1", "--threads", "1") as url:
            shapes = {spec.name: [1, *(n if n > 0 else models.ASSUMED for n in spec.shape[1:])] for spec in inputs}
            answer = load(
                url, rates=[RARE_PER_S], connections=[1, CONNECTIONS], seconds_each=1.5, warmup_s=0.5, shapes=shapes
            )
    rare, lone, busy = answer.records.values()
    loop_s = 1 / busy.value("throughput_requests_per_s")
    lone_s = lone.value("latency_p50_s") - own_s
    asleep_s = rare.value("latency_p50_s") - lone.value("latency_p50_s")
    return min(loop_s, lone_s), max(lone_s - loop_s, 0.0), max(asleep_s, 0.0)


def idle_model(path: Path, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Write a model with such inputs and outputs, whose outputs are zeros: a row for each row that comes in."""
    from onnx import helper, save

    def info(spec: TensorSpec) -> Any:
        kind = helper.np_dtype_to_tensor_dtype(DATATYPES[spec.datatype])
        return helper.make_tensor_value_info(spec.name, kind, ["rows", *(n if n > 0 else None for n in spec.shape[1:])])

    if not inputs:
        raise InputError("a model without inputs cannot be timed")
    nodes = [helper.make_node("Shape", [inputs[0].name], ["rows"], start=0, end=1)]
    for number, spec in enumerate(outputs):
        rest, zeros = np.array([n if n > 0 else models.ASSUMED for n in spec.shape[1:]]), DATATYPES[spec.datatype]
        if zeros.kind == "O":
            raise InputError(f"output {spec.name} is of strings, and a model of them cannot be timed")
        zero = helper.make_tensor("zero", helper.np_dtype_to_tensor_dtype(zeros), [1], [0])
        sizes = helper.make_tensor("sizes", helper.np_dtype_to_tensor_dtype(np.dtype(np.int64)), [len(rest)], rest)
        nodes += [
            helper.make_node("Constant", [], [f"rest_{number}"], value=sizes),
            helper.make_node("Concat", ["rows", f"rest_{number}"], [f"shape_{number}"], axis=0),
            helper.make_node("ConstantOfShape", [f"shape_{number}"], [spec.name], value=zero),
        ]
    graph = helper.make_graph(nodes, "idle", [info(spec) for spec in inputs], [info(spec) for spec in outputs])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@contextmanager
def serving(*arguments: str | Path) -> Iterator[str]:
    """`chronograd serve` with these arguments in a process of its own, at a port that is free; its address."""
    command = [sys.executable, "-m", "chronograd", "serve", *map(str, arguments), "--port", "0", "--json"]
    with (
        tempfile.TemporaryFile("w+") as errors,  # a pipe that nobody reads would fill, and stop the server
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
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

"""Times of layers: with and without waiting for the device, why their sum is not the whole pass, and a way around.

Z. Lu, S. Rallapalli, K. Chan, T. La Porta, Modeling the resource requirements of convolutional neural networks on mobile
devices, ACM Multimedia 2017 (arXiv 1709.09503): its section 5 times matrix products alone. The timings are those of `chronograd
measure layers NETWORK`; --truth adds its files from other machines, and traces of torch.profiler.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.answer import Table
from chronograd.errors import ChronogradError, FileFormatError
from chronograd.figure import Bar, Bars, Figure, Lines, Role, Series
from chronograd.hardware import catalog
from chronograd.measure import layer_times
from chronograd.measure.layer_times import LayerTimes, label
from chronograd.predict.compute import Work, phase_seconds
from chronograd.predict.relatives import calibration_for
from chronograd.units import percent, seconds, si
from chronograd.words import kind_name, time_unit
from chronograd.words import listed as in_words
from chronograd_lab.common.counted import counted
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import ends, grouped, matching, shown
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed, table
from chronograd_lab.common.written import Block, key
from chronograd_lab.studies.layer_timing.queue import queue_of

COLORS = ("accent", "vermilion", "green", "purple", "orange", "teal", "rose", "brown")
SUMS = {
    "whole_s": "whole pass",
    "issued_s": "host launches it",
    "synchronised_s": "layers, waited for",
    "unsynchronised_s": "layers, not waited for",
    "products_s": "matrix products alone",
    "predicted_s": "predicted pass",
}
# One colour for each way of timing.
PALETTE = dict(zip(SUMS.values(), ("accent", "grey", "vermilion", "orange", "green", "purple"), strict=True))
ROLES: dict[str, Role] = {"predicted_s": "predicted"}
NOT_MEASURED = "not measured"
# The page names at most this number of the longest layers.
_NAMED = 5
_VENDORS = ("Intel", "AMD", "NVIDIA", "Tesla", "GeForce", "Quadro", "AWS")


# -- conduct ---------------------------------------------------------------------------------------


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    times, queues = [_here(runner, settings, network) for network in settings["networks"]], []
    for path in runner.truth:
        try:
            times.append(layer_times.read(path))
        except FileFormatError:
            queues.append(_queue_row(path))
    notes = []
    if not queues:
        notes.append(
            "No trace of a GPU was given (--truth TRACE.json.gz …), so there is no table of the time that a queue hides."
        )
    if not any(one.device == "cuda" for one in times):
        notes.append(
            "No GPU was measured: `chronograd measure layers NETWORK --json > FILE` there, and --truth FILE here."
        )
    rows = {
        "passes": [_pass_row(one) for one in times],
        "layers": [row for one in times for row in _layer_rows(one)],
        "queues": queues,
    }
    results = runner.results(settings, rows=rows, notes=notes)
    return replace(results, rows={**rows, **predictions(results)})


def predictions(results: Results) -> dict[str, list[Row]]:
    """Predict the passes on GPUs and their layers, and the times of the study's GPU.

    A pass on a processor keeps its prediction, because only that machine has its calibration. So does a network that this
    version cannot count.
    """
    settings, passes, layers = results.settings, [], []
    for row in results.rows["passes"]:
        of_pass, of_layers = _predicted_pass(row) if row["device"] == "cuda" else ({}, {})
        passes.append({**row, **of_pass})
        for layer in matching(results.rows["layers"], network=row["network"], place=row["place"]):
            layers.append({**layer, "predicted_s": of_layers.get(layer["layer"], layer["predicted_s"])})
    gpu = [_predicted(network, settings["gpu"], n) for network in settings["networks"] for n in settings["gpu_batches"]]
    return {"passes": passes, "layers": layers, "predicted": gpu}


def _predicted_pass(row: Row) -> tuple[Row, dict[str, float]]:
    """Return the predicted columns of a pass on a GPU, and the seconds of its layers by their label."""
    from chronograd.ask import job_of
    from chronograd.bench.layers import predicted_on, predicted_pass
    from chronograd.data.trace_job import trace_job

    name, precision, batch = row["place"].rsplit(", ", 2)
    gpu = catalog.of_driver_name(name)
    if gpu is None:
        return {}, {}
    fields = ["mode=inference", f"cluster.device={gpu.name}", f"training.precision={precision}"]
    try:
        job = job_of(row["network"], fields, {"batch": int(batch.removeprefix("batch "))})
        calibration = calibration_for(gpu, job.training.precision, mode="inference")
        pass_s, by_layer = predicted_pass(trace_job(job), job.training.batch, calibration)
    except ChronogradError:
        return {}, {}
    columns = {
        "predicted_s": pass_s,
        "predicted_layers_s": sum(by_layer.values()),
        "predicted_on": predicted_on(gpu, calibration),
    }
    return columns, {label(*key): layer_s for key, layer_s in by_layer.items()}


def _here(runner: StudyRunner, settings: Settings, network: str) -> LayerTimes:
    """Time the layers on one thread of the processor, so that threads do not wait for each other."""
    from chronograd.ask import job_of
    from chronograd.bench.layers import measure_layers

    runner.say(f"timing layers of {network}")
    job = job_of(network, ["cluster.device=cpu", "cluster.threads=1"], {"batch": settings["batch"]})
    return measure_layers(job, repeats=settings["repeats"], warmup=settings["warmup"])


def _place(times: LayerTimes) -> str:
    """Return device, precision and batch, such as `NVIDIA H100, fp16, batch 1`."""
    return f"{times.device_name}, {times.precision}, batch {times.batch}"


def _short_place(place: str) -> str:
    """Return a short form of a place.

    >>> _short_place("Intel(R) Xeon(R) Processor, fp32, batch 1"), _short_place("NVIDIA H100 80GB HBM3, fp16, batch 64")
    ('Xeon fp32 × 1', 'H100 fp16 × 64')
    """
    name, precision, batch = place.rsplit(", ", 2)
    words = [word for word in re.sub(r"\(R\)|\(TM\)", "", name).split() if word not in _VENDORS]
    return f"{words[0] if words else name} {precision} × {batch.removeprefix('batch ')}"


def _pass_row(times: LayerTimes) -> Row:
    spreads = ("whole", "issued", "queued", "synchronised", "unsynchronised")
    row: Row = {f"{name}_s": getattr(times, name).median for name in spreads}
    row |= {f"{name}_{end}_s": getattr(getattr(times, name), end) for name in spreads for end in ("low", "high")}
    return {
        "network": times.network, "place": _place(times), "device": times.device, "repeats": times.repeats, **row,
        "products_s": times.products_s, "with_product_s": sum(layer.synchronised_s for layer in times.with_product),
        "predicted_s": times.predicted_s, "predicted_layers_s": times.predicted_layers_s, "predicted_on": times.predicted_on,
    }  # fmt: skip


def _layer_rows(times: LayerTimes) -> list[Row]:
    return [
        {
            "network": times.network, "place": _place(times), "layer": layer.label, "kind": layer.kind, "flops": layer.flops,
            "synchronised_s": layer.synchronised_s, "unsynchronised_s": layer.unsynchronised_s, "product_s": layer.product_s,
            "product": None if layer.product is None else [layer.product.groups, layer.product.m, layer.product.n, layer.product.k],
            "predicted_s": layer.predicted_s,
        }
        for layer in times.layers
    ]  # fmt: skip


def _queue_row(path: Path) -> Row:
    try:
        queue = queue_of(path)
    except ChronogradError as error:
        raise FileFormatError(
            f"{path} holds neither times of layers nor a trace of a GPU's work: {error.message}",
            "give what `chronograd measure layers NETWORK --json` printed, or a trace of torch.profiler",
        ) from None
    return {
        "trace": queue.name, "kernels": queue.kernels, "host_s": queue.host_s, "device_s": queue.device_s,
        "together_s": queue.together_s, "one_by_one_s": queue.one_by_one_s, "delay_s": queue.delay_s,
    }  # fmt: skip


def _predicted(network: str, device: str, batch: int) -> Row:
    """Predict the times of a GPU: of its layers alone, of the host that launches them, and of both together."""
    trace, gpu = counted(network), catalog.device(device)
    calibration = calibration_for(gpu, "fp32", mode="inference")
    work = Work.on(trace, batch, calibration)
    times = work.seconds(calibration)
    return {
        "network": network, "device": device, "title": gpu.title, "batch": batch, "layers_s": float(times.sum()),
        "host_s": float(work.issues.sum()) * calibration.host_launch_s,
        "pass_s": phase_seconds(trace, times, calibration)["forward"], "origin": calibration.origin,
    }  # fmt: skip


# -- page ------------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    rows = results.rows
    passes, on_gpu = rows["passes"], matching(rows["passes"], device="cuda")
    between = [{**row, "share": row["unsynchronised_s"] / row["whole_s"]} for row in on_gpu]
    queue = max(rows["queues"], key=lambda row: row["one_by_one_s"] / row["together_s"])
    known = [row for row in passes if row["predicted_s"]]
    return {
        "sums": {
            key(_short_place(place)): {
                **ends([row["synchronised_s"] / row["whole_s"] for row in own]), "where": place,
                "last": own[-1]["synchronised_s"] / own[-1]["whole_s"],
            }
            for place, own in grouped(passes, "place").items()
        },
        "quiet": max(row["whole_high_s"] / row["whole_low_s"] for row in passes),
        "between": {"above": sum(row["share"] > 1 for row in between), "of": len(between), "most": max(between, key=lambda row: row["share"])},
        "queue": {**queue, "name": _short(queue["trace"]), "share": queue["one_by_one_s"] / queue["together_s"]},
        "host": {"longer": sum(row["host_s"] > row["layers_s"] for row in rows["predicted"]), "of": len(rows["predicted"])},
        "gpu": rows["predicted"][0],
        "products": ends([row["products_s"] / row["with_product_s"] for row in passes]),
        "predicted": {
            **{device: _predicted_well(own) for device, own in grouped(known, "device").items()},
            "layer": ends([_factor(rows["layers"], row) for row in known]),
        },
    }  # fmt: skip


def _predicted_well(passes: Sequence[Row]) -> Row:
    """Return the number of passes, the median size of the errors of their predictions, and the pass with the largest error."""
    errors = [{**row, "error": row["predicted_s"] / row["whole_s"] - 1} for row in passes]
    return {
        "passes": len(errors),
        "median": statistics.median(abs(row["error"]) for row in errors),
        "worst": max(errors, key=lambda row: abs(row["error"])),
    }


def _predicted_layers(layers: Sequence[Row]) -> list[Row]:
    """Return the predicted layers that have work."""
    return [row for row in layers if row["predicted_s"] and row["flops"]]


def _factor(layers: Sequence[Row], of_pass: Row) -> float:
    """Return the median factor by which the predicted times of a pass's layers are too long or too short."""
    own = _predicted_layers(matching(layers, network=of_pass["network"], place=of_pass["place"]))
    return statistics.median(float(np.exp(abs(np.log(r["predicted_s"] / r["synchronised_s"])))) for r in own)


def blocks(results: Results) -> dict[str, Block]:
    """Return the sections of every size, and those of measured GPUs, of traces, and of each network and place."""
    rows = results.rows
    passes, layers, on_gpu = rows["passes"], rows["layers"], matching(rows["passes"], device="cuda")
    shown = {"The whole pass and the sums over its layers": _sums(passes, rows["predicted"])}
    if on_gpu:
        shown["Events between the layers"] = Block(_events(on_gpu))
    if rows["queues"]:
        shown["Why they differ on a GPU"] = _queues(rows["queues"])
    return shown | {
        "Predicted: host and device of a GPU": Block(_hosts(rows["predicted"])),
        "Around the overhead: matrix products by themselves": Block(
            _products(passes),
            _scatter([row for row in layers if row["product_s"]], "product_s", "matrix product alone"),
        ),
        "Predicted and measured": Block(
            _errors(passes, layers), _scatter(_predicted_layers(layers), "predicted_s", "predicted")
        ),
        **{
            f"Layers of {network} on {place}": _layers(own)
            for (network, place), own in grouped(layers, "network", "place").items()
        },
    }


def _sums(passes: Sequence[Row], predicted: Sequence[Row]) -> Block:
    """Return each way of timing, by network; without a measured GPU, the predicted times of one."""
    body = [
        [row["network"], row["place"], *(shown(row[column], seconds) for column in SUMS), seconds(row["queued_s"])]
        for row in passes
    ]
    if not matching(passes, device="cuda"):
        body += [
            [row["network"], f"{row['title']}, fp32, batch {row['batch']}", *[NOT_MEASURED] * 5, seconds(row["pass_s"]), NOT_MEASURED]
            for row in predicted
        ]  # fmt: skip
    columns = ("network", "where", *SUMS.values(), "one of several queued passes")
    panels = []
    for place, own in grouped(passes, "place").items():
        unit, length = time_unit([row["whole_s"] for row in own])
        bars = [_bar(row, column, length) for row in own for column in SUMS if row[column] is not None]
        panels.append(Bars(f"{unit}, {_short_place(place)}", "measurement", bars, PALETTE))
    return Block(listed(columns, body, 2), Figure(panels))


def _bar(row: Row, column: str, length: float) -> Bar:
    name, role = SUMS[column], ROLES.get(column, "measured")
    ends = (row.get(f"{column.removesuffix('_s')}_{end}_s") for end in ("low", "high"))
    low, high = (None if end is None else end / length for end in ends)
    return Bar(f"{row['network']}, {name}", role, {name: row[column] / length}, low, high, seconds(row[column]))


def _share_of(column: str, whole: str = "whole_s") -> Callable[[Row], str]:
    return lambda row: percent(row[column] / row[whole], 0)


def _events(on_gpu: Sequence[Row]) -> Table:
    return table(on_gpu, {
        "network": "network", "where": "place", "whole pass": ("whole_s", seconds), "host launches it": ("issued_s", seconds),
        "host, of the pass": _share_of("issued_s"), "between events": ("unsynchronised_s", seconds),
        "of the pass": _share_of("unsynchronised_s"),
    }, text=2)  # fmt: skip


def _queues(queues: Sequence[Row]) -> Block:
    ways = {"together": ["together"], "one by one": ["host", "device"]}
    bars = [
        Bar(f"{_short(row['trace'])}: {name}", "measured", {part: 100 * row[f"{part}_s"] / row["together_s"] for part in parts})
        for row in queues
        for name, parts in ways.items()
    ]  # fmt: skip
    colors = {"together": "grey", "host": "vermilion", "device": "accent"}
    return Block(
        table(queues, {
            "trace": ("trace", _short), "kernels": ("kernels", "{:,}".format), "host": ("host_s", seconds), "device": ("device_s", seconds),
            "together": ("together_s", seconds), "in sequence": ("one_by_one_s", seconds),
            "in sequence, of together": _share_of("one_by_one_s", "together_s"), "in the queue, median": ("delay_s", seconds),
        }),
        Figure([Bars("% of the time together", "trace", bars, colors)]),
    )  # fmt: skip


def _hosts(predicted: Sequence[Row]) -> Table:
    """Return the predicted times of a GPU and its host."""
    rows = [{**row, "one_by_one_s": row["layers_s"] + row["host_s"]} for row in predicted]
    return table(rows, {
        "network": "network", "batch": "batch", "layers": ("layers_s", seconds), "host": ("host_s", seconds), "pass": ("pass_s", seconds),
        "in sequence": ("one_by_one_s", seconds), "of the pass": _share_of("one_by_one_s", "pass_s"),
    })  # fmt: skip


def _short(name: str) -> str:
    """Return the part of a file's name that distinguishes it from others."""
    for ending in (".gz", ".json", ".trace", ".pt"):
        name = name.removesuffix(ending)
    return name.replace("__", ", ").replace("_", " ")


def _products(passes: Sequence[Row]) -> Table:
    return table(passes, {
        "network": "network", "where": "place", "products": ("products_s", seconds), "layers with a product": ("with_product_s", seconds),
        "ratio": _share_of("products_s", "with_product_s"), "whole pass": ("whole_s", seconds), "of it": _share_of("products_s"),
    }, text=2)  # fmt: skip


def _scatter(rows: Sequence[Row], column: str, label: str) -> Figure | None:
    if not rows:
        return None
    panels = []
    for place, own in grouped(rows, "place").items():
        series, ends = [], []
        for (network, layers), color in zip(grouped(own, "network").items(), COLORS, strict=False):
            xs, ys = ([1e3 * row[name] for row in layers] for name in ("synchronised_s", column))
            ends += [*xs, *ys]
            series.append(Series(network.rpartition(":")[2], "measured", xs, ys, color=color, is_scatter=True))
        series.append(Series("equal", "reference", [min(ends), max(ends)], [min(ends), max(ends)]))
        axes = ("ms of the layer, waited for", f"ms, {label}")
        panels.append(Lines(*axes, series, log_x=True, log_y=True, title=_short_place(place)))
    return Figure(panels)


def _errors(passes: Sequence[Row], layers: Sequence[Row]) -> Table:
    known = [row for row in passes if row["predicted_s"]]
    made = table(known, {
        "network": "network", "where": "place", "measured": ("whole_s", seconds), "predicted": ("predicted_s", seconds),
        "error": lambda row: percent(row["predicted_s"] / row["whole_s"] - 1, 0),
        "a layer, median": lambda row: f"{_factor(layers, row):.2f} ×", "predicted for": "predicted_on",
    })  # fmt: skip
    return replace(made, right={2, 3, 4, 5})


def _layers(rows: Sequence[Row]) -> Block:
    def time(column: str) -> Callable[[Row], str]:
        return lambda row: shown(row[column], seconds, "")

    ordered = sorted(rows, key=lambda row: -row["synchronised_s"])
    longest = ordered[: max(1, min(_NAMED, len(ordered) // 10))]
    made = table(rows, {
        "layer": "layer", "kind": ("kind", kind_name), "FLOPs": lambda row: si(row["flops"], "FLOP") if row["flops"] else "",
        "waited for": time("synchronised_s"), "not waited for": time("unsynchronised_s"), "product m × n × k": ("product", _product),
        "product": time("product_s"), "predicted": time("predicted_s"),
    }, text=2)  # fmt: skip
    return Block(made.without_empty_columns(), values={
        "share": sum(row["synchronised_s"] for row in longest) / sum(row["synchronised_s"] for row in rows),
        "count": len(longest), "of": len(rows), "names": in_words([row["layer"] for row in longest]),
    })  # fmt: skip


def _product(sizes: Sequence[int] | None) -> str:
    if sizes is None:
        return ""
    groups, *size = sizes
    text = " × ".join(f"{n:,}" for n in size)
    return f"{groups} × ({text})" if groups > 1 else text


_LAPTOP = {
    "networks": ["alexnet", "googlenet", "resnet50-v1"], "batch": 1, "repeats": 9, "warmup": 2, "gpu": "h200", "gpu_batches": [1, 32],
}  # fmt: skip
_SMOKE = {**_LAPTOP, "networks": ["resnet8"], "repeats": 2, "warmup": 1}

STUDY = Study(
    name="layer-timing",
    question="Why do the times of single layers not add up to the whole forward pass on a GPU, and how can layers be timed without that?",
    hypothesis="Waiting for the device after each layer adds the time that its queue hides. Matrix products timed by themselves need no waiting",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP},
    conduct=conduct,
    values=values,
    blocks=blocks,
    predictions=predictions,
    truth="what `chronograd measure layers NETWORK --json` printed on another machine, and traces of torch.profiler",
)

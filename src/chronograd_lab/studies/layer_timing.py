"""Times of layers: with and without waiting for the device, why their sum is not the whole pass, and a way around.

Z. Lu, S. Rallapalli, K. Chan, T. La Porta, Modeling the resource requirements of convolutional neural networks on mobile devices,
ACM Multimedia 2017 (arXiv 1709.09503): its section 5 times matrix products by themselves. What is timed is what
`chronograd measure layers NETWORK` times; files of it from other machines, and traces of torch.profiler, are added with --truth.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.errors import ChronogradError, FileFormatError
from chronograd.explain.queue import queue_of
from chronograd.figure import Bar, Bars, Figure, Lines, Series
from chronograd.hardware import catalog
from chronograd.measure import layer_times
from chronograd.measure.layer_times import LayerTimes
from chronograd.predict.compute import Work, phase_seconds
from chronograd.predict.relatives import calibration_for
from chronograd.units import percent, seconds, si
from chronograd.words import how_many, kind_name, time_unit
from chronograd.words import listed as in_words
from chronograd_lab.common.counted import counted
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import grouped, matching, shown
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed, table

COLORS = ("accent", "vermilion", "green", "purple", "orange", "teal", "rose", "brown")
SUMS = {
    "whole_s": "whole pass",
    "issued_s": "host asks for it",
    "synchronised_s": "layers, waited for",
    "unsynchronised_s": "layers, not waited for",
    "products_s": "matrix products alone",
    "predicted_s": "predicted pass",
}
# A colour for each way of timing.
PALETTE = dict(zip(SUMS.values(), ("accent", "grey", "vermilion", "orange", "green", "purple"), strict=True))
NOT_MEASURED = "not measured"
# Sums of layers nearer to the whole than this are as near as passes are to one another.
_ALIKE = 0.05
# Highest tenth of the passes over the lowest, above which a machine was not quiet.
_QUIET = 1.2
_NAMED = 5
_VENDORS = ("Intel", "AMD", "NVIDIA", "Tesla", "GeForce", "Quadro", "AWS")


# -- what is timed ---------------------------------------------------------------------------------


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    times, queues = [_here(runner, settings, network) for network in settings["networks"]], []
    for path in runner.truth:
        try:
            times.append(layer_times.read(path))
        except FileFormatError:
            queues.append(_queue_row(path))
    notes = []
    if not queues:
        notes.append("No trace of a GPU was given (--truth TRACE.json.gz …): what a queue hides is said in words only.")
    if not any(one.device == "cuda" for one in times):
        notes.append(
            "No GPU was measured: `chronograd measure layers NETWORK --json > FILE` there, and --truth FILE here."
        )
    rows = {
        "passes": [_pass_row(one) for one in times],
        "layers": [row for one in times for row in _layer_rows(one)],
        "queues": queues,
        "predicted": [
            _predicted(network, settings["gpu"], batch)
            for network in settings["networks"]
            for batch in settings["gpu_batches"]
        ],
    }
    return runner.results(settings, rows=rows, notes=notes)


def _here(runner: StudyRunner, settings: Settings, network: str) -> LayerTimes:
    """One thread of the processor, so that threads do not wait for one another."""
    from chronograd.ask import job_of
    from chronograd.bench.layers import measure_layers

    runner.say(f"timing layers of {network}")
    job = job_of(network, ["cluster.device=cpu", "cluster.threads=1"], {"batch": settings["batch"]})
    return measure_layers(job, repeats=settings["repeats"], warmup=settings["warmup"])


def _place(times: LayerTimes) -> str:
    """Where and how, such as `NVIDIA H100, fp16, batch 1`."""
    return f"{times.device_name}, {times.precision}, batch {times.batch}"


def _short_place(place: str) -> str:
    """
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
    """What a GPU is predicted to take: its layers by themselves, the host's asking for them, and both together."""
    trace, gpu = counted(network), catalog.device(device)
    calibration = calibration_for(gpu, "fp32", mode="inference")
    work = Work.on(trace, batch, calibration)
    times = work.seconds(calibration)
    return {
        "network": network, "device": device, "title": gpu.title, "batch": batch, "layers_s": float(times.sum()),
        "host_s": float(work.issues.sum()) * calibration.host_launch_s,
        "pass_s": phase_seconds(trace, times, calibration)["forward"], "origin": calibration.origin,
    }  # fmt: skip


# -- the page --------------------------------------------------------------------------------------


def page(results: Results) -> Answer:
    rows = results.rows
    passes, layers = rows["passes"], rows["layers"]
    sections = [
        _sums_section(passes, rows["predicted"]),
        *_events_sections(passes),
        _queue_section(rows["queues"]),
        _host_section(rows["predicted"]),
        _products_section(passes, layers),
        _predicted_section(passes, layers),
        *(_layers_section(own) for own in grouped(layers, "network", "place").values()),
    ]
    highlights = [
        Highlight(
            f"layers of {row['network']}, waited for, of the whole pass",
            percent(row["synchronised_s"] / row["whole_s"], 0),
            row["place"],
        )
        for row in (own[-1] for own in grouped(passes, "place").values())
    ]
    summary = [
        _sums_sentence(passes),
        "On a GPU the host works ahead of the device: waiting for each layer adds what the queue hides, so the sum is more than the whole.",
        _products_sentence(passes),
    ]
    return replace(STUDY.answer(results, sections, highlights), title="Layer timing", summary=summary)


def _sums_sentence(passes: Sequence[Row]) -> str:
    words = []
    for (place, device), own in grouped(passes, "place", "device").items():
        ratios = [row["synchronised_s"] / row["whole_s"] for row in own]
        how = "waited for one by one" if device == "cuda" else "timed one by one"
        words.append(f"on {place} the layers, {how}, add up to {_from_to(ratios)} of the whole pass")
    return f"{'; '.join(words)}.".replace("on ", "On ", 1)


def _from_to(shares: Sequence[float]) -> str:
    low, high = percent(min(shares), 0), percent(max(shares), 0)
    return low if low == high else f"{low} to {high}"


def _sums_section(passes: Sequence[Row], predicted: Sequence[Row]) -> Section:
    panels, body = [], []
    for place, own in grouped(passes, "place").items():
        unit, length = time_unit([row["whole_s"] for row in own])
        bars = []
        for row in own:
            for key, name in SUMS.items():
                if row[key] is None:
                    continue
                low, high = (row.get(f"{key.removesuffix('_s')}_{end}_s") for end in ("low", "high"))
                bars.append(
                    Bar(f"{row['network']}, {name}", "predicted" if key == "predicted_s" else "measured", {name: row[key] / length},
                        None if low is None else low / length, None if high is None else high / length, seconds(row[key]))
                )  # fmt: skip
            body.append([row["network"], place, *(shown(row[key], seconds) for key in SUMS), seconds(row["queued_s"])])
        panels.append(Bars(f"{unit}, {_short_place(place)}", "what is timed", bars, PALETTE))
    if not matching(passes, device="cuda"):
        body += [
            [
                row["network"],
                f"{row['title']}, fp32, batch {row['batch']}",
                *[NOT_MEASURED] * 5,
                seconds(row["pass_s"]),
                NOT_MEASURED,
            ]
            for row in predicted
        ]
    on_cpu = matching(passes, device="cpu")
    alike = [row for row in on_cpu if abs(row["synchronised_s"] / row["whole_s"] - 1) <= _ALIKE]
    here = f" A processor computes as it is asked, so its layers should add up to the pass: within {percent(_ALIKE, 0)} in {len(alike)} of {len(on_cpu)}."
    spread = max(row["whole_high_s"] / row["whole_low_s"] for row in passes)
    lines = [
        f"Whole passes of one network differ by up to {spread:.1f} × between the lowest and the highest tenth: other work ran on the machine."
    ]
    return Section(
        "The whole pass and the sums over its layers",
        _sums_sentence(passes),
        "Medians of forward passes in inference, taken in turn; lines are the lowest and the highest tenth. Waited for: the host's clock at the "
        "beginning and the end of each layer, the device idle at both. Not waited for: on a GPU events in its queue; on a processor the same "
        f"clock.{here if on_cpu else ''}",
        figure=Figure(panels),
        table=Table(("network", "where", *SUMS.values(), "one of several in the queue"), body, set(range(2, 9))),
        lines=lines if spread > _QUIET else [],
    )


def _events_sections(passes: Sequence[Row]) -> list[Section]:
    """Return a section that compares the sum of the times between events on a GPU with the whole pass, if a GPU was timed."""
    on_gpu = matching(passes, device="cuda")
    if not on_gpu:
        return []

    def share(row: Row) -> float:
        return float(row["unsynchronised_s"] / row["whole_s"])

    above = [row for row in on_gpu if share(row) > 1 + _ALIKE]
    takeaway = f"The times between events add up to more than the whole pass in {len(above)} of {len(on_gpu)} passes"
    if above:
        most = max(above, key=share)
        takeaway += f", by up to {share(most):.2f} times: {seconds(most['unsynchronised_s'])} against {seconds(most['whole_s'])} in {most['network']} ({most['place']})"
    return [
        Section(
            "Events between the layers",
            f"{takeaway}. Where the host is slower than the device, the device waits between two events for the next launch, and the events "
            "time that gap too.",
            "An event is in the device's queue before each layer, and one at the end. Nobody waits for the device, but the time between two "
            "events includes the layer's kernels and the gap before them. Recording an event for each layer also takes time of the host. So the sum "
            "is the device's work only where its queue never runs empty. A profiler times kernels, without the gaps.",
            table=table(on_gpu, {
                "network": "network", "where": "place", "whole pass": ("whole_s", seconds), "host asks for it": ("issued_s", seconds),
                "host, of the pass": lambda row: percent(row["issued_s"] / row["whole_s"], 0),
                "between events": ("unsynchronised_s", seconds), "of the pass": lambda row: percent(share(row), 0),
            }, text=2),
        )
    ]  # fmt: skip


def _queue_section(queues: Sequence[Row]) -> Section:
    title = "Why they differ on a GPU"
    words = (
        "The host asks for a kernel and goes on while the device computes: a call returns long before its work is done. So a clock around a "
        "layer without waiting times the asking, and one that waits adds, for each layer, the asking that the queue would have hidden, the "
        "wake-up of the host, and a start of the device from idle. Kernels of neighbouring layers that would have overlapped no longer do."
    )
    if not queues:
        return Section(title, "Waiting for each layer adds up what host and device do at the same time.", words)
    most = max(queues, key=lambda row: row["one_by_one_s"] / row["together_s"])
    bars = [
        Bar(
            f"{_short(row['trace'])}: {name}",
            "measured",
            {part: row[key] / row["together_s"] * 100 for part, key in parts},
        )
        for row in queues
        for name, parts in (
            ("together", [("together", "together_s")]),
            ("one by one", [("host", "host_s"), ("device", "device_s")]),
        )
    ]
    body = [
        [_short(row["trace"]), f"{row['kernels']:,}", *(seconds(row[key]) for key in ("host_s", "device_s", "together_s", "one_by_one_s")),
         percent(row["one_by_one_s"] / row["together_s"], 0), seconds(row["delay_s"])]
        for row in queues
    ]  # fmt: skip
    return Section(
        title,
        f"In {_short(most['trace'])} the host takes {seconds(most['host_s'])} to ask for {how_many(most['kernels'], 'kernels')} and the device "
        f"{seconds(most['device_s'])} to run them, together {seconds(most['together_s'])}: one by one they would take "
        f"{percent(most['one_by_one_s'] / most['together_s'], 0)} of that.",
        f"{words} Public traces of torch.profiler: time of the host less what it waited for the device or for data, time in which kernels ran, "
        "and both from the first launch to the last kernel's end. One by one is their sum, without what the waiting itself takes.",
        figure=Figure(
            [
                Bars(
                    "% of the time together",
                    "trace",
                    bars,
                    {"together": "grey", "host": "vermilion", "device": "accent"},
                )
            ]
        ),
        table=listed(
            ("trace", "kernels", "host", "device", "together", "one by one", "of together", "in the queue, median"),
            body,
        ),
    )


def _host_section(predicted: Sequence[Row]) -> Section:
    """What a GPU is predicted to take, and its host."""
    host_bound = [row for row in predicted if row["host_s"] > row["layers_s"]]
    body = [
        [row["network"], str(row["batch"]), *(seconds(row[key]) for key in ("layers_s", "host_s", "pass_s")),
         seconds(row["layers_s"] + row["host_s"]), percent((row["layers_s"] + row["host_s"]) / row["pass_s"], 0)]
        for row in predicted
    ]  # fmt: skip
    where = {row["title"]: row["origin"] for row in predicted}
    batches = in_words([str(batch) for batch in dict.fromkeys(row["batch"] for row in host_bound)])
    takeaway = (
        f"In {len(host_bound)} of {len(predicted)} rows (batch {batches}) the host is predicted to take longer than the layers, so that a clock "
        "without waiting shows the host."
        if host_bound
        else f"In none of {len(predicted)} rows the host is predicted to take longer than the layers."
    )
    return Section(
        "Predicted: host and device of a GPU",
        takeaway,
        f"{in_words([f'{title} ({origin} calibration)' for title, origin in where.items()])}, fp32: layers by themselves, the host's asking for "
        "them, and the pass, in which both go on at the same time. One by one is the sum of both.",
        table=listed(("network", "batch", "layers", "host", "pass", "one by one", "of the pass"), body),
    )


def _short(name: str) -> str:
    """Of a file's name what tells it from others."""
    for ending in (".gz", ".json", ".trace", ".pt"):
        name = name.removesuffix(ending)
    return name.replace("__", ", ").replace("_", " ")


def _products_sentence(passes: Sequence[Row]) -> str:
    shares = [row["products_s"] / row["with_product_s"] for row in passes]
    return (
        "The way around is to time the matrix product of each layer in a loop by itself and to add these up: no layer is waited for, and the "
        f"sum is {_from_to(shares)} of what the same layers took one by one."
    )


def _products_section(passes: Sequence[Row], layers: Sequence[Row]) -> Section:
    body = [
        [row["network"], row["place"], seconds(row["products_s"]), seconds(row["with_product_s"]),
         percent(row["products_s"] / row["with_product_s"], 0), seconds(row["whole_s"]), percent(row["products_s"] / row["whole_s"], 0)]
        for row in passes
    ]  # fmt: skip
    with_product = [row for row in layers if row["product_s"]]
    return Section(
        "Around the overhead: matrix products by themselves",
        _products_sentence(passes),
        "A convolution is a product of filters × (kernel × kernel × channels) and columns of that length, one for each position of the output "
        "(im2col). Lu et al. 2017, section 5, time such products over their sizes in a loop, whose overhead is paid once, fit the time to the "
        "size on each platform, and add up. Left out: making the columns, activations, pooling, norms. A library that does not make columns, "
        "or does with fewer multiplications, takes less than its products. Operands of a loop stay in a cache, where they fit.",
        figure=_scatter(with_product, "product_s", "matrix product alone"),
        caption="Each point is a layer; × and a number is the batch. On the line its product by itself takes as long as the layer.",
        table=Table(
            ("network", "where", "products", "layers with a product", "ratio", "whole pass", "of it"),
            body,
            {2, 3, 4, 5, 6},
        ),
    )


def _scatter(rows: Sequence[Row], key: str, label: str) -> Figure | None:
    if not rows:
        return None
    series, ends, is_one_place = [], [], len(grouped(rows, "place")) == 1
    for ((network, place), own), color in zip(
        grouped(rows, "network", "place").items(), COLORS * len(rows), strict=False
    ):
        xs, ys = ([1e3 * row[name] for row in own] for name in ("synchronised_s", key))
        ends += [*xs, *ys]
        ys_known: list[float | None] = [float(y) for y in ys]
        legend = network if is_one_place else f"{network}, {_short_place(place)}"
        series.append(Series(legend, "measured", xs, ys_known, color=color, is_scatter=True))
    series.append(Series("equal", "reference", [min(ends), max(ends)], [min(ends), max(ends)]))
    return Figure([Lines("ms of the layer, waited for", f"ms, {label}", series, log_x=True, log_y=True)])


def _predicted_section(passes: Sequence[Row], layers: Sequence[Row]) -> Section:
    title = "Predicted beside measured"
    known = [row for row in passes if row["predicted_s"]]
    if not known:
        return Section(
            title,
            "No device that was measured is known to the operator model: `chronograd calibrate` makes one of this machine.",
        )
    body, errors = [], []
    for row in known:
        own = [
            r for r in matching(layers, network=row["network"], place=row["place"]) if r["predicted_s"] and r["flops"]
        ]
        factors = [float(np.exp(abs(np.log(r["predicted_s"] / r["synchronised_s"])))) for r in own]
        errors.append(abs(row["predicted_s"] / row["whole_s"] - 1))
        body.append(
            [row["network"], row["place"], seconds(row["whole_s"]), seconds(row["predicted_s"]), percent(row["predicted_s"] / row["whole_s"] - 1, 0),
             f"{statistics.median(factors):.2f} ×", row["predicted_on"]]
        )  # fmt: skip
    return Section(
        title,
        f"Of {len(known)} passes the predicted time is off by {percent(statistics.median(errors), 0)} in the median; single layers are off by "
        f"{in_words([row[5] for row in body])} in the median.",
        "The operator model's time of each layer beside the time of it that was waited for; layers with work of their own.",
        figure=_scatter([row for row in layers if row["predicted_s"] and row["flops"]], "predicted_s", "predicted"),
        caption="Each point is a layer; × and a number is the batch. On the line it is predicted as it was measured.",
        table=Table(
            ("network", "where", "measured", "predicted", "error", "a layer, median", "predicted for"),
            body,
            {2, 3, 4, 5},
        ),
    )


def _layers_section(rows: Sequence[Row]) -> Section:
    network, place = rows[0]["network"], rows[0]["place"]
    whole_s = sum(row["synchronised_s"] for row in rows)
    ordered = sorted(rows, key=lambda row: -row["synchronised_s"])
    most = ordered[: max(1, min(_NAMED, len(ordered) // 10))]
    body: list[list[Any]] = [
        [
            row["layer"], kind_name(row["kind"]), si(row["flops"], "FLOP") if row["flops"] else "",
            *(shown(row[key], seconds, "") for key in ("synchronised_s", "unsynchronised_s")), _product(row["product"]),
            *(shown(row[key], seconds, "") for key in ("product_s", "predicted_s")),
        ]
        for row in rows
    ]  # fmt: skip
    columns = ("layer", "kind", "FLOPs", "waited for", "not waited for", "product m × n × k", "product", "predicted")
    return Section(
        f"Layers of {network} on {place}",
        f"{percent(sum(row['synchronised_s'] for row in most) / whole_s, 0)} of the time of the layers is in {len(most)} of {len(rows)}: "
        f"{in_words([row['layer'] for row in most])}.",
        table=Table(columns, body, set(range(2, 8))).without_empty_columns(),
    )


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
    hypothesis="Waiting for the device after each layer adds what its queue hides; matrix products timed by themselves need no waiting",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP},
    conduct=conduct,
    computed=page,
    truth="what `chronograd measure layers NETWORK --json` printed on another machine, and traces of torch.profiler",
)

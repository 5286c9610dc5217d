"""Images per second that a device's peak allows, the share that is reached, and the losses.

    at peak           FLOPs / peak, 2 FLOPs per MAC
    clocks            part of the peak lost to the board's power limit and its schedulers (`relatives.fed`)
    tiles             further time of matrix work: sizes that do not fill tiles, waves, or the depth of a product
    memory            operators that wait for memory: norms, activations, pooling, weights that are read for few images
    layout            casts, and convolutions whose input has the other order of channels
    launches          the start of each kernel, and the host if it launches kernels more slowly than the device runs them

All but the first are terms of the operator model, switched on one after the other. They add up to the predicted pass.

H. Qi, E. Sparks, A. Talwalkar, PALEO: a performance model for deep neural networks, ICLR 2017. Published timings are those of
timm (huggingface/pytorch-image-models, results) and of NVIDIA's DeepLearningExamples, if CHRONOGRAD_MEASURED names their
folder.
"""

from __future__ import annotations

import csv
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.answer import Table
from chronograd.figure import Bar, Bars, Figure, Lines, Series
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device
from chronograd.predict import paleo
from chronograd.predict.calibration import Calibration
from chronograd.predict.compute import Work, phase_seconds, sigma_log
from chronograd.predict.relatives import calibration_for, fed
from chronograd.predict.roofline import roofline
from chronograd.record import Z80
from chronograd.trace import KINDS, MATRIX_KINDS, Trace
from chronograd.units import FLOPS_PER_MAC, percent, seconds
from chronograd_lab.common.counted import counted
from chronograd_lab.common.published_runs import MEASURED_VARIABLE, measured_folder
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import distinct, grouped, matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed, table
from chronograd_lab.common.written import Block, key

NETWORKS = {"vgg16": "VGG-16", "vgg19": "VGG-19", "googlenet": "GoogLeNet", "resnet50-v1": "ResNet-50"}
LOSSES = {
    "peak_s": "at peak",
    "clocks_s": "clocks",
    "tiles_s": "tiles",
    "memory_s": "memory",
    "layout_s": "layout",
    "launches_s": "launches",
}
COLORS = dict(zip(LOSSES.values(), ("green", "brown", "accent", "orange", "purple", "vermilion"), strict=True))
_MATRIX = [KINDS.index(kind) for kind in MATRIX_KINDS]
# The K80 of an exercise may be the board, or the GPU that a cloud sells, at each of its clocks.
_K80 = (("k80", "board"), ("k80-gk210", "chip"))
# Percentages of peak that PALEO's authors fitted for a K80: AlexNet in TensorFlow, Inception in MXNet (settings in their code).
_PALEO_PPP = (0.62, 0.49)
_TIMM = "benchmark-infer-amp-{layout}-pt240-cu124-rtx3090.csv"
_TIMM_DEVICE = "rtx3090"
_NVIDIA = Path("nvidia_deeplearningexamples") / "resnet50.csv"
_QUARTERS = 4


# -- conduct: counts and predictions -----------------------------------------------------------------


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    measured, notes = _measured()
    return runner.results(settings, rows={**predictions(settings), **measured}, notes=notes)


def predictions(settings: Settings) -> dict[str, list[Row]]:
    traces = {name: counted(name) for name in settings["networks"]}
    work: list[Row] = [{"network": NETWORKS[name], "macs": trace.macs(1)} for name, trace in traces.items()]
    ceilings = [
        {"network": row["network"], "what": what, "clock": clock, "peak": peak, "per_mac": per_mac,
         "seconds": per_mac * row["macs"] / peak}
        for row in work
        for name, what in _K80
        for clock, peak in _clocks(catalog.device(name))
        for per_mac in (1, FLOPS_PER_MAC)
    ]  # fmt: skip
    reached = [
        _reached(NETWORKS[name], trace, catalog.device(_K80[1][0]), batch)
        for name, trace in traces.items()
        for batch in settings["batches"]
    ]
    losses = [
        _losses(NETWORKS[name], counted(name, channels_last=place["channels_last"]), batch, **place)
        for place in settings["places"]
        for name in settings["networks"]
        for batch in settings["batches"]
    ]
    devices = [row for device in _devices(settings) for row in _on(device, traces, settings["batches"][-1])]
    return {"work": work, "ceilings": ceilings, "reached": reached, "losses": losses, "devices": devices}


def _devices(settings: Settings) -> list[Device]:
    """Return devices that can be predicted, without the user's own; at the smallest size, every n-th of them."""
    known = [
        device
        for device in catalog.devices()
        if device.kind != "accelerator" and not catalog.user_device_path(device.name).exists()
    ]
    return sorted(known, key=lambda device: (device.kind, device.peak("fp32")))[:: settings["one_device_in"]]


def _clocks(device: Device) -> list[tuple[str, float]]:
    return [("boost", device.peak("fp32")), ("base", device.base_peak_flops_per_s["fp32"])]


def _pass(trace: Trace, batch: int, calibration: Calibration) -> tuple[float, float]:
    """Return the seconds of a forward pass, and the standard deviation of the log of its error."""
    times = Work.on(trace, batch, calibration).seconds(calibration)
    return phase_seconds(trace, times, calibration)["forward"], sigma_log(trace, times, calibration)


def _reached(network: str, trace: Trace, device: Device, batch: int) -> Row:
    """Predict by the operator model, with an 80 % interval, and by PALEO's formulas at its authors' percentages."""
    calibration = calibration_for(device, "fp32", mode="inference")
    time_s, sigma = _pass(trace, batch, calibration)
    layers = paleo.layers(trace)
    by_paleo = {
        ppp: float(sum(layer.forward.seconds(batch, paleo.platform_of(device, 1e9, ppp, 1.0)) for layer in layers))
        for ppp in _PALEO_PPP
    }
    return {
        "network": network, "batch": batch, "macs": trace.macs(batch), "peak": device.peak("fp32"), "seconds": time_s,
        "low": time_s * math.exp(-Z80 * sigma), "high": time_s * math.exp(Z80 * sigma),
        "ppp": roofline(trace, batch, calibration).ppp, "paleo": [[ppp, s] for ppp, s in by_paleo.items()],
    }  # fmt: skip


def _losses(network: str, trace: Trace, batch: int, device: str, precision: Any, channels_last: bool) -> Row:
    """Return the seconds of a pass by loss, which add up to it.

    `tiles_s` is negative if the device does fewer multiplications than are counted.
    """
    gpu = catalog.device(device)
    calibration = calibration_for(gpu, precision, mode="inference", channels_last=channels_last)
    terms = Work.on(trace, batch, calibration).terms(calibration)
    is_matrix = np.isin(trace.columns["kind"], _MATRIX)
    device_s, compute_s = float(terms.seconds.sum()), float(terms.compute[is_matrix].sum())
    whole_s = phase_seconds(trace, terms.seconds, calibration)["forward"]
    peak_s = trace.flops(batch, "forward") / gpu.peak(precision)
    clocks_s = min(max(0.0, compute_s - peak_s), peak_s * (1 / fed(gpu) - 1))
    return {
        "network": network, "device": device, "precision": precision, "channels_last": channels_last, "batch": batch,
        "seconds": whole_s, "peak_s": peak_s, "clocks_s": clocks_s, "tiles_s": compute_s - peak_s - clocks_s,
        "memory_s": float(terms.pass_s.sum() + terms.weights.sum()) - compute_s,
        "layout_s": float(terms.cast.sum() + terms.relayout.sum()),
        "launches_s": float(terms.launch.sum()) + whole_s - device_s,
    }  # fmt: skip


def _on(device: Device, traces: dict[str, Trace], batch: int) -> list[Row]:
    """Return the ceiling in each precision that a network may run in, and the predicted throughput."""
    rows = []
    for precision in ("fp32", "fp16"):
        peak = device.peak_flops_per_s.get(precision)
        if peak is None or (precision != "fp32" and peak <= device.peak("fp32")):
            continue
        calibration = calibration_for(device, precision, mode="inference")
        for name, trace in traces.items():
            time_s, sigma = _pass(trace, batch, calibration)
            rows.append(
                {
                    "device": device.name, "title": device.title, "kind": device.kind, "precision": precision, "peak": peak,
                    "network": NETWORKS[name], "batch": batch, "ceiling": peak / trace.flops(1, "forward"),
                    "predicted": batch / time_s, "sigma": sigma,
                }
            )  # fmt: skip
    return rows


# -- conduct: published timings --------------------------------------------------------------------------


def _measured() -> tuple[dict[str, list[Row]], list[str]]:
    """Return rows of timm's and NVIDIA's tables, and notes about missing ones."""
    folder = measured_folder()
    rows: dict[str, list[Row]] = {"timm": [], "batches": []}
    if folder is None:
        return rows, [f"No published timings: {MEASURED_VARIABLE} names no folder. Losses are predicted only."]
    notes = []
    tables = [folder / "timm" / _TIMM.format(layout=layout) for layout in ("nchw", "nhwc")]
    if all(path.exists() for path in tables):
        rows["timm"] = _timm_rows(*tables)
    else:
        notes.append("timm's tables of an RTX 3090 are not in the folder of published timings.")
    if (folder / _NVIDIA).exists():
        rows["batches"] = _batch_rows(folder / _NVIDIA)
    else:
        notes.append("NVIDIA's table of ResNet-50 is not in the folder of published timings.")
    return rows, notes


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _timm_peak() -> float:
    return catalog.device(_TIMM_DEVICE).peak("fp16")


def _timm_rows(first: Path, last: Path) -> list[Row]:
    """Return models that both tables have at one batch: share of the peak with channels first and last, MACs per activation."""
    peak = _timm_peak()
    by_layout = [
        {(r["model"], r["infer_img_size"]): r for r in _read(path) if r["infer_samples_per_sec"]}
        for path in (first, last)
    ]
    rows = []
    for (model, size), row in by_layout[0].items():
        other = by_layout[1].get((model, size))
        macs, activations = (float(row[key] or 0) for key in ("infer_gmacs", "infer_macts"))
        # Two digits after the decimal point are too few for the share of a small model.
        if other is None or other["infer_batch_size"] != row["infer_batch_size"] or macs < 0.5 or not activations:
            continue
        share = FLOPS_PER_MAC * 1e9 * macs / peak
        rows.append(
            {"model": model, "macs_per_activation": 1e3 * macs / activations,
             "first": share * float(row["infer_samples_per_sec"]), "last": share * float(other["infer_samples_per_sec"])}
        )  # fmt: skip
    return rows


def _batch_rows(path: Path) -> list[Row]:
    """Return ResNet-50 in inference by batch."""
    return [
        {"device": row["device"], "precision": row["precision"], "batch": int(row["batch_per_device"]),
         "samples_per_s": float(row["samples_per_s"])}
        for row in _read(path)
        if (row["phase"], row["model"]) == ("inference", "torchvision:resnet50")
    ]  # fmt: skip


# -- page ------------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    rows = results.rows
    board = matching(rows["ceilings"], what="board", clock="boost", per_mac=FLOPS_PER_MAC)
    timm, parts = rows["timm"], quarters(rows["timm"])
    (vgg16,) = matching(timm, model="vgg16")
    gpus = [{**row, "share": row["predicted"] / row["ceiling"]} for row in matching(rows["devices"], kind="gpu")]
    return {
        "board": {
            key(row["network"]): {"seconds": row["seconds"], "rate": 1 / row["seconds"], "macs": of["macs"]}
            for of, row in zip(rows["work"], board, strict=True)
        },
        "peak": board[0]["peak"] / 1e12,
        "chip": _extremes([{**row, "share": _share(row)} for row in rows["reached"]]),
        "loss": {
            key(case): {f"at_{batch}": _lost(same) for batch, same in grouped(own, "batch").items()}
            for case, own in _cases(rows["losses"]).items()
        },
        "timm": {
            "models": len(timm), "median": statistics.median(row["last"] for row in timm), "best": max(timm, key=lambda row: row["last"]),
            "few": parts[0]["last"], "most": parts[-1]["last"], "gain": statistics.median(row["last"] / row["first"] for row in timm),
            "vgg16": vgg16, "peak": _timm_peak() / 1e12,
        },
        "lone": {
            key(f"{device} {precision}"): own[0]["samples_per_s"] / max(row["samples_per_s"] for row in own)
            for (device, precision), own in grouped(rows["batches"], "device", "precision").items()
        },
        "gpus": {
            **_extremes(gpus),
            **{precision: statistics.median(row["share"] for row in own) for precision, own in grouped(gpus, "precision").items()},
        },
    }  # fmt: skip


def blocks(results: Results) -> dict[str, Block]:
    rows = results.rows
    shown = {
        "One image on a K80, and its peak throughput": _k80(rows["ceilings"]),
        "Percent of peak": Block(_reached_table(rows["reached"])),
        **{
            f"Why peak is hard to reach: each loss on {case}": _losses_shown(own)
            for case, own in _cases(rows["losses"]).items()
        },
    }
    if rows["timm"]:
        shown["Measured: memory and layout"] = _timm(rows["timm"])
    if rows["batches"]:
        shown["Measured: launches"] = _batches(rows["batches"])
    return shown | {"On every device": Block(_devices_table(rows["devices"]))}


def _share(row: Row) -> float:
    """Return the share of the peak: FLOPs over the time, over the peak."""
    return float(FLOPS_PER_MAC * row["macs"] / row["seconds"] / row["peak"])


def _extremes(rows: Sequence[Row]) -> dict[str, Row]:
    return {"least": min(rows, key=lambda row: row["share"]), "greatest": max(rows, key=lambda row: row["share"])}


def _cases(losses: Sequence[Row]) -> dict[str, list[Row]]:
    """Return rows by device, precision and layout."""
    named = [
        {**row, "case": f"{row['device']}, {row['precision']}{', channels last' if row['channels_last'] else ''}"}
        for row in losses
    ]
    return grouped(named, "case")


def _lost(rows: Sequence[Row]) -> Row:
    """Return the smallest and largest share of peak, and the main losses.

    A loss is a main one if it is the largest in at least half the number of networks of the most frequent loss.
    """
    shares = [row["peak_s"] / row["seconds"] for row in rows]
    lost = LOSSES.keys() - {"peak_s"}
    largest = Counter(LOSSES[max(lost, key=lambda name: row[name])] for row in rows).most_common()
    names = [name for name, count in largest if 2 * count >= largest[0][1]]
    return {"least": min(shares), "greatest": max(shares), "mostly": ", ".join(sorted(names))}


def _k80(ceilings: Sequence[Row]) -> Block:
    body = []
    for (network, what, clock), own in grouped(ceilings, "network", "what", "clock").items():
        one, two = (matching(own, per_mac=per_mac)[0] for per_mac in (1, FLOPS_PER_MAC))
        cells = [text for row in (one, two) for text in (seconds(row["seconds"]), f"{1 / row['seconds']:,.0f}")]
        body.append([network, f"{what}, {clock}", f"{own[0]['peak'] / 1e12:.4g}", *cells])
    bars = [
        Bar(f"{row['network']}, {row['what']}, {row['clock']}", "predicted", {"images/s": 1 / row["seconds"]},
            note=f"{1 / row['seconds']:,.0f}")
        for row in matching(ceilings, per_mac=FLOPS_PER_MAC)
    ]  # fmt: skip
    columns = ("network", "K80", "TFLOP/s", "time, 1 FLOP per MAC", "images/s", "time, 2 FLOPs per MAC", "images/s")
    figure = Figure([Bars("images/s, 2 FLOPs per MAC", "network and peak", bars, {"images/s": "accent"})])
    return Block(listed(columns, body, 2), figure)


def _reached_table(reached: Sequence[Row]) -> Table:
    def per_second(row: Row, time_s: float) -> str:
        return f"{row['batch'] / time_s:,.0f}"

    def by_paleo(of_ppp: int) -> Callable[[Row], str]:
        return lambda row: per_second(row, row["paleo"][of_ppp][1])

    return table(reached, {
        "network": "network", "batch": ("batch", str),
        "at peak": lambda row: per_second(row, FLOPS_PER_MAC * row["macs"] / row["peak"]),
        "predicted": lambda row: per_second(row, row["seconds"]),
        "80 % interval": lambda row: f"{per_second(row, row['high'])} … {per_second(row, row['low'])}",
        "of peak": lambda row: percent(_share(row), 0), "PPP": lambda row: percent(row["ppp"], 0),
        **{f"PALEO at {ppp:g}": by_paleo(i) for i, ppp in enumerate(_PALEO_PPP)},
    })  # fmt: skip


def _losses_shown(rows: Sequence[Row]) -> Block:
    bars, body = [], []
    for row in rows:
        parts = {name: row[field] for field, name in LOSSES.items()}
        shares = [percent(value / row["seconds"], 0) for value in parts.values()]
        body.append([row["network"], str(row["batch"]), seconds(row["seconds"] / row["batch"]), *shares])
        # The device does fewer multiplications than are counted, so the arithmetic takes less time than at peak.
        parts["at peak"] += min(0.0, parts["tiles"])
        shown = {name: round(100 * value / row["seconds"], 3) for name, value in parts.items() if value > 0}
        bars.append(Bar(f"{row['network']}, batch {row['batch']}", "predicted", shown))
    return Block(
        listed(("network", "batch", "time of an image", *LOSSES.values()), body),
        Figure([Bars("% of a pass", "network", bars, COLORS)]),
    )


def quarters(rows: Sequence[Row]) -> list[Row]:
    """Return the median share of the peak in four equal groups of models, sorted by MACs per activation."""
    ordered = sorted(rows, key=lambda row: row["macs_per_activation"])
    parts = [ordered[len(ordered) * i // _QUARTERS : len(ordered) * (i + 1) // _QUARTERS] for i in range(_QUARTERS)]
    return [
        {"low": own[0]["macs_per_activation"], "high": own[-1]["macs_per_activation"], "n": len(own),
         **{layout: statistics.median(row[layout] for row in own) for layout in ("first", "last")}}
        for own in parts
        if own
    ]  # fmt: skip


def _timm(rows: Sequence[Row]) -> Block:
    series = [
        Series(name, "measured", [row["macs_per_activation"] for row in rows], [round(100 * row[layout], 2) for row in rows],
               color=color, is_scatter=True)
        for layout, name, color in (("first", "channels first", "orange"), ("last", "channels last", "accent"))
    ]  # fmt: skip
    return Block(
        table(quarters(rows), {
            "MACs per activation": lambda p: f"{p['low']:.0f} … {p['high']:.0f}", "models": ("n", str),
            "of peak, channels first": ("first", percent), "channels last": ("last", percent),
            "gain": lambda p: f"{p['last'] / p['first']:.2f} ×",
        }),
        Figure([Lines("MACs per activation", "% of peak", series, log_x=True, from_zero=True)]),
    )  # fmt: skip


def _batches(rows: Sequence[Row]) -> Block:
    colors = itertools.cycle(("accent", "vermilion", "green", "purple"))
    series, body = [], []
    for ((device, precision), own), color in zip(grouped(rows, "device", "precision").items(), colors, strict=False):
        label = f"{device}, {precision}"
        xs, rates = ([row[name] for row in own] for name in ("batch", "samples_per_s"))
        series.append(Series(label, "measured", xs, rates, color=color, is_joined=True))
        share = percent(rates[0] / max(rates), 0)
        body.append([label, f"{rates[0]:,.0f}", f"{max(rates):,.0f}", share, seconds(1 / rates[0])])
    return Block(
        listed(("device", "images/s at batch 1", "at the best batch", "share", "a pass at batch 1"), body),
        Figure([Lines("batch", "images/s", series, log_x=True, log_y=True, x_ticks=distinct(rows, "batch"))]),
    )


def _devices_table(rows: Sequence[Row]) -> Table:
    networks = distinct(rows, "network")
    body = [
        [title, precision, f"{own[0]['peak'] / 1e12:.4g}", *(f"{row['ceiling']:,.0f}" for row in own),
         *(percent(row["predicted"] / row["ceiling"], 0) for row in own)]
        for (title, precision), own in grouped(rows, "title", "precision").items()
    ]  # fmt: skip
    columns = [*(f"{name} at peak" for name in networks), *(f"{name} reached" for name in networks)]
    return listed(["device", "precision", "TFLOP/s", *columns], body, 2)


_LAPTOP: dict[str, Any] = {
    "networks": list(NETWORKS), "batches": [1, 64],
    "places": [
        {"device": "k80-gk210", "precision": "fp32", "channels_last": False},
        {"device": "rtx3090", "precision": "fp16", "channels_last": False},
        {"device": "rtx3090", "precision": "fp16", "channels_last": True},
        {"device": "h100", "precision": "fp16", "channels_last": True},
    ],
    "one_device_in": 1,
}  # fmt: skip
_SMOKE = {
    **_LAPTOP, "networks": ["vgg16", "resnet50-v1"], "places": _LAPTOP["places"][:2], "one_device_in": 12,
}  # fmt: skip

STUDY = Study(
    name="inference-ceiling",
    question="How many images per second does a device's peak allow, and why is it not reached?",
    hypothesis="A K80 promises some hundreds of images per second for VGG and ten times more for GoogLeNet. At batch 1, launches, "
    "memory and small sizes take most of it",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP},
    conduct=conduct,
    values=values,
    blocks=blocks,
    predictions=lambda results: predictions(results.settings),
)

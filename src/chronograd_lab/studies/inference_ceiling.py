"""Images per second that a device's peak allows, what is reached of it, and which losses lie between.

    at peak           FLOPs / peak, 2 FLOPs per MAC
    clocks            what the board's power and its schedulers leave of the peak (`relatives.fed`)
    tiles             the rest of what matrix work takes beyond that: sizes that do not fill tiles, waves, or the depth of a product
    memory            operators that wait for memory: norms, activations, pooling, weights that are read for few images
    layout            casts, and convolutions that find their channels elsewhere than they want them
    launches          each kernel's own start, and the host, where it takes longer to ask for kernels than the device to run them

All but the first are terms of the operator model, switched on one after the other; they add up to the predicted pass.

H. Qi, E. Sparks, A. Talwalkar, PALEO: a performance model for deep neural networks, ICLR 2017. Published timings are those of
timm (huggingface/pytorch-image-models, results) and of NVIDIA's DeepLearningExamples, where CHRONOGRAD_MEASURED names their folder.
"""

from __future__ import annotations

import csv
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.answer import Answer, Highlight, Section, Table
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
from chronograd.words import listed as in_words
from chronograd_lab.common.counted import counted
from chronograd_lab.common.published_runs import MEASURED_VARIABLE, measured_folder
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import distinct, grouped, matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed, table

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
# The K80 that an exercise may mean: the board, or the GPU that a cloud sells, at each of its clocks.
_K80 = (("k80", "board"), ("k80-gk210", "chip"))
# Percents of peak that PALEO's authors fitted for a K80: AlexNet in TensorFlow, Inception in MXNet (settings in their code).
_PALEO_PPP = (0.62, 0.49)
_TIMM = "benchmark-infer-amp-{layout}-pt240-cu124-rtx3090.csv"
_TIMM_DEVICE = "rtx3090"
_NVIDIA = Path("nvidia_deeplearningexamples") / "resnet50.csv"
_QUARTERS = 4


# -- what is counted and predicted -----------------------------------------------------------------


def conduct(runner: StudyRunner, settings: Settings) -> Results:
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
    measured, notes = _measured()
    rows = {"work": work, "ceilings": ceilings, "reached": reached, "losses": losses, "devices": devices, **measured}
    return runner.results(settings, rows=rows, notes=notes)


def _devices(settings: Settings) -> list[Device]:
    """Of the catalogue, not of the user's own; at the smallest size one in so many."""
    known = [device for device in catalog.devices() if not catalog.user_device_path(device.name).exists()]
    return sorted(known, key=lambda device: (device.kind, device.peak("fp32")))[:: settings["one_device_in"]]


def _clocks(device: Device) -> list[tuple[str, float]]:
    return [("boost", device.peak("fp32")), ("base", device.base_peak_flops_per_s["fp32"])]


def _pass(trace: Trace, batch: int, calibration: Calibration) -> tuple[float, float]:
    """Seconds of a forward pass, and the deviation of the log of its error."""
    times = Work.on(trace, batch, calibration).seconds(calibration)
    return phase_seconds(trace, times, calibration)["forward"], sigma_log(trace, times, calibration)


def _reached(network: str, trace: Trace, device: Device, batch: int) -> Row:
    """Predicted by the operator model, with an 80 % interval, and by PALEO's formulas at its authors' percents."""
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
    """Seconds of a pass by loss; they add up to it. `tiles_s` is below zero where fewer multiplications do than are counted."""
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
    """The ceiling in each arithmetic that a network may run in, and what is predicted of it."""
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


# -- what others measured --------------------------------------------------------------------------


def _measured() -> tuple[dict[str, list[Row]], list[str]]:
    """Rows of timm's tables and of NVIDIA's, and what is missing."""
    folder = measured_folder()
    rows: dict[str, list[Row]] = {"timm": [], "batches": []}
    if folder is None:
        return rows, [f"Published timings were not at hand ({MEASURED_VARIABLE}): losses are predicted only."]
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
    """Models that both tables have at one batch: share of the peak with channels first and last, MACs per activation."""
    peak = _timm_peak()
    by_layout = [
        {(r["model"], r["infer_img_size"]): r for r in _read(path) if r["infer_samples_per_sec"]}
        for path in (first, last)
    ]
    rows = []
    for (model, size), row in by_layout[0].items():
        other = by_layout[1].get((model, size))
        macs, activations = (float(row[key] or 0) for key in ("infer_gmacs", "infer_macts"))
        # Two digits after the point are too few for a share of small ones.
        if other is None or other["infer_batch_size"] != row["infer_batch_size"] or macs < 0.5 or not activations:
            continue
        share = FLOPS_PER_MAC * 1e9 * macs / peak
        rows.append(
            {"model": model, "macs_per_activation": 1e3 * macs / activations,
             "first": share * float(row["infer_samples_per_sec"]), "last": share * float(other["infer_samples_per_sec"])}
        )  # fmt: skip
    return rows


def _batch_rows(path: Path) -> list[Row]:
    """ResNet-50 in inference by batch."""
    return [
        {"device": row["device"], "precision": row["precision"], "batch": int(row["batch_per_device"]),
         "samples_per_s": float(row["samples_per_s"])}
        for row in _read(path)
        if (row["phase"], row["model"]) == ("inference", "torchvision:resnet50")
    ]  # fmt: skip


# -- the page --------------------------------------------------------------------------------------


def page(results: Results) -> Answer:
    rows = results.rows
    sections = [
        _k80_section(rows["work"], rows["ceilings"]),
        _reached_section(rows["reached"]),
        *_losses_sections(rows["losses"]),
    ]
    sections += [_timm_section(rows["timm"])] if rows["timm"] else []
    sections += [_batches_section(rows["batches"])] if rows["batches"] else []
    sections.append(_devices_section(rows["devices"]))
    board = matching(rows["ceilings"], what="board", clock="boost", per_mac=FLOPS_PER_MAC)
    highlights = [
        Highlight(
            f"images/s of {row['network']} on a K80 board at peak",
            f"{1 / row['seconds']:,.0f}",
            seconds(row["seconds"]),
        )
        for row in board
    ]
    return replace(STUDY.answer(results, sections, highlights), summary=_summary(rows))


def _summary(rows: dict[str, list[Row]]) -> list[str]:
    board = matching(rows["ceilings"], what="board", clock="boost", per_mac=FLOPS_PER_MAC)
    rates = in_words([f"{row['network']} {1 / row['seconds']:,.0f}" for row in board])
    shares = [_share(row) for row in rows["reached"]]
    lost = grouped(matching(rows["losses"], batch=1), "device")
    biggest = [
        f"{in_words(_most_common([_largest_loss(row) for row in own]))} on {device}" for device, own in lost.items()
    ]
    return [
        f"At a K80 board's {board[0]['peak'] / 1e12:.2f} TFLOP/s and 2 FLOPs per MAC the ceilings are {rates} images/s; half of that on "
        "one of its two GPUs.",
        f"What is predicted for that GPU is {percent(min(shares), 0)} to {percent(max(shares), 0)} of its peak, by network and batch.",
        f"At batch 1 most is lost to {'; to '.join(biggest)}. PALEO lays all losses into one percent of peak.",
    ]


def _share(row: Row) -> float:
    """Of peak: FLOPs over the time, over the peak."""
    return float(FLOPS_PER_MAC * row["macs"] / row["seconds"] / row["peak"])


def _largest_loss(row: Row) -> str:
    return LOSSES[max((key for key in LOSSES if key != "peak_s"), key=lambda key: row[key])]


def _k80_section(work: Sequence[Row], ceilings: Sequence[Row]) -> Section:
    body = []
    for (network, what, clock), own in grouped(ceilings, "network", "what", "clock").items():
        one, two = (matching(own, per_mac=per_mac)[0] for per_mac in (1, FLOPS_PER_MAC))
        cells = [text for row in (one, two) for text in (seconds(row["seconds"]), f"{1 / row['seconds']:,.0f}")]
        body.append([network, f"{what}, {clock}", f"{own[0]['peak'] / 1e12:.4g}", *cells])
    first = matching(ceilings, what="board", clock="boost", per_mac=FLOPS_PER_MAC)
    times = in_words([f"{seconds(row['seconds'])} ({row['network']})" for row in first])
    rates = in_words([f"{1 / row['seconds']:,.0f}" for row in first])
    lines = [
        f"{row['network']}: 2 × {of['macs']:,} MACs / {row['peak'] / 1e12:.2f}e12 FLOP/s = {seconds(row['seconds'])}; "
        f"1 / {seconds(row['seconds'])} = {1 / row['seconds']:,.0f} images/s."
        for of, row in zip(work, first, strict=True)
    ]
    bars = [
        Bar(f"{row['network']}, {row['what']}, {row['clock']}", "predicted", {"images/s": 1 / row["seconds"]},
            note=f"{1 / row['seconds']:,.0f}")
        for row in matching(ceilings, per_mac=FLOPS_PER_MAC)
    ]  # fmt: skip
    return Section(
        "One image on a K80, and its peak throughput",
        f"On the board at boost clock, with 2 FLOPs per MAC, an image takes {times}: {rates} images/s.",
        "A K80 board has two GPUs; a cloud sells one of them, with half of every figure. Boost clock is the highest, base clock what "
        "is warranted. Tables that print MACs as FLOPs promise twice the images: state the convention. GoogLeNet has the shapes of "
        "its paper, ResNet-50 its stride in the first 1 × 1.",
        figure=Figure([Bars("images/s, 2 FLOPs per MAC", "network and peak", bars, {"images/s": "accent"})]),
        table=Table(
            ("network", "K80", "TFLOP/s", "time, 1 FLOP per MAC", "images/s", "time, 2 FLOPs per MAC", "images/s"),
            body, {2, 3, 4, 5, 6},
        ),
        lines=lines,
    )  # fmt: skip


def _reached_section(reached: Sequence[Row]) -> Section:
    least, most = (pick(reached, key=_share) for pick in (min, max))
    return Section(
        "Percent of peak",
        f"On one GPU of a K80 the operator model predicts between {percent(_share(least), 0)} of peak ({least['network']}, batch "
        f"{least['batch']}) and {percent(_share(most), 0)} ({most['network']}, batch {most['batch']}).",
        "Images/s in fp32. Of peak: FLOPs over time over peak. PALEO (Qi et al. 2017) divides FLOPs by the peak and bytes by the "
        "bandwidth, adds both, and divides by one platform percent of peak (PPP) that is fitted once for a device and its software: "
        f"{' and '.join(f'{p:g}' for p in _PALEO_PPP)} for a K80, at base clock. PPP here is what the prediction comes to: (FLOPs / peak + "
        "bytes / bandwidth) / time. One figure cannot hold for all networks and batches, as the losses differ. Above 100 %, 3 × 3 "
        "convolutions in Winograd's form do with fewer multiplications than are counted, or operators find their input in a cache.",
        table=table(reached, {
            "network": "network", "batch": ("batch", str),
            "at peak": lambda row: _per_second(row, FLOPS_PER_MAC * row["macs"] / row["peak"]),
            "predicted": lambda row: _per_second(row, row["seconds"]),
            "80 % interval": lambda row: f"{_per_second(row, row['high'])} … {_per_second(row, row['low'])}",
            "of peak": lambda row: percent(_share(row), 0), "PPP": lambda row: percent(row["ppp"], 0),
            **{f"PALEO at {ppp:g}": partial(_at_paleo, i) for i, ppp in enumerate(_PALEO_PPP)},
        }),
    )  # fmt: skip


def _at_paleo(of_ppp: int, row: Row) -> str:
    return _per_second(row, row["paleo"][of_ppp][1])


def _per_second(row: Row, time_s: float) -> str:
    return f"{row['batch'] / time_s:,.0f}"


def _case(row: Row) -> str:
    layout = ", channels last" if row["channels_last"] else ""
    return f"{row['device']}, {row['precision']}{layout}"


def _losses_sections(losses: Sequence[Row]) -> list[Section]:
    """One per device, precision and layout."""
    cases = grouped([{**row, "case": _case(row)} for row in losses], "case")
    intro = (
        "Predicted. Clocks: power and schedulers keep part of the lanes idle or slow. Tiles: products whose sizes do not fill tiles, "
        "the last wave of which leaves units idle, and shallow products that end before the pipeline is full. Memory: operators "
        "that do little arithmetic on each byte, and weights that are read for few images. Layout: casts, and channels that have to be "
        "moved. Launches: each kernel's start, and the host that asks for kernels one by one."
    )
    caption = (
        "Segments add up to the predicted pass; the green one is its percent of peak. Where 3 × 3 convolutions do with fewer "
        "multiplications than are counted, it is shorter than the percent of peak, and the table's loss to tiles is below zero."
    )
    sections = []
    for number, (case, own) in enumerate(cases.items()):
        bars, body = [], []
        for row in own:
            parts = {name: row[key] for key, name in LOSSES.items()}
            body.append(
                [row["network"], str(row["batch"]), seconds(row["seconds"] / row["batch"]),
                 *(percent(value / row["seconds"], 0) for value in parts.values())]
            )  # fmt: skip
            # Fewer multiplications than are counted: the arithmetic takes less than at peak.
            parts["at peak"] += min(0.0, parts["tiles"])
            shown = {name: round(100 * value / row["seconds"], 3) for name, value in parts.items() if value > 0}
            bars.append(Bar(f"{row['network']}, batch {row['batch']}", "predicted", shown))
        sections.append(
            Section(
                f"Why peak is hard to reach: each loss on {case}",
                _losses_sentence(own),
                intro if number == 0 else "",
                figure=Figure([Bars("% of a pass", "network", bars, COLORS)]),
                caption=caption if number == 0 else "",
                table=listed(("network", "batch", "time of an image", *LOSSES.values()), body),
            )
        )
    return sections


def _losses_sentence(rows: Sequence[Row]) -> str:
    """By batch the share of peak, and where most of the rest goes."""
    words = []
    for batch, own in grouped(rows, "batch").items():
        shares = [row["peak_s"] / row["seconds"] for row in own]
        most = in_words(_most_common([_largest_loss(row) for row in own]))
        share = f"{percent(min(shares), 0)} to {percent(max(shares), 0)}"
        words.append(f"At batch {batch} a pass is {share} work at peak, and most of the rest is lost to {most}.")
    return " ".join(words)


def _most_common(names: Sequence[str]) -> list[str]:
    """Names that come at least half as often as the commonest, that one first."""
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    return [name for name, n in sorted(counts.items(), key=lambda item: -item[1]) if 2 * n >= max(counts.values())]


def quarters(rows: Sequence[Row]) -> list[Row]:
    """Models by their MACs per activation, in four parts of like number: the median share of the peak in each."""
    ordered = sorted(rows, key=lambda row: row["macs_per_activation"])
    parts = [ordered[len(ordered) * i // _QUARTERS : len(ordered) * (i + 1) // _QUARTERS] for i in range(_QUARTERS)]
    return [
        {"low": own[0]["macs_per_activation"], "high": own[-1]["macs_per_activation"], "n": len(own),
         **{layout: statistics.median(row[layout] for row in own) for layout in ("first", "last")}}
        for own in parts
        if own
    ]  # fmt: skip


def _timm_section(rows: Sequence[Row]) -> Section:
    parts = quarters(rows)
    best = max(rows, key=lambda row: row["last"])
    gain = statistics.median(row["last"] / row["first"] for row in rows)
    lines = [
        f"VGG-16 reaches {percent(row['first'], 0)} with channels first and {percent(row['last'], 0)} with channels last."
        for row in matching(rows, model="vgg16")
    ]
    series = [
        Series(name, "measured", [row["macs_per_activation"] for row in rows], [round(100 * row[key], 2) for row in rows],
               color=color, is_scatter=True)
        for key, name, color in (("first", "channels first", "orange"), ("last", "channels last", "accent"))
    ]  # fmt: skip
    return Section(
        "Measured: memory and layout",
        f"Of {len(rows)} models on an RTX 3090 the median reaches {percent(statistics.median(row['last'] for row in rows), 0)} of peak and "
        f"the best, {best['model']}, {percent(best['last'], 0)}; a quarter with few MACs per activation {percent(parts[0]['last'], 0)}, the "
        f"one with most {percent(parts[-1]['last'], 0)}.",
        f"timm's inference tables, fp16, PyTorch 2.4; shares in the heading are with channels last; the peak is {_timm_peak() / 1e12:g} "
        "TFLOP/s. MACs per activation tell how much arithmetic there is for what is written to memory. Channels last is "
        f"{gain:.2f} × as fast as channels first in the median: that is the loss to layout.",
        figure=Figure([Lines("MACs per activation", "% of peak", series, log_x=True, from_zero=True)]),
        table=table(parts, {
            "MACs per activation": lambda p: f"{p['low']:.0f} … {p['high']:.0f}", "models": ("n", str),
            "of peak, channels first": ("first", percent), "channels last": ("last", percent),
            "gain": lambda p: f"{p['last'] / p['first']:.2f} ×",
        }),
        lines=lines,
    )  # fmt: skip


def _batches_section(rows: Sequence[Row]) -> Section:
    colors = itertools.cycle(("accent", "vermilion", "green", "purple"))
    series, body, words = [], [], []
    for ((device, precision), own), color in zip(grouped(rows, "device", "precision").items(), colors, strict=False):
        label = f"{device}, {precision}"
        xs, rates = ([row[key] for row in own] for key in ("batch", "samples_per_s"))
        series.append(Series(label, "measured", xs, rates, color=color, is_joined=True))
        share = percent(rates[0] / max(rates), 0)
        body.append([label, f"{rates[0]:,.0f}", f"{max(rates):,.0f}", share, seconds(1 / rates[0])])
        words.append(f"{share} on {device} with {precision}")
    return Section(
        "Measured: launches",
        f"With one image at a time ResNet-50 reaches {in_words(words)} of its best throughput.",
        "NVIDIA's DeepLearningExamples, inference. At small batches throughput grows in proportion to the batch, and a pass takes as "
        "long on a fast GPU as on a slow one: the host issues kernels and the device waits.",
        figure=Figure([Lines("batch", "images/s", series, log_x=True, log_y=True, x_ticks=distinct(rows, "batch"))]),
        table=listed(("device", "images/s at batch 1", "at the best batch", "share", "a pass at batch 1"), body),
    )


def _devices_section(rows: Sequence[Row]) -> Section:
    networks, batch = distinct(rows, "network"), rows[0]["batch"]
    body, shares = [], []
    for (title, precision), own in grouped(rows, "title", "precision").items():
        ceilings = [f"{row['ceiling']:,.0f}" for row in own]
        of_peak = [percent(row["predicted"] / row["ceiling"], 0) for row in own]
        body.append([title, precision, f"{own[0]['peak'] / 1e12:.4g}", *ceilings, *of_peak])
        shares += [(row["predicted"] / row["ceiling"], row) for row in own if row["kind"] == "gpu"]
    low, high = (pick(shares, key=lambda pair: pair[0]) for pick in (min, max))
    median = {
        precision: statistics.median(share for share, row in shares if row["precision"] == precision)
        for precision in dict.fromkeys(row["precision"] for _, row in shares)
    }
    words = in_words([f"{percent(share, 0)} in {precision}" for precision, share in median.items()])
    return Section(
        "On every device",
        f"At batch {batch} the median over GPUs and networks is predicted to be {words} of peak; from {percent(low[0], 0)} "
        f"({low[1]['network']} on {low[1]['device']}, {low[1]['precision']}) to {percent(high[0], 0)} ({high[1]['network']} on "
        f"{high[1]['device']}, {high[1]['precision']}).",
        "Images/s at peak, 2 FLOPs per MAC, and what is predicted of it, with channels first. A device is listed with fp16 too where it has "
        "faster arithmetic for it. Above 100 % 3 × 3 convolutions do with fewer multiplications than are counted. The faster the arithmetic, the less of it is reached: memory and host did not grow as fast. Most "
        "devices were never calibrated: their shares are as uncertain as the intervals above.",
        table=listed(
            [
                "device",
                "precision",
                "TFLOP/s",
                *(f"{n} at peak" for n in networks),
                *(f"{n} reached" for n in networks),
            ],
            body,
            2,
        ),
    )


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
    hypothesis="A K80 promises some hundreds of images per second for VGG and ten times as many for GoogLeNet; launches, memory and "
    "small sizes take most of it at batch 1",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP},
    conduct=conduct,
    computed=page,
)

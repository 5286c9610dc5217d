"""DeepBench: GEMM and convolution kernels by device, precision and direction.

From each sheet of a device (one precision), a seed takes 60 rows; a calibration and the residual it leaves are fitted
on them and predict the others. Sizes and the transposition of a product are known; the algorithm that a library picked
is not used.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.kernels import Convolution, fit_kernels, gemm
from benchmarks.sources import Row, row_of
from chronograd.errors import NotFoundError
from chronograd.fit.device import Sample
from chronograd.hardware import catalog
from chronograd.predict.calibration import Calibration, from_datasheet
from chronograd.predict.compute import Work

NUM_FITTED = 60
SEEDS = range(3)
AIM = 0.15
Line = dict[str, str]
Kernel = tuple[Sample, list[float]]
DIRECTIONS = {"forward": "fwd_ms", "data": "bwd_inputs_ms", "weights": "bwd_params_ms"}


def rows(folder: Path) -> list[Row]:
    """GEMM, and each direction of convolutions. Empty if the tables are absent."""
    found = []
    path = folder / "deepbench"
    if (path / "gemm.csv").exists():
        found.append(_row("GEMM", path / "gemm.csv", _gemm))
    if (path / "conv.csv").exists():
        for name in DIRECTIONS:
            found.append(_row(f"convolution, {name}", path / "conv.csv", partial(_conv, direction=name)))
    return [row for row in found if row is not None]


def _row(what: str, path: Path, kernel: Callable[[Line], Kernel | None]) -> Row | None:
    tables: dict[tuple[str, str], list[tuple[Line, Kernel]]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as stream:
        for line in csv.DictReader(stream):
            made = kernel(line)
            if made is not None:
                tables[line["device"], line["precision"]].append((line, made))
    names: list[str] = []
    log_errors, half_widths, seeds = [], [], []
    for (device, precision), lines in tables.items():
        if len(lines) <= NUM_FITTED:
            continue
        prior = _prior(device, precision, [k for _, (k, _) in lines])
        features = np.array([f for _, (_, f) in lines])
        for seed in SEEDS:
            order = np.random.default_rng(seed).permutation(len(lines))
            fitted, rest = order[:NUM_FITTED], order[NUM_FITTED:]
            model = fit_kernels([lines[i][1][0] for i in fitted], features[fitted], prior)
            samples = [lines[i][1][0] for i in rest]
            seconds, half = model.seconds(samples, features[rest])
            log_errors += np.log(seconds / [s.seconds for s in samples]).tolist()
            half_widths += half.tolist()
            seeds += [seed] * len(rest)
            names += [f"{device} {precision.split(',')[0]} {lines[i][1][0].group}" for i in rest]
    if not names:
        return None
    ratio = np.exp(log_errors)
    return row_of(
        "DeepBench",
        f"{what}: {NUM_FITTED} rows of a device and precision predict the rest",
        AIM,
        names,
        ratio,
        np.abs(log_errors) <= np.array(half_widths),
        by_seed=tuple(float(np.abs(ratio[np.array(seeds) == s] - 1).mean()) for s in SEEDS),
        groups={"device": [name.partition(" ")[0] for name in names]},
    )


def _dtype(line: Line) -> str:
    """Of the inputs, as the table words it: `Float`, `16 bit inputs, ...`, `... Int8 multiplication, ...`."""
    words = line["precision"].lower()
    return "int8" if "int8" in words else "float16" if re.search(r"16[ -]?bit inputs|half|fp16", words) else "float32"


def _gemm(line: Line) -> Kernel | None:
    seconds = _seconds(line["time_ms"])
    if seconds is None:
        return None
    m, n, k = (int(line[name]) for name in ("M", "N", "K"))
    # Column-major, as BLAS: N is the batch that a layer's weight, M × K, is applied to.
    work = Work.of(gemm(k, m, _dtype(line)), n)
    flags = [2.0 * (line["transA"] == "T"), 2.0 * (line["transB"] == "T")]
    name = f"{m}x{n}x{k} {line['transA']}{line['transB']}"
    return Sample(work, seconds, name), [*np.log([m, n, k]), *flags]


def _conv(line: Line, direction: str) -> Kernel | None:
    seconds = _seconds(line[DIRECTIONS[direction]])
    if seconds is None:
        return None
    w, h, c, n, k, s, r = (int(line[x]) for x in ("W", "H", "C", "N", "K", "S_filter_w", "R_filter_h"))
    # The two strides are equal in every published row, so which is which does not matter there.
    stride, padding = (int(line["stride_h"]), int(line["stride_v"])), (int(line["pad_h"]), int(line["pad_w"]))
    layer = Convolution(c, k, (h, w), (r, s), stride, padding)
    work = Work.of(layer.trace(direction, _dtype(line)), n)
    sizes = np.log([h * w, c, n, k, r * s, stride[0] * stride[1], 1 + padding[1]])
    return Sample(work, seconds, f"{direction} {h}x{w}x{c} batch {n}, {r}x{s}x{k} /{stride[1]}"), sizes.tolist()


def _seconds(text: str) -> float | None:
    """A time in ms as seconds; None where the table has none, or a word for it."""
    try:
        return float(text) / 1e3 or None
    except ValueError:
        return None


def _prior(name: str, precision: str, samples: list[Sample]) -> Calibration:
    """The data sheet's, at the arithmetic that the table names; of a device not in the catalogue, a like one's."""
    known = re.sub(r"^[A-Za-z]+_", "", name).replace("_", "-").lower()
    try:
        prior = from_datasheet(catalog.device(known))
    except NotFoundError:
        # Peaks of its generation in general; sixty rows move them.
        prior = from_datasheet(catalog.device("titan-xp"))
    # Pascal's dot product takes four int8 pairs in the place of one fp32; "16 bit inputs" multiply in 32 bit here.
    faster = 4.0 if "int8 multiplication" in precision.lower() else 1.0
    # Kernels are issued from C.
    return replace(prior, peak_flops_per_s=prior.peak_flops_per_s * faster, host_launch_s=0.0, host_sigma=0.0)

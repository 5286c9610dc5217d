"""DeepBench: GEMM and convolution kernels by device, precision and direction.

A seed takes 60 rows from each sheet of a device (one precision). A calibration and a model of its residuals are fitted on them
and predict the other rows. The sizes and the transposition of a product are inputs; the library's choice of algorithm is not.
Convolutions are predicted once more with the full tables of other cards, whose residuals of the same shape represent the choice
of an algorithm. Each row of an all-reduce also predicts the other rows of its machine, number of devices and library, like
`calibrate links --from`.
"""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from benchmarks.kernels import Convolution, fit_kernels, gemm
from benchmarks.sources import Row, row_of
from chronograd.calibrate.link_rows import LIKE, of_all_reduces, timed_once
from chronograd.calibrate.links import TimedCollective
from chronograd.errors import NotFoundError
from chronograd.fit.device import Sample, fit_calibration
from chronograd.hardware import catalog
from chronograd.predict.calibration import Calibration, from_datasheet
from chronograd.predict.collectives import ring
from chronograd.predict.compute import Work

NUM_FITTED = 60
SEEDS = range(3)
AIM, CONVOLUTION_AIM, ALL_REDUCE_AIM = 0.15, 0.14, 0.10
# Limit of a kernel's log residual when the tables of other cards are weighted.
CLIP = 1.5
# Smaller messages are mostly latency and do not show the bandwidth; two rows of a library are too few for its error.
MIN_MESSAGE_BYTES = 4e6
MIN_ALL_REDUCES = 3
LIKE_SIZE = 4
Line = dict[str, str]
Kernel = tuple[Sample, list[float]]
DIRECTIONS = {"forward": "fwd_ms", "data": "bwd_inputs_ms", "weights": "bwd_params_ms"}


def rows(folder: Path) -> list[Row]:
    """Return rows for GEMM and each direction of convolutions. Empty if the tables are missing."""
    found = []
    path = folder / "deepbench"
    if (path / "gemm.csv").exists():
        found.append(_row("GEMM", path / "gemm.csv", _gemm))
    if (path / "conv.csv").exists():
        for name in DIRECTIONS:
            kernel = partial(_conv, direction=name)
            found += [
                _row(f"convolution, {name}", path / "conv.csv", kernel, CONVOLUTION_AIM, is_alone)
                for is_alone in (True, False)
            ]
    if (path / "allreduce.csv").exists():
        found += _all_reduces(path / "allreduce.csv")
    return [row for row in found if row is not None]


def _all_reduces(path: Path) -> list[Row]:
    """Predict the other rows of each group from every row above 4 MB, and separately those of similar size. Empty without a
    group.
    """
    groups: dict[tuple[str, str, str], list[TimedCollective]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as stream:
        for line in csv.DictReader(stream):
            seconds = _seconds(line["mean_ms"])
            if seconds is not None:
                timed = timed_once(int(line["n_accelerators"]), 4 * int(line["n_floats"]), seconds)
                groups[line["device"], line["algorithm"], line["n_accelerators"]].append(timed)
    base = catalog.link(LIKE)
    cases: list[tuple[str, str, float, float]] = []
    for (device, library, count), rows in groups.items():
        for one in rows if len(rows) >= MIN_ALL_REDUCES else ():
            if one.bytes <= MIN_MESSAGE_BYTES:
                continue
            link = of_all_reduces([one], "one", base, path.name).link
            for other in rows:
                if other is not one:
                    predicted = ring(other.bytes, other.world, link.latency_s, link.bandwidth_bytes_per_s)
                    name = f"{device} x {count}, {library}, {other.bytes / 1e6:.1f} MB from {one.bytes / 1e6:.1f}"
                    cases.append((name, library, other.bytes / one.bytes, float(predicted) / other.seconds))
    rule = "all-reduce: one row per machine, number of devices and library predicts"
    near = [case for case in cases if 1 / LIKE_SIZE <= case[2] <= LIKE_SIZE]
    chosen = {f"{rule} the rest": cases, f"{rule} those of a quarter to four times its size": near}
    return [_scored(words, some) for words, some in chosen.items() if some]


def _scored(rule: str, cases: Sequence[tuple[str, str, float, float]]) -> Row:
    groups = {"machine": [name.partition(" ")[0] for name, *_ in cases], "library": [case[1] for case in cases]}
    ratios = [case[3] for case in cases]
    return row_of("DeepBench", rule, ALL_REDUCE_AIM, [case[0] for case in cases], ratios, groups=groups)


def _row(
    what: str, path: Path, kernel: Callable[[Line], Kernel | None], aim: float = AIM, is_alone: bool = True
) -> Row | None:
    """Return the accuracy of a device and precision on its other rows; unless `is_alone`, with residuals of other cards."""
    tables: dict[tuple[str, str], list[Kernel]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as stream:
        for line in csv.DictReader(stream):
            made = kernel(line)
            if made is not None:
                tables[line["device"], line["precision"]].append(made)
    tables = {key: kernels for key, kernels in tables.items() if len(kernels) > NUM_FITTED}
    priors = {key: _prior(*key, [sample for sample, _ in kernels]) for key, kernels in tables.items()}
    left = {} if is_alone else {key: _left(kernels, priors[key]) for key, kernels in tables.items()}
    names: list[str] = []
    log_errors, half_widths, seeds = [], [], []
    for (device, precision), kernels in tables.items():
        prior = priors[device, precision]
        features = np.array([f for _, f in kernels])
        others = [of_shape for (name, _), of_shape in left.items() if name != device]
        for seed in SEEDS:
            order = np.random.default_rng(seed).permutation(len(kernels))
            fitted, rest = order[:NUM_FITTED], order[NUM_FITTED:]
            samples = [sample for sample, _ in kernels]
            lent = np.zeros(len(kernels))
            if others:
                lent = _lent(samples, features, fitted, fit_calibration([samples[i] for i in fitted], prior), others)
            # Divide a time by the other cards' residual of its shape before the fit, and multiply again afterwards.
            model = fit_kernels(
                [replace(samples[i], seconds=samples[i].seconds * math.exp(-lent[i])) for i in fitted],
                features[fitted],
                prior,
            )
            scored = [samples[i] for i in rest]
            seconds, half = model.seconds(scored, features[rest])
            log_errors += np.log(seconds * np.exp(lent[rest]) / [s.seconds for s in scored]).tolist()
            half_widths += half.tolist()
            seeds += [seed] * len(rest)
            names += [f"{device} {precision.split(',')[0]} {s.group}" for s in scored]
    if not names:
        return None
    ratio = np.exp(log_errors)
    knowing = "" if is_alone else " and the tables of other cards"
    return row_of(
        "DeepBench",
        f"{what}: {NUM_FITTED} rows of a device and precision{knowing} predict the rest",
        aim,
        names,
        ratio,
        np.abs(log_errors) <= np.array(half_widths),
        by_seed=tuple(float(np.abs(ratio[np.array(seeds) == s] - 1).mean()) for s in SEEDS),
        groups={"device": [name.partition(" ")[0] for name in names]},
    )


def _left(kernels: Sequence[Kernel], prior: Calibration) -> dict[tuple[float, ...], float]:
    """Return log(measured / predicted) by features, for a calibration fitted to the full table."""
    calibration = fit_calibration([sample for sample, _ in kernels], prior)
    found: dict[tuple[float, ...], list[float]] = defaultdict(list)
    for sample, features in kernels:
        found[tuple(features)].append(math.log(sample.seconds / sample.work.total_seconds(calibration)))
    return {features: float(np.mean(values)) for features, values in found.items()}


def _lent(
    samples: Sequence[Sample],
    features: np.ndarray,
    fitted: np.ndarray,
    calibration: Calibration,
    others: Sequence[dict[tuple[float, ...], float]],
) -> np.ndarray:
    """Return each kernel's log residual as estimated from other cards' tables, by its shape.

    The estimate is a weighted sum of their residuals. A ridge fit on the fitted kernels sets the weights, none below zero. If a
    table lacks a shape, the mean of the tables that have it replaces it.
    """
    known = np.array([[of_shape.get(tuple(f), np.nan) for of_shape in others] for f in features])
    count = np.maximum((~np.isnan(known)).sum(axis=1), 1)
    known = np.where(np.isnan(known), (np.nansum(known, axis=1) / count)[:, None], known)
    left = [math.log(samples[i].seconds / samples[i].work.total_seconds(calibration)) for i in fitted]
    ridge = np.eye(len(others))
    weights, _ = nnls(np.vstack([known[fitted], ridge]), np.append(np.clip(left, -CLIP, CLIP), np.zeros(len(others))))
    return np.asarray(known @ weights)


def _dtype(line: Line) -> str:
    """Return the dtype of the inputs from the table's wording: `Float`, `16 bit inputs, ...`, `... Int8 multiplication,
    ...`.
    """
    words = line["precision"].lower()
    return "int8" if "int8" in words else "float16" if re.search(r"16[ -]?bit inputs|half|fp16", words) else "float32"


def _gemm(line: Line) -> Kernel | None:
    seconds = _seconds(line["time_ms"])
    if seconds is None:
        return None
    m, n, k = (int(line[name]) for name in ("M", "N", "K"))
    # Column-major, as in BLAS: N is the batch, and M × K the weight of the layer.
    work = Work.of(gemm(k, m, _dtype(line)), n)
    flags = [2.0 * (line["transA"] == "T"), 2.0 * (line["transB"] == "T")]
    name = f"{m}x{n}x{k} {line['transA']}{line['transB']}"
    return Sample(work, seconds, name), [*np.log([m, n, k]), *flags]


def _conv(line: Line, direction: str) -> Kernel | None:
    seconds = _seconds(line[DIRECTIONS[direction]])
    if seconds is None:
        return None
    w, h, c, n, k, s, r = (int(line[x]) for x in ("W", "H", "C", "N", "K", "S_filter_w", "R_filter_h"))
    # The two strides are equal in every published row, so their order does not matter.
    stride, padding = (int(line["stride_h"]), int(line["stride_v"])), (int(line["pad_h"]), int(line["pad_w"]))
    layer = Convolution(c, k, (h, w), (r, s), stride, padding)
    work = Work.of(layer.trace(direction, _dtype(line)), n)
    sizes = np.log([h * w, c, n, k, r * s, stride[0] * stride[1], 1 + padding[1]])
    return Sample(work, seconds, f"{direction} {h}x{w}x{c} batch {n}, {r}x{s}x{k} /{stride[1]}"), sizes.tolist()


def _seconds(text: str) -> float | None:
    """Convert a time in ms to seconds; None if the cell is empty or a word."""
    try:
        return float(text) / 1e3 or None
    except ValueError:
        return None


def _prior(name: str, precision: str, samples: list[Sample]) -> Calibration:
    """Return the data sheet's calibration for the table's arithmetic; for devices outside the catalogue that of a similar
    one.
    """
    known = re.sub(r"^[A-Za-z]+_", "", name).replace("_", "-").lower()
    try:
        prior = from_datasheet(catalog.device(known))
    except NotFoundError:
        # Typical peaks of its generation, which sixty rows correct.
        prior = from_datasheet(catalog.device("titan-xp"))
    # Pascal's dot product takes four int8 pairs in the time of one fp32; "16 bit inputs" multiply in 32 bit here.
    faster = 4.0 if "int8 multiplication" in precision.lower() else 1.0
    # Kernels are launched from C.
    return replace(prior, peak_flops_per_s=prior.peak_flops_per_s * faster, host_launch_s=0.0, host_sigma=0.0)

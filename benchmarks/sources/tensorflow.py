"""TensorFlow's performance page of May 2017: images/s on 1 to 64 K80 and 1 to 8 P100.

A curve is one platform, network, batch, input and variable-update mode. Its one-GPU row and its next row (usually of two GPUs)
predict the others. A distributed run has no row of two, so its next row is the first full machine. The interval is the 80th
percentile of the log error on the *other* curves, separately for distributed ones.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.sources import Row, row_of
from benchmarks.step_scaling import scaled_step_s

Curve = tuple[str, str, str, str, str]


def rows(folder: Path) -> list[Row]:
    """Return every count of every curve beyond the calibration rows. Empty if the table is missing."""
    path = folder / "tensorflow_benchmarks" / "k80_p100_scaling.csv"
    if not path.exists():
        return []
    curves: dict[Curve, dict[int, float]] = defaultdict(dict)
    with path.open(newline="", encoding="utf-8") as stream:
        for line in csv.DictReader(stream):
            keys = ("platform", "model", "batch_per_gpu", "data", "variable_update")
            count = int(line["num_gpus"])
            curves[tuple(line[k] for k in keys)][count] = (  # type: ignore[index]
                count * int(line["batch_per_gpu"]) / float(line["images_per_sec"])
            )
    cases = [(curve, *case) for curve, steps in curves.items() if 1 in steps for case in _predicted(curve, steps)]
    if not cases:
        return []
    names = [f"{c[1]} batch {c[2]} {c[3]}, {n} GPUs, {c[0]}" for c, n, _ in cases]
    ratios = [ratio for *_, ratio in cases]
    found = row_of(
        "TensorFlow",
        "the one-GPU row and the next row of a curve predict the rest, to 64",
        0.05,
        names,
        ratios,
        _inside([(c, _is_distributed(c)) for c, *_ in cases], ratios),
        note="Distributed curves have no row for two GPUs; the first full machine replaces it",
    )
    return [found]


def _is_distributed(curve: Curve) -> bool:
    return curve[4].startswith("distributed")


def _predicted(curve: Curve, steps: dict[int, float]) -> list[tuple[int, float]]:
    """Return (GPUs, predicted / measured step time) of each count beyond the second."""
    second, *rest = sorted(n for n in steps if n > 1) or [0]
    return [(n, scaled_step_s(steps[1], steps[second], second, n, _is_distributed(curve)) / steps[n]) for n in rest]


def _inside(kinds: list[tuple[Curve, bool]], ratios: list[float]) -> list[bool]:
    """Return whether each case is in the interval from the other curves of its kind."""
    errors = np.abs(np.log(ratios))
    inside = []
    for i, (curve, kind) in enumerate(kinds):
        others = [errors[j] for j, (c, k) in enumerate(kinds) if c != curve and k == kind]
        inside.append(bool(others) and bool(errors[i] <= np.quantile(others, 0.8)))
    return inside

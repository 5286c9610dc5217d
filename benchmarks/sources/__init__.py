"""Published measurements to compare predictions with: one file per source.

Each file has `rows(folder) -> list[Row]`. `folder` holds the measured tables, and the list is empty if the source is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Row:
    """The accuracy of one rule on one source. Errors are fractions: 0.09 is 9 %.

    Attributes:
        source, rule: the measurements, and the basis of the prediction.
        aim: target for the mean absolute percentage error; None if the issue sets none.
        n: scored predictions, over all seeds.
        bias: mean of predicted / measured − 1, with its sign.
        by_seed: the mean error of each draw of calibration rows.
        groups: by property (device, precision, family) and by its value: n, mape, bias and coverage80.
        coverage80: share of measured values inside the 80 % interval; None if the rule has no interval.
        worst_cases: (name, predicted / measured), largest error first.
        note: remarks for the reader.
    """

    source: str
    rule: str
    aim: float | None
    n: int
    mape: float
    median_ape: float
    p90_ape: float
    worst: float
    bias: float
    coverage80: float | None = None
    by_seed: tuple[float, ...] = ()
    worst_cases: tuple[tuple[str, float], ...] = ()
    note: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, dict[str, dict[str, float | None]]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def row_of(
    source: str,
    rule: str,
    aim: float | None,
    names: Sequence[str],
    ratios: Sequence[float] | np.ndarray,
    inside80: Sequence[bool] | np.ndarray | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    **more: Any,
) -> Row:
    """Return a row from predicted / measured of every case, and whether the measured value was in the 80 % interval.

    Args:
        groups: the value of each case, by property.
    """
    ratio = np.asarray(ratios, dtype=float)
    error = np.abs(ratio - 1)
    far = np.argsort(-np.abs(np.log(ratio)), kind="stable")
    worst: dict[str, float] = {}
    for i in far:
        worst.setdefault(names[i], round(float(ratio[i]), 4))
        if len(worst) == 10:
            break
    return Row(
        source,
        rule,
        aim,
        len(ratio),
        float(error.mean()),
        float(np.median(error)),
        float(np.quantile(error, 0.9)),
        float(error.max()),
        float(ratio.mean() - 1),
        None if inside80 is None else float(np.mean(inside80)),
        worst_cases=tuple(worst.items()),
        groups={what: _grouped(np.array(of), ratio, inside80) for what, of in (groups or {}).items()},
        **more,
    )


def _grouped(
    of: np.ndarray, ratio: np.ndarray, inside80: Sequence[bool] | np.ndarray | None
) -> dict[str, dict[str, float | None]]:
    found: dict[str, dict[str, float | None]] = {}
    for value in sorted(set(of.tolist())):
        chosen = of == value
        found[value] = {
            "n": int(chosen.sum()),
            "mape": round(float(np.abs(ratio[chosen] - 1).mean()), 4),
            "bias": round(float(ratio[chosen].mean() - 1), 4),
            "coverage80": None if inside80 is None else round(float(np.asarray(inside80)[chosen].mean()), 4),
        }
    return found

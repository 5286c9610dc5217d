"""Published measurements that predictions are held against: one file a source.

Each file has `rows(folder) -> list[Row]`: `folder` is where the measured tables lie, and the list is empty if the
source is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Row:
    """How well one rule predicted one source. Errors are fractions: 0.09 is 9 %.

    Attributes:
        source, rule: what was measured, and what the prediction was made from.
        aim: mean absolute percentage error aimed at; None where the issue sets none.
        n: predictions scored, over all seeds.
        by_seed: the mean error of each draw of calibration rows.
        coverage80: share of measured values inside the 80 % interval; None where the rule has no interval.
        worst_cases: (what, predicted / measured), furthest first.
        note: what the reader must know.
    """

    source: str
    rule: str
    aim: float | None
    n: int
    mape: float
    median_ape: float
    p90_ape: float
    worst: float
    coverage80: float | None = None
    by_seed: tuple[float, ...] = ()
    worst_cases: tuple[tuple[str, float], ...] = ()
    note: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def row_of(
    source: str,
    rule: str,
    aim: float | None,
    names: Sequence[str],
    ratios: Sequence[float] | np.ndarray,
    inside80: Sequence[bool] | np.ndarray | None = None,
    **more: Any,
) -> Row:
    """A row from predicted / measured of every case, and whether the measured value lay in the 80 % interval."""
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
        None if inside80 is None else float(np.mean(inside80)),
        worst_cases=tuple(worst.items()),
        **more,
    )

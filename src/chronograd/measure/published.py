"""From a table that others measured to samples that a calibration can be fitted to, and how well it predicts the rest."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chronograd.count.cache import cached_trace
from chronograd.errors import ChronogradError
from chronograd.fit.device import Sample
from chronograd.fit.tables import Row, Table
from chronograd.predict.calibration import CLASSES, FAMILIES, Z80, Calibration
from chronograd.predict.compute import Work
from chronograd.trace import Trace

# A network of the same name whose parameters differ by more than this is another network: a changed default, or one
# that was fused before it was timed.
_PARAMS_TOLERANCE = 0.01
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Timed:
    """A row, its trace and its work. `sample` is what a fit takes."""

    row: Row
    trace: Trace
    sample: Sample


@dataclass
class Joined:
    """Rows of a table that could be traced, and why others could not."""

    timed: list[Timed] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def join(table: Table, rows: Sequence[Row], progress: Progress = lambda share, text: None) -> Joined:
    """Trace every row's network at its image size (kept on disk) and put its work beside its time.

    Networks without a library prefix are timm's. Rows that cannot be traced, or whose parameters are not the
    table's, are left out with the reason.
    """
    joined = Joined()
    phase, precision = table.phase or "inference", table.precision or "fp32"
    for i, row in enumerate(rows):
        progress(i / len(rows), row.key)
        name = row.model if ":" in row.model else f"timm:{row.model}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                trace = cached_trace(name, input_shape=(3, row.image_size, row.image_size), mode=phase)
        except ChronogradError as error:
            joined.left_out[row.key] = error.message.splitlines()[0][:160]
            continue
        if (
            row.params_m is not None
            and abs(trace.params / 1e6 - row.params_m) > _PARAMS_TOLERANCE * row.params_m + 0.006
        ):
            joined.left_out[row.key] = f"{trace.params / 1e6:.2f} M parameters here, {row.params_m} M in the table"
            continue
        joined.timed.append(Timed(row, trace, Sample(Work.of(trace, row.batch, precision), row.seconds, row.model)))
    return joined


def score(timed: Sequence[Timed], calibration: Calibration) -> dict[str, Any]:
    """Errors of a calibration on rows: fractions, with the worst ten and their time by operator family.

    Returns `n`, `mape`, `median_ape`, `p90_ape`, `worst`, `coverage80`, `families`, `worst_rows`.
    """
    ratios = np.array([t.sample.work.total_seconds(calibration) / t.row.seconds for t in timed])
    errors = np.abs(ratios - 1)
    inside = np.abs(np.log(ratios)) <= Z80 * calibration.sigma
    families: dict[str, list[float]] = {}
    for t, e in zip(timed, errors, strict=True):
        families.setdefault(t.row.model.partition("_")[0].rstrip("0123456789"), []).append(float(e))
    order = np.argsort(-errors)[:10]
    return {
        "n": len(timed),
        "mape": float(errors.mean()),
        "median_ape": float(np.median(errors)),
        "p90_ape": float(np.quantile(errors, 0.9)),
        "worst": float(errors.max()),
        "coverage80": float(inside.mean()),
        "sigma_log": calibration.sigma,
        "families": {k: {"n": len(v), "mape": float(np.mean(v))} for k, v in sorted(families.items())},
        "worst_rows": [
            {
                "model": timed[i].row.model,
                "image_size": timed[i].row.image_size,
                "predicted_over_measured": float(ratios[i]),
                "share_by_family": _shares(timed[i].sample.work, calibration),
            }
            for i in order
        ],
    }


def _shares(work: Work, calibration: Calibration) -> dict[str, float]:
    seconds = work.seconds(calibration)
    totals = np.bincount(work.class_index // 2, seconds, len(CLASSES) // 2)
    whole = float(totals.sum()) or 1.0
    return {FAMILIES[i]: round(float(totals[i]) / whole, 3) for i in np.argsort(-totals)[:5] if totals[i] > 0}

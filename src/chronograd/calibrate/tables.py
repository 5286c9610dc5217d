"""Samples for fitting a calibration, from a published table of throughputs, and its prediction errors on other rows."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from chronograd.calibrate.workers import Progress
from chronograd.count.cached import cached_trace
from chronograd.errors import ChronogradError, InputError, MissingExtraError
from chronograd.fit.device import Sample, fit_calibration
from chronograd.fit.tables import ThroughputRow, ThroughputTable, shuffled
from chronograd.hardware.catalog import Device
from chronograd.predict.calibration import CLASSES, FAMILIES, Calibration
from chronograd.predict.compute import Work
from chronograd.predict.relatives import assumed_for, sheet_for
from chronograd.record import Z80
from chronograd.words import how_many

# If the parameters of a network with the same name differ by more than rounding, it is another network: a default changed, or
# it was fused before timing. Tables print two digits of a million.
_PARAMS_ROUNDING_M = 0.006
# Sources of ported weights; not part of the architecture's name.
_PORTED = frozenset(("tf", "gluon", "legacy", "tv", "ig", "ssl", "swsl"))


@dataclass(frozen=True)
class TimedRow:
    """A row and its network's work. `sample` is the input of a fit."""

    row: ThroughputRow
    sample: Sample


@dataclass
class Joined:
    """Traced rows of a table, and the reasons for leaving out others."""

    timed: list[TimedRow] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def join(
    table: ThroughputTable,
    rows: Sequence[ThroughputRow],
    progress: Progress = lambda share, text: None,
    limit: int | None = None,
) -> Joined:
    """Trace every row's network at its image size (cached on disk) and combine its work with its time.

    Networks without a library prefix are timm's. Rows that cannot be traced, or whose parameters differ from the table's, are
    left out with the reason. Stop after `limit` traced rows.
    """
    joined = Joined()

    def found() -> Iterator[TimedRow]:
        for i, row in enumerate(rows):
            progress(i / len(rows), row.key)
            result = _timed(table, row)
            if isinstance(result, TimedRow):
                yield result
            else:
                joined.left_out[row.key] = result

    joined.timed = list(islice(found(), limit))
    return joined


def _timed(table: ThroughputTable, row: ThroughputRow) -> TimedRow | str:
    """Return a row with its work, or the reason why it has none."""
    name = row.model if ":" in row.model else f"timm:{row.model}"
    if name.partition(":")[0] not in ("timm", "torchvision"):
        return "not a network of timm or torchvision; a table may not name code to import"
    shape, precision, mode = (3, row.image_size, row.image_size), table.stated_precision, table.mode
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trace = cached_trace(name, input_shape=shape, mode=mode, channels_last=table.channels_last)
    except MissingExtraError:  # affects all rows, not only this one
        raise
    except ChronogradError as error:
        return error.message.splitlines()[0][:160]
    known = row.params_m
    if known is not None and abs(trace.params / 1e6 - known) > _PARAMS_ROUNDING_M:
        return f"{trace.params / 1e6:.2f} M parameters here, {known} M in the table"
    work = Work.of(
        trace,
        row.batch,
        precision,
        is_compiled=table.is_compiled,
        has_fused_attention=table.has_fused_attention,
    )
    return TimedRow(row, Sample(work, row.seconds, row.model))


def prior_of(table: ThroughputTable, device: Device, kind: str = "relatives") -> tuple[Calibration, float | None]:
    """Return the prior of a fit to a table, and how far the fit may move from it.

    Args:
        kind: `relatives` for the calibration of the nearest related device, never from a table of this name;
            `datasheet` for round numbers.
    """
    if kind not in ("relatives", "datasheet"):
        raise InputError(f"prior is {kind!r}", "use relatives or datasheet")
    precision = table.stated_precision
    if kind == "datasheet":
        software = (table.is_compiled, table.has_fused_attention)
        return sheet_for(device, precision, table.mode, table.channels_last, *software), None
    return assumed_for(
        device,
        precision,
        mode=table.mode,
        channels_last=table.channels_last,
        is_compiled=table.is_compiled,
        has_fused_attention=table.has_fused_attention,
        without_table=table.name,
    )


def fit_table(
    table: ThroughputTable, timed: Iterable[TimedRow], prior: Calibration, prior_sd: float | None = None
) -> Calibration:
    """Return a calibration fitted to whole networks of a table, with its provenance.

    Raises: InputError for fewer than four rows.
    """
    samples = [t.sample for t in timed]
    fitted = fit_calibration(samples, prior, are_networks=True, prior_sd=prior_sd)
    provenance = {**fitted.provenance, "table": table.name, "torch": table.torch, "prior": prior.origin}
    return replace(fitted, provenance={k: v for k, v in provenance.items() if v is not None})


def described(table: ThroughputTable, device: Device, precision: str) -> dict[str, Any]:
    """Return the names that identify a prediction: the header of every score of a table."""
    return {
        "table": table.name,
        "device": device.name,
        "precision": precision,
        "mode": table.mode,
        "layout": "nhwc" if table.channels_last else "nchw",
        "is_compiled": table.is_compiled,
    }


def validate(
    table: ThroughputTable,
    device: Device,
    *,
    calibrate: int = 25,
    seed: int = 0,
    prior: str = "relatives",
    limit: int | None = None,
    progress: Progress = lambda share, text: None,
) -> dict[str, Any]:
    """Fit on `calibrate` rows chosen by the seed, predict up to `limit` others, and return the result of `score` with details.

    Raises: InputError if fewer rows can be traced.
    """
    wanted = None if limit is None else calibrate + limit
    joined = join(table, shuffled(table.rows, seed), progress, wanted)
    if len(joined.timed) <= calibrate:
        raise InputError(
            f"{how_many(len(joined.timed), 'rows')} of {table.name} could be traced, but {calibrate} are needed to calibrate and at least 1 to predict",
            "give a table with more rows, or a smaller --calibrate",
        )
    assumed, prior_sd = prior_of(table, device, prior)
    chosen = joined.timed[:calibrate]
    calibration = fit_table(table, chosen, assumed, prior_sd) if calibrate else assumed
    return {
        **described(table, device, calibration.precision),
        "prior": assumed.provenance.get("relative", assumed.origin),
        "calibrated_on": [t.row.key for t in chosen],
        "seed": seed,
        **score(joined.timed[calibrate:], calibration),
        "left_out": joined.left_out,
    }


def ratios(timed: Sequence[TimedRow], calibration: Calibration) -> np.ndarray:
    """Return predicted over measured time of every row."""
    return np.array([t.sample.work.total_seconds(calibration) / t.row.seconds for t in timed])


def score(timed: Sequence[TimedRow], calibration: Calibration, sigmas: Sequence[float] | None = None) -> dict[str, Any]:
    """Return the errors of a calibration on rows: fractions, with the worst ten and their time by operator family.

    Args:
        sigmas: standard deviation of each row's log error; by default those of the calibration.

    Returns: `n`, `mape`, `bias` (the signed mean: above 0 if predicted times are too long), `median_ape`, `p90_ape`,
        `worst`, `coverage80`, `families`, `worst_rows`.
    """
    found = ratios(timed, calibration)
    signed = found - 1
    errors = np.abs(signed)
    spread = np.array(sigmas or [t.sample.work.sigma_log(calibration) for t in timed])
    inside = np.abs(np.log(found)) <= Z80 * spread
    families: dict[str, list[float]] = {}
    for t, error in zip(timed, signed, strict=True):
        families.setdefault(family_of_model(t.row.model), []).append(float(error))
    order = np.argsort(-np.abs(np.log(found)))[:10]
    return {
        "n": len(timed),
        "mape": float(errors.mean()),
        "bias": float(signed.mean()),
        "median_ape": float(np.median(errors)),
        "p90_ape": float(np.quantile(errors, 0.9)),
        "worst": float(errors.max()),
        "coverage80": float(inside.mean()),
        "sigma_log": calibration.sigma,
        "families": {
            name: {"n": len(own), "mape": float(np.abs(own).mean()), "bias": float(np.mean(own))}
            for name, own in sorted(families.items())
        },
        "worst_rows": [
            {
                "model": timed[i].row.model,
                "image_size": timed[i].row.image_size,
                "predicted_over_measured": float(found[i]),
                "share_by_family": _shares(timed[i].sample.work, calibration),
            }
            for i in order
        ],
    }


def family_of_model(name: str) -> str:
    """Return the first word of a model's name, without its library and its size.

    >>> family_of_model("torchvision:resnet50"), family_of_model("tf_efficientnet_b0"), family_of_model("vit_base_patch16")
    ('resnet', 'efficientnet', 'vit')
    """
    own = bare(name)
    words = [w for w in own.partition(".")[0].split("_") if w not in _PORTED]
    found = re.match(r"[a-z]+", words[0]) if words else None
    return found.group() if found else own


def bare(name: str) -> str:
    """Return a model's name without its library."""
    return name.partition(":")[2] or name


def _shares(work: Work, calibration: Calibration) -> dict[str, float]:
    seconds = work.seconds(calibration)
    totals = np.bincount(work.class_index // 2, seconds, len(CLASSES) // 2)
    whole = float(totals.sum()) or 1.0
    return {FAMILIES[i]: round(float(totals[i]) / whole, 3) for i in np.argsort(-totals)[:5] if totals[i] > 0}

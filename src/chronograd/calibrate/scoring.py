"""Scores of a table of throughputs without a fit, as `predict` does it, optionally carrying over residuals from another table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from chronograd.calibrate.tables import TimedRow, bare, described, family_of_model, join, ratios, score
from chronograd.calibrate.workers import Progress
from chronograd.errors import InputError
from chronograd.fit.tables import ThroughputTable, shuffled
from chronograd.hardware.catalog import Device
from chronograd.predict.calibration import Calibration
from chronograd.predict.carrying import Shown, Way
from chronograd.predict.relatives import calibration_for
from chronograd.units import seconds

# From this completed share on, the remaining time can be estimated.
_MIN_SHARE = 0.02


def chosen_rows(table: ThroughputTable, only: str | None = None, without: str | None = None) -> ThroughputTable:
    """Return the table with the rows of some networks: families, or patterns of names, separated by commas.

    Raises: InputError if no row remains.
    """
    rows = tuple(
        row
        for row in table.rows
        if (only is None or _is_named(row.model, only)) and not (without is not None and _is_named(row.model, without))
    )
    if not rows:
        families = sorted({family_of_model(row.model) for row in table.rows})
        raise InputError(
            f"no row of {table.name} matches --only {only or 'all'} and --except {without or 'none'}",
            f"its families: {', '.join(families[:20])}{' …' if len(families) > 20 else ''}",
        )
    return replace(table, rows=rows)


def _is_named(model: str, words: str) -> bool:
    """Return whether a model belongs to one of the families or matches one of the patterns.

    >>> [_is_named(name, "resnet, vit_s*") for name in ("resnet50d.a1_in1k", "vit_small_patch16", "vit_base_patch16")]
    [True, True, False]
    """
    name = bare(model)
    return any(word == family_of_model(name) or fnmatchcase(name, word) for word in map(str.strip, words.split(",")))


def score_shipped(
    table: ThroughputTable,
    device: Device,
    *,
    seed: int = 0,
    limit: int | None = None,
    measured_on: tuple[ThroughputTable, Device] | None = None,
    progress: Progress = lambda share, text: None,
) -> dict[str, Any]:
    """Return the result of `tables.validate` for rows predicted with the calibration that `predict` uses for the device.

    Args:
        limit: number of rows, chosen by the seed; all by default.
        measured_on: another table, and its device. The residual of each network there is carried over, with the calibration of
            `predict` for that device; networks that it lacks are left out.
    Raises: InputError if no row can be predicted.
    """
    calibration = _shipped(table, device)
    joined = join(table, shuffled(table.rows, seed), with_time_left(progress, limit, len(table.rows)), limit)
    timed, left_out = joined.timed, dict(joined.left_out)
    carried: dict[str, Any] | None = None
    sigmas: list[float] | None = None
    if measured_on is not None:
        other, other_device = measured_on
        shown = _shown(other, other_device, [t.row.key for t in timed], progress)
        left_out |= {t.row.key: f"{other.name} does not have it" for t in timed if t.row.key not in shown}
        timed = [t for t in timed if t.row.key in shown]
        way = _way(table, device)
        onto = [shown[t.row.key].onto(t.sample.work.sigma_log(calibration), way) for t in timed]
        sigmas = [sigma for _, sigma in onto]
        # Dividing the measured time by the factor equals multiplying the predicted one.
        timed = [
            TimedRow(replace(t.row, seconds=t.row.seconds / factor), t.sample)
            for t, (factor, _) in zip(timed, onto, strict=True)
        ]
        carried = {"table": other.name, "device": other_device.name, "networks": len(timed)}
    if not timed:
        raise InputError(f"no row of {table.name} could be predicted", next(iter(left_out.values()), ""))
    return {
        **described(table, device, calibration.precision),
        "prior": calibration.provenance.get("relative", calibration.origin),
        "fitted_to": calibration.provenance.get("table"),
        "measured_on": carried,
        "calibrated_on": [],
        "seed": seed,
        **score(timed, calibration, sigmas),
        "left_out": left_out,
    }


def _shipped(table: ThroughputTable, device: Device) -> Calibration:
    return calibration_for(
        device,
        table.precision or "fp32",
        mode=table.mode,
        channels_last=table.channels_last,
        is_compiled=table.is_compiled,
    )


def _way(table: ThroughputTable, device: Device) -> Way:
    return device.name, table.precision, table.mode, table.channels_last, table.is_compiled


def _shown(other: ThroughputTable, device: Device, keys: Sequence[str], progress: Progress) -> dict[str, Shown]:
    """Return the residual of each network in another table; for several rows the means of their logs and of their sigmas."""
    wanted, calibration = set(keys), _shipped(other, device)
    rows = [row for row in other.rows if row.key in wanted]
    timed = join(other, rows, with_time_left(progress, None, len(rows))).timed
    found: dict[str, list[tuple[float, float]]] = {}
    for one, ratio in zip(timed, ratios(timed, calibration), strict=True):
        pair = (-float(np.log(ratio)), one.sample.work.sigma_log(calibration))
        found.setdefault(one.row.key, []).append(pair)
    return {
        key: Shown(float(np.exp(log)), float(sigma), _way(other, device))
        for key, pairs in found.items()
        for log, sigma in [np.mean(pairs, axis=0)]
    }


def with_time_left(progress: Progress, wanted: int | None, of: int) -> Progress:
    """Return progress that counts towards the wanted number of rows and estimates the remaining time."""
    begun = time.monotonic()
    num_done = 0

    def report(share: float, text: str) -> None:
        nonlocal num_done
        share = max(share, num_done / max(1, min(wanted or of, of)))
        num_done += 1
        elapsed = time.monotonic() - begun
        left = f", about {seconds(elapsed * (1 - share) / share, 2)} left" if share >= _MIN_SHARE else ""
        progress(min(share, 1.0), f"{text}{left}")

    return report

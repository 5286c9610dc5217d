"""What `fit device` says: a calibration fitted to a table of throughputs, and how well it predicts networks left out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chronograd.answer import Answer, Section, Table
from chronograd.calibrate.tables import fit_table, join, prior_of
from chronograd.calibrate.workers import Progress
from chronograd.fit import tables
from chronograd.fit.tables import shuffled
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device
from chronograd.units import percent
from chronograd.words import how_many

MAX_LEFT_OUT = 5  # rows that are named with their reason in text
# What tells one setting of a device from another.
_SETTING = ("precision", "mode", "channels_last", "is_compiled", "threads", "processes")


@dataclass(frozen=True)
class DeviceFit:
    """The result of `fit device`: the setting that a device file gets, and by row why it was not fitted to."""

    calibration: dict[str, Any]
    left_out: dict[str, str]


def fit_device(
    table: tables.ThroughputTable,
    device: Device,
    *,
    prior: str = "relatives",
    limit: int | None = None,
    seed: int = 0,
    out: Path | None = None,
    progress: Progress = lambda share, text: None,
) -> Answer[DeviceFit]:
    """Calibrate a device from a table of throughputs.

    Args:
        prior: of `prior_of`. limit: fit to so many rows, chosen by the seed; to all by default.
        out: a device file, to which the setting is added.
    Raises: InputError as `join`, `prior_of` and `fit_table`.
    """
    joined = join(table, shuffled(table.rows, seed), progress, limit)
    calibration = fit_table(table, joined.timed, *prior_of(table, device, prior))
    setting = calibration.to_table()
    if out is not None:
        add_setting(out, device, setting)
    p, num_left_out = calibration.provenance, len(joined.left_out)
    section = Section(
        title=f"{table.name}: {described(table, device)}",
        takeaway=f"Networks that are left out of the fit are predicted with an error of {percent(calibration.sigma)}, fitted "
        f"ones with {percent(p['error_in_sample'])}: fitted to {how_many(p['samples'], 'networks')}; {num_left_out} rows left out.",
        lines=[] if out is None else [f"saved to {out}: give it to --on"],
        table=Table(
            ("row left out", "reason"),
            list(joined.left_out.items())[:MAX_LEFT_OUT],
            notes=[f"and {num_left_out - MAX_LEFT_OUT} more"] if num_left_out > MAX_LEFT_OUT else (),
        ),
        data=[{"row": row, "reason": reason} for row, reason in joined.left_out.items()],
    )
    result = DeviceFit(setting, joined.left_out)
    return Answer(f"Calibration of {device.title}", sections=[section], notes=table.notes, result=result)


def described(table: tables.ThroughputTable, device: Device) -> str:
    """One line: what is known of a table, inferred or stated. Raises InputError where precision or phase are not."""
    precision = table.stated_precision
    return ", ".join(
        [
            how_many(len(table.rows), "rows"),
            device.title,
            table.mode,
            precision,
            "nhwc" if table.channels_last else "nchw",
            "compiled" if table.is_compiled else "eager",
            f"torch {table.torch or 'unknown'}",
        ]
    )


def add_setting(out: Path, device: Device, setting: dict[str, Any]) -> None:
    """Save a device with one more setting; one for the same precision and way of running is replaced."""
    known = catalog.device(out) if out.exists() else device.model_copy(update={"calibration": None})
    settings = (known.calibration or {}).get("settings", [])
    others = [s for s in settings if any(s.get(key) != setting.get(key) for key in _SETTING)]
    calibration = {**(known.calibration or {}), "settings": [*others, setting]}
    known.model_copy(update={"calibration": calibration}).save(out)

"""Answer of `fit device`: a calibration fitted to a table of throughputs, and its error on networks outside the fit."""

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

MAX_LEFT_OUT = 5  # left-out rows that the text names with their reason
# Fields that identify one setting of a device.
_SETTING = ("precision", "mode", "channels_last", "is_compiled", "threads", "processes")


@dataclass(frozen=True)
class DeviceFit:
    """The result of `fit device`: the setting for a device file, and the reason for each row outside the fit."""

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
        prior: as for `prior_of`. limit: number of rows to fit, chosen by the seed; all by default.
        out: a device file to which the setting is added.
    Raises: the InputErrors of `join`, `prior_of` and `fit_table`.
    """
    joined = join(table, shuffled(table.rows, seed), progress, limit)
    calibration = fit_table(table, joined.timed, *prior_of(table, device, prior))
    setting = calibration.to_table()
    if out is not None:
        add_setting(out, device, setting)
    p, num_left_out = calibration.provenance, len(joined.left_out)
    section = Section(
        title=f"{table.name}: {described(table, device)}",
        takeaway=f"Fitted to {how_many(p['samples'], 'networks')}; {num_left_out} rows left out. The error is {percent(calibration.sigma)} "
        f"for networks outside the fit and {percent(p['error_in_sample'])} for those in it.",
        lines=[] if out is None else [f"saved to {out}: use it with --on"],
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
    """Return one line with the known properties of a table, inferred or stated.

    Raises: InputError if precision or phase are unknown.
    """
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
    """Save a device with one more setting, replacing one for the same precision and way of running."""
    known = catalog.device(out) if out.exists() else device.model_copy(update={"calibration": None})
    settings = (known.calibration or {}).get("settings", [])
    others = [s for s in settings if any(s.get(key) != setting.get(key) for key in _SETTING)]
    calibration = {**(known.calibration or {}), "settings": [*others, setting]}
    known.model_copy(update={"calibration": calibration}).save(out)

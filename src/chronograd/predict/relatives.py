"""Which calibration serves a device: its own, or what its nearest calibrated relative taught.

A relative lends its shares of peak and bandwidth; peaks are the device's own. How far it is, in log units of time,
is a judgement from published tables: cards of one line predict each other within 10 to 14 %, other lines and compiled
code within 17 to 28 %, one CPU another within 50 %.
"""

from __future__ import annotations

import math
from dataclasses import replace

from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device
from chronograd.predict.calibration import Calibration, calibrations, from_datasheet

# Distances add up. A device's age and its balance of FLOPs and bytes tell of its line.
_OTHER_DEVICE = {"gpu": 0.2, "cpu": 1.1}
_PER_YEAR, _PER_LOG_BALANCE = 0.03, 0.1
_OTHER_LAYOUT, _OTHER_MODE, _OTHER_COMPILER, _OTHER_PRECISION = 0.1, 0.3, 0.5, 0.7
# Share of a distance that is spread of the log time, and how far a fit may move from its prior: as much as a full fit of
# one layout differs from that of the other, and more for what is further.
_SPREAD, NEAR_SD, _SD_PER_DISTANCE = 0.5, 0.3, 0.3
# How much of the log error that a network shows on one device it shows on a relative, and what spread is left.
# Published: 0.8 helps on every pair of eager tables; the spread is that of the same tables with it and without.
CARRIED_EXPONENT, CARRIED_SPREAD = 0.8, 0.7


def calibration_for(
    device: Device,
    precision: str = "fp32",
    threads: int | None = None,
    processes: int | None = None,
    *,
    mode: str | None = None,
    channels_last: bool = False,
    is_compiled: bool = False,
) -> Calibration:
    """The calibration of a device that fits best, else its nearest relative's, else what its data sheet allows to assume.

    Of its own, precision must match; then whether it was compiled, then the mode, the layout, the threads of a rank where
    they are given, and the nearest number of ranks at once.
    """
    fitting = [c for c in calibrations(device) if c.precision == precision]
    if not fitting:
        return assumed_for(device, precision, mode=mode, channels_last=channels_last, is_compiled=is_compiled)[0]

    def distance(c: Calibration) -> tuple[int, ...]:
        return (
            c.is_compiled != is_compiled,
            c.mode not in (None, mode),
            c.channels_last not in (None, channels_last),
            abs((c.threads or 1) - threads) if threads else 0,
            abs((c.processes or 1) - (processes or 1)),
        )

    return min(fitting, key=distance)


def assumed_for(
    device: Device,
    precision: str = "fp32",
    *,
    mode: str | None = None,
    channels_last: bool = False,
    is_compiled: bool = False,
    has_fused_attention: bool = True,
    without_table: str | None = None,
) -> tuple[Calibration, float | None]:
    """What to assume of a device before it is measured, and how far a fit may move from it in log units.

    Args:
        without_table: a table of which nothing may be known: calibrations fitted to it are passed over.

    The second is None where no relative is near enough to be better than round numbers.
    """
    sheet = sheet_for(device, precision, mode, channels_last, is_compiled, has_fused_attention)
    best, nearest = None, math.inf
    for relative in catalog.devices():
        if relative.kind != device.kind or relative.name == "local":
            continue
        for c in calibrations(relative):
            if without_table is not None and c.provenance.get("table") == without_table:
                continue
            far = _distance(device, relative) + _setting_distance(c, precision, mode, channels_last, is_compiled)
            if far < nearest:
                best, nearest, lender = c, far, relative
    if best is None or (sigma := math.hypot(best.sigma, _SPREAD * nearest)) >= sheet.sigma:
        return sheet, None
    # Classes that the lender never saw stay at round numbers.
    lent = {name: rate for name, rate in best.classes.items() if name in best.classes_seen}
    provenance = {
        "relative": f"{lender.name}, {best.precision}, {best.mode or 'both modes'}",
        "relative_error": best.sigma,
        "distance": round(nearest, 2),
        "classes_seen": sorted(lent),
    }
    found = replace(
        sheet,
        origin="relative",
        classes={**sheet.classes, **lent},
        cache_speedup=best.cache_speedup,
        host_launch_s=best.host_launch_s,
        sigma=sigma,
        provenance=provenance,
    )
    return found, NEAR_SD + _SD_PER_DISTANCE * nearest


def sheet_for(
    device: Device,
    precision: str,
    mode: str | None,
    channels_last: bool,
    is_compiled: bool,
    has_fused_attention: bool,
) -> Calibration:
    """Round numbers for a way of running: what `from_datasheet` assumes, with the software written down."""
    return replace(
        from_datasheet(device, precision),
        is_compiled=is_compiled,
        has_fused_attention=has_fused_attention,
        mode=mode,
        channels_last=channels_last if mode else None,
    )


def _distance(a: Device, b: Device) -> float:
    if a.name == b.name:
        return 0.0
    years = abs(a.year - b.year) if a.year and b.year else 5
    balance = abs(math.log(a.machine_balance() / b.machine_balance()))
    return _OTHER_DEVICE[a.kind] + _PER_YEAR * years + _PER_LOG_BALANCE * balance


def _setting_distance(
    c: Calibration, precision: str, mode: str | None, channels_last: bool, is_compiled: bool
) -> float:
    half = ("fp16", "bf16")
    is_alike = c.precision == precision or (c.precision in half and precision in half)
    return (
        _OTHER_PRECISION * (not is_alike)
        + _OTHER_COMPILER * (c.is_compiled != is_compiled)
        + _OTHER_MODE * (c.mode is not None and mode is not None and c.mode != mode)
        + _OTHER_LAYOUT * (c.channels_last is not None and c.channels_last != channels_last)
    )

"""The calibration for a device: its own and, for classes that it never measured, data from related devices.

A relative lends its shares of peak and bandwidth; the peaks are the device's own. Every class of operators has its own lenders:
all calibrations that measured it, weighted by their reliability, and round numbers in addition. Matrix work depends on the
precision; memory-bound work hardly does. If a board's power cannot feed its units, matrix work falls short of the peak on
lender and device, each by its own share.

The distance of a relative, in log units of time, is a judgement from published tables. Cards of one line predict each other
within 10 to 14 %, other lines and compiled code within 17 to 28 %, one CPU another within 50 %.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace

import numpy as np

from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device
from chronograd.hardware.hosts import host_of
from chronograd.predict.calibration import (
    CLASSES,
    COMPILED_TRAINING_ISSUES,
    HOST_SIGMA,
    Calibration,
    ClassRate,
    calibrations,
    from_datasheet,
    parts_of,
    uses_vector_peak,
)
from chronograd.trace import CONV_KINDS

# Distances add up. A device's year and its ratio of FLOPs to bytes indicate its line.
_OTHER_DEVICE = {"gpu": 0.2, "cpu": 1.1}
_PER_YEAR, _PER_LOG_BALANCE = 0.03, 0.1
# Units with another kind of instruction issue. No table covers this; assumed to be similar to another mode or compiler.
_OTHER_ISSUE = 0.4
_OTHER_LAYOUT, _OTHER_MODE, _OTHER_COMPILER = 0.1, 0.3, 0.5
# The first two are for matrix work: tensor cores of another type are closer than vector units. The last is for all other work.
_OTHER_TENSOR, _OTHER_UNITS, _OTHER_PRECISION_STREAM = 0.35, 0.7, 0.1
# _SPREAD is the share of a distance that becomes spread of the log time. The others limit how far a fit may move from its
# prior. NEAR_SD is the difference between full fits of two layouts; the limit grows with the distance.
_SPREAD, NEAR_SD, _SD_PER_DISTANCE = 0.5, 0.3, 0.3
# Share of the log error of one prediction that another one has too: the same network on the same device, run in the same way,
# at another batch or length. NeuSight's tables alone give 0.8, NVIDIA's 0.9. See `carrying` for other devices.
CARRIED_EXPONENT = 0.8
# Watts per TFLOP/s of 2016 that a device needs to hold its boost clock: fitted to transformers on GPUs that were left out. The
# need halves in this number of years: the slope of log2(board power / fp32 peak) over the GPUs of the catalogue, 2014 to 2025.
_NEEDED_W = 20.0
_HALVING_YEARS = 3.6

# Launch time of an operator of compiled code over that of an eager one, which goes through modules and dispatch. Set by hand
# from six networks on two cores of an EPYC (benchmarks/results/cpu-epyc/host.json).
_COMPILED_LAUNCH = 0.5
# Share of peak of the gradient of a max pooling. Compiled code searches the windows of each number, one number at a time. Alone
# it takes 7 to 8 ns per number of the input, eager code 1 to 3 (2 x 2 and 3 x 3 with stride 2, two threads). Set by hand from
# LeNet and SqueezeNet at batch 64 in the same way.
_COMPILED_MAX_POOLING = 0.0006

# _SAME_CHIP is the distance between two boards of one chip. Boards of one chip that run alike are the only
# lenders; layout does not count, nor does memory-bound work. A fit to one board has the same errors on networks of the other.
# If those errors are larger than a data sheet's, others lend too, except for convolutions. Their algorithm depends on the chip: an
# H200 in fp32 (62 % off) uses no Winograd, which all older cards use.
_SAME_CHIP, _ALIKE = 0.05, 0.25

Lender = tuple[Device, Calibration]


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
    """Return the calibration of a device that fits best, completed with data from its relatives, else from the data sheet.

    Its calibration must match precision, mode and compiler. Then layout, threads of a rank (if given) and the
    nearest number of simultaneous ranks decide. If none matches, its nearest relatives are used, with the
    device's measurements that do not depend on precision and compiler. On a CPU, compiled code always runs kernels for channels last
    (PyTorch, torch/_inductor/graph.py, `decide_layout_opt`), so a calibration of that layout replaces a compiled one.
    """
    lays_last = is_compiled and device.kind == "cpu"
    of_mode = [c for c in calibrations(device) if mode is None or c.mode in (None, mode)]
    fitting = [c for c in of_mode if c.precision == precision and c.is_compiled == is_compiled]
    setting = {"mode": mode, "channels_last": channels_last, "is_compiled": is_compiled}

    def distance(c: Calibration) -> tuple[int, ...]:
        return (
            c.channels_last not in (None, channels_last or lays_last),
            abs((c.threads or 1) - threads) if threads else 0,
            abs((c.processes or 1) - (processes or 1)),
        )

    if not fitting:
        measured = [c for c in of_mode if c.origin == "measured"]
        alike = [c for c in measured if lays_last and c.precision == precision and c.channels_last]
        if alike:
            return _as_compiled(min(alike, key=distance))
        assumed = assumed_for(device, precision, **setting)[0]  # type: ignore[arg-type]
        return _as_measured(assumed, min(measured, key=distance)) if measured else assumed
    own = min(fitting, key=distance)
    if own.host_sigma >= HOST_SIGMA:  # its rows did not show the host
        host = host_of(device)
        own = replace(own, host_launch_s=host.launch_s(mode), host_sigma=host.sigma_log)
    unseen = set(CLASSES) - own.classes_seen
    if not own.classes_seen or not unseen:
        return own
    assumed = assumed_for(device, precision, **setting)[0]  # type: ignore[arg-type]
    from_others = unseen & assumed.class_sigma.keys()  # no device measured the rest
    return replace(
        own,
        classes={**own.classes, **{name: assumed.classes[name] for name in from_others}},
        class_sigma={**{name: assumed.class_sigma[name] for name in from_others}, **own.class_sigma},
    )


def _as_compiled(eager: Calibration) -> Calibration:
    """Return a CPU's calibration for compiled code: the same kernels with faster launches, and as uncertain as for another
    mode.
    """
    classes = {
        name: rate if name.startswith("update.") else replace(rate, launch_s=_COMPILED_LAUNCH * rate.launch_s)
        for name, rate in eager.classes.items()
    }
    of_pooling = classes["max_pooling.backward"]
    classes["max_pooling.backward"] = replace(of_pooling, compute=min(of_pooling.compute, _COMPILED_MAX_POOLING))
    compiled = replace(eager, is_compiled=True, classes=classes, sigma=math.hypot(eager.sigma, _SPREAD * _OTHER_MODE))
    return replace(compiled, pass_s=compiled.pass_s + _compiled_pass_s(compiled))


def _as_measured(assumed: Calibration, own: Calibration) -> Calibration:
    """Return a calibration with input, optimizer and start of a pass from the device's calibration for other software."""
    begins_s = own.pass_s - _compiled_pass_s(own) or assumed.pass_s - _compiled_pass_s(assumed)
    found = replace(
        assumed,
        classes={**assumed.classes, "update.backward": own.classes["update.backward"]},
        update_launch_s=own.update_launch_s,
        input_launch_s=own.input_launch_s,
        threads=own.threads,
        processes=own.processes,
    )
    return replace(found, pass_s=begins_s + _compiled_pass_s(found))


def _compiled_pass_s(c: Calibration) -> float:
    """Return the time that a compiler adds to the start of a pass on a CPU, where nothing hides it."""
    return COMPILED_TRAINING_ISSUES * c.update_launch_s if c.pass_s and c.is_compiled and c.mode != "inference" else 0.0


def assumed_for(
    device: Device,
    precision: str = "fp32",
    *,
    mode: str | None = None,
    channels_last: bool = False,
    is_compiled: bool = False,
    has_fused_attention: bool = True,
    without_table: str | None = None,
    without_devices: Collection[str] = (),
) -> tuple[Calibration, float | None]:
    """Return the assumed calibration of a device without measurements, and how far a fit may move from it in log units.

    Args:
        without_table: a table to ignore: calibrations fitted to it are skipped.
        without_devices: devices to ignore.

    The second is None if no relative is close enough to be better than round numbers.
    """
    sheet = sheet_for(device, precision, mode, channels_last, is_compiled, has_fused_attention)
    own = [device] if device.calibration else []
    passed_over = {"local", *without_devices, *(d.name for d in own)}
    others = [d for d in catalog.devices() if d.kind == device.kind and d.name not in passed_over]
    lenders = [
        (relative, c)
        for relative in (*own, *others)
        if relative.name not in without_devices
        for c in calibrations(relative)
        if without_table is None or c.provenance.get("table") != without_table
    ]
    return lent(device, sheet, lenders)


def lent(device: Device, sheet: Calibration, lenders: Sequence[Lender]) -> tuple[Calibration, float | None]:
    """Return a calibration from those of relatives and the data sheet, and its distance, as `assumed_for`."""
    boards = [_distance(device, r) for r, _ in lenders]
    is_good = [c.sigma < sheet.sigma for _, c in lenders]
    is_mate = [r.name != device.name and _is_same_chip(device, r) for r, _ in lenders]
    near, stands_in = {}, {}
    for is_matrix in (False, True):
        settings = [_setting_distance(c, sheet, is_matrix) for _, c in lenders]
        near[is_matrix] = [board + setting for board, setting in zip(boards, settings, strict=True)]
        stands_in[is_matrix] = [mate and setting < _ALIKE for mate, setting in zip(is_mate, settings, strict=True)]
    columns = [c.columns for _, c in lenders]
    classes, spreads = dict(sheet.classes), {}
    for i, name in enumerate(CLASSES):
        family = name.partition(".")[0]
        is_matrix = not uses_vector_peak(family)
        seen = [k for k, (_, c) in enumerate(lenders) if name in c.classes_seen]
        sigma_of = {k: math.hypot(lenders[k][1].sigma, _SPREAD * near[is_matrix][k]) for k in seen}
        mates = [k for k in seen if stands_in[is_matrix][k] and (is_good[k] or family in CONV_KINDS)]
        knowing = mates or [k for k in seen if sigma_of[k] < sheet.sigma]
        if not knowing:
            continue
        # The fourth power: relatives have similar errors, and a group of distant ones must not outvote a near one.
        sigmas = np.array([sigma_of[k] for k in knowing])
        weights = np.append(sigmas, math.inf if mates else sheet.sigma) ** -4.0
        weights /= weights.sum()
        rates = asdict(sheet.classes[name])
        for field, own in rates.items():
            values = np.array([*(columns[k][field][i] for k in knowing), own])
            if field == "compute" and is_matrix:
                values[:-1] *= [fed(device) / fed(lenders[k][0]) for k in knowing]
                values[-1] *= fed(device)
            rates[field] = float(np.exp(weights @ np.log(values)) if values.min() > 0 else weights @ values)
        classes[name] = ClassRate(**rates)
        spreads[name] = min(float(sigmas.min()), sheet.sigma)
    if not spreads:
        return sheet, None
    classes |= {part: classes[whole] for part, whole in parts_of(spreads).items()}
    errors = [math.hypot(c.sigma, _SPREAD * distance) for (_, c), distance in zip(lenders, near[True], strict=True)]
    k = min(range(len(lenders)), key=lambda k: (not (stands_in[True][k] and is_good[k]), errors[k]))
    lender, best = lenders[k]
    provenance = {
        "relative": f"{lender.name}, {best.precision}, {best.mode or 'both modes'}",
        "relative_error": best.sigma,
        "distance": round(near[True][k], 2),
        "relatives": len({relative.name for relative, _ in lenders}),
        "classes_seen": sorted(spreads),
    }
    found = replace(
        sheet,
        origin="relative",
        classes=classes,
        cache_speedup=best.cache_speedup,
        host_launch_s=_host_s(device, sheet, lenders),
        sigma=errors[k],
        class_sigma=spreads,
        provenance=provenance,
    )
    return found, NEAR_SD + _SD_PER_DISTANCE * near[True][k]


def _host_s(device: Device, sheet: Calibration, lenders: Sequence[Lender]) -> float:
    """Return the seconds in which a host issues an operator, in its mode: as timed with devices of the same usual host, else as listed."""
    timed = [
        math.log(c.host_launch_s)
        for relative, c in lenders
        if device.name == relative.name or device.node.host == relative.node.host is not None
        if 0 < c.host_sigma < HOST_SIGMA and not c.is_compiled
        if sheet.mode is None or c.mode in (None, sheet.mode)
    ]
    return float(np.exp(np.mean(timed))) if timed else sheet.host_launch_s


def sheet_for(
    device: Device,
    precision: str,
    mode: str | None,
    channels_last: bool,
    is_compiled: bool,
    has_fused_attention: bool,
) -> Calibration:
    """Return round numbers for a way of running: the values of `from_datasheet`, with the software filled in."""
    sheet = replace(
        from_datasheet(device, precision, mode),
        is_compiled=is_compiled,
        has_fused_attention=has_fused_attention,
        channels_last=channels_last if mode else None,
    )
    return replace(sheet, pass_s=sheet.pass_s + _compiled_pass_s(sheet))


def fed(device: Device) -> float:
    """Return the share of its peak at which matrix work can run, limited by instruction issue and by the power of the board.

    The board's share is min(1, p / e), or 1 if power or year is unknown, and for desktop cards, which exceed their boost clock.
    Here e is _NEEDED_W, and p is the device's watts per TFLOP/s of vector peak, doubled for every 3.6 years after 2016.

    >>> round(fed(catalog.device("t4")), 2), fed(catalog.device("v100"))
    (0.64, 1.0)
    """
    if device.kind != "gpu" or device.is_desktop or device.tdp_w is None or device.year is None:
        return device.issued_share
    watts = device.tdp_w / (device.vector_flops_per_s / 1e12) * 2 ** ((device.year - 2016) / _HALVING_YEARS)
    return device.issued_share * float(min(1.0, watts / _NEEDED_W))


def _distance(a: Device, b: Device) -> float:
    if a.name == b.name:
        return 0.0
    if _is_same_chip(a, b):
        return _SAME_CHIP + _PER_LOG_BALANCE * abs(math.log(a.machine_balance() / b.machine_balance()))
    years = abs(a.year - b.year) if a.year and b.year else 5
    balance = abs(math.log(a.machine_balance() / b.machine_balance()))
    issue = _OTHER_ISSUE * (a.issued_share != b.issued_share)
    return _OTHER_DEVICE[a.kind] + issue + _PER_YEAR * years + _PER_LOG_BALANCE * balance


def _is_same_chip(a: Device, b: Device) -> bool:
    """Return whether both have one chip at full width: if a vendor halves the tensor cores of a card, work gets closer to its
    peak.
    """
    if a.name == b.name:
        return True
    if a.chip is None or a.chip != b.chip:
        return False
    width_a, width_b = (d.peak_flops_per_s.get("fp16", 0.0) / d.vector_flops_per_s for d in (a, b))
    return math.isclose(width_a, width_b, rel_tol=0.1)


def _setting_distance(c: Calibration, wanted: Calibration, is_matrix: bool) -> float:
    """Return the distance of a calibration from a way of running, for matrix work or for the rest."""
    return (
        _precision_distance(c, wanted, is_matrix)
        + _OTHER_COMPILER * (c.is_compiled != wanted.is_compiled)
        + _OTHER_MODE * (None not in (c.mode, wanted.mode) and c.mode != wanted.mode)
        + _OTHER_LAYOUT
        * (None not in (c.channels_last, wanted.channels_last) and c.channels_last != wanted.channels_last)
    )


def _precision_distance(a: Calibration, b: Calibration, is_matrix: bool) -> float:
    half, tensor = ("fp16", "bf16"), ("fp16", "bf16", "tf32")
    is_alike = a.precision == b.precision or (a.precision in half and b.precision in half)
    if not is_matrix:
        return 0.0 if is_alike else _OTHER_PRECISION_STREAM
    # AMD's matrix units multiply fp32 at twice the rate of vector units. They resemble neither vector units nor tensor cores.
    has_matrix_units = [c.peak_flops_per_s > 1.5 * c.vector_flops_per_s for c in (a, b)]
    if is_alike and (a.precision != "fp32" or len(set(has_matrix_units)) == 1):
        return 0.0
    return _OTHER_TENSOR if a.precision in tensor and b.precision in tensor else _OTHER_UNITS

"""Which calibration serves a device: its own, and for what that never saw what relatives teach.

A relative lends its shares of peak and bandwidth; peaks are the device's own. Every class of operators has its own lenders:
all calibrations that saw it, each weighed by how well it is likely to know, and round numbers beside them. Matrix work
depends on the precision, what streams through memory hardly does. Where a board's power does not feed its units, matrix work
falls short of the peak on the lender and on the device, each by its own.

How far a relative is, in log units of time, is a judgement from published tables: cards of one line predict each other within
10 to 14 %, other lines and compiled code within 17 to 28 %, one CPU another within 50 %.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace

import numpy as np

from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device
from chronograd.predict.calibration import (
    CLASSES,
    COMPILED_TRAINING_ISSUES,
    DATASHEET_SIGMA,
    HOST_SIGMA,
    HOST_YEAR,
    Calibration,
    ClassRate,
    calibrations,
    from_datasheet,
    uses_vector_peak,
)

# Distances add up. A device's age and its balance of FLOPs and bytes tell of its line.
_OTHER_DEVICE = {"gpu": 0.2, "cpu": 1.1}
_PER_YEAR, _PER_LOG_BALANCE = 0.03, 0.1
# Units that are fed in another way, of which no table has one: as far as another mode or compiler.
_OTHER_ISSUE = 0.4
_OTHER_LAYOUT, _OTHER_MODE, _OTHER_COMPILER = 0.1, 0.3, 0.5
# Of matrix work: tensor cores of another type are nearer than vector units. Of all else.
_OTHER_TENSOR, _OTHER_UNITS, _OTHER_PRECISION_STREAM = 0.35, 0.7, 0.1
# Share of a distance that is spread of the log time, and how far a fit may move from its prior: as much as a full fit of
# one layout differs from that of the other, and more for what is further.
_SPREAD, NEAR_SD, _SD_PER_DISTANCE = 0.5, 0.3, 0.3
# How much of the log error of a prediction is that of another: of the same network on the same device, run in the same way, at another
# batch or length, as NeuSight's and NVIDIA's tables have it (0.8 and 0.9, each alone); see `carrying` for other devices.
CARRIED_EXPONENT = 0.8
# Watts per TFLOP/s of 2016 that a device needs to hold its boost clock: fitted to transformers on GPUs that were left out.
# Years in which it halves: the slope of log2(board power / fp32 peak) over the GPUs of the catalogue, 2014 to 2025.
_NEEDED_W, _HALVING_YEARS = 20.0, 3.6

# What an operator of compiled code begins with, of that of an eager one, which goes through modules and dispatch: by hand, of six networks
# on two cores of an EPYC (benchmarks/results/cpu-epyc/host.json).
_COMPILED_LAUNCH = 0.5
# The gradient of a max pooling, for which compiled code looks through the windows of each number, one number at a time: alone it takes 7 to 8
# ns a number of the input where eager code takes 1 to 3 (2 x 2 and 3 x 3 with stride 2, two threads). A share of peak, by hand, of LeNet
# and SqueezeNet at batch 64, likewise.
_COMPILED_MAX_POOLING = 0.0006

# Of one chip: how far one board is from another. Run alike, which layout and what streams apart, it stands in for the other alone: what a fit
# to a board misses of its own networks it misses of the other's, too.
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
    """The calibration of a device that fits best, and for what it never saw its relatives', else the data sheet's.

    Of its own, precision, mode and whether it was compiled must match; then the layout, the threads of a rank where they are
    given, and the nearest number of ranks at once. Its others are its nearest relatives; what they measured that neither
    precision nor compiler changes is kept. Compiled code of a CPU runs the kernels that it has for channels last, whatever the job
    says (PyTorch, torch/_inductor/graph.py, `decide_layout_opt`), so that a calibration of that layout stands for it.
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
    unseen = set(CLASSES) - own.classes_seen
    if not own.classes_seen or not unseen:
        return own
    assumed = assumed_for(device, precision, **setting)[0]  # type: ignore[arg-type]
    return replace(
        own,
        classes={**own.classes, **{name: assumed.classes[name] for name in unseen}},
        class_sigma={**{name: assumed.class_sigma.get(name, DATASHEET_SIGMA) for name in unseen}, **own.class_sigma},
    )


def _as_compiled(eager: Calibration) -> Calibration:
    """A CPU's calibration as compiled code has it: the same kernels, begun sooner, and as uncertain as another mode is far."""
    classes = {
        name: rate if name.startswith("update.") else replace(rate, launch_s=_COMPILED_LAUNCH * rate.launch_s)
        for name, rate in eager.classes.items()
    }
    of_pooling = classes["max_pooling.backward"]
    classes["max_pooling.backward"] = replace(of_pooling, compute=min(of_pooling.compute, _COMPILED_MAX_POOLING))
    found = replace(eager, is_compiled=True, classes=classes, sigma=math.hypot(eager.sigma, _SPREAD * _OTHER_MODE))
    return replace(found, pass_s=found.pass_s + _compiled_pass_s(found))


def _as_measured(assumed: Calibration, own: Calibration) -> Calibration:
    """With what the device's own calibration for other software measured: its input, its optimizer, and how a pass begins."""
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
    """What a compiler adds to the beginning of a pass on a CPU, where nothing hides it."""
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
    """What to assume of a device before it is measured, and how far a fit may move from it in log units.

    Args:
        without_table: a table of which nothing may be known: calibrations fitted to it are passed over.
        without_devices: devices of which nothing may be known.

    The second is None where no relative is near enough to be better than round numbers.
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
    """What calibrations of relatives teach about a device, beside the data sheet's: as `assumed_for`."""
    boards = [_distance(device, r) for r, _ in lenders]
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
        mates = [k for k in seen if stands_in[is_matrix][k]]
        knowing = mates or [k for k in seen if sigma_of[k] < sheet.sigma]
        if not knowing:
            continue
        # The fourth power: relatives err alike, so that many far ones do not outvote a near one.
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
    k = min(
        range(len(lenders)),
        key=lambda k: (not stands_in[True][k], math.hypot(lenders[k][1].sigma, _SPREAD * near[True][k])),
    )
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
        sigma=math.hypot(best.sigma, _SPREAD * near[True][k]),
        class_sigma=spreads,
        provenance=provenance,
    )
    return found, NEAR_SD + _SD_PER_DISTANCE * near[True][k]


def _host_s(device: Device, sheet: Calibration, lenders: Sequence[Lender]) -> float:
    """Seconds in which a host issues an operator: of hosts with its chip, or else as old as it, in its mode, between those that are known.

    A data sheet's assumption is one of `HOST_YEAR`. Hosts and frameworks both became faster; before the first known year and after
    the last they are as then.
    """
    if not sheet.host_launch_s:
        return 0.0
    measured = [
        (relative, math.log(c.host_launch_s))
        for relative, c in lenders
        if relative.year and 0 < c.host_sigma < HOST_SIGMA and not c.is_compiled
        if sheet.mode is None or c.mode in (None, sheet.mode)
    ]
    of_chip = [log_s for relative, log_s in measured if _is_same_chip(device, relative)]
    if of_chip:
        return float(np.exp(np.mean(of_chip)))
    known = {HOST_YEAR: [math.log(sheet.host_launch_s)]}
    for relative, log_s in measured:
        known.setdefault(relative.year or HOST_YEAR, []).append(log_s)
    years = sorted(known)
    return float(np.exp(np.interp(device.year or HOST_YEAR, years, [np.mean(known[year]) for year in years])))


def sheet_for(
    device: Device,
    precision: str,
    mode: str | None,
    channels_last: bool,
    is_compiled: bool,
    has_fused_attention: bool,
) -> Calibration:
    """Round numbers for a way of running: what `from_datasheet` assumes, with the software written down."""
    sheet = replace(
        from_datasheet(device, precision),
        is_compiled=is_compiled,
        has_fused_attention=has_fused_attention,
        mode=mode,
        channels_last=channels_last if mode else None,
    )
    return replace(sheet, pass_s=sheet.pass_s + _compiled_pass_s(sheet))


def fed(device: Device) -> float:
    """Share of its peak that matrix work can be fed: what its schedulers issue, and what clock the board's power holds.

    The latter is min(1, p / e), or 1 where power or year is not known. p is its watts per TFLOP/s of vector peak, doubled for every 3.6 years after 2016.

    >>> round(fed(catalog.device("t4")), 2), fed(catalog.device("v100"))
    (0.64, 1.0)
    """
    if device.kind != "gpu" or device.tdp_w is None or device.year is None:
        return device.issued_share
    watts = device.tdp_w / (device.peak("fp32") / 1e12) * 2 ** ((device.year - 2016) / _HALVING_YEARS)
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
    """Whether one chip works at its full width in both: where a vendor halves the tensor cores of a card, work gets nearer to their peak."""
    if a.name == b.name:
        return True
    if a.chip is None or a.chip != b.chip:
        return False
    width_a, width_b = (d.peak_flops_per_s.get("fp16", 0.0) / d.peak("fp32") for d in (a, b))
    return math.isclose(width_a, width_b, rel_tol=0.1)


def _setting_distance(c: Calibration, wanted: Calibration, is_matrix: bool) -> float:
    """How far a calibration is from a way of running, for matrix work or for the rest."""
    return (
        _precision_distance(c.precision, wanted.precision, is_matrix)
        + _OTHER_COMPILER * (c.is_compiled != wanted.is_compiled)
        + _OTHER_MODE * (None not in (c.mode, wanted.mode) and c.mode != wanted.mode)
        + _OTHER_LAYOUT
        * (None not in (c.channels_last, wanted.channels_last) and c.channels_last != wanted.channels_last)
    )


def _precision_distance(a: str, b: str, is_matrix: bool) -> float:
    half, tensor = ("fp16", "bf16"), ("fp16", "bf16", "tf32")
    if a == b or (a in half and b in half):
        return 0.0
    if not is_matrix:
        return _OTHER_PRECISION_STREAM
    return _OTHER_TENSOR if a in tensor and b in tensor else _OTHER_UNITS

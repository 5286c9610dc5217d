"""Checks of devices: those that the driver lists and PyTorch can use, and their measured peaks against their data sheets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from chronograd.calibrate import processor
from chronograd.doctor.finding import Finding
from chronograd.errors import ChronogradError
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device
from chronograd.measure import environment
from chronograd.units import percent, si

# Minimum share of a data sheet's peak. Large products reach 0.6 to 0.95 of it, large copies 0.75 to 0.95; see docs/accuracy.md.
MIN_SHARE = 0.5
# Minimum share of the rate that this machine's calibration measured.
MIN_OF_CALIBRATED = 0.7
DRIVER_TIMEOUT_S = 4.0
_FIELDS = "name,driver_version,memory.total,memory.used,utilization.gpu,power.limit,power.default_limit,temperature.gpu"


def listed() -> tuple[list[dict[str, str]], str]:
    """Return all GPUs of nvidia-smi, even hidden ones, and the newest CUDA of the driver; empty without a driver."""
    text = environment.nvidia_smi(f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits", timeout_s=DRIVER_TIMEOUT_S)
    if text is None:
        return [], ""
    names = _FIELDS.split(",")
    rows = [dict(zip(names, map(str.strip, line.split(",")), strict=False)) for line in text.splitlines() if line]
    newest = re.search(r"CUDA[\w ]*Version\s*:\s*([\d.]+)", environment.nvidia_smi(timeout_s=DRIVER_TIMEOUT_S) or "")
    return rows, newest[1] if newest else ""


def usable(
    driver: list[dict[str, str]],
    driver_cuda: str,
    build: Mapping[str, Any],
    found: Mapping[str, Any],
    asked_for: str = "local",
) -> list[Finding]:
    """Report GPUs that the driver lists and PyTorch cannot use, with the reason. `asked_for` is the device of the job."""
    num_listed, num_seen = len(driver), len(found["gpu_names"])
    numbers = {"listed": num_listed, "usable": num_seen, "torch_cuda": build["cuda"], "driver_cuda": driver_cuda}
    if num_listed == 0 and num_seen == 0:
        return [Finding("devices", "GPUs", "no driver lists any; jobs run on the CPU", numbers=numbers)]
    if num_seen >= num_listed:
        return [Finding("devices", "GPUs", f"PyTorch can use {num_seen} of {num_listed}", numbers=numbers)]
    seen = f"the driver lists {num_listed} ({driver[0]['name']}), but PyTorch can use {num_seen}"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if build["cuda"] is None:
        why = f"{seen}: PyTorch {build['version']} is built for the CPU only"
        to_do = "pip install torch from an index with CUDA builds (see pytorch.org/get-started)"
    elif hidden is not None:
        why, to_do = (
            f"{seen}: CUDA_VISIBLE_DEVICES is {hidden!r}",
            "unset CUDA_VISIBLE_DEVICES, or add the GPUs you want to it",
        )
    elif driver_cuda and _major(driver_cuda) < _major(build["cuda"]):
        why = f"{seen}: its driver supports CUDA up to {driver_cuda}, but PyTorch is built for {build['cuda']}"
        to_do = f"install a driver for CUDA {build['cuda']}, or a PyTorch built for CUDA {_major(driver_cuda)}"
    else:
        why = f"{seen}: {found['error'] or 'it gives no reason'}"
        to_do = "check that this process may open /dev/nvidia*; in a container start it with --gpus all"
    return [Finding("devices", "GPUs", why, "fine" if asked_for == "cpu" else "warning", to_do, numbers)]


def _major(version: str) -> int:
    return int(version.split(".")[0])


def peaks(found: Mapping[str, Any], driver: list[dict[str, str]], threads: int) -> list[Finding]:
    """Return one finding for each measured device."""
    return [_gpu(row, driver) if row["kind"] == "gpu" else _cpu(row, threads) for row in found["rows"]]


def _cpu(row: Mapping[str, Any], threads: int) -> Finding:
    what = f"processor {environment.processor_name()}"
    if "error" in row:
        return _unmeasured(what, row)
    sheet = processor.sheet(threads, row["precision"])
    reached, rate = row["flops_per_s"], row["bytes_per_s"]
    numbers = _numbers(row, sheet.flops_per_s if sheet else None)
    copied = f"copies at {si(rate, 'B/s')} (no data sheet for its memory)"
    if row["asked"] != row["precision"]:
        seen = f"it has no arithmetic for {row['asked']}; in fp32 it reaches {si(reached, 'FLOP/s')}"
        return Finding("devices", what, seen, "warning", "set training.precision=fp32", numbers)
    if sheet is None:
        seen = f"{si(reached, 'FLOP/s')} in {row['precision']}; its peak is unknown; {copied}"
        return Finding("devices", what, seen, numbers=numbers)
    share = reached / sheet.flops_per_s
    seen = f"{si(reached, 'FLOP/s')} in {row['precision']}, {percent(share, 0)} of {si(sheet.flops_per_s, 'FLOP/s')}"
    seen += f" = {sheet.assumption}; {copied}"
    if share < MIN_SHARE:
        to_do = "check the load and the quota under `cores`; other causes are throttling, or a virtual machine that shares its cores"
        return Finding("devices", what, seen, "warning", to_do, numbers)
    before = _calibrated_flops_per_s(threads)
    if row["precision"] == "fp32" and before and reached < MIN_OF_CALIBRATED * before:
        seen += f"; {si(before, 'FLOP/s')} in its calibration"
        to_do = "at this speed, predictions for `local` are too short: end other work, or run `chronograd calibrate`"
        return Finding("devices", what, seen, "warning", to_do, numbers)
    return Finding("devices", what, seen, numbers=numbers)


def _calibrated_flops_per_s(threads: int) -> float | None:
    """Return the fp32 rate that `chronograd calibrate` measured with the same number of threads in one process, if any."""
    try:
        local = catalog.device("local")
    except ChronogradError:
        return None
    return local.peak_flops_per_s.get("fp32") if local.num_units == threads else None


def _gpu(row: Mapping[str, Any], driver: list[dict[str, str]]) -> Finding:
    what = f"GPU {row['index']} {row.get('name', '')}".strip()
    if "error" in row:
        return _unmeasured(what, row)
    sheet = catalog.of_driver_name(row["name"])
    reached = f"{si(row['flops_per_s'], 'FLOP/s')} in {row['precision']}"
    copied = f"copies at {si(row['bytes_per_s'], 'B/s')}"
    if sheet is None:
        to_do = "`chronograd calibrate` adds it to your devices"
        seen = f"{reached}, {copied}; the catalogue has no data sheet for it"
        return Finding("devices", what, seen, "fine", to_do, _numbers(row, None))
    peak, numbers = sheet.peak_flops_per_s.get(row["precision"]), _numbers(row, None)
    if peak is None:
        to_do = f"set training.precision to one of {', '.join(sheet.peak_flops_per_s)}"
        seen = f"{reached}, for which it has no arithmetic; {copied}"
        return Finding("devices", what, seen, "warning", to_do, numbers)
    numbers = _numbers(row, peak)
    shares = row["flops_per_s"] / peak, row["bytes_per_s"] / sheet.bandwidth_bytes_per_s
    seen = f"{reached}, {percent(shares[0], 0)} of its data sheet; {copied}, {percent(shares[1], 0)}"
    if min(shares) < MIN_SHARE:
        mine = [other for other in driver if other["name"] == row["name"]]
        return Finding("devices", what, seen, "warning", _likely(mine[:1], sheet), numbers)
    return Finding("devices", what, seen, numbers=numbers)


def _likely(driver: list[dict[str, str]], sheet: Device) -> str:
    """Return likely causes of a low peak according to the driver's figures, each with its remedy."""
    causes = []
    for row in driver:
        limit = _number(row.get("power.limit"))
        usual = _number(row.get("power.default_limit")) or sheet.tdp_w
        if limit and usual and limit < 0.95 * usual:
            causes.append(f"its power limit is {limit:.0f} of {usual:.0f} W (nvidia-smi -pl {usual:.0f})")
        if (_number(row.get("memory.used")) or 0) > 2_000:
            causes.append("another process has memory on it (nvidia-smi lists it)")
        if (_number(row.get("temperature.gpu")) or 0) > 83:
            causes.append(f"it is at {row['temperature.gpu']} °C and slows down: check its cooling")
    return "; ".join(causes) or "see `nvidia-smi -q -d PERFORMANCE,CLOCK` for throttling and other processes"


def _unmeasured(what: str, row: Mapping[str, Any]) -> Finding:
    to_do = (
        "see `nvidia-smi`: another process may hold its memory" if row["kind"] == "gpu" else "check that RAM is free"
    )
    return Finding("devices", what, f"cannot be used: {row['error']}", "obstacle", to_do)


def _numbers(row: Mapping[str, Any], peak: float | None) -> dict[str, Any]:
    keys = ("precision", "flops_per_s", "bytes_per_s", "memory_bytes", "free_bytes")
    numbers = {key: row[key] for key in keys if key in row}
    share = None if peak is None else row["flops_per_s"] / peak
    return {**numbers, "peak_flops_per_s": peak, "share_of_peak": share}


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None

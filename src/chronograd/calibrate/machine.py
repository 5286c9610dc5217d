"""`calibrate`: measure this machine so that `local` is a device like any other.

It runs blocks of every operator class in processes like those of a job: the same number at once, with the same number of
threads. The model that predicts is fitted to their times (`fit.device`), so a prediction for `local` uses the same formula as
any other. It takes about a minute for each way of running.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chronograd.calibrate import links, pace, worker
from chronograd.calibrate.blocks import TIMED_ALONE, TINY, TimedBlock, blocks
from chronograd.calibrate.workers import Progress, part_of, run_workers
from chronograd.count.tracing import trace
from chronograd.fit.device import Sample, fit_calibration
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device, Link, Node, Source
from chronograd.job import Training
from chronograd.measure import environment
from chronograd.predict.calibration import CLASSES, Calibration, calibrations, from_datasheet
from chronograd.predict.compute import UPDATE_PASSES, Work, update_launches
from chronograd.trace import PHASES, Trace
from chronograd.words import how_many

WORKER = "chronograd.calibrate.worker"
SECONDS_PER_BLOCK = 0.15
_LAYOUTS = ("nchw", "nhwc")


@dataclass(frozen=True)
class Setup:
    """One way of running: number of simultaneous ranks, threads of each, and memory layout of images."""

    processes: int
    threads: int
    channels_last: bool = False


def default_setups(cores: int | None = None, channels_last: bool = False) -> list[Setup]:
    """Return the usual ways to run jobs on this machine: one rank with all cores, two with half of them each.

    >>> [(setup.processes, setup.threads) for setup in default_setups(8)]
    [(1, 8), (2, 4)]
    """
    cores = cores or environment.cores()
    half = max(1, cores // 2)
    return [Setup(1, cores, channels_last), Setup(2, half, channels_last)]


def lays_channels_last(training: Training) -> bool:
    """Return whether images are stored channels last on this machine; a compiler for CPUs stores them so."""
    return training.channels_last or (bool(training.compile) and not torch.cuda.is_available())


def calibrate(
    setups: Sequence[Setup] | None = None,
    *,
    precisions: Sequence[str] = ("fp32",),
    seconds_per_block: float = SECONDS_PER_BLOCK,
    progress: Progress = lambda share, text: None,
) -> Device:
    """Measure this machine's GPU, or its CPU if it has none, and return it as the device `local`.

    Args:
        setups: ways of running; on a GPU one for each layout.
        precisions: for a GPU also tf32, bf16, fp16.
        progress: called with the completed share, 0 to 1, and the current activity.

    Raises: RunError with the output of a worker that fails.
    """
    place = "cuda" if torch.cuda.is_available() else "cpu"
    setups = list(setups or default_setups())
    if place == "cuda":
        setups = list(dict.fromkeys(replace(setup, processes=1, threads=environment.cores()) for setup in setups))
        # without a data sheet, its vector peak must be measured
        if catalog.of_driver_name(torch.cuda.get_device_name()) is None:
            precisions = list(dict.fromkeys(["fp32", *precisions]))
    layouts = {setup.channels_last for setup in setups}
    traces = {layout: {b.name: _traces_of(b, layout) for b in blocks()} for layout in layouts}
    runs = [(setup, precision) for precision in precisions for setup in setups]
    measured = []
    rounds = worker.rounds_in(seconds_per_block)
    watch = pace.Watch()
    probes = [pace.probe_s()] if place == "cpu" else []
    for i, (setup, precision) in enumerate(runs):
        what = f"{setup.processes} × {how_many(setup.threads, 'threads')}" if place == "cpu" else precision
        what += ", channels last" * setup.channels_last
        report = part_of(progress, i, len(runs), f"{what}: ")
        arguments = [place, str(setup.threads), precision, str(seconds_per_block), _LAYOUTS[setup.channels_last]]
        found = _mean(run_workers(WORKER, [arguments] * setup.processes, report, rounds * len(blocks())))
        if setup.processes > 1:
            found["alone_share"] = _alone_share(found["blocks"], arguments)
        measured.append(found)
        if place == "cpu":
            probes.append(pace.probe_s())
    device = _describe(place, [m["peaks"] for m in measured], [p for _, p in runs])
    settings = [
        _fit(device, place, setup, precision, result, traces[setup.channels_last], mode)
        for (setup, precision), result in zip(runs, measured, strict=True)
        for mode in ("training", "inference")
    ]
    calibration: dict[str, Any] = {"settings": [c.to_table() for c in settings]}
    if place == "cpu" and max(setup.processes for setup in setups) > 1:
        sigma_log, after_wait = links.measure_ranks(seconds=min(8.0, 50 * seconds_per_block))
        calibration |= {"step_sigma_log": sigma_log, "after_wait": after_wait}
    if probes:
        calibration |= {"pace_s": statistics.median(probes), "pace_spread": pace.spread(probes)}
        calibration["others_cores"] = watch.others_cores()
    progress(1.0, "done")
    provenance = {"how": "measured by chronograd calibrate", **_plain(environment.environment())}
    return device.model_copy(update={"calibration": calibration, "provenance": provenance})


def _traces_of(block: TimedBlock, channels_last: bool) -> dict[str, Trace]:
    """Return traces by mode. In training, a block also computes the gradient of its input, as inside a larger network."""
    of_mode: dict[str, dict[str, Any]] = {
        "training": {"loss": "sum", "inputs_require_grad": True},
        "inference": {"mode": "inference"},
    }
    is_laid_out = channels_last and len(block.input_shape) == 3  # PyTorch's format has four dimensions
    return {
        mode: trace(block.make(), [block.input_shape], channels_last=is_laid_out, **more)
        for mode, more in of_mode.items()
    }


def calibrate_once(
    progress: Progress = lambda share, text: None, setups: Sequence[Setup] | None = None
) -> tuple[Device, str]:
    """Return the device `local`, from its saved calibration or measured now.

    It is measured now if it never was on this processor with these versions, or if the machine was busy then.

    Args:
        setups: ways of running that it must contain; by default those of `default_setups`. Others that it has remain.

    Returns: the device, and a sentence if it was calibrated again or the machine is busy now; else empty.
    """
    path, why = catalog.user_device_path("local"), ""
    wanted = dict.fromkeys(setups or default_setups())
    if path.exists():
        device = catalog.device("local")
        if device.provenance.get("key") == machine_key():
            existing = setups_of(device)
            why = taken_while_busy(device)
            if not why and (device.kind == "gpu" or wanted.keys() <= existing.keys()):
                return device, ""
            wanted = existing | wanted
    device = calibrate_all(progress=progress, setups=list(wanted))
    if is_busy(device):
        again = (
            f"the machine was busy during the calibration ({_spread_words(device)}), so predictions are less certain"
        )
        return device, f"{why}; {again}" if why else again
    return device, why


def setups_of(device: Device) -> dict[Setup, None]:
    """Return the ways of running in which a device was measured, in that order."""
    return dict.fromkeys(Setup(c.processes or 1, c.threads or 1, bool(c.channels_last)) for c in calibrations(device))


def calibrate_all(
    precisions: Sequence[str] = ("fp32",),
    progress: Progress = lambda share, text: None,
    setups: Sequence[Setup] | None = None,
) -> Device:
    """Measure this machine, the link between its processes and the cost of their exchange, and save all of it."""
    device = calibrate(setups, precisions=precisions, progress=part_of(progress, 0, 1 / 0.9))
    if device.kind == "cpu":
        link = calibrate_link(progress=part_of(progress, 9, 10))
        tensor_s, meeting_s = links.measure_exchange(link)
        device = device.model_copy(
            update={
                "calibration": {
                    **(device.calibration or {}),
                    "exchange_tensor_s": tensor_s,
                    "exchange_meeting_s": meeting_s,
                }
            }
        )
    return save_local(device)


def calibrate_link(progress: Progress = lambda share, text: None) -> Link:
    """Measure the link between two processes of this machine, in seconds, and save it; see chronograd.calibrate.links."""
    link = links.link_of(links.fit(links.measure_links((2,), ("all_reduce",), progress=progress)), (2,))
    links.save(link)
    return link


def is_busy(device: Device) -> bool:
    """Return whether other programs used this machine during its calibration: its speed changed, or others used its cores."""
    return (
        _others_cores(device) > pace.BUSY_CORES or float((device.calibration or {}).get("pace_spread", 1.0)) > pace.BUSY
    )


def _others_cores(device: Device) -> float:
    return float((device.calibration or {}).get("others_cores", 0.0))


def taken_while_busy(device: Device) -> str:
    """Return why a saved calibration is no longer valid; else empty.

    It is invalid if the machine is faster now, or if other programs used its cores then and none do now.
    """
    saved_s = float((device.calibration or {}).get("pace_s", 0.0))
    if not saved_s:
        return ""
    watch = pace.Watch()
    ratio = saved_s / pace.probe_s()
    if ratio > pace.BUSY:
        return f"calibrated again: the machine runs {ratio:.2f} times as fast as during the saved calibration"
    if _others_cores(device) > pace.BUSY_CORES >= watch.others_cores():
        return f"calibrated again: {_others_words(device)} during the saved calibration, and none now"
    return ""


def _others_words(device: Device) -> str:
    return f"other programs used {_others_cores(device):.1f} cores"


def _spread_words(device: Device) -> str:
    spread = (device.calibration or {})["pace_spread"]
    return f"its speed changed by a factor of {spread:.2f}" if spread > pace.BUSY else _others_words(device)


def save_local(device: Device) -> Device:
    """Save a calibration as the device `local` of this user."""
    device = device.model_copy(update={"provenance": {**device.provenance, "key": machine_key()}})
    device.save(catalog.user_device_path("local"))
    return device


def machine_key() -> str:
    """Return a key that changes when a calibration becomes invalid: processor, cores, GPU, torch, and the file's format."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{environment.processor_name()}, {environment.cores()} cores, {gpu}, torch {torch.__version__}, form 15"


# -- measurements of workers -------------------------------------------------------------------------


def _mean(results: Sequence[Any]) -> Any:
    """Combine the results of simultaneous workers: take the mean of each float; other values are the same in all."""
    first = results[0]
    if isinstance(first, dict):
        return {name: _mean([result[name] for result in results]) for name in first}
    if isinstance(first, list):
        return [_mean(rows) for rows in zip(*results, strict=True)]
    return float(np.mean(results)) if isinstance(first, float) else first


def _alone_share(beside: Sequence[dict[str, Any]], arguments: list[str]) -> float:
    """Return the time of some blocks in a single worker over that next to others, at most 1. Each is at its own run's pace."""
    (result,) = run_workers(WORKER, [[*arguments, *TIMED_ALONE]])
    times = {row["block"]: row for row in beside}
    passes = worker.TIMES[1:]  # not inference
    logs = [math.log(row[name] / times[row["block"]][name]) for row in result["blocks"] for name in passes]
    return min(1.0, math.exp(statistics.median(logs)))


# -- from times to a device -----------------------------------------------------------------------


def _fit(
    device: Device,
    place: str,
    setup: Setup,
    precision: str,
    result: dict[str, Any],
    traces: dict[str, dict[str, Trace]],
    mode: str,
) -> Calibration:
    peaks = result["peaks"]
    prior = replace(
        from_datasheet(device, precision, mode),
        peak_flops_per_s=peaks["flops_per_s"],
        vector_flops_per_s=device.vector_flops_per_s if place == "cuda" else peaks["flops_per_s"],
        bandwidth_bytes_per_s=peaks["bytes_per_s"],
        threads=setup.threads,
        processes=setup.processes,
        channels_last=setup.channels_last,
    )
    samples = []
    for row in result["blocks"]:
        found = traces[row["block"]][mode]
        work = Work.of(found, row["batch"], precision)
        if mode == "inference":
            samples.append(Sample(work, row["inference_s"], row["block"]))
            continue
        for code, phase in enumerate(PHASES[:2]):
            part = work.chosen(found.columns["phase"] == code)
            samples.append(Sample(part, row[f"{phase}_s"], row["block"]))
    fitted = fit_calibration(samples, prior, origin="measured")
    launch_s, share, warm_share = _fit_update(result["updates"], fitted)
    classes = {**fitted.classes}
    name = CLASSES[CLASSES.index("update.backward")]
    classes[name] = replace(classes[name], bandwidth=share)
    provenance = {
        **fitted.provenance,
        "date": datetime.now(UTC).date().isoformat(),
        "torch": str(torch.__version__),
        "processor": torch.cuda.get_device_name() if place == "cuda" else environment.processor_name(),
    }
    if place == "cpu":
        provenance |= {"pace_s": result["pace_s"], "pace_sigma_log": round(result["pace_sigma_log"], 4)}
        provenance |= {"alone_share": result["alone_share"]} if "alone_share" in result else {}
        fitted = at_other_paces(fitted, result["pace_sigma_log"])
        fitted = replace(fitted, warm_update=warm_share, warm_pass_s=_saved_s(result, mode))
    return replace(
        fitted,
        classes=classes,
        update_launch_s=launch_s,
        input_launch_s=result["gather_s"][mode],
        provenance=provenance,
    )


def at_other_paces(calibration: Calibration, sigma: float) -> Calibration:
    """Return a calibration whose uncertainty includes changes of the machine's speed (σ of its log)."""
    of_class = {name: math.hypot(own, sigma) for name, own in calibration.class_sigma.items()}
    return replace(calibration, sigma=math.hypot(calibration.sigma, sigma), class_sigma=of_class)


def _saved_s(result: dict[str, Any], mode: str) -> float:
    """Return the seconds that a pass of the tiny block saves if the caches hold its code and data."""
    cold, warm = next(row for row in result["blocks"] if row["block"] == TINY), result["warm_tiny"]
    names = ("inference_s",) if mode == "inference" else ("forward_s", "backward_s")
    return max(float(np.mean([cold[name] - warm[name] for name in names])), 0.0)


def _fit_update(rows: list[dict[str, Any]], calibration: Calibration) -> tuple[float, float, float]:
    """Return seconds per elementary operator of an optimizer, and the share of bandwidth from memory and from the cache."""
    passes, operators = UPDATE_PASSES["sgd-momentum"]
    many, large, cached = rows
    launches = [operators * update_launches(r["count"], calibration) for r in (many, large)]
    sizes = [passes * 4 * r["count"] * r["size"] for r in (many, large)]
    matrix = np.array([[launches[0], sizes[0]], [launches[1], sizes[1]]], dtype=float)
    per_launch, per_byte = np.linalg.solve(matrix, [many["seconds"], large["seconds"]])
    bandwidth = 1 / max(float(per_byte), 1e-15)
    launch_s, share = max(float(per_launch), 1e-8), bandwidth / calibration.bandwidth_bytes_per_s
    moving_s = cached["seconds"] - operators * update_launches(cached["count"], calibration) * launch_s
    warm_bytes_per_s = passes * 4 * cached["count"] * cached["size"] / max(moving_s, 0.1 * cached["seconds"])
    return launch_s, share, max(warm_bytes_per_s / calibration.bandwidth_bytes_per_s, share)


def _describe(place: str, peaks: list[dict[str, float]], precisions: list[str]) -> Device:
    """Return the device before calibration: the machine's own description, and the best measured rates."""
    reached: dict[Any, float] = {}
    for peak, precision in zip(peaks, precisions, strict=True):
        reached[precision] = max(reached.get(precision, 0.0), peak["flops_per_s"])
    bandwidth = max(p["bytes_per_s"] for p in peaks)
    if place == "cuda":
        return gpu_of(torch.cuda.get_device_properties(0), torch.cuda.device_count(), reached, bandwidth)
    return Device(
        name="local",
        title=environment.processor_name() or "this machine",
        note="Peak and bandwidth were measured here; they are not from a data sheet.",
        kind="cpu",
        memory_bytes=environment.ram_bytes() or 2**30,
        bandwidth_bytes_per_s=bandwidth,
        l2_bytes=_cache_bytes(),
        num_units=environment.cores(),
        peak_flops_per_s=reached,
        node=Node(devices_per_node=environment.cores(), intra_link="loopback", inter_link="ethernet-10g"),
        source=(_measured("peak_flops_per_s", "bandwidth_bytes_per_s", "memory_bytes", "num_units"),),
    )


def gpu_of(properties: Any, count: int, reached: dict[Any, float], bandwidth_bytes_per_s: float) -> Device:
    """Return a GPU before calibration: its data sheet if it is in the catalogue, else the driver's figures and the measured
    rates.

    Args:
        properties: from `torch.cuda.get_device_properties`. count: GPUs of this machine.
        reached: measured FLOP/s by precision.
    """
    own = {"name": "local", "title": properties.name, "aliases": (), "reported_bytes": properties.total_memory,
           "num_units": properties.multi_processor_count}  # fmt: skip
    known = catalog.of_driver_name(properties.name)
    if known is not None:
        source = (_measured("reported_bytes", "num_units"),)
        return known.model_copy(update={**own, "priced_as": catalog.PricedAs(device=known.name), "source": source})
    today = datetime.now(UTC).date().isoformat()
    return Device(
        **own,
        kind="gpu",
        note="This GPU is not in the catalogue: peak and bandwidth are measured rates, and its links are assumed.",
        memory_bytes=properties.total_memory,
        l2_bytes=properties.L2_cache_size,
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        peak_flops_per_s=reached,
        node=Node(devices_per_node=count, intra_link="pcie3", inter_link="ethernet-10g"),
        source=(
            _measured(
                "peak_flops_per_s", "bandwidth_bytes_per_s", "memory_bytes", "reported_bytes", "num_units", "l2_bytes"
            ),
            Source(of=("node",), source="the slowest common links", date=today, tag="assumed"),
        ),
    )


def _cache_bytes() -> int:
    """Return the largest cache of one core, as Linux reports it; 32 MiB if it does not."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        factor = {"K": 2**10, "M": 2**20}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KM")) * factor)
    return max(sizes, default=32 * 2**20)


def _measured(*names: str) -> Source:
    return Source(
        of=names, source="measured by chronograd calibrate", date=datetime.now(UTC).date().isoformat(), tag="measured"
    )


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data without None, which TOML cannot represent."""
    return {k: _plain(v) if isinstance(v, dict) else v for k, v in data.items() if v is not None}

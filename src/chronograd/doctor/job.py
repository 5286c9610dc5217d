"""Checks of a job on this machine: whether its backend and device can run here, it fits, and its data and weights exist."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chronograd import job as jobs
from chronograd.backends import registry
from chronograd.data import datasets, layouts, published
from chronograd.doctor.finding import SHARE, Finding, judged
from chronograd.errors import ChronogradError, InputError
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device
from chronograd.job import Job
from chronograd.models import pretrained
from chronograd.models.weights import default_weights
from chronograd.predict.memory import Memory, footprint_of_job, needed_bytes
from chronograd.predict.prediction import rank_work
from chronograd.predict.setting import setting_of
from chronograd.train.rank_context import check_machine
from chronograd.units import percent, seconds, si
from chronograd.words import how_many

# An exchange that costs a smaller share of a step causes no warning.
MIN_SHARE = 0.1


# -- run in a process that has PyTorch -----------------------------------------------------------------------


def needs(
    data: dict[str, Any], gpu_names: Sequence[str], measured: Sequence[Mapping[str, Any]] = (), ranks: int = 1
) -> dict[str, Any]:
    """Return the reasons why a job cannot run here (`problems`), and its bytes and times; for JSON.

    Bytes are those of one rank: `memory_bytes` as predicted, `gradient_bytes` sent in each step, `checkpoint_bytes`. Predicted
    times: `step_s` is a step without an exchange, and `hides_s` the part of it that can hide one. `step_from` names the basis
    of the prediction, and `between_s` is the time between checkpoints.

    Args:
        gpu_names: as the driver reports them. measured: rows of `probe.devices`. ranks: of the job, on this machine.
    """
    from chronograd.launch.jobs import check_anywhere

    job = jobs.scaled(jobs.from_dict(data))
    checks: dict[str, Callable[[], object]] = {
        f"backend {job.backend}": lambda: registry.find(job.backend).plan(job, Path(), []),
        f"device {job.cluster.device}": lambda: check_machine(job, job.cluster.count, gpu_names),
        f"network {job.network.name}": lambda: check_anywhere(job),
    }
    problems, found = [], {}
    for what, check in checks.items():
        try:
            check()
        except ChronogradError as error:
            problems.append({"what": what, "message": error.message, "hint": error.hint})
    if not problems:
        try:
            found = _predicted(job, gpu_names, measured, ranks)
        except ChronogradError as error:
            found = {"uncounted": error.message}
    return {"problems": problems, **found}


def _predicted(job: Job, gpu_names: Sequence[str], measured: Sequence[Mapping[str, Any]], ranks: int) -> dict[str, Any]:
    from chronograd.data.trace_job import trace_job

    trace, on_gpu = trace_job(job), bool(gpu_names) and job.cluster.device != "cpu"
    peak: Memory = footprint_of_job(trace, job).at(-(-job.images_per_rank // job.training.accumulation))
    kept = peak.parameters + peak.buffers
    # As in `plan`: half of the networks need less than the first number, nine of ten less than the second.
    half, most = needed_bytes(catalog.device("h100" if on_gpu else "cpu"), job.mode, peak.total)
    found: dict[str, Any] = {
        "memory_bytes": int(half),
        "memory_most_bytes": int(most),
        "gradient_bytes": peak.parameters,
        "checkpoint_bytes": kept + peak.optimizer_state,
    }
    with contextlib.suppress(ChronogradError):  # without a prediction, skip the checks of time
        device, basis = _device(job, gpu_names, measured, ranks)
        setting = setting_of(job, device=device)
        alone = rank_work(trace, job.images_per_rank, setting)[1]
        last_s = alone["backward_s"] / job.training.accumulation
        found |= {
            "step_s": float(sum(alone.values())),
            "hides_s": float(setting.calibration.overlap * last_s),
            "step_from": basis,
            "between_s": job.training.checkpoint_every
            * float(sum(alone.values()))
            * jobs.steps_per_epoch(datasets.card(job.data).train_size, job.training.batch),
            "is_on_gpu": device.kind == "gpu",
        }
    return found


def _device(
    job: Job, gpu_names: Sequence[str], measured: Sequence[Mapping[str, Any]], ranks: int
) -> tuple[Device, str]:
    """Return the device for predicting a step, and its name in words.

    It is this machine if it was calibrated, a GPU by its name, else a processor with the rank's share of the measured peaks.
    """
    name = job.cluster.device
    if name not in ("local", "cpu"):
        return catalog.device(name), name
    with contextlib.suppress(InputError):
        local = catalog.device("local")
        if name == "local" or local.kind == "cpu":
            return local, "this machine's calibration"
    known = catalog.of_driver_name(gpu_names[0]) if gpu_names and name == "local" else None
    if known is not None:
        return known, known.name
    own, peaks = catalog.device("cpu"), next((row for row in measured if "flops_per_s" in row), None)
    if peaks is None:
        return own, "a usual processor"
    changes = {
        "peak_flops_per_s": dict.fromkeys(own.peak_flops_per_s, peaks["flops_per_s"] / ranks),
        "bandwidth_bytes_per_s": peaks["bytes_per_s"] / ranks,
    }
    return own.model_copy(update=changes), "this processor's peaks"


# -- findings ------------------------------------------------------------------------------------------------


def findings(job: Job, found: Mapping[str, Any], devices: Mapping[str, Any]) -> list[Finding]:
    """Return the findings from the results of `needs` and the devices of `measure.probe.devices`."""
    rows = [Finding("job", p["what"], p["message"], "obstacle", p["hint"]) for p in found["problems"]]
    if not rows:
        count = job.cluster.count
        seen = f"backend {job.backend}, {count} {'rank' if count == 1 else 'ranks'}, network {job.network.name}"
        rows.append(Finding("job", "job", f"{seen}: all can run here"))
    if "uncounted" in found:
        rows.append(Finding("job", "memory", f"not predicted: {found['uncounted']}", "warning"))
    if "memory_bytes" in found and job.cluster.device != "cpu":
        rows += _fits(found["memory_bytes"], found["memory_most_bytes"], devices["rows"])
    return rows


def _fits(need: int, most: int, rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Compare the memory that one rank per GPU needs, probably and at most, with the memory that is free on the fullest."""
    free = [row["free_bytes"] for row in rows if "free_bytes" in row]
    if not free:
        return []
    seen = f"{si(need, 'B')} needed on each GPU, one network in ten needs {si(most, 'B')} or more; {si(min(free), 'B')} free"
    numbers = {"need_bytes": need, "most_bytes": most, "free_bytes": min(free)}
    to_do = "make training.batch smaller, or raise training.accumulation; end other processes on the GPU"
    return [
        judged(
            "job",
            "GPU memory",
            seen,
            numbers,
            (need > min(free), "obstacle", to_do),
            (most > min(free), "warning", to_do),
        )
    ]


def data_and_weights(job: Job) -> list[Finding]:
    """Report whether the data set and the initial weights are on disk. Reads no pixel."""
    found = [_data(job)]
    if job.network.weights is not None:
        found.append(_weights(job.network.weights, job.network.name))
    return found


def _data(job: Job) -> Finding:
    name = job.data.name
    what = f"data {name}"
    try:
        card = datasets.card(job.data)
    except ChronogradError as error:
        return Finding("job", what, error.message, "obstacle", error.hint)
    num_bytes = (card.train_size + card.test_size) * math.prod(card.shape)
    numbers = {"train": card.train_size, "test": card.test_size, "bytes": num_bytes}
    size = f"{how_many(card.train_size, 'training images')}, {si(num_bytes, 'B')} in memory"
    if layouts.is_layout(name) or name == "synthetic" or published.SETS[name].is_on_disk():
        return Finding("job", what, f"there: {size}", numbers=numbers)
    to_do = f"the run downloads it if the machine has internet access; to download it now: chronograd data {name}; or name its folder in {published.FOLDER_VARIABLE}"
    return Finding("job", what, f"not in {published.data_folder()}: {size}", "warning", to_do, numbers)


def _weights(source: str, reference: str) -> Finding:
    what = f"weights {source}"
    try:
        listed = default_weights(reference) if source in pretrained.LIBRARIES else pretrained.known(source)
    except ChronogradError as error:
        return Finding("job", what, error.message, "obstacle", error.hint)
    if source in pretrained.LIBRARIES and listed is not None and listed.path is None:
        to_do = (
            "the run downloads them if the machine has internet access; else name the path of a file in network.weights"
        )
        return Finding("job", what, f"{listed.file} is not on this machine", "warning", to_do)
    path = Path(listed.path) if listed is not None and listed.path else pretrained.known_or_path(source)
    if path.is_dir() and not any((path / "checkpoints").glob("step-*")):
        return Finding("job", what, "a folder without checkpoints", "obstacle", "name the directory of a finished run")
    if not path.exists():
        to_do = "name a run directory, a file, torchvision or timm" if listed is None else listed.how_to_get
        return Finding("job", what, "not there", "obstacle", to_do)
    return Finding("job", what, "there")


def exchange(job: Job, need: Mapping[str, Any], rate: float, where: str) -> list[Finding]:
    """Compare the time of an all-reduce of the job's gradients on a link with the predicted step without it.

    Args:
        need: result of `needs`. rate: bytes/s of bus bandwidth. where: the link, in words.
    """
    if "gradient_bytes" not in need or job.cluster.count < 2:
        return []
    count, size = job.cluster.count, need["gradient_bytes"]
    sent = 0.5 if job.communication.compression == "fp16" else 1.0
    taken_s = 2 * (count - 1) / count * sent * size / rate
    numbers = {"gradient_bytes": size, "seconds": taken_s}
    seen = f"{si(size, 'B')} of gradients take {seconds(taken_s)} in each step {where}"
    if "step_s" not in need:
        return [Finding("job", "exchange", f"{seen}, minus the part that overlaps with backward", numbers=numbers)]
    step_s = need["step_s"]
    exposed_s = max(0.0, taken_s - need["hides_s"])
    share = exposed_s / (step_s + exposed_s)
    hidden = f" ({seconds(taken_s - exposed_s)} of it may overlap with backward)" if exposed_s < taken_s else ""
    seen += f"{hidden}; the rest of a step takes {seconds(step_s)} (predicted from {need['step_from']}): {percent(share, 0)} is waiting"
    numbers |= {"exposed_s": exposed_s, "step_s": step_s, SHARE: share}
    return [
        judged(
            "job", "exchange", seen, numbers, (share > MIN_SHARE, "warning", _fewer(job, exposed_s, taken_s, step_s))
        )
    ]


def _fewer(job: Job, exposed_s: float, taken_s: float, step_s: float) -> str:
    """Return options that make the exchange rarer or smaller, with the resulting time of each batch."""
    hidden_s, before_s = taken_s - exposed_s, step_s + exposed_s
    parts = 2 ** max(1, min(4, math.ceil(math.log2(exposed_s / (MIN_SHARE * step_s)))))
    each = f"{seconds(before_s)} → {seconds(step_s + exposed_s / parts)} per batch of the current size"
    options = [
        f"exchange once in {parts} batches ({each}): training.accumulation={parts * job.training.accumulation} "
        f"training.batch={parts * job.training.batch}"
    ]
    if job.communication.compression == "none":
        half_s = step_s + max(0.0, taken_s / 2 - hidden_s)
        options.append(f"send fp16 ({seconds(half_s)} a step): communication.compression=fp16")
    return "; ".join([*options, "or use a faster link"])

"""A job against this machine: can its backend and device run here, does it fit, is its data there, are its weights."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chronograd import job as jobs
from chronograd.backends import registry
from chronograd.data import datasets, layouts, published
from chronograd.doctor.finding import Finding, judged
from chronograd.errors import ChronogradError
from chronograd.hardware import catalog
from chronograd.job import Job
from chronograd.predict.memory import Memory, footprint_of_job, reserve_bytes
from chronograd.train.rank_context import check_machine
from chronograd.units import si

# Free share of a GPU below which a job that fits by prediction may not: predicted memory is within 10 to 20 %.
SPARE = 1.25
_CACHES = {"torchvision": ("TORCH_HOME", ".cache/torch", "hub/checkpoints/{}-*.pth"), "timm": ("HF_HOME", ".cache/huggingface", "hub/models--timm--{}*")}  # fmt: skip


# -- asked in a process that has PyTorch ---------------------------------------------------------------------


def needs(data: dict[str, Any], gpu_names: Sequence[str]) -> dict[str, Any]:
    """What keeps a job from running here (`problems`), and the bytes that it takes; for JSON.

    Bytes are those of one rank: `memory_bytes` as predicted, `gradient_bytes` sent in each step, `checkpoint_bytes`.
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
            found = _bytes(job, bool(gpu_names) and job.cluster.device != "cpu")
        except ChronogradError as error:
            found = {"uncounted": error.message}
    return {"problems": problems, **found}


def _bytes(job: Job, on_gpu: bool) -> dict[str, Any]:
    from chronograd.data.trace_job import trace_job

    peak: Memory = footprint_of_job(trace_job(job), job).at(-(-job.images_per_rank // job.training.accumulation))
    kept = peak.parameters + peak.buffers
    reserve = reserve_bytes(catalog.device("h100" if on_gpu else "cpu"))
    return {
        "memory_bytes": peak.total + reserve,
        "gradient_bytes": peak.parameters,
        "checkpoint_bytes": kept + peak.optimizer_state,
    }


# -- said of it ----------------------------------------------------------------------------------------------


def findings(job: Job, found: Mapping[str, Any], devices: Mapping[str, Any]) -> list[Finding]:
    """Of what `needs` found, and of the devices of `measure.probe.devices`."""
    rows = [Finding("job", p["what"], p["message"], "obstacle", p["hint"]) for p in found["problems"]]
    if not rows:
        count = job.cluster.count
        seen = f"backend {job.backend}, {count} {'rank' if count == 1 else 'ranks'}, network {job.network.name}"
        rows.append(Finding("job", "job", f"{seen}: all can run here"))
    if "uncounted" in found:
        rows.append(Finding("job", "memory", f"not predicted: {found['uncounted']}", "warning"))
    if "memory_bytes" in found and job.cluster.device != "cpu":
        rows += _fits(found["memory_bytes"], devices["rows"])
    return rows


def _fits(need: int, rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """One rank per GPU, against what is free on the fullest."""
    free = [row["free_bytes"] for row in rows if "free_bytes" in row]
    if not free:
        return []
    seen = f"{si(need, 'B')} needed on each GPU, {si(min(free), 'B')} free"
    numbers = {"need_bytes": need, "free_bytes": min(free)}
    to_do = "make training.batch smaller, or raise training.accumulation; end other processes on the GPU"
    return [
        judged(
            "job",
            "GPU memory",
            seen,
            numbers,
            (need > min(free), "obstacle", to_do),
            (SPARE * need > min(free), "warning", to_do),
        )
    ]


def data_and_weights(job: Job) -> list[Finding]:
    """Whether the data set and the weights to start from are on disk. Reads no pixel."""
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
    size = f"{card.train_size:,} training images, {si(num_bytes, 'B')} in memory"
    if layouts.is_layout(name) or name == "synthetic" or published.SETS[name].is_on_disk():
        return Finding("job", what, f"there: {size}", numbers=numbers)
    to_do = f"where there is a network the run downloads it; now: chronograd data {name}; or name its folder in {datasets.FOLDER_VARIABLE}"
    return Finding("job", what, f"not in {datasets.data_folder()}: {size}", "warning", to_do, numbers)


def _weights(source: str, reference: str) -> Finding:
    what = f"weights {source}"
    if source in _CACHES:
        variable, usual, pattern = _CACHES[source]
        folder = Path(os.environ.get(variable) or Path.home() / usual)
        name = reference.rpartition(":")[2]
        if any(folder.glob(pattern.format(name))):
            return Finding("job", what, f"in {folder}")
        to_do = "where there is a network the run downloads them; else put the file there, or name its path in network.weights"
        return Finding("job", what, f"none of {name} in {folder}", "warning", to_do)
    path = Path(source).expanduser()
    if path.is_dir() and not any((path / "checkpoints").glob("step-*")):
        return Finding("job", what, "a folder without checkpoints", "obstacle", "name a run directory that was trained")
    if not path.exists():
        return Finding("job", what, "not there", "obstacle", "name a run directory, a file, torchvision or timm")
    return Finding("job", what, "there")

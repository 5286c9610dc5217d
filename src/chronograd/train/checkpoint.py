"""Checkpoints: safetensors and JSON, no pickle; nothing in a checkpoint is ever executed.

    checkpoints/step-00000046/
        model.safetensors        parameters and buffers under the network's own names
        optimizer.safetensors    state tensors as <parameter's number>.<name>
        ema.safetensors          the running mean of parameters and buffers, where the job keeps one
        state.json               where the run is, and the sha256 of the files above

A checkpoint is written into a hidden folder, synced, and renamed. The last two are kept, so a damaged one
leaves another. The state of random generators, of the order of samples and of augmentation is not stored: it is a
function of seed, epoch, step and rank (chronograd.train.order), all of which are here or in the job. So is the schedule.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from chronograd.errors import FileFormatError, RunError
from chronograd.train.step import TrainingStep, load_weights

FORMAT = "chronograd-checkpoint"
VERSION = 1
KEEP = 2
MODEL, OPTIMIZER, EMA = "model.safetensors", "optimizer.safetensors", "ema.safetensors"


@dataclass
class Progress:
    """Where a run is.

    Attributes:
        step: steps done. `epoch`: epochs done.
        training_time_s: time spent in steps; evaluation and checkpoints left out.
        best_accuracy: on the test split, and after which epoch; None before the first evaluation.
        stopped: why no further epoch is to be trained; empty while it goes on.
    """

    step: int = 0
    epoch: int = 0
    training_time_s: float = 0.0
    best_accuracy: float | None = None
    best_epoch: int | None = None
    stopped: str = ""


def save(folder: Path, step: TrainingStep, progress: Progress) -> Path:
    """Write a checkpoint and forget all but the last two. Raises RunError if it cannot be written."""
    target = folder / f"step-{progress.step:08d}"
    aside = folder / f".{target.name}.{os.getpid()}"
    tensors, numbers = _optimizer_state(step.optimizer)
    try:
        aside.mkdir()
        files = {MODEL: step.network.state_dict(), OPTIMIZER: tensors}
        if step.averaged is not None:
            files[EMA] = step.averaged.state_dict()
        for name, contents in files.items():
            save_file(_plain(contents), aside / name)
        state = {
            "format": FORMAT,
            "version": VERSION,
            "progress": asdict(progress),
            "seed": step.training.seed,
            "place": _place(step),
            "optimizer_numbers": numbers,
            "scaler": step.scaler.state_dict(),
            "sha256": {name: _sha256(aside / name) for name in files},
        }
        (aside / "state.json").write_text(json.dumps(state, indent=1))
        for path in (*aside.iterdir(), aside):
            _sync(path)
        if target.exists():  # a damaged one that this run fell back from
            shutil.rmtree(target)
        aside.rename(target)
        _sync(folder)
        for old in list_checkpoints(folder)[:-KEEP]:
            shutil.rmtree(old)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise RunError(f"cannot write checkpoint {target}: {error}", "free some space, then resume the run") from error
    return target


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints, oldest first; whether they are sound is not looked at."""
    return sorted(p for p in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", p.name) and p.is_dir())


def newest_sound(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole, and a note for each newer one that is not.

    None if there is no checkpoint at all. Raises FileFormatError if there are some and all are damaged.
    """
    notes: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            _read_state(path)
            return path, notes
        except FileFormatError as error:
            notes.append(f"fell back to an earlier checkpoint: {error.message}")
    if notes:
        raise FileFormatError(
            f"every checkpoint in {folder} is damaged; the last one: {notes[0]}",
            f"remove {folder} to train from the start, with the same job",
        )
    return None, []


def restore(path: Path, step: TrainingStep) -> tuple[Progress, list[str]]:
    """Bring network, optimizer and scaler to a checkpoint. Raises FileFormatError if it is not of this job.

    The notes tell what is different here from where it was written: then weights end up equal only nearly.
    """
    state = _read_state(path)
    load_weights(step.network, path / MODEL)
    if step.averaged is not None:
        load_weights(step.averaged, path / EMA)
    try:
        tensors = load_file(path / OPTIMIZER)
        _restore_optimizer(step.optimizer, tensors, state["optimizer_numbers"])
        if step.scaler.is_enabled():
            step.scaler.load_state_dict(state["scaler"])
        then, now = state["place"], _place(step)
        notes = [f"resumed with {k} {now[k]} after {then[k]}: not bit-identical" for k in now if now[k] != then[k]]
        return Progress(**state["progress"]), notes
    except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise FileFormatError(f"checkpoint {path} is not of this job: {error}") from None


def _read_state(path: Path) -> dict[str, Any]:
    """state.json, after checking that the tensor files are those it was written with."""
    try:
        state = json.loads((path / "state.json").read_bytes())
        if not isinstance(state, dict) or (state.get("format"), state.get("version")) != (FORMAT, VERSION):
            raise FileFormatError(f"{path}/state.json is not that of a checkpoint of version {VERSION}")
        expected = state.get("sha256")
        if not isinstance(expected, dict) or not {MODEL, OPTIMIZER} <= expected.keys() <= {MODEL, OPTIMIZER, EMA}:
            raise FileFormatError(f"{path}/state.json does not name the files of a checkpoint")
        for name in expected:
            if expected[name] != _sha256(path / name):
                raise FileFormatError(f"{path / name} is damaged: its sha256 is not the one it was written with")
    except (OSError, ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is damaged: {error}") from None
    return state


def _place(step: TrainingStep) -> dict[str, Any]:
    place = step.place
    return {"ranks": place.world_size, "threads": place.threads, "device": place.device.type}


def _optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """State as flat tensors, and what of it is no tensor. Groups are left out: they follow from the job."""
    tensors: dict[str, torch.Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            (tensors if isinstance(value, torch.Tensor) else numbers)[f"{index}.{name}"] = value
    return tensors, numbers


def _restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor], numbers: dict[str, Any]
) -> None:
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **numbers}.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _plain(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """On the CPU, contiguous, each with memory of its own, as the format wants them."""
    return {
        name: t.detach().to("cpu", copy=True).contiguous(memory_format=torch.contiguous_format)
        for name, t in tensors.items()
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

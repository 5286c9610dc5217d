"""Checkpoints of a TensorFlow run: the files of chronograd.train.checkpoint, written and read without torch.

model.safetensors has the torch network's names and layout, so whatever reads a checkpoint of a PyTorch run reads
these. optimizer.safetensors has `<parameter>.<slot>` in that layout too.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chronograd.backends.tensorflow.step import TensorFlowStep
from chronograd.errors import FileFormatError, RunError

# As in chronograd.train.checkpoint, which imports torch.
FORMAT = "chronograd-checkpoint"
VERSION = 1
KEEP = 2
MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"


@dataclass
class Progress:
    """Where a run is: as chronograd.train.checkpoint has it."""

    step: int = 0
    epoch: int = 0
    training_time_s: float = 0.0
    best_accuracy: float | None = None
    best_epoch: int | None = None
    stopped: str = ""


def save(folder: Path, step: TensorFlowStep, progress: Progress) -> Path:
    """Write a checkpoint aside, sync and rename it; forget all but the last two. Raises RunError if it cannot be written."""
    from safetensors.numpy import save_file

    target = folder / f"step-{progress.step:08d}"
    aside = folder / f".{target.name}.{os.getpid()}"
    files = {MODEL: step.network.weights(), OPTIMIZER: _slots(step)}
    try:
        aside.mkdir()
        for name, tensors in files.items():
            save_file(tensors, aside / name)
        state = {
            "format": FORMAT,
            "version": VERSION,
            "progress": asdict(progress),
            "seed": step.training.seed,
            "place": _place(step),
            "optimizer_numbers": {},
            "scaler": {},
            "sha256": {name: hashlib.sha256((aside / name).read_bytes()).hexdigest() for name in files},
        }
        (aside / "state.json").write_text(json.dumps(state, indent=1))
        for path in (*aside.iterdir(), aside):
            _sync(path)
        if target.exists():  # a damaged one that this run fell back from
            shutil.rmtree(target)
        aside.rename(target)
        _sync(folder)
        for old in sorted(folder.glob("step-*"))[:-KEEP]:
            shutil.rmtree(old)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise RunError(f"cannot write checkpoint {target}: {error}", "free some space, then resume the run") from error
    return target


def restore(path: Path, step: TensorFlowStep) -> tuple[Progress, list[str]]:
    """Bring network and optimizer to a checkpoint that the launching process found sound.

    The notes tell what is different here from where it was written. Raises FileFormatError if it is not of this job.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        state = json.loads((path / "state.json").read_bytes())
        step.network.load(load_file(path / MODEL))
        slots = load_file(path / OPTIMIZER)
        for tensor in step.network.trained:
            for name in _own_slots(step, tensor.name):
                tensor.assign_to(step.slots[name], slots[name])
        then, now = state["place"], _place(step)
        notes = [f"resumed with {k} {now[k]} after {then[k]}: not bit-identical" for k in now if now[k] != then[k]]
        progress = Progress(**state["progress"])
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise FileFormatError(f"checkpoint {path} is not of this job: {error}") from None
    if progress.step != progress.epoch * step.steps_per_epoch:
        raise FileFormatError(f"checkpoint {path} is not of this job: it is at step {progress.step}")
    return progress, notes


def _slots(step: TensorFlowStep) -> dict[str, Any]:
    return {
        name: tensor.value(step.slots[name])
        for tensor in step.network.trained
        for name in _own_slots(step, tensor.name)
    }


def _own_slots(step: TensorFlowStep, parameter: str) -> list[str]:
    return [name for name in step.slots if name.rpartition(".")[0] == parameter]


def _place(step: TensorFlowStep) -> dict[str, Any]:
    return {"ranks": step.ranks.num_replicas, "threads": step.ranks.threads, "device": step.ranks.device}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

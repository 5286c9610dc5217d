"""Save and restore the state of a TensorFlow training step (see chronograd.train.checkpoint_folder).

model.safetensors has the torch network's names and layout, so every reader of PyTorch checkpoints can read it.
optimizer.safetensors has `<parameter>.<slot>` in that layout, too. Never imports torch.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from chronograd import files
from chronograd.backends.tensorflow.step import TensorFlowStep
from chronograd.errors import FileFormatError
from chronograd.train import checkpoint_folder
from chronograd.train.checkpoint_folder import MODEL, OPTIMIZER, Progress


def save(folder: Path, step: TensorFlowStep, progress: Progress) -> Path:
    """Write a checkpoint and remove all but the last two. Raises RunError if it cannot be written."""
    from safetensors.numpy import save_file

    files = {MODEL: step.network.weights(), OPTIMIZER: _slots(step)}
    state = {"seed": step.training.seed, "place": _place(step), "optimizer_numbers": {}, "scaler": {}}
    return checkpoint_folder.write(folder, progress, {n: partial(save_file, t) for n, t in files.items()}, state)


def restore(path: Path, step: TensorFlowStep) -> tuple[Progress, list[str]]:
    """Restore network and optimizer from a checkpoint that the launching process has checked.

    The notes state what differs here from where it was written. Raises FileFormatError if it is not of this job.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        state = json.loads(files.read_bytes(path / "state.json"))
        step.network.load(load_file(path / MODEL))
        slots = load_file(path / OPTIMIZER)
        for tensor in step.network.trained:
            for name in _own_slots(step, tensor.name):
                tensor.assign(slots[name], step.slots[name])
        notes = checkpoint_folder.differences(state["place"], _place(step))
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

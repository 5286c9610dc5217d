"""Save and restore the state of a PyTorch training step (see chronograd.train.checkpoint_folder).

optimizer.safetensors names its tensors <parameter's number>.<name>.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from chronograd.errors import FileFormatError
from chronograd.train import checkpoint_folder
from chronograd.train.checkpoint_folder import EMA, MODEL, OPTIMIZER, Progress
from chronograd.train.step import TrainingStep, load_weights


def save(folder: Path, step: TrainingStep, progress: Progress) -> Path:
    """Write a checkpoint and remove all but the last two. Raises RunError if it cannot be written."""
    tensors, numbers = optimizer_state(step.optimizer)
    files = {MODEL: step.network.state_dict(), OPTIMIZER: tensors}
    if step.averaged is not None:
        files[EMA] = step.averaged.state_dict()
    state = {
        "seed": step.training.seed,
        "place": _place(step),
        "optimizer_numbers": numbers,
        "scaler": step.scaler.state_dict(),
    }
    return checkpoint_folder.write(folder, progress, {n: partial(save_tensors, t) for n, t in files.items()}, state)


def restore(path: Path, step: TrainingStep) -> tuple[Progress, list[str]]:
    """Restore network, optimizer and scaler from a checkpoint. Raises FileFormatError if it is not of this job.

    The notes state what differs here from where it was written. Weights then end up only nearly equal.
    """
    state = checkpoint_folder.read_state(path)
    load_weights(step.network, path / MODEL)
    if step.averaged is not None:
        load_weights(step.averaged, path / EMA)
    try:
        tensors = load_file(path / OPTIMIZER)
        restore_optimizer(step.optimizer, tensors, state["optimizer_numbers"])
        if step.scaler.is_enabled():
            step.scaler.load_state_dict(state["scaler"])
        return Progress.read(state["progress"]), checkpoint_folder.differences(state["place"], _place(step))
    except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise FileFormatError(f"checkpoint {path} is not of this job: {error}") from None


def _place(step: TrainingStep) -> dict[str, Any]:
    place = step.place
    return {"ranks": place.world_size, "threads": place.threads, "device": place.device.type}


def optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return an optimizer's state: flat tensors, and other values. Groups are left out: they follow from the job."""
    tensors: dict[str, torch.Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            (tensors if isinstance(value, torch.Tensor) else numbers)[f"{index}.{name}"] = value
    return tensors, numbers


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor], numbers: dict[str, Any]
) -> None:
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **numbers}.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def save_tensors(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Save tensors on the CPU, contiguous and without shared memory, as the format requires."""
    plain = {
        name: t.detach().to("cpu", copy=True).contiguous(memory_format=torch.contiguous_format)
        for name, t in tensors.items()
    }
    save_file(plain, path)

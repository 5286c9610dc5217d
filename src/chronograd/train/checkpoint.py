"""Save and restore the state of a PyTorch training step (see chronograd.train.checkpoint_folder).

optimizer.safetensors names its tensors <parameter's number>.<name>.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from chronograd.errors import FileFormatError
from chronograd.train import checkpoint_folder, shards
from chronograd.train.checkpoint_folder import EMA, MODEL, OPTIMIZER, Progress
from chronograd.train.communicator import rank0_number
from chronograd.train.shards import save_tensors
from chronograd.train.step import TrainingStep, load_weights
from chronograd.train.watchdog import WATCHDOG


def save(folder: Path, step: TrainingStep, progress: Progress) -> Path:
    """Write a checkpoint, remove all but the last two, and return its folder. Raises RunError if it cannot be written.

    If ranks share parameters, each calls it and writes its part of the optimizer's state; rank 0 gathers and writes the parameters.
    """
    tensors, numbers = optimizer_state(step.optimizer)
    if step.place.exchange.is_sharded:
        return _save_shared(folder, step, progress, tensors, numbers)
    files = {MODEL: step.network.state_dict(), OPTIMIZER: tensors}
    if step.averaged is not None:
        files[EMA] = step.averaged.state_dict()
    writers = {name: partial(save_tensors, tensors) for name, tensors in files.items()}
    return checkpoint_folder.write(folder, progress, writers, _state(step, numbers))


def _save_shared(
    folder: Path, step: TrainingStep, progress: Progress, tensors: dict[str, torch.Tensor], numbers: dict[str, Any]
) -> Path:
    """Write a checkpoint with all ranks. Rank 0 names its folder, and renames it once all have written their files."""
    place = step.place
    network = {}
    with WATCHDOG.waiting("all-gather of parameters"):
        for name, tensor in step.network.state_dict().items():
            gathered = shards.whole(tensor)
            if place.is_rank_zero:
                network[name] = gathered.to("cpu")

    def with_others(path: Path) -> None:
        rank0_number(os.getpid(), place)
        shards.save_parts(tensors, path, 0)
        place.exchange.wait(place)

    if place.is_rank_zero:
        writers: dict[str, Callable[[Path], None]] = {OPTIMIZER: with_others}
        writers |= {checkpoint_folder.shard_name(rank): lambda path: None for rank in range(1, place.world_size)}
        writers[MODEL] = partial(save_tensors, network)
        return checkpoint_folder.write(folder, progress, writers, _state(step, numbers))
    aside = checkpoint_folder.unfinished(folder, progress, rank0_number(0, place))
    target = checkpoint_folder.target(folder, progress)
    with checkpoint_folder.reported(target):
        shards.save_parts(tensors, aside / checkpoint_folder.shard_name(place.rank), place.rank)
    place.exchange.wait(place)
    return target


def _state(step: TrainingStep, numbers: dict[str, Any]) -> dict[str, Any]:
    return {
        "seed": step.training.seed,
        "place": _place(step),
        "optimizer_numbers": numbers,
        "scaler": step.scaler.state_dict(),
    }


def restore(path: Path, step: TrainingStep) -> tuple[Progress, list[str]]:
    """Restore network, optimizer and scaler from a checkpoint. Raises FileFormatError if it is not of this job.

    The notes state what differs here from where it was written. Weights then end up only nearly equal.
    """
    state = checkpoint_folder.read_state(path)
    if not step.place.exchange.is_sharded:
        load_weights(step.network, path / MODEL)
    if step.averaged is not None:
        load_weights(step.averaged, path / EMA)
    try:
        if step.place.exchange.is_sharded:
            with shards.PartFiles([path / MODEL]) as stored:
                for name, tensor in step.network.state_dict().items():
                    stored.read_into(tensor, name)
        parameters = [p for group in step.optimizer.param_groups for p in group["params"]]
        with shards.PartFiles([path / name for name in state["sha256"] if name.startswith("optimizer.")]) as stored:
            tensors = {n: stored.read(n, like=parameters[int(n.partition(".")[0])]) for n in stored.names()}
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

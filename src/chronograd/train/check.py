"""Check that a network fits a data set, on the meta device, which needs no memory."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch

from chronograd import door
from chronograd.data.published import DatasetCard
from chronograd.eager import stay_eager
from chronograd.errors import InputError
from chronograd.job import Job
from chronograd.models import registry
from chronograd.models.weights import head_of
from chronograd.train.optimizer import parameter_groups
from chronograd.train.step import batch_norms
from chronograd.words import how_many


def check_network(job: Job, card: DatasetCard) -> None:
    """Build the job's network on the meta device and run it on two samples of the data set.

    Raises InputError if it cannot be built, does not take the samples, has fewer outputs than classes, or lacks the parameters
    that the job assigns to groups. An operator without a meta kernel ends the check early; then the first real step decides.
    """
    network = _on_meta(job, card).eval()
    if job.training.trainable == "head":
        head_of(network)
    parameter_groups(network, job.training)
    if job.training.freeze_norm and not batch_norms(network):
        raise InputError(
            f"training.freeze_norm is true, but network {job.network.name} has no batch norm with stored statistics",
            "leave training.freeze_norm out",
        )
    if job.backend == "tensor_parallel":
        from chronograd.train.sharded import shared_blocks  # imports torch.distributed.tensor

        shared_blocks(network, job.cluster.count)
    if job.training.compile is True:
        _check_compiler()
    shape = "x".join(str(n) for n in card.shape)
    sort, outputs = ("tokens", "one row per token") if job.is_text else ("images", "one row per image")
    try:
        with torch.no_grad():
            output = network(
                torch.empty(2, *card.shape, device="meta", dtype=torch.int64 if job.is_text else torch.float32)
            )
    except NotImplementedError:
        return
    except Exception as error:
        first = " ".join(str(error).split())[:300]
        raise InputError(
            f"network {job.network.name} cannot run on the {shape} {sort} of {job.data.name}: {first}",
            f"choose a network for {sort} of this size, or another data set",
        ) from None
    if job.task == "detection":
        _check_detector(job, card, network, output)
        return
    logits = output[0] if isinstance(output, tuple) else output
    dimensions = 3 if job.is_text else 2
    if not isinstance(logits, torch.Tensor) or logits.ndim != dimensions or logits.shape[-1] < card.num_classes:
        seen = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise InputError(
            f"network {job.network.name} returns {seen} for two {'rows of tokens' if job.is_text else sort}; "
            f"{job.data.name} has {card.num_classes} {'words' if job.is_text else 'classes'}",
            f"{'a language model' if job.is_text else 'a classifier'} returns {outputs} and one column per "
            f"{'word' if job.is_text else 'class'}; see network.options"
            + ("; for another task give its loss, such as --loss mse" if job.data.name == "synthetic" else ""),
        )


def _on_meta(job: Job, card: DatasetCard) -> torch.nn.Module:
    stay_eager()
    network = job.network
    return registry.build(
        network.name, network.options, input_shape=card.shape, num_classes=card.num_classes, device="meta"
    )


def check_initial_weights(job: Job, card: DatasetCard, path: Path) -> None:
    """Raise InputError unless a safetensors file has the tensors of the job's network. Reads only its header."""
    from safetensors import SafetensorError, safe_open

    door.check(path, "a safetensors file of initial weights")
    to_do = "give the model.safetensors of a checkpoint of such a network; network.weights=FILE takes other files"
    try:
        with safe_open(path, framework="pt") as stored:
            there = {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118, as it is no dict
    except SafetensorError as error:
        raise InputError(f"{path} is not a safetensors file: {error}", to_do) from None
    wanted = {name: tuple(tensor.shape) for name, tensor in _on_meta(job, card).state_dict().items()}
    if there == wanted:
        return
    wrong = [f"{name} is missing" for name in wanted if name not in there]
    wrong += [f"{name} is of no parameter" for name in there if name not in wanted]
    wrong += [
        f"{name} is {there[name]}, not {wanted[name]}"
        for name in wanted
        if there.get(name, wanted[name]) != wanted[name]
    ]
    told = "; ".join(wrong[:3]) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")
    raise InputError(f"{path} does not have the weights of {job.network.name} for {job.data.name}: {told}", to_do)


def _check_detector(job: Job, card: DatasetCard, network: torch.nn.Module, output: object) -> None:
    """Check that a detector returns scores of background and classes, and boxes, at each of its priors."""
    shapes = tuple(tuple(one.shape) for one in output) if isinstance(output, tuple) else ()
    priors = getattr(network, "priors", None)
    count = 0 if priors is None else len(priors)
    if shapes != ((2, count, card.num_classes + 1), (2, count, 4)):
        raise InputError(
            f"network {job.network.name} is not a detector of {how_many(card.num_classes, 'classes')}",
            "write network.name=ssd-mobilenet-v1; a detector returns scores and boxes at each of its priors",
        )


def _check_compiler() -> None:
    """Check for the compilers that torch.compile needs: C++ for the CPU, and for CUDA Triton, which compiles a launcher."""
    if not any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++") if name):
        raise InputError(
            "training.compile is set, and no C++ compiler is on the PATH",
            "install g++ (with the headers of Python), or write training.compile=false",
        )

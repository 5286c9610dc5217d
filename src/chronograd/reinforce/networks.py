"""Networks that value actions: those in chronograd.models.deep_q for images, `mlp` for a few numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from chronograd.errors import InputError
from chronograd.job import Job
from chronograd.models import registry
from chronograd.models.deep_q import q_head
from chronograd.reinforce.environments import Space

MLP = "mlp"


def mlp(inputs: int, actions: int, hidden: Sequence[int] = (128, 128), dueling: bool = False) -> nn.Module:
    """Return linear layers with ReLU between them; the last hidden one belongs to the head."""
    are_widths = isinstance(hidden, list | tuple) and all(type(width) is int and width >= 1 for width in hidden)
    if not hidden or not are_widths:
        raise InputError(f"network.options.hidden is {hidden!r}", "give widths of hidden layers, such as [128, 128]")
    layers: list[nn.Module] = [nn.Flatten()]
    for before, width in pairwise([inputs, *hidden[:-1]]):
        layers += [nn.Linear(before, width), nn.ReLU()]
    return nn.Sequential(*layers, q_head([inputs, *hidden][-2], hidden[-1], actions, dueling))


def build(job: Job, space: Space, device: str = "cpu") -> nn.Module:
    """Return the network of a job, with new weights from torch's random generator.

    Raises: InputError if the network does not fit the environment.
    """
    assert job.reinforcement is not None
    options: dict[str, Any] = dict(job.network.options)
    if job.reinforcement.dueling:
        options["dueling"] = True
    if job.network.name == MLP:
        if space.dtype == np.uint8:
            raise InputError(f"network mlp takes a few numbers, but {job.data.name} shows images", "write network.name=dqn-2015")  # fmt: skip
        unknown = options.keys() - {"hidden", "dueling"}
        if unknown:
            raise InputError(f"network mlp has no option {min(unknown)}", "its options are hidden and dueling")
        with torch.device(device):
            return mlp(int(np.prod(space.shape)), space.num_actions, **options)
    if len(space.shape) != 3:
        raise InputError(
            f"network {job.network.name} takes images, and {job.data.name} shows {space.shape[0] if space.shape else 1} "
            "numbers",
            "write network.name=mlp",
        )
    network = registry.build(
        job.network.name, options, input_shape=space.shape, num_classes=space.num_actions, device=device
    )
    if job.training.channels_last:
        for module in network.modules():
            if isinstance(module, nn.Conv2d):  # images take the memory format of its weights
                module.to(memory_format=torch.channels_last)
    return network


@contextmanager
def dead_relus(network: nn.Module) -> Iterator[set[str]]:
    """Yield the names of the ReLU layers whose output was 0 for every input of the network within this context.

    The output of such a layer does not depend on the input, and no gradient passes through it.
    """
    layers = {name: module for name, module in network.named_modules() if isinstance(module, nn.ReLU)}
    dead, hooks = set(layers), dict[str, RemovableHandle]()

    def look(name: str, output: Tensor) -> None:
        if output.any():
            dead.discard(name)
            hooks.pop(name).remove()  # a ReLU with any output above 0 needs no further checks

    for name, module in layers.items():
        hooks[name] = module.register_forward_hook(lambda _, __, output, name=name: look(name, output))
    try:
        yield dead
    finally:
        for hook in hooks.values():
            hook.remove()


def as_input(observations: np.ndarray, device: torch.device) -> Tensor:
    """Return observations as input of a network: pixels scaled to 0 … 1."""
    tensor = torch.from_numpy(observations).to(device)
    return tensor.float().div_(255) if tensor.dtype == torch.uint8 else tensor.float()

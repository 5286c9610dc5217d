"""The optimizer of a job over a network's parameters, in groups with separate learning rates."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from chronograd.eager import eager, stay_eager
from chronograd.errors import InputError
from chronograd.job import ParameterGroup, Training
from chronograd.predict.checkpointing import blocks
from chronograd.train.schedule import learning_rate


def make_optimizer(network: nn.Module, training: Training, is_fused: bool = False) -> torch.optim.Optimizer:
    """Return an optimizer over the trained parameters; freeze those of a group with factor 0.

    Weight decay applies to all parameters unless a group states otherwise. Fused Adam takes one call for all
    parameters, half the time of a small network's update.

    Raises InputError for a group that matches nothing, and where nothing is left to train.
    """
    stay_eager()
    groups = parameter_groups(network, training)
    rate, decay = training.learning_rate, training.weight_decay
    if training.optimizer == "adamw":
        return eager(torch.optim.AdamW)(
            groups, lr=rate, betas=(training.momentum, 0.999), weight_decay=decay, fused=is_fused or None
        )
    if training.optimizer == "adadelta":
        return eager(torch.optim.Adadelta)(groups, lr=rate, rho=training.momentum, weight_decay=decay)
    if training.optimizer == "rmsprop":
        return RMSProp(groups, rate, training.momentum, decay)
    return eager(torch.optim.SGD)(
        groups, lr=rate, momentum=training.momentum, nesterov=training.nesterov, weight_decay=decay
    )


def parameter_groups(network: nn.Module, training: Training) -> list[dict[str, Any]]:
    """Return groups for an optimizer. Each has a `factor` on the scheduled rate. The last ones hold the parameters without exceptions."""
    stated = training.parameter_groups
    decays = layer_decays(network, training.layer_decay)
    groups: dict[tuple[int, float], dict[str, Any]] = {}
    matched = set()
    for name, parameter in network.named_parameters():
        chosen = next((i for i, g in enumerate(stated) if fnmatchcase(name, g.match)), len(stated))
        matched.add(chosen)
        exception = stated[chosen] if chosen < len(stated) else ParameterGroup(match="*")
        if exception.learning_rate_factor == 0:
            parameter.requires_grad_(False)
        if parameter.requires_grad:
            factor = exception.learning_rate_factor * decays[name]
            own = {} if exception.weight_decay is None else {"weight_decay": exception.weight_decay}
            group = groups.setdefault((chosen, decays[name]), {"params": [], "factor": factor, **own})
            group["params"].append(parameter)
    for i, given in enumerate(stated):
        if i not in matched:
            raise InputError(
                f"training.parameter_groups: no parameter is left for {given.match!r}",
                f"names look like {', '.join(list(dict(network.named_parameters()))[:4])}; the first match holds",
            )
    if not groups:
        raise InputError("no parameter is left to train", "freeze fewer: see training.trainable and parameter_groups")
    return [groups[key] for key in sorted(groups)]


def layer_decays(network: nn.Module, decay: float) -> dict[str, float]:
    """Return the factor of each parameter by name: decay^k, where k is the number of blocks from its own to the last layer.

    What comes before the first block counts as one, and so does all after the last block, with the last layer: there k is 0. What
    lies between two blocks belongs to the first of them. A network without blocks decays by layer. Names are in the order of
    modules, which is assumed to be the order in which they run. Source: Bao et al. 2021, BEiT, appendix on fine-tuning.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> layer_decays(net, 0.5)
    {'0.weight': 0.5, '0.bias': 0.5, '2.weight': 1.0, '2.bias': 1.0}
    """
    names = [name for name, _ in network.named_parameters()]
    modules = {path: type(module).__name__ for path, module in network.named_modules()}
    found = blocks(modules)
    owners = [found.get(name.rpartition(".")[0]) for name in names]
    if not found:
        owners = [name.rpartition(".")[0] for name in names]
    last = max((i for i, owner in enumerate(owners) if owner is not None), default=-1)
    depths, depth, before = [], 0, None
    for i, owner in enumerate(owners):
        if owner is not None and owner != before:
            depth, before = depth + 1, owner
        depths.append(depth if i <= last or not found else depth + 1)
    deepest = max(depths, default=0)
    return {name: decay ** (deepest - depth) for name, depth in zip(names, depths, strict=True)}


def set_rate(optimizer: torch.optim.Optimizer, training: Training, step: int, num_steps: int) -> None:
    """Set the schedule's rate of a step, counted from 0, times each group's factor."""
    rate = learning_rate(training, step, num_steps)
    for group in optimizer.param_groups:
        group["lr"] = rate * group["factor"]


class RMSProp(torch.optim.Optimizer):
    """RMSProp as in deep Q-learning: the step is the gradient divided by its running standard deviation.

    m and v are running means of g and g²; w -= rate · g / √(v - m² + 0.01). torch.optim.RMSprop adds its constant
    outside the root. Source: the code published with Mnih et al. 2015; A. Graves, arXiv:1308.0850, equations 38 to 45.
    """

    MIN_VARIANCE = 0.01

    def __init__(self, params: Any, lr: float, decay: float = 0.95, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "decay": decay, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                gradient = parameter.grad
                if group["weight_decay"]:
                    gradient = gradient.add(parameter, alpha=group["weight_decay"])
                state = self.state[parameter]
                if not state:
                    state["mean"], state["mean_square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                mean, mean_square = state["mean"], state["mean_square"]
                mean.lerp_(gradient, 1 - group["decay"])
                mean_square.mul_(group["decay"]).addcmul_(gradient, gradient, value=1 - group["decay"])
                deviation = mean_square.addcmul(mean, mean, value=-1).add_(self.MIN_VARIANCE).sqrt_()
                parameter.addcdiv_(gradient, deviation, value=-group["lr"])

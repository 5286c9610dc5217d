"""Networks without memory: built on the device `meta`, or on the CPU without initial values and then moved."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

RANDOM_FILLS = frozenset(
    f"{name}_"
    for name in (
        *("normal", "uniform", "trunc_normal", "log_normal", "exponential", "cauchy", "geometric", "bernoulli"),
        *("random", "erfinv", "kaiming_normal", "kaiming_uniform", "xavier_normal", "xavier_uniform", "orthogonal"),
    )
)


class SkipInitialisation(TorchFunctionMode):
    """A context in which filling a tensor with random numbers does nothing; the content of the tensor is undefined.

    It is a mode of the current thread, so torch does not change for other threads.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in RANDOM_FILLS:
            return args[0] if args else kwargs["tensor"]
        if func is torch.linalg.qr:  # the work of nn.init.orthogonal_, which is not a torch function itself
            shapes = func(args[0].to("meta"), *args[1:], **kwargs)
            return tuple(torch.empty_like(t, device="cpu") for t in shapes)
        return func(*args, **kwargs)


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    """Return the network of `make`, on the device `meta`.

    Some constructors cannot run there, such as those that read a number from a tensor. They run again on the CPU, with
    initialisation skipped. The state of the random number generator does not change. Torch's advice on checks of sparse tensors is
    hidden, because they have no elements here.
    """
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse invariant checks")
        try:
            # Tensors on meta have no memory to fill, yet torch would run its reference code for each random fill.
            with torch.device("meta"), SkipInitialisation():
                network = make()
        except Exception:
            with torch.device("cpu"), SkipInitialisation():
                network = make()
    return move_to_meta(network) if isinstance(network, nn.Module) else network


def move_to_meta(network: nn.Module) -> nn.Module:
    """Move parameters, buffers and plain tensor attributes to `meta`, in place; tied tensors stay tied.

    `Module.to("meta")` would split a parameter that two modules share into two.
    """
    moved: dict[int, torch.Tensor] = {}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "meta" or nn.parameter.is_lazy(tensor):
            return tensor
        if id(tensor) not in moved:
            empty = torch.empty_like(tensor, device="meta")
            is_parameter = isinstance(tensor, nn.Parameter)
            moved[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
        return moved[id(tensor)]

    for module in network.modules():
        places: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, vars(module))
        for tensors in places:
            for name, value in list(tensors.items()):
                if isinstance(value, torch.Tensor):
                    tensors[name] = move(value)
    return network

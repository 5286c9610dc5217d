"""FLOPs of the steps of a loop of the user's own, counted from its network and what the loop called it with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten


class Calls:
    """What a network was called with in the steps of a loop.

    Attributes:
        inputs, named: of the call with most samples. `samples`: of it; the first dimension of its first tensor.
        precision: of the arithmetic of the last call, by autocast and the type of the parameters.
    """

    def __init__(self) -> None:
        self.inputs: tuple[Any, ...] = ()
        self.named: dict[str, Any] = {}
        self.samples = 0
        self.precision = "fp32"
        self.num_steps = 0
        self._sum_of_samples = 0
        self._is_in_step = False

    def begin_step(self) -> None:
        self.num_steps += 1
        self._is_in_step = True

    def end_step(self) -> None:
        self._is_in_step = False

    def note(self, network: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """A forward pre-hook; evaluation, outside of steps or without gradients, is no part of a step."""
        if not self._is_in_step or not torch.is_grad_enabled():
            return
        tensors = [leaf for leaf in tree_flatten((inputs, named))[0] if isinstance(leaf, torch.Tensor) and leaf.ndim]
        samples = len(tensors[0]) if tensors else 0
        self._sum_of_samples += samples
        if samples >= self.samples:
            self.inputs, self.named, self.samples = inputs, named, samples
        self.precision = _precision(network, tensors)

    def flops_per_step(self, network: nn.Module) -> float:
        """Matrix FLOPs of forward and backward of a step of this rank: in proportion to its samples, over all steps noted.

        The network is run once on the meta device, which takes a fraction of a second. Raises TraceError and what else the
        copy of a network may raise; ValueError where it was never called.
        """
        from chronograd.count.tracing import trace

        if not self.samples or not self.num_steps:
            raise ValueError("it was not called within a step after the first")
        leaves, spec = tree_flatten((self.inputs, self.named))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if any(not t.ndim or len(t) != self.samples for t in tensors):
            raise ValueError("its inputs differ in their first dimension")
        counted = trace(
            _Called(network, leaves, spec),
            [tuple(t.shape[1:]) for t in tensors],
            input_dtypes=[t.dtype for t in tensors],
            loss="sum",
            fixed_batch=self.samples,
            network=type(network).__name__,
        )
        return counted.flops(self.samples) * self._sum_of_samples / self.samples / self.num_steps


class _Called(nn.Module):
    """A network as it was called: a module that takes the tensors alone."""

    def __init__(self, network: nn.Module, leaves: Sequence[Any], spec: TreeSpec) -> None:
        super().__init__()
        self.network = network
        self.leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.places = [at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.spec = spec

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.leaves)
        for at, tensor in zip(self.places, tensors, strict=True):
            leaves[at] = tensor
        inputs, named = tree_unflatten(leaves, self.spec)
        return self.network(*inputs, **named)


_NAMES = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def _precision(network: nn.Module, tensors: Sequence[torch.Tensor]) -> str:
    """Of matrix work; on CUDA that of fp32 is tf32 where PyTorch is allowed to use it, as it is for convolutions by default."""
    kind = tensors[0].device.type if tensors else "cpu"
    if torch.is_autocast_enabled(kind):
        return _NAMES.get(torch.get_autocast_dtype(kind), "fp32")
    own = next((p.dtype for p in network.parameters() if p.is_floating_point()), torch.float32)
    if kind == "cuda" and own == torch.float32:
        has_convolutions = any(isinstance(m, nn.modules.conv._ConvNd) for m in network.modules())
        is_allowed = torch.backends.cudnn.allow_tf32 if has_convolutions else torch.backends.cuda.matmul.allow_tf32
        return "tf32" if is_allowed and torch.cuda.get_device_capability()[0] >= 8 else "fp32"
    return _NAMES.get(own, "fp32")

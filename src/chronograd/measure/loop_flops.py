"""FLOPs of the steps of a custom loop, counted from its network and the inputs of its calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten
from torch.utils.flop_counter import FlopCounterMode

from chronograd.errors import TraceError


class Calls:
    """Inputs of a network in the steps of a loop.

    Attributes:
        network: the network, known from the second step on.
        inputs, named: of the call with the most samples. `samples`: their number; the first dimension of its first tensor.
        precision: of the arithmetic of the last call, from autocast and the type of the parameters.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
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
        """Record a call, as a forward pre-hook. Evaluation, outside of steps or without gradients, is not part of a step."""
        if not self._is_in_step or not torch.is_grad_enabled():
            return
        tensors = [leaf for leaf in tree_flatten((inputs, named))[0] if _is_batch(leaf)]
        samples = len(tensors[0]) if tensors else 0
        self._sum_of_samples += samples
        if samples >= self.samples:
            self.inputs, self.named, self.samples = inputs, named, samples
        self.precision = _precision(network, tensors)

    def flops_per_step(self) -> float:
        """Return the matrix FLOPs of forward and backward of a step of this rank, in proportion to its samples, over all
        recorded steps.

        The network runs once on the meta device, which takes a fraction of a second. Raises TraceError and any error of the
        copied network; ValueError for inputs of different batches.
        """
        leaves, spec = tree_flatten((self.inputs, self.named))
        tensors = [leaf for leaf in leaves if _is_batch(leaf)]
        if any(len(t) != self.samples for t in tensors):
            raise ValueError("its inputs differ in their first dimension")
        flops = self._traced(leaves, spec, tensors)
        return flops * self._sum_of_samples / self.samples / self.num_steps

    def _traced(self, leaves: list[Any], spec: TreeSpec, tensors: list[torch.Tensor]) -> float:
        from chronograd.count.calls import Call
        from chronograd.count.tracing import Origin, trace

        called = _Called(self.network, leaves, spec)
        try:
            counted = trace(
                called,
                Call.of_inputs([t.shape[1:] for t in tensors], [t.dtype for t in tensors]),
                origin=Origin(type(self.network).__name__),
                loss="sum",
                fixed_batch=self.samples,
            )
        except TraceError as error:
            try:
                return _flops_of_fakes(called, tensors)
            except Exception:  # whatever the network raises, the first error is clearer
                raise error from None
        return float(counted.flops(self.samples))


def _is_batch(leaf: Any) -> bool:
    """Return whether it has samples; a tensor without dimensions is a number."""
    return isinstance(leaf, torch.Tensor) and leaf.ndim > 0


class _Called(nn.Module):
    """A network with its call: a module that takes only the tensors with samples."""

    def __init__(self, network: nn.Module, leaves: Sequence[Any], spec: TreeSpec) -> None:
        super().__init__()
        self.network = network
        numbers = [leaf.item() if isinstance(leaf, torch.Tensor) and not leaf.ndim else leaf for leaf in leaves]
        self.leaves = [None if _is_batch(leaf) else leaf for leaf in numbers]
        self.places = [at for at, leaf in enumerate(leaves) if _is_batch(leaf)]
        self.spec = spec

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.leaves)
        for at, tensor in zip(self.places, tensors, strict=True):
            leaves[at] = tensor
        inputs, named = tree_unflatten(leaves, self.spec)
        return self.network(*inputs, **named)


def _flops_of_fakes(called: _Called, tensors: list[torch.Tensor]) -> float:
    """Count with torch's own counter on fake tensors. Networks that read values, such as those of Transformers, need fakes.

    Parameters and buffers are fakes, too, so the network does not change.
    """
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, FlopCounterMode(display=False) as counter:
        own = [*called.named_parameters(), *called.named_buffers()]  # the first of tied parameters
        state = {name: mode.from_tensor(t.detach()).requires_grad_(t.requires_grad) for name, t in own}
        outputs = functional_call(called, state, tuple(mode.from_tensor(t.detach()) for t in tensors))
        sums = [t.sum() for t in tree_leaves(outputs) if isinstance(t, torch.Tensor) and t.is_floating_point()]
        torch.autograd.backward(torch.stack(sums).sum())
    return float(counter.get_total_flops())


_NAMES = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def _precision(network: nn.Module, tensors: Sequence[torch.Tensor]) -> str:
    """Return the precision of matrix work. On CUDA, fp32 is tf32 if PyTorch may use it, as for convolutions by default."""
    kind = tensors[0].device.type if tensors else "cpu"
    if torch.is_autocast_enabled(kind):
        return _NAMES.get(torch.get_autocast_dtype(kind), "fp32")
    own = next((p.dtype for p in network.parameters() if p.is_floating_point()), torch.float32)
    if kind == "cuda" and own == torch.float32:
        has_convolutions = any(isinstance(m, nn.modules.conv._ConvNd) for m in network.modules())
        is_allowed = torch.backends.cudnn.allow_tf32 if has_convolutions else torch.backends.cuda.matmul.allow_tf32
        return "tf32" if is_allowed and torch.cuda.get_device_capability()[0] >= 8 else "fp32"
    return _NAMES.get(own, "fp32")

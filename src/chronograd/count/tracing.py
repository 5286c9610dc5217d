"""`trace`: a Trace from any `nn.Module`, forward and backward, on the meta device."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from chronograd.count.attention import Functions
from chronograd.count.recorder import SYMBOLIC_BATCH, Recorder, watch_modules
from chronograd.errors import ChronogradError, InputError, TraceError
from chronograd.files import without_collection
from chronograd.trace import Trace

Loss = Callable[[list[torch.Tensor]], torch.Tensor]

# Sizes of storage are signed numbers of 64 bits, also on the meta device.
_MOST_BYTES = 2**63 - 1


def trace(
    model: nn.Module,
    input_shapes: Sequence[Sequence[int]],
    *,
    network: str = "",
    input_dtypes: Sequence[torch.dtype] | None = None,
    mode: str = "training",
    loss: str = "cross_entropy",
    fixed_batch: int | None = None,
    inputs_require_grad: bool = False,
    channels_last: bool = False,
    is_ours: bool = False,
) -> Trace:
    """Run a network once on the meta device and write down its work.

    Args:
        model: any module, on any device; it is neither changed nor copied in memory.
        input_shapes: shape of each positional input without the batch dimension.
        network: reference to keep in the trace.
        input_dtypes: by default that of the first floating-point parameter.
        mode: `training` (training mode: forward, loss, backward) or `inference` (evaluation
            mode, forward, no gradients kept).
        loss: `cross_entropy` (mean over samples, summed over outputs with classes) or `sum` of all outputs.
        fixed_batch: trace at this one batch; for networks that loop over or mix their samples.
        inputs_require_grad: also take the gradient of floating inputs, as inside a larger network.
        channels_last: lay images and convolutions out with channels last in memory, as training.channels_last does.
        is_ours: the model is on meta already and may be changed, so that no copy is made.

    Raises: TraceError if the network raises, needs real values, or its work is not affine in the batch.
        Whatever happens, the model, its hooks and the process are left as they were.
    """
    _warm_up()
    if mode not in ("training", "inference"):
        raise InputError(f"mode is {mode!r}", "training or inference")
    if loss not in LOSSES:
        raise InputError(f"loss is {loss!r}", f"one of {', '.join(LOSSES)}")
    if fixed_batch is not None and fixed_batch < 1:
        raise InputError(f"fixed_batch is {fixed_batch}", "at least 1")
    name = network or type(model).__name__
    lazy = [n for n, p in model.named_parameters() if nn.parameter.is_lazy(p)]
    if lazy:
        raise TraceError(f"{name} has parameters without a shape: {', '.join(lazy[:3])}", "call it once on a sample")
    batch = fixed_batch or SYMBOLIC_BATCH
    result = Trace(name, mode, loss if mode == "training" else "none", [])
    result.versions = {"torch": str(torch.__version__)}
    result.channels_last = channels_last
    result.fixed_batch = fixed_batch
    dtypes = list(input_dtypes or [_dtype_of(model)] * len(input_shapes))
    for shape, dtype in zip(input_shapes, dtypes, strict=True):
        _check_size(shape, dtype, batch, is_symbolic=fixed_batch is None)
    recorder = Recorder(result, batch, is_symbolic=fixed_batch is None)
    on_meta = model
    try:
        with torch.inference_mode(False):
            on_meta = model if is_ours else _meta_copy(model, name)
            on_meta.train(mode == "training")
            if channels_last:
                on_meta.to(memory_format=torch.channels_last)
            inputs = [
                torch.empty(
                    (batch, *shape),
                    dtype=dtype,
                    device="meta",
                    requires_grad=inputs_require_grad and dtype.is_floating_point,
                )
                for shape, dtype in zip(input_shapes, dtypes, strict=True)
            ]
            if channels_last:
                inputs = [_channels_last(t) for t in inputs]
            _name_state(on_meta, recorder)
            result.inputs = [recorder.add_tensor(t, role="input") for t in inputs]
            result.input_shapes = [result.tensors[i].shape for i in result.inputs]
            _run(on_meta, inputs, recorder, LOSSES[loss])
    finally:
        recorder.forget()
        if on_meta is not model or is_ours:
            for p in on_meta.parameters():
                p.grad = None
    return result


def _check_size(shape: Sequence[int], dtype: torch.dtype, batch: int, is_symbolic: bool) -> None:
    """Raise InputError for an input that torch cannot address."""
    most = _MOST_BYTES // (batch * dtype.itemsize)
    if math.prod(shape) > most:
        of_batch = "" if is_symbolic else f" in a batch of {batch:,}"
        raise InputError(
            f"a sample of shape {' × '.join(map(str, shape))}{of_batch} is too large to trace: "
            f"it has {math.prod(shape):,} elements, and {most:,} is the most",
            "give a smaller shape (--input, or data.shape of a job)" + ("" if is_symbolic else ", or batch"),
        )


_is_warm = False


def _warm_up() -> None:
    """Before the first trace of a process: torch imports parts of itself inside it, and these hold on to tensors."""
    global _is_warm
    if not _is_warm:
        _is_warm = True
        trace(nn.Linear(1, 1, device="meta"), [(1,)], is_ours=True)


def _run(model: nn.Module, inputs: list[torch.Tensor], recorder: Recorder, loss: Loss) -> None:
    result = recorder.trace
    result.frozen = [n for n, p in model.named_parameters() if not p.requires_grad]
    # The modes stay on in backward: activation checkpointing runs modules again there.
    modes = (_explained(result.network), recorder, Functions(recorder), watch_modules(model, recorder))
    with (
        without_collection(),
        modes[0],
        modes[1],
        modes[2],
        modes[3],
        torch.set_grad_enabled(result.mode == "training"),
    ):
        outputs = [t for t in tree_leaves(model(*inputs)) if isinstance(t, torch.Tensor)]
        result.outputs = [recorder.add_tensor(t) for t in outputs]
        if result.mode == "inference":
            return
        recorder.modules.append(("loss", 0))
        value = loss(outputs)
        outputs.clear()
        inputs.clear()
        if not value.requires_grad:
            result.notes.append("nothing takes a gradient: there is no backward pass")
            return
        recorder.begin_backward()
        # What torch.autograd.backward does, which would turn the modes off.
        engine: Any = torch.autograd.Variable._execution_engine
        roots, grads = (value,), (torch.ones_like(value),)
        engine.run_backward(roots, grads, False, False, (), allow_unreachable=True, accumulate_grad=True)
    for p in model.parameters():
        if p.grad is not None:
            recorder.storage_of(p.grad).role = "gradient"


def cross_entropy(outputs: list[torch.Tensor]) -> torch.Tensor:
    """Mean cross-entropy of every floating output with a class dimension: (N, C), (N, C, H, W) or (N, T, C)."""
    losses = []
    for t in outputs:
        if not t.is_floating_point() or t.dim() < 2:
            continue
        scores = t.flatten(0, 1) if t.dim() == 3 else t
        target = torch.empty((scores.shape[0], *scores.shape[2:]), dtype=torch.int64, device="meta")
        losses.append(F.cross_entropy(scores, target))
    return torch.stack(losses).sum() if len(losses) > 1 else (losses[0] if losses else sum_of_outputs(outputs))


def sum_of_outputs(outputs: list[torch.Tensor]) -> torch.Tensor:
    """Sum of every floating output: the plainest thing that has a gradient."""
    sums = [t.sum() for t in outputs if t.is_floating_point()]
    if not sums:
        raise TraceError("the network returns no floating-point tensor", "count it with --mode inference")
    return torch.stack(sums).sum() if len(sums) > 1 else sums[0]


LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy, "sum": sum_of_outputs}


def _name_state(model: nn.Module, recorder: Recorder) -> None:
    """Parameters and buffers enter the trace before the first operator, tied ones as one storage."""
    for name, p in model.named_parameters():
        recorder.add_tensor(p, role="parameter", name=name)
    for name, b in model.named_buffers():
        recorder.add_tensor(b, role="buffer", name=name)


def _channels_last(image: torch.Tensor) -> torch.Tensor:
    if image.dim() != 4:
        return image
    laid_out = image.detach().to(memory_format=torch.channels_last)
    return laid_out.requires_grad_(image.requires_grad)


def _dtype_of(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _meta_copy(model: nn.Module, name: str) -> nn.Module:
    """A copy whose tensors are on meta: the structure is copied, no weight is."""
    memo: dict[int, Any] = {}
    for p in model.parameters():
        memo[id(p)] = nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=p.requires_grad)
    others = [value for module in model.modules() for value in vars(module).values()]  # also plain attributes
    for t in (*model.buffers(), *tree_leaves(others)):
        if isinstance(t, torch.Tensor) and id(t) not in memo:
            memo[id(t)] = torch.empty_like(t, device="meta", requires_grad=t.requires_grad and t.is_leaf)
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise TraceError(
            f"{name} cannot be copied: {type(error).__name__}: {error}",
            "build it on the device meta and pass is_ours=True, which traces the network itself",
        ) from error


@contextmanager
def _explained(network: str) -> Iterator[None]:
    """Whatever a network raises becomes one clear error that keeps its cause."""
    try:
        yield
    except ChronogradError:
        raise
    except Exception as error:
        text = " ".join(str(error).split()) or "no message"
        needs_values = "meta tensor" in text.lower() or "Tensor.item()" in text or "data-dependent" in text.lower()
        hint = (
            "its work depends on the values of its input, which a trace does not have"
            if needs_values
            else "check the input shape (--input) and number of classes; --fixed-batch N where the batch must divide"
        )
        raise TraceError(f"{network} raised {type(error).__name__} while traced: {text[:400]}", hint) from error

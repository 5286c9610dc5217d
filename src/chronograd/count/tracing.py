"""`trace`: a Trace from any `nn.Module`, forward and backward, on the meta device."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from chronograd.count.attention import Functions
from chronograd.count.calls import Call, Slot, as_taken, dtype_of
from chronograd.count.failures import HINT_OF_LOSS, check_modules, explained, needs_values
from chronograd.count.losses import Loss, loss_of, tensors
from chronograd.count.recorder import SYMBOLIC_BATCH, Recorder, watch_modules
from chronograd.eager import stay_eager
from chronograd.errors import InputError, TraceError
from chronograd.files import without_collection
from chronograd.inputs import Input
from chronograd.models.layout import laid_out, lay_out
from chronograd.trace import Trace

# Storage sizes are signed 64-bit numbers, also on the meta device.
_MAX_BYTES = 2**63 - 1
# Real batches for a second try of a network that fails at the symbolic batch, to learn whether the batch is the reason.
_TRIED = (2, 1)


@dataclass(frozen=True)
class _Way:
    """A way to run a network: its batch, whether that represents every batch, and whether real values are used."""

    batch: int
    is_symbolic: bool = False
    is_real: bool = False


@dataclass(frozen=True)
class Origin:
    """The name of a network, and a function that builds it again with real weights.

    A network with `build` is on the meta device. `trace` runs this network itself instead of a copy.
    """

    name: str
    build: Callable[[], nn.Module] | None = None


def trace(
    model: nn.Module,
    inputs: Call | Sequence[Sequence[int] | Input],
    *,
    origin: Origin | None = None,
    mode: str = "training",
    loss: str | Loss = "cross_entropy",
    fixed_batch: int | None = None,
    inputs_require_grad: bool = False,
    channels_last: bool = False,
) -> Trace:
    """Run a network once on the meta device and record its work.

    Args:
        model: any module, on any device; it is neither changed nor copied in memory, unless `origin` can build it.
        inputs: shape of each positional input without the batch dimension, or an `Input`, which may state a keyword, a type and
            another place for the batch. By default the type is int64 for a network that begins with an embedding, else that of
            the first floating-point parameter. For the inputs themselves, see `Call.of_example`: if the work cannot be stated
            for every batch, the trace is valid for the batch of the example. If it depends on values, the network runs on them.
        origin: by default the name of the class.
        mode: `training` (training mode: forward, loss, backward) or `inference` (evaluation mode, forward, no gradients).
        loss: `cross_entropy` (mean over samples, summed over outputs with classes), `mse` (against an input of the output's
            shape, else a target) or `sum` of all outputs. If the network itself returns a loss, as with targets, that is
            differentiated. Also `FILE.py:NAME` or a function (outputs, inputs) that returns one number.
        fixed_batch: trace at this one batch; for networks that loop over or mix their samples.
        inputs_require_grad: also compute the gradient of floating inputs, as inside a larger network.
        channels_last: use channels last in memory for images, volumes and convolutions, as training.channels_last does.

    Raises: TraceError if the network raises, needs real values, or its work is not affine in the batch. In every case the
        model, its hooks and the process stay unchanged.
    """
    _warm_up()
    if mode not in ("training", "inference"):
        raise InputError(f"mode is {mode!r}", "training or inference")
    if fixed_batch is not None and fixed_batch < 1:
        raise InputError(f"fixed_batch is {fixed_batch}", "at least 1")
    origin = origin or Origin(type(model).__name__)
    check_modules(model, origin.name)
    call = inputs if isinstance(inputs, Call) else Call.of_inputs(inputs, [dtype_of(model)] * len(inputs))
    if fixed_batch is not None:
        call.check_batch(fixed_batch)
    asked = _Traced(model, call, origin, mode, *loss_of(loss), inputs_require_grad, channels_last)
    return _first_way(partial(_traced, asked), call, fixed_batch)


def _first_way(at: Callable[[_Way], Trace], call: Call, fixed_batch: int | None) -> Trace:
    """Return a trace for every batch, else for the batch of the user's values, else one created with these values."""
    own = fixed_batch or call.batch or 1
    has_values = any(slot.value is not None for slot in call.slots)
    if fixed_batch is None and not call.is_listed:
        try:
            return at(_Way(SYMBOLIC_BATCH, is_symbolic=True))
        except TraceError as error:
            if not has_values:
                _explain_batch(at, error)
    try:
        result = at(_Way(own))
    except TraceError as failure:
        is_real = has_values and all(s.value is not None and s.value.device.type != "meta" for s in call.slots)
        if not is_real or not needs_values(failure):
            raise
        result = at(_Way(own, is_real=True))
        result.notes.append("the network needs values, so it ran on the given inputs: the counts hold for them alone")
    if fixed_batch is None:
        result.notes.append(f"the work could not be stated for every batch, so it was counted at batch {own} alone")
    return result


def _explain_batch(at: Callable[[_Way], Trace], error: TraceError) -> NoReturn:
    """Raise the error that a network raises at a real batch, if it fails at the symbolic one, or state which batch works."""
    first: TraceError | None = None
    try:
        if error.__cause__ is None or needs_values(error):
            raise error  # the recorder's own error, or missing values, which no batch provides
        for batch in _TRIED:
            try:
                at(_Way(batch))
            except TraceError as failure:
                first = first or failure
                continue
            hint = f"its work depends on the batch: give it, such as --fixed-batch {batch}"
            raise TraceError(error.message, hint) from error
        assert first is not None
        raise first
    finally:
        del error, first  # this frame is in their tracebacks: a cycle that would keep the network alive


@dataclass(frozen=True)
class _Traced:
    """A network and the arguments of `trace` for it."""

    model: nn.Module
    call: Call
    origin: Origin
    mode: str
    loss: str
    loss_function: Loss
    inputs_require_grad: bool
    channels_last: bool


def _traced(asked: _Traced, way: _Way) -> Trace:
    """Run a network in one way. Raises as `trace`."""
    model, call, origin, mode, loss = asked.model, asked.call, asked.origin, asked.mode, asked.loss
    result = Trace(origin.name, mode, loss if mode == "training" else "none", [])
    result.versions = {"torch": str(torch.__version__)}
    result.channels_last = asked.channels_last
    result.fixed_batch = None if way.is_symbolic else way.batch
    for slot in call.slots:
        _check_size(slot, way)
    recorder = Recorder(result, way.batch, is_symbolic=way.is_symbolic, is_real=way.is_real)
    run = model
    try:
        with torch.inference_mode(False):
            if way.is_real:
                run = origin.build() if origin.build else _real_copy(model, origin.name)
            elif origin.build is None:
                run = _meta_copy(model, origin.name)
            run.train(mode == "training")
            if asked.channels_last:
                lay_out(run)

            def make(slot: Slot) -> torch.Tensor:
                wants_grad = asked.inputs_require_grad and slot.dtype.is_floating_point
                if way.is_real:
                    assert slot.value is not None
                    made = slot.value.detach().clone()
                else:
                    layout = torch.strided if slot.value is None else slot.value.layout
                    made = torch.empty(slot.sized(way.batch), dtype=slot.dtype, layout=layout, device="meta")
                made = laid_out(made) if asked.channels_last else made
                return made.requires_grad_(wants_grad)

            with explained(run, call, origin.name, is_real=way.is_real):
                given = list(call.filled(make))
                _name_state(run, recorder)
                inputs = tensors(given)
                result.inputs = [recorder.add_tensor(t, role="input") for t in inputs]
                result.input_shapes = [result.tensors[i].shape for i in result.inputs]
                inputs.clear()
                _run(run, call, given, recorder, asked.loss_function)
    finally:
        recorder.forget()
        if run is not model or origin.build:
            for p in run.parameters():
                p.grad = None
    return result


def _check_size(slot: Slot, way: _Way) -> None:
    """Raise InputError for an input that torch cannot address."""
    batch = 1 if slot.batch_dim is None else way.batch
    most = _MAX_BYTES // (batch * slot.dtype.itemsize)
    if math.prod(slot.shape) > most:
        of_batch = "" if way.is_symbolic else f" in a batch of {batch:,}"
        raise InputError(
            f"a sample of shape {' × '.join(map(str, slot.shape))}{of_batch} is too large to trace: "
            f"it has {math.prod(slot.shape):,} elements, and the maximum is {most:,}",
            "give a smaller shape (--input, or data.shape of a job)" + ("" if way.is_symbolic else ", or batch"),
        )


_is_warm = False


def _warm_up() -> None:
    """Trace a tiny network once per process. Imports of torch during the first trace would hold on to tensors."""
    global _is_warm
    if not _is_warm:
        _is_warm = True
        stay_eager()
        trace(nn.Linear(1, 1, device="meta"), [(1,)])


def _run(model: nn.Module, call: Call, given: list[Any], recorder: Recorder, loss: Loss) -> None:
    """Run forward, loss and backward. `given` holds arguments and keywords; it is emptied after use."""
    result = recorder.trace
    result.frozen = [n for n, p in model.named_parameters() if not p.requires_grad]
    # The modes stay on in backward, because activation checkpointing runs modules again there.
    with (
        without_collection(),
        recorder,
        Functions(recorder),
        watch_modules(model, recorder),
        torch.set_grad_enabled(result.mode == "training"),
    ):
        outputs = [model(*given[0], **given[1])]
        result.outputs = [recorder.add_tensor(t) for t in tensors(outputs)]
        if result.mode == "inference":
            return
        recorder.modules.append(("loss", 0))
        with explained(model, call, f"the loss {result.loss}", HINT_OF_LOSS, is_real=recorder.is_real):
            value = loss(outputs[0], as_taken(*given))
        outputs.clear()
        given.clear()
        if not value.requires_grad:
            result.notes.append("nothing needs a gradient, so there is no backward pass")
            return
        recorder.begin_backward()
        # The same call as in torch.autograd.backward, which would turn the modes off.
        engine: Any = torch.autograd.Variable._execution_engine
        roots, grads = (value,), (torch.ones_like(value),)
        engine.run_backward(roots, grads, False, False, (), allow_unreachable=True, accumulate_grad=True)
    for p in model.parameters():
        if p.grad is not None:
            recorder.storage_of(p.grad).role = "gradient"


def _name_state(model: nn.Module, recorder: Recorder) -> None:
    """Add parameters and buffers to the trace before the first operator, tied ones as one storage."""
    for name, p in model.named_parameters():
        recorder.add_tensor(p, role="parameter", name=name)
    for name, b in model.named_buffers():
        recorder.add_tensor(b, role="buffer", name=name)


def _meta_copy(model: nn.Module, name: str) -> nn.Module:
    """Return a copy whose tensors are on meta, without copying any weight."""
    memo: dict[int, Any] = {}
    for p in model.parameters():
        memo[id(p)] = nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=p.requires_grad)
    others = [value for module in model.modules() for value in vars(module).values()]  # also plain attributes
    for t in (*model.buffers(), *tree_leaves(others)):
        if isinstance(t, torch.Tensor) and id(t) not in memo:
            memo[id(t)] = torch.empty_like(t, device="meta", requires_grad=t.requires_grad and t.is_leaf)
    return _copied(model, name, memo)


def _real_copy(model: nn.Module, name: str) -> nn.Module:
    """Return a copy with the same values. torch cannot copy compressed sparse buffers itself."""
    return _copied(model, name, {id(b): b.clone() for b in model.buffers() if b.layout is not torch.strided})


def _copied(model: nn.Module, name: str, memo: dict[int, Any]) -> nn.Module:
    """Return a copy of a network, with the tensors of `memo` in the place of those with their ids. Raises TraceError."""
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise TraceError(
            f"{name} cannot be copied: {type(error).__name__}: {error}",
            "count it by name, such as FILE.py:FUNCTION: it is then built without weights and not copied",
        ) from error

"""A recorder that observes a network on the meta device and creates a Trace.

The batch is one large number P. A dimension `c + s·P` is read back as an affine amount, so one pass gives the work at every
batch. Nothing is allocated on the meta device. Lifetimes are those of the storages that the network and autograd really hold:
weak references signal when each one is freed.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from chronograd.count import formulas
from chronograd.count.meta_kernels import KERNELS
from chronograd.errors import TraceError
from chronograd.models.layout import CHANNELS_LAST, is_channels_last
from chronograd.trace import ZERO, Affine, Operator, Storage, Tensor, Trace

# The symbolic batch. It is a prime above every constant dimension, so c + s·P splits in one way only. It is small enough that P
# samples of 64 GiB each still have a 63-bit size.
SYMBOLIC_BATCH = 134_217_757
# More operators, or more samples selected from the batch, mean that Python loops over the batch.
MAX_OPERATORS = 1_000_000
MAX_SAMPLES_PICKED = 256
# Real multiply-adds in a complex one.
_COMPLEX = 4

Rule = tuple[str, str, Any]


class Amounts(NamedTuple):
    """The work of an operator: multiply-adds, other arithmetic, bytes read and written."""

    macs: Affine
    vector_flops: Affine
    read_bytes: Affine
    written_bytes: Affine


class Recorder(TorchDispatchMode):
    """A dispatch mode that records every aten operator into `trace`."""

    def __init__(self, trace: Trace, batch: int, is_symbolic: bool, is_real: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_real = is_real
        self._kernels = {} if is_real else KERNELS
        self.trace = trace
        self.batch = batch
        self.is_symbolic = is_symbolic
        self.phase = "forward"
        self.modules: list[tuple[str, int]] = [("", 0)]
        self._storages: dict[int, int] = {}
        self._weak: dict[int, Any] = {}
        self._tensors: dict[tuple[Any, ...], int] = {}
        self._numel: list[Affine] = []
        self._bytes: list[Affine] = []
        self._node_op: dict[int, int] = {}
        self._is_paused = False
        self._samples_picked = 0
        self.recurrent: list[str] = []  # classes of the recurrent cells that run now
        self._depth = 0  # length of `modules` at the start of backward

    def begin_backward(self) -> None:
        self.phase, self._depth = "backward", len(self.modules)

    @property
    def runs_again(self) -> bool:
        """Return whether a module runs for a second time, in backward: activation checkpointing."""
        return self.phase == "backward" and len(self.modules) > self._depth

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop recording in this context."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    # -- tensors ---------------------------------------------------------------------------------

    def dim(self, size: int) -> Affine:
        """Return a size as an affine amount: `c + s·P` with |c| < P / 2."""
        if not self.is_symbolic or size < SYMBOLIC_BATCH // 2:
            return Affine(size, 0)
        per_sample, const = divmod(size, SYMBOLIC_BATCH)
        if const > SYMBOLIC_BATCH // 2:
            per_sample, const = per_sample + 1, const - SYMBOLIC_BATCH
        return Affine(const, per_sample)

    def add_tensor(self, t: torch.Tensor, role: str = "activation", name: str = "") -> int:
        """Return the id of a new or known tensor in the trace."""
        if t.layout is not torch.strided:
            return self._add_sparse(t, role, name)
        storage = t.untyped_storage()
        key = storage._cdata
        sid = self._storages.get(key)
        if sid is None:
            sid = self._add_storage(storage, key, t, role)
        shape, stride = t.shape, t.stride()
        view = (sid, shape, stride, t.storage_offset(), t.dtype)
        tid = self._tensors.get(view)
        if tid is None or name:
            tid = self._tensors[view] = len(self.trace.tensors)
            dims = tuple(self.dim(d) for d in shape)
            self.trace.tensors.append(Tensor(sid, dims, str(t.dtype)[6:], name))
            itemsize = t.element_size()
            self._numel.append(self._product(dims))
            held = dims if 0 not in stride else [d for d, s in zip(dims, stride, strict=True) if s != 0]
            self._bytes.append(self._product(held).times(itemsize))
        return tid

    def _add_sparse(self, t: torch.Tensor, role: str, name: str) -> int:
        """Return the id of a sparse tensor, that of its values: it has the whole shape, and the bytes of values and indices."""
        if not self.is_real:
            raise NotImplementedError(f"{name or 'a tensor'} is sparse, and has no elements on the meta device")
        with self.paused():
            values, *indices = _sparse_parts(t)
            tid = self.add_tensor(values, role, name)
            others = tuple([self.add_tensor(one, "buffer" if role == "parameter" else role) for one in indices])
        shape = tuple(self.dim(d) for d in t.shape)
        self.trace.tensors[tid] = dataclasses.replace(self.trace.tensors[tid], shape=shape)
        self._bytes[tid] = self._numel[tid].times(values.element_size()).plus(self.sum_bytes(others))
        return tid

    def _add_storage(self, storage: torch.UntypedStorage, key: int, t: torch.Tensor, role: str) -> int:
        sid = len(self.trace.storages)
        size = self._product([self.dim(d) for d in t.shape]).times(t.element_size())
        birth = len(self.trace.operators) if role == "activation" else -1
        self.trace.storages.append(Storage(size, role, birth))
        self._storages[key] = sid

        def died(_: Any) -> None:
            self.trace.storages[sid].death = max(len(self.trace.operators) - 1, 0)
            if self._storages.get(key) == sid:
                del self._storages[key], self._weak[key]

        self._weak[key] = weakref.ref(storage, died)
        return sid

    def storage_of(self, t: torch.Tensor) -> Storage:
        t = t if t.layout is torch.strided else _sparse_parts(t)[0]
        return self.trace.storages[self._storages[t.untyped_storage()._cdata]]

    def forget(self) -> None:
        """Stop watching storages: those still alive live to the end."""
        self._weak.clear()

    def _product(self, dims: Sequence[Affine]) -> Affine:
        const, slope = 1, 0
        for c, s in dims:
            if s and slope:
                raise TraceError(
                    "an operator multiplies the batch by itself, so its work is not affine in the batch",
                    "trace at one batch with --fixed-batch N",
                )
            const, slope = const * c, (const * s if s else slope * c)
        return Affine(const, slope)

    # -- operators -------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # In backward the function mode is on here, and would record every access to a shape.
        with torch._C.DisableTorchFunction():
            return self._dispatch(func, args, kwargs or {})

    def _dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.is_symbolic and func in _PICKS:
            self._check_picks(func, args)
        out = self._kernels.get(func, func)(*args, **kwargs)
        if self._is_paused:
            return out
        rule = _RULES.get(func)
        if rule is None:
            rule = _RULES[func] = _rule(func)
        self._add(func, rule, args, kwargs, out)
        return out

    def _check_picks(self, func: Any, args: Any) -> None:
        """Raise TraceError if the network splits the batch into single samples: there are 134 million of them."""
        x, dim = args[0], args[_PICKS[func]] if len(args) > _PICKS[func] else 0
        if x.shape[dim] < SYMBOLIC_BATCH // 2:
            return
        if func is torch.ops.aten.select.int:
            self._samples_picked += 1
        elif func is torch.ops.aten.unbind.int or x.shape[dim] > args[1] * MAX_SAMPLES_PICKED:
            self._samples_picked = MAX_SAMPLES_PICKED + 1
        if self._samples_picked > MAX_SAMPLES_PICKED:
            raise TraceError(
                "the network splits its batch into single samples, so its operators depend on the batch",
                "trace at one batch with --fixed-batch N",
            )

    def _add(self, func: Any, rule: Rule, args: Any, kwargs: Any, out: Any) -> None:
        family, kind, detail = rule
        ins = list(_tensors(args))
        if kwargs:
            ins += list(_tensors(kwargs.values()))
        outs = list(_tensors(out if isinstance(out, (tuple, list)) else (out,)))
        inputs = tuple([self.add_tensor(t) for t in ins])
        outputs = tuple([self.add_tensor(t) for t in outs])
        macs = vector = ZERO
        attributes: dict[str, Any] = {}
        sparse = [t for t in ins if t.layout is not torch.strided] if family == "matrix" else []
        if len(sparse) > 1:
            family, kind = "unknown", "unknown"  # the work depends on which elements both have
        if family == "matrix":
            shapes_in = [tuple(t.shape) for t in ins]
            macs = self.affine(detail, args, shapes_in, [tuple(t.shape) for t in outs])
            if any(t.is_complex() for t in ins):
                macs = macs.times(_COMPLEX)
            for t in sparse:  # only elements that are stored are multiplied
                macs = Affine(macs.const * _sparse_parts(t)[0].numel() // max(t.numel(), 1), 0)
            if kind == "conv":
                kind, attributes = _describe_conv(func, args)
                attributes |= _layout_of(ins[: 3 if "backward" in func._schema.name else 2])
        elif family == "arithmetic":
            vector = self.affine(detail, args, [tuple(t.shape) for t in ins], [tuple(t.shape) for t in outs])
        elif family == "vector":
            if func is torch.ops.aten.native_batch_norm.default and not args[5]:
                detail = 2  # with stored statistics: scale and shift
            # An embedding's gradient adds once per incoming row, for any size of the table.
            adds_rows = func is torch.ops.aten.embedding_dense_backward.default
            vector = (self._numel[inputs[0]] if adds_rows else self._largest(inputs, outputs)).times(detail)
        elif family == "pooling":
            kernel = args[2 if "backward" in func._schema.name else 1]
            kernel = list(kernel) if isinstance(kernel, (list, tuple)) else [kernel, kernel]
            vector = self._numel[outputs[0]].times(math.prod(kernel))
            attributes = _describe_pool(args, kernel)
        elif family == "fft":
            length = math.prod(ins[0].shape[d] for d in args[1])
            vector = self._largest(inputs, outputs).times(formulas.fft_flops(1, length))
        if func._schema.name in formulas.WITH_DIMS:
            attributes = {"args": _plain(args[1:])}
        elif func._schema.name in _WEIGHT_OF_NORM:
            attributes = {"affine": args[_WEIGHT_OF_NORM[func._schema.name]] is not None}
            if func is torch.ops.aten.native_batch_norm.default:
                attributes["training"] = bool(args[5])
        if family in ("vector", "copy", "pooling") and outs and _is_strided(ins, outs[0]):
            attributes = {**attributes, "strided": True}
        amounts = Amounts(macs, vector, *self._traffic(family, func._schema.name, inputs, outputs))
        self.append(kind, func._schema.name.partition("::")[2], inputs, outputs, attributes, amounts)

    def _traffic(
        self, family: str, name: str, inputs: tuple[int, ...], outputs: tuple[int, ...]
    ) -> tuple[Affine, Affine]:
        if family == "view":
            return ZERO, ZERO
        written = self.sum_bytes(outputs)
        if family == "gather":
            moved = (
                self.sum_bytes(outputs[:1]) if name in ("aten::embedding", "aten::index", "aten::gather") else written
            )
            return moved, moved
        if name in formulas.WRITE_ONLY:
            return ZERO, written
        if name in ("aten::slice_backward", "aten::select_backward", "aten::copy_"):
            return self.sum_bytes(inputs[-1:]), written
        return self.sum_bytes(inputs), written

    def append(
        self,
        kind: str,
        name: str,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        attributes: dict[str, Any],
        amounts: Amounts,
        owner: tuple[str, int, int | None] | None = None,
    ) -> int:
        """Record one operator; `owner` overrides (module, call, forward operator)."""
        index = len(self.trace.operators)
        if index >= MAX_OPERATORS:
            raise TraceError(
                f"more than {MAX_OPERATORS:,} operators: the network seems to loop over the batch",
                "trace at one batch with --fixed-batch N",
            )
        module, call, forward = owner or self._owner(index)
        if self.recurrent:
            attributes = {**attributes, "recurrent": self.recurrent[-1]}
        self.trace.operators.append(
            Operator(self.phase, kind, name, module, call, inputs, outputs, attributes, *amounts, forward)
        )
        return index

    def _owner(self, index: int) -> tuple[str, int, int | None]:
        """Return module, call and forward operator of the running operator.

        In backward, the sequence number of the running autograd node identifies the forward operator that created it; hooks
        would miss the second backward of a shared module.
        """
        if self.phase == "forward" or self.runs_again:
            self._node_op.setdefault(torch._C._autograd._get_sequence_nr() - 1, index)
            return (*self.modules[-1], None)
        node = torch._C._current_autograd_node()
        forward = None if node is None else self._node_op.get(node._sequence_nr())
        if forward is None:
            return (*self.modules[-1], None)
        made_by = self.trace.operators[forward]
        return made_by.module, made_by.call, forward if made_by.phase == "forward" else None

    def affine(self, formula: formulas.Macs, args: Any, ins: list[Any], outs: list[Any]) -> Affine:
        """Return the result of a formula on shapes, evaluated at batch 1 and 2."""
        if not self.is_symbolic:
            return Affine(formula(args, ins, outs), 0)
        one, two = (formula(args, self._at(ins, b), self._at(outs, b)) for b in (1, 2))
        return Affine(2 * one - two, two - one)

    def _at(self, shapes: list[Any], batch: int) -> list[Any]:
        half = SYMBOLIC_BATCH // 2
        return [
            tuple([d if d < half else self.dim(d).at(batch) for d in s]) if s and max(s) >= half else s for s in shapes
        ]

    def sum_bytes(self, ids: tuple[int, ...]) -> Affine:
        const = slope = 0
        for i in set(ids):
            c, s = self._bytes[i]
            const += c
            slope += s
        return Affine(const, slope)

    def _largest(self, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Affine:
        return max((self._numel[i] for i in (*inputs, *outputs)), key=lambda n: (n[1], n[0]), default=ZERO)


@contextmanager
def watch_modules(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Tell the recorder which module runs, with hooks on this model that are always removed afterwards."""
    calls: dict[str, int] = {}
    again: dict[str, int] = {}
    handles = []
    for name, module in model.named_modules():
        recorder.trace.modules[name] = type(module).__name__

        def enter(_: Any, __: Any, name: str = name) -> None:
            call = calls.get(name, 0)
            if recorder.phase == "backward":
                # Checkpointing runs segments again from last to first, so calls are numbered downwards.
                again[name] = again.get(name, 0) + 1
                call = max(call - again[name], 0)
            else:
                calls[name] = call + 1
            recorder.modules.append((name, call))

        def leave(_: Any, __: Any, ___: Any) -> None:
            recorder.modules.pop()

        if isinstance(module, nn.RNNCellBase):
            kind = next(c.__name__ for c in type(module).__mro__ if c.__module__.startswith("torch."))
            handles.append(module.register_forward_pre_hook(lambda _, __, kind=kind: recorder.recurrent.append(kind)))
            handles.append(module.register_forward_hook(lambda *_: recorder.recurrent.pop() and None, always_call=True))
        if name:
            handles.append(module.register_forward_pre_hook(enter))
            handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


_RULES: dict[Any, Rule] = {}
# Operators that can split the batch → position of their dimension.
_PICKS = {
    torch.ops.aten.select.int: 1,
    torch.ops.aten.unbind.int: 1,
    torch.ops.aten.split.Tensor: 2,
    torch.ops.aten.unsafe_split.Tensor: 2,
}
_WEIGHT_OF_NORM = {"aten::native_batch_norm": 1, "aten::native_group_norm": 1, "aten::native_layer_norm": 2}


def _rule(func: Any) -> Rule:
    """Return family, kind and detail of an operator, cached."""
    name = func._schema.name
    base = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    for candidate in (name, base):
        if candidate in formulas.RULES:
            return formulas.RULES[candidate]
    if name.startswith("aten::_fft_"):
        return ("fft", "elementwise", None)
    copied = base.removesuffix("_copy")
    if copied != base and formulas.RULES.get(copied, ("",))[0] == "view":
        return ("copy", "copy", None)
    if any(torch.Tag.pointwise in one.tags for one in (func, *_overloads(base))):
        return ("vector", "elementwise", 1)
    if func.is_view:
        return ("view", "view", None)
    return ("unknown", "unknown", None)


def _overloads(name: str) -> Iterator[Any]:
    """Yield the operators of a name such as `aten::eq`; in-place overloads may lack the tags of the others."""
    library, _, own = name.partition("::")
    packet = getattr(getattr(torch.ops, library), own, None)
    for overload in packet.overloads() if packet is not None and hasattr(packet, "overloads") else ():
        yield getattr(packet, overload)


def _sparse_parts(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the values of a sparse tensor, then its indices. Raises NotImplementedError for other layouts."""
    if t.layout is torch.sparse_coo:
        return t._values(), t._indices()
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        return t.values(), t.crow_indices(), t.col_indices()
    if t.layout in (torch.sparse_csc, torch.sparse_bsc):
        return t.values(), t.ccol_indices(), t.row_indices()
    raise NotImplementedError(f"tensors of layout {str(t.layout).removeprefix('torch.')} cannot be counted")


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _layout_of(operands: list[torch.Tensor]) -> dict[str, Any]:
    """Return whether a convolution runs with channels last, and the positions of operands that are first copied into that
    layout.

    It does if one of its operands is channels last. The weight, the last operand, is not listed.
    """
    is_last = any(map(is_channels_last, operands))
    copied = [
        i
        for i, t in enumerate(operands[:-1])
        if (layout := CHANNELS_LAST.get(t.dim()))
        and not t.is_contiguous(memory_format=layout if is_last else torch.contiguous_format)
    ]
    return {"channels_last": is_last, **({"copied": copied} if copied else {})}


def _is_strided(ins: list[torch.Tensor], out: torch.Tensor) -> bool:
    """Return whether a large input has another memory order than the result, so that reading it is not sequential."""
    if any(t.layout is not torch.strided for t in (*ins, out)):
        return False
    if ins and out.dim() == ins[0].dim():
        layout = CHANNELS_LAST[out.dim()] if is_channels_last(out) else torch.contiguous_format
        return any(
            t.dim() == out.dim()
            and 0 not in t.stride()
            and not t.is_contiguous(memory_format=layout)
            and _order(t) != _order(out)
            for t in ins
        )
    return bool(ins) and not ins[0].is_contiguous()


def _order(t: torch.Tensor) -> list[int]:
    """Return dimensions longer than one, from the outermost in memory to the innermost."""
    strides = t.stride()
    return sorted((d for d in range(t.dim()) if t.shape[d] > 1), key=lambda d: -strides[d])


def _describe_conv(func: Any, args: Any) -> tuple[str, dict[str, Any]]:
    first = 1 if func._schema.name == "aten::convolution_backward" else 0
    weight = tuple(args[first + 1].shape)
    stride, padding, dilation, transposed, _, groups = args[first + 3 : first + 9]
    if first:  # convolution_backward has bias_sizes in the place of convolution's bias
        stride, padding, dilation, transposed, _, groups = args[4:10]
    attributes = {
        "kernel": list(weight[2:]),
        "stride": list(stride),
        "padding": list(padding),
        "dilation": list(dilation),
        "groups": groups,
        "in_channels": weight[0] if transposed else weight[1] * groups,
        "out_channels": weight[1] * groups if transposed else weight[0],
        "transposed": bool(transposed),
    }
    if first:
        attributes["gradients"] = [bool(m) for m in args[10]]
    return formulas.conv_kind(weight, groups, bool(transposed)), attributes


def _describe_pool(args: Any, kernel: list[int]) -> dict[str, Any]:
    """Return kernel, stride and padding of a pooling; the stride defaults to the kernel."""
    rest = list(args[2:])
    stride = list(rest[0]) if rest and isinstance(rest[0], (list, tuple)) and rest[0] else kernel
    padding = list(rest[1]) if len(rest) > 1 and isinstance(rest[1], (list, tuple)) else [0] * len(kernel)
    dilation = list(rest[2]) if len(rest) > 2 and isinstance(rest[2], (list, tuple)) else [1] * len(kernel)
    as_many: Callable[[list[int]], list[int]] = lambda v: v if len(v) == len(kernel) else v * len(kernel)  # noqa: E731
    return {"kernel": kernel, "stride": as_many(stride), "padding": as_many(padding), "dilation": as_many(dilation)}


def _plain(values: Sequence[Any]) -> list[Any]:
    """Return arguments that are numbers or lists of numbers."""
    plain: list[Any] = []
    for v in values:
        if isinstance(v, (bool, int, float)) or v is None:
            plain.append(v)
        elif isinstance(v, (list, tuple)) and all(isinstance(x, (int, float)) for x in v):
            plain.append(list(v))
        else:
            plain.append(None)
    return plain

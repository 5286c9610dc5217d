"""Arguments of a network, positional and by keyword, and the place of the batch in each of their tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves, tree_map

from chronograd.errors import InputError
from chronograd.inputs import Input

_FORMS = "return a tensor, a tuple of arguments, a dictionary of keyword arguments, or (args, kwargs)"


@dataclass(frozen=True, eq=False)
class Slot:
    """The place of one tensor among the arguments. `shape` excludes the batch; `value` is the user's own tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    batch_dim: int | None = 0
    name: str = ""
    value: Tensor | None = None

    def sized(self, batch: int) -> tuple[int, ...]:
        """Return the whole shape at a batch."""
        at = self.batch_dim
        return self.shape if at is None else (*self.shape[:at], batch, *self.shape[at:])

    def __str__(self) -> str:
        name, dtype = (f"{self.name} " if self.name else ""), str(self.dtype).removeprefix("torch.")
        return f"{name}{' × '.join(map(str, self.shape)) or 'one number'} {dtype}"


class _Packed(NamedTuple):
    """The place of packed sequences: of their elements, and the sizes and order that belong to the example."""

    data: Slot
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


def _is_packed(value: Any) -> bool:
    return isinstance(value, PackedSequence | _Packed)


@dataclass(frozen=True)
class Call:
    """Arguments of a network with a `Slot` in place of each tensor.

    Attributes:
        batch: samples of the user's own values; None if there are none, or if they have no batch.
        is_listed: samples are in lists, as detectors take them, or in one row with offsets, so they fix the batch.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    batch: int | None = None
    is_listed: bool = False

    @classmethod
    def of_inputs(cls, inputs: Sequence[Input | Sequence[int]], dtypes: Sequence[torch.dtype]) -> Call:
        """Return a call with tensors by shape. A plain shape is that of a sample; `dtypes` apply to inputs without a type."""
        args: list[Slot] = []
        kwargs: dict[str, Slot] = {}
        for one, usual in zip(inputs, dtypes, strict=True):
            stated = one if isinstance(one, Input) else Input(tuple(one))
            dtype = getattr(torch, stated.dtype) if stated.dtype else usual
            slot = Slot(stated.shape, dtype, stated.batch_dim, stated.name)
            if stated.name:
                kwargs[stated.name] = slot
            else:
                args.append(slot)
        return cls(tuple(args), kwargs)

    @classmethod
    def of_example(cls, example: Any, model: nn.Module, batch_dim: int | Mapping[str, int | None] = 0) -> Call:
        """Return the call with the arguments in an example.

        Args:
            example: a tensor or another single argument; a tuple of arguments; a dictionary of keyword arguments; (args,
                kwargs); or a function without arguments that returns one of these.
            batch_dim: place of the batch in every tensor. By default it is the first dimension of the first tensor, and of each
                other tensor whose first dimension has the same length. A mapping gives it by the name of an argument, None for
                no batch.
        Raises: InputError for an example without tensors.
        """
        if callable(example) and not isinstance(example, nn.Module | Tensor):
            example = example()
        args, kwargs = _arguments(example, model)
        named = {**_names(model, args), **kwargs}
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if any(t.is_nested for t in tensors):
            raise InputError(
                "the example inputs contain a nested tensor, which cannot be counted", "give a padded or a packed one"
            )
        if not tensors:
            raise InputError(f"the example inputs contain no tensor, only a {type(example).__name__}", _FORMS)
        listed = next((n for name, a in named.items() if (n := _num_samples(name, a)) is not None), None)
        by_name = batch_dim if isinstance(batch_dim, Mapping) else {}
        usual = batch_dim if isinstance(batch_dim, int) else 0
        sizes = [
            t.shape[at]
            for name, argument in named.items()
            for t in tree_leaves(argument)
            if isinstance(t, Tensor) and (at := by_name.get(name, usual)) is not None and t.dim() > at
        ]
        batch = listed if listed is not None else sizes[0] if sizes else None

        def slot(value: Any, name: str) -> Any:
            if isinstance(value, PackedSequence):
                data = Slot(tuple(value.data.shape), value.data.dtype, None, name, value.data)
                return _Packed(data, value.batch_sizes, value.sorted_indices, value.unsorted_indices)
            if not isinstance(value, Tensor):
                return value
            at = by_name.get(name, usual)
            if listed is not None or at is None or value.dim() <= at or value.shape[at] != batch:
                return Slot(tuple(value.shape), value.dtype, None, name, value)
            return Slot((*value.shape[:at], *value.shape[at + 1 :]), value.dtype, at, name, value)

        slots = {
            name: tree_map(lambda v, name=name: slot(v, name), argument, is_leaf=_is_packed)
            for name, argument in named.items()
        }
        positional = tuple(slots[name] for name in list(named)[: len(args)])
        return cls(positional, {name: slots[name] for name in kwargs}, batch, listed is not None)

    @property
    def slots(self) -> list[Slot]:
        """Return the places of tensors in the order in which a network takes them."""
        return [one for one in tree_leaves((self.args, self.kwargs)) if isinstance(one, Slot)]

    def filled(self, make: Callable[[Slot], Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with a tensor in each place."""

        def fill(one: Any) -> Any:
            if isinstance(one, _Packed):
                return PackedSequence(make(one.data), *one[1:])
            return make(one) if isinstance(one, Slot) else one

        args, kwargs = (tree_map(fill, part, is_leaf=_is_packed) for part in (self.args, self.kwargs))
        return args, kwargs

    def check_batch(self, batch: int) -> None:
        """Raise InputError if the samples of the example fix another batch."""
        if self.is_listed and batch != self.batch:
            raise InputError(
                f"the example inputs have {self.batch} samples, and the batch is {batch}",
                f"write batch {self.batch}, or give an example with {batch} samples",
            )

    def values(self, model: nn.Module, batch: int, seed: int = 0) -> Iterator[Tensor]:
        """Yield a real tensor for each slot: the user's own repeated to the batch, else normal numbers, and tokens valid in
        every table.
        """
        drawn = torch.Generator().manual_seed(seed)
        tables = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
        bound = min(tables, default=1)
        for slot in self.slots:
            shape = slot.sized(batch)
            if slot.value is not None:
                yield _resized(slot.value, slot.batch_dim, batch)
            elif slot.dtype.is_floating_point or slot.dtype.is_complex:
                yield torch.randn(shape, generator=drawn, dtype=torch.float32).to(slot.dtype)
            elif slot.dtype == torch.bool:
                yield torch.ones(shape, dtype=torch.bool)
            else:
                yield torch.randint(0, min(bound, torch.iinfo(slot.dtype).max), shape, generator=drawn).to(slot.dtype)

    def __str__(self) -> str:
        return ", ".join(map(str, self.slots))


@dataclass(frozen=True, eq=False)
class Values:
    """A real tensor for each slot of a call. Samples can be sliced as from one tensor."""

    tensors: tuple[Tensor, ...]
    batch_dims: tuple[int | None, ...]

    def __len__(self) -> int:
        return next((t.shape[at] for t, at in zip(self.tensors, self.batch_dims, strict=True) if at is not None), 1)

    def __getitem__(self, part: slice) -> Values:
        start, stop, _ = part.indices(len(self))
        pairs = zip(self.tensors, self.batch_dims, strict=True)
        cut = [t if at is None else t.narrow(at, start, max(stop - start, 0)) for t, at in pairs]
        return Values(tuple(cut), self.batch_dims)


class Called(nn.Module):
    """A network that takes the tensors of its call as positional arguments."""

    def __init__(self, network: nn.Module, call: Call) -> None:
        super().__init__()
        self.network, self.call = network, call
        self.output_names = getattr(network, "output_names", ())

    @property
    def input_names(self) -> list[str]:
        """Return unique names of the tensors: those of the arguments, numbered if one contains several."""
        takes = list(inspect.signature(self.network.forward).parameters)
        names = [slot.name or (takes[i] if i < len(takes) else f"input_{i}") for i, slot in enumerate(self.call.slots)]
        return [f"{name}_{i}" if names.count(name) > 1 else name for i, name in enumerate(names)]

    def values(self, count: int, seed: int = 0) -> Values:
        """Return random values of `count` samples, or the user's own repeated to that number."""
        tensors = tuple(self.call.values(self.network, count, seed))
        return Values(tensors, tuple(slot.batch_dim for slot in self.call.slots))

    def forward(self, *tensors: Tensor) -> Any:
        rest = iter(tensors)
        args, kwargs = self.call.filled(lambda _: next(rest))
        return self.network(*args, **kwargs)


def takes_tokens(model: nn.Module) -> bool:
    """Return whether the first layer with parameters is an embedding, so that the network's usual input is integers."""
    layers = (m for m in model.modules() if not any(True for _ in m.children()))
    first = next((m for m in layers if any(True for _ in m.parameters())), None)
    return isinstance(first, nn.Embedding | nn.EmbeddingBag)


def dtype_of(model: nn.Module) -> torch.dtype:
    """Return the type of an input without a stated type."""
    if takes_tokens(model):
        return torch.int64
    return next((p.dtype for p in model.parameters() if p.is_floating_point() or p.is_complex()), torch.float32)


def as_taken(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the arguments of a call in the form of an example: a tensor, a tuple, keywords, or (args, kwargs)."""
    if kwargs:
        return (args, kwargs) if args else kwargs
    return args[0] if len(args) == 1 else args


def _arguments(example: Any, model: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments of an example."""
    if isinstance(example, Mapping):
        takes = inspect.signature(model.forward).parameters.values()
        names = {p.name for p in takes if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        is_open = any(p.kind is p.VAR_KEYWORD for p in takes)
        if all(isinstance(key, str) and (is_open or key in names) for key in example):
            return (), dict(example)
        return (dict(example),), {}
    if not isinstance(example, tuple) or isinstance(example, PackedSequence):
        return (example,), {}
    is_pair = len(example) == 2 and isinstance(example[0], tuple | list) and isinstance(example[1], dict)
    if is_pair and all(isinstance(key, str) for key in example[1]):
        return tuple(example[0]), dict(example[1])
    return example, {}


def _names(model: nn.Module, args: tuple[Any, ...]) -> dict[str, Any]:
    """Return positional arguments by their names in the network's signature."""
    takes = inspect.signature(model.forward).parameters.values()
    known = [p.name for p in takes if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return {known[i] if i < len(known) else f"argument {i + 1}": value for i, value in enumerate(args)}


def _num_samples(name: str, values: Any) -> int | None:
    """Return the number of samples of any size in an argument: images or targets in a list, as detectors take them, the offsets
    of an embedding bag, or packed sequences. Other arguments, which have a batch dimension, give None.
    """
    if isinstance(values, PackedSequence):
        return int(values.batch_sizes[0])
    if isinstance(values, Tensor):
        return len(values) if name == "offsets" and values.dim() == 1 else None
    is_list = (
        isinstance(values, list)
        and bool(values)
        and all(isinstance(one, Mapping) or (isinstance(one, Tensor) and one.dim() == 3) for one in values)
    )
    return len(values) if is_list else None


def _resized(value: Tensor, batch_dim: int | None, batch: int) -> Tensor:
    """Return a tensor at another batch, with its samples repeated."""
    if batch_dim is None or value.shape[batch_dim] == batch:
        return value
    return value.index_select(batch_dim, torch.arange(batch, device=value.device) % value.shape[batch_dim])

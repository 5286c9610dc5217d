"""The answer of `count` for a large model: totals, parts, and on demand every tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chronograd.answer import Answer, Column, Section, Table
from chronograd.configs.description import KINDS, ModelDescription
from chronograd.configs.find import load
from chronograd.configs.readers import describe
from chronograd.configs.work import SCORES, cached_numbers, macs_by_kind, params_by_kind
from chronograd.errors import InputError
from chronograd.units import FLOPS_PER_MAC, memory, percent, si
from chronograd.words import how_many

CACHE_BYTES = 2  # of a number in the cache: bf16 or fp16
WEIGHT_BYTES = 2  # of a parameter, likewise
CONVENTION = (
    "1 MAC = 2 FLOPs; MACs of matrix products and attention; biases not counted. Dense attention multiplies every pair of "
    "positions, causal attention only the pairs that the mask and the windows leave."
)
NOT_COUNTED = (
    "Not counted: the backward pass (about twice the forward pass), the optimizer, activations and their memory."
)


@dataclass(frozen=True)
class PartWork:
    """Parameters of one kind, and its multiply-adds per token of a sequence."""

    part: str
    params: int
    active_params: int
    macs_per_token: float
    macs_per_token_causal: float


@dataclass(frozen=True)
class CountedTensor:
    """Equal tensors of the layers, with `*` for their numbers. A tied tensor has work, but no further parameters."""

    name: str
    part: str
    shape: tuple[int, ...]
    copies: int
    params: int
    is_tied: bool


@dataclass(frozen=True)
class CountedConfig:
    """The result of `count` for a large model.

    Attributes:
        length: tokens of a sequence; `batch`: sequences.
        active_params: parameters that one token uses: with a mixture of experts, only those of the chosen experts.
        macs_per_token: multiply-adds of the forward pass, with dense attention; `macs_per_token_causal` with causal attention.
        flops_forward: of the whole batch, likewise.
        cache_bytes: of the keys and values of the whole batch; `cache_bytes_per_token` while no window is full.
    """

    network: str
    family: str
    num_layers: int
    width: int
    vocabulary: int
    positions: str
    length: int
    batch: int
    convention: str
    notes: list[str]
    params: int
    active_params: int
    macs_per_token: float
    macs_per_token_causal: float
    flops_forward: int
    flops_forward_causal: int
    cache_bytes_per_token: int
    cache_bytes: int
    parts: list[PartWork]
    tensors: list[CountedTensor]


def count_config(
    path: Path,
    name: str,
    changes: Mapping[str, Any] | None = None,
    *,
    length: int | None = None,
    batch: int = 1,
    with_tensors: bool = False,
) -> Answer[CountedConfig]:
    """Return the parameters, forward work and cache of a model from its `config.json`.

    Args:
        name: of the model, for the reader.
        changes: keys of the file with other values.
        length: tokens of a sequence; by default the length that the file states.
        with_tensors: also show every tensor. Data always have them.
    Raises: FileFormatError for a file that cannot be counted, InputError for an impossible length.
    """
    model = describe(load(path), name, changes)
    counted = _counted(model, name, length_of(model, name, length), batch)
    return answer_of(counted, model.length, is_stated=length is None, with_tensors=with_tensors)


def answer_of(
    counted: CountedConfig, length: int, *, is_stated: bool, with_tensors: bool = False
) -> Answer[CountedConfig]:
    """Return the answer for a counted model.

    Args:
        length: the longest sequence of its file; `is_stated`: it is the counted one.
    """
    sections = [_totals(counted, length, is_stated), _parts(counted)]
    if with_tensors:
        sections.append(_tensors(counted.tensors))
    return Answer(f"Work of {counted.network}", sections=sections, notes=[], result=counted)


def length_of(model: ModelDescription, name: str, length: int | None, option: str = "--input") -> int:
    """Return the tokens of a sequence. Raises InputError if the model cannot read the length that an option asks for."""
    is_limited = model.positions == "learned"
    if length is None or (length <= model.length and not model.is_fixed):
        return model.length if length is None else length
    if model.is_fixed or is_limited:
        most = "exactly" if model.is_fixed else "at most"
        raise InputError(
            f"{name} reads {most} {how_many(model.length, 'tokens')}, and {option} asks for {length:,}",
            f"leave {option} out" if model.is_fixed else f"write {model.length} or less",
        )
    return length


def _counted(model: ModelDescription, name: str, length: int, batch: int) -> CountedConfig:
    params, active = params_by_kind(model), params_by_kind(model, active=True)
    dense, causal = macs_by_kind(model, length), macs_by_kind(model, length, causal=True)
    parts = [
        PartWork(
            kind, params.get(kind, 0), active.get(kind, 0), dense.get(kind, 0) / length, causal.get(kind, 0) / length
        )
        for kind in (*KINDS, SCORES)
        if kind in params or kind in dense
    ]
    tensors = [
        CountedTensor(tensor.name, tensor.kind, tensor.shape, copies, copies * tensor.params, tensor.is_tied)
        for tensor, copies in model.counted()
    ]
    total, total_causal = sum(dense.values()), sum(causal.values())
    return CountedConfig(
        network=name,
        family=model.family,
        num_layers=sum(len(group.places) for group in model.groups),
        width=model.width,
        vocabulary=model.vocabulary,
        positions=model.positions,
        length=length,
        batch=batch,
        convention=CONVENTION,
        notes=[NOT_COUNTED, *(f"{note[0].upper()}{note[1:]}." for note in model.notes)],
        params=sum(params.values()),
        active_params=sum(active.values()),
        macs_per_token=total / length,
        macs_per_token_causal=total_causal / length,
        flops_forward=FLOPS_PER_MAC * batch * total,
        flops_forward_causal=FLOPS_PER_MAC * batch * total_causal,
        cache_bytes_per_token=CACHE_BYTES * cached_numbers(model, 1),
        cache_bytes=CACHE_BYTES * batch * cached_numbers(model, length),
        parts=parts,
        tensors=tensors,
    )


def _totals(counted: CountedConfig, length: int, is_stated: bool) -> Section:
    n = "{:,}".format
    outside = sum(part.params for part in counted.parts if part.part in ("embedding", "head"))
    sequences = f"{counted.batch:,} × {counted.length:,} tokens"
    rows = [
        ("parameters", n(counted.params), f"{n(counted.params - outside)} without embedding and head"),
        ("active parameters", n(counted.active_params), "of one token, with its experts"),
        ("MACs per token", f"{counted.macs_per_token:,.0f}", "dense attention"),
        ("MACs per token", f"{counted.macs_per_token_causal:,.0f}", "causal attention"),
        ("FLOPs forward", n(counted.flops_forward), f"dense, {sequences}"),
        ("FLOPs forward", n(counted.flops_forward_causal), f"causal, {sequences}"),
        ("weights", memory(WEIGHT_BYTES * counted.params), "parameters in 16-bit numbers"),
        ("cache per token", memory(counted.cache_bytes_per_token), "keys and values in 16-bit numbers"),
        ("cache", memory(counted.cache_bytes), sequences),
    ]
    is_sparse, has_mask = (
        counted.active_params < counted.params,
        counted.macs_per_token != counted.macs_per_token_causal,
    )
    left_out = {*([] if is_sparse else [1]), *([] if has_mask else [3, 5]), *([] if counted.cache_bytes else [7, 8])}
    active = f", of which a token uses {si(counted.active_params)}" if is_sparse else ""
    source = "its file states this length" if is_stated else "--input states this length"
    if not is_stated and counted.length > length:
        source += f", which exceeds the {length:,} of its file"
    return Section(
        title=f"{counted.network} ({counted.family}), {how_many(counted.num_layers, 'layers')}, {how_many(counted.length, 'tokens')}",
        takeaway=f"{si(counted.params)} parameters{active}; forward takes "
        f"{si(FLOPS_PER_MAC * counted.macs_per_token, 'FLOP')} per token in a sequence of {counted.length:,} ({source}).",
        lines=counted.notes,
        table=Table(("total", "", ""), [row for i, row in enumerate(rows) if i not in left_out], {1}),
        caption=CONVENTION,
    )


def _parts(counted: CountedConfig) -> Section:
    largest = max(counted.parts, key=lambda part: part.params)
    busiest = max(counted.parts, key=lambda part: part.macs_per_token)
    columns = [
        Column("part", "part"),
        Column("params", "params", format=_amount),
        Column("active", "active_params", format=_amount),
        Column("MACs per token", "macs_per_token", format=_amount),
        Column("causal", "macs_per_token_causal", format=_amount),
    ]
    if counted.active_params == counted.params:
        del columns[2]
    return Section(
        title="Parts",
        takeaway=f"The largest part is {largest.part} with {percent(largest.params / counted.params)} of the parameters; "
        f"most MACs are in {busiest.part}, {percent(busiest.macs_per_token / counted.macs_per_token)}.",
        table=Table.of(counted.parts, columns, drop=("causal",)),
    )


def _tensors(tensors: Sequence[CountedTensor]) -> Section:
    columns = (
        Column("tensor", "name"),
        Column("shape", lambda one: "×".join(map(str, one.shape))),
        Column("copies", "copies", format=","),
        Column("params", lambda one: "tied" if one.is_tied else f"{one.params:,}", format=str),
    )
    number = sum(one.copies for one in tensors if not one.is_tied)
    return Section(
        title="Tensors",
        takeaway=f"{how_many(number, 'tensors')} have parameters; * stands for the number of a layer.",
        table=Table.of(tensors, columns),
    )


def _amount(number: float) -> str:
    return f"{number:,.0f}" if number else ""

"""Large models whose family no reader knows: counted on the network that the library Transformers builds.

The whole network gives the parameters. Its trace has one layer of each kind, and counts the work of a layer as often as the network has
such layers. Parts have the names of modules, because nothing states their roles.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import repeat
from pathlib import Path
from typing import Any

from chronograd.answer import Answer
from chronograd.configs.answer import (
    CACHE_BYTES,
    CONVENTION,
    NOT_COUNTED,
    CountedConfig,
    CountedTensor,
    PartWork,
    answer_of,
)
from chronograd.configs.description import AttentionPart
from chronograd.configs.find import load
from chronograd.configs.work import SCORES, pairs_of
from chronograd.count import meta_network
from chronograd.count.meta_network import LayerKind
from chronograd.count.tracing import Origin, trace
from chronograd.errors import ChronogradError, InputError, TraceError
from chronograd.inputs import Input
from chronograd.trace import Operator, Trace
from chronograd.units import FLOPS_PER_MAC
from chronograd.words import how_many

_LENGTHS = ("max_position_embeddings", "seq_length", "max_seq_len", "max_sequence_length")


def count_unread(
    path: Path,
    name: str,
    changes: Mapping[str, Any] | None = None,
    *,
    length: int | None = None,
    batch: int = 1,
    with_tensors: bool = False,
) -> Answer[CountedConfig]:
    """Return the parameters, forward work and cache of a model; arguments as those of `configs.answer.count_config`.

    Raises: as `meta_network.built`; InputError without a length, TraceError for a network that cannot run on the meta device.
    """
    build = partial(meta_network.built, load(path), name, changes or {})
    with meta_network.quiet():
        network, notes = build()
        stated = next((one for key in _LENGTHS if (one := getattr(network.config, key, None))), None)
        own = length or stated
        if own is None:
            raise InputError(f"{name} states no length of a sequence", "add --input, such as --input 4096")
        try:
            counted = Unread.of(network, lambda: build()[0], own).counted(name, batch, notes)
        except Exception as error:  # of the library's code
            text = error.message if isinstance(error, ChronogradError) else f"{type(error).__name__}: {error}"
            hint = "only networks whose work does not depend on values can be counted; --input changes the length"
            raise TraceError(f"{name} cannot run on the meta device: {text}", hint) from error
    return answer_of(counted, stated or counted.length, is_stated=length is None, with_tensors=with_tensors)


@dataclass(frozen=True)
class Unread:
    """A model without a reader.

    Attributes:
        network: reduced to one layer of each kind in `blocks`; `trace` is its forward pass on `length` tokens.
        stacks: number of layers in each list of layers of the whole network; `tensors` are its parameters.
    """

    network: Any
    length: int
    stacks: dict[str, int]
    tensors: list[CountedTensor]
    blocks: list[LayerKind]
    trace: Trace

    @classmethod
    def of(cls, network: Any, again: Callable[[], Any], length: int) -> Unread:
        """Reduce and trace a network. If the reduced one cannot run, the whole network is built again and traced. Raises TraceError."""
        stacks = {name: len(stack) for name, stack in meta_network.stacks(network).items()}
        tensors = _tensors(network, list(stacks))
        blocks = meta_network.reduced(network)
        traced = _traced(network, length, blocks) if blocks else None
        if traced is None:
            network, blocks = again(), []
            traced = _forward(network, length)
        return cls(network, length, stacks, tensors, blocks, traced)

    def counted(self, name: str, batch: int, notes: Sequence[str]) -> CountedConfig:
        parts, config = self.parts(), self.network.config
        dense, causal = (
            self.length * sum(getattr(one, key) for one in parts) for key in ("macs_per_token", "macs_per_token_causal")
        )
        each, whole = self._cached()
        return CountedConfig(
            network=name,
            family=config.model_type,
            num_layers=sum(self.stacks.values()) or config.num_hidden_layers,
            width=config.hidden_size,
            vocabulary=config.vocab_size,
            positions="those of the library",
            length=self.length,
            batch=batch,
            convention=CONVENTION,
            notes=[NOT_COUNTED, *(f"{note[0].upper()}{note[1:]}." for note in (self._source(), *notes))],
            params=sum(one.params for one in parts),
            active_params=sum(one.active_params for one in parts),
            macs_per_token=dense / self.length,
            macs_per_token_causal=causal / self.length,
            flops_forward=FLOPS_PER_MAC * batch * round(dense),
            flops_forward_causal=FLOPS_PER_MAC * batch * round(causal),
            cache_bytes_per_token=CACHE_BYTES * each,
            cache_bytes=CACHE_BYTES * batch * whole,
            parts=parts,
            tensors=self.tensors,
        )

    def parts(self) -> list[PartWork]:
        """Return parameters and multiply-adds by part, in the order of the network, and those of attention scores."""
        params: dict[str, int] = defaultdict(int)
        active: dict[str, float] = defaultdict(float)
        dense: dict[str, float] = defaultdict(float)
        causal: dict[str, float] = defaultdict(float)
        used = self.used_experts
        for tensor in self.tensors:
            params[tensor.part] += tensor.params
            active[tensor.part] += tensor.params * used.get(tensor.name, 1)
        for op in self.trace.operators:
            if not op.macs.const:
                continue
            block = next((one for one in self.blocks if f"{op.module}.".startswith(one.prefix)), None)
            name, seen = _part_of(self.network, _starred(op.module, self.stacks)), 1.0
            macs = op.macs.const * (len(block.places) if block else 1)
            if self._is_score(op):
                name, seen = SCORES, self._seen(op, block)
            dense[name] += macs
            causal[name] += macs * seen
        names = [
            *dict.fromkeys([*params, *(name for name in dense if name != SCORES)]),
            *([SCORES] if SCORES in dense else []),
        ]
        return [
            PartWork(name, params[name], round(active[name]), dense[name] / self.length, causal[name] / self.length)
            for name in names
        ]

    def _cached(self) -> tuple[int, int]:
        """Return the keys and values in the cache: numbers per position, and of the whole sequence."""
        last = self.blocks[-1].stack if self.blocks else ""
        copies = {block.kept: len(block.places) for block in self.blocks if block.stack == last}
        cached = meta_network.cached_numbers_of(self.network, self.length)
        each = sum(copies.get(place, 1) * own for place, own, _ in cached)
        return each, sum(copies.get(place, 1) * own for place, _, own in cached)

    def _source(self) -> str:
        experts = [one for one in self.tensors if len(one.shape) == 3 and ".experts." in one.name]
        unknown = ", ".join(f"{number} × {name}" for name, number in self.trace.uncounted().items())
        found = [f"counted on the network that {meta_network.VERSION} builds"]
        found += [f"traced with one layer of {how_many(len(self.blocks), 'kinds')}"] if self.blocks else []
        if any(one.name not in self.used_experts for one in experts):
            found.append("whose code multiplies every token with all experts")
        return ", ".join([*found, *([f"without {unknown}"] if unknown else [])])

    def _is_score(self, op: Operator) -> bool:
        """Return whether an operator multiplies queries and keys, or their scores and values: a matrix has a row and a column per token."""
        if op.kind == "attention":
            return True
        tensors = [self.trace.tensors[index] for index in (*op.inputs, *op.outputs)]
        has_weights = any(self.trace.storages[tensor.storage].role == "parameter" for tensor in tensors)
        return not has_weights and any(tensor.shape_at(1)[-2:] == (self.length, self.length) for tensor in tensors)

    def _seen(self, op: Operator, block: LayerKind | None) -> float:
        """Return the share of pairs of positions that the mask and the window leave."""
        window = meta_network.window_of(self.network, op.module, block.kept if block else 0)
        is_decoder = type(self.network).__name__.endswith(("ForCausalLM", "LMHeadModel"))
        is_causal = getattr(self.network.get_submodule(op.module), "is_causal", False) or op.attributes.get("causal")
        sees_earlier = is_decoder if not self.network.config.is_encoder_decoder else is_causal
        part = AttentionPart("", 1, 1, 1, sees="earlier" if sees_earlier else "all", window=window)
        return pairs_of(part, self.length) / self.length**2

    @cached_property
    def used_experts(self) -> dict[str, float]:
        """Return the share of experts that a token uses, by the name of each tensor that has one entry per expert."""
        found: dict[str, float] = {}
        for op in self.trace.operators:
            experts = getattr(self.network.get_submodule(op.module), "num_experts", None) if op.module else None
            weights = self.trace.tensors[op.inputs[0]] if op.inputs else None
            if op.kind == "gather" and weights is not None and weights.name and weights.shape[0].const == experts:
                rows = self.trace.tensors[op.outputs[0]].shape[0].const
                found[_starred(weights.name, self.stacks)] = rows / self.length / experts
        return found


def _traced(network: Any, length: int, blocks: Sequence[LayerKind]) -> Trace | None:
    """Return the trace of a reduced network; None if it fails or leaves a layer out, as its configuration may state other layers."""
    try:
        traced = _forward(network, length)
    except TraceError:
        return None
    called = [f"{op.module}." for op in traced.operators]
    return traced if all(any(map(str.startswith, called, repeat(one.prefix))) for one in blocks) else None


def _forward(network: Any, length: int) -> Trace:
    words = ["input_ids", *(["decoder_input_ids"] if network.config.is_encoder_decoder else [])]
    inputs = [Input((length,), "int64", word) for word in words]
    origin = Origin(type(network).__name__, lambda: network)
    return trace(network, inputs, origin=origin, mode="inference", fixed_batch=1)


def _tensors(network: Any, stacks: Iterable[str]) -> list[CountedTensor]:
    """Return the parameters of a network, equal ones of its layers together; a tied one has no further parameters."""
    seen: set[int] = set()
    found: Counter[tuple[str, tuple[int, ...], bool]] = Counter()
    for name, parameter in network.named_parameters(remove_duplicate=False):
        found[_starred(name, stacks), tuple(parameter.shape), id(parameter) in seen] += 1
        seen.add(id(parameter))
    return [
        CountedTensor(
            name,
            _part_of(network, name.rpartition(".")[0]),
            shape,
            copies,
            0 if is_tied else copies * math.prod(shape),
            is_tied,
        )
        for (name, shape, is_tied), copies in found.items()
    ]


def _starred(name: str, stacks: Iterable[str]) -> str:
    """Return the name of a module or parameter with `*` for the number of a layer."""
    for stack in stacks:
        if name.startswith(f"{stack}."):
            _, dot, inside = name.removeprefix(f"{stack}.").partition(".")
            return f"{stack}.*{dot}{inside}"
    return name


def _part_of(network: Any, module: str) -> str:
    """Return the part of a module, whose name has `*` for the number of a layer: a module of the layer, or one outside."""
    for part, own in (("embedding", network.get_input_embeddings()), ("head", network.get_output_embeddings())):
        if own is not None and own is dict(network.named_modules()).get(module):
            return part
    stack, star, inside = module.partition(".*.")
    return f"{stack}.*.{inside.partition('.')[0]}" if star else module or "other"

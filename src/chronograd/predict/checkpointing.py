"""Activation checkpointing: each block stores only its input and runs again before its backward pass.

Memory falls to the inputs of blocks and the activations of one block. Time grows by one forward pass of the blocks.

Left out: tensors that a second run creates and frees before backward starts; states of random number generators.
Source: Chen et al. 2016, Training deep nets with sublinear memory cost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from chronograd.errors import InputError
from chronograd.predict.derived import derived
from chronograd.trace import Storage, Trace

_CONTAINERS = {"Sequential", "ModuleList", "ModuleDict"}
Lifetime = tuple[Storage, int, int | None]


def blocks(modules: Mapping[str, str]) -> dict[str, str]:
    """Return a map from the path of every module inside a block to the path of the block.

    A block is an outermost module that contains modules and whose class occurs more than once. Containers such as Sequential
    are not blocks.

    Args:
        modules: path → class name of every module, as in a trace.

    >>> blocks({"": "Net", "stem": "Conv2d", "a.0": "Block", "a.0.f": "Conv2d", "a.1": "Block", "a.1.f": "Conv2d"})
    {'a.0': 'a.0', 'a.0.f': 'a.0', 'a.1': 'a.1', 'a.1.f': 'a.1'}
    """
    parents = {path.rpartition(".")[0] for path in modules if path}
    candidates = {p: c for p, c in modules.items() if p and p in parents and c not in _CONTAINERS}
    times = Counter(candidates.values())
    repeated = {path for path, name in candidates.items() if times[name] > 1}
    found = {}
    for path in modules:
        above = path.split(".")
        outermost = next((b for i in range(len(above)) if (b := ".".join(above[: i + 1])) in repeated), None)
        if outermost is not None:
            found[path] = outermost
    return found


def is_recomputed(trace: Trace) -> np.ndarray:
    """Return a mask of the operators that run a second time, shape (num_operators,). Raises InputError without blocks."""
    inside = derived(trace, "blocks", lambda: blocks_to_checkpoint(trace.modules))
    return np.array([op.phase == "forward" and op.module in inside for op in trace.operators], dtype=bool)


def lifetimes(trace: Trace, activation_checkpointing: str = "none") -> Iterator[Lifetime]:
    """Yield (storage, birth, death) of every storage in a pass; with checkpointing, a recomputed storage appears twice."""
    if activation_checkpointing == "none":
        yield from ((s, s.birth, s.death) for s in trace.storages)
        return
    inside = derived(trace, "blocks", lambda: blocks_to_checkpoint(trace.modules))
    block_of = [inside.get(op.module) for op in trace.operators]
    uses: dict[int, list[int]] = defaultdict(list)
    starts: dict[str | None, int] = {}
    for i, op in enumerate(trace.operators):
        for storage in {trace.tensors[t].storage for t in (*op.inputs, *op.outputs)}:
            uses[storage].append(i)
        if op.phase == "backward":
            starts.setdefault(block_of[i], i)
    backward = min(starts.values(), default=len(trace.operators))
    for number, s in enumerate(trace.storages):
        is_kept = s.role != "activation" or not 0 <= s.birth < backward or s.death is None
        yield from [(s, s.birth, s.death)] if is_kept else _made_again(s, uses[number], block_of, starts, backward)


def _made_again(
    s: Storage, uses: list[int], block_of: list[str | None], starts: dict[str | None, int], backward: int
) -> Iterator[Lifetime]:
    """Yield the lifetimes of an activation: as first computed, and as recomputed for the backward pass of its block.

    The first lasts while other operators need it: forward, backward outside of its block, and other blocks that have it as
    their input, until they have run again.
    """
    own = block_of[s.birth]
    if own is None:
        again: list[int] = []
        first = [s.death or 0]
    else:
        again = [i for i in uses if i >= backward and block_of[i] == own]
        first = [i for i in uses if i not in again]
    others = {block_of[i] for i in uses if i < backward} - {None, own}
    first += [starts[b] for b in others if b in starts]
    yield s, s.birth, max(first, default=s.birth)
    if again:
        yield s, starts[own], max(again)


def blocks_to_checkpoint(modules: Mapping[str, str]) -> dict[str, str]:
    """Return the result of `blocks`. Raises InputError if there are no blocks."""
    found = blocks(modules)
    if not found:
        raise InputError(
            f"{modules.get('', 'the network')} has no blocks to checkpoint: no class of modules with modules inside "
            "occurs twice",
            "write training.activation_checkpointing=none",
        )
    return found

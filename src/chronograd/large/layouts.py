"""Every legal layout of a large model on some ranks, and the memory of many layouts at once.

Layouts that differ only in their degrees are one grid: a setting whose degrees are arrays with an entry for each layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from chronograd.configs.description import ExpertsPart
from chronograd.errors import JobError
from chronograd.hardware import catalog
from chronograd.job import LargeModel, Layout
from chronograd.large.limits import check
from chronograd.large.memory import peak_of
from chronograd.large.setting import Amount, LargeSetting, StageGrid, different, layers_of

DEGREES = ("tensor", "pipeline", "chunks", "context", "expert", "expert_tensor", "micro_batch")
SHARDING = (0, 1, 3)  # ZeRO 2 shards gradients, which a pipeline cannot; without one it is rarely faster than 3
RECOMPUTATION = ("none", "selective", "full")


@dataclass(frozen=True)
class LayoutGrid:
    """Legal layouts of a setting that share these options.

    Attributes:
        degrees: of each layout, shape (layouts, len(DEGREES)).
    """

    base: LargeSetting
    sequence: bool
    zero_stage: int
    recompute: str
    degrees: np.ndarray

    def column(self, name: str) -> np.ndarray:
        """Return one of DEGREES of each layout."""
        column: np.ndarray = self.degrees[:, DEGREES.index(name)]
        return column

    def of(self, entries: np.ndarray) -> LargeSetting:
        """Return the setting whose degrees are arrays, with one entry for each number of a layout in `entries`."""
        return self._with(dict(zip(DEGREES, self.degrees[entries].T, strict=True)))

    def one(self, number: int) -> LargeSetting:
        """Return the setting of one layout."""
        degrees = dict(zip(DEGREES, map(int, self.degrees[number]), strict=True))
        layers, pipeline = len(layers_of(self.base.model)), degrees["pipeline"]
        schedule = "interleaved" if degrees["chunks"] > 1 else self.base.layout.schedule
        each, more = divmod(layers, pipeline)
        unequal = [each + (place < more) for place in range(pipeline)] if more else ()
        return self._with(degrees, schedule=schedule, stage_layers=tuple(unequal))

    def _with(self, degrees: Mapping[str, Amount], **further: Any) -> LargeSetting:
        """Return the base with other degrees. Copies of a job are not validated again, so that degrees may be arrays."""
        base, job = self.base, self.base.job
        stated = {name: degrees[name] for name in DEGREES if name != "micro_batch"}
        layout = (job.cluster.layout or Layout()).model_copy(update={**stated, "sequence": self.sequence, **further})
        replicas = base.ranks // (layout.tensor * layout.pipeline * layout.context)
        parts = base.training.batch // (replicas * degrees["micro_batch"])
        changes = {
            "cluster": job.cluster.model_copy(update={"layout": layout}),
            "training": job.training.model_copy(update={"accumulation": parts, "zero_stage": self.zero_stage}),
            "large": (job.large or LargeModel()).model_copy(update={"recompute": self.recompute}),
        }
        return replace(base, job=job.model_copy(update=changes))


@dataclass(frozen=True)
class Expressible:
    """The layouts that a training library can express.

    Attributes:
        library: its name.
        words: what it can express, after "expresses".
        of: a function that returns whether each layout of a grid is one of them.
    """

    library: str
    words: str
    of: Callable[[LayoutGrid], np.ndarray]


@dataclass(frozen=True)
class GridStages:
    """All stages of the layouts of a grid, those of a layout in order.

    Attributes:
        entries: number of the layout of each stage; `starts` the number of the first stage of each layout.
    """

    setting: LargeSetting
    stage: StageGrid
    entries: np.ndarray
    starts: np.ndarray


def stages_of(grid: LayoutGrid) -> GridStages:
    """Return the stages of each layout."""
    stages = grid.column("pipeline")
    starts = np.cumsum(stages) - stages
    entries = np.repeat(np.arange(len(stages)), stages)
    setting = grid.of(entries)
    return GridStages(setting, _stages(setting, np.arange(len(entries)) - starts[entries]), entries, starts)


def used_bytes(grid: LayoutGrid) -> np.ndarray:
    """Return the bytes of a device that the fullest stage of each layout uses, as `memory_of` of each layout does."""
    stages = stages_of(grid)
    used: np.ndarray = np.maximum.reduceat(peak_of(stages.setting, stages.stage).used, stages.starts)
    return used


def _stages(setting: LargeSetting, place: np.ndarray) -> StageGrid:
    """Return the stage at each place: layers are split as evenly as possible, and earlier pieces have one more."""
    layers, layout = layers_of(setting.model), setting.layout
    pieces = layout.pipeline * layout.chunks
    each, more = len(layers) // pieces, len(layers) % pieces
    numbers = []
    for layer in different(layers):
        before = np.cumsum([0, *(one is layer for one in layers)])
        number = np.zeros(len(place), dtype=int)
        for chunk in range(int(np.max(layout.chunks))):
            piece = np.minimum(chunk * layout.pipeline + place, pieces)  # none of layouts with fewer chunks
            start, end = (at * each + np.minimum(at, more) for at in (piece, np.minimum(piece + 1, pieces)))
            number += before[end] - before[start]
        numbers.append((layer, number))
    return StageGrid(place, numbers, setting.model.first, setting.model.last, place == 0, place == layout.pipeline - 1)


def grids_of(base: LargeSetting, fixed: Mapping[str, Any], expressible: Expressible | None = None) -> list[LayoutGrid]:
    """Return all legal layouts of a setting's ranks and batch, without those that are the same computation.

    Args:
        fixed: values that do not change, by the name of a degree, or `sequence`, `zero_stage` or `recompute`.
        expressible: leave out other layouts.
    """
    found = []
    for sequence in _free("sequence", (True, False), fixed):
        degrees = np.array(list(_degrees(base, sequence, fixed)), dtype=int).reshape(-1, len(DEGREES))
        if "sequence" not in fixed and not sequence:
            degrees = degrees[degrees[:, 0] > 1]  # without tensor parallelism there is nothing to split
        has_shards = base.ranks > degrees[:, 0] * degrees[:, 1]
        for zero, recompute in product(_free("zero_stage", SHARDING, fixed), _free("recompute", RECOMPUTATION, fixed)):
            rows = degrees if zero == 0 or "zero_stage" in fixed else degrees[has_shards]
            grid = LayoutGrid(base, sequence, zero, recompute, rows)
            if expressible is not None:
                grid = replace(grid, degrees=rows[expressible.of(grid)])
            if len(grid.degrees):
                found.append(grid)
    return found


def _degrees(base: LargeSetting, sequence: bool, fixed: Mapping[str, Any]) -> Iterator[tuple[int, ...]]:
    """Yield the degrees of each legal layout, in the order of DEGREES."""
    batch, num_layers = base.training.batch, len(layers_of(base.model))
    for t, p, c, e, et in _ranks(base, fixed):
        data = base.ranks // (t * p * c)
        if batch % data or not _is_legal(base, sequence, (t, p, 1, c, e, et, 1)):
            continue
        for b in _free("micro_batch", divisors(batch // data), fixed):
            can_interleave = p > 1 and num_layers % p == 0 and batch // (data * b) % p == 0
            can_interleave = can_interleave and base.layout.schedule != "zero-bubble"
            chunks = divisors(num_layers // p) if can_interleave else [1]
            yield from ((t, p, v, c, e, et, b) for v in _free("chunks", chunks, fixed))


def _ranks(base: LargeSetting, fixed: Mapping[str, Any]) -> Iterator[tuple[int, ...]]:
    """Yield degrees whose product divides the ranks: tensor, pipeline, context, expert, and the tensor ranks of an expert."""
    cluster = base.job.cluster
    on_node = cluster.per_node or catalog.device(cluster.device).node.devices_per_node
    num_layers = len(layers_of(base.model))
    experts = [part.experts for _, part in base.model.parts() if isinstance(part, ExpertsPart)]
    for t in _free("tensor", [one for one in divisors(base.ranks) if one <= on_node], fixed):
        for p in _free("pipeline", [one for one in divisors(base.ranks // t) if one <= num_layers], fixed):
            for c in _free("context", divisors(base.ranks // (t * p)), fixed):
                for e in _free("expert", divisors(min(experts, default=1)), fixed):
                    for et in _free("expert_tensor", sorted({1, t}) if experts else [t], fixed):
                        if base.ranks % (t * p * c) == 0:
                            yield t, p, c, e, et


def _is_legal(base: LargeSetting, sequence: bool, degrees: Sequence[int]) -> bool:
    try:
        check(LayoutGrid(base, sequence, 0, "none", np.array([degrees])).one(0))
    except JobError:
        return False
    return True


def _free(name: str, values: Iterable[Any], fixed: Mapping[str, Any]) -> list[Any]:
    """Return the values of a degree, or only the fixed one."""
    return [value for value in values if fixed.get(name, value) == value]


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, the smallest first.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [one for one in range(1, number + 1) if number % one == 0]

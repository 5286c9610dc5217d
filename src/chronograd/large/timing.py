"""Step times of many layouts at once, equal to those of `step.step_of`.

The passes of a layer, sends and the update depend on few of the degrees, so each is computed once. What remains is arithmetic on
arrays: the passes of stages, the slowest stage and the bubble.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from chronograd.large.collective import Cover
from chronograd.large.exchange import Exchanges
from chronograd.large.groups import Groups
from chronograd.large.layouts import GridStages, LayoutGrid, stages_of
from chronograd.large.rates import Rates
from chronograd.large.setting import LargeSetting, Layer, Stage, different, layers_of
from chronograd.large.share import share_of, trained
from chronograd.large.software import Software
from chronograd.large.stage import MicroBatch, StageModel, with_host
from chronograd.large.step import pipelined, update_s
from chronograd.predict.collectives import Topology
from chronograd.predict.scaling import topology_of

Key = tuple[object, ...]
_WORK, _WEIGHTS, _HOST, _EXPOSED = range(4)  # seconds of a pass


@dataclass(frozen=True)
class SlowestStages:
    """The slowest stage of each layout.

    Attributes:
        seconds: of all its micro-batches, with the bubble.
        counts: of its layers, and of the parts before and after the layers, shape (layouts, layers + 2).
        passes: seconds of a micro-batch forward, backward, and again, shape (layouts, 3).
    """

    seconds: np.ndarray
    counts: np.ndarray
    passes: np.ndarray


@dataclass(frozen=True)
class StepTimer:
    """Times layouts of a model on a cluster. It stores what several layouts share."""

    base: LargeSetting
    software: Software = field(default_factory=Software)
    _known: dict[Key, np.ndarray] = field(default_factory=dict)

    def seconds(self, grid: LayoutGrid) -> np.ndarray:
        """Return the step time of each layout of a grid.

        Raises: InputError for a device or a precision that cannot be predicted.
        """
        found = self._micro_batches(grid, grid.zero_stage == 3)
        outside = [
            self._outside(grid, number, tuple(counts), passes)
            for number, (counts, passes) in enumerate(zip(found.counts, found.passes, strict=True))
        ]
        seconds: np.ndarray = found.seconds + np.array(outside)
        return seconds

    def bounds(self, grid: LayoutGrid) -> np.ndarray:
        """Return seconds that each layout takes at least: without gathering parameters, sends and the update."""
        return self._micro_batches(grid, is_gathered=False).seconds

    def _micro_batches(self, grid: LayoutGrid, is_gathered: bool) -> SlowestStages:
        """Return the seconds of all micro-batches with the bubble, as `step_of` adds them up for one layout."""
        stages = stages_of(grid)
        starts, setting = stages.starts, stages.setting
        passes = np.array([self._passes(grid, number, is_gathered) for number in range(len(grid.degrees))])
        counts = _counts(stages)
        whole = np.einsum("ek,ekpq->epq", counts, passes[stages.entries])
        each = with_host(whole[..., _WORK] + whole[..., _EXPOSED], whole[..., _HOST], self.base.ranks == 1)
        stage_s = each.sum(axis=1)
        slowest, bubble_s = pipelined(setting, stage_s, whole[:, 1, _WEIGHTS], starts)
        seconds = np.asarray(setting.micro_batches)[starts] * stage_s[slowest] + bubble_s
        return SlowestStages(seconds, counts[slowest], each[slowest])

    @cached_property
    def _layers(self) -> list[Layer]:
        return different(layers_of(self.base.model))

    @cached_property
    def _rates(self) -> Rates:
        return Rates.of(self.base, self.software.attention)

    @cached_property
    def _topology(self) -> Topology:
        cluster = self.base.job.cluster
        return topology_of(self._rates.device, self.base.ranks, cluster.per_node, cluster.link, cluster.intra_link)

    def _exchanges(self, setting: LargeSetting) -> Exchanges:
        return Exchanges(setting, Groups.of(setting, self._topology), self.software)

    def _once(self, key: Key, compute: Callable[[], np.ndarray]) -> np.ndarray:
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]

    def _passes(self, grid: LayoutGrid, number: int, is_gathered: bool) -> np.ndarray:
        """Return the passes of a micro-batch through each layer, and before and after the layers.

        Shape (layers + 2, passes, seconds). Recomputation runs a layer's forward pass again, without gathering parameters.
        """
        t, p, _, c, e, et, b = grid.degrees[number].tolist()
        own = ("passes", grid.sequence, t, p > 1, c, e, et, b)
        whole = self._once(own, lambda: self._computed(replace(grid, zero_stage=0), number))
        found = self._once((*own, p), lambda: self._computed(grid, number)) if is_gathered else whole
        again = {"none": 0.0 * whole[:, 2], "selective": whole[:, 2], "full": whole[:, 0]}[grid.recompute]
        is_layer = np.arange(len(whole)) < len(self._layers)
        return np.stack([found[:, 0], found[:, 1], again * is_layer[:, None]], axis=1)

    def _computed(self, grid: LayoutGrid, number: int) -> np.ndarray:
        setting = replace(grid, recompute="selective").one(number)
        model, own = StageModel(setting, self._rates, self._exchanges(setting), self.software), self.base.model
        stages = [Stage(0, ((layer,),)) for layer in self._layers]
        stages += [Stage(0, (), first=own.first), Stage(0, (), last=own.last)]
        return np.array([_seconds(model.micro_batch(one)) for one in stages])

    def _outside(self, grid: LayoutGrid, number: int, counts: tuple[float, ...], passes: np.ndarray) -> float:
        """Return the seconds of sends, exchange of the update, and optimizer. `counts` are those of the slowest stage."""
        t, p, v, c, e, et, b = grid.degrees[number].tolist()
        sends = self._once(("sends", t, p, v, c, b), lambda: self._sends(grid.one(number)))
        own = ("update", grid.sequence, grid.zero_stage, t, p, c, e, et, b, counts)
        return float(sends + self._once(own, lambda: self._update(grid.one(number), counts, passes)))

    def _sends(self, setting: LargeSetting) -> np.ndarray:
        return np.array(sum(one.exposed_s for one in self._exchanges(setting).sends()))

    def _update(self, setting: LargeSetting, counts: tuple[float, ...], passes: np.ndarray) -> np.ndarray:
        parts = (*self._layers, setting.model.first, setting.model.last)
        numbers = (counts @ np.array([trained(setting, share_of(setting, own)) for own in parts])).tolist()
        forward, backward = (
            Cover("", float(seconds), share)
            for seconds, share in zip(passes, (self.software.parameters, self.software.gradients), strict=False)
        )
        update = self._exchanges(setting).update(numbers, forward, backward)
        return np.array(sum(one.exposed_s for one in update) + update_s(setting, numbers, self._rates))


def _counts(stages: GridStages) -> np.ndarray:
    """Return how often each stage has each layer and the parts before and after the layers, shape (stages, layers + 2)."""
    stage = stages.stage
    return np.stack([*(number for _, number in stage.numbers), stage.is_first, stage.is_last], axis=1).astype(float)


def _seconds(batch: MicroBatch) -> np.ndarray:
    """Return the seconds of each pass, shape (3, 4)."""
    return np.array([(one.work_s, one.weights_s, one.host_s, one.exposed_s) for one in batch.passes])

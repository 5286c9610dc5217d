"""The layout with the shortest step among those that fit, the front of step time and memory, and the usual rule of thumb."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np

from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.large.layouts import RECOMPUTATION, Expressible, LayoutGrid, grids_of, used_bytes
from chronograd.large.memory import SIGMA_LOG
from chronograd.large.setting import LargeSetting, layers_of
from chronograd.large.timing import StepTimer
from chronograd.record import normal_probability, normal_quantile
from chronograd.units import memory
from chronograd.words import listed

FIT = 0.95  # probability with which a chosen layout fits
SLOWEST = 2.0  # times the shortest step: slower layouts are not on the front that we show
# Standard deviation of the error of log(time of a layout / time of another one). From vTrain's rows, in groups that differ in layout
# only; `python -m benchmarks.large_models.layouts` prints it.
PAIR_SIGMA = 0.14


@dataclass(frozen=True)
class LayoutOption:
    """A layout with the memory of its fullest stage and its predicted step time."""

    setting: LargeSetting
    used_bytes: float
    step_s: float

    @property
    def fit(self) -> float:
        """Return the probability that it fits."""
        room = catalog.device(self.setting.job.cluster.device).usable_bytes
        return float(normal_probability(-math.log(self.used_bytes / room) / SIGMA_LOG))

    @property
    def degrees(self) -> dict[str, Any]:
        """Return the degrees of the layout by name."""
        one, layout = self.setting, self.setting.layout
        names = ("tensor", "sequence", "pipeline", "chunks", "context", "expert", "expert_tensor")
        sizes = {"micro_batch": one.micro_batch, "micro_batches": one.micro_batches}
        options = {"recompute": one.options.recompute, "zero_stage": one.training.zero_stage}
        return {"data": one.data, **{name: getattr(layout, name) for name in names}, **sizes, **options}

    def as_data(self) -> dict[str, Any]:
        return {**self.degrees, "step_time_s": self.step_s, "used_bytes": self.used_bytes, "fit_probability": self.fit}

    def better_than(self, other: LayoutOption) -> float:
        """Return the probability that its step is shorter than that of another layout."""
        return float(normal_probability(math.log(other.step_s / self.step_s) / PAIR_SIGMA))


@dataclass(frozen=True)
class LayoutSearch:
    """The result of a search over layouts.

    Attributes:
        best: the shortest step; `runner_up` the next one, None if only one layout fits.
        rule: of thumb: the most data parallelism that fits, without recomputation and sharding if possible, then the largest
            micro-batch.
        front: layouts that no other one beats in both time and memory, up to SLOWEST times the shortest step.
        timed: number of layouts with a predicted time; others cannot be on the front.
    """

    best: LayoutOption
    runner_up: LayoutOption | None
    rule: LayoutOption
    front: Sequence[LayoutOption]
    legal: int
    fitting: int
    timed: int


@dataclass(frozen=True)
class TimedLayout:
    """A layout of a grid, with its memory and time."""

    grid: LayoutGrid
    number: int
    used_bytes: float
    step_s: float

    @property
    def option(self) -> LayoutOption:
        return LayoutOption(self.grid.one(self.number), self.used_bytes, self.step_s)


def searched(base: LargeSetting, fixed: Mapping[str, Any], expressible: Expressible | None = None) -> LayoutSearch:
    """Return the best layout of a setting's ranks and batch.

    Args:
        fixed, expressible: see `layouts.grids_of`.
    Raises: InputError if no layout is legal or fits, and for a device that cannot be predicted.
    """
    grids = grids_of(base, fixed, expressible)
    used = [used_bytes(grid) for grid in grids]
    room = catalog.device(base.job.cluster.device).usable_bytes * math.exp(-normal_quantile(FIT) * SIGMA_LOG)
    fitting = [
        (replace(grid, degrees=grid.degrees[own <= room]), own[own <= room])
        for grid, own in zip(grids, used, strict=True)
        if np.any(own <= room)
    ]
    if not fitting:
        _refuse(base, fixed, used, expressible)
    timer = StepTimer(base)
    timed = sorted(_timed(fitting, timer), key=attrgetter("step_s", "used_bytes"))
    before = [np.inf, *np.minimum.accumulate([one.used_bytes for one in timed])]  # the least memory of faster layouts
    slowest_s = SLOWEST * timed[0].step_s
    return LayoutSearch(
        timed[0].option,
        timed[1].option if len(timed) > 1 else None,
        _rule_of_thumb(fitting, timer).option,
        [
            one.option
            for one, least in zip(timed, before, strict=False)
            if one.used_bytes < least and one.step_s <= slowest_s
        ],
        sum(map(len, used)),
        sum(len(own) for _, own in fitting),
        len(timed),
    )


def _timed(fitting: Sequence[tuple[LayoutGrid, np.ndarray]], timer: StepTimer) -> Iterator[TimedLayout]:
    """Yield layouts with their times, without those that a bound shows to be neither among the best two nor on the front."""
    # The shortest step of the layouts so far with at most this memory.
    memory_of, best_of = np.array([]), np.array([np.inf])
    first = second = np.inf
    for grid, used in sorted(fitting, key=lambda pair: pair[0].zero_stage):  # bounds of the third stage are not tight
        bounds = timer.bounds(grid)
        shortest = best_of[np.searchsorted(memory_of, used, side="right")]
        places = np.flatnonzero((bounds <= second) | ((bounds < shortest) & (bounds <= SLOWEST * first)))
        if not len(places):
            continue
        seconds = timer.seconds(replace(grid, degrees=grid.degrees[places]))
        yield from (TimedLayout(grid, int(i), float(used[i]), float(s)) for i, s in zip(places, seconds, strict=True))
        first, second = np.sort([first, second, *seconds])[:2]
        memory_of, best_of = _staircase(np.append(memory_of, used[places]), np.append(best_of[1:], seconds))


def _staircase(memory_of: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return memory in ascending order, and the shortest time within each, after infinity for less memory."""
    order = np.argsort(memory_of)
    return memory_of[order], np.append(np.inf, np.minimum.accumulate(seconds[order]))


def _rule_of_thumb(fitting: Sequence[tuple[LayoutGrid, np.ndarray]], timer: StepTimer) -> TimedLayout:
    """Return the layout that the rule of thumb chooses. Of equal ones, it has more tensor parallelism and fewer chunks."""
    best: tuple[tuple[int, ...], LayoutGrid, int, float] | None = None
    for grid, used in fitting:
        options = (RECOMPUTATION.index(grid.recompute), grid.zero_stage)
        for number, (t, p, v, c, e, et, b) in enumerate(grid.degrees.tolist()):
            key = (t * p * c, *options, -b, c, -t, v, e, et, not grid.sequence)
            if best is None or key < best[0]:
                best = (key, grid, number, float(used[number]))
    assert best is not None
    _, grid, number, own = best
    return TimedLayout(grid, number, own, float(timer.seconds(replace(grid, degrees=grid.degrees[[number]]))[0]))


def _refuse(
    base: LargeSetting, fixed: Mapping[str, Any], used: Sequence[np.ndarray], expressible: Expressible | None
) -> None:
    """Raise InputError if no layout is legal, or none fits."""
    of = f" of {expressible.library}" if expressible else ""
    if not used:
        stated = listed([f"{name} {value}" for name, value in fixed.items()])
        words = f"; {expressible.library} expresses {expressible.words}" if expressible else ""
        raise InputError(
            f"no layout{of}{f' with {stated}' if stated else ''} is possible for {base.ranks} devices, {base.training.batch} "
            f"sequences of {base.sequence} tokens and {len(layers_of(base.model))} layers{words}",
            "leave out the degrees that it does not express"
            if expressible
            else "state fewer degrees, or another --batch",
        )
    raise InputError(
        f"no layout{of} fits: the smallest one needs {memory(min(float(own.min()) for own in used))}, and a device has "
        f"{memory(catalog.device(base.job.cluster.device).usable_bytes)}",
        "give more devices, or devices with more memory"
        + ("" if base.options.adapter_rank else ", or train adapters with --lora 16 or --qlora 16"),
    )

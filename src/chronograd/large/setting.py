"""A large model, its training and its layout, checked against each other, with the amounts that follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from chronograd.configs.description import ExpertsPart, ModelDescription, Part
from chronograd.job import Job, LargeModel, Layout, Training

Layer = tuple[Part, ...]
Amount = Any  # a number, or an array with an entry for each layout


@dataclass(frozen=True)
class Stage:
    """A pipeline stage: the layers of each of its chunks, and the parts before the first and after the last layer."""

    place: int
    chunks: tuple[tuple[Layer, ...], ...]
    first: Layer = ()
    last: Layer = ()

    @property
    def layers(self) -> list[Layer]:
        return [layer for chunk in self.chunks for layer in chunk]

    @property
    def numbers(self) -> list[tuple[Layer, Amount]]:
        """Return each different layer with its number."""
        numbers = Counter(map(id, self.layers))
        return [(layer, numbers[id(layer)]) for layer in different(self.layers)]

    @property
    def is_first(self) -> Amount:
        return bool(self.first)

    @property
    def is_last(self) -> Amount:
        return bool(self.last)


@dataclass(frozen=True)
class StageGrid:
    """Pipeline stages of many layouts: each array has an entry for each stage."""

    place: np.ndarray
    numbers: list[tuple[Layer, Amount]]
    first: Layer
    last: Layer
    is_first: np.ndarray
    is_last: np.ndarray


@dataclass(frozen=True)
class LargeSetting:
    """A large model and a job that trains it.

    The degrees of its layout, and its number of micro-batches, may be arrays with an entry for each layout; see `grid`. Then all
    amounts that follow are arrays.

    The number of ranks is data · context · pipeline · tensor. A rank computes `micro_batches` micro-batches per step, each of
    `micro_batch` sequences of `sequence` tokens, shared with the ranks of its tensor and context group.
    """

    model: ModelDescription
    job: Job

    @property
    def layout(self) -> Layout:
        return self.job.cluster.layout or Layout()

    @property
    def options(self) -> LargeModel:
        return self.job.large or LargeModel()

    @property
    def training(self) -> Training:
        return self.job.training

    @property
    def ranks(self) -> int:
        return self.job.cluster.count

    @property
    def sequence(self) -> int:
        """Return the tokens of a sequence."""
        return self.job.data.shape[0] if self.job.data.shape else self.model.length

    @property
    def data(self) -> int:
        """Return the number of data-parallel ranks."""
        layout = self.layout
        return self.ranks // (layout.tensor * layout.pipeline * layout.context)

    @property
    def micro_batches(self) -> int:
        return self.training.accumulation

    @property
    def micro_batch(self) -> int:
        """Return the sequences of a micro-batch."""
        return self.training.batch // (self.data * self.micro_batches)

    @property
    def has_experts(self) -> bool:
        return any(isinstance(part, ExpertsPart) for _, part in self.model.parts())

    @property
    def expert_tensor(self) -> int:
        """Return the ranks that share the matrices of an expert."""
        return self.layout.tensor if self.layout.expert_tensor is None else self.layout.expert_tensor

    @property
    def expert_data(self) -> int:
        """Return the ranks with the same share of the experts, which exchange their gradients."""
        return self.ranks // (self.layout.pipeline * self.layout.expert * self.expert_tensor)

    @property
    def tokens(self) -> int:
        """Return the tokens of a micro-batch on a rank, which only context parallelism divides."""
        return self.micro_batch * self.sequence // self.layout.context

    @property
    def step_tokens(self) -> int:
        """Return the tokens of a step over all ranks."""
        return self.training.batch * self.sequence

    @property
    def norm_share(self) -> int:
        """Return the ranks that share norms and residuals: those of tensor parallelism, if it has sequence parallelism."""
        return self.layout.tensor if self.layout.sequence else 1

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Return the pipeline stages. Layers are in order; an encoder's precede its decoder's.

        `limits.check` refuses a number of layers that the stages do not divide.
        """
        layout, layers = self.layout, layers_of(self.model)
        count = layout.pipeline * layout.chunks
        sizes = layout.stage_layers or [len(layers) // count] * count
        ends = list(accumulate(sizes))
        pieces = [tuple(layers[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
        return tuple(
            Stage(
                place,
                tuple(pieces[place :: layout.pipeline]),
                self.model.first if place == 0 else (),
                self.model.last if place == layout.pipeline - 1 else (),
            )
            for place in range(layout.pipeline)
        )


def layers_of(model: ModelDescription) -> list[Layer]:
    """Return the layers in the order of the stages."""
    layers: list[Layer] = []
    for stack in dict.fromkeys(group.stack for group in model.groups):
        own = {place: group.parts for group in model.groups if group.stack == stack for place in group.places}
        layers += [own[place] for place in sorted(own)]
    return layers


def different(layers: Sequence[Layer]) -> list[Layer]:
    """Return each different layer once."""
    return list({id(layer): layer for layer in layers}.values())

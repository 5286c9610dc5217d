"""A large model, its training and its layout, checked against each other, with the amounts that follow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from chronograd.configs.description import ModelDescription, Part
from chronograd.job import Job, LargeModel, Layout, Training

Layer = tuple[Part, ...]


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


@dataclass(frozen=True)
class LargeSetting:
    """A large model and a job that trains it.

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
        return self.job.replicas

    @property
    def micro_batches(self) -> int:
        return self.training.accumulation

    @property
    def micro_batch(self) -> int:
        """Return the sequences of a micro-batch."""
        return self.training.batch // (self.data * self.micro_batches)

    @property
    def expert_tensor(self) -> int:
        """Return the ranks that share the matrices of an expert."""
        return self.layout.expert_tensor or self.layout.tensor

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
        layout = self.layout
        layers: list[Layer] = []
        for stack in dict.fromkeys(group.stack for group in self.model.groups):
            own = {place: group.parts for group in self.model.groups if group.stack == stack for place in group.places}
            layers += [own[place] for place in sorted(own)]
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

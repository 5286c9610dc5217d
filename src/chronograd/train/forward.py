"""One batch of inference in parts: input, transfer, forward. Evaluation mode, no gradients, no communication."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from chronograd.data.datasets import Dataset
from chronograd.job import Job, steps_per_epoch
from chronograd.train.inputs import InputSplit, input_of
from chronograd.train.order import SampleOrder, rank_slice
from chronograd.train.rank_context import RankContext
from chronograd.train.step import DTYPES, Part, autocast, classes_of, compiled, initial_network, set_matrix_arithmetic
from chronograd.train.watchdog import WATCHDOG


class ForwardStep:
    """Network and data of one rank. A step runs the network on one batch of training samples, in the job's order.

    Left out: copying the outputs to the host.
    """

    waited_s: float | None = None

    def __init__(self, job: Job, dataset: Dataset, place: RankContext, initial_weights: Path | None = None) -> None:
        training = job.training
        set_matrix_arithmetic(training.precision, place.device)
        self.training, self.place, self.device = training, place, place.device
        self.network, _ = initial_network(job, dataset, place, initial_weights)
        self.network.requires_grad_(False)
        self.network.eval()
        self.model = compiled(self.network, training.compile)
        self.steps_per_epoch = steps_per_epoch(dataset.card.train_size, training.batch)
        classes_N = classes_of(dataset.train_labels).numpy()
        self.order = SampleOrder(training.seed, len(classes_N), training.batch, classes_N, job.data.resampling)
        self.input: InputSplit = input_of(
            dataset.train, dataset, place.device, training.channels_last, dtype=DTYPES[training.param_dtype]
        )
        self.outputs: Any = None
        self._raw = self._seen = torch.empty(0)

    def parts(self, index: int, is_updated: bool = True) -> Iterator[Part]:
        """Yield name and call of each part of batch `index`, counted from 0."""
        for name, call in (
            ("input", lambda: self.gather(index)),
            ("transfer", self.transfer),
            ("input", self.prepare),
            ("forward", self.forward),
        ):
            WATCHDOG.at(name, index + 1)
            yield name, call

    def no_sync(self) -> None:
        """Return None: inference does not communicate."""

    def gather(self, index: int) -> None:
        part = rank_slice(self.training.batch, self.place.rank, self.place.world_size)
        self._raw = self.input.gather(self.order.samples(index)[part])
        self.input.prefetch(self.order.samples(index + 1)[part])

    def transfer(self) -> None:
        if self.device.type == "cuda" and self._raw.device.type == "cpu":
            self._raw = self._raw.pin_memory().to(self.device, non_blocking=True)

    def prepare(self) -> None:
        with torch.inference_mode():
            self._seen = self.input.prepare(self._raw)

    def forward(self) -> None:
        with torch.inference_mode(), autocast(self.training, self.device):
            self.outputs = self.model(self._seen)

    def run(self, index: int) -> None:
        """Run all parts of batch `index`."""
        self.outputs = None
        for _, call in self.parts(index):
            call()

"""The gradient noise scale: squared norms of gradients over few samples and over many, at every Nth step of a run.

With several ranks, each computes the norm of its gradient and of the average. A single rank runs forward and backward
once more on the parts of its batch, before the step's passes: on the accumulated parts, or else on two halves.
Batch norm normalises each part separately, as with ranks and accumulation. If halves are smaller than the batches that
training normalises, the scale may differ.

On the CPU, training stays the same bit by bit: buffers and random generators are restored, and gradients and update do
not change. Left out: state that a network stores outside its buffers.

Source: McCandlish et al., arXiv 1812.06162, appendix A.1; chronograd.predict.batch_size has the arithmetic.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from chronograd.train.order import rank_slice

if TYPE_CHECKING:
    from chronograd.train.step import TrainingStep


class GradientNoise:
    """Measures the noise scale in some steps of one rank.

    Attributes:
        found: the last measurement: `grad_sq_small`, `grad_sq_big`, and the samples of these gradients, `batch_small` (the
            harmonic mean of unequal parts) and `batch_big`; `noise_scale_s`, its seconds. With ranks, some of these seconds lie
            within backward. On CUDA they cannot be separated, and one read of the gradients stays there.
    """

    def __init__(self, step: TrainingStep) -> None:
        self.found: dict[str, float] = {}
        self._step = step
        self._is_alone = step.place.world_size == 1
        self._trained: list[Any] = [p for group in step.optimizer.param_groups for p in group["params"]]
        self._own: dict[int, torch.Tensor] = {}
        self._handles: list[Any] = []
        self._seconds = 0.0

    def is_due(self, index: int) -> bool:
        """Return whether step `index`, counted from 0, measures."""
        return index % self._step.training.noise_scale_every == 0

    def begin(self) -> None:
        """Begin a measurement, when the batch is ready and before the passes over it."""
        self._seconds = 0.0
        with self._clock():
            if self._is_alone:
                self.found = self._of_parts()
            else:
                self._own.clear()
                self._handles = [p.register_post_accumulate_grad_hook(self._note) for p in self._trained]

    def end(self) -> None:
        """End a measurement, when the gradients of all ranks are averaged and before the update."""
        with self._clock():
            if not self._is_alone:
                self.found = self._of_ranks()
        self.found["noise_scale_s"] = self._seconds

    def _note(self, parameter: torch.Tensor) -> None:
        """Take the norm of a gradient before it is sent. With accumulation, the last call has the sum of all parts."""
        start = time.perf_counter()
        assert parameter.grad is not None
        self._own[id(parameter)] = _square(parameter.grad)
        self._seconds += time.perf_counter() - start

    def _of_ranks(self) -> dict[str, float]:
        step = self._step
        for handle in self._handles:
            handle.remove()
        samples, batch = step.rank_samples, step.training.batch
        # The loss was scaled by the rank's share of the batch, so that the mean over ranks is the mean of the batch.
        share = samples * step.place.world_size / batch
        own, both = _total(self._own.values()), _total(_square(p.grad) for p in self._trained if p.grad is not None)
        scale = step.scaler.get_scale() ** 2
        return _line(own / share**2 / scale, both / scale, samples, batch)

    def _of_parts(self) -> dict[str, float]:
        step, samples = self._step, self._step.rank_samples
        count = min(max(2, step.training.accumulation), samples)
        whole: list[torch.Tensor | None] = [None] * len(self._trained)
        squares, sizes = [], []
        with _unchanged(step.network, step.device):
            for i in range(count):
                part = rank_slice(samples, i, count)
                sizes.append(part.stop - part.start)
                loss = step.scaler.scale(step.loss_on(part))
                gradients = torch.autograd.grad(loss, self._trained, allow_unused=True)
                squares.append(_total(_square(g) for g in gradients if g is not None))
                for j, gradient in enumerate(gradients):
                    if gradient is not None:
                        weighted, before = gradient * (sizes[-1] / samples), whole[j]
                        whole[j] = weighted if before is None else before + weighted
        scale = step.scaler.get_scale() ** 2
        big = _total(_square(g) for g in whole if g is not None)
        return _line(sum(squares) / count / scale, big / scale, count / sum(1 / n for n in sizes), samples)

    @contextmanager
    def _clock(self) -> Iterator[None]:
        """Time a block. On CUDA, wait for earlier work before, and for the block's own work after."""
        _wait(self._step.device)
        start = time.perf_counter()
        yield
        _wait(self._step.device)
        self._seconds += time.perf_counter() - start


def _line(sq_small: float, sq_big: float, batch_small: float, batch_big: float) -> dict[str, float]:
    return {"grad_sq_small": sq_small, "grad_sq_big": sq_big, "batch_small": batch_small, "batch_big": batch_big}


def _square(gradient: torch.Tensor) -> torch.Tensor:
    """Return the squared norm, on the gradient's device."""
    norm: torch.Tensor = torch.linalg.vector_norm(gradient.detach().float())
    return norm.double().square()


def _total(squares: Iterable[torch.Tensor]) -> float:
    return float(torch.stack(list(squares)).sum())


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _unchanged(network: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore buffers, such as running means, and random generators after a block."""
    buffers = list(network.buffers())
    kept = [buffer.clone() for buffer in buffers]
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        with torch.no_grad():
            for buffer, values in zip(buffers, kept, strict=True):
                buffer.copy_(values)

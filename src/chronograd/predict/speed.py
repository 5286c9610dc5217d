"""Speed of data-parallel training with parameter servers: steps per second from a few coefficients.

With w workers, p servers and a global batch of M, and coefficients a of at least 0

    synchronous     1/f = a0·M/w + a1 + a2·w/p + a3·w + a4·p      a step is M samples
    asynchronous    w/f = a0 + a1·w/p + a2·w + a3·p               a step is one worker's minibatch

a0 is computation, a1 (asynchronous: in a0) the fixed part, then the transfer to p servers, then the overhead of each worker and
of each server. In a synchronous step the batch per worker shrinks, so there is a best number of workers. Asynchronous workers
always add steps; their loss is staleness.

The counterpart without servers has the same computation and the same link. It is ours, not the paper's:

    all-reduce      1/f = a0·M/w + a1 + a2·(w − 1)/w + a3·w

In a2 one worker moves gradients and parameters, twice the size of the network, over the link of one server. A ring all-reduce
moves 2(w − 1)/w times the size over each rank's link, which is a2·(w − 1)/w. Only the overhead a3 grows with w.

Source: Peng, Bao, Chen, Wu, Guo, Optimus, EuroSys 2018, section 3.2, and its authors' code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from chronograd.errors import InputError
from chronograd.record import Z80
from chronograd.words import how_many

Mode = Literal["synchronous", "asynchronous", "all-reduce"]
Array = np.ndarray
NUM_COEFFICIENTS: dict[Mode, int] = {"synchronous": 5, "asynchronous": 4, "all-reduce": 4}


def terms(mode: Mode, workers: Any, servers: Any, batch: float | None) -> Array:
    """Return the factors of the coefficients: shape (num_coefficients, ...). The weighted sum is 1/f, asynchronously w/f."""
    w, p = np.broadcast_arrays(np.asarray(workers, dtype=float), np.asarray(servers, dtype=float))
    if mode == "asynchronous":
        return np.stack([np.ones_like(w), w / p, w, p])
    assert batch is not None
    if mode == "all-reduce":
        return np.stack([batch / w, np.ones_like(w), (w - 1) / w, w])
    return np.stack([batch / w, np.ones_like(w), w / p, w, p])


def without_servers(mode: Mode, coefficients: Array) -> Array:
    """Return the coefficients of an all-reduce from those with servers: shape (..., num_coefficients) to (..., 4)."""
    if mode == "synchronous":
        return coefficients[..., :4]
    a0, a1, a2, _ = np.moveaxis(coefficients, -1, 0)
    return np.stack([a0, np.zeros_like(a0), a1, a2], axis=-1)


@dataclass(frozen=True)
class SpeedModel:
    """Coefficients in seconds, a0 to a4 (else to a3), and the global batch of a step that workers share.

    Raises InputError for a wrong number of coefficients, a negative one, and a batch that is missing or not above 0.
    """

    mode: Mode
    coefficients: tuple[float, ...]
    batch: float | None = None

    def __post_init__(self) -> None:
        a, needed = self.coefficients, NUM_COEFFICIENTS[self.mode]
        if len(a) != needed or not all(0 <= value < math.inf for value in a) or not any(a):
            raise InputError(
                f"coefficients {list(a[:9])} of a {self.mode} model",
                f"give {how_many(needed, 'numbers')}, none below 0, not all 0",
            )
        if self.mode != "asynchronous" and not (self.batch and 0 < self.batch < math.inf):
            raise InputError(
                f"a global batch of {self.batch}", "a synchronous step needs its global batch: give --batch"
            )

    def all_reduce(self) -> SpeedModel:
        """Return the same work and link without servers. Asynchronous workers then share one minibatch per step.

        >>> round(OPTIMUS_RESNET50.all_reduce().steps_per_s(4), 5)
        0.05999
        """
        if self.mode == "all-reduce":
            return self
        coefficients = without_servers(self.mode, np.array(self.coefficients))
        return SpeedModel("all-reduce", tuple(coefficients.tolist()), self.batch or 1.0)

    def steps_per_s(self, workers: Any, servers: Any = 1) -> Any:
        """Return the steps per second of all workers together; arrays broadcast. Workers and servers are at least 1. An
        all-reduce has no servers.

        >>> round(SpeedModel("synchronous", (1.02, 2.78, 4.92, 0, 0.02), 40).steps_per_s(4, 2), 5)
        0.04374
        """
        if np.min(workers) < 1 or np.min(servers) < 1:
            raise InputError(f"{np.min(workers)} workers, {np.min(servers)} servers", "give at least 1 of each")
        needed_s = np.tensordot(np.array(self.coefficients), terms(self.mode, workers, servers, self.batch), axes=1)
        done = np.asarray(workers, dtype=float) if self.mode == "asynchronous" else 1.0
        with np.errstate(divide="ignore"):  # all terms may have coefficients of 0
            found = done / needed_s
        return float(found) if np.ndim(found) == 0 else found

    def time_s(self, steps: float, workers: Any, servers: Any = 1) -> Any:
        """Return the seconds of `steps` steps."""
        if not 0 < steps < math.inf:
            raise InputError(f"{steps:g} steps", "give a number above 0")
        return steps / self.steps_per_s(workers, servers)

    def best_workers(self, servers: int, counts: Sequence[int]) -> int:
        """Return the fastest count of workers; of equally fast ones, the smallest."""
        if not counts:
            raise InputError("no count of workers", "give one or more")
        ordered = sorted(counts)
        return ordered[int(np.argmax(self.steps_per_s(np.array(ordered), servers)))]

    def closed_form(self, servers: int = 1) -> float | None:
        """Return the real number of workers at which a shared step is shortest.

        It is sqrt(a0·M / (a2/p + a3)) with servers, sqrt((a0·M − a2) / a3) by all-reduce, and 1 if one worker is faster than
        more. None if more workers are always faster: asynchronous ones, or if nothing grows with their number.
        """
        if self.mode == "asynchronous":
            return None
        a0, _, a2, a3 = self.coefficients[:4]
        assert self.batch is not None
        if self.mode == "all-reduce":
            gained_s = a0 * self.batch - a2
            if gained_s <= 0:
                return 1.0
            return max(1.0, math.sqrt(gained_s / a3)) if a3 > 0 else None
        growing_s = a2 / servers + a3
        return math.sqrt(a0 * self.batch / growing_s) if growing_s > 0 else None


def time_to_target(steps: Any, steps_per_s: Any, steps_sigma_log: Any, speed_sigma_log: Any = 0.0) -> Array:
    """Return seconds to a target, with their 80 % interval: shape (3, ...), the median, the low and the high bound.

    Steps and speed are log-normal and independent. Steps of asynchronous workers are one minibatch each. `steps` must include
    the steps that staleness adds, as no model here predicts them. For another global batch see
    `predict.batch_size.steps_factor`.

    Args:
        steps: until the target. `steps_sigma_log`: standard deviation of their logarithm, between seeds.
        steps_per_s: of all workers. `speed_sigma_log`: standard deviation of its logarithm.

    >>> [round(float(s), 1) for s in time_to_target(1000, 10, 0.1)]
    [100.0, 88.0, 113.7]
    """
    seconds = np.asarray(steps, dtype=float) / steps_per_s
    spread = np.exp(Z80 * np.hypot(steps_sigma_log, speed_sigma_log))
    return np.stack(np.broadcast_arrays(seconds, seconds / spread, seconds * spread))


# ResNet-50 on the paper's testbed: a step of 40 samples, and asynchronous minibatches.
OPTIMUS_RESNET50 = SpeedModel("synchronous", (1.02, 2.78, 4.92, 0.0, 0.02), 40)
OPTIMUS_RESNET50_ASYNCHRONOUS = SpeedModel("asynchronous", (2.83, 3.92, 0.0, 0.11))

"""The samples of a step, and the part of each rank. Needs no torch, so that every backend can use it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import numpy as np

from chronograd.data.labels import apportioned
from chronograd.job import steps_per_epoch

Indices = np.ndarray[Any, np.dtype[np.int64]]
Resampling = Literal["natural", "square_root", "uniform"]
# Batch size outside training. It is fixed, so that a sample has the same neighbours for any number of ranks.
CHUNK = 256


class SampleOrder:
    """The samples of every step of a run: a function of seed and step alone.

    With `natural` resampling an epoch is a permutation. Otherwise an epoch has the same number of samples, and each
    class a share in proportion to the square root of its frequency, or equal shares. The images of a class come equally
    often, plus or minus one; each epoch draws which come once more.

    Source: square-root and uniform resampling of hashtags, D. Mahajan et al., arXiv 1805.00932, section 2.
    """

    def __init__(
        self, seed: int, num_samples: int, batch: int, labels: Indices | None = None, resampling: Resampling = "natural"
    ) -> None:
        """Set the order. `labels` are the class of every sample, for resampling. Raises InputError if there is no whole batch."""
        self.seed, self.num_samples, self.batch = seed, num_samples, batch
        self.steps_per_epoch = steps_per_epoch(num_samples, batch)
        self._labels = None if resampling == "natural" else labels
        self._resampling = resampling
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def samples(self, step: int) -> Indices:
        """Return the samples of step `step`, counted from 0: the same for any number of ranks."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._order_of(epoch)
        return self._order[position * self.batch : (position + 1) * self.batch]

    def _order_of(self, epoch: int) -> Indices:
        if self._labels is None:
            return epoch_order(self.seed, epoch, self.num_samples)
        random = np.random.RandomState([self.seed, epoch])
        met = [_met(np.flatnonzero(self._labels == c), n, random) for c, n in enumerate(self._shares())]
        return random.permutation(np.concatenate(met)).astype(np.int64)

    def _shares(self) -> list[int]:
        """Return the samples of each class in an epoch; they sum to the number of samples."""
        assert self._labels is not None
        return class_shares(np.bincount(self._labels), self._resampling)


def class_shares(counts: np.ndarray[Any, Any], resampling: Resampling) -> list[int]:
    """Return the samples of each class in an epoch of the whole set's size.

    >>> class_shares(np.array([90, 10]), "square_root"), class_shares(np.array([90, 10]), "uniform")
    ([75, 25], [50, 50])
    """
    weights = counts.astype(float)
    if resampling != "natural":
        weights = np.sqrt(weights) if resampling == "square_root" else (weights > 0).astype(float)
    return apportioned(int(counts.sum()), weights)


def _met(members: Indices, count: int, random: np.random.RandomState) -> Indices:
    """Return `count` of the members: each the same number of times, and some, drawn at random, once more."""
    if count == 0:
        return members[:0]
    times, rest = divmod(count, len(members))
    return np.concatenate([np.tile(members, times), random.permutation(members)[:rest]])


def rank_slice(batch: int, rank: int, world_size: int) -> slice:
    """Return a rank's part of a step's samples; sizes differ by at most one.

    >>> [rank_slice(5, rank, 2) for rank in (0, 1)]
    [slice(0, 2, None), slice(2, 5, None)]
    """
    return slice(rank * batch // world_size, (rank + 1) * batch // world_size)


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, num_samples: int) -> Indices:
    """Return the permutation of one epoch. NumPy's legacy generator draws it, because its stream will never change."""
    return np.random.RandomState([seed, epoch]).permutation(num_samples).astype(np.int64)


def random_seed(seed: int, epoch: int, rank: int) -> int:
    """Return the seed of everything random within an epoch on a rank, such as dropout.

    It is a function of these three, so a run that resumes at an epoch draws the same numbers.
    """
    return int(np.random.SeedSequence([seed, epoch, rank]).generate_state(1, np.uint64)[0] >> np.uint64(1))

"""Which samples make a step, and which of them are a rank's. Needs no torch, so that every backend can use it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from chronograd.errors import InputError

Indices = np.ndarray[Any, np.dtype[np.int64]]


def steps_per_epoch(num_samples: int, batch: int) -> int:
    """Whole global batches in an epoch; the last incomplete one is dropped. Raises InputError if there is none."""
    if batch > num_samples:
        raise InputError(
            f"training.batch is {batch:,}, more than the {num_samples:,} training samples: there is no whole batch",
            "use a smaller batch or more samples",
        )
    return num_samples // batch


def step_samples(seed: int, num_samples: int, batch: int, step: int) -> Indices:
    """The samples of step `step`, counted from 0: the same for any number of ranks."""
    epoch, position = divmod(step, steps_per_epoch(num_samples, batch))
    return epoch_order(seed, epoch, num_samples)[position * batch : (position + 1) * batch]


def rank_share(samples: Indices, rank: int, world_size: int) -> Indices:
    """A rank's part of a step's samples; sizes differ by at most one.

    >>> [list(rank_share(np.arange(5), r, 2)) for r in (0, 1)] == [[0, 1], [2, 3, 4]]
    True
    """
    n = len(samples)
    return samples[rank * n // world_size : (rank + 1) * n // world_size]


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, num_samples: int) -> Indices:
    """The permutation of one epoch. From NumPy's legacy generator, whose stream is frozen for ever."""
    return np.random.RandomState([seed, epoch]).permutation(num_samples).astype(np.int64)


def random_seed(seed: int, epoch: int, rank: int) -> int:
    """Seed of everything random within an epoch on a rank, such as dropout.

    As the state is a function of these three, a run that is resumed at an epoch draws what it would have drawn.
    """
    return int(np.random.SeedSequence([seed, epoch, rank]).generate_state(1, np.uint64)[0] >> np.uint64(1))

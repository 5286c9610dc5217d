"""Sample order: every sample once per epoch, and equal steps for any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronograd.errors import InputError
from chronograd.job import steps_per_epoch
from chronograd.train.order import SampleOrder, class_shares, epoch_order, random_seed, rank_slice

FROZEN_ORDER = [3, 7, 4, 0, 2, 6, 5, 1]
FROZEN_SEED = 7896617691693857887


@given(samples=st.integers(1, 300), batch=st.integers(1, 64), ranks=st.integers(1, 7), seed=st.integers(0, 9))
def test_ranks_share_steps_without_repetition(samples: int, batch: int, ranks: int, seed: int) -> None:
    if batch > samples:
        with pytest.raises(InputError, match="no batch is full"):
            steps_per_epoch(samples, batch)
        return
    count = steps_per_epoch(samples, batch)
    assert count * batch <= samples < (count + 1) * batch
    order = SampleOrder(seed, samples, batch)
    epoch = [order.samples(step) for step in range(count, 2 * count)]
    drawn = np.concatenate(epoch)
    assert len(set(drawn.tolist())) == count * batch
    for step in epoch:
        shares = [step[rank_slice(batch, rank, ranks)] for rank in range(ranks)]
        assert np.array_equal(np.concatenate(shares), step)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_order_is_frozen() -> None:
    """A resumed run must find the same order in every later version."""
    assert epoch_order(0, 0, 8).tolist() == FROZEN_ORDER
    assert random_seed(0, 0, 0) == FROZEN_SEED
    assert len({random_seed(s, e, r) for s in range(3) for e in range(3) for r in range(3)}) == 27


@pytest.mark.parametrize(
    ("resampling", "expected"),
    [("natural", [640, 40, 120]), ("square_root", [441, 110, 191]), ("uniform", [267, 267, 266])],
)
def test_classes_have_their_share_of_an_epoch(resampling: str, expected: list[int]) -> None:
    """Square roots of 640, 40 and 120 are 25.3, 6.3 and 11.0: 59 %, 15 % and 26 % of 800."""
    labels = np.repeat([0, 1, 2], [640, 40, 120])
    if resampling == "square_root":
        roots = np.sqrt([640, 40, 120])
        expected = [round(800 * r / roots.sum()) for r in roots]
    order = SampleOrder(0, 800, 8, labels, resampling)  # type: ignore[arg-type]
    epochs = [np.concatenate([order.samples(s) for s in range(e * 100, (e + 1) * 100)]) for e in range(2)]
    assert not np.array_equal(*epochs)
    for drawn in epochs:
        assert np.bincount(labels[drawn]).tolist() == pytest.approx(expected, abs=1)
        for c in range(3):  # images of a class are used equally often, within one
            met = np.bincount(drawn, minlength=800)[labels == c]
            assert met.max() - met.min() <= 1
    assert sum(class_shares(np.array([640, 40, 120]), "square_root")) == 800
    again = SampleOrder(0, 800, 8, labels, resampling)  # type: ignore[arg-type]
    assert np.array_equal(again.samples(150), epochs[1][400:408])

"""Steps to a target by batch size: planted values are recovered from numbers and from runs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from chronograd.errors import InputError
from chronograd.fit.batch_size import BatchRun, fewest_steps, fit_batches, from_noise_scale
from chronograd.predict.batch_size import BatchModel
from chronograd.record import Quantity

BATCHES = [16, 32, 64, 128, 256, 512]
NONE = Quantity.missing("sample", "not asked for")


def test_intervals_cover_the_true_noise_scale() -> None:
    """Four of five intervals cover the true noise scale, approximately, at 10 % noise on the steps."""
    truth, held = BatchModel(150, 9000), []
    for seed in range(60):
        noise = np.exp(np.random.default_rng(seed).normal(0, 0.1, len(BATCHES)))
        found = fit_batches(BATCHES, truth.steps(BATCHES) * noise, draws=100, seed=seed)
        low, high = found.noise_scale_interval()
        held.append(low <= truth.noise_scale <= high)
        assert found.model.noise_scale == pytest.approx(truth.noise_scale, rel=0.6)
    assert 0.6 <= np.mean(held) <= 0.97


def test_errors_are_fitted_over_measured_steps() -> None:
    counted = [800.0, 420.0, 260.0, 190.0]
    found = fit_batches(BATCHES[:4], counted)
    assert found.errors == pytest.approx(np.asarray(found.model.steps(BATCHES[:4])) / counted - 1)
    assert float(np.abs(found.errors).max()) > 0.001


def test_steps_that_only_fall_have_no_critical_batch() -> None:
    found = fit_batches([8, 16, 32], [800, 400, 200])
    assert found.model.min_steps == pytest.approx(0, abs=1e-9)
    assert found.noise_scale_interval()[1] > 1000
    assert math.isinf(BatchModel(0, 6400).noise_scale)


def test_measured_noise_scale_limits_the_curve() -> None:
    measured = Quantity(value=100, unit="sample", low=50, high=300)
    found = from_noise_scale(400, 100, measured)
    assert found.model.steps([100, 50]).tolist() == [400, 600]
    assert found.noise_scale_interval() == pytest.approx((50, 300))
    low, high = found.steps_interval([100, 1e9])
    assert (low.tolist(), high.tolist()) == (pytest.approx([400, 100]), pytest.approx([400, 400 / 1.5]))
    open_ended = from_noise_scale(400, 100, measured.model_copy(update={"high": None}))
    assert open_ended.noise_scale_interval()[1] == math.inf
    with pytest.raises(InputError, match="not asked for"):
        from_noise_scale(400, 100, NONE)


def test_learning_rate_with_the_fewest_steps_is_used() -> None:
    """Means over seeds; a rate counts only if every seed reached the target."""
    steps = {0.1: [300.0, 500.0], 0.2: [390.0, 400.0], 0.4: [100.0, None]}
    runs = [
        BatchRun(f"{rate}/{i}", 32, rate, s, 1000, NONE) for rate, each in steps.items() for i, s in enumerate(each)
    ]
    assert fewest_steps(runs) == {32: (395.0, 0.2)}
    assert fewest_steps(runs[-2:]) == {}


def test_too_few_batches_are_refused() -> None:
    with pytest.raises(InputError, match="2 batches"):
        fit_batches([16, 16, 32], [3, 4, 2])
    with pytest.raises(InputError, match="not above 0"):
        fit_batches([16, 32, 64], [3, 0, 2])

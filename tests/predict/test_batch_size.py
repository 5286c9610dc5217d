"""Steps by batch and the noise scale: closed forms, and an unbiased estimator."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from chronograd.errors import InputError
from chronograd.predict.batch_size import BatchModel, gradient_moments, steps_factor


def test_steps_and_samples_match_the_published_hyperbola() -> None:
    """(S/S_min - 1)(E/E_min - 1) = 1; at the critical batch, both are twice their minimum."""
    model = BatchModel(150, 12_000)
    assert model.noise_scale == 80
    for batch in (1, 16, 80, 1000):
        product = (model.steps(batch) / 150 - 1) * (model.samples(batch) / 12_000 - 1)
        assert product == pytest.approx(1)
        assert model.samples(batch) == pytest.approx(batch * model.steps(batch))
    assert (model.steps(80), model.samples(80), model.efficiency(80)) == (300, 24_000, 0.5)


def test_model_passes_through_its_run() -> None:
    model = BatchModel.through(steps=1000, batch=32, noise_scale=96)
    assert (model.min_steps, model.min_samples) == (250, 24_000)
    assert model.steps([32, 96]).tolist() == [1000, 500]


def test_steps_factor_broadcasts() -> None:
    batches, scales = np.array([32.0, 64, 1e9]), np.array([[0.0], [64.0]])
    found = steps_factor(batches, 32, scales)
    assert found == pytest.approx(np.array([[1, 1, 1], [1, 2 / 3, 1 / 3]]))
    model = BatchModel(10, 640)
    assert steps_factor(256, 32, 64) == pytest.approx(model.steps(256) / model.steps(32))


@pytest.mark.parametrize("wrong", [(0, 1, 1), (1, -1, 1), (1, 1, -1), (1, 1, np.inf), (1, np.nan, 1)])
def test_invalid_batches(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(InputError, match="batch"):
        steps_factor(*wrong)


def test_invalid_models() -> None:
    for both in ((-1, 1), (0, 0), (1, np.inf), (np.nan, 1)):
        with pytest.raises(InputError, match="at least"):
            BatchModel(*both)
    with pytest.raises(InputError, match="noise scale nan"):
        BatchModel.through(100, 10, np.nan)
    with pytest.raises(InputError, match="small batch"):
        gradient_moments(1, 1, 32, 32)


def test_estimator_is_unbiased_on_a_linear_model() -> None:
    """Use y = w*·x + e with x ~ N(0, I) in d dimensions, e ~ N(0, s²), and w = w* + D. The squared error has gradient
    D. One sample's covariance is |D|² I + D Dᵀ + s² I, with trace (d + 1)|D|² + d s².
    """
    random, d, noise = np.random.default_rng(0), 5, 2.0
    offset = np.array([0.5, -1.0, 0.25, 0.0, 1.0])
    squared, trace = offset @ offset, (d + 1) * (offset @ offset) + d * noise**2
    draws, small, big = 20_000, 4, 12
    x = random.standard_normal((draws, big, d))
    residuals = x @ offset - noise * random.standard_normal((draws, big))
    gradients = x * residuals[..., None]
    parts = gradients.reshape(draws, big // small, small, d).mean(axis=2)
    sq_small = (parts**2).sum(axis=2).mean(axis=1)
    sq_big = (gradients.mean(axis=1) ** 2).sum(axis=1)
    for found, truth in zip(gradient_moments(sq_small, sq_big, small, big), (squared, trace), strict=True):
        error = found.std() / draws**0.5
        assert abs(found.mean() - truth) < 4 * error
        assert error < 0.03 * truth  # otherwise the line above could not fail


def test_estimator_is_exact_over_all_batches() -> None:
    """Take every batch of 4 of 7 samples, split in all ways: the mean is |G|² and tr(Σ) of the 7, divided by 6."""
    vectors = np.random.default_rng(1).standard_normal((7, 3))
    mean = vectors.mean(axis=0)
    squared, trace = mean @ mean, ((vectors - mean) ** 2).sum() / 6
    found = []
    for chosen in itertools.permutations(range(7), 4):
        g = vectors[list(chosen)]
        halves = g[:2].mean(axis=0), g[2:].mean(axis=0)
        sq_small = sum(h @ h for h in halves) / 2
        found.append(gradient_moments(sq_small, g.mean(axis=0) @ g.mean(axis=0), 2, 4, population=7))
    assert np.mean(found, axis=0) == pytest.approx((squared, trace))

"""Learning rate schedules in closed form."""

from __future__ import annotations

import math

import pytest

from chronograd.job import Training
from chronograd.train.schedule import learning_rate


def rates(num_steps: int, **fields: object) -> list[float]:
    training = Training.model_validate({"recipe": "sgd", "learning_rate": 0.8, **fields})
    return [learning_rate(training, step, num_steps) for step in range(num_steps)]


def test_constant() -> None:
    assert rates(3) == [0.8, 0.8, 0.8]


def test_warmup_is_linear_and_ends_at_the_peak() -> None:
    assert rates(8, warmup=0.5) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8, 0.8, 0.8])


def test_multi_step_falls_at_milestones() -> None:
    assert rates(8, schedule="multi_step", milestones=[0.5, 0.75], gamma=0.1) == pytest.approx(
        [0.8, 0.8, 0.8, 0.8, 0.08, 0.08, 0.008, 0.008]
    )


def test_cosine_starts_at_the_peak_after_warmup() -> None:
    got = rates(10, schedule="cosine", warmup=0.2)
    expected = [0.4, 0.8, *(0.4 * (1 + math.cos(math.pi * k / 8)) for k in range(8))]
    assert got == pytest.approx(expected)


def test_one_cycle_rises_for_a_fifth_and_falls_to_zero() -> None:
    got = rates(10, schedule="one_cycle")
    assert got == pytest.approx([0.4, 0.8, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])


def test_wsd_stays_and_then_falls_to_zero() -> None:
    assert rates(10, schedule="wsd", warmup=0.2) == pytest.approx([0.4, *[0.8] * 8, 0.4])
    assert rates(8, schedule="wsd", milestones=[0.5]) == pytest.approx([0.8, 0.8, 0.8, 0.8, 0.8, 0.6, 0.4, 0.2])


def test_run_shorter_than_its_warmup_has_a_rate() -> None:
    assert rates(1, schedule="one_cycle") == [0.8]
    assert rates(2, warmup=0.9) == pytest.approx([0.8 / 1.8, 0.8])

"""Speed models from few points: planted values are recovered and intervals cover them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chronograd.errors import FileFormatError, InputError
from chronograd.fit.speed import SpeedPoint, fit_speed, read_points
from chronograd.predict.speed import OPTIMUS_RESNET50, OPTIMUS_RESNET50_ASYNCHRONOUS

W = [1, 2, 4, 8, 1, 4, 8, 12, 2, 6]
P = [1, 1, 2, 2, 4, 4, 4, 8, 8, 1]


def test_published_coefficients_are_recovered() -> None:
    found = fit_speed(W, P, OPTIMUS_RESNET50.steps_per_s(W, P), batch=40)
    assert found.model.coefficients == pytest.approx(OPTIMUS_RESNET50.coefficients, abs=1e-6)
    found = fit_speed(W, P, OPTIMUS_RESNET50_ASYNCHRONOUS.steps_per_s(W, P))
    assert found.model.coefficients == pytest.approx(OPTIMUS_RESNET50_ASYNCHRONOUS.coefficients, abs=1e-6)
    assert np.abs(found.left_out).max() < 1e-6


def test_intervals_cover_the_true_speed() -> None:
    """Four of five intervals cover the true speed at an untimed pair, approximately, with 5 % noise."""
    truth, held = OPTIMUS_RESNET50, []
    for seed in range(60):
        noise = np.exp(np.random.default_rng(seed).normal(0, 0.05, len(W)))
        found = fit_speed(W, P, truth.steps_per_s(W, P) * noise, batch=40, draws=100, seed=seed)
        low, high = found.interval(16, 4)
        held.append(low <= truth.steps_per_s(16, 4) <= high)
        assert found.model.steps_per_s(16, 4) == pytest.approx(truth.steps_per_s(16, 4), rel=0.35)
    assert 0.65 <= np.mean(held) <= 0.97


def test_refits_deviate_like_the_mean_of_the_points() -> None:
    """Four timings of one pair, off by 5 % in both directions, and one coefficient: the deviation is 5 % / √3."""
    found = fit_speed([1] * 4, [1] * 4, np.exp([0.05, -0.05, 0.05, -0.05]), draws=4000)
    assert (found.draws[:, 1:] == 0).all()
    assert np.log(found.draws[:, 0]).std() == pytest.approx(0.05 / 3**0.5, rel=0.05)


def test_too_few_points_are_refused() -> None:
    with pytest.raises(InputError, match="5 points"):
        fit_speed([1, 2, 4, 8], [1, 1, 1, 1], [1, 1, 1, 1], batch=32)
    with pytest.raises(InputError, match="4 points"):
        fit_speed([1, 2], [1, 1], [1, 1])
    with pytest.raises(InputError, match="not above 0"):
        fit_speed([1, 2, 4, 8], [1, 1, 1, 1], [1, 1, 0, 1])


def test_points_are_read_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "speeds.csv"
    table.write_text("workers,servers,step_time_s,batch\n2,1,0.5,32\n4,2,0.25,\n")
    assert read_points(table) == [SpeedPoint(2, 1, 2.0, None, 32.0), SpeedPoint(4, 2, 4.0)]
    for line in ("0,1,1,", "1,1,0,", "1,1,nan,", "a,1,1,", "1,1,1,-1", "1,,1,"):
        table.write_text(f"workers,servers,step_time_s,batch\n{line}\n")
        with pytest.raises(FileFormatError, match="line 2"):
            read_points(table)
    with pytest.raises(FileFormatError, match="cannot read"):
        read_points(tmp_path / "none.csv")

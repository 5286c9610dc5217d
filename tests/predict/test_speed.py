"""Speeds for the published coefficients, to the digits of the published table."""

from __future__ import annotations

import math

import numpy as np
import pytest

from chronograd.errors import InputError
from chronograd.predict.speed import (
    OPTIMUS_RESNET50,
    OPTIMUS_RESNET50_ASYNCHRONOUS,
    SpeedModel,
    time_to_target,
)

# Optimus' ResNet-50: workers → steps/s at (M, p) = (40, 2), (40, 4), (128, 2), (128, 4).
TABLE = {
    1: (0.02170, 0.02228, 0.00736, 0.00743),
    2: (0.03554, 0.03888, 0.01369, 0.01416),
    4: (0.04374, 0.05562, 0.02208, 0.02474),
    6: (0.04102, 0.05869, 0.02542, 0.03125),
    8: (0.03623, 0.05618, 0.02576, 0.03446),
    10: (0.03175, 0.05198, 0.02471, 0.03544),
    12: (0.02798, 0.04757, 0.02314, 0.03509),
    16: (0.02236, 0.03986, 0.01986, 0.03257),
    20: (0.01850, 0.03390, 0.01708, 0.02942),
}
# (M, p) → the best integer and the best real number of workers.
BEST = {(40, 2): (4, 4.07), (40, 4): (6, 5.76), (128, 2): (7, 7.29), (128, 4): (10, 10.30)}


def speed_model(batch: float) -> SpeedModel:
    return SpeedModel("synchronous", OPTIMUS_RESNET50.coefficients, batch)


@pytest.mark.parametrize(("batch", "servers"), BEST)
def test_optimus_table(batch: int, servers: int) -> None:
    column = list(BEST).index((batch, servers))
    found = speed_model(batch).steps_per_s(list(TABLE), servers)
    assert [round(float(f), 5) for f in found] == [row[column] for row in TABLE.values()]
    whole, real = BEST[batch, servers]
    assert speed_model(batch).best_workers(servers, range(1, 21)) == whole
    assert round(speed_model(batch).closed_form(servers) or 0.0, 2) == real


def test_asynchronous_workers_only_add_steps() -> None:
    model = OPTIMUS_RESNET50_ASYNCHRONOUS
    speeds = model.steps_per_s([1, 2, 4, 8, 1000], 4)
    assert list(speeds) == sorted(speeds)
    assert model.steps_per_s(1, 1) == pytest.approx(1 / (2.83 + 3.92 + 0.11))
    assert speeds[-1] < 4 / 3.92
    assert model.closed_form(4) is None
    assert SpeedModel("synchronous", (1, 1, 0, 0, 0), 32).closed_form(2) is None


def test_all_reduce_has_work_and_link_of_the_servers() -> None:
    """One worker has no transfer. Infinitely many share computation, and each moves one worker's data."""
    model = speed_model(40).all_reduce()
    assert model.steps_per_s(1) == pytest.approx(1 / (40 * 1.02 + 2.78))
    assert model.steps_per_s(4) == pytest.approx(1 / (10 * 1.02 + 2.78 + 4.92 * 3 / 4))
    assert model.steps_per_s(1e9) == pytest.approx(1 / (2.78 + 4.92))
    assert model.closed_form() is None
    assert model.all_reduce() is model
    shared = OPTIMUS_RESNET50_ASYNCHRONOUS.all_reduce()
    assert shared.steps_per_s(2) == pytest.approx(1 / (2.83 / 2 + 3.92 / 2))
    assert shared.closed_form() == 1.0  # communication dominates


@pytest.mark.parametrize("coefficients", [(2.0, 1.0, 8.0, 0.5), (1.0, 0.0, 30.0, 0.02), (1.0, 1.0, 50.0, 0.1)])
def test_all_reduce_closed_form_is_the_fastest(coefficients: tuple[float, ...]) -> None:
    model = SpeedModel("all-reduce", coefficients, 40)
    counts = np.linspace(1, 100, 9901)
    fastest = counts[np.argmax(model.steps_per_s(counts))]
    assert model.closed_form() == pytest.approx(fastest, abs=0.011)


def test_time_to_a_target() -> None:
    """Variances of logarithms of steps and speed add up: 3 and 4 give 5."""
    middle, low, high = time_to_target([100, 200], 4.0, 0.3, 0.4)
    assert list(middle) == [25.0, 50.0]
    assert list(high / middle) == pytest.approx([np.exp(1.2816 * 0.5)] * 2)
    assert list(low * high) == pytest.approx(list(middle**2))
    assert speed_model(40).time_s(1000, 4, 2) == pytest.approx(1000 / 0.04374, rel=2e-4)
    with pytest.raises(InputError, match="0 steps"):
        speed_model(40).time_s(0, 4, 2)


def test_invalid_models() -> None:
    for wrong in ((1, 2, 3), (1, 2, 3, 4, -1), (0,) * 5, (1, 1, 1, 1, math.inf)):
        with pytest.raises(InputError):
            SpeedModel("synchronous", wrong, 32)
    with pytest.raises(InputError, match="--batch"):
        SpeedModel("synchronous", (1, 1, 1, 1, 1))
    with pytest.raises(InputError, match="0 workers"):
        OPTIMUS_RESNET50.steps_per_s([0, 1], 1)

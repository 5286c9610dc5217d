"""The search over layouts: memory and time of many layouts equal those of each one, and the choice is the best of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.large.settings import plain_gpt, setting

from chronograd.errors import JobError
from chronograd.hardware import catalog
from chronograd.large import search
from chronograd.large.layouts import LayoutGrid, grids_of, used_bytes
from chronograd.large.limits import check
from chronograd.large.memory import memory_of, probability_of_fit
from chronograd.large.search import searched
from chronograd.large.setting import LargeSetting
from chronograd.large.step import step_of
from chronograd.large.timing import StepTimer

SAMPLE = 40


def base(model: Any = "llama-3-8b", **changes: Any) -> LargeSetting:
    return setting(model, **{"ranks": 16, "batch": 32, "length": 2048, **changes})


def large(name: str) -> LargeSetting:
    """Return models with equal layers, with experts, and with unequal layers that stages do not divide."""
    return base(name, ranks=64, batch=128, length=1024)


def sample(grids: list[LayoutGrid], seed: int, size: int = SAMPLE) -> list[tuple[LayoutGrid, int]]:
    random = Random(seed)
    chosen = [random.choice(grids) for _ in range(size)]
    return [(grid, random.randrange(len(grid.degrees))) for grid in chosen]


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "deepseek-v3", "gpt2-xl", "gemma-2-27b"])
def test_memory_of_a_grid_is_that_of_each_layout(name: str) -> None:
    found = grids_of(large(name), {})
    for grid, number in sample(found, 0):
        one = grid.one(number)
        check(one)
        assert used_bytes(grid)[number] == pytest.approx(max(stage.used_bytes for stage in memory_of(one)), rel=1e-12)


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "deepseek-v3"])
def test_times_of_a_grid_are_those_of_each_layout(name: str) -> None:
    timer = StepTimer(large(name))
    for grid, number in sample(grids_of(timer.base, {}), 1):
        one = replace(grid, degrees=grid.degrees[[number]])
        expected = step_of(one.one(0)).step_s
        assert timer.seconds(one)[0] == pytest.approx(expected, rel=1e-12)
        assert timer.bounds(one)[0] <= expected * (1 + 1e-12)


def test_zero_bubble_schedules_are_timed_without_chunks() -> None:
    timer = StepTimer(base(layout={"schedule": "zero-bubble"}))
    grids = grids_of(timer.base, {"pipeline": 4})
    for grid, number in sample(grids, 2, 5):
        assert timer.seconds(grid)[number] == pytest.approx(step_of(grid.one(number)).step_s, rel=1e-12)


def test_every_legal_layout_is_found_once() -> None:
    """Against all products of degrees up to the number of ranks."""
    small = base(plain_gpt(6), ranks=8, batch=16, length=64, device="a100-80")
    found = [grid.one(number) for grid in grids_of(small, {}) for number in range(len(grid.degrees))]
    keys = {one.job.model_dump_json() for one in found}
    assert len(keys) == len(found)
    expected = 0
    for t, p, c, b, v in product(range(1, 9), range(1, 7), range(1, 9), range(1, 17), range(1, 7)):
        if 8 % (t * p * c) or 16 % (8 // (t * p * c) * b):
            continue
        degrees = np.array([(t, p, v, c, 1, t, b)])
        for sequence in (True, False) if t > 1 else (True,):
            one = LayoutGrid(small, sequence, 0, "none", degrees)
            expected += _passes(one) * 3 * (3 if t * p < 8 else 1)
    assert len(found) == expected


def _passes(grid: LayoutGrid) -> bool:
    _, p, v, *_ = grid.degrees[0]
    if v > 1 and (p == 1 or 6 % (p * v)):
        return False
    try:
        check(grid.one(0))
    except JobError:
        return False
    return True


def test_choice_is_the_shortest_step_of_all_that_fit() -> None:
    one = base(ranks=8, batch=8, length=4096)
    room = catalog.device("h100").memory_bytes
    found = []
    for grid in grids_of(one, {}):
        for number in range(len(grid.degrees)):
            own = grid.one(number)
            used = max(memory_of(own), key=lambda stage: stage.used_bytes)
            if probability_of_fit(used, room) >= search.FIT:
                found.append((step_of(own).step_s, used.used_bytes))
    found.sort()
    result = searched(one, {})
    assert result.fitting == len(found)
    assert (result.best.step_s, result.best.used_bytes) == pytest.approx(found[0])
    assert result.runner_up is not None
    assert result.runner_up.step_s == pytest.approx(found[1][0])
    assert result.timed < result.fitting < result.legal
    front = [(option.step_s, option.used_bytes) for option in result.front]
    limit = search.SLOWEST * found[0][0]
    expected = [
        (s, used) for i, (s, used) in enumerate(found) if s <= limit and all(used < other for _, other in found[:i])
    ]
    assert np.array(front) == pytest.approx(np.array(expected))

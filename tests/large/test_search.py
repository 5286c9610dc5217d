"""The search over layouts: memory and time of many layouts equal those of each one, and the choice is the best of them."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.large.settings import plain_gpt, setting

from chronograd.cli.main import main
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


def data_of(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


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


def test_search_covers_every_legal_layout_once() -> None:
    """The search agrees with all products of degrees up to the number of ranks."""
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
    one = base(ranks=4, batch=8, length=4096)
    room = catalog.device("h100").usable_bytes
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


@pytest.mark.parametrize(
    "question",
    [
        (["--tensor", "2"], []),
        (["--micro-batch", "2", "--recompute", "full"], ["cluster.layout.sequence=false", "cluster.layout.tensor=4"]),
        (["--pipeline", "3", "--zero", "1"], ["num_hidden_layers=10", "cluster.count=24"]),
        (["--pipeline", "2"], ["cluster.layout.chunks=4", "cluster.layout.schedule=interleaved"]),
    ],
)
def test_command_predicts_the_chosen_layout(
    question: tuple[list[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    options, words = question
    place = ["--on", "16xh100"] if "cluster.count=24" not in words else ["cluster.device=h100"]
    answer = data_of(
        capsys, "plan", "llama-3-8b", *words, *place, "--layouts", "--batch", "96", "--sequence", "2048", *options
    )
    best = answer["search"]["best"]
    for name, value in zip(options[::2], options[1::2], strict=True):
        key = {"micro-batch": "micro_batch", "zero": "zero_stage"}.get(name[2:], name[2:])
        assert str(best[key]) == value
    record = data_of(capsys, *shlex.split(answer["command"])[1:])
    assert record["quantities"]["step_time_s"]["value"] == pytest.approx(best["step_time_s"])
    assert record["quantities"]["memory_peak_bytes"]["value"] == pytest.approx(best["used_bytes"])


def test_answer_for_experts_states_its_assumptions(capsys: pytest.CaptureFixture[str]) -> None:
    answer = data_of(capsys, "plan", "mixtral-8x7b", "--on", "32xh100", "--layouts", "--sequence", "4096")
    assert answer["assumed"][0] == "1,024 sequences per step (--batch), at least 4,194,304 tokens"
    assert "whole experts on a rank (cluster.layout.expert_tensor)" in answer["assumed"]
    best, rule = answer["search"]["best"], answer["search"]["rule"]
    assert best["fit_probability"] >= search.FIT
    assert best["step_time_s"] <= rule["step_time_s"]
    assert best["expert_tensor"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["resnet50", "--layouts"],
            "--layouts is predicted from a config.json only, and resnet50 is a network of code",
        ),
        (["resnet50", "--tensor", "2"], "--tensor is predicted from a config.json only"),
        (["llama-3-8b", "--on", "8xh100"], "or --layouts for the best layout alone"),
        (["llama-3-8b", "--layouts"], "on which devices does llama-3-8b train?"),
        (["llama-3-8b", "--layouts", "--on", "8xh100", "--on", "8xa100"], "--layouts takes one place"),
        (["llama-3-8b", "--layouts", "--on", "8xh100", "--to", "75%"], "--to does not apply to llama-3-8b"),
        (["llama-3-8b", "--layouts", "--on", "8xh100", "--counts", "8"], "--counts does not apply to llama-3-8b"),
        (["llama-3-8b", "--layouts", "--on", "8xh100", "training.accumulation=2"], "training.accumulation is stated"),
        (["llama-3-70b", "--layouts", "--on", "1xh100"], "no layout fits: the smallest one needs"),
        (["llama-3-70b", "--layouts", "--on", "1xh100"], "or train adapters with --lora 16 or --qlora 16"),
        (
            ["llama-3-8b", "--layouts", "--on", "8xh100", "--tensor", "3"],
            "no layout with tensor 3 is possible for 8 devices",
        ),
        (
            ["llama-3-8b", "--layouts", "--on", "8xh100", "--tensor", "2", "cluster.layout.tensor=2"],
            "--tensor both set",
        ),
        (
            ["llama-3-8b", "--layouts", "--on", "8xh100", "--micro-batch", "3"],
            "no layout with micro_batch 3 is possible",
        ),
    ],
)
def test_impossible_search_is_one_clear_error(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_one_possible_layout_has_no_runner_up() -> None:
    fixed = {
        "tensor": 4,
        "pipeline": 1,
        "context": 1,
        "micro_batch": 1,
        "sequence": True,
        "recompute": "none",
        "zero_stage": 0,
    }
    result = searched(base(ranks=4, batch=4), fixed)
    assert (result.legal, result.timed, result.runner_up) == (1, 1, None)
    assert result.front == [result.best] == [result.rule]

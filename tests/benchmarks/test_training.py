"""The training and input benchmarks: their arithmetic, and both commands on a tiny setting as processes."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks.training import BY_HAND, CHECKED, OURS, Ratio, Workload

from benchmarks import input as input_benchmark
from benchmarks import training
from chronograd.errors import RunError
from chronograd.rundir import StepLine

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def work() -> Workload:
    return training.workload("small-cnn", 4, 2, torch.get_num_threads(), "synthetic")


def run(module: str, *options: str, saved: Path) -> tuple[dict[str, Any], str]:
    """Run a command and return its saved results and its output."""
    command = [sys.executable, "-m", f"benchmarks.{module}", "--data", "synthetic", "--threads", "1", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--json", str(saved)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(saved.read_text()), done.stdout


# -- arithmetic ------------------------------------------------------------------------------------------


def test_paired_ratio_in_closed_form() -> None:
    """Rounds of different speed with one ratio have no spread; t(0.975, 2) = 4.302653."""
    same = Ratio.paired([2.0, 20.0, 0.2], [1.0, 10.0, 0.1])
    assert (same.value, same.low, same.high) == pytest.approx((2.0, 2.0, 2.0))
    logs = [math.log(1.1), math.log(0.9), math.log(1.2)]
    half = 4.302653 * statistics.stdev(logs) / math.sqrt(3)
    found = Ratio.paired([1.1, 9.0, 1.2], [1.0, 10.0, 1.0])
    assert found.value == pytest.approx((1.1 * 0.9 * 1.2) ** (1 / 3))
    assert math.log(found.high) == pytest.approx(statistics.fmean(logs) + half, rel=1e-5)
    assert math.log(found.low) == pytest.approx(statistics.fmean(logs) - half, rel=1e-5)
    assert Ratio.paired([1.0], [2.0]).to_json() == {"value": 0.5, "low": 0.0, "high": None, "n": 1}


def test_order_balances_positions_and_neighbours() -> None:
    names = ["a", "b", "c", "d", "e"]
    orders = [training.in_turn(names, round_) for round_ in range(10)]
    for place in range(5):
        assert sorted(order[place] for order in orders) == sorted(names * 2)
    before = {order[i - 1] for order in orders for i in range(1, 5) if order[i] == "a"}
    assert before == {"b", "e"}


@pytest.mark.parametrize(
    ("by_hand", "other", "expected"),
    [
        ((0.991, 1.01), (1.1, 1.2), "aim of 0.99 met; ahead of keras"),
        ((0.98, 0.995), (0.9, 1.1), "aim of 0.99 not significantly different; level with keras"),
        ((0.97, 0.989), (0.8, 0.9), "aim of 0.99 missed; behind keras"),
    ],
)
def test_verdicts(by_hand: tuple[float, float], other: tuple[float, float], expected: str) -> None:
    ratios = {BY_HAND: Ratio(1.0, *by_hand, n=5), "keras": Ratio(1.0, *other, n=5)}
    assert training.verdict(ratios).endswith(expected)


def test_throughput_counts_copies_and_closes_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches of 3 × 2 images on a clock that moves a second per reading: 12 images in two seconds."""
    closed = []

    def batches() -> input_benchmark.Batches:
        try:
            while True:
                yield torch.zeros(3, 2, 1, 4, 4)
        finally:
            closed.append(True)

    seconds = iter(range(100))
    monkeypatch.setattr(input_benchmark, "time", SimpleNamespace(perf_counter=lambda: float(next(seconds))))
    assert input_benchmark.images_per_s(batches(), 1, 1.5) == 12 / 2
    assert closed == [True]


def test_input_share_is_computed_per_step() -> None:
    lines = [StepLine(input_s=i, transfer_s=0.5, step_time_s=10.0) for i in (0.5, 1.5, 2.5)]
    found = input_benchmark.Share.of_lines(lines)
    assert (found.value, found.n, found.step_time_s, found.input_s) == (0.2, 3, 10.0, 2.0)
    assert (found.low, found.high) == pytest.approx((0.12, 0.28))


# -- equal work of all contenders ------------------------------------------------------------------------


def test_our_loop_has_the_losses_of_a_plain_loop(work: Workload) -> None:
    found = training.first_losses(work, {OURS: training.with_chronograd, BY_HAND: training.by_hand})
    assert found[OURS] == pytest.approx(found[BY_HAND], abs=1e-4)
    assert len(found[OURS]) == CHECKED
    assert len(set(found[OURS])) > 1  # the samples differ between steps


def test_contender_with_other_losses_is_refused(work: Workload) -> None:
    def at_another_rate(work: Workload, losses: training.Losses) -> list[float]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(training, "LEARNING_RATE", 0.5)
            return training.by_hand(work, losses)

    def too_short(work: Workload, losses: training.Losses) -> list[float]:
        ends = training.by_hand(work, losses)
        assert losses is not None
        losses.pop()
        return ends

    cases: list[tuple[Callable[..., list[float]], str]] = [
        (at_another_rate, "differs from the hand-written loop"),
        (too_short, "steps"),
    ]
    for wrong, message in cases:
        with pytest.raises(RunError, match=message):
            training.first_losses(work, {OURS: wrong, BY_HAND: training.by_hand})


def test_clock_records_every_step_in_order(work: Workload) -> None:
    for contender in (training.with_chronograd, training.by_hand):
        ends = contender(work, None)
        assert len(ends) == work.num_steps == training.WARMUP + 2
        assert ends == sorted(ends)


def test_cutout_reference_is_clipped_at_the_edges() -> None:
    """Sides are between 8 and 16 pixels, and pixels outside the square stay unchanged."""
    pytest.importorskip("torchvision")
    image_CHW = torch.full((3, 32, 32), 2.0)
    for _ in range(50):
        kept = input_benchmark.Cutout(16)(image_CHW)
        assert set(kept.unique().tolist()) == {0.0, 2.0}
        rows, columns = ((kept[0] == 0).any(dim).sum().item() for dim in (1, 0))
        assert 8 <= rows <= 16
        assert 8 <= columns <= 16
        assert (kept == 0).sum().item() == 3 * rows * columns


def test_different_pipelines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchvision")
    monkeypatch.setattr(input_benchmark, "CHECKED", 512)
    _, dataset = input_benchmark.images("synthetic")
    input_benchmark.check_alike(dataset)
    monkeypatch.setattr(input_benchmark, "Cutout", lambda side: lambda image_CHW: image_CHW)
    with pytest.raises(RunError, match="the pipelines differ"):
        input_benchmark.check_alike(dataset)


# -- the commands ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_training_command(tmp_path: Path) -> None:
    saved, printed = run(
        "training", "--network", "resnet8", "--batch", "4", "--steps", "2", "--rounds", "2", saved=tmp_path / "t.json"
    )
    frameworks = ("lightning", "accelerate", "keras")
    missing = [name for name in frameworks if importlib.util.find_spec(name) is None]
    assert saved["not_installed"] == missing
    assert ("not installed and left out: " + ", ".join(missing) in printed) == bool(missing)
    [row] = saved["workloads"]
    there = [OURS, BY_HAND, *(name for name in frameworks if name not in missing)]
    assert (row["network"], row["batch"], row["timed_steps"], list(row["samples_per_s"])) == ("resnet8", 4, 2, there)
    for name in there[1:]:
        ours, other = row["samples_per_s"][OURS], row["samples_per_s"][name]
        assert row["ratio"][name]["value"] == pytest.approx(math.sqrt(ours[0] / other[0] * ours[1] / other[1]))
        assert row["first_losses"][name] == pytest.approx(row["first_losses"][OURS], abs=2e-3)
    assert row["verdict"] in printed


@pytest.mark.slow
def test_input_command(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    options = ["--rounds", "2", "--seconds", "0.02", "--workers", "1", "--copies", "1", "--shares"]
    saved, printed = run("input", *options, saved=tmp_path / "i.json")
    [row] = saved["rates"]
    assert (row["copies"], row["batch"]) == (1, 128)
    ours, theirs = row["images_per_s"]["chronograd"], row["images_per_s"]["torchvision"]
    assert row["ratio"]["value"] == pytest.approx(math.sqrt(ours[0] / theirs[0] * ours[1] / theirs[1]))
    assert row["verdict"] in printed
    assert saved["shares"] == {}


@pytest.mark.parametrize("option", [["--rounds", "0"], ["--threads", "none"]])
def test_invalid_options(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for module in (training, input_benchmark):
        with pytest.raises(SystemExit):
            module.main(option)
        assert option[0] in capsys.readouterr().err

"""Forecasts of bits per byte: an exact family is recovered, runs that are left out are forecast, and runs of text use it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import language as benchmark
from chronograd.cli.main import main
from chronograd.forecast import language
from chronograd.forecast.language import LanguageCurve, LanguageRun
from chronograd.forecast.learning_curves import read_curve
from chronograd.forecast.loss_answer import forecast_from_half
from chronograd.forecast.schedule import Schedule
from chronograd.rundir import RunDir
from chronograd.rundir.steps import Epoch


def power_law(exponent: float, name: str) -> LanguageRun:
    """A run at a constant rate whose bits are 5 · epoch ** -exponent."""
    steps = np.arange(1.0, 13.0)
    return LanguageRun(name, name, Schedule("constant", (), 12.0), steps, 5.0 * steps**-exponent)


def test_rules_recover_the_family_that_made_the_runs() -> None:
    """Slopes of exact power laws are their exponents; the fall over x is then a function of the slope, up to its bend."""
    runs = tuple(power_law(exponent, str(exponent)) for exponent in (0.2, 0.3, 0.4, 0.5))
    rules = language.rules(runs)
    for run in runs:
        curve = LanguageCurve(run.schedule, run.steps[:6], run.bits[:6], rules)
        assert np.exp(curve.middle(run.steps[6:])) == pytest.approx(run.bits[6:], rel=0.06)
    steeper = LanguageCurve(runs[3].schedule, runs[3].steps[:6], runs[3].bits[:6], rules)
    flatter = LanguageCurve(runs[0].schedule, runs[0].steps[:6], runs[0].bits[:6], rules)
    fall = [curve.middle(np.array([12.0]))[0] - math.log(curve.bits[-1]) for curve in (steeper, flatter)]
    assert fall[0] == pytest.approx(2.5 * fall[1], rel=0.1)


def test_falling_rate_counts_less_of_the_run() -> None:
    """Half of a run whose rate falls to 0 has three quarters of the sum, so less is left than at a constant rate."""
    run = power_law(0.4, "one")
    falls = replace(run, schedule=Schedule("annealed", (), 12.0))
    assert falls.schedule.rate(np.array([6.0, 12.0])).tolist() == [0.5, 0.0]
    found = [language.features(one.schedule, one.steps[:6], one.bits[:6], np.array([12.0]))[0] for one in (run, falls)]
    assert found[0][0] == pytest.approx(1 - 6 / 12)  # 1 - exp(-log 2)
    assert found[1][0] == pytest.approx(1 - 4.5 / 6)
    assert [features[4] for features in found] == [0.0, 0.5]


def test_texts_left_out_are_forecast_better_than_by_a_power_law() -> None:
    rows = benchmark.score(["text"])
    third, half = (rows[f"text left out, from {share}"] for share in ("33%", "50%"))
    for row in (third, half):
        assert row["median_error"] < row["power_law"] < row["last_value"]
        assert abs(row["bias"]) < 0.03
    assert third["width"] > half["width"]
    assert all(0.7 < row["coverage"] < 0.95 for row in rows.values())


def test_packaged_runs_are_those_of_the_benchmark() -> None:
    assert json.loads(language.FILE.read_text()) == benchmark.table()
    assert len(language.known_runs()) == benchmark.NUM_RUNS


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A finished run of real text, with the bits per byte of seed 1 of the example."""
    own = json.loads(benchmark.SEEDS.read_text())["seeds"]["1"]
    run = RunDir.create(environment={}, out=tmp_path / "run")
    (run.path / "job.yaml").write_text(benchmark.EXAMPLE.read_text())
    with run.step_writer() as lines:
        for epoch, bits in zip(own["epoch"], own["bits_per_byte"], strict=True):
            lines.write(Epoch(step=50 * epoch, epoch=epoch, seconds=epoch, epoch_time_s=1.0, train_loss=9.0,
                              test_loss=bits * math.log(2), test_accuracy=None, bits_per_byte=bits))  # fmt: skip
    return run


def test_run_of_text_is_forecast_in_bits_per_byte(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    curve = read_curve(run.path)
    assert (curve.column, curve.unit, curve.schedule.kind, len(curve.steps)) == (
        "bits_per_byte",
        "epoch",
        "annealed",
        12,
    )
    made = forecast_from_half(run.path)
    assert (made.language is not None, made.until, made.warnings) == (True, 6, ())
    last = made.expected(12.0)
    assert last.low < last.value < last.high
    assert last.low < (last.seen or 0.0) < last.high
    level = made.expected(9.0).value
    assert main(["forecast", str(run.path), "--fraction", "0.5", "--to", f"{level:.4f}"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "forecast from its own points, as a power law whose exponent falls" in text
    assert f"that of {benchmark.NUM_RUNS} small language models" in text
    assert re.search(r"reached epoch (8|9|10)\b", text)
    assert main(["forecast", str(run.path), "--fraction", "0.5", "--to", "0.5"]) == 0
    assert "0.5 is not expected to be reached" in " ".join(capsys.readouterr().out.split())


def test_other_schedules_use_the_power_law_of_the_run(run: RunDir) -> None:
    curve = replace(read_curve(run.path, fraction=0.5), schedule=Schedule("multi_step", (9.0,), 12.0))
    from chronograd.forecast.forecasting import forecast

    assert forecast(curve, 0.5).language is None

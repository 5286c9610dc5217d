"""Studies and their runner: discovery, saved, resumed and stopped runs, and spreads."""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path

import pytest

from chronograd.cli.main import main
from chronograd.errors import FileFormatError, InputError, NotFoundError, RunError
from chronograd.job import Job, from_dict
from chronograd.rundir import RunDir
from chronograd_lab.common.arms import Arm, accuracy_table, mean_curve, split_seed
from chronograd_lab.common.results import Results
from chronograd_lab.common.rows import Spread, spread
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import SIZES, settings_of
from chronograd_lab.studies import find, studies


def make_job(*, sleep_s: float = 0.0, epochs: int = 1) -> Job:
    return from_dict(
        {
            "network": {"name": "tiny_networks:random", "options": {"sleep_s": sleep_s}},
            "data": {"name": "synthetic", "shape": [1, 8, 8], "classes": 10, "samples": 64},
            "training": {"batch": 16, "epochs": epochs},
        }
    )


@pytest.fixture(autouse=True)
def _networks(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(Path(__file__).parents[2] / "train")
    monkeypatch.setenv("PYTHONPATH", folder, prepend=os.pathsep)
    monkeypatch.syspath_prepend(folder)


def test_every_study_has_a_question_and_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [study["name"] for study in listed] == sorted(studies())
    for study in listed:
        assert study["question"].endswith("?")
        assert list(study["sizes"]) == [size for size in SIZES if size in study["sizes"]]
        assert {"smoke", "laptop"} <= set(study["sizes"])
    with pytest.raises(NotFoundError, match="did you mean cutout"):
        find("cutuot")
    with pytest.raises(NotFoundError, match="size of study cutout"):
        settings_of(find("cutout"), "tiny")


@pytest.mark.slow
def test_error_names_its_experiment_and_stops_the_others(tmp_path: Path) -> None:
    runner = StudyRunner(tmp_path, "none", "smoke", lambda text: None, parallel=2)
    slow = make_job(sleep_s=0.05, epochs=200)
    bad = make_job().model_copy(update={"network": make_job().network.model_copy(update={"weights": "nowhere"})})
    with pytest.raises((RunError, InputError), match="nowhere"):
        runner.train({"slow one": slow, "bad one": bad})
    run = RunDir.open(runner.path("slow one"))
    assert runner.path("slow one").name == "slow-one"
    assert not run.is_finished
    assert threading.active_count() < 10


def test_seeds_and_spreads() -> None:
    jobs = Arm("a", make_job(), seeds=range(2)).jobs()
    assert {name: job.training.seed for name, job in jobs.items()} == {"a/seed-0": 0, "a/seed-1": 1}
    assert split_seed("x/y/seed-12") == ("x/y", 12)
    rows = [{"arm": "a", "accuracy": v} for v in (0.5, 0.6, 0.7)] + [{"arm": "b", "accuracy": 0.9}]
    a, b = spread(rows, arm="a"), spread(rows, arm="b")
    assert (a.mean, a.std, a.n) == (pytest.approx(0.6), pytest.approx(0.1), 3)
    assert (b.std, b.low, b.high) == (None, 0.9, 0.9)
    assert not (a - b).is_seen
    # The means differ by 0.3; the standard error of the difference is √(0.01/3 + 0.01/3) = 0.082.
    assert (a - Spread(0.9, 0.1, 3)).is_seen
    assert not (a - Spread(0.75, 0.1, 3)).is_seen
    with pytest.raises(ValueError, match="no row"):
        spread(rows, arm="c")
    table = accuracy_table(rows, {"augmentation": "arm"})
    assert table.rows[0] == ["a", "60.00 ± 10.00 %", "3"]


def test_curves_are_averaged_over_seeds() -> None:
    curves = {f"a/seed-{s}": {"epoch": [1.0, 2.0], "test_accuracy": [0.1 * s, 0.5]} for s in range(3)}
    series = mean_curve(curves, "a", "epoch")
    assert (series.x, series.y) == ([1.0, 2.0], [10.0, 50.0])
    assert series.low[0] == pytest.approx(10 - 10) and series.high[0] == pytest.approx(20)  # noqa: PT018
    assert math.isclose(series.high[1] or 0, 50)


def test_invalid_results_file(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    for text in ("", "[]", '{"format": "other", "version": 1}'):
        path.write_text(text)
        with pytest.raises(FileFormatError, match="holds no results"):
            Results.load(path)

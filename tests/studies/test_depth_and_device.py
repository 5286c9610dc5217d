"""Depth and device: the smoke size to a page, published logs of a known law, and the fifteen real ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from chronograd.cli.study import command
from chronograd.errors import InputError
from chronograd.report.html import render_html
from chronograd.studies.depth_and_device import STUDY
from chronograd.study.depth_runs import (
    CIFAR,
    IMAGENET,
    best,
    curve_rows,
    epochs_prediction,
    published_folder,
    read_logs,
    target_rows,
)
from chronograd.study.published_runs import CIFAR_RESNETS
from chronograd.study.results import Results
from chronograd.study.runner import StudyRunner

ACCURACIES = [0.9, 0.95, 0.99]


def write_logs(folder: Path, depths: list[int], devices: tuple[str, ...] = ("K80", "V100")) -> list[Path]:
    """Errors that fall by a rate which is the square root of depth / 500, and losses twice as large; no noise."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for depth in depths:
        errors = np.exp(-np.sqrt(depth / 500) * np.arange(1, 41))
        for device in devices:
            files.append(folder / f"history{depth}_{device}.json")
            told = {"loss": (2 * errors).tolist(), "acc": (1 - errors).tolist(), "time": [1.0] * 40}
            files[-1].write_text(json.dumps(told))
    return files


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Published runs of one family."""
    write_logs(tmp_path / "measured" / CIFAR_RESNETS, [8, 14, 20, 32])
    monkeypatch.setenv("CHRONOGRAD_MEASURED", str(tmp_path / "measured"))
    return tmp_path / "measured" / CIFAR_RESNETS


@pytest.mark.slow
def test_smoke_size_end_to_end(tmp_path: Path) -> None:
    said: list[str] = []
    results = STUDY.conduct(StudyRunner(tmp_path, STUDY.name, "smoke", said.append), STUDY.sizes["smoke"])
    assert len(said) == 4
    assert [row["depth"] for row in results.rows["networks"]] == [8, 14, 20]
    assert {row["network"] for row in results.rows["scored"]} == {"resnet32"}
    assert len(results.curves["own: resnet32"]["predicted"]) == 3
    results.save(tmp_path / "results.json")
    page = STUDY.page(Results.load(tmp_path / "results.json"))
    assert [s.title for s in page.sections][:2] == ["Our own runs", "A depth left to predict"]
    assert render_html(page).startswith("<!doctype html>")


class TestLogs:
    def test_what_a_name_tells(self, tmp_path: Path) -> None:
        logs = read_logs("x", [write_logs(tmp_path, [20])[0], *write_logs(tmp_path, [18], ("A100-40",))], ACCURACIES)
        assert [run.network for run in logs.runs] == ["resnet20", "torchvision:resnet18"]
        assert [run.labels for run in logs.runs] == [
            {"family": CIFAR, "device": "K80"},
            {"family": IMAGENET, "device": "A100-40"},
        ]
        assert [run.numbers["params"] for run in logs.runs] == [269_722, 11_181_642]
        # He et al. print 0.27 M; torchvision's 11,689,512 less 990 classes of 513 parameters.
        assert 11_689_512 - 990 * 513 == 11_181_642
        # exp(-0.2 k) <= 0.1 from k = 12 on, 0.05 from 15, 0.01 from 24.
        assert logs.epochs[0].tolist() == [12, 15, 24]

    @pytest.mark.parametrize(("name", "said"), [("run7.json", "does not tell depth"), ("history19_K80.json", "not 6n")])
    def test_names_that_tell_nothing(self, tmp_path: Path, name: str, said: str) -> None:
        file = write_logs(tmp_path, [20])[0].rename(tmp_path / name)
        with pytest.raises(InputError, match=said):
            read_logs("x", [file], ACCURACIES)


class TestPublished:
    @pytest.mark.slow
    def test_a_law_of_depth_is_found_and_scored(self, measured: Path, tmp_path: Path) -> None:
        """Truth: a further depth, and a known one with losses ten times as large, which its own runs must not predict."""
        files = [*write_logs(tmp_path, [44]), write_logs(tmp_path, [20])[0]]
        told = json.loads(files[-1].read_text())
        files[-1].write_text(json.dumps({**told, "loss": [10 * loss for loss in told["loss"]]}))
        out = tmp_path / "out"
        arguments = ["run", "depth-and-device", "--size", "paper", "--out", str(out), "--truth", *map(str, files)]
        found = CliRunner().invoke(command, arguments, catch_exceptions=False)
        assert found.exit_code == 0
        assert "Scored on further runs: Our prediction" in found.output
        assert "resnet44 (K80), resnet44 (V100), resnet20 (K80)" in (out / "README.md").read_text()

        results = Results.load(out / "results.json")
        chosen = {row["set"]: row for row in results.rows["chosen"]}
        assert chosen["published"]["features"] != "none"
        form, features = chosen["truth"]["form"], chosen["truth"]["features"]
        ours = [r for r in results.rows["scored"] if (r["form"], r["features"]) == (form, features)]
        assert [(row["depth"], row["run"]) for row in ours] == [(44, "K80"), (44, "V100"), (20, "K80")]
        plain = [r for r in results.rows["scored"] if (r["form"], r["features"]) == (form, "none")]
        assert ours[0]["mape"] < plain[0]["mape"] / 3
        assert ours[2]["factor"] == pytest.approx(10, rel=0.15)
        epochs = [r for r in results.rows["scored_epochs"] if r["features"] == chosen["truth"]["target_features"]]
        assert all(row["error"] < 0.1 for row in epochs)
        assert [row["seen"] for row in epochs[:3]] == [8, 11, 16]  # ln 10, 20, 100 over sqrt(44 / 500)
        assert all(row["p_value"] == 1 for row in results.rows["devices"])  # the runs of a network are the same
        slopes = {row["target"]: row["slope"] for row in results.rows["slopes"] if row["over"] == "all"}
        assert slopes["exponential, b"] == pytest.approx(0.5, abs=1e-3)
        titles = [section.title for section in STUDY.page(results).sections]
        assert titles[:3] == ["Scored on further runs", "Their epochs to a target", "The published runs"]
        assert "The confound at depth 18" not in titles  # there is one family only

    def test_without_published_runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CHRONOGRAD_MEASURED", raising=False)
        assert published_folder() is None
        for size, truth in (("paper", []), ("smoke", write_logs(tmp_path, [44]))):
            with pytest.raises(InputError, match="not at hand"):
                STUDY.conduct(StudyRunner(tmp_path, STUDY.name, size, print, truth=truth), STUDY.sizes[size])


def test_truth_where_it_has_no_meaning(tmp_path: Path) -> None:
    file = str(write_logs(tmp_path, [44])[0])
    with pytest.raises(InputError, match="makes no predictions"):
        CliRunner().invoke(command, ["run", "cutout", "--truth", file], catch_exceptions=False)
    again = ["run", "depth-and-device", "--report-only", "--truth", file]
    with pytest.raises(InputError, match="report-only"):
        CliRunner().invoke(command, again, catch_exceptions=False)
    found = CliRunner().invoke(command, ["run", "cutout", file])
    assert found.exit_code == 2
    assert "belongs to no option" in found.output


@pytest.mark.published
def test_the_fifteen_runs() -> None:
    """What is known of them: losses near an exponential, no effect of the device, and depth 18 of another family."""
    folder = published_folder()
    if folder is None or not os.environ.get("CHRONOGRAD_MEASURED"):
        pytest.skip("CHRONOGRAD_MEASURED does not name the folder of measured tables")
    logs = read_logs("published", sorted(folder.glob("history*.json")), ACCURACIES)
    assert len(logs.runs) == 15
    assert logs.networks == ["torchvision:resnet18", "resnet20", "resnet32", "resnet44", "resnet56"]
    targets = target_rows(logs)
    assert best(targets, "error", "features") == ("family, params, MACs",)

    def error(features: str, network: str) -> float:
        rows = [row for row in targets if (row["features"], row["network"]) == (features, network)]
        return float(np.mean([row["error"] for row in rows]))

    assert error("depth", "torchvision:resnet18") > 0.4
    assert error("family, params, MACs", "resnet44") < 0.05
    curves = [row for row in curve_rows(logs) if row["form"] == "epoch by epoch"]
    assert best(curves, "mape", "features") == ("family, params, MACs",)
    told = epochs_prediction(logs, logs.runs[0], "depth")
    assert (told.low < told.values).all()
    assert (told.values < told.high).all()

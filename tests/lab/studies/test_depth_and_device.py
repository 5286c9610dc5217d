"""Depth and device: the smoke size, published logs that follow a known law, and the fifteen real logs."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

import chronograd
from chronograd.cli.main import main
from chronograd.errors import InputError
from chronograd.report.html import render_html
from chronograd_lab.common.published_runs import (
    CIFAR_RESNETS,
    HELD_BACK,
    RESNET50_EPOCHS_TO_92,
    RESNET50_REAL_EPOCHS_TO_92,
)
from chronograd_lab.common.results import Results, Row
from chronograd_lab.common.rows import Spread, difference, matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.written import ClaimError
from chronograd_lab.studies.depth_and_device.curve_regression import Run
from chronograd_lab.studies.depth_and_device.depth_runs import (
    CIFAR,
    IMAGENET,
    Logs,
    best,
    curve_rows,
    epochs_prediction,
    published_folder,
    read_logs,
    target_rows,
)
from chronograd_lab.studies.depth_and_device.optimus_chain import (
    AFTER,
    BEFORE,
    CHAIN,
    FORECAST,
    TARGET,
    ahead_rows,
    device_pairs,
    mean_epochs,
    of_another_kind,
    other_kind_rows,
    plain_fit,
    triple_rows,
    weighted_fit,
)
from chronograd_lab.studies.depth_and_device.study import STUDY, values

ACCURACIES = [0.9, 0.92, 0.95, 0.99]
PAGE = Path(__file__).parents[3] / "docs" / "studies" / "depth-and-device" / "results.json"


def write_logs(folder: Path, depths: list[int], devices: tuple[str, ...] = ("K80", "V100")) -> list[Path]:
    """Write noiseless logs: errors fall at a rate of the square root of depth / 500, and losses are twice as large."""
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
    """Write published runs of one family."""
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
    def test_depth_and_device_from_file_name(self, tmp_path: Path) -> None:
        logs = read_logs("x", [write_logs(tmp_path, [20])[0], *write_logs(tmp_path, [18], ("A100-40",))], ACCURACIES)
        assert [run.network for run in logs.runs] == ["resnet20", "torchvision:resnet18"]
        assert [run.labels for run in logs.runs] == [
            {"family": CIFAR, "device": "K80"},
            {"family": IMAGENET, "device": "A100-40"},
        ]
        assert [run.numbers["params"] for run in logs.runs] == [269_722, 11_181_642]
        # He et al. print 0.27 M; torchvision's 11,689,512 less 990 classes of 513 parameters.
        assert 11_689_512 - 990 * 513 == 11_181_642
        # exp(-0.2 k) <= 0.1 from k = 12, 0.08 from 13, 0.05 from 15, 0.01 from 24.
        assert logs.epochs[0].tolist() == [12, 13, 15, 24]
        assert logs.levels[0] == pytest.approx([0.2, 0.16, 0.1, 0.02])  # losses are twice the errors

    @pytest.mark.parametrize(
        ("name", "message"), [("run7.json", "does not tell depth"), ("history19_K80.json", "not 6n")]
    )
    def test_unusable_file_names(self, tmp_path: Path, name: str, message: str) -> None:
        file = write_logs(tmp_path, [20])[0].rename(tmp_path / name)
        with pytest.raises(InputError, match=message):
            read_logs("x", [file], ACCURACIES)


class TestPublished:
    @pytest.mark.slow
    def test_depth_law_is_recovered_and_scored(
        self, measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Score a new depth, and a known depth with ten times larger losses, which its own runs must not predict."""
        files = [*write_logs(tmp_path, [44]), write_logs(tmp_path, [20])[0]]
        told = json.loads(files[-1].read_text())
        files[-1].write_text(json.dumps({**told, "loss": [10 * loss for loss in told["loss"]]}))
        out = tmp_path / "out"
        arguments = ["depth-and-device", "--size", "paper", "--out", str(out), "--truth", *map(str, files)]
        assert main(["study", "run", *arguments]) == 0
        assert "Scored on further runs" in capsys.readouterr().out
        assert "| resnet44 | exponential |" in (out / "README.md").read_text()

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
        assert [row["seen"] for row in epochs[:4]] == [8, 9, 11, 16]  # ln 10, 12.5, 20, 100 over sqrt(44 / 500)
        assert all(row["p_value"] == 1 for row in results.rows["devices"])  # a network's runs are equal
        slopes = {row["target"]: row["slope"] for row in results.rows["slopes"] if row["over"] == "all"}
        assert slopes["exponential, b"] == pytest.approx(0.5, abs=1e-3)
        titles = [section.title for section in STUDY.page(results).sections]
        coefficients = "Optimus' coefficients of the runs"
        assert titles[:3] == ["Scored on further runs", "Their epochs to a target", coefficients]
        assert not [title for title in titles if "ResNet-50" in title]  # one family gives no values for another
        assert "The confound at depth 18" not in titles  # one family only

    def test_missing_published_runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CHRONOGRAD_MEASURED", raising=False)
        assert published_folder() is None
        for size, truth in (("paper", []), ("smoke", write_logs(tmp_path, [44]))):
            with pytest.raises(InputError, match="not available"):
                STUDY.conduct(StudyRunner(tmp_path, STUDY.name, size, print, truth=truth), STUDY.sizes[size])


def test_unused_truth_is_refused(tmp_path: Path) -> None:
    file = write_logs(tmp_path, [44])[0]
    with pytest.raises(InputError, match="makes no predictions"):
        chronograd.study_run("cutout", truth=file)
    with pytest.raises(InputError, match="report-only"):
        chronograd.study_run("depth-and-device", report_only=True, truth=file)
    with pytest.raises(InputError, match="belongs to no option"):
        chronograd.study_run("cutout", file)


@pytest.mark.published
def test_fifteen_published_runs() -> None:
    """Check known results: nearly exponential losses, no device effect, and depth 18 from another family."""
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


class TestChain:
    def test_planted_coefficients_are_recovered(self) -> None:
        """Both fits recover an exact curve. On a faster curve, the weights change b1."""
        k = np.arange(1.0, 351)
        for b in ((0.5, 0.5, 0.0), (0.4, 0.6, 0.05)):
            curve = 1.6 * (1 / (b[0] * k + b[1]) + b[2])  # its largest is 1.6 · (1 + b2)
            scaled = [b[0] * (1 + b[2]), b[1] * (1 + b[2]), b[2] / (1 + b[2])]
            assert plain_fit(curve) == pytest.approx(scaled, abs=1e-4)
            assert weighted_fit(curve) == pytest.approx(scaled, abs=1e-4)
        faster = 1.6 * np.exp(-0.15 * k)
        assert plain_fit(faster)[1] > 0.2
        assert weighted_fit(faster)[1] < 1e-9

    def test_network_of_another_kind(self) -> None:
        """One kind takes 10 epochs (two networks), the other 20: use the mean of the logarithms and a factor of 2."""
        logs = kinds_of([("a", CIFAR, 10.0), ("b", CIFAR, 10.0), ("c", IMAGENET, 20.0)])
        new = Run("d", {"depth": 50.0}, {"family": IMAGENET, "device": "K80"})
        values, low, high = of_another_kind(logs, new, mean_epochs, logs.epochs, ())
        assert values == pytest.approx([20.0 ** (1 / 3) * 10.0 ** (2 / 3)])
        # Each kind, left out, is off by log 2, with leverage 1/2 from two networks and 1 from one.
        squares = math.log(2) ** 2 * (1 / 1.5 + 1 / 2) / 2
        spread = math.tan(0.8 * math.pi / 2) * math.sqrt(
            squares * (1 + 1 / 3)
        )  # Student's t with one degree of freedom is Cauchy's distribution
        assert np.log(high / values) == pytest.approx([spread])
        assert np.log(values / low) == pytest.approx([spread])

    def test_device_differences(self) -> None:
        """V100 takes 20 % less in every network: significant. K80 and P100 differ by noise only."""
        rows = [("a", 10.0), ("b", 14.0), ("c", 20.0), ("d", 26.0)]
        runs, values = [], []
        for i, (network, epochs) in enumerate(rows):
            for device, factor in (("K80", 1.0), ("P100", 1.01 - 0.02 * (i % 2)), ("V100", 0.8)):
                runs.append(Run(network, {"depth": 10.0 + i}, {"family": CIFAR, "device": device}))
                values.append(epochs * factor)
        logs = Logs("x", tuple(runs), {}, ("t",), np.array(values)[:, None])
        pairs = {(a, b): apart for a, b, apart in device_pairs(logs, logs.epochs[:, 0])}
        assert not pairs["K80", "P100"].is_seen
        assert pairs["K80", "V100"].is_seen
        assert pairs["K80", "V100"].mean == pytest.approx(-math.log(0.8))

    def test_other_kinds_with_one_recipe(self) -> None:
        """Use packaged runs of a small CNN and ResNet-8 by recipe, if both reach the losses."""
        rows = other_kind_rows([("a", 0.28), ("b", 0.03)])
        assert {tuple(row["kinds"]) for row in rows} == {("small-cnn", "resnet8")}
        assert {row["recipe"] for row in rows} == {"cutout, nothing", "digits, one_cycle, 6 epochs"}


def kinds_of(networks: list[tuple[str, str, float]]) -> Logs:
    runs = tuple(Run(name, {"depth": 20.0}, {"family": family, "device": "K80"}) for name, family, _ in networks)
    epochs = np.array([[value] for *_, value in networks])
    return Logs("x", runs, {}, ("t",), epochs)


@pytest.fixture
def results() -> Results:
    return Results.load(PAGE)


class TestPage:
    """Page values, recomputed from the rows of its results."""

    def test_coefficients(self, results: Results) -> None:
        """Include powers of depth by least squares over the four networks."""
        triples, found = results.rows["triples"], values(results)
        assert len(triples) == found["runs"]["all"] == 15
        for j, name in ((0, "b0"), (1, "b1")):
            means = {d: np.mean([r["plain"][j] for r in matching(triples, depth=d)]) for d in (18, 20, 32, 44, 56)}
            assert {d: found["plain"][f"resnet{d}"][name] for d in means} == pytest.approx(means)
            y = np.log([means[d] for d in (20, 32, 44, 56)])
            power = np.polyfit(np.log([20, 32, 44, 56]), y, 1)[0]
            assert found["regression"][name]["inside"] == pytest.approx(power, rel=1e-5)
        assert found["runs"]["b2_is_0"] == sum(r["plain"][2] < 1e-9 for r in triples)
        assert found["runs"]["b1_is_0"] == sum(r["weighted"][1] < 1e-9 for r in triples)
        assert found["runs"]["lost"] == sum(r["is_lost_without_bounds"] for r in triples)
        regression = {row["coefficient"]: row["predicted"] for row in results.rows["regression"]}
        moved = max(max(of) / min(of) - 1 for name, of in regression.items() if name != "b2")
        assert found["moved"] == pytest.approx(moved)

    def test_epochs_follow_from_the_coefficients(self, results: Results) -> None:
        b0, b1, largest = (
            float(np.exp(np.mean(np.log(row["predicted"]))))
            for name in ("b0", "b1", "largest loss")
            for row in matching(results.rows["regression"], coefficient=name)
        )
        (level,) = matching(results.rows["levels"], target=TARGET)
        found = values(results)
        ahead = found["ahead"]
        assert (largest / level["loss"] - b1) / b0 == pytest.approx(ahead["epochs"], rel=1e-3)
        assert (ahead["epochs"], ahead["low"], ahead["high"]) == RESNET50_EPOCHS_TO_92
        assert tuple(found["seen"].values()) == RESNET50_REAL_EPOCHS_TO_92
        off = np.mean([ahead["epochs"] / seen - 1 for seen in RESNET50_REAL_EPOCHS_TO_92])
        assert found["off"]["ours"] == pytest.approx(off, abs=1e-4)
        for name, rule in (("ours", CHAIN), ("mean", AFTER)):
            held = matching(results.rows["held"], rule=rule)
            assert found["held"][name] == f"{sum(r['low'] <= r['seen'] <= r['high'] for r in held)} of 12"
        assert found["best_test"] == max(row["best_test_accuracy"] for row in results.rows["held_runs"])

    def test_earlier_forecast_is_unchanged(self, results: Results) -> None:
        """Compare with the text printed at 9c22c1c and with the same rule applied to the same runs now."""
        assert {target: of[0] for target, of in FORECAST.items()} == {
            "accuracy 90 %": 8.2,
            "accuracy 95 %": 11.0,
            "accuracy 99 %": 21.5,
        }
        for target, given in FORECAST.items():
            (row,) = matching(results.rows["ahead"], rule=BEFORE, target=target)
            assert [round(row[key], 1) for key in ("epochs", "low", "high")] == pytest.approx(given, abs=0.11)
        held = [row for row in matching(results.rows["held"], rule=BEFORE) if row["target"] in FORECAST]
        assert values(results)["held"]["before"] == "0 of 9"
        assert not any(row["low"] <= row["seen"] <= row["high"] for row in held)
        assert 2.5 < np.mean([row["seen"] / row["epochs"] for row in held]) < 3.5  # about three times too few

    def test_curve(self, results: Results) -> None:
        curve = values(results)["curve"]
        for name, rule in (("ours", CHAIN), ("before", BEFORE)):
            errors = [row["mape_learning"] for row in matching(results.rows["held_curves"], rule=rule)]
            assert curve[name] == pytest.approx(np.mean(errors))

    def test_devices(self, results: Results) -> None:
        """Check Welch's intervals from the epochs of the networks."""
        networks = [row for row in results.rows["networks"] if row["set"] == "published"]
        for target in ("accuracy 92 %", "accuracy 99 %"):
            logs = {(row["network"], row["device"]): math.log(row["epochs"][target]) for row in networks}
            names = {network for network, _ in logs}
            own = {
                d: [logs[n, d] - np.mean([logs[n, e] for e in ("K80", "P100", "V100")]) for n in names]
                for d in ("K80", "V100")
            }
            k80, v100 = (Spread(float(np.mean(v)), float(np.std(v, ddof=1)) * math.sqrt(1.5), 5) for v in own.values())
            apart = difference(k80, v100)
            (row,) = matching(results.rows["pairs"], target=target, a="K80", b="V100")
            assert row["ratio"] == pytest.approx(math.expm1(apart.mean))
            assert apart.interval is not None
            assert (row["low"], row["high"]) == pytest.approx([math.expm1(bound) for bound in apart.interval])
        pairs, devices = results.rows["pairs"], values(results)["devices"]
        assert (devices["seen"], devices["pairs"]) == (sum(row["is_seen"] for row in pairs), len(pairs))
        assert devices["widest"] == max(max(abs(row["low"]), abs(row["high"])) for row in pairs)

    def test_kinds(self, results: Results) -> None:
        ratios = [row["ratio"] for row in matching(results.rows["kinds"], rule=AFTER, target=TARGET)]
        ratios += [row["ratio"] for row in matching(results.rows["other_kinds"], target=TARGET)]
        factors = [max(ratio, 1 / ratio) for ratio in ratios]
        real = [row["seen"] / row["epochs"] for row in matching(results.rows["held"], rule=AFTER, target=TARGET)]
        kinds = values(results)["kinds"]
        assert kinds["factor"] == {"least": min(factors), "most": max(factors)}
        assert kinds["times"] == {"least": min(real), "most": max(real)}

    def test_device_effect_contradicts_the_page(self, results: Results) -> None:
        results.rows["pairs"][0]["is_seen"] = True
        with pytest.raises(ClaimError, match="Epochs do not depend on the device"):
            STUDY.page(results)

    def test_claims_of_lines_name_their_sentence(self, results: Results) -> None:
        results.rows["triples"][0]["is_lost_without_bounds"] = False
        with pytest.raises(ClaimError, match="finds no falling curve"):
            STUDY.page(results)


@pytest.mark.published
def test_page_uses_only_the_fifteen_runs() -> None:
    """Recompute the rows of the page; the held-back runs are not among the inputs."""
    folder = published_folder()
    if folder is None:
        pytest.skip("CHRONOGRAD_MEASURED does not name the folder of measured tables")
    logs = read_logs("published", sorted(folder.glob("history*.json")), ACCURACIES)
    assert HELD_BACK not in str(folder)
    results = Results.load(PAGE)
    again = triple_rows(logs)
    for row, kept in zip(again, results.rows["triples"], strict=True):
        assert row["plain"][:2] == pytest.approx(kept["plain"][:2], rel=1e-3)
    mean_b0 = {
        depth: np.mean([row["plain"][0] for row in matching(again, depth=depth)]) for depth in (18, 20, 32, 44, 56)
    }
    assert mean_b0 == pytest.approx({18: 0.63, 20: 0.43, 32: 0.49, 44: 0.52, 56: 0.55}, abs=0.005)
    rows = ahead_rows(logs, Run("torchvision:resnet50", *resnet50()))["ahead"]
    for row, kept in zip(rows, results.rows["ahead"], strict=True):
        assert row["epochs"] == pytest.approx(kept["epochs"], rel=1e-3)


def resnet50() -> tuple[Row, dict[str, str]]:
    from chronograd_lab.studies.depth_and_device import depth_runs

    _, family, params, macs = depth_runs._network(50)
    return {"depth": 50.0, "params": params, "macs": macs}, {"family": family, "device": "K80"}

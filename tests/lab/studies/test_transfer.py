"""Transfer: a real run of the smoke size, and page values of made-up numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from scipy import stats

from chronograd.errors import InputError
from chronograd.report.html import render_html
from chronograd_lab.common.results import Results
from chronograd_lab.common.rows import signed
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.weights import weights_file
from chronograd_lab.common.written import ClaimError
from chronograd_lab.studies import find
from chronograd_lab.studies.transfer.study import (
    FINE,
    HEAD,
    SCRATCH,
    STUDY,
    Experiment,
    best,
    cases,
    experiments,
    job,
    times,
    values,
)

FOLDER = Path(__file__).parents[3] / "docs" / "studies" / "transfer"
LAPTOP = STUDY.sizes["laptop"]


def quiet(text: str) -> None:
    pass


@pytest.mark.slow
def test_smoke_size_end_to_end(tmp_path: Path) -> None:
    study = find("transfer")
    results = study.conduct(StudyRunner(tmp_path, "transfer", "smoke", quiet), study.sizes["smoke"])
    rows = results.rows["runs"]
    assert [(row["mode"], row["seed"]) for row in rows] == [(m, s) for m in (FINE, SCRATCH, HEAD) for s in (0, 1)]
    assert {row["trained_params"] for row in rows if row["mode"] == HEAD} == {64 * 10 + 10}
    fine, head, scratch = ([row for row in rows if row["mode"] == mode] for mode in (FINE, HEAD, SCRATCH))
    assert all(row["updates"] == 3 * (200 // 25) for row in rows)
    # Use the fastest of each, because other programs may slow any run.
    assert min(row["epoch_time_s"] for row in head) < min(row["epoch_time_s"] for row in fine)
    assert min(row["accuracy"] for row in fine) > max(row["accuracy"] for row in scratch)
    # Other images of the same set give the same accuracy, within the uncertainty of 300 and 360 images.
    assert all(row["validation_accuracy"] == pytest.approx(row["accuracy"], abs=0.1) for row in rows)
    (target,) = results.rows["targets"]
    assert (target["train_images"], target["test_images"], target["classes"]) == (200, 360, 10)
    assert target["shape"] == [1, 8, 8]
    assert target["baseline"] == pytest.approx(37 / 360)  # a fifth of 183 threes, rounded up
    results.save(tmp_path / "results.json")
    html = render_html(study.page(Results.load(tmp_path / "results.json")))
    assert html.count('<p class="kicker">') == 8 + 1  # plus settings
    (case,) = cases(results)
    assert case["fine"]["accuracy"].percent().replace(" %", "\u00a0%") in html.replace(" %", "\u00a0%")


def row(mode: str, rate: float, seed: int, accuracy: float) -> dict[str, object]:
    took = {"epoch_time_s": 2.0, "seconds": 40.0, "trained_params": 9, "epochs": 20.0, "updates": 160.0}
    return {"mode": mode, "rate": rate, "seed": seed, "accuracy": accuracy, **took}


def test_best_rate_has_the_highest_mean_over_seeds() -> None:
    rows = [row(FINE, 0.1, 0, 0.9), row(FINE, 0.1, 1, 0.5), row(FINE, 0.01, 0, 0.8), row(FINE, 0.01, 1, 0.76)]
    found = best([*rows, row(HEAD, 1.0, 0, 0.99)], FINE)
    assert found["rate"] == 0.01
    assert found["accuracy"].mean == pytest.approx(0.78)
    assert found["accuracy"].std == pytest.approx(0.04 / 2**0.5)
    assert found["at_0_1"].mean == pytest.approx(0.7)
    assert found["step_s"] == pytest.approx(0.25)


def test_page_values_follow_from_accuracies_and_times() -> None:
    found = values(Results.load(FOLDER / "results.json"))
    assert found["gain"].mean == pytest.approx(found["fine"]["accuracy"].mean - found["head"]["accuracy"].mean)
    assert found["worth"].mean == pytest.approx(found["fine"]["accuracy"].mean - found["scratch"]["accuracy"].mean)
    assert found["test_error"] == pytest.approx(100 * (0.8875 * 0.1125 / 10_000) ** 0.5, rel=1e-3)
    assert found["unresolved"] == pytest.approx(1.96 * 2**0.5 * found["test_error"] / 100)


@pytest.mark.parametrize(
    ("source", "mode", "rate", "change", "sentence"),
    [
        ("CIFAR-10", SCRATCH, 0.1, +0.05, "fine-tuning all layers is the most accurate way"),
        (
            "CIFAR-10",
            FINE,
            0.01,
            +0.05,
            "fine-tuning all layers is the most accurate way",
        ),  # another rate becomes the best
        ("CIFAR-10", FINE, 0.01, +0.022, "Against the rate 0.01"),
        ("CIFAR-10", HEAD, 0.1, +0.05, "the best rate is the highest one"),
        ("ImageNet", FINE, 0.01, -0.3, "neither way is significantly more accurate"),
        ("ImageNet", FINE, 0.01, -0.02, "training all layers is more accurate than the last layer alone"),
    ],
)
def test_different_accuracies_contradict_the_page(
    source: str, mode: str, rate: float, change: float, sentence: str
) -> None:
    published = Results.load(FOLDER / "results.json")
    for run in published.rows["runs"]:
        if (run["source"], run["mode"], run["rate"]) == (source, mode, rate):
            run["accuracy"] += change
    with pytest.raises(ClaimError, match=sentence):
        STUDY.page(published)


@pytest.mark.parametrize(
    ("target", "low", "high", "p"), [("photographs", -35.6, 15.7, 0.13), ("ants and bees", -22.7, 3.8, 0.072)]
)
def test_photographs_decide_no_way(target: str, low: float, high: float, p: float) -> None:
    """Welch's test of the two seeds of each way, by scipy."""
    runs = [run for run in Results.load(FOLDER / "results.json").rows["runs"] if run["target"] == target]
    fine, head = (
        [run["accuracy"] for run in runs if (run["source"], run["mode"], run["rate"]) == ("ImageNet", mode, rate)]
        for mode, rate in ((FINE, 0.01), (HEAD, 1.0))
    )
    test = stats.ttest_ind(fine, head, equal_var=False)
    interval = test.confidence_interval()
    assert len(fine) == len(head) == 2
    assert test.pvalue == pytest.approx(p, rel=0.05)
    assert 100 * interval.low == pytest.approx(low, abs=0.06)
    assert 100 * interval.high == pytest.approx(high, abs=0.06)


def test_ratios_of_times_are_the_least_ones() -> None:
    """Other work slows any run, so the fastest run of all layers and the slowest of the last layer are compared."""
    rows = [
        {**row(FINE, 0.1, 0, 0.9), "epoch_time_s": 2.0, "seconds": 40.0}, {**row(FINE, 0.1, 1, 0.9), "epoch_time_s": 9.0, "seconds": 180.0},
        {**row(SCRATCH, 0.1, 0, 0.8), "epoch_time_s": 3.0, "seconds": 36.0},
        {**row(HEAD, 1.0, 0, 0.7), "epoch_time_s": 0.1, "seconds": 3.0}, {**row(HEAD, 1.0, 1, 0.7), "epoch_time_s": 0.2, "seconds": 4.0},
    ]  # fmt: skip
    assert times(rows) == {
        "epoch_s": {"least": 2.0, "most": 9.0}, "last_epoch_s": 0.2, "faster_epoch": 10.0, "faster": 9.0,
    }  # fmt: skip


def test_no_sign_of_rounded_zero() -> None:
    assert [signed(x) for x in (-0.01, 0.0, -1.26, 3.0)] == ["+0.0", "+0.0", "−1.3", "+3.0"]


def test_jobs_of_the_three_modes() -> None:
    weights = {name: f"{name}.th" for name in LAPTOP["sources"]}
    made = {
        mode: job(LAPTOP, Experiment("ants and bees", "ImageNet", mode, 0.1), weights) for mode in (FINE, HEAD, SCRATCH)
    }
    assert {m: j.training.trainable for m, j in made.items()} == {FINE: "all", HEAD: "head", SCRATCH: "all"}
    assert {m: j.network.weights for m, j in made.items()} == {FINE: "ImageNet.th", HEAD: "ImageNet.th", SCRATCH: None}
    for own in made.values():
        assert own.training.augmentation.is_none  # otherwise the features of a fixed trunk could not be cached
        assert own.training.milestones == (0.3, 0.6, 0.9)
        assert own.data.image_size == 128
    assert len(experiments(LAPTOP)) == 2 * (3 + 4 + 1)
    paper = STUDY.sizes["paper"]
    assert (paper["batch"], paper["epochs"]) == (64, 200)


def test_source_may_name_targets_and_change_settings() -> None:
    near = {"network": "resnet20", "weights": "near.th", "targets": {"clothes": {}}}
    far = {
        "network": "resnet8", "weights": "far.pth", "image_size": 64, "normalisation": "signed", "epochs": 10, "fine_rates": [0.01],
        "scratch_rates": [], "targets": {"clothes": {"test_samples": 2000}, "ants": {}},
    }  # fmt: skip
    settings = {
        **LAPTOP, "targets": {"clothes": {"name": "fashion-mnist"}, "ants": {"name": "folder:ants"}}, "sources": {"near": near, "far": far},
    }  # fmt: skip
    of_mode = [(e.target, e.source, e.rate) for e in experiments(settings) if e.mode == FINE]
    assert of_mode == [
        *(("clothes", "near", rate) for rate in LAPTOP["fine_rates"]), ("clothes", "far", 0.01), ("ants", "far", 0.01),
    ]  # fmt: skip
    assert not [e for e in experiments(settings) if (e.source, e.mode) == ("far", SCRATCH)]
    weights = {"near": "near.th", "far": "far.pth"}
    first, second = (job(settings, Experiment("clothes", source, FINE, 0.01), weights) for source in ("near", "far"))
    assert (first.training.epochs, first.data.normalisation, first.data.test_samples) == (20, "imagenet", None)
    assert (second.training.epochs, second.data.normalisation, second.data.test_samples) == (10, "signed", 2000)
    assert (second.data.image_size, second.network.name, second.network.weights) == (64, "resnet8", "far.pth")


def test_missing_weights_or_targets_are_reported_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHRONOGRAD_WEIGHTS", raising=False)
    with pytest.raises(InputError, match="CHRONOGRAD_WEIGHTS names no folder"):
        weights_file("resnet20-12fca82f.th")
    monkeypatch.setenv("CHRONOGRAD_WEIGHTS", str(tmp_path))
    lab = StudyRunner(tmp_path / "lab", "transfer", "laptop", quiet)
    with pytest.raises(InputError, match=r"no weights resnet20-12fca82f\.th"):
        STUDY.conduct(lab, LAPTOP)
    for source in LAPTOP["sources"].values():
        (tmp_path / source["weights"]).touch()
    assert weights_file("resnet20-12fca82f.th") == str(tmp_path / "resnet20-12fca82f.th")
    monkeypatch.setenv("CHRONOGRAD_DATA", str(tmp_path))
    with pytest.raises(InputError) as missing:
        STUDY.conduct(lab, LAPTOP)
    assert "hymenoptera_data.zip" in missing.value.hint
    assert not (tmp_path / "lab").exists()

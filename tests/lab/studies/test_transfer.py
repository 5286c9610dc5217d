"""Transfer: the smoke size for real, and what its page says of made-up numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chronograd.errors import InputError
from chronograd.report.html import render_html
from chronograd_lab.common.results import Results
from chronograd_lab.common.rows import Spread
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.weights import weights_file
from chronograd_lab.studies import find
from chronograd_lab.studies.transfer import (
    FINE,
    HEAD,
    SCRATCH,
    STUDY,
    Best,
    Case,
    Experiment,
    best,
    cases,
    experiments,
    job,
    rates_takeaway,
    reason,
    signed,
    speed,
    winner,
)

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
    # The quickest of each: others on the machine make any one slow.
    assert min(row["epoch_time_s"] for row in head) < min(row["epoch_time_s"] for row in fine)
    assert min(row["accuracy"] for row in fine) > max(row["accuracy"] for row in scratch)
    # Of other images of the same set: as accurate, to what 300 and 360 images leave open.
    assert all(row["validation_accuracy"] == pytest.approx(row["accuracy"], abs=0.1) for row in rows)
    (target,) = results.rows["targets"]
    assert (target["train_images"], target["test_images"], target["classes"]) == (200, 360, 10)
    assert target["shape"] == [1, 8, 8]
    assert target["baseline"] == pytest.approx(37 / 360)  # a fifth of 183 threes, rounded up
    results.save(tmp_path / "results.json")
    html = render_html(study.page(Results.load(tmp_path / "results.json")))
    assert html.count('<p class="kicker">') == 8 + 1  # and settings
    (case,) = cases(results)
    assert f"{case.fine.accuracy.percent()}".replace(" %", "\u00a0%") in html.replace(" %", "\u00a0%")


def row(mode: str, rate: float, seed: int, accuracy: float) -> dict[str, object]:
    took = {
        "epoch_time_s": 2.0 if mode != HEAD else 0.01,
        "seconds": 40.0 if mode != HEAD else 4.0,
        "trained_params": 9,
    }
    return {"mode": mode, "rate": rate, "seed": seed, "accuracy": accuracy, **took}


def case(source: str, fine: float, head: float, scratch: float = 0.5, std: float = 0.01, tests: int = 100) -> Case:
    def made(mode: str, mean: float, epoch_time_s: float, took: float) -> Best:
        return Best(mode, 0.01, Spread(mean, std, 3), epoch_time_s, took, 9)

    found = made(FINE, fine, 2.0, 40.0), made(HEAD, head, 0.01, 4.0), made(SCRATCH, scratch, 2.0, 40.0)
    return Case("ants", source, *found, train_images=244, test_images=tests, classes=2, baseline=0.54)


def test_best_rate_is_that_of_the_highest_mean_over_seeds() -> None:
    rows = [row(FINE, 0.1, 0, 0.9), row(FINE, 0.1, 1, 0.5), row(FINE, 0.01, 0, 0.8), row(FINE, 0.01, 1, 0.76)]
    found = best([*rows, row(HEAD, 1.0, 0, 0.99)], FINE)
    assert (found.rate, found.arm) == (0.01, "fine-tuned at 0.01")
    assert found.accuracy.mean == pytest.approx(0.78)
    assert found.accuracy.std == pytest.approx(0.04 / 2**0.5)


def test_what_a_case_derives() -> None:
    made = case("ImageNet", fine=0.8, head=0.9, scratch=0.55)
    assert made.ranked[0].mode == HEAD
    assert made.gain == pytest.approx(-10)
    assert made.worth == pytest.approx(35)
    assert made.test_error == pytest.approx(100 * (0.9 * 0.1 / 100) ** 0.5)


def test_the_winner_and_whether_the_seeds_tell_it() -> None:
    assert "Fine-tuned at 0.01 wins" in winner(case("a", 0.9, 0.8))
    assert "+10.0 percentage points (+7.7 … +12.3, p = 0.00026)" in winner(case("a", 0.9, 0.8, tests=1000))
    assert winner(case("a", 0.9, 0.88, std=0.02)).startswith("No winner: fine-tuned at 0.01 has 90.00 ± 2.00 %")
    assert "100 test images cannot resolve less than 8.3 percentage points" in winner(
        case("a", 0.9, 0.85, std=0.001)
    )  # the seeds alone tell it
    assert case("a", 0.9, 0.85, std=0.001).leader == "fine-tuned and last layer only are not significantly different"
    assert "level" in winner(case("a", 0.9, 0.9))
    assert case("a", 0.9, 0.9).leader == "fine-tuned and last layer only are level"


def test_speed_and_its_cost() -> None:
    assert (
        "200 times as fast, the whole training with its one pass of the trunk 10.0 times. That costs 10.0 percentage points"
        in (speed(case("a", 0.9, 0.8)))
    )
    assert "gains 10.0 percentage points" in speed(case("a", 0.8, 0.9))
    assert "costs nothing" in speed(case("a", 0.8, 0.8))


def test_a_short_step_on_kept_features_is_said_to_be_overhead() -> None:
    made = case("a", 0.9, 0.8)
    slow = replace(made, head=replace(made.head, step_s=7e-3, trained_params=650.0))
    assert "takes 7 ms and trains 650 parameters: nearly all of it is the overhead of the loop" in speed(slow)
    assert "overhead" not in speed(made)


def test_a_difference_of_rates_that_the_test_images_cannot_resolve_is_not_significant() -> None:
    """Three seeds tell 0.741 from 0.739, 10,000 test images do not."""
    rates = {1.0: Spread(0.741, 0.0002, 3), 0.1: Spread(0.739, 0.0002, 3), 0.001: Spread(0.56, 0.003, 3)}
    made = case("CIFAR-10", fine=0.8, head=0.741, tests=10_000)
    made = replace(made, head=replace(made.head, rate=1.0))
    assert "No significant difference from 0.1 (73.90 ± 0.02 %). Worst at 0.001" in rates_takeaway(made, HEAD, rates)


def test_the_reason_follows_the_numbers() -> None:
    near, far = case("ImageNet", fine=0.91, head=0.90), case("CIFAR-10", fine=0.75, head=0.65)
    assert "it is not seen to pay in either" in reason([near, far])  # of 100 test images each
    larger = [replace(one, test_images=10_000) for one in (near, far)]
    assert "it is seen to pay in ants from CIFAR-10, more where the source is far" in reason(larger)
    assert "it is not seen to pay in either" in reason([case("ImageNet", 0.85, 0.9), case("CIFAR-10", 0.6, 0.65)])
    assert "are all that is needed" in reason([case("ImageNet", 0.85, 0.9)])
    assert "leave 10.0 percentage points to fine-tuning" in reason([case("ImageNet", 0.9, 0.8)])


def test_a_sign_is_never_that_of_nothing() -> None:
    assert [signed(x) for x in (-0.01, 0.0, -1.26, 3.0)] == ["+0.0", "+0.0", "-1.3", "+3.0"]


def test_jobs_of_the_three_modes() -> None:
    weights = {name: f"{name}.th" for name in LAPTOP["sources"]}
    made = {
        mode: job(LAPTOP, Experiment("ants and bees", "ImageNet", mode, 0.1), weights) for mode in (FINE, HEAD, SCRATCH)
    }
    assert {m: j.training.trainable for m, j in made.items()} == {FINE: "all", HEAD: "head", SCRATCH: "all"}
    assert {m: j.network.weights for m, j in made.items()} == {FINE: "ImageNet.th", HEAD: "ImageNet.th", SCRATCH: None}
    for own in made.values():
        assert own.training.augmentation.is_none  # else the features of a fixed trunk could not be kept
        assert own.training.milestones == (0.3, 0.6, 0.9)
        assert own.data.image_size == 128
    assert len(experiments(LAPTOP)) == 2 * (3 + 4 + 1)
    paper = STUDY.sizes["paper"]
    assert (paper["batch"], paper["epochs"]) == (64, 200)


def test_missing_weights_and_targets_are_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

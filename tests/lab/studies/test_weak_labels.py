"""Wrong and rare labels: arithmetic on made-up accuracies, and a real run of the smallest size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chronograd.data import datasets, labels, published
from chronograd.errors import RunError
from chronograd.job import Job
from chronograd.report.html import render_html
from chronograd.rundir import RunDir
from chronograd_lab.common.results import Results
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.written import ClaimError
from chronograd_lab.studies.weak_labels import study
from chronograd_lab.studies.weak_labels.study import AFTER, ALONE, BEFORE, STUDY

SMOKE, LAPTOP, EVENING = (STUDY.sizes[size] for size in ("smoke", "laptop", "evening"))
PUBLISHED = Path(__file__).parents[3] / "docs" / "studies" / "weak-labels" / "results.json"
RESAMPLINGS = ["natural", "square_root", "uniform"]


@pytest.mark.slow
def test_smoke_size_end_to_end(tmp_path: Path) -> None:
    lab = StudyRunner(tmp_path, "weak-labels", "smoke", lambda text: None)
    results = STUDY.conduct(lab, SMOKE)
    runs = results.rows["runs"]
    arms = ["noise 0 %", "noise 50 %", "natural", "uniform"]
    assert [(row["stage"], row["arm"]) for row in runs] == [
        *((BEFORE, arm) for arm in arms),
        (ALONE, ""),
        *((AFTER, arm) for arm in arms),
    ]
    # Class accuracies weighted by their test images equal the accuracy recorded in training.
    labels_N = datasets.load(study.target_job(SMOKE, 0).data).test_labels_N.numpy()
    counts = np.bincount(labels_N, minlength=10)
    for row in runs:
        if row["arm"] in SMOKE["resamplings"]:
            by_class = [r for r in results.rows["classes"] if (r["stage"], r["arm"]) == (row["stage"], row["arm"])]
            accuracies = np.array([r["accuracy"] for r in sorted(by_class, key=lambda r: int(r["class"]))])
            assert (accuracies * counts).sum() / counts.sum() == pytest.approx(row["accuracy"], abs=1e-9)
    # A transfer starts from its own pretrained weights.
    tuned = study.target_job(SMOKE, 0, str(lab.path(f"{BEFORE}/natural/seed-0")))
    assert tuned.network.weights == str(tmp_path / "runs" / BEFORE / "natural" / "seed-0")
    assert any("tensors of weights" in note for note in _notes(lab, f"{AFTER}/natural/seed-0"))
    results.save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json") == results
    page = STUDY.page(results)
    assert len(page.sections) == 5
    assert "Label noise" in render_html(page)


def _notes(lab: StudyRunner, name: str) -> list[str]:
    return RunDir.open(lab.path(name)).record().notes


@pytest.mark.parametrize("size", ["smoke", "laptop"])
def test_no_target_image_is_in_pretraining(size: str) -> None:
    settings = STUDY.sizes[size]
    try:
        labels_N = published.read(settings["data"]).train_labels
    except RunError as error:
        pytest.skip(error.message)
    names = published.SETS[settings["data"]].card.class_names

    def samples_of(job: Job) -> set[int]:
        return set(labels.choose(job.data, labels_N, names, 0).samples_N.tolist())

    target = samples_of(study.target_job(settings, 0))
    assert len(target) == settings["target_samples"]
    for share in settings["noise"]:
        assert not target & samples_of(study.noise_job(settings, share, 0))
    for resampling in settings["resamplings"]:
        assert not target & samples_of(study.tail_job(settings, resampling, 0))


def test_resamplings_share_images_and_settings() -> None:
    a, b = (study.tail_job(LAPTOP, resampling, 1) for resampling in ("natural", "uniform"))
    assert a.model_copy(update={"data": a.data.model_copy(update={"resampling": "uniform"})}) == b
    assert (a.data.long_tail, a.data.skip, a.training.seed) == (LAPTOP["long_tail"], LAPTOP["target_samples"], 1)


def test_laptop_size_classes_have_enough_images() -> None:
    """CIFAR-10 has 5,000 images per class, and the target uses some of them."""
    rows = study.tail_set(LAPTOP)
    weights = np.arange(1, 11) ** -LAPTOP["long_tail"]
    expected = LAPTOP["tail_samples"] * weights / weights.sum()
    assert [row["images"] for row in rows] == pytest.approx(expected, abs=1)
    assert sum(row["images"] for row in rows) == sum(row["uniform"] for row in rows) == LAPTOP["tail_samples"]
    assert rows[0]["images"] < 5000 - LAPTOP["target_samples"] / 10 - 100
    assert {row["uniform"] for row in rows} == {LAPTOP["tail_samples"] // 10}
    root = np.sqrt(expected)
    assert [row["square_root"] for row in rows] == pytest.approx(LAPTOP["tail_samples"] * root / root.sum(), abs=2)


def test_accuracy_by_class() -> None:
    probability_NK = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.8, 0.1], [0.4, 0.5, 0.1]])
    found = study.class_accuracies(probability_NK, np.array([0, 1, 1, 0]))
    assert found[:2] == [0.5, 1.0]
    assert np.isnan(found[2])


@pytest.mark.parametrize(
    ("share", "lost", "verdict"),
    [
        (0.1, 0.9, "as published"),
        (0.1, -0.5, "as published"),
        (0.1, 1.1, "more than published"),
        (0.25, 0.9, "less than published"),
        (0.25, 2.9, "as published"),
        (0.5, 3.9, "less than published"),
        (0.5, 5.5, "as published"),
        (0.5, 7.1, "more than published"),
        (0.4, 5.0, "–"),
    ],
)
def test_losses_compared_with_published_ones(share: float, lost: float, verdict: str) -> None:
    assert study.published_verdict(share, lost) == verdict


def made_up(seeds: int = 2) -> Results:
    """Return results where every arm has a different accuracy, and rare classes half of it."""
    settings = {**EVENING, "seeds": seeds}
    level = {"noise 0 %": 0.60, "noise 10 %": 0.595, "noise 25 %": 0.575, "noise 50 %": 0.545}
    level |= {"natural": 0.40, "square_root": 0.45, "uniform": 0.46}
    tail = study.tail_set(settings)
    runs: list[dict[str, Any]] = []
    classes: list[dict[str, Any]] = []
    for seed in range(seeds):
        used = {"seed": seed, "train_loss": 0.5, "seconds": 9.0, "user_s": 8.0, "system_s": 1.0}
        runs.append({"stage": ALONE, "arm": "", "accuracy": 0.42 + 0.002 * seed, **used})
        for stage, gain in ((BEFORE, 0.0), (AFTER, 0.02)):
            for arm, accuracy in level.items():
                own = {"stage": stage, "arm": arm, **used}
                reached = accuracy + gain + 0.002 * seed
                runs.append({**own, "accuracy": reached})
                if arm in RESAMPLINGS:
                    classes += [{**own, "class": c, "accuracy": reached / (2 if c >= 7 else 1)} for c in range(10)]
    return Results("weak-labels", "evening", settings, {"runs": runs, "classes": classes, "tail": tail})


def test_page_of_made_up_numbers() -> None:
    results = made_up()
    page = STUDY.page(results, is_checked=False)
    sections = {section.title: section for section in page.sections}
    losses = sections["The cost of noise, compared with the paper"]
    assert losses.table is not None
    assert [row[2] for row in losses.table.rows] == ["0.50", "2.50", "5.50"]
    assert study.rare(results, AFTER, "uniform").mean == pytest.approx((0.48 + 0.482) / 4)
    assert "+6.0" in sections["Resampling, compared with the paper"].takeaway
    noise = sections["Label noise"]
    assert noise.figure is not None
    assert noise.table is not None
    assert noise.table.rows[-1] == ["clean set alone", "", "42.10 ± 0.14 %", "2"]
    html = render_html(page)
    assert all(section.title in html for section in page.sections)


@pytest.mark.parametrize(
    ("stage", "arm", "change", "sentence"),
    [
        (AFTER, "noise 50 %", +0.07, "At every share of noise, the loss is larger"),
        (AFTER, "noise 50 %", +0.02, "makes up for none of it"),
        (AFTER, "noise 0 %", +0.02, "makes up for none of it"),
        (ALONE, "", +0.08, "still better than none"),
        (AFTER, "uniform", +0.03, "gains about the published"),
    ],
)
def test_different_accuracies_contradict_a_sentence(stage: str, arm: str, change: float, sentence: str) -> None:
    results = Results.load(PUBLISHED)
    for row in results.rows["runs"]:
        if (row["stage"], row["arm"]) == (stage, arm):
            row["accuracy"] += change
    with pytest.raises(ClaimError, match=sentence):
        STUDY.page(results)


def test_single_seed_is_reported() -> None:
    losses = study.blocks(made_up(1))["The cost of noise, compared with the paper"].table
    assert losses is not None
    assert {row[3] for row in losses.rows} == {"one seed"}

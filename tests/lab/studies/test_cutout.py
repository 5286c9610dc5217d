"""Cutout: the smoke size from run to page, and its arithmetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.evening import jobs

from chronograd.job import resolved
from chronograd.report.html import render_html
from chronograd_lab.common.results import Results
from chronograd_lab.common.rows import matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.exercises.problems import image
from chronograd_lab.studies.cutout.study import (
    ALONE,
    CUTOUT,
    NOTHING,
    PIXELS,
    PLAIN,
    STUDY,
    arms,
    hidden_share,
    overfitting,
    pictures,
    set_name,
    sets,
)

PUBLISHED = Results.load(Path(__file__).parents[3] / "docs" / "studies" / "cutout" / "results.json")


@pytest.mark.slow
def test_smoke_size_end_to_end(tmp_path: Path) -> None:
    said: list[str] = []
    settings = {**STUDY.sizes["smoke"], "seeds": 1}
    lab = StudyRunner(tmp_path, "cutout", "smoke", said.append)
    results = STUDY.conduct(lab, settings)
    assert {row["augmentation"] for row in results.rows["runs"]} == set(arms(settings))
    assert all(0 <= row["accuracy"] <= 1 and row["images"] == 2 * 8 * 50 for row in results.rows["runs"])
    assert len(said) == 5
    results.save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json") == results
    page = STUDY.page(Results.load(tmp_path / "results.json"))
    assert [s.title for s in page.sections] == ["Before and after", "small-cnn", "Why", "Compared with the paper"]
    assert page.sections[1].takeaway == "5 rows of size smoke."
    assert page.sections[1].table is not None
    assert [row[0] for row in page.sections[1].table.rows] == list(arms(settings))
    assert render_html(page).startswith("<!doctype html>")
    # The second call runs nothing again.
    again = STUDY.conduct(StudyRunner(tmp_path, "cutout", "smoke", said.append), settings)
    assert again.rows == results.rows
    assert len(said) == 5


def test_evening_trains_the_whole_set_and_the_small_one() -> None:
    """Crops and flips throughout on the whole set, in bf16; every augmentation on the small set, as at size laptop."""
    found = jobs(STUDY, "evening")
    whole, small = found[:4], found[4:]
    assert {job.training.augmentation.cutout for job in whole} == {0, 16}
    assert {(job.network.name, job.data.samples, job.training.precision) for job in whole} == {
        ("resnet20", None, "bf16")
    }
    assert [resolved(job) for job in small] == [resolved(job) for job in jobs(STUDY, "laptop")]


def test_published_runs_are_those_of_the_size() -> None:
    rows = PUBLISHED.rows["runs"]
    asked = [
        (network, set_name(own), name, seed)
        for own in sets(STUDY.sizes["evening"])
        for network in own["networks"]
        for name in arms(own)
        for seed in range(own["seeds"])
    ]
    assert [(row["network"], row["set"], row["augmentation"], row["seed"]) for row in rows] == asked
    assert list(PUBLISHED.curves) == [f"{network}: {name}/seed-{seed}" for network, _, name, seed in asked]


def test_overfitting_is_test_loss_less_training_loss() -> None:
    (first, *_) = overfitting(PUBLISHED)
    curves = [PUBLISHED.curves[f"resnet20: {PLAIN}/seed-{seed}"] for seed in (0, 1)]
    gaps = [(own["test_loss"][-1] or 0) - (own["train_loss"][-1] or 0) for own in curves]
    assert (first["without"], first["gap"]) == (PLAIN, pytest.approx(sum(gaps) / 2))
    values = STUDY.values(PUBLISHED)
    assert values["compared"] == 5
    assert values["rank"] == pytest.approx(1 - 6 * (4 + 0 + 4 + 1 + 1) / (5 * 24))  # Spearman, from the page's table
    assert values["processor_s"] == pytest.approx(
        sum(row["user_s"] + row["system_s"] for row in matching(PUBLISHED.rows["runs"], network="resnet20"))
    )


def test_pictures_may_be_larger_than_images_of_training() -> None:
    """Digits of 8 × 8 are drawn at 16 × 16, with a larger square."""
    small, large = (
        {name: image(png) for name, png in pictures({**STUDY.sizes["smoke"], **more}).items()}
        for more in ({}, {"pictures": {"image_size": 16, "side": 12}})
    )
    assert {one.shape[:2] for one in small.values()} == {(8, 8)}
    assert {one.shape[:2] for one in large.values()} == {(16, 16)}
    hidden = [np.mean(one[f"{ALONE}/0"] != one[f"{NOTHING}/0"]) for one in (small, large)]
    assert hidden[1] > hidden[0] > 0


@pytest.mark.parametrize(("size", "side"), [(32, 16), (8, 4), (9, 3)])
def test_dropout_share_equals_hidden_pixels(size: int, side: int) -> None:
    """Count over every possible centre."""
    hidden = 0
    for y in range(size):
        for x in range(size):
            image = np.zeros((size, size))
            image[max(0, y - side // 2) : y + side // 2, max(0, x - side // 2) : x + side // 2] = 1
            hidden += int(image.sum())
    assert hidden_share(size, side) == pytest.approx(hidden / size**4)
    compared = arms({"crop": 1, "flip": True, "side": side, "image_size": size})
    assert compared[PIXELS]["pixel_dropout"] == pytest.approx(hidden / size**4, abs=1e-4)
    assert compared[CUTOUT]["cutout"] == side

"""Cutout: the smoke size from run to page, and its arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chronograd.report.html import render_html
from chronograd_lab.common.results import Results
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
    pictures,
)


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
    assert Results.load(tmp_path / "results.json") == Results.load(tmp_path / "results.json")
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


def test_a_size_may_compare_fewer_augmentations() -> None:
    """The page's values then have one setting, and no correlation of gains with overfitting."""
    assert list(arms(STUDY.sizes["evening"])) == [PLAIN, CUTOUT]
    settings = {**STUDY.sizes["smoke"], "networks": ["resnet20"], "augmentations": [PLAIN, CUTOUT]}
    ends = {
        f"resnet20: {name}/seed-{seed}": 0.8 + 0.02 * i + 0.01 * seed
        for i, name in enumerate((PLAIN, CUTOUT))
        for seed in (0, 1)
    }
    rows = [
        {"network": "resnet20", "augmentation": name.split(": ")[1][:-7], "seed": 0, "accuracy": end, "train_loss": 0.1, "seconds": 1.0}
        for name, end in ends.items()
    ]  # fmt: skip
    curves: Any = {
        name: {"epoch": [1.0], "train_loss": [0.1], "test_loss": [0.6], "test_accuracy": [end]}
        for name, end in ends.items()
    }
    results = Results("cutout", "smoke", settings, {"runs": rows}, curves, pictures(settings))
    values = STUDY.values(results)
    assert set(values["resnet20"]) == {"plain", "cutout"}
    assert (values["settings"], values["gain"], values["gap"]) == (1, pytest.approx(2.0), pytest.approx(0.5))
    assert "rank" not in values
    titles = [section.title for section in STUDY.page(results).sections]
    assert titles == ["Before and after", "resnet20", "Why", "Compared with the paper"]


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

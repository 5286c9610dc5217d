"""Cutout: the smoke size through every step to a page, and its arithmetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chronograd.report.html import render_html
from chronograd_lab.common.results import Results
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.studies.cutout import CUTOUT, PIXELS, STUDY, arms, hidden_share, overfitting_takeaway


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
    assert [s.title for s in page.sections] == ["Before and after", "small-cnn", "Why", "Beside the paper"]
    assert "too few seeds to judge" in page.sections[1].takeaway
    assert render_html(page).startswith("<!doctype html>")
    # Nothing is run twice.
    again = STUDY.conduct(StudyRunner(tmp_path, "cutout", "smoke", said.append), settings)
    assert again.rows == results.rows
    assert len(said) == 5


@pytest.mark.parametrize(("size", "side"), [(32, 16), (8, 4), (9, 3)])
def test_as_many_pixels_are_dropped_as_squares_hide(size: int, side: int) -> None:
    """Counted over every centre there is."""
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


def test_the_takeaway_follows_the_numbers() -> None:
    assert overfitting_takeaway([(0.1, 2.0), (0.5, 0.5), (2.0, -1.0)]).endswith(
        "the gain falls with it, in 3 settings, too few to tell."
    )
    assert "does not follow it" in overfitting_takeaway([(0.1, 1.0), (0.5, 3.0), (1.0, 0.0), (2.0, 1.5)])
    assert overfitting_takeaway([(gap, gap) for gap in range(5)]).endswith("the gain grows with it, in 5 settings.")

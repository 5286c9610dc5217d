"""Cutout: the smoke size from run to page, and its arithmetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chronograd.report.html import render_html
from chronograd_lab.common.results import Results
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.studies.cutout.study import CUTOUT, PIXELS, STUDY, arms, hidden_share


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

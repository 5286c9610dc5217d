"""Figures of the published pages: series can be distinguished, and an axis has values of one kind."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from chronograd.answer import Section
from chronograd.figure import Lines
from chronograd.report.plots import _colors
from chronograd_lab.common.results import Results
from chronograd_lab.studies import find

FOLDER = Path(__file__).parents[3] / "docs" / "studies"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/results.json"))


@cache
def sections(name: str) -> list[Section]:
    return list(find(name).plain(Results.load(FOLDER / name / "results.json")).sections)


def panels(name: str, title: str) -> list[Lines]:
    figure = next(section.figure for section in sections(name) if section.title == title)
    assert figure is not None
    return [panel for panel in figure.panels if isinstance(panel, Lines)]


@pytest.mark.parametrize("name", NAMES)
def test_series_of_a_panel_differ_in_role_or_colour(name: str) -> None:
    """Guards against two clouds of points in the same blue."""
    for section in sections(name):
        for panel in section.figure.panels if section.figure is not None else ():
            if isinstance(panel, Lines):
                looks = [(s.role, color) for s, color in zip(panel.series, _colors(panel), strict=True)]
                assert len(set(looks)) == len(looks), (section.title, panel.title)


def test_precision_of_three_and_of_two_classes_has_two_axes() -> None:
    every, two = panels("detection-transfer", "How it learns")
    assert "all classes" in every.y_label
    assert {series.label for series in every.series} == {"all classes", "all classes, further"}
    assert "RBC and WBC" in two.y_label
    assert {series.label for series in two.series} == {"fine-tuned on the two", "the two, from the trunk alone"}


def test_each_machine_has_a_panel_of_layers() -> None:
    """Each pass of a network on a machine is a series, and each network has the same colour in every panel."""
    drawn = panels("layer-timing", "Around the overhead: matrix products by themselves")
    assert [panel.title for panel in drawn] == ["Xeon fp32 × 1", "H200 tf32 × 1", "H200 tf32 × 32"]
    for panel in drawn:
        *networks, equal = panel.series
        assert [series.label.removesuffix("-v1") for series in networks] == ["alexnet", "googlenet", "resnet50"]
        assert [series.color for series in networks] == [series.color for series in drawn[0].series[:-1]]
        assert (equal.role, list(equal.x)) == ("reference", list(equal.y))


def test_points_of_weak_and_teacher_s_labels_have_notes() -> None:
    (panel,) = panels("teacher-student", "Weak labels or a teacher")
    weak, teacher = panel.series
    assert list(weak.notes) == ["10 % noise", "25 % noise", "50 % noise"]
    assert list(teacher.notes) == ["K = 250", "K = 1,000", "K = 2,000", "K = 4,000", "K = 8,000"]

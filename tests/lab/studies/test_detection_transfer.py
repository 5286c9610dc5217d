"""Detection transfer: a real run of the smoke size, and values of made-up numbers."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch
from tests.detect.test_sets import annotation, voc_folder, voc_object
from tests.models.test_ssd import public

from chronograd.cli.main import main
from chronograd.detect.boxes import Detections
from chronograd.errors import InputError
from chronograd.models.registry import build
from chronograd.report.html import render_html
from chronograd_lab.common.results import Results, Row
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.written import ClaimError
from chronograd_lab.studies.detection_transfer import study
from chronograd_lab.studies.detection_transfer.exported import _compared
from chronograd_lab.studies.detection_transfer.study import (
    ALL,
    ALONE,
    FURTHER,
    PUBLISHED,
    STAGES,
    STUDY,
    TO_MEASURE,
    TUNED,
    job,
    of_related,
)

PAGE = Path(__file__).parents[3] / "docs" / "studies" / "detection-transfer" / "results.json"
LAPTOP, EVENING = (STUDY.sizes[size] for size in ("laptop", "evening"))


def quiet(text: str) -> None:
    pass


@pytest.mark.onnx
@pytest.mark.serve
@pytest.mark.slow
def test_smoke_size_end_to_end(tmp_path: Path) -> None:
    results = STUDY.conduct(StudyRunner(tmp_path, STUDY.name, "smoke", quiet), STUDY.sizes["smoke"])
    assert sorted((row["stage"], row["seed"]) for row in results.rows["runs"]) == sorted(
        (stage, seed) for stage in STAGES for seed in (0, 1)
    )
    assert [row["updates"] for row in results.rows["runs"]] == [4, 4, 2, 2, 2, 2, 2, 2]
    assert [row["name"] for row in results.rows["classes"] if (row["stage"], row["seed"]) == (ALL, 0)] == [
        "dark", "light", "middle",
    ]  # fmt: skip
    for row in results.rows["runs"]:
        if row["stage"] in (TUNED, ALONE):  # without the other classes
            assert row["related_11_point"] == pytest.approx(row["mean_11_point"])
    assert len(results.pictures) == 2 * 4
    every, *own = results.rows["objects"]
    assert every["same"] == every["objects"] > 0
    assert every["pictures"] == 8
    assert [row["where"] for row in own] == ["dark", "light"]
    tuned = next(row for row in results.rows["runs"] if (row["stage"], row["seed"]) == (TUNED, 0))
    # This network is hardly trained: its scores are nearly equal, so rounding decides their order, and the precision moves.
    assert results.rows["file"][0]["map"] == pytest.approx(tuned["mean_11_point"], abs=0.1)
    assert all(0 < row["largest_absolute"] < 1e-3 for row in results.rows["outputs"])
    results.save(tmp_path / "results.json")
    html = render_html(STUDY.page(Results.load(tmp_path / "results.json")))
    assert "83.61 %" in html


def made_up(before: dict[str, list[float]], after: dict[str, list[float]], alone: dict[str, list[float]]) -> Results:
    classes: list[Row] = []
    runs: list[Row] = []
    for stage, own in zip((ALL, TUNED, ALONE, FURTHER), (before, after, alone, before), strict=True):
        for seed in range(3):
            known = {"stage": stage, "seed": seed}
            values = {name: of_seed[seed] for name, of_seed in own.items()}
            classes += [
                {**known, "name": name, "objects": 9, "average_precision_11_point": v, "average_precision_area": v}
                for name, v in values.items()
            ]
            mean = sum(values.values()) / len(values)
            related = (values["RBC"] + values["WBC"]) / 2
            runs.append(
                {**known, "mean_11_point": mean, "mean_area": mean, "related_11_point": related, "test_images": 72,
                 "updates": 5, "images": 40}
            )  # fmt: skip
    curve = {"epoch": [1.0, 2.0], "test_accuracy": [0.1, 0.2]}
    curves: dict[str, dict[str, list[float | None]]] = {
        f"{stage}/seed-{seed}": {k: list(v) for k, v in curve.items()} for stage in STAGES for seed in range(3)
    }
    same = {"pictures": 72, "objects": 9, "same": 9, "corners": 1e-6, "scores": 1e-6}
    outputs = [
        {"output": output, "kind": "all", "largest_absolute": 1e-6, "largest_relative": 1e-3, "num_equal": 1, "num_values": 4,
         "tightest": 0.1, "holds": True}
        for output in ("scores", "boxes")
    ]  # fmt: skip
    rows = {
        "runs": runs, "classes": classes, "pictured": [], "outputs": outputs, "objects": [{"where": "all", **same}, {"where": "RBC", **same, "served": same}],
        "file": [{"bytes": 12e6, "opset": 20, "map": runs[3]["mean_11_point"]}],
    }  # fmt: skip
    return Results(STUDY.name, "evening", dict(EVENING), rows=rows, curves=curves)


def test_improved_class_contradicts_the_page() -> None:
    before = {"RBC": [0.60, 0.61, 0.62], "WBC": [0.90, 0.92, 0.94], "Platelets": [0.0, 0.0, 0.0]}
    after = {"RBC": [0.70, 0.71, 0.72], "WBC": [0.90, 0.93, 0.94]}
    alone = {"RBC": [0.50, 0.51, 0.52], "WBC": [0.80, 0.81, 0.82]}
    results = made_up(before, after, alone)
    assert of_related(results, ALL).mean == pytest.approx((0.61 + 0.92) / 2)
    values = study.values(results)
    assert values["after"]["RBC"] > values["before"]["RBC"]
    assert not (values["after"]["WBC"] - values["before"]["WBC"]).is_seen
    assert f"{values['after']['RBC'] - values['before']['RBC']:%}".startswith("+10.0 percentage points (")
    assert f"{values['before']['all']:%}" == "51.00 ± 1.00 %"
    assert f"{values['after']['related'] - values['from_trunk']['related']:%}".startswith("+15.7 percentage points")
    with pytest.raises(ClaimError, match="does not change the precision of either significantly"):
        STUDY.page(results)


def test_equal_objects_are_counted_by_class_and_corners() -> None:
    boxes = torch.tensor([[0.1, 0.1, 0.2, 0.2], [0.5, 0.5, 0.9, 0.9], [0.3, 0.3, 0.4, 0.4]])
    one = Detections(boxes, torch.tensor([0.9, 0.8, 0.7]), torch.tensor([1, 2, 1]))
    moved = boxes + torch.tensor([[0.0005], [0.0], [0.01]])
    other = Detections(moved, torch.tensor([0.9, 0.75, 0.7]), torch.tensor([1, 2, 1]))
    row = _compared([(one, other), (one, Detections(*(part[:0] for part in one)))], 1e-3)
    assert row == {
        "pictures": 2,
        "objects": 6,
        "same": 2,
        "corners": pytest.approx(0.0005, rel=1e-3),
        "scores": pytest.approx(0.05),
    }
    swapped = Detections(moved, other.scores_D, torch.tensor([2, 1, 2]))
    assert _compared([(one, swapped)], 1e-3)["same"] == 0
    itself = _compared([(one, one)], 1e-3)
    assert (itself["same"], itself["corners"], itself["scores"]) == (3, 0.0, 0.0)


@pytest.mark.parametrize(("table", "column"), [("objects", "same"), ("file", "map"), ("outputs", "holds")])
def test_another_network_in_onnx_contradicts_the_page(table: str, column: str) -> None:
    """A lost object, another precision and an output beyond the tolerance are each noticed."""
    published = Results.load(PAGE)
    STUDY.page(published)
    published.rows[table][0][column] -= 1
    with pytest.raises(ClaimError, match="The fine-tuned network as an ONNX file is the same network"):
        STUDY.page(published)


def test_published_precisions_have_the_published_mean() -> None:
    assert len(PUBLISHED) == 20
    assert sum(PUBLISHED.values()) / 20 == pytest.approx(0.6755, abs=5e-5)


def test_commands_for_missing_measurements_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Use a VOC 2007 folder with one object per class, and random weights in the public layout."""
    everything = annotation(*(voc_object(name, 1, 1, 20, 10) for name in PUBLISHED))
    voc_folder(
        tmp_path / "VOCdevkit/VOC2007", {"000001": everything, "000002": everything},
        {"trainval": "000001\n", "test": "000002\n"},
    )  # fmt: skip
    torch.save(public(build("ssd-mobilenet-v1")), tmp_path / "mobilenet-v1-ssd-mp-0_675.pth")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHRONOGRAD_DATA", str(tmp_path))
    (download, evaluate), (_, train, _) = TO_MEASURE.values()
    assert main(shlex.split(download.removesuffix("--download"))[1:]) == 0
    assert main(shlex.split(evaluate)[1:]) == 0
    said = capsys.readouterr().out
    assert "20 classes" in said
    assert all(name in said for name in PUBLISHED)
    assert main([*shlex.split(train.partition(" --out")[0])[1:], "--print-config"]) == 0


def test_training_halves_do_not_overlap() -> None:
    first, second = (job(LAPTOP, stage, "voc:bccd", None).data for stage in (ALL, TUNED))
    assert (first.skip, first.samples, second.skip) == (0, 146, 146)
    assert first.class_names is None
    assert second.class_names == ("RBC", "WBC")


def test_missing_data_set_is_reported_before_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHRONOGRAD_DATA", str(tmp_path))
    with pytest.raises(InputError, match="there is no folder bccd") as missing:
        STUDY.conduct(StudyRunner(tmp_path / "lab", STUDY.name, "laptop", quiet), LAPTOP)
    assert "Shenggan/BCCD_Dataset" in missing.value.hint
    assert not (tmp_path / "lab").exists()

"""Export of pretrained weights without their data: the file has the classes and the normalisation of the table of weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from tests.deploy.test_export import exported
from tests.train.test_annotating import FILE, objects_of, weights  # noqa: F401, a fixture

from chronograd import job as jobs
from chronograd.deploy import export_source
from chronograd.models import pretrained


def source_of(data: dict[str, object] | None = None) -> export_source.ExportSource:
    network = {"name": "ssd-mobilenet-v2", "weights": FILE}
    given = {"name": "synthetic", "shape": [3, 300, 300], "classes": 2, **(data or {})}
    return export_source.of_job(jobs.from_dict({"network": network, "data": given, "mode": "inference"}), "two")


def test_classes_and_normalisation_are_those_of_the_weights(
    weights: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert source_of().class_names == ("cat", "dog")
    assert source_of().scale_shift() is None
    row = {**pretrained._table()[FILE], "normalisation": "signed"}
    monkeypatch.setattr(pretrained, "_table", lambda: {FILE: row})
    both = source_of().scale_shift()
    assert both is not None
    assert both[0] == pytest.approx((1 / 127.5,) * 3)
    assert both[1] == pytest.approx((1.0,) * 3)
    stated = source_of({"normalisation": "unit"}).scale_shift()
    assert stated is not None
    assert stated[0] == pytest.approx((1 / 255,) * 3)
    other = {**row, "classes": ["cat"]}
    monkeypatch.setattr(pretrained, "_table", lambda: {FILE: other})
    assert source_of().class_names == ("0", "1")


@pytest.mark.onnx
@pytest.mark.slow
def test_exported_sigmoid_detector_draws_its_planted_object(
    weights: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The graph has sigmoids: the dog's score is 0.88. A softmax over the columns -9, -9 and 2 would be 1.00."""
    row = {**pretrained._table()[FILE], "normalisation": "signed"}
    monkeypatch.setattr(pretrained, "_table", lambda: {FILE: row})
    file, picture = tmp_path / "two.onnx", tmp_path / "grey.png"
    inside = "--with-preprocessing --with-suppression"
    line = f"ssd-mobilenet-v2 --classes 2 network.weights={FILE} --onnx {file} --batches 1,2 --samples 2 {inside}"
    assert exported(line, capsys)["parity"]["holds"]
    Image.new("RGB", (200, 100), (90, 90, 90)).save(picture)
    (dog,) = objects_of(capsys, picture, str(file), tmp_path / "out")
    assert (dog["class"], dog["box"]) == ("dog", [5.0, 2.5, 195.0, 97.5])
    assert dog["score"] == pytest.approx(0.8808, abs=1e-3)

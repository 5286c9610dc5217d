"""8-bit weights: a smaller file that still agrees, with a cost measured from its outputs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from tests.deploy.test_export import CPU, SMALL_TEXT, TRUST, exported, run_onnx

from chronograd.cli.main import main
from chronograd.data import datasets
from chronograd.deploy import quantise
from chronograd.deploy.export import read_graph
from chronograd.rundir import RunDir
from chronograd.train.inputs import ImageInput

pytestmark = pytest.mark.onnx


def test_static_quantisation(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = exported("mine --onnx mine.onnx --int8 static", capsys)["int8"]
    out = here / "mine-int8.onnx"
    assert printed["file"] == out.name
    assert printed["quantised"] > 0
    digits = datasets.load(RunDir.open("runs/mine").job().data)
    seen, labels = ImageInput(digits.test, digits, CPU), digits.test_labels_N.numpy()
    images = seen.prepare(seen.gather(np.arange(len(labels)))).numpy()
    for name, path in (("before", here / "mine.onnx"), ("after", out)):
        logits = run_onnx(path, images)
        assert printed[name]["accuracy"] == pytest.approx((logits.argmax(1) == labels).mean())
        shifted = logits - logits.max(1, keepdims=True)
        losses = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]
        assert printed[name]["loss"] == pytest.approx(losses.mean(), rel=1e-4)
        assert printed[name]["num_samples"] == 360
    assert abs(printed["after"]["accuracy"] - printed["before"]["accuracy"]) < 0.05
    assert printed["after"]["loss"] != printed["before"]["loss"]
    speed = printed["speed"]
    assert speed["batch"] == 8
    assert speed["ratio_low"] <= speed["ratio"] <= speed["ratio_high"]
    assert speed["num_pairs"] >= quantise.MIN_PAIRS


def test_dynamic_quantisation_shrinks_a_language_model(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = exported(f"{SMALL_TEXT} network.options.width=128 --onnx net.onnx --int8 dynamic", capsys)
    assert printed["int8"]["bytes"] < 0.5 * printed["bytes"]
    assert printed["int8"]["before"] is None
    assert "MatMulInteger" in read_graph(here / "net-int8.onnx").operators


def test_summary_text(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRUST, "export", "mine", "--onnx", "mine.onnx", "--with-preprocessing", "--int8", "static"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "ONNX Runtime agrees with PyTorch within rtol 0.001 and atol 1e-05" in shown
    assert "With eight-bit weights a batch of 8 takes" in shown
    assert "accuracy goes from 9" in shown


def test_dynamic_quantisation_needs_a_matrix_product(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A network with convolutions only."""
    (here / "net.py").write_text(
        "from torch import nn\ndef net(num_classes=4):\n"
        "    return nn.Sequential(nn.Conv2d(1, num_classes, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"
    )
    line = "net.py:net --input 1,8,8 --classes 4 --onnx net.onnx --int8 dynamic"
    assert main([*TRUST, "export", *shlex.split(line), "--json"]) == 2
    assert "--int8 static" in json.loads(capsys.readouterr().out)["hint"]
    assert not (here / "net.onnx").exists()

"""`chronograd export`: the file computes the same outputs as the run's network, or is not written."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.deploy import exported_networks as networks
from tests.test_docs import ROOT, blocks

from chronograd.cli.main import main
from chronograd.data import datasets
from chronograd.data.images import ResidentImages
from chronograd.deploy import parity
from chronograd.deploy.export import metadata, read_graph, write_onnx
from chronograd.deploy.parity import Samples
from chronograd.errors import ExportError, InputError
from chronograd.rundir import RunDir
from chronograd.train.methods.teacher import network_of, softmax_of_run

pytestmark = pytest.mark.onnx
CPU = torch.device("cpu")
OWN = f"{Path(__file__).parent / 'exported_networks.py'}:"
TRUST = ["--trust", OWN.rstrip(":")]  # the run `mine` names that file, not the command line
SMALL_TEXT = (
    "gpt2-small network.options.layers=1 network.options.width=32 network.options.heads=2 --input 16 --classes 50"
)


def exported(line: str, capsys: pytest.CaptureFixture[str], status: int = 0) -> dict[str, Any]:
    assert main([*TRUST, "export", *shlex.split(line), "--json"]) == status
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


def run_onnx(path: Path, batch: np.ndarray) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: batch})[0])


def test_exported_run_matches_its_network(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = exported("mine --onnx mine.onnx", capsys)
    assert printed["opset"] == 20
    assert printed["inputs"] == [{"name": "images", "dtype": "float32", "shape": ["batch", 1, 8, 8]}]
    assert printed["outputs"] == [{"name": "logits", "dtype": "float32", "shape": ["batch", 10]}]
    assert "after step" in printed["weights"]
    compared = printed["parity"]
    assert (compared["rtol"], compared["atol"], compared["batches"]) == (1e-3, 1e-5, [1, 3, 8])
    assert compared["holds"]
    assert 0 <= compared["tightest"] < 1
    assert [(row["kind"], row["samples"], row["num_values"]) for row in compared["outputs"]] == [
        ("random", 64, 3 * 64 * 10),
        ("digits", 64, 3 * 64 * 10),
    ]
    run = RunDir.open(here / "runs" / "mine")
    images = torch.randn(5, 1, 8, 8)
    with torch.no_grad():
        expected = network_of(run)(images).numpy()
    np.testing.assert_allclose(run_onnx(here / "mine.onnx", images.numpy()), expected, rtol=1e-4, atol=1e-5)
    assert sorted(path.name for path in here.iterdir()) == ["mine.onnx", "runs"]


def test_graph_normalises_pixels_on_request(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = exported("runs/mine --onnx mine.onnx --with-preprocessing", capsys)
    assert printed["inputs"] == [{"name": "pixels", "dtype": "uint8", "shape": ["batch", 1, 8, 8]}]
    assert printed["preprocessing"]
    run = RunDir.open("runs/mine")
    digits = datasets.load(run.job().data)
    assert isinstance(digits.test, ResidentImages)
    logits = run_onnx(here / "mine.onnx", digits.test.images_NCHW.numpy())
    probability = torch.from_numpy(logits).softmax(1).numpy()
    np.testing.assert_allclose(probability, softmax_of_run(run, digits, "test"), atol=1e-5)
    assert (logits.argmax(1) == digits.test_labels_N.numpy()).mean() > 0.9


def test_metadata_has_server_settings_and_no_local_paths(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported("mine --onnx mine.onnx", capsys)
    digits = datasets.load(RunDir.open("runs/mine").job().data)
    stated = metadata(here / "mine.onnx")
    assert stated["classes"] == [str(digit) for digit in range(10)]
    assert stated["preprocessing"] == {
        "place": "outside",
        "scale": list(digits.scale_C),
        "shift": list(digits.shift_C),
        "top": 16,
    }
    content = (here / "mine.onnx").read_bytes()
    assert b"torch/nn/modules" not in content
    assert b"stack_trace" not in content
    exported(f"{here}/runs/mine --onnx mine.onnx", capsys)
    assert str(here).encode() not in (here / "mine.onnx").read_bytes()
    assert stated["network"] == "exported_networks.py:Small"


def test_file_with_wrong_outputs_is_not_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"{OWN}Differs --input 1,8,8 --classes 4 --onnx differs.onnx"
    printed = exported(line, capsys, status=1)
    assert printed["file"] is None
    assert not printed["parity"]["holds"]
    (row,) = printed["parity"]["outputs"]
    assert row["largest_relative"] == pytest.approx(0.01, rel=0.02)
    assert 8 < printed["parity"]["tightest"] < 11
    assert not (here / "differs.onnx").exists()
    assert main(["export", *line.split()]) == 1
    assert "does not agree with PyTorch" in capsys.readouterr().out
    assert exported(f"{line} --rtol 0.02", capsys)["file"] == "differs.onnx"
    assert (here / "differs.onnx").exists()


@pytest.mark.parametrize(
    ("name", "holds", "why"),
    [
        ("Drops", False, "differently each time: the network draws random numbers"),
        ("ReadsBatch", False, "changes with its batch: the network reads the size of the batch"),
        ("Centred", True, "changes with its batch"),
        ("Small", True, ""),
        ("Differs", False, ""),
    ],
)
def test_network_that_disagrees_with_itself_is_reported(
    here: Path, name: str, holds: bool, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["export", f"{OWN}{name}", "--input", "1,8,8", "--classes", "4", "--onnx", "net.onnx"]
    assert main(line) == (0 if holds else 1)
    printed = " ".join(capsys.readouterr().out.split())
    assert ("PyTorch answers the same samples" in printed or "PyTorch's answer to a sample" in printed) is bool(why)
    assert why in printed
    assert (here / "net.onnx").exists() is holds


@pytest.mark.parametrize(
    ("name", "why"), [("Chooses", "exported_networks.py:33: return logits if"), ("OneBatch", "static shape of 2")]
)
def test_failed_export_states_the_reason(here: Path, name: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", f"{OWN}{name}", "--input", "1,8,8", "--classes", "4", "--onnx", "net.onnx"]) == 1
    error = capsys.readouterr().err
    assert why in error
    assert "Traceback" not in error
    assert len(error.splitlines()) <= 4
    assert not (here / "net.onnx").exists()


def test_several_outputs_keep_their_names(tmp_path: Path) -> None:
    network = networks.TwoHeads().eval()
    graph = write_onnx(network, torch.zeros(2, 1, 8, 8), tmp_path / "net.onnx", input_name="images", opset=18)
    assert graph == read_graph(tmp_path / "net.onnx")
    assert graph.opset == 18
    assert [(port.name, port.shape) for port in graph.outputs] == [("scores", ("batch", 4)), ("boxes", ("batch", 4, 4))]
    images = torch.randn(5, 1, 8, 8)
    same = parity.compare(tmp_path / "net.onnx", network, [Samples("random", images, images)], batches=[2])
    assert same.holds
    assert [one.output for one in same.differences] == ["scores", "boxes"]
    other = parity.compare(tmp_path / "net.onnx", networks.TwoHeads().eval(), [Samples("random", images, images)])
    assert not other.holds


def test_language_model(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = exported(f"{SMALL_TEXT} --onnx net.onnx", capsys)
    assert printed["inputs"] == [{"name": "tokens", "dtype": "int64", "shape": ["batch", 16]}]
    assert printed["outputs"][0]["shape"] == ["batch", 16, 50]
    assert printed["parity"]["holds"]
    assert [(row["kind"], row["num_rows"]) for row in printed["parity"]["outputs"]] == [("random", 3 * 4 * 16)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("mine training.epochs=3 --onnx net.onnx", "data.FIELD=VALUE"),
        ("mine --onnx nowhere/net.onnx", "a folder that exists"),
        ("mine --onnx net.onnx --batches 0", "whole numbers"),
        ("mine --onnx net.onnx --opset 12", "12"),
        (f"{SMALL_TEXT} --onnx net.onnx --with-preprocessing", "tokens"),
        ("resnet18-cifar --data places365 --onnx net.onnx --int8 static", "--int8 dynamic"),
        ("torchvision:resnet18 --data places365 --onnx net.onnx --with-preprocessing", "data.normalisation=imagenet"),
        (f"{OWN}Small --input 1,10,10 --classes 4 --onnx net.onnx", "1x10x10"),
        ("lenet6 --onnx net.onnx", "lenet5"),
    ],
)
def test_invalid_options(here: Path, line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRUST, "export", *shlex.split(line)]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert "Traceback" not in printed.err
    assert sorted(path.name for path in here.iterdir()) == ["runs"]


def test_invalid_onnx_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"no protocol buffer")
    with pytest.raises(ExportError, match=r"net\.onnx is not an ONNX file"):
        read_graph(tmp_path / "net.onnx")
    with pytest.raises(InputError, match="2x8x8"):
        write_onnx(networks.Small().eval(), torch.zeros(2, 2, 8, 8), tmp_path / "net.onnx")


@pytest.mark.slow
def test_commands_of_the_docs_page_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for block in blocks(ROOT / "docs" / "exporting.md", "sh") for line in block.splitlines()]
    # test_export_detection.py exports a detector, such as runs/cells, with the same options.
    mine = [line for line in lines if line.startswith("chronograd export") and "runs/cells" not in line]
    assert len(mine) >= 4
    for line in mine:
        assert main([*TRUST, *shlex.split(line)[1:]]) == 0, line
        assert capsys.readouterr().out.strip()

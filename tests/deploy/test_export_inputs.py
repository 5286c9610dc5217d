"""Networks with custom inputs as ONNX files: vectors, several tensors, keywords."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chronograd.cli.main import main

pytestmark = pytest.mark.onnx

NETS = """
import torch
from torch import nn

class Vector(nn.Module):
    input_shape = (6,)
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 4).double()
    def forward(self, x):
        return self.fc(x.double()).float().round(decimals=3)

class Decides(Vector):
    def forward(self, x):
        y = super().forward(x)
        return y if x.sum() > 0 else -y

class One(nn.Module):
    input_shape = (6,)
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 4)
    def forward(self, x):
        return self.fc(x.view(1, 6))

class Steps(nn.Module):
    inputs = ("3x8x8", "step::int64")
    def __init__(self):
        super().__init__()
        self.conv, self.step = nn.Conv2d(3, 4, 3, padding=1), nn.Embedding(50, 4)
    def forward(self, x, step):
        return self.conv(x) + self.step(step)[:, :, None, None]

class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1, groups=3).half()
        nn.init.constant_(self.conv.weight, 2), nn.init.zeros_(self.conv.bias)  # exact: nothing to round
    def forward(self, x):
        return self.conv(x)

class Sequences(nn.Module):
    input_shape = (9, 6)
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(6, 5, batch_first=True)
    def forward(self, x):
        return self.rnn(x)[0][:, -1]

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.fc = nn.Embedding(11, 8), nn.Linear(8, 3)
    def forward(self, ids, mask=None):
        return {"scores": self.fc((self.words(ids) * mask[..., None]).mean(1))}

def pair():
    return {"ids": torch.zeros(4, 7, dtype=torch.int64), "mask": torch.ones(4, 7)}
"""


@pytest.fixture
def nets(tmp_path: Path) -> str:
    path = tmp_path / "nets_with_inputs.py"
    path.write_text(NETS)
    return str(path)


def exported(capsys: pytest.CaptureFixture[str], *args: str, status: int = 0) -> Any:
    assert main(["export", *args, "--json"]) == status
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("name", "more", "takes"),
    [
        ("Vector", [], [("x", "float32", ["batch", 6])]),
        ("Sequences", [], [("x", "float32", ["batch", 9, 6])]),
        ("Steps", [], [("x", "float32", ["batch", 3, 8, 8]), ("step", "int64", ["batch"])]),
        ("Half", ["--input", "3x6x6:float16"], [("x", "float16", ["batch", 3, 6, 6])]),
        ("Pair", ["--inputs", ":pair"], [("ids", "int64", ["batch", 7]), ("mask", "float32", ["batch", 7])]),
        ("Pair", ["--input", "ids:7:int64", "--input", "mask:7:float32"],
         [("ids", "int64", ["batch", 7]), ("mask", "float32", ["batch", 7])]),
    ],
)  # fmt: skip
def test_exported_custom_inputs_match_pytorch(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, nets: str, name: str, more: list[str], takes: list[Any]
) -> None:
    words = [f"{nets}{word}" if word.startswith(":") else word for word in more]
    printed = exported(capsys, f"{nets}:{name}", *words, "--onnx", str(tmp_path / "net.onnx"), "--samples", "9")
    assert printed["parity"]["holds"]
    assert [(port["name"], port["dtype"], port["shape"]) for port in printed["inputs"]] == takes
    assert (tmp_path / "net.onnx").exists()


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [("Decides", "x.sum() > 0", "does not branch on values"), ("One", "a batch of 1 only", "x.shape[0]")],
)
def test_refusal_states_the_real_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, nets: str, name: str, message: str, hint: str
) -> None:
    assert main(["export", f"{nets}:{name}", "--onnx", str(tmp_path / "net.onnx")]) == 1
    err = " ".join(capsys.readouterr().err.split())
    assert message in err
    assert hint in err
    assert "tokens" not in err
    assert not (tmp_path / "net.onnx").exists()


def test_wrong_type_of_samples_names_the_networks_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, nets: str
) -> None:
    assert main(["export", f"{nets}:Half", "--input", "3x6x6", "--onnx", str(tmp_path / "net.onnx")]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert "samples of 3x6x6:float32" in err
    assert "its parameters are float16" in err
    assert "--input SHAPE:DTYPE" in err


def test_image_options_are_refused_for_other_inputs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, nets: str
) -> None:
    for option in (["--int8", "dynamic"], ["--with-preprocessing"]):
        assert main(["export", f"{nets}:Vector", "--onnx", str(tmp_path / "net.onnx"), *option]) == 2
        assert "has its own inputs" in capsys.readouterr().err

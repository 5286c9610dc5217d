"""`chronograd count` for people and for programs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chronograd.cli.main import main
from chronograd.trace import Trace

GOLDEN = Path(__file__).parent / "golden"

NETWORKS = """
import torch
from torch import nn

def two_layers():
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(64, 5))

two_layers.input_shape = (3, 8, 8)

class Mixes(nn.Module):
    def forward(self, x):
        return x @ x.T

def mixes():
    return Mixes()

mixes.input_shape = (4,)

class Odd(nn.Module):
    def forward(self, x):
        return torch.linalg.qr(x)[0]

def odd():
    return Odd()

odd.input_shape = (4, 4)
"""


@pytest.fixture
def networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Write a user's module into the current directory."""
    (tmp_path / "networks_of_the_test.py").write_text(NETWORKS)
    monkeypatch.chdir(tmp_path)
    yield "networks_of_the_test"
    sys.modules.pop("networks_of_the_test", None)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    status = main(["count", *args])
    out, err = capsys.readouterr()
    return status, out, err


def counted(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    status, out, err = run(capsys, *args, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


# -- output -----------------------------------------------------------------------------------------


def test_vgg19_of_torchvision_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = counted(capsys, "torchvision:vgg19")
    assert found["params"] == 143_667_240
    assert found["macs"] == 19_632_062_464
    assert f"{100 * found['conv_share']:.3f}" == "99.370"
    assert found["flops_forward"] == 2 * 19_632_062_464
    assert found["flops_backward"] == 2 * (2 * 19_632_062_464 - 86_704_128)
    # Parameters, gradients and momentum; the first dense layer's gradient exists together with activations.
    assert 3 * 4 * found["params"] < found["memory_bytes"] < 3 * 4 * found["params"] + 100e6
    assert found["memory_bytes"] == sum(v for k, v in found["memory"].items() if k != "optimizer")
    assert found["uncounted"] == {}
    assert "1 MAC = 2 FLOPs" in found["convention"]
    by_name = {row["name"]: row for row in found["layers"]}
    first = by_name["features.0"]
    assert {key: first[key] for key in ("kind", "output_shape", "params", "weights", "activations", "macs")} == {
        "kind": "conv_3x3",
        "output_shape": [1, 64, 224, 224],
        "params": 1792,
        "weights": 1728,
        "activations": 3_211_264,
        "macs": 86_704_128,
    }
    assert first["receptive_field"] == 3
    assert (by_name["features.36"]["receptive_field"], by_name["features.36"]["stride"]) == (268, 32)
    assert by_name["classifier.0"]["receptive_field"] == "global"
    assert sum(row["params"] for row in found["layers"]) == found["params"]
    assert sum(row["macs"] for row in found["layers"]) == found["macs"]
    assert sum(2 * row["macs_backward"] for row in found["layers"]) == found["flops_backward"]
    assert sum(row["flops"] for row in found["by_kind"].values()) == found["flops_forward"] + found["flops_backward"]


def test_show_work(capsys: pytest.CaptureFixture[str], networks: str) -> None:
    """The whole text; CHRONOGRAD_REFRESH=1 rewrites it."""
    status, out, err = run(capsys, f"{networks}:two_layers", "--show-work")
    assert (status, err) == (0, "")
    path = GOLDEN / "count_show_work.txt"
    if os.environ.get("CHRONOGRAD_REFRESH"):
        path.write_text(out)
    assert out == path.read_text()


def test_work_is_shown_on_demand(capsys: pytest.CaptureFixture[str], networks: str) -> None:
    plain = counted(capsys, f"{networks}:two_layers")
    assert all("work" not in row for row in plain["layers"])
    shown = counted(capsys, f"{networks}:two_layers", "--show-work")
    assert shown["layers"][0]["work"][0].endswith("1 × 4 × 4 × 4 × in channels per group 3 × kernel 3 × 3 = 1,728")


def test_channels_of_a_group_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    depthwise = next(row for row in counted(capsys, "mobilenet-v1", "--show-work")["layers"] if "epthwise" in str(row))
    assert " × in channels per group 1 × kernel 3 × 3 = " in depthwise["work"][0]


def test_batch_and_optimizer(capsys: pytest.CaptureFixture[str], networks: str) -> None:
    one, four = (counted(capsys, f"{networks}:two_layers", "--batch", str(b)) for b in (1, 4))
    assert (four["batch"], four["macs"], four["params"]) == (4, 4 * one["macs"], one["params"])
    assert four["layers"][0]["output_shape"] == [4, 4, 4, 4]
    adam = counted(capsys, f"{networks}:two_layers", "--optimizer", "adamw")
    assert adam["memory"]["optimizer_state"] == 2 * 4 * one["params"]
    forward = counted(capsys, f"{networks}:two_layers", "--mode", "inference")
    assert (forward["flops_backward"], forward["loss"]) == (0, "none")


def test_options_classes_and_input(capsys: pytest.CaptureFixture[str]) -> None:
    found = counted(capsys, "small-cnn", "--input", "1,28,28", "--classes", "7")
    assert found["params"] == 320 + 18_496 + (12 * 12 * 64 + 1) * 128 + 129 * 7
    tiny = ["layers=1", "width=8", "heads=2", "ffn=12", "vocab=11", "sequence=6"]
    assert counted(capsys, "llama-7b", *tiny)["params"] == 2 * 11 * 8 + 4 * 64 + 3 * 8 * 12 + 3 * 8


def test_keras_parameter_counts_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "resnet50-keras")
    assert status == 0
    assert "23,628,902  23,549,222 parameters + 53,120" in out
    assert re.search(r"53,120\s+batch-norm\s+statistics\s+\+\s+26,560\s+convolution\s+biases", out)


def test_uncounted_operators_are_listed(capsys: pytest.CaptureFixture[str], networks: str) -> None:
    _, out, _ = run(capsys, f"{networks}:odd", "--mode", "inference")
    assert "not counted: linalg_qr, 1 time (its bytes are)" in out


# -- traces -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_saved_trace_has_the_same_count(
    capsys: pytest.CaptureFixture[str], networks: str, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    found = counted(capsys, f"{networks}:two_layers", "--batch", "3", "--out", str(path))
    assert counted(capsys, str(path), "--batch", "3") == found
    _, out, _ = run(capsys, f"{networks}:two_layers", "--out", str(path))
    assert f"saved {path}" in out


def test_saved_trace_needs_no_torch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "resnet20.json.gz"
    found = counted(capsys, "resnet20", "--out", str(path))
    code = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "torchvision", "timm"):
            raise ImportError(name + " must not be imported")

sys.meta_path.insert(0, Refuse())
from chronograd.trace import Trace
trace = Trace.load(sys.argv[1])
print(trace.params, trace.macs(), trace.flops(8, "backward"), int(trace.live_bytes(8).max()))
from chronograd.cli.main import main
sys.exit(main(["count", sys.argv[1], "--json"]))
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    first, _, rest = done.stdout.partition("\n")
    trace = Trace.load(path)
    assert [int(n) for n in first.split()] == [
        *(269_722, 40_551_040, trace.flops(8, "backward"), int(trace.live_bytes(8).max()))
    ]
    assert json.loads(rest) == found


def test_help_imports_no_torch() -> None:
    code = (
        "import sys; from chronograd.cli.main import main; main(['count', '--help']); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# -- errors -----------------------------------------------------------------------------------------

WRONG: list[tuple[list[str], str]] = [
    (["resnet2"], "did you mean resnet"),
    (["mobilenet_v22"], "did you mean mobilenet_v2"),
    (["torchvision:vgg18"], "did you mean"),
    (["timm:resnet51"], "did you mean"),
    (["torchvision:resnet18", "depth=3"], "unexpected keyword argument 'depth'"),
    (["resnet20", "depth"], "write name=value"),
    (["small-cnn", "--input", "3,5,5"], "the minimum is 6 x 6"),
    (["small-cnn", "--input", "3,a"], "is not a shape"),
    (["vgg19", "--input", "0,32,32"], "at least 1"),
    (["torchvision:vgg19", "--input", "3,8"], "takes samples of shape (3, 224, 224), not (3, 8)"),
    (["llama-7b", "--input", "3,4,5"], "takes tokens"),
    (["small-cnn", "--batch", "0"], "not in the range"),
    (["small-cnn", "--mode", "train"], "is not one of"),
    (["nothing.json"], "there is no file nothing.json"),
    (["nothing.yaml"], "no job file at nothing.yaml"),
    (["broken.json.gz"], "is a gzip file that is damaged or was cut off"),
    (["module_that_is_not:there"], "cannot import"),
    (["networks_of_the_test:three_layers"], "has no three_layers"),
    (["resnet20", "--out", "none/there.json"], "cannot write none/there.json"),
]


@pytest.mark.parametrize(("args", "message"), WRONG, ids=[" ".join(args) for args, _ in WRONG])
def test_wrong_input_is_one_message(
    capsys: pytest.CaptureFixture[str], networks: str, args: list[str], message: str
) -> None:
    Path("broken.json.gz").write_bytes(b"\x1f\x8b broken")
    status, out, err = run(capsys, *args)
    assert (status, out) == (2, "")
    assert message in " ".join(err.split())
    assert sum(line.startswith("Error: ") for line in err.splitlines()) == 1
    assert "Traceback" not in err
    status, out, _ = run(capsys, *args, "--json")
    assert status == 2
    assert message in " ".join(json.loads(out)["error"].split()) or message in json.loads(out)["hint"]


def test_untraceable_network(capsys: pytest.CaptureFixture[str], networks: str) -> None:
    status, out, err = run(capsys, f"{networks}:mixes")
    assert (status, out) == (1, "")
    assert "not affine in the batch" in err
    assert "--fixed-batch N" in err
    found = counted(capsys, f"{networks}:mixes", "--fixed-batch", "6", "--mode", "inference")
    assert (found["batch"], found["macs"]) == (6, 6 * 6 * 4)

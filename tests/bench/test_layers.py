"""Layer times on the CPU: self time of each layer, matrix products by size, and the verb's output."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from chronograd.ask import job_of
from chronograd.bench.layers import layers_answer, measure_layers, product_of
from chronograd.cli.main import main
from chronograd.errors import FileFormatError, InputError
from chronograd.measure import layer_times
from chronograd.measure.layer_clock import product_seconds, time_passes
from chronograd.measure.layer_times import OUTSIDE, LayerTimes, Product

CPU = torch.device("cpu")
HERE = ["cluster.device=cpu", "cluster.threads=1"]


class Sleep(nn.Module):
    def __init__(self, seconds: float, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.seconds, self.inner = seconds, inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return x if self.inner is None else self.inner(x)


def test_layer_time_excludes_nested_layers() -> None:
    inner, twice = Sleep(0.02), Sleep(0.005)
    outer = Sleep(0.01, inner)

    def forward() -> None:
        x = torch.zeros(1)
        twice(outer(twice(x)))
        time.sleep(0.015)

    layers = {"outer": outer, "outer.inner": inner, "twice": twice}
    times = time_passes(forward, layers, CPU, repeats=3, warmup=1)
    expected = {
        ("outer", 0): 0.01,
        ("outer.inner", 0): 0.02,
        ("twice", 0): 0.005,
        ("twice", 1): 0.005,
        (OUTSIDE, 0): 0.015,
    }
    for seconds in (times.synchronised_s, times.unsynchronised_s):
        assert seconds.keys() == expected.keys()
        for key, slept_s in expected.items():
            assert slept_s <= seconds[key] < slept_s + 0.02
    for sum_ in (times.synchronised, times.unsynchronised, times.whole, times.queued):
        assert 0.055 <= sum_.low <= sum_.median <= sum_.high
    assert not outer._forward_hooks
    assert not outer._forward_pre_hooks


def measured(network: str, *overrides: str, **short: object) -> LayerTimes:
    return measure_layers(job_of(network, [*HERE, *overrides], short), repeats=2, warmup=1)


def test_products_of_residual_network_have_its_macs() -> None:
    times = measured("resnet8", batch=2)
    products = {layer.name: layer.product for layer in times.layers}
    # 3 x 3 over 3 channels to 16 at 32 x 32, two images; the classifier of 64 features.
    assert products["conv1"] == Product(m=16, n=2 * 32 * 32, k=27)
    assert products["linear"] == Product(m=10, n=2, k=64)
    # Stem; two of 16 to 16; 16 to 32 and 32 to 32 at 16 x 16; 32 to 64 and 64 to 64 at 8 x 8; the classifier.
    macs = 9 * (3 * 16 + 2 * 16 * 16) * 1024 + 9 * (16 * 32 + 32 * 32) * 256 + 9 * (32 * 64 + 64 * 64) * 64 + 640
    assert sum(product.macs for product in products.values() if product) == 2 * macs
    assert all((layer.product_s is None) == (layer.product is None) for layer in times.layers)
    assert all(layer.product_s is None or layer.product_s > 0 for layer in times.layers)
    # Batch norm and the addition are layers; a residual block has its own addition.
    assert {"bn1", "layer1.0", "layer1.0.conv2"} < products.keys()
    assert products["layer1.0"] is None
    assert times.products_s == pytest.approx(sum(layer.product_s or 0 for layer in times.layers))


def test_each_group_is_a_separate_product() -> None:
    times = measured("alexnet", batch=1, input=(3, 67, 67))
    conv2 = next(layer for layer in times.layers if layer.product is not None and layer.product.groups == 2)
    # conv2: 5 x 5 over 48 of 96 channels to 128 of 256, at 7 x 7.
    assert conv2.product == Product(m=128, n=7 * 7, k=48 * 25, groups=2)


def test_vision_transformer_products() -> None:
    """Attention is not a single product; the linear layers have batch × tokens columns."""
    times = measured("timm:vit_tiny_patch16_224", batch=1, input=(3, 224, 224))
    products = {layer.name: layer.product for layer in times.layers}
    assert products["blocks.0.attn"] is None
    assert products["blocks.0.attn.qkv"] == Product(m=3 * 192, n=197, k=192)


def test_large_product_is_cut_and_its_time_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    whole_s = product_seconds(Product(m=64, n=4096, k=256), CPU, torch.float32)
    monkeypatch.setattr("chronograd.measure.layer_clock._MAX_OPERAND_BYTES", 4 * (64 * 256 + 512 * (64 + 256)))
    cut_s = product_seconds(Product(m=64, n=4096, k=256), CPU, torch.float32)
    assert 0.1 < cut_s / whole_s < 10


def test_prediction_for_a_named_device() -> None:
    job = job_of("resnet8", HERE, {"batch": 2})
    times = measure_layers(job, repeats=1, warmup=1, on="v100")
    assert times.predicted_on.startswith("NVIDIA Tesla V100")
    assert times.predicted_layers_s == pytest.approx(sum(layer.predicted_s or 0 for layer in times.layers))
    # At batch 2 launching about twenty kernels takes longer than running them.
    assert times.predicted_s is not None
    assert times.predicted_layers_s is not None
    assert times.predicted_s > times.predicted_layers_s > 0
    texts = [section.takeaway for section in layers_answer(times).sections]
    assert "predicted" in texts[0]


def test_printed_output_can_be_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["torchvision:alexnet", *HERE, "--input", "3,64,64", "--layers", "--repeats", "2", "--warmup", "1"]
    assert main(["measure", *arguments, "--json"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "times.json").write_text(text)
    times = layer_times.read(tmp_path / "times.json")
    assert times.to_json() == json.loads(text)
    assert (times.batch, times.repeats, times.precision, times.input_shape) == (1, 2, "fp32", [3, 64, 64])
    assert [layer.name for layer in times.layers][:2] == [OUTSIDE, "features.0"]
    assert main(["measure", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "The whole pass and the sums over its layers" in printed
    assert "classifier.6" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layers", "--world", "1,2"], "No such option '--world'"),
        (["--layers", "--epochs"], "No such option '--epochs'"),
        (["--repeats", "3"], "No such option '--repeats'"),
        (["--layers", "cluster.count=2", "backend=ddp"], "cluster.count is 2"),
        (["--layers", "training.compile=true"], "compiled network has no separate layers"),
        (["--layers", "--on", "v1000"], "unknown device"),
    ],
)
def test_options_that_conflict_with_layers(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["measure", "resnet8", *HERE, "--batch", "2", *arguments])
    assert status == 2
    assert message in capsys.readouterr().err


def test_unrelated_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"format": "chronograd-record", "version": 1}')
    with pytest.raises(FileFormatError, match="has no layer times"):
        layer_times.read(tmp_path / "other.json")


def test_transposed_convolution_is_not_a_separate_product() -> None:
    from chronograd.count.tracing import trace

    network = nn.Sequential(nn.ConvTranspose2d(4, 8, 2, 2), nn.Conv2d(8, 8, 3))
    traced = trace(network, [(4, 8, 8)], mode="inference")
    products = [product_of(op, traced, 1) for op in traced.operators if op.kind.startswith("conv")]
    assert products == [None, Product(m=8, n=14 * 14, k=72)]


def test_absent_device_is_refused() -> None:
    with pytest.raises(InputError, match=r"cluster\.device is v100"):
        measure_layers(job_of("resnet8", ["cluster.device=v100"], {"batch": 1}), repeats=1, warmup=1)

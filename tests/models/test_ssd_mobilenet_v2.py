"""SSD on MobileNet v2: priors and padding by closed form, names of the public file, and parity with TFLite."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chronograd.detect.boxes import decode
from chronograd.models import pretrained
from chronograd.models.registry import build
from chronograd.models.ssd_mobilenet_v2 import SameConv, SSDMobileNetV2, priors
from chronograd.models.weights import load_pretrained

FILES = ("object_detection_ssd_mobilenetv2_oidv4_fp16.tflite", "objectron_solution_packed_assets.data")
SIDES = (19, 10, 5, 3, 2, 1)
PER_CELL = (3, 6, 6, 6, 6, 6)


def test_priors_of_each_map_by_closed_form() -> None:
    """Map k of six has squares of side 0.2 + 0.15 k, rectangles of that area, and a square between this side and the next."""
    every, start = priors(300).double(), 0
    for k, (side, count) in enumerate(zip(SIDES, PER_CELL, strict=True)):
        of_map = every[start : start + side * side * count].view(side, side, count, 4)
        start += side * side * count
        centres = (torch.arange(side).double() + 0.5) / side
        torch.testing.assert_close(of_map[..., 0], centres[None, :, None].expand(side, side, count), rtol=0, atol=1e-6)
        torch.testing.assert_close(of_map[..., 1], centres[:, None, None].expand(side, side, count), rtol=0, atol=1e-6)
        sizes = of_map[..., 2:].reshape(-1, count, 2)
        assert torch.equal(sizes, sizes[:1].expand_as(sizes))
        ratios, areas = sizes[0, :, 0] / sizes[0, :, 1], sizes[0].prod(dim=1)
        scale, following = 0.2 + 0.15 * k, 0.2 + 0.15 * (k + 1) if k < 5 else 1.0
        if k == 0:
            expected = [(1.0, 0.1**2), (2.0, scale**2), (0.5, scale**2)]
        else:
            expected = [(ratio, scale**2) for ratio in (1.0, 2.0, 0.5, 3.0, 0.3333)] + [(1.0, scale * following)]
        torch.testing.assert_close(ratios, torch.tensor([r for r, _ in expected]).double(), rtol=1e-5, atol=0)
        torch.testing.assert_close(areas, torch.tensor([a for _, a in expected]).double(), rtol=1e-5, atol=0)
    assert start == len(every) == 3 * 19**2 + 6 * (10**2 + 5**2 + 3**2 + 2**2 + 1) == 1917


def test_even_side_is_padded_at_its_end() -> None:
    """Sums of three rows and columns with a stride of 2. For 0 1 2 3, the windows are 0 1 2 and 2 3, not 0 1 and 1 2 3."""
    conv = SameConv(1, 1, 3, 2)
    torch.nn.init.ones_(conv.weight)
    torch.nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
    rows = torch.arange(4.0)
    with torch.no_grad():
        out = conv((rows[:, None] + torch.zeros(4))[None, None])
    assert out[0, 0].tolist() == [[9.0, 6.0], [15.0, 10.0]]


@pytest.mark.parametrize(
    ("size", "stride", "kernel"), [(4, 2, 3), (5, 2, 3), (7, 1, 3), (10, 2, 3), (1, 2, 3), (8, 2, 1)]
)
def test_padding_agrees_with_its_definition(size: int, stride: int, kernel: int) -> None:
    """TensorFlow: ceil(size / stride) outputs, and of the missing rows the larger part at the end."""
    torch.manual_seed(size)
    conv = SameConv(2, 3, kernel, stride)
    x = torch.randn(1, 2, size, size)
    total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    before, after = total // 2, total - total // 2
    padded = torch.zeros(1, 2, size + total, size + total)
    padded[:, :, before : size + total - after, before : size + total - after] = x
    with torch.no_grad():
        expected = torch.nn.functional.conv2d(padded, conv.weight, conv.bias, stride)
        assert conv(x).shape[2:] == (math.ceil(size / stride),) * 2
        torch.testing.assert_close(conv(x), expected)


@pytest.mark.parametrize("side", [96, 160, 300, 320])
def test_outputs_follow_the_image_size(side: int) -> None:
    network = build("ssd-mobilenet-v2", input_shape=(3, side, side), num_classes=2).eval()
    with torch.no_grad():
        scores, boxes = network(torch.zeros(2, 3, side, side))
    assert scores.shape == (2, len(network.priors), 3)
    assert boxes.shape == (2, len(network.priors), 4)
    assert not torch.allclose(scores.sum(2), torch.ones(scores.shape[:2]))  # independent columns


def test_headers_give_rows_before_columns_of_a_box() -> None:
    """The public headers return (y, x, height, width): with only y set, the box moves down by 0.1 of its prior's height."""
    network: Any = build("ssd-mobilenet-v2", num_classes=1).eval()
    for header in network.regression_headers:
        torch.nn.init.zeros_(header.weight)
        with torch.no_grad():
            header.bias.view(-1, 4)[:, 0] = 1.0
    with torch.no_grad():
        _, boxes = network(torch.zeros(1, 3, 300, 300))
    centres = (boxes[0, :, :2] + boxes[0, :, 2:]) / 2
    torch.testing.assert_close(centres[:, 0], network.priors[:, 0])
    torch.testing.assert_close(centres[:, 1], network.priors[:, 1] + 0.1 * network.priors[:, 3])


def test_initial_values_preserve_the_scale_and_give_small_logits() -> None:
    """He's weights by outputs reduced the features to 0 in 20 layers, and gave new headers on trained features a first loss of 190."""
    torch.manual_seed(0)
    network: Any = build("ssd-mobilenet-v2", num_classes=2)
    maps: list[torch.Tensor] = []
    for header in network.classification_headers:
        header.register_forward_hook(lambda _, inputs, __: maps.append(inputs[0].detach()))
    with torch.no_grad():
        logits, offsets = network.train()(torch.randn(2, 3, 300, 300))
    assert all(0.05 < float(seen.square().mean().sqrt()) < 6 for seen in maps)
    assert max(float(logits.std()), float(offsets.std())) < 4
    weights = torch.cat([header.weight.detach().flatten() for header in network.classification_headers])
    assert float(weights.std()) == pytest.approx(0.03, rel=0.05)


def public_names() -> Iterator[tuple[str, int | None]]:
    """The layers of the public file, with their number of outputs where the name states it."""
    trunk = "FeatureExtractor/MobilenetV2"
    yield from ((f"{trunk}/Conv", None), (f"{trunk}/Conv_1", None))
    for number in range(17):
        block = f"{trunk}/expanded_conv{f'_{number}' if number else ''}"
        yield from (
            (f"{block}/{part}", None) for part in ("expand", "depthwise", "project") if number or part != "expand"
        )
    for number, (inner, outer) in enumerate(((256, 512), (128, 256), (128, 256), (64, 128)), 2):
        yield f"{trunk}/layer_19_1_Conv2d_{number}_1x1_{inner}", inner
        yield f"{trunk}/layer_19_2_Conv2d_{number}_3x3_s2_{outer}", outer
    for number, count in enumerate(PER_CELL):
        yield f"BoxPredictor_{number}/ClassPredictor", 24 * count
        yield f"BoxPredictor_{number}/BoxEncodingPredictor", 4 * count


def test_public_names_are_all_tensors_of_the_network() -> None:
    network = build("ssd-mobilenet-v2", device="meta")
    state, mapped = network.state_dict(), {}
    for name, outputs in public_names():
        for kind in ("weight", "bias"):
            ours = SSDMobileNetV2.own_name(f"{name}.{kind}")
            mapped[ours] = outputs
            assert outputs in (None, state[ours].shape[0])
    assert len(mapped) == 144
    assert mapped.keys() == state.keys()
    assert SSDMobileNetV2.own_name("stem.weight") == "stem.weight"


@pytest.fixture(params=FILES)
def file(request: pytest.FixtureRequest) -> str:
    """A public file, if it is on this machine."""
    known = pretrained.known(request.param)
    assert known is not None
    if known.path is None:
        pytest.skip(f"{known.file} is not on this machine")
    return known.file


def test_public_file_fills_the_network(file: str) -> None:
    network = build("ssd-mobilenet-v2")
    loaded = load_pretrained(network, file, "ssd-mobilenet-v2")
    assert (loaded.num_loaded, loaded.fresh) == (144, ())
    other = build("ssd-mobilenet-v2", num_classes=2)
    fresh = load_pretrained(other, file, "ssd-mobilenet-v2").fresh
    assert len(fresh) == 12
    assert all(re.fullmatch(r"classification_headers\.\d\.(weight|bias)", name) for name in fresh)


@pytest.mark.tflite
def test_parity_with_tflite(file: str) -> None:
    """Logits and offsets of TensorFlow's runtime for the same pixels: a grey wedge, noise and a square on noise."""
    from ai_edge_litert.interpreter import Interpreter

    content = Path(str(pretrained.located(file))).read_bytes()
    runtime = Interpreter(model_content=content[content.index(b"TFL3") - 4 :], num_threads=1)
    runtime.allocate_tensors()
    (entry,), outputs = runtime.get_input_details(), runtime.get_output_details()
    network: Any = build("ssd-mobilenet-v2").eval()
    load_pretrained(network, file, "ssd-mobilenet-v2")
    random = np.random.RandomState(0)
    noise = random.uniform(-1, 1, (300, 300, 3))
    square = noise / 2
    square[80:220, 60:240] = (0.9, -0.6, -0.8)
    for picture in (np.linspace(-1, 1, 300)[:, None, None] + np.zeros((300, 300, 3)), noise, square):
        pixels = picture[None].astype(np.float32)
        runtime.set_tensor(entry["index"], pixels)
        runtime.invoke()
        of_size = {out["shape"][-1]: torch.from_numpy(runtime.get_tensor(out["index"]).copy()) for out in outputs}
        with torch.no_grad():
            x = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
            logits, offsets = network.predictions(x)
            scores, boxes = network(x)
        yxhw = of_size[4].view(1, 1917, 4)
        torch.testing.assert_close(logits, of_size[24], rtol=0, atol=2e-4)
        torch.testing.assert_close(offsets, yxhw[..., [1, 0, 3, 2]], rtol=0, atol=2e-4)
        torch.testing.assert_close(scores, of_size[24].sigmoid(), rtol=0, atol=1e-5)
        torch.testing.assert_close(boxes, decode(yxhw[..., [1, 0, 3, 2]], network.priors), rtol=0, atol=1e-5)

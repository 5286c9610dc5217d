"""Hundreds of library networks compared with the tables that their authors print.

Set CHRONOGRAD_FULL=1 for backward passes of all of torchvision and for 200 networks of timm; CHRONOGRAD_MEASURED names
the folder with timm's tables.
"""

from __future__ import annotations

import csv
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.count.conventions import as_fvcore_counts
from torch import nn

from chronograd.count.layers import layers
from chronograd.count.network import trace_network
from chronograd.count.tracing import trace

torchvision = pytest.importorskip("torchvision")
timm = pytest.importorskip("timm")

IS_FULL = bool(os.environ.get("CHRONOGRAD_FULL"))

# -- torchvision ------------------------------------------------------------------------------------

CLASSIFIERS: list[str] = torchvision.models.list_models(module=torchvision.models)
# Options that make the network equal to the table's.
OPTIONS = {
    "googlenet": {"aux_logits": False}  # the table leaves the auxiliary heads out: 6,624,904 of 13,004,888 parameters
}
# Its table prints 0.04 G, too few digits to be within 1 %: we count 40,476,448.
COARSE = {"shufflenet_v2_x0_5": 0.0005}


def table_of(name: str, side: int) -> dict[str, Any]:
    """Return torchvision's printed counts for weights trained at our image size."""
    for weights in torchvision.models.get_model_weights(name):
        if weights.transforms().crop_size == [side]:
            return dict(weights.meta)
    raise AssertionError(f"no weights of {name} for {side} x {side}")


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_torchvision_classifiers(name: str) -> None:
    traced = trace_network(f"torchvision:{name}", OPTIONS.get(name), mode="inference")
    table = table_of(name, traced.input_shapes[0][-1].const)
    assert traced.params == table["num_params"]
    assert traced.macs() / 1e9 == pytest.approx(table["_ops"], rel=0.01, abs=COARSE.get(name, 0))
    assert traced.uncounted() == {}


# One network of each family; inception_v3 and googlenet have auxiliary heads in training.
FAMILIES = [
    *("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3"),
    *("maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_y_400mf", "regnet_x_400mf", "resnet18"),
    *("resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_0", "swin_t", "swin_v2_t", "vgg11_bn", "vit_b_32"),
    "wide_resnet50_2",
]


@pytest.mark.parametrize("name", CLASSIFIERS if IS_FULL else FAMILIES)
def test_torchvision_classifiers_in_training(name: str) -> None:
    """Twice the forward pass, minus data gradients of layers that read the input or a position table."""
    traced = trace_network(f"torchvision:{name}")
    matrix = [op for op in traced.select("forward") if op.macs.at(1)]
    skipped = matrix[0].macs.at(1) + sum(op.macs.at(1) for op in matrix if op.module.endswith("cpb_mlp.0"))
    assert traced.macs(1, "backward") == 2 * traced.macs() - skipped
    assert traced.uncounted() == {}
    rows = layers(traced)
    assert sum(row.params for row in rows) == traced.params
    assert sum(row.macs_backward for row in rows) == traced.macs(1, "backward")


# -- timm -------------------------------------------------------------------------------------------

TABLE = "timm/benchmark-infer-amp-nchw-pt240-cu124-rtx3090.csv"
SEED, SAMPLE = 0, 200 if IS_FULL else 32
# Reasons for a difference to the table; all other networks must agree.
EXCEPTIONS = {
    "ecaresnext50t_32x4d": "timm changed the network since: 15.41 M parameters then, 25.05 M now",
    "convmixer_768_32": "fvcore does not see the depthwise convolutions, whose padding is given as 'same'",
}


def rows_of_timm() -> list[dict[str, str]]:
    folder = os.environ.get("CHRONOGRAD_MEASURED")
    path = Path(folder or "", TABLE)
    if not folder or not path.exists():
        return []
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return random.Random(SEED).sample(rows, SAMPLE)


@pytest.mark.published
@pytest.mark.skipif(not rows_of_timm(), reason="CHRONOGRAD_MEASURED names no folder with timm's tables")
@pytest.mark.parametrize("row", rows_of_timm(), ids=lambda r: f"{r['model']}-{r['infer_img_size']}")
def test_timm_networks(row: dict[str, str]) -> None:
    """fvcore made the table: MACs of convolutions and products, and arithmetic of norms and resizing."""
    side = int(row["infer_img_size"])
    traced = trace_network(f"timm:{row['model']}", input_shape=(3, side, side), mode="inference")
    macs, printed = as_fvcore_counts(traced) / 1e9, float(row["infer_gmacs"])
    half_a_digit = 0.005
    agrees = (
        f"{traced.params / 1e6:.2f}" == f"{float(row['param_count']):.2f}",
        abs(macs - printed) <= 0.01 * printed + half_a_digit,
    )
    assert all(agrees) != (row["model"] in EXCEPTIONS), (traced.params, macs, row, EXCEPTIONS.get(row["model"]))
    assert traced.uncounted() == {}


def test_exceptions_have_the_stated_cause() -> None:
    """ConvMixer without its 32 depthwise 7x7 convolutions has the 19.55 G of the table."""
    traced = trace_network("timm:convmixer_768_32", input_shape=(3, 224, 224), mode="inference")
    missed = 32 * 768 * 32 * 32 * 49
    assert sum(op.macs.at(1) for op in traced.select("forward", ["conv_depthwise"])) == missed
    assert f"{(as_fvcore_counts(traced) - missed) / 1e9:.2f}" == "19.55"
    # The table's 15.41 M parameters and 2.70 G are for groups of 32, as in the name; timm's default has changed.
    assert trace_network("timm:ecaresnext50t_32x4d", mode="inference").params == 25_045_686


# -- the conversion ---------------------------------------------------------------------------------


def test_fvcore_additions_to_the_macs() -> None:
    """The expected numbers are computed from the table of operators in fvcore/nn/flop_count.py."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.BatchNorm2d(8, affine=False),
        nn.GroupNorm(2, 8),
        nn.GroupNorm(2, 8, affine=False),
        nn.Upsample(scale_factor=2),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.AdaptiveAvgPool2d(4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.LayerNorm(8),
        nn.LayerNorm(8, elementwise_affine=False),
        nn.Linear(8, 5),
    )
    pixels = 16 * 16 * 8
    expected = 8 * 256 * 27 + pixels * (2 + 1 + 5 + 4) + 4 * pixels + 4 * 16 * pixels + 16 * pixels + 4 * 4 * 8
    expected += 8 * (5 + 4) + 40
    traced = trace(model, [(3, 16, 16)], mode="inference")
    assert as_fvcore_counts(traced) == expected
    assert as_fvcore_counts(traced, batch=3) == 3 * expected
    in_training = as_fvcore_counts(trace(model, [(3, 16, 16)])) - expected
    assert in_training == pixels * ((5 - 2) + (4 - 1))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.bench
def test_conversion_matches_fvcore() -> None:
    fvcore = pytest.importorskip("fvcore.nn")
    model: nn.Module = torchvision.models.mobilenet_v2().eval()
    analysis = fvcore.FlopCountAnalysis(model, torch.zeros(2, 3, 64, 64))
    analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    traced = trace(model, [(3, 64, 64)], mode="inference")
    assert as_fvcore_counts(traced, batch=2) == analysis.total()

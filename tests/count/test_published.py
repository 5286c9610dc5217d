"""Published tables with their sources, reproduced exactly without tolerance."""

from __future__ import annotations

from functools import cache

import pytest

from chronograd.count.layers import keras_parts, layers, summary, total_activations
from chronograd.count.network import trace_network
from chronograd.trace import CONV_KINDS, Trace
from chronograd.units import FLOPS_PER_MAC


@cache
def traced(network: str, **options: object) -> Trace:
    return trace_network(network, dict(options))


# Parameters, MACs and MACs of convolutions, from layer shapes; images 224x224, AlexNet 227x227, CIFAR 32x32.
# He et al. 2015 print 0.27 M, 0.46 M, 0.66 M, 0.85 M and 1.7 M parameters for the CIFAR networks.
TABLE = [
    ("alexnet", 60_965_224, 724_406_816, 665_784_864, "Krizhevsky et al. 2012, two groups"),
    ("torchvision:alexnet", 61_100_840, 714_188_480, 655_566_528, "torchvision's table: 61,100,840 and 0.71 G"),
    ("vgg16", 138_357_544, 15_470_264_320, 15_346_630_656, "Simonyan & Zisserman 2014, D"),
    ("vgg19", 143_667_240, 19_632_062_464, 19_508_428_800, "Simonyan & Zisserman 2014, E"),
    ("torchvision:vgg19", 143_667_240, 19_632_062_464, 19_508_428_800, "torchvision's table: 143,667,240, 19.63 G"),
    ("googlenet", 6_998_552, 1_582_671_872, 1_582_671_872 - 1_024_000, "Szegedy et al. 2014, table 1"),
    ("resnet50-v1", 25_557_032, 3_857_973_248, 3_857_973_248 - 2_048_000, "He et al. 2015, table 1"),
    ("resnet50", 25_557_032, 4_089_184_256, 4_089_184_256 - 2_048_000, "as torchvision's"),
    ("torchvision:resnet50", 25_557_032, 4_089_184_256, 4_089_184_256 - 2_048_000, "torchvision's table, 4.09 G"),
    ("resnet20", 269_722, 40_551_040, 40_551_040 - 640, "He et al. 2015, section 4.2"),
    ("resnet32", 464_154, 68_862_592, 68_862_592 - 640, "He et al. 2015, section 4.2"),
    ("resnet44", 658_586, 97_174_144, 97_174_144 - 640, "He et al. 2015, section 4.2"),
    ("resnet56", 853_018, 125_485_696, 125_485_696 - 640, "He et al. 2015, section 4.2"),
    ("resnet110", 1_727_962, 252_887_680, 252_887_680 - 640, "He et al. 2015, section 4.2"),
    ("small-cnn", 1_626_442, 16_835_200, 777_600 + 14_450_688, "896 + 18,496 + 1,605,760 + 1,290"),
]
# The sources print only parameters for these.
PARAMS = [
    ("inception-v3-slim", 23_734_312, "PALEO's code"),
    ("nin", 7_595_176, "PALEO's code"),
    ("resnet18-cifar", 11_173_962, "widths of 64 to 512, first convolution 3×3"),
]


@pytest.mark.parametrize(("network", "params", "macs", "conv_macs", "source"), TABLE, ids=[row[0] for row in TABLE])
def test_params_and_macs(network: str, params: int, macs: int, conv_macs: int, source: str) -> None:
    trace = traced(network)
    assert trace.params == params, source
    assert trace.macs(batch=1) == macs, source
    assert trace.macs(batch=7) == 7 * macs, source
    assert trace.flops(1, "forward") == FLOPS_PER_MAC * macs
    assert sum(op.macs.at(1) for op in trace.select("forward", CONV_KINDS)) == conv_macs, source
    assert trace.uncounted() == {}


@pytest.mark.parametrize(("network", "params", "source"), PARAMS, ids=[row[0] for row in PARAMS])
def test_params_alone(network: str, params: int, source: str) -> None:
    assert traced(network).params == params, source


def test_alexnet_without_groups() -> None:
    """The paper's widths, but each filter spans all channels: three convolutions have twice the weights and MACs."""
    whole = traced("alexnet", groups=1)
    assert (whole.params, whole.macs()) == (62_378_344, 1_135_256_096)
    assert f"{100 * summary(whole).conv_share:.1f}" == "94.8"
    rows, grouped = ({r.name: r for r in layers(t)} for t in (whole, traced("alexnet")))
    params = {"features.4": 614_656, "features.10": 1_327_488, "features.12": 884_992}
    assert {name: rows[name].params for name in params} == params
    assert [rows[name].macs for name in params] == [2 * grouped[name].macs for name in params]


def test_torchvision_conv_shares_as_printed() -> None:
    assert f"{100 * summary(traced('torchvision:alexnet')).conv_share:.1f}" == "91.8"
    assert f"{traced('torchvision:googlenet', aux_logits=False).macs() / 1e9:.2f}" == "1.50"


@pytest.mark.parametrize(("depth", "macs"), [(20, 40.55), (32, 68.86), (44, 97.17), (56, 125.49), (110, 252.89)])
def test_macs_of_cifar_resnets_as_printed(depth: int, macs: float) -> None:
    assert round(traced(f"resnet{depth}").macs() / 1e6, 2) == macs


def test_conv_share_as_printed() -> None:
    shares = {name: f"{100 * summary(traced(name)).conv_share:.3f}" for name in ("alexnet", "vgg16", "vgg19")}
    assert shares == {"alexnet": "91.908", "vgg16": "99.201", "vgg19": "99.370"}
    for name, share in (("googlenet", "99.94"), ("resnet50-v1", "99.95"), ("torchvision:resnet50", "99.95")):
        assert f"{100 * summary(traced(name)).conv_share:.2f}" == share


def test_weights_without_biases() -> None:
    for name, weights in (("vgg16", 138_344_128), ("vgg19", 143_652_544), ("googlenet", 6_990_272)):
        assert summary(traced(name)).weights == weights


def test_auxiliary_heads_of_googlenet() -> None:
    assert traced("googlenet", aux=True).params == 13_378_280
    # torchvision's function builds them by default; its table has the network without them.
    assert traced("torchvision:googlenet").params == 13_004_888
    assert traced("torchvision:googlenet", aux_logits=False).params == 6_624_904


ALEXNET = [  # layer, output (C, H, W), params, MACs
    ("features.0", (96, 55, 55), 34_944, 105_415_200),
    ("features.4", (256, 27, 27), 307_456, 223_948_800),
    ("features.8", (384, 13, 13), 885_120, 149_520_384),
    ("features.10", (384, 13, 13), 663_936, 112_140_288),
    ("features.12", (256, 13, 13), 442_624, 74_760_192),
    ("classifier.0", (4096,), 37_752_832, 37_748_736),
    ("classifier.3", (4096,), 16_781_312, 16_777_216),
    ("classifier.6", (1000,), 4_097_000, 4_096_000),
]


def test_alexnet_layer_by_layer() -> None:
    rows = [row for row in layers(traced("alexnet")) if row.params]
    assert [(r.name, tuple(r.output_shape[1:]), r.params, r.macs) for r in rows] == ALEXNET
    assert [r.kind for r in rows] == ["conv_kxk", "conv_grouped", "conv_3x3", *["conv_grouped"] * 2, *["gemm"] * 3]


VGG19 = [  # activations, weights without bias, MACs in millions
    *[(3_211_264, 1_728, 86.7), (3_211_264, 36_864, 1849.7), (802_816, 0, 0)],
    *[(1_605_632, 73_728, 924.8), (1_605_632, 147_456, 1849.7), (401_408, 0, 0)],
    *[(802_816, 294_912, 924.8), *[(802_816, 589_824, 1849.7)] * 3, (200_704, 0, 0)],
    *[(401_408, 1_179_648, 924.8), *[(401_408, 2_359_296, 1849.7)] * 3, (100_352, 0, 0)],
    *[*[(100_352, 2_359_296, 462.4)] * 4, (25_088, 0, 0)],
    *[(4096, 102_760_448, 102.8), (4096, 16_777_216, 16.8), (1000, 4_096_000, 4.1)],
]


@pytest.mark.parametrize("network", ["vgg19", "torchvision:vgg19"])
def test_vgg19_layer_by_layer(network: str) -> None:
    trace = traced(network)
    # torchvision's network adds an adaptive pooling from 7x7 to 7x7 before the dense layers.
    rows = [r for r in layers(trace) if (r.weights or r.kind == "pooling") and r.name != "avgpool"]
    assert [(r.activations, r.weights, round(r.macs / 1e6, 1)) for r in rows] == VGG19
    assert 150_528 + sum(r.activations for r in rows) == 16_542_184


def test_vgg19_totals_of_activations() -> None:
    assert total_activations(traced("vgg19")) == 16_542_184
    assert total_activations(traced("vgg19"), batch=32) == 32 * 16_542_184
    assert f"{16_542_184 * 4 / 1e6:.1f}" == "66.2"


def test_dense_layers_hold_most_weights_of_vgg19() -> None:
    rows = layers(traced("vgg19"))
    dense = sum(r.weights for r in rows if r.kind == "gemm")
    assert dense == 123_633_664
    assert f"{100 * dense / sum(r.weights for r in rows):.1f}" == "86.1"
    assert f"{100 * sum(r.macs for r in rows if r.kind == 'gemm') / 19_632_062_464:.2f}" == "0.63"


# Szegedy et al. 2014, figure 2, with the widths of the exercise: MACs of each branch on 32x32x256.
NAIVE = {"one": 33_554_432, "three": 452_984_832, "five": 629_145_600, "pool": 0}
REDUCED = {
    "one": 33_554_432,
    "three": 16_777_216 + 113_246_208,
    "five": 16_777_216 + 157_286_400,
    "pool": 16_777_216,
}


@pytest.mark.parametrize(
    ("network", "branches", "total"),
    [("inception-naive", NAIVE, 1_115_684_864), ("inception-reduced", REDUCED, 354_418_688)],
)
def test_inception_by_branch(network: str, branches: dict[str, int], total: int) -> None:
    trace = traced(network)
    found = dict.fromkeys(branches, 0)
    for row in layers(trace):
        if row.name:
            found[row.name.split(".")[0]] += row.macs
    assert found == branches
    assert trace.macs() == total == sum(branches.values())


@pytest.mark.parametrize(("network", "macs"), [("inception-naive", 854_196_224), ("inception-reduced", 271_351_808)])
def test_inception_on_28x28(network: str, macs: int) -> None:
    assert trace_network(network, input_shape=(256, 28, 28)).macs() == macs


def test_savings_of_reductions_as_printed() -> None:
    naive, reduced = (traced(name) for name in ("inception-naive", "inception-reduced"))
    assert [trace.tensors[trace.outputs[0]].shape_at(1)[1] for trace in (naive, reduced)] == [672, 480]
    assert f"{naive.macs() / reduced.macs():.3f} {100 * (1 - reduced.macs() / naive.macs()):.2f}" == "3.148 68.23"
    # With the widths of GoogLeNet's 3b.
    assert f"{naive.macs() / 397_410_304:.3f}" == "2.807"


def test_keras_parameters_of_trunks_and_heads() -> None:
    """The report's table 1: a trunk without its top, and the head as the remainder."""
    for network, keras, trunk, head in (
        ("efficientnet-b0-keras", 4_062_381, 4_049_571, 1280 * 10 + 10),
        ("resnet50-keras", 23_628_902, 23_587_712, 2048 * 20 + 20 + 20 * 10 + 10),
    ):
        trace = traced(network)
        dense = sum(row.params for row in layers(trace) if row.kind == "gemm")
        assert (dense, sum(keras_parts(trace).values()) - dense) == (head, trunk)
        assert trunk + head == keras
    assert (1280 * 10 + 10, 2048 * 20 + 20 + 20 * 10 + 10, 2048 * 10 + 10) == (12_810, 41_190, 20_490)
    by_layer = [row.params for row in layers(traced("small-cnn")) if row.params]
    assert by_layer == [896, 18_496, 1_605_760, 1_290]


# Keras' count in the HPC report's table 1, and the count of torch's network.
@pytest.mark.parametrize(
    ("network", "keras", "params", "parts"),
    [
        ("small-cnn", 1_626_442, 1_626_442, (0, 0)),
        ("efficientnet-b0-keras", 4_062_381, 4_007_548 + 12_810, (42_016, 7)),
        ("resnet50-keras", 23_628_902, 23_508_032 + 41_190, (53_120, 26_560)),
    ],
)
def test_keras_parameter_counts(network: str, keras: int, params: int, parts: tuple[int, int]) -> None:
    trace = traced(network)
    assert (trace.params, sum(keras_parts(trace).values())) == (params, keras)
    counted = summary(trace)
    assert (counted.params, counted.params_keras) == (params, keras)
    explained = dict(counted.params_keras_parts)
    assert explained.pop("parameters") == params
    assert explained.pop("batch-norm statistics") == parts[0]
    assert sum(explained.values()) == parts[1]


def test_memory_of_weights() -> None:
    """VGG-19's 143,652,544 weights take 574.6 MB in fp32."""
    counted = summary(traced("vgg19"))
    assert f"{counted.weights * 4 / 1e6:.1f}" == "574.6"
    assert counted.memory.parameters == counted.params * 4

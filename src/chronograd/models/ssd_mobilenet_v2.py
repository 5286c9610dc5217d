"""SSD on MobileNet v2: classes and boxes of objects, from six feature maps in one pass.

Liu et al., "SSD: single shot multibox detector", 2016, arXiv:1512.02325, on the trunk of Sandler et al., "MobileNetV2: inverted
residuals and linear bottlenecks", 2018, arXiv:1801.04381, table 2. Layers, names and priors are those of TensorFlow's Object
Detection API; the public weights `object_detection_ssd_mobilenetv2_oidv4_fp16.tflite` (MediaPipe, trained on Open Images v4) fit.
In that file, batch norm is folded into the convolutions, so that each convolution has a bias and the network has no batch norm.
They were trained on pixel / 127.5 - 1, which differs from ours by at most one grey level: scores of three photographs differ by up
to 0.003. The file lacks the priors, which are in the graph of MediaPipe's package.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chronograd.detect.boxes import map_sides
from chronograd.detect.scores import Activation
from chronograd.models.registry import register
from chronograd.models.ssd import PriorDetector, by_prior

IMAGE_SIZE = 300
STEM_WIDTH, TRUNK_WIDTH = 32, 1280
# Factor of expansion, width, number of blocks and stride of the first of them: the rows of table 2.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
# The first map is the expanded input of this block, before its depthwise convolution halves the side.
BLOCK_OF_FIRST_MAP = 13
# Channels within and after each pair of convolutions behind the trunk; the second of a pair halves the map's side.
EXTRAS = ((256, 512), (128, 256), (128, 256), (64, 128))
# Sides of the priors of each map as a share of the image: its own entry, and the entry of the next map.
SIDES = (0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.0)
FIRST_SIDE = 0.1  # of the square of the first map
RATIOS = (1.0, 2.0, 0.5, 3.0, 0.3333)
HEADER_DEVIATION = 0.03  # of the initial weights of the headers


def priors(image_size: int = IMAGE_SIZE) -> Tensor:
    """Return the priors of all maps as (centre x, centre y, width, height): float32 of shape (P, 4).

    The order is map by map, row by row, cell by cell. A cell of the first map has a small square, and two rectangles. A cell of
    the others has a rectangle for each ratio, then the large square.

    >>> tuple(priors(300).shape)
    (1917, 4)
    """
    rows = []
    for number, side in enumerate(map_sides(image_size)):
        shapes = _shapes(number)
        rows += [
            ((column + 0.5) / side, (row + 0.5) / side, width, height)
            for row in range(side)
            for column in range(side)
            for width, height in shapes
        ]
    return torch.tensor(rows, dtype=torch.float32)


def _shapes(number: int) -> list[tuple[float, float]]:
    """Return width and height of the priors in each cell of a map."""
    side, following = SIDES[number : number + 2]
    if number == 0:
        sized = [(1.0, FIRST_SIDE), *((ratio, side) for ratio in RATIOS[1:3])]
    else:
        sized = [*((ratio, side) for ratio in RATIOS), (1.0, math.sqrt(side * following))]
    return [(length * math.sqrt(ratio), length / math.sqrt(ratio)) for ratio, length in sized]


class SameConv(nn.Conv2d):
    """A convolution with the padding that TensorFlow calls SAME: of an odd number of rows, the larger part comes last."""

    def __init__(self, in_channels: int, out: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__(in_channels, out, kernel, stride, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        (top, bottom), (left, right) = (self._padding_of(size) for size in x.shape[2:])
        both = (top, left)
        if (top, left) != (bottom, right):
            x, both = F.pad(x, (left, right, top, bottom)), (0, 0)
        return F.conv2d(x, self.weight, self.bias, self.stride, both, groups=self.groups)

    def _padding_of(self, size: int) -> tuple[int, int]:
        kernel, stride = self.kernel_size[0], self.stride[0]
        total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
        return total // 2, total - total // 2


class InvertedResidual(nn.Module):
    """An inverted residual: 1x1 to more channels (unless `factor` is 1), depthwise 3x3, 1x1 to fewer without activation."""

    def __init__(self, in_channels: int, out: int, factor: int, stride: int) -> None:
        super().__init__()
        inner = in_channels * factor
        self.expand = SameConv(in_channels, inner) if factor > 1 else None
        self.depthwise = SameConv(inner, inner, 3, stride, groups=inner)
        self.project = SameConv(inner, out)
        self.is_residual = stride == 1 and in_channels == out

    def expanded(self, x: Tensor) -> Tensor:
        return x if self.expand is None else F.relu6(self.expand(x))

    def projected(self, expanded: Tensor) -> Tensor:
        return cast(Tensor, self.project(F.relu6(self.depthwise(expanded))))

    def forward(self, x: Tensor) -> Tensor:
        out = self.projected(self.expanded(x))
        return x + out if self.is_residual else out


class SSDMobileNetV2(PriorDetector):
    """SSD with six maps, and 1x1 headers on each of them.

    Scores (N, P, K + 1) are sigmoids: for each prior, independent probabilities of the background and of K classes. Boxes
    (N, P, 4) are (left, top, right, bottom) in units of the image. An image of 300 has 1,917 priors.

    Args:
        num_classes: K, without the background.
    """

    activation: Activation = "sigmoid"
    # Layers whose shape depends on the number of classes: they keep their initial values if the weights have another number.
    class_layers = ("classification_headers",)

    def __init__(self, num_classes: int = 23, in_channels: int = 3, image_size: int = IMAGE_SIZE) -> None:
        super().__init__()
        self.num_outputs = num_classes + 1
        self.stem = SameConv(in_channels, STEM_WIDTH, 3, 2)
        blocks, channels = [], STEM_WIDTH
        for factor, width, count, stride in STAGES:
            for position in range(count):
                blocks.append(InvertedResidual(channels, width, factor, stride if position == 0 else 1))
                channels = width
        self.blocks = nn.ModuleList(blocks)
        self.last = SameConv(channels, TRUNK_WIDTH)
        first = blocks[BLOCK_OF_FIRST_MAP].depthwise.out_channels
        widths = [first, TRUNK_WIDTH]
        pairs = []
        for inner, outer in EXTRAS:
            narrow, halve = SameConv(widths[-1], inner), SameConv(inner, outer, 3, 2)
            pairs.append(nn.Sequential(narrow, nn.ReLU6(), halve, nn.ReLU6()))
            widths.append(outer)
        self.extras = nn.ModuleList(pairs)
        per_cell = [len(_shapes(number)) for number in range(len(widths))]
        self.classification_headers = _headers(widths, [count * self.num_outputs for count in per_cell])
        self.regression_headers = _headers(widths, [count * 4 for count in per_cell])
        self.register_buffer("priors", priors(image_size), persistent=False)
        self.apply(_initialise)
        for headers in (self.classification_headers, self.regression_headers):
            headers.apply(_initialise_header)

    def predictions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits, offsets = [], []
        headers = zip(self.classification_headers, self.regression_headers, strict=True)
        for seen, (classify, regress) in zip(self._maps(x), headers, strict=True):
            logits.append(by_prior(classify(seen), self.num_outputs))
            offsets.append(by_prior(regress(seen), 4))
        # The headers return (y, x, height, width), as TensorFlow's coder of boxes does.
        return torch.cat(logits, dim=1), torch.cat(offsets, dim=1)[..., [1, 0, 3, 2]]

    def _maps(self, x: Tensor) -> Iterator[Tensor]:
        x = F.relu6(self.stem(x))
        for number, block in enumerate(self.blocks):
            if number == BLOCK_OF_FIRST_MAP:
                expanded = cast(InvertedResidual, block).expanded(x)
                yield expanded
                x = cast(InvertedResidual, block).projected(expanded)
            else:
                x = block(x)
        x = F.relu6(self.last(x))
        yield x
        for pair in self.extras:
            x = pair(x)
            yield x

    @staticmethod
    def own_name(name: str) -> str:
        """Return our name of a parameter that the public weights call `name`; other names unchanged.

        >>> SSDMobileNetV2.own_name("FeatureExtractor/MobilenetV2/expanded_conv_1/depthwise.bias")
        'blocks.1.depthwise.bias'
        >>> SSDMobileNetV2.own_name("FeatureExtractor/MobilenetV2/layer_19_2_Conv2d_2_3x3_s2_512.weight")
        'extras.0.2.weight'
        >>> SSDMobileNetV2.own_name("BoxPredictor_5/ClassPredictor.weight")
        'classification_headers.5.weight'
        """
        for pattern, form in _NAMES:
            if (match := pattern.match(name)) is not None:
                return match.expand(form) + name[match.end() :]
        if (match := _PAIR.match(name)) is not None:
            pair = int(match["map"]) - 2  # the first pair is that of map 2
            position = 2 * (int(match["half"]) - 1)  # a ReLU counts
            return f"extras.{pair}.{position}{name[match.end() :]}"
        return name


_TRUNK = "FeatureExtractor/MobilenetV2/"
_NAMES = (
    (re.compile(rf"{_TRUNK}Conv(?=\.)"), "stem"),
    (re.compile(rf"{_TRUNK}Conv_1(?=\.)"), "last"),
    (re.compile(rf"{_TRUNK}expanded_conv/(\w+)"), r"blocks.0.\1"),
    (re.compile(rf"{_TRUNK}expanded_conv_(\d+)/(\w+)"), r"blocks.\1.\2"),
    (re.compile(r"BoxPredictor_(\d+)/ClassPredictor"), r"classification_headers.\1"),
    (re.compile(r"BoxPredictor_(\d+)/BoxEncodingPredictor"), r"regression_headers.\1"),
)
_PAIR = re.compile(rf"{_TRUNK}layer_19_(?P<half>[12])_Conv2d_(?P<map>\d+)_\w+")


def _headers(widths: list[int], outputs: list[int]) -> nn.ModuleList:
    return nn.ModuleList(SameConv(width, out) for width, out in zip(widths, outputs, strict=True))


def _initialise(module: nn.Module) -> None:
    """Initialise for ReLUs without batch norm: He's weights by the inputs of an output, zero biases."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
        assert module.bias is not None
        nn.init.zeros_(module.bias)


def _initialise_header(module: nn.Module) -> None:
    """Initialise as the Object Detection API does. He's weights would give logits of 5 and more, as features reach 6."""
    if isinstance(module, nn.Conv2d):
        nn.init.trunc_normal_(module.weight, std=HEADER_DEVIATION)


register(
    "ssd-mobilenet-v2",
    input_shape=(3, IMAGE_SIZE, IMAGE_SIZE),
    paper="Liu et al. 2016, arXiv:1512.02325; Sandler et al. 2018, arXiv:1801.04381",
    # The file of the public weights has this number of values; MACs from its layer shapes and strides.
    params=4_951_996,
    macs=672_993_008,
    num_classes=23,
)(SSDMobileNetV2)

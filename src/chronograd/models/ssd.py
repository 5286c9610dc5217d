"""SSD on MobileNet v1: classes and boxes of objects, from six feature maps in one pass.

Liu et al., "SSD: single shot multibox detector", 2016, arXiv:1512.02325, on the trunk of Howard et al. (mobilenet_v1.py). The
maps for an image of 300 are: the trunk's map of 19 x 19 cells, its last one of 10 x 10, and four from further convolutions. The
public weights `mobilenet-v1-ssd-mp-0_675.pth` (github.com/qfgaohao/pytorch-ssd, trained on PASCAL VOC 2007 and 2012) fit; they
were trained on (pixel - 127) / 128.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from chronograd.detect.boxes import PRIORS_PER_CELL, decode, priors
from chronograd.detect.scores import Activation, probabilities
from chronograd.models.mobilenet_v1 import MobileNetV1
from chronograd.models.registry import register

# Channels within and after each pair of convolutions behind the trunk; the second of a pair halves the map's side.
EXTRAS = ((256, 512), (128, 256), (128, 256), (128, 256))
# The trunk's first and second stage have six blocks each; the public weights number them continuously.
BLOCKS_OF_STAGE = 6
IMAGE_SIZE = 300


class PriorDetector(nn.Module):
    """A detector that returns scores and boxes in evaluation, and in training the logits and offsets behind them."""

    # Names of its outputs in evaluation, for exported graphs.
    output_names = ("scores", "boxes")
    # How logits become scores; the loss of training follows it.
    activation: Activation = "softmax"
    priors: Tensor

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits, offsets = self.predictions(x)
        if self.training:
            return logits, offsets
        return probabilities(logits, self.activation), decode(offsets, self.priors)

    def predictions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (N, P, K + 1) and encoded offsets (N, P, 4)."""
        raise NotImplementedError


class SSD(PriorDetector):
    """SSD with six maps, and headers on each of them.

    Scores (N, P, K + 1) are probabilities of the background and of K classes at each of P priors. Boxes (N, P, 4) are (left,
    top, right, bottom) in units of the image. An image of 300 has 3,000 priors.

    Args:
        num_classes: K, without the background.
        width: multiplies every number of channels of the trunk.
    """

    # Layers whose shape depends on the number of classes: they keep their initial values if the weights have another number.
    class_layers = ("classification_headers",)
    # Layers outside the trunk: they keep their initial values if the weights are those of a classifier.
    added_layers = ("extras", "classification_headers", "regression_headers")

    def __init__(
        self, num_classes: int = 20, in_channels: int = 3, image_size: int = IMAGE_SIZE, width: float = 1.0
    ) -> None:
        super().__init__()
        trunk = MobileNetV1(1, in_channels, width)
        self.num_outputs = num_classes + 1
        self.stage1, self.stage2, self.stage3 = trunk.stage1, trunk.stage2, trunk.stage3
        channels = [_channels(self.stage2), _channels(self.stage3)]
        pairs = []
        for inner, outer in EXTRAS:
            pairs.append(_pair(channels[-1], inner, outer))
            channels.append(outer)
        self.extras = nn.ModuleList(pairs)
        self.classification_headers = _headers(channels, self.num_outputs)
        self.regression_headers = _headers(channels, 4)
        self.register_buffer("priors", priors(image_size), persistent=False)
        for part in (self.extras, self.classification_headers, self.regression_headers):
            part.apply(_initialise)

    def predictions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits, offsets = [], []
        headers = zip(self.classification_headers, self.regression_headers, strict=True)
        for seen, (classify, regress) in zip(self._maps(x), headers, strict=True):
            logits.append(by_prior(classify(seen), self.num_outputs))
            offsets.append(by_prior(regress(seen), 4))
        return torch.cat(logits, dim=1), torch.cat(offsets, dim=1)

    def _maps(self, x: Tensor) -> Iterator[Tensor]:
        x = self.stage2(self.stage1(x))
        yield x
        x = self.stage3(x)
        yield x
        for pair in self.extras:
            x = pair(x)
            yield x

    @staticmethod
    def own_name(name: str) -> str:
        """Return our name of a parameter that the public weights call `name`; other names unchanged.

        >>> SSD.own_name("base_net.0.1.weight"), SSD.own_name("base_net.13.3.weight"), SSD.own_name("extras.0.2.bias")
        ('stage1.0.1.weight', 'stage3.1.3.weight', 'extras.0.2.bias')
        """
        block = re.match(r"base_net\.(\d+)\.", name)
        if block is None:
            return name
        stage, number = divmod(int(block[1]), BLOCKS_OF_STAGE)
        return f"stage{stage + 1}.{number}.{name[block.end() :]}"


def _channels(stage: nn.Module) -> int:
    return [module.num_features for module in stage.modules() if isinstance(module, nn.BatchNorm2d)][-1]


def _pair(channels: int, inner: int, outer: int) -> nn.Sequential:
    narrow, halve = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, outer, 3, stride=2, padding=1)
    return nn.Sequential(narrow, nn.ReLU(), halve, nn.ReLU())


def _headers(channels: list[int], numbers: int) -> nn.ModuleList:
    """Return a convolution for each map, with `numbers` outputs per prior."""
    return nn.ModuleList(nn.Conv2d(width, PRIORS_PER_CELL * numbers, 3, padding=1) for width in channels)


def by_prior(out_NCHW: Tensor, numbers: int) -> Tensor:
    """Return (N, cells · priors per cell, numbers), in the order of `boxes.priors`."""
    return out_NCHW.permute(0, 2, 3, 1).reshape(out_NCHW.shape[0], -1, numbers)


def _initialise(module: nn.Module) -> None:
    """Initialise as the SSD paper does: Xavier weights, zero biases."""
    if isinstance(module, nn.Conv2d):
        nn.init.xavier_uniform_(module.weight)
        assert module.bias is not None
        nn.init.zeros_(module.bias)


register(
    "ssd-mobilenet-v1",
    input_shape=(3, IMAGE_SIZE, IMAGE_SIZE),
    paper="Liu et al. 2016, arXiv:1512.02325",
    # Computed from the layer shapes of the public weights.
    params=9_468_996,
    macs=1_526_986_688,
    num_classes=20,
)(SSD)

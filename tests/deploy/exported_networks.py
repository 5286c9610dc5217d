"""Networks for tests of export, as `FILE.py:NAME`."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Small(nn.Module):
    """An exportable network: convolution, batch norm, pooling, a linear layer."""

    def __init__(self, num_classes: int = 4) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(96, num_classes)

    def forward(self, images_NCHW: Tensor) -> Tensor:
        return self.head(self.features(images_NCHW).flatten(1))  # type: ignore[no-any-return]


class Differs(Small):
    """A network whose export returns 1 % more than PyTorch."""

    def forward(self, images_NCHW: Tensor) -> Tensor:
        return super().forward(images_NCHW) * (1.01 if torch.onnx.is_in_onnx_export() else 1.0)


class Chooses(Small):
    """A network whose control flow depends on tensor values."""

    def forward(self, images_NCHW: Tensor) -> Tensor:
        logits = super().forward(images_NCHW)
        return logits if logits.sum() > 0 else -logits


class OneBatch(Small):
    """A network that fixes its batch size as a constant."""

    def forward(self, images_NCHW: Tensor) -> Tensor:
        logits = super().forward(images_NCHW)
        return torch.cat([logits[i : i + 1] * (i + 1) for i in range(len(images_NCHW))])


class TwoHeads(Small):
    """A network with two named outputs: scores and boxes."""

    def forward(self, images_NCHW: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        logits = super().forward(images_NCHW)
        return {"scores": logits.softmax(1), "boxes": logits.unsqueeze(2).expand(-1, -1, 4)}


class Drops(Small):
    """A network with dropout in every mode."""

    def forward(self, images_NCHW: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(images_NCHW))


class ReadsBatch(Small):
    """A network that branches on the batch size in Python, so the graph holds one branch."""

    def forward(self, images_NCHW: Tensor) -> Tensor:
        return super().forward(images_NCHW) * (1 if len(images_NCHW) > 4 else 2)


class Centred(Small):
    """A network whose answers depend on the other samples."""

    def forward(self, images_NCHW: Tensor) -> Tensor:
        logits = super().forward(images_NCHW)
        return logits - logits.mean(0, keepdim=True)

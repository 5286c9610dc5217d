"""Networks for tests of exporting; `FILE.py:NAME`."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Small(nn.Module):
    """What exports: convolution, batch norm, pooling, a linear layer."""

    def __init__(self, num_classes: int = 4) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(96, num_classes)

    def forward(self, images_NCHW: Tensor) -> Tensor:
        return self.head(self.features(images_NCHW).flatten(1))  # type: ignore[no-any-return]


class Differs(Small):
    """A hundredth more where it is exported than where it is run."""

    def forward(self, images_NCHW: Tensor) -> Tensor:
        return super().forward(images_NCHW) * (1.01 if torch.onnx.is_in_onnx_export() else 1.0)


class Chooses(Small):
    """Which way it goes depends on the numbers in a tensor."""

    def forward(self, images_NCHW: Tensor) -> Tensor:
        logits = super().forward(images_NCHW)
        return logits if logits.sum() > 0 else -logits


class OneBatch(Small):
    """Takes its batch for a number."""

    def forward(self, images_NCHW: Tensor) -> Tensor:
        logits = super().forward(images_NCHW)
        return torch.cat([logits[i : i + 1] * (i + 1) for i in range(len(images_NCHW))])


class TwoHeads(Small):
    """Scores and boxes, by name."""

    def forward(self, images_NCHW: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        logits = super().forward(images_NCHW)
        return {"scores": logits.softmax(1), "boxes": logits.unsqueeze(2).expand(-1, -1, 4)}


class Drops(Small):
    """Drops values whatever the mode."""

    def forward(self, images_NCHW: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(images_NCHW))


class ReadsBatch(Small):
    """Python reads the size of the batch, and the graph keeps one of the two ways."""

    def forward(self, images_NCHW: Tensor) -> Tensor:
        return super().forward(images_NCHW) * (1 if len(images_NCHW) > 4 else 2)


class Centred(Small):
    """Each answer depends on the other samples."""

    def forward(self, images_NCHW: Tensor) -> Tensor:
        logits = super().forward(images_NCHW)
        return logits - logits.mean(0, keepdim=True)

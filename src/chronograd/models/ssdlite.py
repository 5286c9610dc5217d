"""SSDLite on MobileNet v3 large: torchvision's network with the interface of our SSD.

Sandler et al., "MobileNetV2: inverted residuals and linear bottlenecks", 2018, arXiv:1801.04381, section 6.2, on the trunk of
Howard et al., "Searching for MobileNetV3", 2019, arXiv:1905.02244. The layers, their names and the priors are torchvision's, so
its weights fit. Those were trained on pixel / 127.5 - 1, which differs from ours by less than half a grey level.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chronograd.detect.boxes import centres, map_sides
from chronograd.models.registry import optional_library, register
from chronograd.models.ssd import PriorDetector

IMAGE_SIZE = 320


class SSDLite(PriorDetector):
    """SSDLite with torchvision's layers.

    Scores are (N, P, K + 1), boxes (N, P, 4), as in `chronograd.models.ssd.SSD`; P is 3,234 for an image of 320.

    Args:
        num_classes: K, without the background.
    """

    # Layers whose shape depends on the number of classes: they keep their initial values if the weights have another number.
    class_layers = ("head.classification_head",)

    def __init__(self, num_classes: int = 90, image_size: int = IMAGE_SIZE) -> None:
        super().__init__()
        library = optional_library("torchvision.models.detection", "SSDLite")
        whole = library.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=num_classes + 1)
        self.backbone, self.head = whole.backbone, whole.head
        # The generator reads only the sizes of the maps.
        maps = [torch.zeros(1, 1, side, side) for side in map_sides(image_size)]
        images = optional_library("torchvision.models.detection.image_list", "SSDLite").ImageList(
            torch.zeros(1, 3, image_size, image_size), [(image_size, image_size)]
        )
        (boxes_P4,) = whole.anchor_generator(images, maps)
        self.register_buffer("priors", centres(boxes_P4 / image_size), persistent=False)

    def predictions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.head(list(self.backbone(x).values()))
        return outputs["cls_logits"], outputs["bbox_regression"]


register(
    "ssdlite-mobilenet-v3",
    input_shape=(3, IMAGE_SIZE, IMAGE_SIZE),
    paper="Howard et al. 2019, arXiv:1905.02244",
    params=3_440_060,  # torchvision's documentation of its weights
    num_classes=90,
)(SSDLite)

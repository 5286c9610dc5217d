"""SSDLite: torchvision's network with the interface of our SSD."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.models.detection import ssdlite320_mobilenet_v3_large
from torchvision.models.detection.image_list import ImageList

from chronograd.models.registry import build
from chronograd.models.weights import load_pretrained


@pytest.fixture(scope="module")
def theirs() -> Any:
    torch.manual_seed(1)
    return ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4).eval()


def test_boxes_and_scores_match_torchvision(theirs: Any, tmp_path: Path) -> None:
    """Compare priors, decoding and softmax before suppression, for the same weights."""
    torch.save(theirs.state_dict(), tmp_path / "ssdlite.pth")
    ours = build("ssdlite-mobilenet-v3", num_classes=3).eval()
    loaded = load_pretrained(ours, str(tmp_path / "ssdlite.pth"), "ssdlite-mobilenet-v3")
    assert loaded.fresh == ()
    x = torch.randn(1, 3, 320, 320)
    with torch.no_grad():
        scores, boxes = ours(x)
        maps = list(theirs.backbone(x).values())
        head = theirs.head(maps)
        (anchors,) = theirs.anchor_generator(ImageList(x, [(320, 320)]), maps)
        expected = theirs.box_coder.decode_single(head["bbox_regression"][0], anchors)
    assert scores.shape == (1, 3234, 4)
    torch.testing.assert_close(boxes[0] * 320, expected, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(scores[0], head["cls_logits"][0].softmax(1))


def test_other_classes_reset_only_class_layers(theirs: Any, tmp_path: Path) -> None:
    torch.save(theirs.state_dict(), tmp_path / "ssdlite.pth")
    ours = build("ssdlite-mobilenet-v3", num_classes=7)
    loaded = load_pretrained(ours, str(tmp_path / "ssdlite.pth"), "ssdlite-mobilenet-v3")
    assert loaded.fresh
    assert all(name.startswith("head.classification_head.") for name in loaded.fresh)


@pytest.mark.parametrize("side", [160, 224])
def test_priors_follow_the_image_size(side: int) -> None:
    network = build("ssdlite-mobilenet-v3", input_shape=(3, side, side), num_classes=2).train()
    logits, offsets = network(torch.zeros(2, 3, side, side))
    assert logits.shape == (2, len(network.priors), 3)
    assert offsets.shape == (2, len(network.priors), 4)

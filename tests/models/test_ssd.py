"""SSD on MobileNet v1: its outputs, and weights in the layout of the public file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from chronograd.detect.boxes import corners, decode, priors
from chronograd.errors import FileFormatError, InputError
from chronograd.models.registry import build
from chronograd.models.ssd import SSD
from chronograd.models.weights import load_pretrained

SMALL = {"width": 0.25, "image_size": 96}


def small(num_classes: int = 20, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return build("ssd-mobilenet-v1", SMALL, num_classes=num_classes)


def test_outputs_of_300_pixels() -> None:
    network = build("ssd-mobilenet-v1", device="meta").eval()
    scores, boxes = network(torch.zeros(2, 3, 300, 300, device="meta"))
    assert scores.shape == (2, 3000, 21)
    assert boxes.shape == (2, 3000, 4)


def test_evaluation_decodes_training_outputs() -> None:
    network = small(num_classes=3).eval()
    x = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        scores, boxes = network(x)
        logits, offsets = network.predictions(x)
    assert scores.shape == (2, len(priors(96)), 4)
    torch.testing.assert_close(scores.sum(2), torch.ones(scores.shape[:2]))
    torch.testing.assert_close(scores, logits.softmax(2))
    torch.testing.assert_close(boxes, decode(offsets, priors(96)))
    trained = network.train()(x)
    assert trained[0].shape == logits.shape
    assert trained[1].shape == offsets.shape


def test_predictions_follow_the_order_of_priors() -> None:
    """Changing the input of one cell changes the predictions of its six priors."""
    network = small(num_classes=1).eval()
    for header in network.regression_headers:
        torch.nn.init.zeros_(header.weight)
    with torch.no_grad():
        _, boxes = network(torch.randn(1, 3, 96, 96))
    torch.testing.assert_close(boxes[0], corners(priors(96)))
    cell = 0
    for header, side in zip(network.classification_headers, (6, 3, 2, 1, 1, 1), strict=True):
        handle = header.register_forward_hook(lambda _, __, out: _marked(out))
        with torch.no_grad():
            scores, _ = network(torch.randn(1, 3, 96, 96))
        handle.remove()
        last = slice(6 * (cell + side**2 - 1), 6 * (cell + side**2))
        surest = torch.nonzero(scores[0, :, 1] > 0.999).flatten()
        assert surest.tolist() == list(range(last.start, last.stop))
        cell += side**2


def _marked(out_NCHW: torch.Tensor) -> torch.Tensor:
    """Return background everywhere except the last cell, whose six priors predict class 1."""
    out_NCHW = torch.zeros_like(out_NCHW)
    out_NCHW[:, 1::2, -1, -1] = 50.0
    return out_NCHW


def public(network: SSD) -> dict[str, torch.Tensor]:
    """Return a network's tensors with the names of the public file, where the trunk is a sequence of fourteen blocks."""
    names = {}
    for name in network.state_dict():
        stage, _, rest = name.partition(".")
        if stage.startswith("stage"):
            number, _, rest = rest.partition(".")
            name_there = f"base_net.{6 * (int(stage[-1]) - 1) + int(number)}.{rest}"
        else:
            name_there = name
        names[name_there] = name
    state = network.state_dict()
    return {there: state[here] for there, here in names.items() if not here.endswith("num_batches_tracked")}


def saved(tmp_path: Path, network: SSD) -> Path:
    path = tmp_path / "mobilenet-v1-ssd.pth"
    torch.save(public(network), path)
    return path


def test_names_and_shapes_of_the_public_file() -> None:
    """Check some of each kind, for the public repository's network with 21 outputs."""
    tensors = public(build("ssd-mobilenet-v1"))
    shapes = {
        "base_net.0.0.weight": (32, 3, 3, 3),
        "base_net.0.1.running_mean": (32,),
        "base_net.1.0.weight": (32, 1, 3, 3),
        "base_net.6.3.weight": (512, 256, 1, 1),
        "base_net.11.3.weight": (512, 512, 1, 1),
        "base_net.12.3.weight": (1024, 512, 1, 1),
        "base_net.13.4.bias": (1024,),
        "extras.0.0.weight": (256, 1024, 1, 1),
        "extras.0.2.weight": (512, 256, 3, 3),
        "extras.3.2.bias": (256,),
        "classification_headers.0.weight": (126, 512, 3, 3),
        "classification_headers.1.weight": (126, 1024, 3, 3),
        "classification_headers.5.bias": (126,),
        "regression_headers.2.weight": (24, 512, 3, 3),
    }
    assert {name: tuple(tensors[name].shape) for name in shapes} == shapes
    assert len([name for name in tensors if name.startswith("base_net.")]) == 5 * (1 + 2 * 13)


def test_public_weights_are_loaded_by_name(tmp_path: Path) -> None:
    donor, network = small(seed=1), small(seed=2)
    path = saved(tmp_path, donor)
    loaded = load_pretrained(network, str(path), "ssd-mobilenet-v1")
    assert loaded.fresh == ()
    x = torch.randn(1, 3, 96, 96)
    with torch.no_grad():
        for a, b in zip(donor.eval()(x), network.eval()(x), strict=True):
            assert torch.equal(a, b)


def test_custom_classes_reset_the_classifier(tmp_path: Path) -> None:
    donor, network = small(seed=1), small(num_classes=2, seed=2)
    before = network.classification_headers[0].weight.clone()
    loaded = load_pretrained(network, str(saved(tmp_path, donor)), "ssd-mobilenet-v1")
    assert {name.partition(".")[0] for name in loaded.fresh} == {"classification_headers"}
    assert torch.equal(network.classification_headers[0].weight, before)
    assert torch.equal(network.regression_headers[0].weight, donor.regression_headers[0].weight)


def test_digest_is_checked(tmp_path: Path) -> None:
    path = saved(tmp_path, small(seed=1))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for stated in (digest, digest[:8].upper()):
        load_pretrained(small(), f"{path}#sha256={stated}", "ssd-mobilenet-v1")
    network = small(seed=2)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(FileFormatError, match=f"has the sha256 {digest}, but network.weights states 00000000"):
        load_pretrained(network, f"{path}#sha256=00000000", "ssd-mobilenet-v1")
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    with pytest.raises(InputError, match="'12' is not a sha256"):
        load_pretrained(network, f"{path}#sha256=12", "ssd-mobilenet-v1")
    with pytest.raises(InputError, match="is a run directory, which has no digest"):
        load_pretrained(network, f"{tmp_path}#sha256=00000000", "ssd-mobilenet-v1")


def test_trunk_weights_leave_the_rest_new(tmp_path: Path) -> None:
    """Load a classifier's weights, such as ImageNet's, without its head."""
    torch.manual_seed(3)
    classifier = build("mobilenet-v1", {"width": 0.25})
    path = tmp_path / "mobilenet.tar"
    wrapped = {f"module.{name}": tensor for name, tensor in classifier.state_dict().items()}
    torch.save({"state_dict": wrapped, "arch": "resnet18"}, path)
    network, before = small(num_classes=3), small(num_classes=3).state_dict()
    loaded = load_pretrained(network, str(path), "ssd-mobilenet-v1")
    after, theirs = network.state_dict(), classifier.state_dict()
    for name, tensor in after.items():
        if name.startswith("stage"):
            assert torch.equal(tensor, theirs[name]), name
        else:
            assert name in loaded.fresh
            assert torch.equal(tensor, before[name]), name
    assert loaded.num_loaded == sum(name.startswith("stage") for name in theirs)
    # Another width is another network, and a detector's weights are not a trunk's.
    with pytest.raises(FileFormatError, match=r"of another shape: stage1\.0\.0\.weight"):
        load_pretrained(build("ssd-mobilenet-v1", {"width": 0.5, "image_size": 96}), str(path), "ssd-mobilenet-v1")
    part = {name: tensor for name, tensor in after.items() if not name.startswith("extras.3")}
    torch.save(part, tmp_path / "part.pth")
    with pytest.raises(FileFormatError, match=r"missing: extras\.3"):
        load_pretrained(small(num_classes=3), str(tmp_path / "part.pth"), "ssd-mobilenet-v1")

"""Weights saved by wrappers, trainers and older libraries load completely, and the output states the changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from chronograd.errors import FileFormatError
from chronograd.models.registry import build
from chronograd.models.weight_names import for_network
from chronograd.models.weights import load_pretrained

Tensors = dict[str, Tensor]


def seeded(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return build("resnet8")


def in_other_words(name: str) -> str:
    """Return the name of a tensor with other names of all layers, but not of the parameter."""
    layer, _, parameter = name.rpartition(".")
    return f"_{layer.replace('.', '_')}.{parameter}"


def test_tensors_without_a_known_name_are_taken_in_order(tmp_path: Path) -> None:
    """Weights of another implementation of the network, with 7 classes and colour images; another order is refused."""
    torch.manual_seed(1)
    source = build("resnet8", num_classes=7)
    content = {in_other_words(name): tensor for name, tensor in source.state_dict().items()}
    torch.save(content, tmp_path / "other.pth")
    network = seeded(2)
    loaded = load_pretrained(network, str(tmp_path / "other.pth"), "resnet8")
    assert "taken in order: _conv1.weight as conv1.weight" in loaded.source
    assert all(name.startswith(loaded.fresh[0].partition(".")[0]) for name in loaded.fresh)
    own = network.state_dict()
    assert all(torch.equal(own[name], value) for name, value in source.state_dict().items() if name not in loaded.fresh)
    torch.save(dict(reversed(content.items())), tmp_path / "reversed.pth")
    with pytest.raises(FileFormatError, match="not the weights of this network"):
        load_pretrained(seeded(2), str(tmp_path / "reversed.pth"), "resnet8")


def before(prefix: str, tensors: Tensors) -> Tensors:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def loaded_from(content: Any, path: Path) -> tuple[Tensors, str]:
    save_file(content, path) if path.suffix == ".safetensors" else torch.save(content, path)
    network = seeded(2)
    source = load_pretrained(network, str(path), "resnet8").source
    return dict(network.state_dict()), source


WRAPPED: list[tuple[str, Callable[[Tensors], Any], str]] = [
    ("w.pth", lambda s: before("_orig_mod.", s), "prefix _orig_mod. removed (torch.compile)"),
    ("w.safetensors", lambda s: before("module._orig_mod.", s), "prefix module._orig_mod. removed"),
    ("w.pth", lambda s: before("_orig_mod.module.", s), "prefix _orig_mod.module. removed"),
    ("w.ckpt", lambda s: {"state_dict": before("model._orig_mod.", s), "hyper_parameters": {"lr": 0.1}}, "Lightning"),
    ("w.pth", lambda s: {"state_dict": before("net.", s)}, "prefix net. removed"),
    ("w.pth", lambda s: {"model_state_dict": before("net.model.module.", s)}, "prefix net.model.module. removed"),
    ("w.bin", lambda s: {"n_averaged": torch.tensor(9), **before("module.", s)}, "n_averaged left out"),
    ("w.pth", lambda s: {"_orig_mod.n_averaged": torch.tensor(9), **before("_orig_mod.module.", s)}, "n_averaged"),
    ("w.pth", lambda s: {"model": {n: -t for n, t in s.items()}, "model_ema": s}, "used model_ema, the running mean"),
    ("w.pth", lambda s: {"state_dict": {n: -t for n, t in s.items()}, "ema": {"module": s}}, "and not state_dict"),
    ("w.pth", lambda s: {"model": s, "model_ema": None}, "sha256"),
    ("w.pth", lambda s: {"model": s, "ema": {"decay": 0.9}}, "used model; ema is not a state dict"),
    (
        "w.pth",
        lambda s: {"model": s, "ema": {n: t for n, t in s.items() if "num_batches" not in n}},
        "tensors that it lacks",
    ),
    ("w.ckpt", lambda s: before("ema_model.", s) | before("online_model.", {"a": torch.zeros(1)}), "used ema_model.*"),
]


@pytest.mark.parametrize(("name", "wrap", "note"), WRAPPED)
def test_wrapped_weights_load_completely(name: str, wrap: Callable[[Tensors], Any], note: str, tmp_path: Path) -> None:
    wanted = dict(seeded(1).state_dict())
    found, source = loaded_from(wrap(wanted), tmp_path / name)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert note in source


def test_averaged_and_compiled_network(tmp_path: Path) -> None:
    """Use files written by PyTorch's own wrappers."""
    network = seeded(1)
    wrapped = AveragedModel(nn.DataParallel(network))
    compiled = torch.compile(wrapped)
    assert isinstance(compiled, nn.Module)
    found, source = loaded_from(compiled.state_dict(), tmp_path / "w.pth")
    assert all(torch.equal(found[name], tensor) for name, tensor in network.state_dict().items())
    assert "prefix _orig_mod.module.module. removed" in source


def test_network_with_compiled_parts(tmp_path: Path) -> None:
    network = seeded(1)
    wanted = dict(network.state_dict())
    for path, part in list(network.named_children()):
        setattr(network, path, torch.compile(part))
    found, source = loaded_from(network.state_dict(), tmp_path / "w.pth")
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert "prefix _orig_mod. removed" in source


def test_prefix_of_the_network_itself_stays() -> None:
    own = ["model.0.weight", "model.1.weight"]
    given = {name: torch.zeros(1) for name in own}
    assert for_network(given, own) == (given, [])
    assert list(for_network(before("model.", given), own)[0]) == own


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("features.denseblock1.denselayer2.norm.1.weight", "features.denseblock1.denselayer2.norm1.weight"),
        ("features.denseblock1.denselayer2.conv.2.weight", "features.denseblock1.denselayer2.conv2.weight"),
        ("encoder.layers.encoder_layer_0.mlp.linear_1.bias", "encoder.layers.encoder_layer_0.mlp.0.bias"),
        ("encoder.layers.encoder_layer_0.mlp.linear_2.bias", "encoder.layers.encoder_layer_0.mlp.3.bias"),
        ("backbone.fpn.inner_blocks.0.weight", "backbone.fpn.inner_blocks.0.0.weight"),
        ("rpn.head.conv.bias", "rpn.head.conv.0.0.bias"),
    ],
)
def test_old_torchvision_names(old: str, new: str) -> None:
    tensors, notes = for_network({f"module.{old}": torch.zeros(1)}, [new])
    assert list(tensors) == [new]
    assert notes[-1] == f"1 old name changed, such as {old} to {new}"
    assert for_network({old: torch.zeros(1)}, [old]) == ({old: torch.zeros(1)}, [])


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("densenet121", "denselayer1.norm1.weight", "denselayer1.norm.1.weight"),
        ("vit_b_16", "encoder_layer_0.mlp.0.weight", "encoder_layer_0.mlp.linear_1.weight"),
    ],
)
def test_current_torchvision_has_the_new_names(name: str, old: str, new: str) -> None:
    """`old` is a name of the current network that the table produces."""
    models = pytest.importorskip("torchvision.models")
    with torch.device("meta"):
        own = models.get_model(name, weights=None).state_dict()
    today = next(key for key in own if key.endswith(old))
    assert list(for_network({today.replace(old, new): torch.zeros(1)}, own)[0]) == [today]


def test_git_lfs_pointer(tmp_path: Path) -> None:
    for name in ("w.pth", "w.safetensors"):
        (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:085e\nsize 1597200\n")
        with pytest.raises(FileFormatError, match="Git LFS pointer"):
            load_pretrained(seeded(1), str(tmp_path / name), "resnet8")


def test_pickled_network_is_refused(tmp_path: Path) -> None:
    torch.save(seeded(1), tmp_path / "w.pth")
    with pytest.raises(FileFormatError, match=r"also holds a Python object, chronograd\.models\..* could run code"):
        load_pretrained(seeded(2), str(tmp_path / "w.pth"), "resnet8")

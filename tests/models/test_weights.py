"""Pretrained weights from files, runs and library caches, and the head of a network."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from chronograd.data.published import data_folder
from chronograd.errors import FileFormatError, InputError, RunError
from chronograd.models.registry import build
from chronograd.models.weights import head_of, load_pretrained, without_head

Tensors = dict[str, Tensor]


def seeded(reference: str, seed: int, **given: Any) -> nn.Module:
    torch.manual_seed(seed)
    return build(reference, **given)


def values(network: nn.Module) -> Tensors:
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def equal(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# -- heads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "path", "kind"),
    [
        ("resnet20", "linear", "Linear"),
        ("resnet9", "linear", "Linear"),
        ("mobilenet-v1-0.25", "fc", "Linear"),
        ("small-cnn", "8", "Linear"),
        ("resnet50", "fc", "Linear"),
        ("resnet50-keras", "fc", "Sequential"),  # two layers marked as one head
        ("efficientnet-b0-keras", "classifier", "Sequential"),  # dropout and one layer
        ("vgg16", "classifier.6", "Linear"),  # the two layers of 4096 stay
        ("googlenet", "head.3", "Linear"),  # its sequence also pools
        ("gpt2-small", "head", "Linear"),
        ("torchvision:resnet50", "fc", "Linear"),
        ("torchvision:vgg19", "classifier.6", "Linear"),
        ("torchvision:efficientnet_b0", "classifier", "Sequential"),
        ("torchvision:mobilenet_v3_small", "classifier.3", "Linear"),
        ("torchvision:convnext_tiny", "classifier.2", "Linear"),
        ("torchvision:vit_b_16", "heads", "Sequential"),
        ("torchvision:inception_v3", "fc", "Linear"),
        ("timm:resnet18", "fc", "Linear"),
        ("timm:convnext_atto", "head.fc", "Linear"),
        ("timm:vit_tiny_patch16_224", "head", "Linear"),
    ],
)
def test_head(reference: str, path: str, kind: str) -> None:
    network = build(reference, device="meta")
    found, head = head_of(network)
    assert (found, type(head).__name__) == (path, kind)
    assert head is network.get_submodule(path)


def test_auxiliary_classifiers_are_not_heads() -> None:
    network = build("googlenet", {"aux": True}, device="meta")
    assert [name for name, _ in network.named_children()][-1] == "aux_4d"
    assert head_of(network)[0] == "head.3"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nin", r"ends with 7\.4 \(Conv2d\)"),
        ("inception-naive", r"ends with five\.0 \(Conv2d\)"),
        ("torchvision:squeezenet1_1", r"SqueezeNet has no linear head: it ends with classifier\.1 \(Conv2d\)"),
        ("torchvision:fcn_resnet50", r"ends with classifier\.4 \(Conv2d\)"),
        ("torchvision:fasterrcnn_resnet50_fpn", "is a detector"),
        ("timm:resnetv2_18", r"ends with head\.fc \(Conv2d\)"),
        ("timm:levit_128", "has 2 heads"),
        ("timm:crossvit_9_240", "has 2 heads"),
        ("timm:samvit_base_patch16", r"ends with head \(ClassifierHead\)"),
    ],
)
def test_network_without_a_linear_head(reference: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        head_of(build(reference, device="meta"))


def test_network_without_layers() -> None:
    with pytest.raises(InputError, match="network ReLU has no linear layer"):
        head_of(nn.ReLU())


class Marked(nn.Module):
    """Network with a named head of two layers, which comes first."""

    head_name = "top"

    def __init__(self, num_classes: int = 3) -> None:
        super().__init__()
        self.top = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, num_classes))
        self.body = nn.Conv2d(1, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.top(self.body(x).mean((2, 3)))
        return y


def test_network_names_its_head() -> None:
    network = Marked()
    assert head_of(network) == ("top", network.top)
    network.head_name = "bottom"
    with pytest.raises(InputError, match="names bottom as its head, but has no such part"):
        head_of(network)
    network.head_name = "body"
    with pytest.raises(InputError, match=r"ends with body \(Conv2d\)"):
        head_of(network)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: build("resnet8"), (3, 16, 16)),
        (lambda: build("resnet9"), (3, 16, 16)),
        (lambda: build("small-cnn", {"image_size": 8}), (3, 8, 8)),
        (lambda: build("mobilenet-v1-0.25"), (3, 64, 64)),
        (lambda: build("torchvision:mobilenet_v2"), (3, 32, 32)),
        (lambda: build("timm:convnext_atto"), (3, 32, 32)),
        (lambda: Marked(), (1, 8, 8)),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), (1, 4, 4)),
        (lambda: nn.Linear(4, 3), (4,)),
    ],
)
def test_trunk_and_head_form_the_network(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    network = make().eval()
    before = [(name, id(module)) for name, module in network.named_modules()]
    trunk, head = without_head(network)
    trunk.eval()
    x = torch.randn(2, *shape)
    with torch.no_grad():
        expected = network(x)
        assert expected.abs().sum() > 0
        assert torch.equal(head(trunk(x)), expected)
    assert [(name, id(module)) for name, module in network.named_modules()] == before
    parts = [{id(p) for p in part.parameters()} for part in (trunk, head, network)]
    assert parts[0] | parts[1] == parts[2]
    assert not parts[0] & parts[1]


def test_trunk_follows_its_network() -> None:
    network = build("resnet8").eval()
    trunk, _ = without_head(network)
    x = torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        before = trunk.eval()(x)
        for p in network.parameters():
            p.mul_(1.5)
        assert not torch.allclose(trunk(x), before)


# -- files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "wrap"),
    [
        ("w.pt", lambda s: s),
        ("w.pth", lambda s: {"state_dict": s, "epoch": 3}),
        ("w.th", lambda s: {"model": s, "best": torch.tensor(0.5)}),
        ("w.tar", lambda s: {"state_dict": {f"module.{k}": v for k, v in s.items()}, "arch": "resnet8"}),
        ("w.safetensors", None),
    ],
)
def test_file(name: str, wrap: Callable[[Tensors], Any] | None, tmp_path: Path) -> None:
    path = tmp_path / name
    wanted = values(seeded("resnet8", 1))
    save_file(wanted, path) if wrap is None else torch.save(wrap(wanted), path)
    network = seeded("resnet8", 2)
    assert not equal(values(network), wanted)
    loaded = load_pretrained(network, str(path), "resnet8")
    assert equal(values(network), wanted)
    assert (loaded.num_loaded, loaded.fresh) == (len(wanted), ())
    assert loaded.source.split(";")[0] == f"{path} (sha256 {sha256(path)[:12]})"


def test_head_for_other_classes_stays_fresh(tmp_path: Path) -> None:
    path = tmp_path / "ten.safetensors"
    ten = values(seeded("resnet8", 1))
    save_file(ten, path)
    network = seeded("resnet8", 2, num_classes=4)
    initial = values(network)
    loaded = load_pretrained(network, str(path), "resnet8")
    assert loaded.fresh == ("linear.weight", "linear.bias")
    assert loaded.num_loaded == len(ten) - 2
    after = values(network)
    assert equal({n: after[n] for n in loaded.fresh}, {n: initial[n] for n in loaded.fresh})
    assert all(torch.equal(after[n], ten[n]) for n in ten if n not in loaded.fresh)


def test_new_head_starts_at_the_scale_of_its_features(tmp_path: Path) -> None:
    """Guards against a start at a loss of 7.6 for two classes, which destroys a trained trunk in few steps."""
    path, reference = tmp_path / "ten.safetensors", "timm:tf_efficientnet_lite0"
    save_file(values(seeded(reference, 1, num_classes=10)), path)
    network = seeded(reference, 2, num_classes=2)
    bound = 1 / math.sqrt(network.classifier.in_features)
    assert network.classifier.weight.abs().max() > 10 * bound  # U(±1/√2), whatever the number of features
    load_pretrained(network, str(path), reference)
    assert 0.9 * bound < network.classifier.weight.abs().max() <= bound
    assert network.classifier.bias.abs().max() <= bound


def test_head_is_loaded_completely_or_not_at_all(tmp_path: Path) -> None:
    save_file(values(Marked(3)), tmp_path / "m.safetensors")
    loaded = load_pretrained(Marked(4), str(tmp_path / "m.safetensors"), "Marked")
    assert loaded.fresh == ("top.0.weight", "top.0.bias", "top.2.weight", "top.2.bias")
    assert load_pretrained(Marked(3), str(tmp_path / "m.safetensors"), "Marked").fresh == ()


def test_auxiliary_classifiers_are_fresh_or_left_out(tmp_path: Path) -> None:
    path = str(tmp_path / "g.safetensors")
    save_file(values(seeded("googlenet", 1, options={"aux": True}, num_classes=6)), path)
    network = build("googlenet", {"aux": True}, num_classes=7)
    inside = [name for name, _ in network.named_parameters() if name.startswith("aux_4a.")]
    last = inside[-1].rpartition(".")[0]  # aux_4a.N, the second of two layers
    fresh = load_pretrained(network, path, "googlenet").fresh
    heads = ("head.3", last, last.replace("4a", "4d"))
    assert fresh == tuple(f"{head}.{what}" for head in heads for what in ("weight", "bias"))
    assert load_pretrained(build("googlenet", num_classes=6), path, "googlenet").fresh == ()


def test_batch_counters_may_be_missing(tmp_path: Path) -> None:
    wanted = {n: t for n, t in values(seeded("resnet8", 1)).items() if not n.endswith("num_batches_tracked")}
    save_file(wanted, tmp_path / "w.safetensors")
    loaded = load_pretrained(build("resnet8"), str(tmp_path / "w.safetensors"), "resnet8")
    assert loaded.num_loaded == len(wanted)


def test_network_with_a_part_called_module(tmp_path: Path) -> None:
    def wrapped(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.ModuleDict({"module": nn.Linear(2, 3)})

    save_file(wrapped(1).state_dict(), tmp_path / "w.safetensors")
    network = wrapped(2)
    load_pretrained(network, str(tmp_path / "w.safetensors"), "mine")
    assert equal(values(network), values(wrapped(1)))


def change(tensors: Tensors, what: str) -> Tensors:
    if what == "missing":
        return {n: t for n, t in tensors.items() if not n.startswith("bn1.")}
    if what == "unexpected":
        return tensors | {"extra": torch.zeros(1)}
    if what == "shape":
        return tensors | {"conv1.weight": torch.zeros(16, 1, 3, 3)}
    return {n: t for n, t in tensors.items() if not n.startswith("linear.")}


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("missing", r"missing: bn1\.weight, bn1\.bias, bn1\.running_mean and 1 more"),
        ("unexpected", "unexpected: extra$"),
        ("shape", r"of another shape: conv1\.weight \(16, 1, 3, 3\) for \(16, 3, 3, 3\)"),
        ("head", r"missing: linear\.weight, linear\.bias"),
    ],
)
def test_weights_of_another_network(what: str, message: str, tmp_path: Path) -> None:
    save_file(change(values(seeded("resnet8", 1)), what), tmp_path / "w.safetensors")
    network = seeded("resnet8", 2)
    initial = values(network)
    with pytest.raises(FileFormatError) as caught:
        load_pretrained(network, str(tmp_path / "w.safetensors"), "resnet8")
    assert "not the weights of this network CifarResNet" in caught.value.message
    assert re.search(message, caught.value.message), caught.value.message
    assert equal(values(network), initial)


def test_headless_network_must_match_completely(tmp_path: Path) -> None:
    path = str(tmp_path / "s.safetensors")
    save_file(values(seeded("torchvision:squeezenet1_1", 1, num_classes=5)), path)
    network = build("torchvision:squeezenet1_1", num_classes=5)
    assert load_pretrained(network, path, "torchvision:squeezenet1_1").fresh == ()
    with pytest.raises(FileFormatError, match=r"of another shape: classifier\.1\.weight"):
        load_pretrained(build("torchvision:squeezenet1_1", num_classes=6), path, "torchvision:squeezenet1_1")


class Executed:
    """Object that creates a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_loading_executes_no_code(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    torch.save({"state_dict": {}, "extra": Executed(mark)}, tmp_path / "w.pth")
    with pytest.raises(FileFormatError, match="cannot be read as tensors alone"):
        load_pretrained(build("resnet8"), str(tmp_path / "w.pth"), "resnet8")
    assert not mark.exists()
    pickle.loads(pickle.dumps(Executed(mark)))  # pickle executes it
    assert mark.exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("w.safetensors", b"no", "not a readable safetensors file"),
        ("w.pth", b"no", "cannot be read as tensors alone"),
        ("w.h5", b"no", r"cannot tell the format of weights from \.h5"),
        ("w", b"no", "from a name without suffix"),
        ("w.pt", [torch.zeros(1)], "holds a list, not a state dict"),
        ("w.pt", {}, "is empty"),
        ("w.pt", {"state_dict": {"a": torch.zeros(1), "b": 3}}, "not tensors: b"),
    ],
)
def test_file_without_weights(name: str, content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(FileFormatError, match=message):
        load_pretrained(build("resnet8"), str(path), "resnet8")


def test_missing_source(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there are no weights at .*nowhere"):
        load_pretrained(build("resnet8"), str(tmp_path / "nowhere"), "resnet8")


# -- runs -------------------------------------------------------------------------------------------


def checkpoint(run: Path, step: int, model: Tensors, mean: Tensors | None = None) -> Path:
    """Write a checkpoint in the format of a run."""
    folder = run / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    files = {"model": model, "optimizer": {"0.momentum_buffer": torch.ones(2)}} | ({"ema": mean} if mean else {})
    for name, tensors in files.items():
        save_file(tensors, folder / f"{name}.safetensors")
    sums = {f"{name}.safetensors": sha256(folder / f"{name}.safetensors") for name in files}
    state = {"format": "chronograd-checkpoint", "version": 1, "sha256": sums}
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def test_run_directory(tmp_path: Path) -> None:
    states = [values(seeded("resnet8", seed)) for seed in range(3)]
    first, second = checkpoint(tmp_path, 99_999_999, states[0]), checkpoint(tmp_path, 100_000_000, states[1])
    network = build("resnet8")
    loaded = load_pretrained(network, str(tmp_path), "resnet8")
    assert equal(values(network), states[1])
    assert loaded.source == f"{tmp_path}, after step 100000000"

    for damaged in ("optimizer.safetensors", "model.safetensors"):  # either file makes the checkpoint invalid
        raw = (second / damaged).read_bytes()
        (second / damaged).write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
        loaded = load_pretrained(network, str(tmp_path), "resnet8")
        assert equal(values(network), states[0])
        assert loaded.source == f"{tmp_path}, after step 99999999"
        (second / damaged).write_bytes(raw)

    (second / "state.json").unlink()
    (first / "state.json").write_text('{"format": "chronograd-checkpoint", "sha256": {}}')
    with pytest.raises(FileFormatError, match=r"every checkpoint of .* is damaged; the newest: .*FileNotFoundError"):
        load_pretrained(network, str(tmp_path), "resnet8")


def test_running_mean_is_preferred(tmp_path: Path) -> None:
    network = seeded("resnet8", 1)
    averaged = AveragedModel(network, use_buffers=True)
    averaged.update_parameters(network)
    with torch.no_grad():
        network.get_parameter("linear.bias").fill_(1.0)
        network.get_buffer("bn1.running_mean").fill_(4.0)
    was = averaged.module.get_parameter("linear.bias").clone()
    averaged.update_parameters(network)
    checkpoint(tmp_path, 7, values(network), values(averaged))
    other = build("resnet8")
    loaded = load_pretrained(other, str(tmp_path), "resnet8")
    assert loaded.source == f"{tmp_path}, running mean of the weights after step 7"
    assert equal(values(other), values(averaged.module))
    torch.testing.assert_close(other.get_parameter("linear.bias"), (was + 1) / 2)  # the mean of two
    torch.testing.assert_close(other.get_buffer("bn1.running_mean"), torch.full((16,), 2.0))


def test_running_mean_of_parameters_only(tmp_path: Path) -> None:
    """Buffers then come from the weights."""
    model, mean = values(seeded("resnet8", 1)), dict(seeded("resnet8", 2).named_parameters())
    model["bn1.running_mean"] = torch.arange(16.0)
    checkpoint(tmp_path, 7, model, {name: p.detach() for name, p in mean.items()})
    network = build("resnet8")
    load_pretrained(network, str(tmp_path), "resnet8")
    after = values(network)
    assert all(torch.equal(after[name], mean[name]) for name in mean)
    assert torch.equal(after["bn1.running_mean"], torch.arange(16.0))


def test_folder_without_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / ".step-00000001.5").mkdir(parents=True)
    with pytest.raises(FileFormatError, match="has no checkpoint"):
        load_pretrained(build("resnet8"), str(tmp_path), "resnet8")


# -- torchvision ------------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache for torchvision's weights, without network access."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    for variable in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")  # the port `discard`, which refuses connections
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


def test_torchvision(hub: Path) -> None:
    wanted = values(seeded("torchvision:resnet18", 1))
    torch.save(wanted, hub / "resnet18-f37072fd.pth")
    network = seeded("torchvision:resnet18", 2)
    loaded = load_pretrained(network, "torchvision", "torchvision:resnet18")
    assert equal(values(network), wanted)
    assert loaded.source == "torchvision ResNet18_Weights.IMAGENET1K_V1"
    ten = load_pretrained(build("torchvision:resnet18", num_classes=10), "torchvision", "torchvision:resnet18")
    assert (ten.fresh, ten.num_loaded) == (("fc.weight", "fc.bias"), len(wanted) - 2)


def test_our_network_with_torchvision_weights(hub: Path) -> None:
    wanted = values(seeded("torchvision:efficientnet_b0", 1))
    torch.save(wanted, hub / "efficientnet_b0_rwightman-7f5810bc.pth")
    network = build("efficientnet-b0-keras")  # 10 classes
    loaded = load_pretrained(network, "torchvision", "efficientnet-b0-keras")
    assert loaded.fresh == ("classifier.1.weight", "classifier.1.bias")
    after = values(network)
    assert all(torch.equal(after[n], wanted[n]) for n in wanted if n not in loaded.fresh)


def test_twins_match_torchvision_names_and_shapes() -> None:
    from chronograd.models.weights import TORCHVISION_TWINS

    for ours, theirs in TORCHVISION_TWINS.items():
        classes = {"ssdlite-mobilenet-v3": 90}.get(ours, 1000)  # the classes of its weights
        a, b = build(ours, num_classes=classes, device="meta"), build(f"torchvision:{theirs}", device="meta")
        shapes = [{n: t.shape for n, t in network.state_dict().items()} for network in (a, b)]
        assert shapes[0] == shapes[1], ours


def test_tensorflow_trained_networks_convert_their_input(hub: Path) -> None:
    network: Any = build("torchvision:googlenet")
    assert not network.transform_input
    torch.save(network.state_dict(), hub / "googlenet-1378be20.pth")
    assert load_pretrained(network, "torchvision", "torchvision:googlenet").fresh == ()
    assert network.transform_input


def test_old_names_of_densenet(hub: Path) -> None:
    wanted = values(seeded("torchvision:densenet121", 1))
    old = {}
    for name, tensor in wanted.items():
        for kind in ("norm", "conv"):
            for number in "12":
                if "denselayer" in name:
                    name = name.replace(f".{kind}{number}.", f".{kind}.{number}.")
        old[name] = tensor
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    torch.save(old, hub / "densenet121-a639ec97.pth")
    network = seeded("torchvision:densenet121", 2)
    load_pretrained(network, "torchvision", "torchvision:densenet121")
    assert equal(values(network), wanted)


def test_missing_network_names_the_file(hub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = build("torchvision:squeezenet1_1")
    with pytest.raises(RunError) as caught:
        load_pretrained(network, "torchvision", "torchvision:squeezenet1_1")
    assert str(hub / "squeezenet1_1-b8a52dc0.pth") in caught.value.message
    assert "https://download.pytorch.org/models/squeezenet1_1-b8a52dc0.pth" in caught.value.message
    assert "put squeezenet1_1-b8a52dc0.pth there" in caught.value.hint
    assert capsys.readouterr().out == ""  # standard output is reserved for --json
    (hub / "squeezenet1_1-b8a52dc0.pth").write_bytes(b"cut off")
    with pytest.raises(FileFormatError, match="cannot be read"):
        load_pretrained(network, "torchvision", "torchvision:squeezenet1_1")


@pytest.mark.parametrize("reference", ["resnet20", "resnet50-keras", "timm:resnet18", "mine:make"])
def test_network_without_torchvision_weights(reference: str) -> None:
    with pytest.raises(InputError, match=f"torchvision has no weights for network {reference}"):
        load_pretrained(nn.Linear(1, 1), "torchvision", reference)


# -- timm -------------------------------------------------------------------------------------------


@pytest.fixture
def hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache for timm's weights, without network access."""
    constants = pytest.importorskip("huggingface_hub").constants
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def into_cache(cache: Path, repository: str, tensors: Tensors) -> Path:
    folder = cache / f"models--{repository.replace('/', '--')}"
    snapshot = folder / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(snapshot.name)
    save_file(tensors, snapshot / "model.safetensors")
    return snapshot / "model.safetensors"


def test_timm(hugging_face: Path) -> None:
    wanted = values(seeded("timm:resnet18", 1))
    path = into_cache(hugging_face, "timm/resnet18.a1_in1k", wanted)
    network = seeded("timm:resnet18", 2)
    before = torch.random.get_rng_state()
    loaded = load_pretrained(network, "timm", "timm:resnet18")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert equal(values(network), wanted)
    assert loaded.source == "timm resnet18.a1_in1k"
    # The library sums three channels into one.
    grey = build("timm:resnet18", input_shape=(1, 64, 64), num_classes=10)
    loaded = load_pretrained(grey, "timm", "timm:resnet18")
    assert loaded.fresh == ("fc.weight", "fc.bias")
    torch.testing.assert_close(values(grey)["conv1.weight"], wanted["conv1.weight"].sum(1, keepdim=True))
    path.write_bytes(b"cut off")
    with pytest.raises(FileFormatError, match="cannot be read"):
        load_pretrained(network, "timm", "timm:resnet18")


def test_timm_resizes_position_embeddings(hugging_face: Path) -> None:
    wanted = values(seeded("timm:vit_tiny_patch16_224", 1))
    wanted["pos_embed"] = torch.full_like(wanted["pos_embed"], 0.25)  # unchanged by resizing
    into_cache(hugging_face, "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", wanted)
    network = build("timm:vit_tiny_patch16_224", input_shape=(3, 64, 64))
    loaded = load_pretrained(network, "timm", "timm:vit_tiny_patch16_224")
    assert loaded.fresh == ()
    positions = values(network)["pos_embed"]
    assert positions.shape == (1, 1 + 4 * 4, 192)
    torch.testing.assert_close(positions, torch.full_like(positions, 0.25))


def test_timm_without_network_access(hugging_face: Path) -> None:
    with pytest.raises(RunError, match=r"models--timm--resnet18\.a1_in1k, and downloading them failed"):
        load_pretrained(build("timm:resnet18"), "timm", "timm:resnet18")


def test_network_without_timm_weights() -> None:
    with pytest.raises(InputError, match="timm has no weights for network timm:resnetv2_152d"):
        load_pretrained(nn.Linear(1, 1), "timm", "timm:resnetv2_152d")
    with pytest.raises(InputError, match="timm has no weights for network resnet20"):
        load_pretrained(nn.Linear(1, 1), "timm", "resnet20")


# -- published weights ------------------------------------------------------------------------------

published = pytest.mark.skipif("CHRONOGRAD_WEIGHTS" not in os.environ, reason="CHRONOGRAD_WEIGHTS names no folder")


def published_file(pattern: str) -> Path:
    found = sorted(Path(os.environ["CHRONOGRAD_WEIGHTS"]).glob(pattern))
    if not found:
        pytest.skip(f"CHRONOGRAD_WEIGHTS has no {pattern}")
    return found[0]


@published
@pytest.mark.parametrize("depth", [20, 32, 44, 56])
def test_published_cifar_weights_load(depth: int) -> None:
    path = published_file(f"resnet{depth}-*.th")
    network = build(f"resnet{depth}")
    loaded = load_pretrained(network, str(path), f"resnet{depth}")
    # the file name ends with the first digits of its sha256
    assert loaded.source.split(";")[0] == f"{path} (sha256 {sha256(path)[:12]})"
    assert path.stem.rpartition("-")[2] == sha256(path)[:8]
    counters = [name for name in network.state_dict() if name.endswith("num_batches_tracked")]
    assert (loaded.num_loaded, loaded.fresh) == (len(network.state_dict()) - len(counters), ())


@published
@pytest.mark.data
def test_published_cifar_accuracy() -> None:
    """All 10,000 test images give the published 91.73, 92.63, 93.10 and 93.39 % for 20, 32, 44 and 56 layers."""
    batch = pickle.loads((data_folder() / "cifar-10-batches-py" / "test_batch").read_bytes(), encoding="bytes")
    images = torch.from_numpy(batch[b"data"][:1000]).reshape(-1, 3, 32, 32).float() / 255
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    network = build("resnet20").eval()
    load_pretrained(network, str(published_file("resnet20-*.th")), "resnet20")
    with torch.inference_mode():
        logits = torch.cat([network((part - mean) / std) for part in images.split(250)])
    correct = int((logits.argmax(1) == torch.tensor(batch[b"labels"][:1000])).sum())
    assert abs(correct - 915) <= 1  # one image may change with another processor's rounding


def variances_before_norms(network: nn.Module, images_NCHW: Tensor) -> Tensors:
    """Return the variance of each channel at the input of a batch norm, by path."""
    seen: Tensors = {}
    for path, module in network.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_pre_hook(lambda _, x, path=path: seen.update({path: x[0].var((0, 2, 3))}))
    with torch.inference_mode():
        network.eval()(images_NCHW)
    return seen


@published
def test_published_mobilenet_was_trained_with_relu() -> None:
    """Nine channels had no variance after the activation in training. Ours agree with ReLU but not with a leaky ReLU."""
    path = str(published_file("mobilenetV1X0.25_pretrain.tar"))
    network, leaky = build("mobilenet-v1-0.25"), build("mobilenet-v1-0.25", {"slope": 0.1})
    for each in (network, leaky):
        loaded = load_pretrained(each, path, "mobilenet-v1-0.25")
        assert (loaded.num_loaded, loaded.fresh) == (len(network.state_dict()), ())
    stored = {n.removesuffix(".running_var"): t for n, t in network.state_dict().items() if n.endswith(".running_var")}
    dead = {name: variance < 1e-40 for name, variance in stored.items()}
    assert sum(int(channels.sum()) for channels in dead.values()) == 9
    torch.manual_seed(0)
    images = torch.randn(4, 3, 64, 64)
    ours, others = variances_before_norms(network, images), variances_before_norms(leaky, images)
    assert ours.keys() == dead.keys()
    assert all(int(ours[name][channels].count_nonzero()) == 0 for name, channels in dead.items())
    assert all(int((others[name][channels] == 0).sum()) == 0 for name, channels in dead.items())

"""The contract of the zoo for all registered networks, and other ways to name a network."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from chronograd.errors import InputError, MissingExtraError, NotFoundError
from chronograd.models import names, registry
from chronograd.models.registry import build, spec
from chronograd.models.without_init import SkipInitialisation, on_meta

SMALL = 2_000_000  # networks with fewer parameters are also built on the CPU
DTYPES = {"float32": torch.float32, "int64": torch.int64}


@cache
def on_meta_device(name: str) -> nn.Module:
    """Build a network once for all tests of the contract."""
    return build(name, device="meta").eval()


def params(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def statistics(network: nn.Module) -> int:
    return sum(b.numel() for name, b in network.named_buffers() if "running" in name)


def sample(name: str, batch: int = 2, device: str = "meta") -> torch.Tensor:
    expected = spec(name)
    return torch.zeros(batch, *expected.required_input_shape(), dtype=DTYPES[expected.input_dtype], device=device)


@pytest.mark.parametrize("name", sorted(names.zoo()))
class TestContract:
    def test_params_match_the_publication(self, name: str) -> None:
        entry = spec(name)
        assert entry.params or entry.macs, "a network of the zoo states at least one figure"
        if entry.params is not None:
            assert params(on_meta_device(name)) == entry.params
        assert entry.paper

    def test_macs_match_the_publication(self, name: str) -> None:
        macs = spec(name).macs
        if macs is None:
            pytest.skip("nobody has printed them")
        network = on_meta_device(name)
        with FlopCounterMode(display=False) as counter:
            network(sample(name, batch=1))
        assert counter.get_total_flops() == 2 * macs

    def test_forward_on_meta(self, name: str) -> None:
        network = on_meta_device(name)
        tensors = [*network.parameters(), *network.buffers()]
        assert {t.device.type for t in tensors} == {"meta"}
        out = network(sample(name))
        expected = spec(name)
        if isinstance(out, tuple):  # a detector: scores of classes and background at each prior, and boxes
            scores, boxes = out
            assert scores.device.type == boxes.device.type == "meta"
            assert scores.shape == (2, boxes.shape[1], (expected.num_classes or 0) + 1)
            assert boxes.shape[2] == 4
            return
        assert out.device.type == "meta"
        if expected.input_dtype == "int64":
            assert out.shape == (2, *expected.required_input_shape(), expected.num_classes)
        elif expected.num_classes is not None:
            assert out.shape == (2, expected.num_classes)

    def test_forward_on_cpu_is_finite(self, name: str) -> None:
        if params(on_meta_device(name)) > SMALL:
            pytest.skip("large")
        with torch.no_grad():
            assert build(name)(sample(name, device="cpu")).isfinite().all()

    def test_classes_and_channels_of_the_data(self, name: str) -> None:
        expected = spec(name)
        shape, dtype = expected.required_input_shape(), DTYPES[expected.input_dtype]
        if len(shape) == 3 and name not in ("efficientnet-b0-keras", "ssdlite-mobilenet-v3"):  # colour images
            shape = (1, *shape[1:])
        classes = None if expected.num_classes is None else 7
        network = build(name, input_shape=shape, num_classes=classes, device="meta").eval()
        out = network(torch.zeros(2, *shape, dtype=dtype, device="meta"))
        if isinstance(out, tuple):
            assert out[0].shape[-1] == 7 + 1
        elif classes is not None:
            assert out.shape[-1] == 7


# -- further published figures ------------------------------------------------------------------------


def test_googlenet_with_auxiliary_classifiers() -> None:
    network = build("googlenet", {"aux": True}, device="meta")
    assert params(network) == 13_378_280
    outputs = network(sample("googlenet"))
    assert [out.shape for out in outputs] == [(2, 1000)] * 3
    assert network.eval()(sample("googlenet")).shape == (2, 1000)


@pytest.mark.parametrize(
    ("name", "stats", "extra", "keras"),
    [
        ("efficientnet-b0-keras", 42_016, 7, 4_062_381),
        ("resnet50-keras", 53_120, 26_560, 23_628_902),
        ("small-cnn", 0, 0, 1_626_442),
    ],
)
def test_keras_parameter_counts(name: str, stats: int, extra: int, keras: int) -> None:
    network = build(name, device="meta")
    keras_extra = spec(name).keras_extra
    extras = sum(keras_extra(network).values()) if keras_extra else 0
    assert (statistics(network), extras) == (stats, extra)
    assert params(network) + stats + extras == keras


@pytest.mark.parametrize(("name", "depth"), [("inception-naive", 672), ("inception-reduced", 480)])
def test_depth_of_inception_modules(name: str, depth: int) -> None:
    network = build(name, device="meta")
    assert network(sample(name)).shape == (2, depth, 32, 32)
    # 28x28 instead of 32x32
    expected = {"inception-naive": 854_196_224, "inception-reduced": 271_351_808}[name]
    with FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, 256, 28, 28, device="meta"))
    assert counter.get_total_flops() == 2 * expected


def test_gradients_reach_every_parameter() -> None:
    for name, options in (
        ("resnet20", {}),
        ("small-cnn", {}),
        ("llama-7b", TINY_LLAMA),
        ("gpt2-small", {"layers": 1, "width": 8, "heads": 2, "vocab": 11, "sequence": 6}),
    ):
        network = build(name, options)
        shape = spec(name, options).required_input_shape()
        network(torch.zeros(2, *shape, dtype=DTYPES[spec(name).input_dtype])).sum().backward()
        assert all(p.grad is not None for p in network.parameters()), name


# -- residual networks ------------------------------------------------------------------------------


def test_cifar_resnet_on_small_grey_images() -> None:
    network = build("resnet20", input_shape=(1, 8, 8))
    assert network(torch.randn(2, 1, 8, 8)).shape == (2, 10)


def test_option_a_shortcut_subsamples_and_pads_with_zeros() -> None:
    from chronograd.models.resnet import Subsample

    x = torch.arange(2 * 4 * 4, dtype=torch.float32).reshape(1, 2, 4, 4)
    y = Subsample(2, 4, 2)(x)
    assert y.shape == (1, 4, 2, 2)
    assert torch.equal(y[:, 1:3], x[:, :, ::2, ::2])
    assert y[:, [0, 3]].abs().sum() == 0


@pytest.mark.parametrize("depth", [8, 14, 20, 32])
def test_params_of_cifar_resnets(depth: int) -> None:
    n = (depth - 2) // 6
    # each convolution and its batch norm's two numbers per channel
    stem, head = 27 * 16 + 2 * 16, 64 * 10 + 10
    same = [n * (2 * 9 * w * w + 4 * w) for w in (16, 32, 64)]
    halved = [9 * (w // 2) * w - 9 * w * w for w in (32, 64)]  # the first convolution of a stage has half the inputs
    assert params(build(f"resnet{depth}", device="meta")) == stem + sum(same) + sum(halved) + head


def test_resnet9_scales_its_logits() -> None:
    network: Any = build("resnet9", input_shape=(1, 8, 8), num_classes=3).eval()
    x = torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        before = network(x)
        network.linear.weight.fill_(1.0)
        features: list[torch.Tensor] = []
        network.linear.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
        after = network(x)
    assert before.shape == (2, 3)
    torch.testing.assert_close(after, features[0].sum(1, keepdim=True).expand(2, 3) / 8)


def test_lenet_minimum_image_size() -> None:
    for side in (12, 13, 15, 28, 32):
        network = build("lenet5", input_shape=(3, side, side), num_classes=4)
        assert network(torch.zeros(2, 3, side, side)).shape == (2, 4)
    with pytest.raises(InputError, match="11 x 11 are too small; the minimum is 12 x 12"):
        build("lenet5", input_shape=(1, 11, 11))


# -- MobileNet --------------------------------------------------------------------------------------


def separable_weights(width: float, least: int = 8) -> int:
    """Return the weights of table 1's convolutions, their batch norms, and the head of 10 classes."""
    widths = [max(int(w * width), least) for w in (32, 64, *[128] * 2, *[256] * 2, *[512] * 6, 1024, 1024)]
    total = 27 * widths[0] + 2 * widths[0] + widths[-1] * 10 + 10
    for before, after in pairwise(widths):
        total += 9 * before + 2 * before + before * after + 2 * after
    return total


@pytest.mark.parametrize("width", [1.0, 0.75, 0.5, 0.25, 0.125])
def test_width_multiplier_of_mobilenet(width: float) -> None:
    assert params(build("mobilenet-v1", {"width": width}, num_classes=10, device="meta")) == separable_weights(width)


def test_mobilenet_quarter_is_the_scaled_network() -> None:
    a, b = build("mobilenet-v1-0.25", device="meta"), build("mobilenet-v1", {"width": 0.25}, device="meta")
    assert {n: t.shape for n, t in a.state_dict().items()} == {n: t.shape for n, t in b.state_dict().items()}
    with pytest.raises(InputError, match="width multiplier is 0, it must be above 0"):
        build("mobilenet-v1", {"width": 0})


def test_slope_of_mobilenet() -> None:
    kinds = {slope: {type(m) for m in build("mobilenet-v1-0.25", {"slope": slope}).modules()} for slope in (0.0, 0.1)}
    assert nn.LeakyReLU not in kinds[0.0]
    assert nn.ReLU not in kinds[0.1]


# -- published weights ------------------------------------------------------------------------------


@pytest.mark.skipif("CHRONOGRAD_WEIGHTS" not in os.environ, reason="CHRONOGRAD_WEIGHTS names no folder")
@pytest.mark.parametrize("depth", [20, 32, 44, 56])
def test_published_cifar_weights_fit(depth: int) -> None:
    (path,) = Path(os.environ["CHRONOGRAD_WEIGHTS"]).glob(f"resnet{depth}-*.th")
    state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    network = build(f"resnet{depth}")
    ours = {name for name in network.state_dict() if not name.endswith("num_batches_tracked")}
    assert ours == set(state)
    network.load_state_dict(state, strict=True)


# -- transformers -----------------------------------------------------------------------------------

TINY_LLAMA = {"layers": 2, "width": 16, "heads": 4, "kv_heads": 2, "ffn": 24, "vocab": 11, "sequence": 8}


@pytest.mark.parametrize("name", ["llama-7b", "gpt2-small"])
def test_decoder_does_not_see_the_future(name: str) -> None:
    torch.manual_seed(0)
    options = TINY_LLAMA if name == "llama-7b" else {"layers": 2, "width": 16, "heads": 4, "vocab": 11, "sequence": 8}
    network = build(name, options).eval()
    tokens = torch.randint(0, 11, (1, 8))
    changed = tokens.clone()
    changed[0, 5] = (tokens[0, 5] + 1) % 11
    with torch.no_grad():
        a, b = network(tokens), network(changed)
    torch.testing.assert_close(a[:, :5], b[:, :5])
    assert not torch.allclose(a[:, 5:], b[:, 5:])


def test_decoder_position_limit() -> None:
    with pytest.raises(ValueError, match="9 positions, the network has 8"):
        build("llama-7b", TINY_LLAMA)(torch.zeros(1, 9, dtype=torch.int64))


def test_rotary_scores_depend_on_the_distance_only() -> None:
    from chronograd.models.transformer import rotate, rotation

    cos, sin = rotation(10, 8)
    q, k = torch.randn(8), torch.randn(8)
    scores = rotate(q.expand(10, 8), cos, sin) @ rotate(k.expand(10, 8), cos, sin).T
    torch.testing.assert_close(scores[0, 3], scores[5, 8])
    torch.testing.assert_close(scores[0, 0], q @ k)


def test_grouped_query_attention_saves_parameters() -> None:
    # 8B-like: per layer 2 * D * (heads - kv_heads) * E weights less
    full, grouped = (params(build("llama-7b", {"kv_heads": kv}, device="meta")) for kv in (32, 8))
    assert full - grouped == 32 * 2 * 4096 * (32 - 8) * 128


def test_tied_output_stays_tied_on_meta() -> None:
    network: Any = build("gpt2-small", device="meta")
    assert network.head.weight is network.tokens.weight


# -- references -------------------------------------------------------------------------------------


def test_names_without_torch_match_registry_and_libraries() -> None:
    assert set(names.zoo()) == set(registry._zoo())
    for name, row in names.zoo().items():
        own = spec(name)
        assert (row.shape, row.classes, row.paper) == (own.input_shape, own.num_classes, own.paper)
    assert names.of_library("torchvision") == set(torchvision.models.list_models())
    assert names.of_library("timm") >= set(timm.list_models(include_tags=False))
    code = (
        "import sys; from chronograd.models import names; names.check('timm:resnet50'); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_near_names() -> None:
    with pytest.raises(NotFoundError, match=r"did you mean .*resnet20"):
        build("resnet2")
    with pytest.raises(NotFoundError, match=r"did you mean .*resnext50_32x4d"):
        build("torchvision:resnext50_32x4")
    with pytest.raises(NotFoundError, match=r"did you mean .*regnety_040"):
        spec("timm:regnety_40")
    with pytest.raises(NotFoundError, match=r"unknown timm network 'regnety_040\.nope'"):
        build("timm:regnety_040.nope")


def test_torchvision_is_preferred_over_timm() -> None:
    assert type(build("mobilenet_v2", device="meta")).__module__.startswith("torchvision.")
    with pytest.raises(NotFoundError, match="did you mean"):
        build("mobilenet_v9")


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_missing_library(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    extra = {"torchvision": "vision", "timm": "timm"}[library]
    with pytest.raises(MissingExtraError, match=rf"\[{extra}\]"):
        build(f"{library}:resnet18", device="meta")


MINE = """
import torch
from torch import nn

def make(width=4, num_classes=3):
    return nn.Linear(width, num_classes)

def image_net(in_channels=3, image_size=16):
    return nn.Linear(in_channels * image_size**2, 2)

image_net.input_shape = (3, 16, 16)
network = nn.Linear(1, 1)

def number():
    return 3

def broken():
    raise RuntimeError("no\\nluck")

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.table = torch.arange(3)
        torch.rand(2).tolist()  # cannot be done on meta
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Write a module to the current directory, which is not on `sys.path`."""
    (tmp_path / "mine_of_the_test.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "mine_of_the_test"
    sys.modules.pop("mine_of_the_test", None)


def test_user_function(mine: str) -> None:
    before = list(sys.path)
    network: Any = build(f"{mine}:make", {"width": 5}, num_classes=7, input_shape=(1, 8, 8))
    assert (network.in_features, network.out_features) == (5, 7)
    network = build(f"{mine}:image_net", input_shape=(1, 8, 8), num_classes=7)
    assert network.in_features == 64
    assert spec(f"{mine}:image_net").input_shape == (3, 16, 16)
    assert sys.path == [*before, os.getcwd()]


def test_user_function_without_input_shape(mine: str) -> None:
    assert spec(f"{mine}:make").input_shape is None
    with pytest.raises(InputError, match="does not define the shape"):
        spec(f"{mine}:make").required_input_shape()


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("nothing", "has no nothing"),
        ("network", "is a Linear, not a function"),
        ("number", "returned a int, not a torch.nn.Module"),
        ("broken", "cannot be built: RuntimeError: no luck"),
    ],
)
def test_user_function_that_returns_no_network(mine: str, attribute: str, message: str) -> None:
    for device in ("cpu", "meta"):
        with pytest.raises(InputError, match=message):
            build(f"{mine}:{attribute}", device=device)


@pytest.mark.parametrize("reference", ["no_such_module_here:f", ":f", "module:", "os.path:join"])
def test_invalid_reference(reference: str) -> None:
    with pytest.raises(InputError):
        build(reference)


def test_invalid_options_and_shapes() -> None:
    with pytest.raises(InputError, match="takes no option 'depth'"):
        build("resnet20", {"depth": 3})
    with pytest.raises(InputError, match="too small"):
        build("alexnet", input_shape=(3, 66, 66))
    assert build("alexnet", input_shape=(3, 67, 67), device="meta")
    with pytest.raises(InputError, match="takes square images"):
        build("vgg16", input_shape=(3, 224, 192))
    with pytest.raises(InputError, match="takes 3 channels, the input has 1"):
        build("torchvision:resnet18", input_shape=(1, 28, 28))
    with pytest.raises(InputError, match="takes 3 channels, the input has 1"):
        build("efficientnet-b0-keras", input_shape=(1, 28, 28))
    with pytest.raises(InputError, match="takes tokens"):
        build("llama-7b", input_shape=(3, 32, 32), device="meta")


# -- torchvision and timm ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "shape", "classes"),
    [
        ("torchvision:inception_v3", (3, 299, 299), 1000),
        ("torchvision:efficientnet_b3", (3, 300, 300), 1000),
        ("torchvision:resnet50", (3, 224, 224), 1000),
        ("torchvision:vit_h_14", (3, 224, 224), 1000),
        ("torchvision:swin_v2_t", (3, 256, 256), 1000),
        ("torchvision:fcn_resnet50", (3, 520, 520), 21),
        ("torchvision:ssd300_vgg16", (3, 300, 300), 91),
        ("torchvision:fasterrcnn_resnet50_fpn", (3, 800, 800), 91),
        ("torchvision:r3d_18", (3, 16, 112, 112), 400),
        ("timm:vit_small_patch16_384", (3, 384, 384), 1000),
        ("timm:inception_v3", (3, 299, 299), 1000),
    ],
)
def test_input_shape_of_library_networks(reference: str, shape: tuple[int, ...], classes: int) -> None:
    assert (spec(reference).input_shape, spec(reference).num_classes) == (shape, classes)


def test_options_change_the_spec() -> None:
    assert spec("timm:vit_small_patch16_224", {"img_size": 96, "in_chans": 1}).input_shape == (1, 96, 96)
    assert spec("llama-7b", {"sequence": 128, "vocab": 50}).input_shape == (128,)
    assert spec("llama-7b", {"sequence": 128, "vocab": 50}).num_classes == 50
    assert (spec("resnet20").params, spec("resnet20", {"num_classes": 5}).params) == (269_722, None)


@pytest.mark.parametrize(
    "reference",
    [
        "torchvision:resnet18",
        "torchvision:vit_b_16",
        "torchvision:maxvit_t",
        "timm:resnet18",
        "timm:vit_tiny_patch16_224",
    ],
)
def test_libraries_use_shape_and_classes_of_the_data(reference: str) -> None:
    side = 224 if "maxvit" in reference else 32
    network = build(reference, input_shape=(3, side, side), num_classes=10, device="meta").eval()
    assert network(torch.zeros(2, 3, side, side, device="meta")).shape == (2, 10)


def test_timm_accepts_any_number_of_channels() -> None:
    network = build("timm:resnet18", input_shape=(1, 28, 28), num_classes=10, device="meta").eval()
    assert network(torch.zeros(2, 1, 28, 28, device="meta")).shape == (2, 10)


def test_detectors_are_built_without_downloads() -> None:
    # torchvision's table, plus weights and biases of batch norm, which are frozen only with weights
    assert params(build("torchvision:fasterrcnn_resnet50_fpn", device="meta")) == 41_755_286 + 53_120


# -- without memory ---------------------------------------------------------------------------------


def test_fallback_without_initialisation() -> None:
    import torchvision

    with pytest.raises(NotImplementedError), torch.device("meta"):  # it reads its widths from a tensor
        torchvision.models.regnet_y_16gf()
    began = time.perf_counter()
    network = build("torchvision:regnet_y_16gf", device="meta")
    assert time.perf_counter() - began < 5
    assert {t.device.type for t in (*network.parameters(), *network.buffers())} == {"meta"}
    assert params(network) == 83_590_140  # torchvision's table


def test_timm_regnet_on_meta() -> None:
    """Older versions of timm need the fallback here."""
    assert params(build("timm:regnety_040", device="meta")) == 20_646_656  # timm's table: 20.65 M


def test_fallback_preserves_ties_and_random_state(mine: str) -> None:
    spec(f"{mine}:Tied")  # imports the module, which draws initial weights
    state = torch.random.get_rng_state()
    network: Any = build(f"{mine}:Tied", device="meta")
    assert network.b.weight is network.a.weight
    assert network.table.is_meta
    assert torch.equal(torch.random.get_rng_state(), state)
    assert params(network) == 9 + 3 + 3


def test_initialisation_is_skipped_and_restored() -> None:
    tensor = torch.full((4, 4), 7.0)
    inits = (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_normal_, nn.init.kaiming_uniform_)
    with SkipInitialisation():
        for init in (*inits, nn.init.xavier_normal_, nn.init.xavier_uniform_):
            init(tensor)
        tensor.normal_().uniform_().random_().erfinv_()
        assert torch.equal(tensor, torch.full((4, 4), 7.0))
        nn.init.trunc_normal_(tensor)
        nn.init.orthogonal_(tensor)  # these two use other arithmetic, but must not raise
        nn.init.ones_(tensor)
    assert torch.equal(tensor, torch.ones(4, 4))
    tensor.normal_()
    assert not torch.equal(tensor, torch.ones(4, 4))


def test_failing_constructor_leaves_no_changes(mine: str) -> None:
    def state() -> tuple[Any, ...]:
        hooks = [v for k, v in vars(nn.modules.module).items() if k.startswith("_global") and "hooks" in k]
        functions = {k: v for k, v in vars(nn.init).items() if callable(v)}
        return (
            functions,
            {k: id(getattr(torch.Tensor, k)) for k in ("normal_", "uniform_")},
            torch.get_default_device(),
            torch.get_default_dtype(),
            torch._C._len_torch_function_stack(),
            [len(h) for h in hooks],
            list(sys.path),
        )

    before = state()
    with pytest.raises(InputError):
        build(f"{mine}:broken", device="meta")
    with pytest.raises(InputError):
        build("torchvision:regnet_y_400mf", {"no_such_option": 1}, device="meta")
    assert state() == before


def test_keyboard_interrupt_is_not_a_failure() -> None:
    def interrupted() -> nn.Module:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        on_meta(interrupted)
    assert torch._C._len_torch_function_stack() == 0


def test_a_sparse_buffer_brings_no_advice_of_torch(recwarn: pytest.WarningsRecorder) -> None:
    """`count` of a graph network printed three lines about checks of sparse tensors before its answer."""

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("edges", torch.sparse_coo_tensor(torch.zeros(2, 1).long(), torch.ones(1), (2, 2)))

    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        on_meta(Graph)
    finally:
        torch.set_warn_always(before)
    assert not recwarn.list

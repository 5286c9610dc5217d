"""The packaged traces equal fresh counts, and answer only questions that they fit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chronograd.ask import ask
from chronograd.count import packaged
from chronograd.count.cached import cached_trace
from chronograd.count.network import trace_network
from chronograd.count.packed import of_tables, tables
from chronograd.count.settings import TraceSettings
from chronograd.data.trace_job import trace_layouts
from chronograd.errors import NotFoundError
from chronograd.models import names, registry
from chronograd.trace import Trace

NETWORKS = [*names.zoo(), *names.packaged()]
# One of each kind: images, tokens, a transformer of each library, several sizes of images, a detector.
SAMPLE = ("lenet5", "gpt2-small", "timm:deit_small_patch16_224", "torchvision:resnet18", "ssd-mobilenet-v1")
FILES = Path(names.__file__).parent / "traces"


def data_of(trace: Trace | None) -> dict[str, Any]:
    """Return the data of a trace as in a file, without the versions of the libraries."""
    assert trace is not None
    return {**of_tables(tables(trace)).to_json(), "versions": None}


def check(network: str) -> None:
    settings = packaged.settings_of(network)
    assert {one["mode"] for one in settings} == {"training", "inference"}
    for one in settings:
        trace, fresh = packaged.find(network, {}, one), trace_network(network, **one)
        assert trace is not None
        if _release(trace) == _release(fresh):
            assert data_of(trace) == data_of(fresh), one
        else:  # other PyTorch releases split some operators differently
            assert (trace.params, trace.macs(), trace.flops()) == (fresh.params, fresh.macs(), fresh.flops()), one


def _release(trace: Trace) -> str:
    return trace.versions["torch"].partition("+")[0]


@pytest.mark.parametrize("network", SAMPLE)
def test_packaged_trace_equals_a_fresh_count(network: str) -> None:
    check(network)


@pytest.mark.slow
@pytest.mark.parametrize("network", [name for name in NETWORKS if name not in SAMPLE])
def test_every_packaged_trace_equals_a_fresh_count(network: str) -> None:
    check(network)


@pytest.mark.parametrize("network", ["lenet5", "torchvision:resnet18"])
def test_default_settings_count_the_plain_network(network: str) -> None:
    assert data_of(packaged.find(network, None, {})) == data_of(trace_network(network))


def test_listed_networks_and_files_match() -> None:
    assert {path.name for path in FILES.iterdir()} == {f"{name.replace(':', '-')}.xz" for name in NETWORKS}


@pytest.mark.parametrize("network", names.packaged())
def test_list_agrees_with_the_libraries(network: str) -> None:
    spec, listed = registry.spec(network), names.packaged()[network]
    assert (listed.shape, listed.classes) == (spec.input_shape, spec.num_classes)


def test_names_mean_the_same_network_without_the_libraries() -> None:
    """A name without a library means torchvision's network before timm's."""
    of_timm = {name.removeprefix("timm:") for name in names.packaged() if name.startswith("timm:")}
    of_torchvision = {name.removeprefix("torchvision:") for name in names.packaged() if name.startswith("torchvision:")}
    assert of_timm & names.of_library("torchvision") <= of_torchvision


def test_package_is_small() -> None:
    sizes = [path.stat().st_size for path in FILES.iterdir()]
    assert sum(sizes) < 2_000_000
    assert sum(sizes) / len(sizes) < 20_000


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"in_channels": 1}, {}),
        ({}, {"input_shape": (3, 64, 64)}),
        ({}, {"num_classes": 100}),
        ({}, {"loss": "sum"}),
        ({}, {"fixed_batch": 4}),
        ({}, {"input_dtype": "int64"}),
        ({}, {"param_dtype": "bf16"}),
        ({}, {"inputs": ("3x32x32",)}),
    ],
)
def test_other_questions_have_no_packaged_trace(options: dict[str, Any], settings: TraceSettings) -> None:
    assert packaged.find("resnet20", options, settings) is None
    usual: TraceSettings = {
        "input_shape": (3, 32, 32),
        "num_classes": 10,
        "input_dtype": None,
        "inputs": (),
        "channels_last": True,
    }
    assert packaged.find("resnet20", {}, usual) is not None


def test_user_network_has_no_packaged_trace(tmp_path: Path) -> None:
    assert packaged.find(f"{tmp_path}/my_net.py:resnet50", {}, {}) is None


def test_packaged_trace_has_the_types_of_a_fresh_one() -> None:
    trace = cached_trace("lenet5")
    assert all(isinstance(ids, tuple) for one in trace.operators for ids in (one.inputs, one.outputs))
    assert Trace.from_json(json.loads(json.dumps(trace.to_json()))) == trace


def test_trace_has_the_requested_name() -> None:
    assert cached_trace("mobilenet_v2").network == "mobilenet_v2"
    assert cached_trace("torchvision:mobilenet_v2").network == "torchvision:mobilenet_v2"


@pytest.mark.parametrize("network", NETWORKS)
def test_planning_packaged_networks_needs_no_torch(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packaged shapes are those of the verbs: the default data and the recipe's training images."""
    job = ask(network).job
    monkeypatch.setattr("chronograd.count.cached._traced", None)
    monkeypatch.setenv("XDG_CACHE_HOME", "/nowhere")
    assert all(trace.operators for trace in trace_layouts(job))


DRIVER = """
import sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.partition(".")[0] in ("torch", "torchvision", "timm") else find(name, *rest)
from chronograd.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def without_libraries(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", DRIVER, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("network", ["resnet152", "vit_small_patch16_224", "timm:resnet50"])
def test_answer_is_equal_without_the_libraries(network: str) -> None:
    words = ("count", network, "--json")
    without = without_libraries(*words)
    assert without.returncode == 0, without.stderr
    with_them = subprocess.run([sys.executable, "-m", "chronograd", *words], capture_output=True, text=True, check=True)
    assert json.loads(without.stdout) == json.loads(with_them.stdout)


def test_unknown_name_without_the_libraries_states_the_extra() -> None:
    done = without_libraries("count", "efficientnet_b77")
    assert done.returncode == NotFoundError.exit_status
    assert "efficientnet_b0" in done.stderr
    assert "for all networks of torchvision and timm: pip install" in done.stderr
    assert "[timm]'" in done.stderr


def test_list_without_the_libraries_has_packaged_networks() -> None:
    listed = json.loads(without_libraries("count", "--list", "--json").stdout)
    text = json.dumps(listed)
    assert "vit_large_patch16_224" in text
    assert "efficientnet_b7" not in text

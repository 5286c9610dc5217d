"""Imports follow docs/architecture.md: only rooms above, torch only below its line, and no cycles."""

from __future__ import annotations

import ast
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
from tools.house import PRODUCT, House, imports_of, modules_in_strings, room_of, rooms_in

HOUSE = House()
SOURCE = HOUSE.source / PRODUCT
ABOVE = set(chain(*rooms_in(HOUSE.page.read_text().partition("no torch above this line")[0])))
# Below the line because of their imports, but free of torch themselves.
WITHOUT_TORCH = {*ABOVE, "judge", "report", "explain", "watch"}
# Heavy optional parts, each confined to the files that need them.
CONFINED = {
    "torchvision": {
        "models/registry.py",
        "models/keras_networks.py",
        "data/published.py",
        "models/weights.py",
        "detect/suppression.py",
        "data/downloads.py",
    },
    "gymnasium": {"reinforce/environments.py", "reinforce/atari.py"},
    "ale_py": {"reinforce/atari.py"},
    "timm": {"models/registry.py", "models/weights.py"},
    "sklearn": {"data/published.py"},
    "matplotlib": {"report/plots.py"},
    "PIL": {"data/folders.py", "deploy/pictures.py", "detect/pictures.py", "figure.py", "report/plots.py"},
    "tensorboard": {"watch/tensorboard.py", "forecast/tensorboard_events.py"},
    "pandas": {"answer.py"},
    "jinja2": {"report/html.py"},
    "nbformat": {"report/notebook.py"},
    "nbclient": {"report/notebook.py"},
    "lightning": {"hooks/lightning.py"},
    "transformers": {"count/meta_network.py", "hooks/transformers.py"},
    "accelerate": {"hooks/accelerate.py"},
    "ray": {
        "backends/ray_session.py",
        "launch/ray.py",
    },
    "tensorflow": {f"backends/tensorflow/{name}.py" for name in ("layers", "step", "strategies", "update", "worker")},
    "keras": {"backends/tensorflow/layers.py", "backends/tensorflow/worker.py"},
    "onnx": {"deploy/export.py", "deploy/model.py", "deploy/suppression.py"},
    "onnxruntime": {"deploy/model.py", "deploy/parity.py", "deploy/quantise.py"},
    "starlette": {"deploy/app.py"},
    "uvicorn": {"deploy/server.py"},
    "prometheus_client": {"deploy/app.py"},
    "horovod": {"backends/horovod/rank.py", "backends/horovod/rendezvous.py", "launch/horovodrun.py"},
}


def test_every_room_is_in_the_architecture() -> None:
    assert {room_of(name) for name in HOUSE.modules} - {""} == set(HOUSE.rank)


def test_imports_point_up_without_cycles() -> None:
    assert not {name: HOUSE.upward(name) for name in HOUSE.modules if HOUSE.upward(name)}
    assert not HOUSE.circular()


@pytest.mark.parametrize("name", HOUSE.modules)
def test_torch_and_optional_imports_stay_in_their_files(name: str) -> None:
    where = HOUSE.modules[name].relative_to(SOURCE.parent).as_posix().removeprefix(f"{PRODUCT}/")
    for package in {found.partition(".")[0] for found in HOUSE.imports[name]}:
        assert package != "torch" or room_of(name) not in WITHOUT_TORCH, f"{name} is above the torch line"
        # A cell of a notebook shows its reader the package; hand-in leaves it out where that is not installed.
        is_cell = where.startswith("chronograd_lab/exercises/problems/")
        assert is_cell or where in CONFINED.get(package, {where}), (
            f"{package} is confined to {sorted(CONFINED[package])}"
        )


@pytest.mark.parametrize(
    "planted",
    [
        "from chronograd.cli import main",
        "from ..cli import main",
        "from .. import cli",
        "import importlib; importlib.import_module('chronograd.cli.main')",
        "__import__('chronograd.cli.main')",
        "COMMAND = ['python', '-m', 'chronograd.cli.main']",
    ],
)
def test_all_forms_of_import_are_detected(planted: str) -> None:
    tree = ast.parse(planted)
    found = {*imports_of(tree, (PRODUCT, "predict")), *modules_in_strings(tree)}
    assert any(name.startswith("chronograd.cli") for name in found)


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize("words", [["--help"], ["plan", "--help"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    """The help of all verbs needs the metadata of packages, which may add some; that of one verb does not."""
    heavy = {"torch", "numpy", "scipy", "pydantic", "rich", *(["importlib.metadata"] if len(words) > 1 else [])}
    code = (
        f"import sys; from chronograd.cli.main import main; main({words}); "
        f"heavy = {heavy} & set(sys.modules); sys.exit(f'imported {{heavy}}' if heavy else 0)"
    )
    done = _run(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_predicting_from_a_trace_file_needs_no_torch(tmp_path: Path) -> None:
    """The base package predicts on a machine that has no torch."""
    saved = tmp_path / "net.json.gz"
    job = SOURCE.parent.parent / "examples" / "digits.yaml"
    made = _run(
        f"from chronograd.cli.main import main; raise SystemExit(main(['count', {str(job)!r}, '--out', {str(saved)!r}]))"
    )
    assert made.returncode == 0, made.stderr
    arguments = ["predict", str(job), "--trace", str(saved), "--on", "8xv100", "--json"]
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['torchvision'] = None; sys.modules['sklearn'] = None\n"
        f"from chronograd.cli.main import main; raise SystemExit(main({arguments!r}))"
    )
    done = _run(code)
    assert done.returncode == 0, done.stderr
    assert '"kind": "predicted"' in done.stdout

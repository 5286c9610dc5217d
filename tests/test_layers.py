"""A room imports only rooms printed above it in docs/architecture.md, torch only below its line, and no circle is left."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "chronograd"
LAB = SOURCE.with_name("chronograd_lab")
ARCHITECTURE = Path(__file__).parent.parent / "docs" / "architecture.md"
TORCH_LINE = "no torch above this line"


def _order() -> tuple[list[str], set[str], list[str]]:
    """Rooms from top to bottom as docs/architecture.md prints them, those that need no torch, and the lab's rooms."""
    (section,) = re.findall(r"## The rooms(.*?)\n## ", ARCHITECTURE.read_text(), re.DOTALL)
    block, lab = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    rooms: list[str] = []
    above: set[str] = set()
    for line in block.splitlines():
        if TORCH_LINE in line:
            above = set(rooms)
        rooms += [
            name.rstrip("/").removesuffix(".py")
            for name in re.findall(r"[a-z_]+(?:/|\.py)(?=\s|$)", line.split("  ")[0])
        ]
    return rooms, above, re.findall(r"^(\w+)/", lab, re.MULTILINE)


ROOMS, ABOVE, LAB_ROOMS = _order()
# Below the line because of what they import, and yet free of torch themselves.
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
    "jinja2": {"report/html.py"},
    "nbformat": {"report/notebook.py"},
    "nbclient": {"report/notebook.py"},
    "lightning": {"hooks/lightning.py"},
    "transformers": {"hooks/transformers.py"},
    "accelerate": {"hooks/accelerate.py"},
    "ray": {
        "backends/ray_session.py",
        "backends/parameter_server/actors.py",
        "launch/ray.py",
    },
    "tensorflow": {f"backends/tensorflow/{name}.py" for name in ("layers", "step", "strategies", "update", "worker")},
    "keras": {"backends/tensorflow/layers.py", "backends/tensorflow/worker.py"},
    "onnx": {"deploy/export.py", "deploy/model.py"},
    "onnxruntime": {"deploy/model.py", "deploy/parity.py", "deploy/quantise.py"},
    "starlette": {"deploy/app.py"},
    "uvicorn": {"deploy/server.py"},
    "prometheus_client": {"deploy/app.py"},
    "horovod": {"backends/horovod/rank.py", "launch/horovodrun.py"},
}


def files() -> list[Path]:
    return sorted(p for p in SOURCE.rglob("*.py") if "__pycache__" not in p.parts)


def room_of(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


@functools.cache
def imports(path: Path) -> frozenset[str]:
    return frozenset(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    yield from imports_of(path.read_text(), path.relative_to(SOURCE.parent).parent.parts)


def imports_of(text: str, package: tuple[str, ...]) -> Iterator[str]:
    """Modules that a file of a package imports by statements, absolute and relative, and by calls."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*above, *([node.module] if node.module else [])))
            yield module
            if module == "chronograd" or node.level:
                yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(named := node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(named.value, str):
                yield named.value


def modules_in_strings(text: str) -> Iterator[str]:
    """Modules of chronograd whose whole names are strings, as in `python -m NAME`: they run in another process."""
    for node in ast.walk(ast.parse(text)):
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, str) and re.fullmatch(r"chronograd(\.\w+)+", value):
            place = SOURCE.joinpath(*value.split(".")[1:])
            if place.is_dir() or place.with_suffix(".py").is_file():
                yield value


def test_every_room_is_in_the_design() -> None:
    assert {room_of(p) for p in files()} - {"__init__", "__main__"} == set(ROOMS)


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_up(path: Path) -> None:
    room = room_of(path)
    if room in ("__init__", "__main__"):
        return
    for name in (*imports(path), *modules_in_strings(path.read_text())):
        parts = name.split(".")
        if parts[0] == "chronograd" and len(parts) > 1:
            assert parts[1] in ROOMS, f"{name} is no room"
            assert ROOMS.index(parts[1]) <= ROOMS.index(room), f"{room} must not import {name}"
        assert parts[0] != LAB.name, f"the product must not import {name}"
        if parts[0] == "torch":
            assert room not in WITHOUT_TORCH, f"{room} is above the torch line"
        if parts[0] in CONFINED:
            where = str(path.relative_to(SOURCE))
            assert where in CONFINED[parts[0]], f"{parts[0]} is confined to {sorted(CONFINED[parts[0]])}"


@pytest.mark.parametrize("path", sorted(LAB.rglob("*.py")), ids=lambda p: str(p.relative_to(LAB)))
def test_imports_of_the_lab_point_up(path: Path) -> None:
    room, *rest = path.relative_to(LAB).parts
    if not rest:
        return
    for name in imports_of(path.read_text(), (LAB.name, *path.relative_to(LAB).parent.parts)):
        package, _, where = name.partition(".")
        if package == LAB.name and where:
            found = where.partition(".")[0]
            assert found in LAB_ROOMS, f"{name} is no room"
            assert LAB_ROOMS.index(found) <= LAB_ROOMS.index(room), f"{room} must not import {name}"
        assert name.partition(".")[0] not in CONFINED, f"{name} is confined to the product"


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
def test_an_import_is_seen_however_it_is_written(planted: str) -> None:
    found = {*imports_of(planted, ("chronograd", "predict")), *modules_in_strings(planted)}
    assert any(name.startswith("chronograd.cli") for name in found)


def test_no_two_files_import_each_other() -> None:
    """Nor any more of them in a circle, imports for types included."""
    names = {
        ".".join(p.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): p
        for p in (*files(), *LAB.rglob("*.py"))
    }
    imported = {
        name: {found for found in imports(path) if found in names and found not in (name, "chronograd")}
        for name, path in names.items()
    }
    while free := [name for name, others in imported.items() if not others & imported.keys()]:
        for name in free:
            del imported[name]
    # What is left imports a circle, or is one.
    circles = {name for name in imported if name in _reached(name, imported)}
    assert not circles


def _reached(start: str, imported: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    ahead = {start}
    while ahead:
        ahead = {other for name in ahead for other in imported.get(name, ())} - seen
        seen |= ahead
    return seen


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)


def test_help_imports_no_torch() -> None:
    code = (
        "import sys; from chronograd.cli.main import main; main(['--help']); "
        "heavy = {'torch', 'numpy', 'scipy', 'pydantic', 'rich'} & set(sys.modules); sys.exit(f'imported {heavy}' if heavy else 0)"
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

"""A test without the mark of an extra cannot import the packages of that extra, whether they are installed or not."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests import parts
from tests.hiding import sitecustomize as hiding

ROOT = Path(__file__).parent.parent
# Distributions whose modules have another name.
MODULES = {"tensorflow_cpu": "tensorflow"}
# Extras without a mark: packages of weights, and of tools that no test imports.
UNMARKED = {"lite0", "docs"}


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with a package of the name `onnx`, which is an extra, and one that is none."""
    for name in ("onnx", "planted_plain"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_planted_import_of_an_extra_fails(planted: Path) -> None:
    assert importlib.import_module("planted_plain").VALUE == 1
    with pytest.raises(ModuleNotFoundError, match="onnx"):
        importlib.import_module("onnx")
    assert importlib.util.find_spec("onnx") is None


def test_interpreters_that_a_test_starts_hide_it_too(planted: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(planted)!r}); import planted_plain\ntry: import onnx\nexcept ImportError: print('hidden')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "hidden\n"


def test_imported_modules_are_set_aside_and_brought_back(planted: Path) -> None:
    finder, module = hiding.installed(), importlib.import_module("planted_plain")
    hidden = finder.hidden
    try:
        finder.hide({*hidden, "planted_plain"})
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("planted_plain")
        finder.hide(hidden)
        assert importlib.import_module("planted_plain") is module
    finally:
        finder.hide(hidden)


@pytest.mark.parametrize(
    ("marks", "seen", "unseen"),
    [
        ([], set(), {"onnx", "ray", "tensorflow"}),
        (["onnx"], {"onnx", "onnxruntime"}, {"starlette", "ray"}),
        (["onnx", "ray"], {"onnx", "ray"}, {"starlette"}),
        (["slurm", "data"], set(), {"onnx", "horovod"}),
    ],
)
def test_marks_show_their_packages_only(marks: list[str], seen: set[str], unseen: set[str]) -> None:
    hidden = parts.hidden_from(marks)
    assert unseen <= hidden
    assert not seen & hidden


def test_top_of_a_file_has_the_marks_of_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "test_x.py"
    path.write_text("import pytest\npytestmark = [pytest.mark.hooks, pytest.mark.filterwarnings('ignore')]\n")
    assert parts.parts_of_module(path) == ["hooks"]
    path.write_text("import pytest\n\n@pytest.mark.onnx\ndef test_x(): ...\n")
    assert parts.parts_of_module(path) == []


def test_packages_of_every_extra_are_hidden() -> None:
    """An extra that `make run` leaves out has its packages in the table, so a new one cannot be forgotten."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    def packages(extra: str) -> set[str]:
        names = (re.match(r"[\w-]+(\[[\w,-]+\])?", line).group() for line in extras[extra])  # type: ignore[union-attr]
        own, inner = set(), set()
        for name in names:
            if name.startswith("chronograd["):
                inner |= set(name[len("chronograd[") : -1].split(","))
            else:
                own.add(name.partition("[")[0].replace("-", "_"))
        return own.union(*(packages(other) for other in inner))

    newcomers = packages("dev")
    hidden = parts.hidden_from([])
    for extra in extras.keys() - UNMARKED:
        missing = {MODULES.get(name, name) for name in packages(extra) - newcomers} - hidden
        assert not missing, f"{extra}: {missing} are in no line of PACKAGES in tests/parts.py"

"""Every Python that the software starts ignores modules in the working directory, unless the user named code there."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chronograd import job as jobs
from chronograd import trust
from chronograd.calibrate.workers import run_workers
from chronograd.cli.main import main
from chronograd.doctor.process import asked
from chronograd.launch.jobs import create, resume, train
from chronograd.train.largest_batch import probe

SOURCES = Path(__file__).parent.parent / "src"
# Strings that look like the beginning of a command line and start no Python here.
OTHER_WORDS = {
    # A cloud starts it in its container, where the working directory holds the code that the user sent there.
    ("chronograd/clouds/submission.py", "-m"),
    ("chronograd_lab/studies/cluster_profile/system_calls.py", "-c"),  # an option of strace
}
# Modules that a worker imports at its start or later, and one of the same name as the worker's package.
STRANGERS = ("random", "secrets", "json", "socket", "torch", "numpy", "torchvision", "chronograd", "sitecustomize")
HARM = "import pathlib\npathlib.Path({harmed!r}).touch()\nraise ImportError('a stranger')\n"
LINE = {
    "network": {"name": "lenet5"},
    "data": {"name": "synthetic", "shape": [1, 28, 28], "classes": 10, "samples": 64},
    "training": {"batch": 32, "epochs": 2},
    "cluster": {"device": "cpu", "threads": 1},
}


def commands() -> Iterator[tuple[str, str, ast.AST]]:
    """Yield the places in the sources that could start a Python: file, words, and the enclosing syntax."""
    for path in sorted(SOURCES.rglob("*.py")):
        parents: dict[ast.AST, ast.AST] = {}
        for parent in ast.walk(ast.parse(path.read_text())):
            parents |= dict.fromkeys(ast.iter_child_nodes(parent), parent)
        for node, parent in parents.items():
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable":
                yield str(path.relative_to(SOURCES)), "sys.executable", parent
            elif isinstance(node, ast.Constant) and node.value in ("-m", "-c") and not isinstance(parent, ast.Compare):
                yield str(path.relative_to(SOURCES)), str(node.value), parent


def test_one_function_builds_the_command_of_every_python() -> None:
    seen = set()
    for path, word, around in commands():
        is_shown = isinstance(around, ast.FormattedValue)
        is_of_trust = path == "chronograd/trust.py" or ast.unparse(around).startswith("trust.python(")
        seen.add((path, word))
        assert is_shown or is_of_trust or (path, word) in OTHER_WORDS, f"{path}: {ast.unparse(around)}"
    assert ("chronograd/backends/plan.py", "-m") in seen
    assert seen >= OTHER_WORDS


@pytest.fixture
def strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that modules of the working directory would create."""
    folder = tmp_path / "unpacked"
    folder.mkdir()
    for name in STRANGERS:
        (folder / f"{name}.py").write_text(HARM.format(harmed=str(tmp_path / "harmed")))
    monkeypatch.chdir(folder)
    return tmp_path / "harmed"


def test_a_python_without_that_function_runs_them(strange: Path) -> None:
    """The modules do harm, so the tests below can fail."""
    subprocess.run([sys.executable, "-m", "chronograd.doctor.worker"], capture_output=True, check=False)
    assert strange.exists()


def test_doctor_runs_no_module_of_the_folder(strange: Path) -> None:
    checks = {"of": "machine", "has_link": False, "precision": "fp32", "threads": 1, "on_cpu": True, "job": None}
    with asked(checks) as worker:
        assert "error" not in worker.wait("build", time.monotonic() + 60)
    assert not strange.exists()


@pytest.mark.real_exec
def test_calibration_runs_no_module_of_the_folder(strange: Path) -> None:
    words = [["cpu", "1", "fp32", "0.001", "nchw", "tiny"]]
    assert run_workers("chronograd.calibrate.worker", words)
    assert not strange.exists()


def test_probe_of_the_largest_batch_runs_no_module_of_the_folder(strange: Path) -> None:
    assert probe(jobs.from_dict(LINE), 4).ran
    assert not strange.exists()


@pytest.mark.real_exec
def test_resumed_run_runs_no_module_of_the_folder(strange: Path) -> None:
    run = create(jobs.from_dict(LINE), out=Path("run"))
    assert main(["train", "--resume", "run"]) == 0
    assert run.is_finished
    assert not strange.exists()


@pytest.mark.real_exec
def test_two_ranks_run_no_module_of_the_folder(strange: Path) -> None:
    job = jobs.from_dict({**LINE, "backend": "ddp", "cluster": {"device": "cpu", "count": 2, "threads": 1}})
    assert resume(create(job, out=Path("run"))).is_finished
    assert not strange.exists()


@pytest.mark.ray
def test_actors_of_ray_run_no_module_of_the_folder(strange: Path) -> None:
    """Ray would put the working directory first on the path of each actor."""
    communication = {"communication": {"servers": 1}, "backend": "parameter_server"}
    assert train(jobs.from_dict({**LINE, **communication}), out=Path("run")).is_finished
    assert not strange.exists()


# -- code that the user named in the working directory -----------------------------------------------------------------

NET = """\
from torch import nn
import neighbour

class Net(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, num_classes))

    def forward(self, x):
        import late
        return self.layers(x) * late.SCALE * neighbour.SCALE

Net.input_shape = (1, 28, 28)
"""


@pytest.mark.real_exec
@pytest.mark.parametrize("reference", ["nets/my_net.py:Net", "my_package.my_net:Net"])
def test_ranks_import_code_that_the_user_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str) -> None:
    """The code finds the modules of the working directory, also those that it imports during a step."""
    file = tmp_path / reference.partition(":")[0].removesuffix(".py").replace(".", "/")
    file.parent.mkdir()
    file.with_suffix(".py").write_text(NET)
    for name in ("neighbour", "late"):
        (tmp_path / f"{name}.py").write_text("SCALE = 1.0\n")
    monkeypatch.chdir(tmp_path)
    job = jobs.from_dict({**LINE, "network": {"name": reference}})
    assert train(job, out=tmp_path / "run").is_finished


@pytest.mark.ray
def test_actors_of_ray_import_code_that_the_user_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net_of_actors.py").write_text(NET)
    for name in ("neighbour", "late"):
        (tmp_path / f"{name}.py").write_text("SCALE = 1.0\n")
    monkeypatch.chdir(tmp_path)
    network = {"network": {"name": "net_of_actors:Net"}, "backend": "parameter_server"}
    assert train(jobs.from_dict({**LINE, **network}), out=tmp_path / "run").is_finished


def test_installed_code_does_not_make_the_folder_importable(strange: Path) -> None:
    before = list(sys.path)
    with trust.importing("chronograd.models.lenet:lenet5"), trust.importing("random:random"):
        assert sys.path == before
    assert sys.path == before


def test_named_code_is_imported_first_and_its_folder_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "first_net.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = list(sys.path)
    for reference in ("first_net:Net", "first_net.py:Net"):
        with trust.importing(reference):
            assert sys.path[0] == os.getcwd()
        assert sys.path == [*before, os.getcwd()]

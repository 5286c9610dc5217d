"""Verbs, backends, devices and studies of other installed packages, added through entry points.

Each test installs a distribution in pip's form, a folder with a module and a `.dist-info`, and runs the command line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chronograd.hardware import catalog

BACKEND = '''
"""As `single`, with a variable of its own for the rank."""

from dataclasses import replace

from chronograd.backends import single

NEEDED = ()
prepare = single.prepare


def available():
    return True, ""


def plan(job, run, arguments):
    ranks = single.plan(job, run, arguments)
    return replace(ranks, environment={**ranks.environment, "MY_BACKEND": job.backend})
'''
STUDY = """
from chronograd.answer import Answer
from chronograd_lab.common.results import Results
from chronograd_lab.common.study import Study


def conduct(runner, settings):
    return Results("sums", runner.size, settings, rows={"sums": [{"n": n, "sum": n * (n + 1) // 2} for n in range(4)]})


STUDY = Study(
    name="sums",
    question="How does a sum grow?",
    hypothesis="With the square.",
    sizes={"smoke": {"most": 4}},
    conduct=conduct,
)
"""
VERBS = 'VERBS = {"greet": "Say hello.", "add-up": "Add numbers."}\n'
GREET = '''
import click


@click.command()
def command():
    """Say hello."""
    click.echo("hello from elsewhere")
'''
ADD = '''
from dataclasses import dataclass
from typing import Annotated

from chronograd.answer import Answer, Section
from chronograd.verbs.request import Request, Spelling


@dataclass(frozen=True, kw_only=True)
class Add(Request):
    """Add numbers."""

    verb = "add-up"

    numbers: Annotated[tuple[int, ...], Spelling(is_argument=True)] = ()

    def answer(self) -> Answer:
        return Answer("Sum", sections=[Section("Sum", f"It is {sum(self.numbers)}.")], data=sum(self.numbers))


REQUESTS = (Add,)
'''


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder with an installed distribution that adds one object of each kind."""
    files = {
        "my_backend.py": BACKEND,
        "my_study.py": STUDY,
        "my_verbs/__init__.py": VERBS,
        "my_verbs/greet.py": GREET,
        "my_verbs/add_up.py": ADD,
        "my_devices/__init__.py": "",
        "my_devices/toy-gpu.toml": catalog.device("t4").model_copy(update={"name": "toy-gpu", "title": "Toy GPU", "aliases": ()}).to_toml(),
        "my_devices/t4.toml": catalog.device("t4").model_copy(update={"title": "Another T4"}).to_toml(),
        "mine-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n",
        "mine-1.0.dist-info/entry_points.txt": (
            "[chronograd.verbs]\nmine = my_verbs\n"
            "[chronograd.backends]\nmine = my_backend\n"
            "[chronograd.devices]\nmine = my_devices\n"
            "[chronograd.studies]\nsums = my_study:STUDY\n"
        ),
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def chronograd(packages: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return python(packages, "-m", "chronograd", *words)


def python(packages: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(packages), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": path, "XDG_DATA_HOME": str(packages / "data")},
        cwd=packages,
        capture_output=True,
        text=True,
        check=False,
    )


def output(packages: Path, *words: str) -> str:
    done = chronograd(packages, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_verb_of_another_package(packages: Path) -> None:
    assert "Say hello." in output(packages, "--help")
    assert output(packages, "greet") == "hello from elsewhere\n"


def test_declared_verb_of_another_package(packages: Path) -> None:
    assert json.loads(output(packages, "add-up", "2", "3", "--json")) == 5
    code = "import chronograd; print(chronograd.add_up(2, 3).data, 'add_up' in dir(chronograd))"
    assert python(packages, "-c", code).stdout == "5 True\n"


def test_broken_package_is_reported(packages: Path) -> None:
    (packages / "my_verbs" / "__init__.py").write_text("import nothing_of_that_name")
    for words in (["-m", "chronograd", "--help"], ["-c", "import chronograd; chronograd.add_up"]):
        assert "mine adds 'mine' to chronograd.verbs, and it cannot be loaded" in python(packages, *words).stderr


def test_device_of_another_package(packages: Path) -> None:
    own = json.loads(output(packages, "devices", "toy-gpu", "--json"))
    assert "Toy GPU" in json.dumps(own)
    listed = json.dumps(json.loads(output(packages, "devices", "--json")))
    assert "toy-gpu" in listed
    assert "Another T4" not in listed  # the catalogue's names have priority
    assert "Toy GPU" in output(packages, "predict", "resnet20", "--on", "toy-gpu")


def test_user_device_replaces_a_packages_device(packages: Path) -> None:
    own = packages / "data" / "chronograd" / "devices" / "toy-gpu.toml"
    own.parent.mkdir(parents=True)
    own.write_text((packages / "my_devices" / "toy-gpu.toml").read_text().replace("Toy GPU", "My toy"))
    assert "My toy" in output(packages, "devices", "toy-gpu", "--json")


def test_study_of_another_package(packages: Path) -> None:
    assert "How does a sum grow?" in output(packages, "study", "list", "--json")
    output(packages, "study", "run", "sums", "--size", "smoke", "--out", "found")
    assert json.loads((packages / "found" / "results.json").read_text())["rows"]["sums"][3] == {"n": 3, "sum": 6}


def test_backend_of_another_package_trains(packages: Path) -> None:
    words = ["network.name=lenet5", "backend=mine", "training.epochs=1", "data.samples=64", "training.batch=32"]
    job = "network: {name: lenet5}\ndata: {name: synthetic, shape: [1, 28, 28], classes: 10}\ncluster: {device: cpu}\n"
    (packages / "job.yaml").write_text(job)
    output(packages, "train", "job.yaml", *words, "--out", "run")
    record = json.loads((packages / "run" / "record.json").read_text())
    assert record["job"]["backend"] == "mine"
    assert '"name": "mine"' in output(packages, "doctor", "--json")


def test_unknown_backend_error_lists_all_names(packages: Path) -> None:
    done = chronograd(packages, "predict", "resnet20", "backend=mime", "--on", "v100")
    assert done.returncode == 2
    assert "backend: 'mime' is not one of its values; did you mean mine" in done.stderr


def test_failed_import_is_reported_with_its_package(packages: Path) -> None:
    (packages / "my_devices" / "__init__.py").write_text("import no_such_module")
    done = chronograd(packages, "devices")
    assert done.returncode == 1
    assert done.stderr == (
        "Error: mine adds 'mine' to chronograd.devices, and it cannot be loaded: "
        "ModuleNotFoundError: No module named 'no_such_module'\n  To fix: update or uninstall mine\n"
    )

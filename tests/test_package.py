"""What the distribution is: typed, with a version, and complete."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path

import pytest

import chronograd

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("package", ["chronograd", "chronograd_lab"])
def test_type_checkers_read_the_types_of_the_package(package: str) -> None:
    assert (resources.files(package) / "py.typed").is_file()


def test_the_version_is_stated_once() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in settings["project"]["dynamic"]
    assert (ROOT / settings["tool"]["hatch"]["version"]["path"]).samefile(str(chronograd.__file__))
    parts = chronograd.__version__.split(".")
    assert len(parts) == 3
    assert all(part.isdigit() for part in parts)


def test_importing_the_package_reads_no_metadata() -> None:
    code = "import sys, chronograd; chronograd.__version__; print('importlib.metadata' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_plan_imports_neither_torch_nor_scipy() -> None:
    """Importing scipy.optimize and scipy.special took a third of the time of an answer."""
    code = (
        "import sys; from chronograd.cli.main import main; status = main(sys.argv[1:]); "
        "sys.exit(status or ', '.join({'torch', 'scipy'} & {*sys.modules}) or None)"
    )
    words = ["plan", "resnet50", "--data", "imagenet", "--to", "75%", "--budget", "50"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

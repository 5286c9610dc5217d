"""Check the distribution: it is typed, has a version, and is complete."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version

import chronograd

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("package", ["chronograd", "chronograd_lab"])
def test_type_checkers_read_the_packages_types(package: str) -> None:
    assert (resources.files(package) / "py.typed").is_file()


def test_version_is_stated_once() -> None:
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


def test_plan_imports_neither_torch_nor_scipy() -> None:
    """Importing scipy.optimize and scipy.special took a third of the time of an answer."""
    code = (
        "import sys; from chronograd.cli.main import main; status = main(sys.argv[1:]); "
        "sys.exit(status or ', '.join({'torch', 'scipy'} & {*sys.modules}) or None)"
    )
    words = ["plan", "resnet50", "--data", "imagenet", "--to", "75%", "--budget", "50"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# Paths of files, in the form used in messages.
PATH = re.compile(r"\b(?:docs|examples|benchmarks|tests|tools)/[\w./-]*\w")
# Folders of other sites and repositories that begin like ours.
ELSEWHERE = re.compile(r"[\w.-]+\.(?:com|io|org)/\S*|content/\S*")


def messages_in(path: Path) -> list[str]:
    """Return the text that our programs can print: string literals outside the docstrings of other functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):  # the docstrings of commands and of requests are their help
        is_command = isinstance(node, ast.FunctionDef) and "command" in "".join(map(ast.unparse, node.decorator_list))
        is_request = isinstance(node, ast.ClassDef) and "verb =" in ast.unparse(node)
        if is_command or is_request:
            assert isinstance(node, ast.FunctionDef | ast.ClassDef)
            silent -= {id(child.value) for child in node.body if isinstance(child, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent
    ]


@pytest.mark.parametrize("package", ["chronograd", "chronograd_lab"])
def test_messages_name_no_files_outside_the_package(package: str) -> None:
    """Help and hints once named examples/digits.yaml and pages of docs/, which a wheel does not contain."""
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "src" / package).rglob("*.py")
        for text in messages_in(path)
        for name in PATH.findall(ELSEWHERE.sub("", text))
    }
    assert sorted(found) == []


def test_message_with_such_a_file_is_detected(tmp_path: Path) -> None:
    code = 'def f():\n    """See docs/no.md."""\n    raise InputError("x", f"see docs/data.md of {y}")\n'
    (tmp_path / "one.py").write_text(code)
    assert [PATH.findall(text) for text in messages_in(tmp_path / "one.py")] == [[], ["docs/data.md"]]


def test_repository_files_state_the_packages_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {chronograd.__version__}\n" in citation
    constraint = re.search(r"^ruff==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert constraint is not None
    assert f"rev: v{constraint[1]} " in (ROOT / ".pre-commit-config.yaml").read_text()


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_github_files_are_valid(path: Path) -> None:
    data = yaml.safe_load(path.read_text())
    if path.parent.name == "workflows":
        assert all(job.get("steps") or job["uses"] for job in data["jobs"].values())


def workflow(name: str) -> dict[str, Any]:
    """Return the jobs of a workflow."""
    jobs: dict[str, Any] = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())["jobs"]
    return jobs


@pytest.mark.parametrize("name", ["ci", "release"])
def test_actions_are_pinned_by_commit(name: str) -> None:
    """A tag such as @v4 or a branch such as @release/v1 can be moved to other code."""
    uses = [step["uses"] for job in workflow(name).values() for step in job.get("steps", ()) if "uses" in step]
    assert uses
    assert [action for action in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)] == []


def test_release_publishes_the_files_that_passed_all_checks() -> None:
    jobs = workflow("release")
    assert jobs["checks"]["uses"] == "./.github/workflows/ci.yml"
    assert jobs["publish"]["needs"] == "checks"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    steps = workflow("ci")["wheel"]["steps"]
    commands = [step["run"] for step in steps if "run" in step]
    assert commands[0] == "pip install --require-hashes --requirement tools/release.txt"
    assert all("--no-isolation" in line for line in commands if "-m build" in line)
    assert "cmp dist/*.whl tree/*.whl" in commands
    assert steps[-1]["with"] == jobs["publish"]["steps"][0]["with"]


def test_tools_of_a_release_have_digests() -> None:
    lines = [line for line in (ROOT / "tools" / "release.txt").read_text().splitlines() if not line.startswith("#")]
    assert {"build", "hatchling"} <= {line.partition("==")[0] for line in lines}
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)


# The first versions without a published vulnerability that concerns how we use them.
@pytest.mark.parametrize(
    ("package", "least"), [("starlette", "0.49.1"), ("jinja2", "3.1.6"), ("transformers", "4.48"), ("torch", "2.6")]
)
def test_lower_bounds_exclude_vulnerable_versions(package: str, least: str) -> None:
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    bounds = [
        bound[1] for texts in optional.values() for text in texts if (bound := re.match(rf"{package}>=([\d.]+)", text))
    ]
    assert bounds
    assert all(Version(bound) >= Version(least) for bound in bounds)


def test_oldest_dependencies_match_the_lower_bounds() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "minimum.py", "timm"], capture_output=True, text=True, check=True
    )
    oldest = dict(line.split("==") for line in done.stdout.splitlines())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert len(oldest) >= len(project["dependencies"]) + 5
    assert {f"{name}>={version}" for name, version in oldest.items()} >= set(project["dependencies"])

"""The test suite itself: it ignores the user's catalogue and reports the optional parts that ran."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.parts import PARTS, imports_an_extra

ROOT = Path(__file__).parent.parent
OWN_LINK = 'name = "slow50"\ntitle = "measured here"\nlatency_s = 1e-4\nbandwidth_bytes_per_s = 6e6\n'
# Tests of several parts: done, skipped, of both, expected to fail.
OWN_PARTS = """
import pytest

@pytest.mark.slurm
def test_done(): pass

@pytest.mark.ray
def test_not_here(): pytest.skip("no ray today")

@pytest.mark.slurm
@pytest.mark.ray
def test_of_both(): pytest.skip("no ray today")

@pytest.mark.netns
@pytest.mark.xfail
def test_expected(): assert False

def test_plain(): pytest.skip("plain")
"""


def pytest_of(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CHRONOGRAD_REQUIRE"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=own | variables,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_user_catalogue_changes_no_test(tmp_path: Path) -> None:
    links = tmp_path / "chronograd" / "links"
    links.mkdir(parents=True)
    (links / "slow50.toml").write_text(OWN_LINK)
    done = pytest_of("tests/hardware/test_catalog.py", "-k", "link", "-vv", "-n", "1", XDG_DATA_HOME=str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert "test_every_link_has_sources[nvlink3]" in done.stdout
    assert "slow50" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "required", "status", "lines"),
    [
        ("0", "", 0, ["ray: ran 0, skipped 2 (no ray today)", "slurm: ran 1, skipped 1 (no ray today)", "netns: ran 1, skipped 0"]),
        ("1", "slurm,netns", 0, ["slurm: ran 1, skipped 1 (no ray today)", "netns: ran 1, skipped 0"]),
        ("0", "horovod", 1, ["FAILED horovod: ran 0, skipped 0; CHRONOGRAD_REQUIRE names it"]),
        ("1", "slurm,ray", 1, ["FAILED slurm: ran 1, skipped 1 (no ray today); CHRONOGRAD_REQUIRE names it",
                               "FAILED ray: ran 0, skipped 2 (no ray today); CHRONOGRAD_REQUIRE names it"]),
        ("0", "rey", 4, [f"ERROR: CHRONOGRAD_REQUIRE has 'rey'; write some of {','.join(PARTS)}"]),
    ],
)  # fmt: skip
def test_optional_parts_are_summarized(
    processes: str, required: str, status: int, lines: list[str], tmp_path: Path
) -> None:
    everywhere = "parts._WHY_NOT.clear()"  # the test is independent of this machine's parts
    (tmp_path / "conftest.py").write_text(f"{(ROOT / 'tests' / 'conftest.py').read_text()}\n{everywhere}\n")
    (tmp_path / "test_parts.py").write_text(OWN_PARTS)
    words = ("-c", str(ROOT / "pyproject.toml"), f"--rootdir={tmp_path}", str(tmp_path), "-n", processes)
    done = pytest_of(*words, CHRONOGRAD_REQUIRE=required)
    assert done.returncode == status, done.stdout + done.stderr
    printed = (done.stdout + done.stderr).splitlines()
    assert [line for line in lines if line not in printed] == []
    assert sum(line.startswith("FAILED ") for line in printed) == (required.count(",") + 1) * (status == 1)


@pytest.mark.slow
def test_every_test_file_can_be_imported() -> None:
    """Collecting doctests hides a failing import, so the tests of that file would silently not run."""
    done = pytest_of(
        "--collect-only", "-q", "-o", "addopts=--import-mode=importlib --strict-markers", str(ROOT / "tests")
    )
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize(
    ("code", "is_left_out"),
    [
        ("import ale_py.roms", True),
        ("from onnx import helper", True),
        ("def f():\n    import onnx", False),
        ("import numpy", False),
    ],
)
def test_files_of_examples_with_an_extra_are_not_collected(tmp_path: Path, code: str, is_left_out: bool) -> None:
    path = tmp_path / "game.py"
    path.write_text(code)
    assert imports_an_extra(path) == is_left_out


@pytest.mark.parametrize(("file", "is_left_out"), [("meta_network.py", True), ("layers.py", None)])
def test_examples_of_the_package_with_an_extra_are_not_collected(
    request: pytest.FixtureRequest, file: str, is_left_out: bool | None
) -> None:
    """Guards against a hook that pytest calls for the folder of the tests only."""
    path = ROOT / "src" / "chronograd" / "count" / file
    hook = request.session.gethookproxy(path)
    assert hook.pytest_ignore_collect(collection_path=path, config=request.config) is is_left_out

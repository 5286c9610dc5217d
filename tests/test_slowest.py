"""The table of slow tests: one line per test from all processes, and a limit for unmarked tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.slowest import LIMIT_S, Slowest


def report(name: str, when: str, seconds: float, *marks: str) -> pytest.TestReport:
    keywords = dict.fromkeys(marks, 1)
    return pytest.TestReport(name, ("f", 1, "t"), keywords, "passed", None, when, duration=seconds)  # type: ignore[arg-type]


def test_limit_applies_to_unmarked_test_calls_only(tmp_path: Path) -> None:
    slowest = Slowest(tmp_path / "slowest.md")
    for one in (
        report("tests/a.py::quick", "call", 0.9 * LIMIT_S),
        report("tests/a.py::marked", "call", 2 * LIMIT_S, "slow"),
        report("tests/a.py::fixture", "setup", 9 * LIMIT_S),
        report("tests/a.py::fixture", "call", 0.1),
        report("tests/a.py::over", "setup", 0.5),
        report("tests/a.py::over", "call", 1.1 * LIMIT_S),
    ):
        slowest.pytest_runtest_logreport(one)
    assert slowest.over_limit() == ["tests/a.py::over"]


@pytest.mark.parametrize("workers", [0, 1])
def test_option_fails_a_run_and_writes_the_table(tmp_path: Path, workers: int, pytestconfig: pytest.Config) -> None:
    """Pytest runs in this process and through pytest-xdist."""
    (tmp_path / "conftest.py").write_text(
        "from tests import slowest\nslowest.LIMIT_S = 0.05\n"
        "pytest_addoption, pytest_configure = slowest.pytest_addoption, slowest.register\n"
    )
    (tmp_path / "test_some.py").write_text("import time\ndef test_over(): time.sleep(0.1)\ndef test_quick(): pass\n")
    words = ["-q", "-n", str(workers), "--rootdir", str(tmp_path), "-c", "/dev/null", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *words, "--slowest", "table.md", str(tmp_path)]
    path = os.pathsep.join([str(pytestconfig.rootpath), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "test_over took 0.1 s, above 0.05 s" in ended.stdout
    rows = [line for line in (tmp_path / "table.md").read_text().splitlines() if line.startswith("| `")]
    assert ["over the limit" in row for row in rows] == [True, False]
    assert "test_over" in rows[0]

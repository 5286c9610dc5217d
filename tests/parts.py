"""Optional parts of the tests: skipped where a machine lacks them, with a summary of the tests that ran."""

from __future__ import annotations

import ast
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterable
from importlib.machinery import PathFinder
from itertools import chain
from pathlib import Path

import pytest

# Optional parts that a machine may lack, by the marker of the tests that need them.
PARTS = ("onnx", "serve", "tflite", "gymnasium", "atari", "transformers", "hooks", "tensorflow", "ray", "horovod", "slurm", "netns", "install",
         "vendors", "handoff", "bench", "fuzz", "data")  # fmt: skip
# Packages of extras that `make run` does not install. A test without the mark of the extra cannot import them.
PACKAGES: dict[str, tuple[str, ...]] = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "serve": ("onnx", "onnxscript", "onnxruntime", "starlette", "uvicorn", "prometheus_client", "httptools", "uvloop", "tritonclient"),
    "tflite": ("ai_edge_litert",),
    "gymnasium": ("gymnasium",),
    "atari": ("gymnasium", "ale_py"),
    "transformers": ("transformers",),
    "hooks": ("lightning", "transformers", "accelerate"),
    "tensorflow": ("tensorflow", "keras"),
    "ray": ("ray", "gymnasium"),
    "horovod": ("horovod",),
    "handoff": ("accelerate", "torchtitan", "transformers"),
    "bench": ("torchinfo", "fvcore", "deepspeed", "lightning", "accelerate", "keras"),
    "fuzz": ("atheris",),
}  # fmt: skip
# What the tests marked `data` read, in the folder of data sets.
DATA_FOLDERS = ("bccd", "cifar-10-batches-py", "FashionMNIST", "hymenoptera-160", "traces")
# Names of parts, such as ray,slurm; a skipped test of these parts is a failure.
REQUIRE_VARIABLE = "CHRONOGRAD_REQUIRE"


def _why_no_backend(name: str) -> str:
    from chronograd.backends import registry

    is_available, reason = registry.load(name).available()
    return "" if is_available else reason


def _why_no_slurm() -> str:
    from tools.slurm_cluster import why_not

    return why_not()


def _why_no_vendors() -> str:
    from tools.vendors import why_not

    return why_not()


def _why_no_namespaces() -> str:
    from benchmarks.network import why_not

    return why_not() or ""


def _why_no_data() -> str:
    from chronograd.data.published import data_folder

    missing = [name for name in DATA_FOLDERS if not (data_folder() / name).is_dir()]
    return f"not in the data folder: {', '.join(missing)}" if missing else ""


def hidden_from(parts: Iterable[str]) -> set[str]:
    """Return the packages of extras that a test with the marks of these parts cannot import."""
    every, allowed = (set(chain(*(PACKAGES.get(part, ()) for part in names))) for names in (PACKAGES, parts))
    return every - allowed


def parts_of_module(path: Path) -> list[str]:
    """Return the parts that mark all tests of a file: its code at the top may import their packages."""
    tree = ast.parse(path.read_bytes())
    marks = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    names = {node.attr for mark in marks for node in ast.walk(mark) if isinstance(node, ast.Attribute)}
    return [part for part in PARTS if part in names]


def imports_an_extra(path: Path) -> bool:
    """Return whether the code at the top of a file imports packages of an extra."""
    imported = set()
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported.add((node.module or "").partition(".")[0])
    return not imported.isdisjoint(chain(*PACKAGES.values()))


def _why_missing(part: str, *except_for: str) -> str:
    missing = [name for name in PACKAGES[part] if name not in except_for and not PathFinder.find_spec(name)]
    return f"not installed: {', '.join(missing)}" if missing else ""


# The reason why a part cannot be tested here; empty if it can.
_WHY_NOT: dict[str, Callable[[], str]] = {
    "onnx": lambda: _why_missing("onnx"),
    "serve": lambda: _why_missing("serve", "tritonclient"),
    "tflite": lambda: _why_missing("tflite"),
    "tensorflow": lambda: _why_no_backend("tf_mirrored"),
    "ray": lambda: _why_no_backend("parameter_server"),
    "horovod": lambda: _why_no_backend("horovod"),
    "slurm": _why_no_slurm,
    "netns": _why_no_namespaces,
    "gymnasium": lambda: _why_missing("gymnasium"),
    "atari": lambda: _why_missing("atari"),
    "transformers": lambda: _why_missing("transformers"),
    "hooks": lambda: _why_missing("hooks"),
    "vendors": _why_no_vendors,
    "handoff": lambda: _why_missing("handoff"),
    "bench": lambda: _why_missing("bench", "torchinfo", "deepspeed", "lightning", "accelerate", "keras"),
    "fuzz": lambda: _why_missing("fuzz"),
    "data": _why_no_data,
}


@functools.cache
def why_not(part: str) -> str:
    return _WHY_NOT[part]() if part in _WHY_NOT else ""


def required() -> tuple[str, ...]:
    """Return the parts in CHRONOGRAD_REQUIRE. Raises UsageError for an unknown part."""
    names = tuple(name for name in os.environ.get(REQUIRE_VARIABLE, "").split(",") if name)
    for name in names:
        if name not in PARTS:
            raise pytest.UsageError(f"{REQUIRE_VARIABLE} has {name!r}; write some of {','.join(PARTS)}")
    return names


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        parts = [part for part in PARTS if item.get_closest_marker(part)]
        if parts:
            item.user_properties.append(("parts", parts))
        if set(parts) - {"data"}:  # read where they are, at no cost
            item.add_marker("extra")


def parts_of(item: pytest.Item) -> list[str]:
    """Return the parts that a test is marked with."""
    parts: list[str] = dict(item.user_properties).get("parts", [])
    return parts


def skip_missing_parts(item: pytest.Item) -> None:
    """Skip a test marked with a missing part before its fixtures start."""
    for part in parts_of(item):
        if reason := why_not(part):
            pytest.skip(reason)


class Account:
    """The numbers of run and skipped tests of each optional part, printed at the end with the reasons."""

    def __init__(self, required: tuple[str, ...]) -> None:
        self.required = required
        self.ran: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.reasons: dict[str, str] = {}
        # A test of several parts may be skipped for another part; the required part is not at fault.
        self.missed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        parts = dict(report.user_properties).get("parts", [])
        is_skipped = report.skipped and not hasattr(report, "wasxfail")
        if not is_skipped and report.when != "call" and not (report.when == "setup" and report.failed):
            return
        for part in parts:
            if is_skipped:
                self.skipped[part] += 1
                self.reasons[part] = report.longrepr[2].removeprefix("Skipped: ") if report.longrepr else ""
            else:
                self.ran[part] += 1
        if is_skipped and set(parts) <= set(self.required):
            self.missed.update(parts)

    def lacking(self) -> list[str]:
        """Return the required parts with a skipped test or without any test."""
        return [part for part in self.required if part in self.missed or not self.ran[part]]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.lacking() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        lacking = self.lacking()
        shown = [part for part in PARTS if self.ran[part] or self.skipped[part] or part in lacking]
        if shown:
            terminalreporter.section("optional parts")
        for part in shown:
            reason = f" ({self.reasons[part]})" if self.skipped[part] else ""
            line = f"{part}: ran {self.ran[part]}, skipped {self.skipped[part]}{reason}"
            if part in lacking:
                line = f"FAILED {line}; {REQUIRE_VARIABLE} names it"
            terminalreporter.write_line(line, red=part in lacking)

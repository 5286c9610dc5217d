"""Pytest option `--slowest=FILE`: writes the slowest tests as a table, and fails if an unmarked test takes too long.

Without the option, no test is timed or fails: wall times on a busy machine are unreliable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

LIMIT_S = 5.0
NUM_ROWS = 40
PHASES = ("setup", "call", "teardown")
# A test with one of these marks may take longer; `make test` omits it.
UNLIMITED = frozenset({"slow", "install", "ray", "tensorflow", "horovod", "slurm", "netns"})


class Slowest:
    """Collector of the durations of all tests. pytest-xdist reports those of other processes here, too."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(PHASES, 0.0))
        self.marks: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid][report.when or "call"] += report.duration
        self.marks[report.nodeid] = sorted(UNLIMITED.intersection(report.keywords))

    def over_limit(self) -> list[str]:
        return [n for n, took in self.seconds.items() if took["call"] > LIMIT_S and not self.marks[n]]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.path.write_text(table(self.seconds, self.marks))
        if self.over_limit() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(f"the slowest tests are in {self.path}")
        for name in self.over_limit():
            took_s = self.seconds[name]["call"]
            terminalreporter.write_line(
                f"{name} took {took_s:.1f} s, above {LIMIT_S:g} s: make it quicker, or mark it `slow`", red=True
            )


def table(seconds: dict[str, dict[str, float]], marks: dict[str, list[str]]) -> str:
    """Return the page: slowest tests first, with the set-up of fixtures that a test needed first."""
    total_s = sum(sum(took.values()) for took in seconds.values())
    slowest = sorted(seconds, key=lambda name: -sum(seconds[name].values()))[:NUM_ROWS]
    head = [
        "# The slowest tests",
        "",
        f"Which tests take the longest? These are the slowest of {len(seconds)} tests, which took {total_s:.0f} s in sequence.",
        "The set-up is the time of fixtures that this test needed first. `pytest --slowest=FILE` writes this page.",
        "",
        "| test | marks | set-up | call | |",
        "|---|---|---:|---:|---|",
    ]
    return "\n".join([*head, *(_row(name, seconds[name], marks[name]) for name in slowest), ""])


def _row(name: str, took: dict[str, float], marks: Sequence[str]) -> str:
    shown = name.removeprefix("tests/").replace("|", "\\|")
    over = "over the limit" if took["call"] > LIMIT_S and not marks else ""
    return f"| `{shown}` | {', '.join(marks)} | {took['setup']:.1f} s | {took['call']:.1f} s | {over} |"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slowest",
        type=Path,
        metavar="FILE",
        help=f"write the slowest tests into FILE; fail if one that is not marked `slow` takes over {LIMIT_S:g} s",
    )


def register(config: pytest.Config) -> None:
    """Register the collector in the main process, which receives all reports."""
    path = config.getoption("slowest", None)
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Slowest(path), "slowest")

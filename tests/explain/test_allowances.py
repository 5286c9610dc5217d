"""Times that are usual, so that `explain` counts only the rest: an exchange on one machine, and the start of a process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.explain.written import STARTED, write_run

from chronograd.explain.causes import Result, _slow_link
from chronograd.explain.evidence import read, usual_exchange_s
from chronograd.explain.split import split, startup
from chronograd.hardware import catalog


@pytest.mark.parametrize("gradient_bytes", [0, 400_000])
def test_usual_exchange_is_twice_a_ring_and_2_ms(gradient_bytes: int, tmp_path: Path) -> None:
    """Two ranks send half of the gradients twice: 2 latencies, and all bytes once."""
    run = read(write_run(tmp_path / "run", work={"gradient_bytes": gradient_bytes}))
    link = catalog.link("loopback")
    ring_s = 2 * link.latency_s + gradient_bytes / link.bandwidth_bytes_per_s
    assert usual_exchange_s(run) == pytest.approx(2 * ring_s + 0.002)


@pytest.mark.parametrize(("busy_s", "allowed_s"), [(None, 10.0), (1.0, 3.0), (5.0, 7.0), (30.0, 10.0)])
def test_start_of_a_custom_loop_allows_imports(busy_s: float | None, allowed_s: float, tmp_path: Path) -> None:
    """Computing and 2 s of reading are allowed, at most 10 s; the recording began 60 s after the process."""
    start = {"process_time": STARTED - 60, "busy_s": busy_s}
    run = read(write_run(tmp_path / "run", start_up_s=1.5, start=start))
    assert run.kind == "own loop"
    assert startup(run).value == pytest.approx(60 - allowed_s + 1.5)


@pytest.mark.parametrize(("world", "sentence"), [(1, "one rank exchanges nothing"), (2, "even the slowest rank waits")])
def test_only_one_rank_exchanges_nothing(world: int, sentence: str, tmp_path: Path) -> None:
    """Two ranks that never wait exchange gradients, at no cost."""
    run = read(write_run(tmp_path / "run", lambda rank, step: {"exchange_wait_s": 0.0}, world=world))
    result = _slow_link(run, split(run))
    assert isinstance(result, Result)
    assert sentence in result.evidence[0]
    assert result.cost <= 0

"""The limit of memory: the search on simulated machines, and probes that run out of memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from chronograd import job as jobs
from chronograd.errors import InputError, RunError
from chronograd.plan.largest import Probe, find_edge
from chronograd.train.largest_batch import base_bytes, confirm, probe

NETWORKS = Path(__file__).parent
IS_LINUX = sys.platform == "linux"


def machine_that_holds(largest: int, tried: list[int]) -> object:
    def try_batch(batch: int) -> Probe:
        tried.append(batch)
        return Probe(batch, ran=batch <= largest)

    return try_batch


@pytest.mark.parametrize("largest", [1, 2, 3, 50, 96, 97, 100, 113, 500, 10_000])
@pytest.mark.parametrize("start", [1, 100, 4000])
def test_limit_does_not_depend_on_the_prediction(largest: int, start: int) -> None:
    tried: list[int] = []
    edge = find_edge(machine_that_holds(largest, tried), start, max_probes=40)  # type: ignore[arg-type]
    assert edge.largest_ran is not None
    assert edge.smallest_failed is not None
    assert edge.largest_ran <= largest < edge.smallest_failed
    assert edge.smallest_failed - edge.largest_ran <= max(1, 0.02 * largest)
    assert len(set(tried)) == len(tried) == len(edge.probes)


def test_good_prediction_needs_few_probes() -> None:
    tried: list[int] = []
    find_edge(machine_that_holds(1010, tried), 1000)  # type: ignore[arg-type]
    assert len(tried) <= 6
    none = find_edge(machine_that_holds(0, []), 100, max_probes=20)  # type: ignore[arg-type]
    assert (none.largest_ran, none.smallest_failed) == (None, 1)
    cut_short = find_edge(machine_that_holds(10**6, []), 1, max_probes=3)  # type: ignore[arg-type]
    assert cut_short.smallest_failed is None
    assert len(cut_short.probes) == 3


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> jobs.Job:
    """Return a job with a few layers on small images."""
    monkeypatch.setenv("PYTHONPATH", str(NETWORKS), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(NETWORKS))
    return jobs.from_dict(
        {
            "network": {"name": "tiny_networks:plain"},
            "data": {"name": "synthetic", "shape": [1, 8, 8], "classes": 10},
            "training": {"recipe": "sgd", "batch": 8},
            "cluster": {"device": "cpu", "threads": 1},
        }
    )


@pytest.mark.slow
@pytest.mark.skipif(not IS_LINUX, reason="RLIMIT_DATA is Linux")
def test_parent_survives_an_out_of_memory_probe(job: jobs.Job) -> None:
    base = base_bytes(job)
    assert 10**8 < base < 3 * 10**9
    limit = base + 50_000_000
    assert probe(job, 16, limit).ran
    failed = probe(job, 2_000_000, limit)
    assert not failed.ran
    assert failed.reason


@pytest.mark.slow
@pytest.mark.skipif(not IS_LINUX, reason="RLIMIT_DATA is Linux")
def test_limit_below_the_framework_is_reported(job: jobs.Job) -> None:
    with pytest.raises(RunError, match="with torch loaded"):
        probe(job, 1, 50_000_000)


def test_missing_device_is_refused(job: jobs.Job) -> None:
    with pytest.raises(InputError, match=r"cluster\.device is k80"):
        confirm(jobs.changed(job, ["cluster.device=k80"]), 8)

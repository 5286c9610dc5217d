"""Figures of docs/clusters.md and docs/backends.md equal the committed results."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import faults, sharded
from chronograd.calibrate.links import TimedCollective, fit
from chronograd.units import percent

ROOT = Path(__file__).parent.parent.parent
PAGE = " ".join((ROOT / "docs" / "clusters.md").read_text().split())


def results(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    return data


def test_rank_diagnosis_counts_match_the_results() -> None:
    rows = results("ranks")["rows"]
    one, two = ({row["network"]: row for row in rows if row["world"] == world} for world in (1, 2))
    judged = [row[name]["is_right"] for row in two.values() for name in ("step_time_s", "communication_exposed_s")]
    assert f"{sum(judged)} of {len(judged)} with two ranks" in PAGE
    wrong = {name: row["step_time_s"]["error"] for name, row in one.items() if not row["step_time_s"]["is_right"]}
    told = ", ".join(f"{name} by {-100 * error:.0f} %" for name, error in wrong.items())
    assert f"{len(wrong)} of {len(one)} steps are wrong, all predicted too short: {told}." in PAGE
    step, exposed = (two["resnet18-cifar"][name] for name in ("step_time_s", "communication_exposed_s"))
    assert (step["is_right"], exposed["is_right"]) == (True, False)
    too_long = exposed["predicted"] - exposed["measured"]
    rest = step["measured"] - exposed["measured"]
    too_short = rest - (step["predicted"] - exposed["predicted"])
    shown = f"{1000 * too_short:.0f} ms ({100 * too_short / rest:.0f} %) too short"
    assert f"exposed communication is {1000 * too_long:.0f} ms too long, and everything else is {shown}" in PAGE


def test_fault_table_matches_the_results() -> None:
    """Medians name their jobs."""
    table = faults.table(results("faults"))
    assert " ".join(table.split()) in PAGE
    assert table.splitlines()[0].count("median of jobs with any") == 2
    redone = [row["redone_steps"] for row in results("faults")["local"]["rows"] if row.get("redone_steps")]
    assert f"| {np.median(redone):.0f} in {len(redone)} jobs, at most {max(redone):.0f} |" in table


def test_table_of_sharded_backends_matches_the_results() -> None:
    """Every row has its memory within 5 %, its bytes exactly, and its loss within the contract of backends."""
    rows = results("sharded")["rows"]
    assert sharded.table(rows) in (ROOT / "docs" / "backends.md").read_text()
    assert {(row["backend"], row["ranks"]) for row in rows} == {
        (backend, ranks) for backend in ("fsdp", "tensor_parallel") for ranks in (2, 4)
    }
    for row in rows:
        assert row["memory_bytes"] == pytest.approx(row["predicted_memory_bytes"], rel=0.05)
        assert row["sent_bytes"] == row["predicted_sent_bytes"]
        assert row.get("loss_after_1", 0) <= 1e-5
        assert row.get("loss_after_20", 0) <= 1e-3
    assert sum("loss_after_20" in row for row in rows) == 10


def test_burst_gain_matches_the_measured_links() -> None:
    names = {field.name for field in fields(TimedCollective)}
    (slow,) = (link for link in results("links")["links"] if link["rate_mbit"] == 100)
    rows = [TimedCollective(**{name: value for name, value in row.items() if name in names}) for row in slow["rows"]]
    plain, burst = fit(rows), fit(rows, has_burst=True)
    shown = f"gives {8e-6 * plain.bandwidth_bytes_per_s:.0f} Mbit/s and is off by {percent(plain.error, 0)}"
    assert shown in PAGE
    off = {}
    for row in rows:
        expected_s = 2 * burst.latency_s + max(0.0, row.bytes - burst.burst_bytes) / burst.bandwidth_bytes_per_s
        off[row.bytes // 2**20] = expected_s / row.seconds - 1
    assert max(abs(off[4]), abs(off[16])) < 0.01
    assert "within 1 % at 4 and 16 MiB" in PAGE
    assert f"{-100 * off[1]:.0f} % too short at 1 MiB" in PAGE

"""The serving benchmark: its results, and a real drain and two reloads under load."""

from __future__ import annotations

import json

import pytest
from benchmarks.serving import BARE, OURS, SAVED, changes, ratios, shown

ROUNDS = {
    BARE: [[100.0, 0.01], [50.0, 0.02]],
    OURS: [[98.0, 0.08], [49.0, 0.16]],
    "LitServe": [[70.0, 0.1], [35.0, 0.2]],
}


def test_ratios_are_paired_within_rounds() -> None:
    """Rounds at half the speed change no ratio and add no spread."""
    by_name = ratios(ROUNDS)
    assert list(by_name) == [BARE, "LitServe"]
    assert (by_name[BARE].value, by_name["LitServe"].value) == pytest.approx((0.98, 1.4))
    assert by_name[BARE].low == pytest.approx(0.98)
    lines = shown(
        {"network": "net", "rounds": ROUNDS, "failed": {"MLServer": "could not be installed: no wheel"}}
    ).splitlines()
    assert "chronograd / LitServe: 1.400 (1.400 … 1.400)" in lines[3]
    assert lines[-1].strip() == "MLServer: could not be installed: no wheel"


def test_saved_summary_follows_from_the_rounds() -> None:
    saved = json.loads(SAVED.read_text())
    for row in saved["networks"]:
        assert row["ratios"] == {name: ratio.to_json() for name, ratio in ratios(row["rounds"]).items()}
        assert set(row["versions"]) >= set(row["rounds"]) - {BARE}
    assert saved["changes"]["drains"] == saved["changes"]["reloads"] == 20
    assert saved["changes"]["drain_lost"] == saved["changes"]["reload_lost"] == []


@pytest.mark.serve
@pytest.mark.slow
def test_drain_and_reloads_lose_no_request() -> None:
    found = changes(1, 2, connections=3)
    # Requests were in flight at each change: more than there are connections, on any machine.
    assert found["drain_requests"] > 3
    assert found["reload_requests"] > 2 * 3
    assert (found["drain_lost"], found["reload_lost"], found["drain_exits"]) == ([], [], [0])

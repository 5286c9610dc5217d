"""The soak test of a server: which answers count as correct, and a short real run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.soak import RIGHT, SHARES, WRONG, WRONG_BODY, Soaked, is_right, main, messages

MB = 10**6


def test_memory_growth_starts_after_the_first_tenth() -> None:
    """Caches fill with 80 MB first; then memory grows by 1 kB per request."""
    memory = [(n, 20 * MB + min(n, 1_000) * 80_000 + max(n - 1_000, 0) * 1_000) for n in range(100, 10_001, 100)]
    row = Soaked(memory=memory, seconds=10).row(10_000)
    # Medians of ten readings: from 1,000 to 1,900, and from 9,100 to 10,000.
    assert row["growth_bytes"] == pytest.approx(8_100 * 1_000)
    assert row["growth_bytes_per_1000_requests"] == pytest.approx(MB, rel=0.11)
    assert row["requests_per_s"] == 1_000


def test_valid_requests_succeed_and_expected_errors_pass() -> None:
    assert [is_right(RIGHT, status) for status in ("200", "400", "closed")] == [True, False, False]
    assert [is_right(WRONG_BODY, status) for status in ("200", "413", "503", "closed")] == [True, True, False, False]
    assert [is_right(WRONG, status) for status in ("404", "closed", "500", "TimeoutError")] == [
        True,
        True,
        False,
        False,
    ]


def test_requests_cover_all_kinds_in_a_fixed_order() -> None:
    made = messages(400)
    assert made == messages(400)
    shares = {kind: sum(one.kind == kind for one in made) / 400 for kind in SHARES}
    assert shares == pytest.approx(SHARES, abs=0.06)
    assert len({one.content for one in made}) > 390


@pytest.mark.serve
@pytest.mark.slow
def test_two_thousand_requests(tmp_path: Path) -> None:
    assert main(["--requests", "2000", "--json", str(tmp_path / "soak.json")]) == 0
    row = json.loads((tmp_path / "soak.json").read_text())
    assert sum(row["statuses"].values()) == row["requests"] == 2_000
    assert len(row["memory"]) == 100
    assert row["statuses"]["200"] > 950
    assert row["statuses"]["400"] > 500
    assert row["growth_bytes"] < 20 * MB

"""Comparisons with other packages in docs/reinforcement.md equal the committed results."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.reinforcement import RESULTS, compared, table

PAGE = Path(__file__).parent.parent.parent / "docs" / "reinforcement.md"


def test_ratios_follow_from_the_rounds_and_are_on_the_page() -> None:
    saved = json.loads(RESULTS.read_text())
    for row in saved["rows"]:
        assert row["compared"] == compared(row["rates_per_s"])
    page = PAGE.read_text()
    assert table(saved) in page
    are_met = [one["is_met"] for row in saved["rows"] for one in row["compared"]]
    assert f"{sum(are_met)} of {len(are_met)} are met" in " ".join(page.split())
    assert all(f"{name} {saved['versions'][name]}" in page for name in ("torchrl", "rlox"))
    assert {"agent", "uniform, 4 floats, batch 32"} <= {row["setting"] for row in saved["rows"]}


def test_ratios_are_paired_within_rounds() -> None:
    """Rounds at half the speed change no ratio. Half of rlox's rate meets its goal; half of torchrl's does not."""
    rows = compared({"chronograd": [4.0, 2.0], "rlox": [8.0, 4.0], "torchrl": [8.0, 4.0]})
    assert [(row["ratio"], row["low"], row["high"], row["is_met"]) for row in rows] == [
        (0.5, 0.5, 0.5, True),
        (0.5, 0.5, 0.5, False),
    ]

"""ONNX export of networks: one success, one failure, and the page equals the saved results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.onnx_zoo import SAVED, main, networks, page

ROOT = Path(__file__).parent.parent.parent
OWN = ROOT / "tests" / "deploy" / "exported_networks.py"


@pytest.mark.onnx
def test_export_failures_are_saved_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, shown = tmp_path / "saved.json", tmp_path / "page.md"
    monkeypatch.setattr("benchmarks.onnx_zoo.SMALLER", {f"{OWN}:Chooses": ["data.shape=[1,8,8]", "data.classes=4"]})
    assert main(["lenet5", "--saved", str(saved)]) == 0
    assert main([f"{OWN}:Chooses", "--saved", str(saved)]) == 0
    rows = json.loads(saved.read_text())["rows"]
    assert [row["network"] for row in rows] == ["lenet5", f"{OWN}:Chooses"]
    assert rows[0]["holds"]
    assert rows[0]["reason"] is None
    assert "depend" in rows[1]["reason"]
    shown.write_text("# Exporting\n\nText.\n\n## Networks\n\nyesterday\n")
    assert main(["--page", str(shown), "--saved", str(saved)]) == 0
    text = shown.read_text()
    assert text.startswith("# Exporting\n\nText.\n\n## Networks\n\n1 of 2 networks export")
    assert "| the amount of computation depends on values of a tensor |" in text
    assert "yesterday" not in text
    assert text.index("Chooses") < text.index("`lenet5`")


def test_page_matches_the_saved_results() -> None:
    saved = json.loads(SAVED.read_text())
    assert (ROOT / "docs" / "exporting.md").read_text().endswith(page(saved["rows"], saved["versions"]))
    assert {row["network"] for row in saved["rows"]} <= set(networks())
    assert any(row["reason"] for row in saved["rows"])
    assert any(row.get("holds") for row in saved["rows"])

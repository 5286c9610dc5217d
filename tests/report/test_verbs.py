"""`chronograd report` and `chronograd compare`, from files on disk."""

from __future__ import annotations

import json

import pytest

from chronograd.cli.main import main


@pytest.fixture
def runs(predicted, measured, tmp_path):
    """Write a run directory and a record file."""
    folder = tmp_path / "run-1"
    folder.mkdir()
    measured[1].save(folder / "record.json")
    predicted[1].save(tmp_path / "told.json")
    return [str(tmp_path / "told.json"), str(folder)]


def test_compare_json(runs, capsys):
    assert main(["compare", *runs, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["a"]["kind"], data["b"]["kind"]) == ("predicted", "measured")
    by_name = {q["name"]: q for q in data["quantities"]}
    step = by_name["step_time_s"]
    assert step["a"]["value"] == pytest.approx(0.1)
    assert step["difference"] == pytest.approx(-0.02)
    assert step["ratio"] == pytest.approx(0.8)
    assert step["intervals_overlap"] is False  # 90 … 110 ms and 72 … 88 ms
    assert by_name["mfu"]["ratio"] is None
    assert by_name["mfu"]["a"]["reason"] == "no peak is known"


def test_compare_table(runs, capsys):
    assert main(["compare", *runs]) == 0
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.strip().startswith("step time"))
    assert row.split()[:7] == ["step", "time", "100", "ms", "80", "ms", "0.800"]
    assert "mfu" not in out.lower()  # both lack it


def test_report(runs, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["report", *runs, "--out", str(out), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["page"] == str(out)
    assert data["notebook"] is None
    assert data["records"] == ["told", "run-1"]
    assert all(s["takeaway"] for s in data["sections"])
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_page_states_the_kinds_of_its_records(runs, measured, tmp_path):
    measured[2].save(tmp_path / "more.json")
    for given, words in (
        (runs, "2 records, predicted and measured"),
        ([runs[1], str(tmp_path / "more.json")], "2 records, measured"),
        (runs[:1], "One record"),
    ):
        assert main(["report", *given, "--out", str(tmp_path / "page.html")]) == 0
        assert f">{words}<" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_missing_record_is_refused(tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "--out", str(out)]) == 2
    assert "no record at" in capsys.readouterr().err
    assert not out.exists()

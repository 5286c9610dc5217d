"""The accuracy table and its page: synthetic rows, a small table, and the page in the docs."""

from __future__ import annotations

import csv
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.sources import row_of
from benchmarks.sources import timm as timm_source

from benchmarks import accuracy
from chronograd.calibrate.tables import join
from chronograd.fit.tables import ThroughputRow, ThroughputTable
from chronograd.hardware import catalog
from chronograd.predict.calibration import from_datasheet
from chronograd.report import plots

ROOT = Path(__file__).parent.parent
PAGE, RESULTS = ROOT / "docs" / "accuracy.md", ROOT / "benchmarks" / "results" / "accuracy.json"


def result(*sources: str, date: str = "2026-01-01", **seconds: float) -> dict[str, Any]:
    rows = [
        row_of(s, "a rule", 0.1, ["one", "two", "three"], [1.0, 1.3, 0.9], [True, False, True], by_seed=(0.1, 0.2))
        for s in sources
    ]
    return {
        "date": date,
        "versions": {"chronograd": "0", "torch": "2.0"},
        "python": "3.11",
        "seconds": seconds,
        "rows": [json.loads(json.dumps(r.to_json())) for r in rows],
    }


def test_row_in_closed_form() -> None:
    row = row_of("s", "r", None, ["a", "b", "c", "b"], [1.0, 1.3, 0.9, 2.0], [True, False, True, False])
    assert (row.n, row.mape, row.worst, row.coverage80) == (4, pytest.approx(1.4 / 4), pytest.approx(1.0), 0.5)
    assert row.median_ape == pytest.approx(0.2)
    assert row.p90_ape == pytest.approx(0.3 + 0.7 * (1.0 - 0.3))  # between the third and the fourth
    # Largest logarithmic error first, each name once.
    assert row.worst_cases == (("b", 2.0), ("c", 0.9), ("a", 1.0))
    assert row_of("s", "r", None, ["a"], [0.5]).coverage80 is None


def test_rerun_sources_replace_their_old_rows() -> None:
    old, new = result("a", "b", "b", x=1.0, y=2.0), result("b", "c", date="2026-02-02", y=3.0)
    found = accuracy.merged(old, new)
    assert [r["source"] for r in found["rows"]] == ["a", "b", "c"]
    assert (found["date"], found["seconds"]) == ("2026-02-02", {"x": 1.0, "y": 3.0})
    assert accuracy.merged({}, new) == new


def test_left_out_devices_are_grouped_by_line_of_cards() -> None:
    rule, devices = "inference, each device left out", ["t4, fp16", "t4, fp32", "rtx4090, fp16", "mi210, fp32"]
    row = row_of(
        "s", rule, None, devices, [1.1, 0.7, 1.0, 0.5], [True, False, True, False], {"device, precision": devices}
    )
    table = accuracy.left_out([json.loads(json.dumps(row.to_json())), *result("other")["rows"]])
    assert [line for line in table if "**all**" not in line][2:-1] == [
        "| AMD server | mi210 | 1 | 50.0 % | −50.0 % | 0 % |",
        "| desktop | rtx4090 | 1 | 0.0 % | +0.0 % | 100 % |",
        "| small server | t4 | 2 | 20.0 % | −10.0 % | 50 % |",
    ]
    assert "| small server | **all** | 2 | 20.0 % | −10.0 % | 50 % |" in table


def test_coverage_is_the_mean_of_rows_that_have_it() -> None:
    rows: list[dict[str, Any]] = [
        {"coverage80": 0.9, "n": 1}, {"coverage80": 0.7, "n": 1000}, {"coverage80": None, "n": 5},
    ]  # fmt: skip
    assert accuracy.coverage(rows) == (pytest.approx(0.8), 2)


@pytest.mark.parametrize(
    ("old", "now", "expected"),
    [
        (0.10, 0.121, "worse"),
        (0.10, 0.12, ""),  # by 2 percentage points exactly
        (0.295, 0.32, ""),  # by 2.5 percentage points, but less than a tenth
        (0.121, 0.10, "better"),
        (0.10, None, "gone"),
        (None, 0.10, "new"),
    ],
)
def test_change_needs_two_points_and_a_tenth(old: float | None, now: float | None, expected: str) -> None:
    before, after = (None if mape is None else {"mape": mape} for mape in (old, now))
    assert accuracy.verdict(before, after) == expected


def test_changes_show_figures_before_and_now() -> None:
    """A source that the older version did not score has no line: its rules are not new."""
    now = result("one", "two", "never scored before")
    old = result("one", "two", "dropped")["rows"]
    old[0].update(mape=0.1, bias=-0.02, coverage80=None, n=2)
    lines = accuracy.changes({**now, "before": {"version": "v0", "rows": old}})
    assert lines == [
        ["one", "a rule", "2 → 3", "10.0 % → 13.3 %", "−2.0 % → +6.7 %", " → 67 %", "worse"],
        ["two", "a rule", "3", "13.3 %", "+6.7 %", "67 %", ""],
        ["dropped", "a rule", "3", "13.3 %", "+6.7 %", "67 %", "gone"],
    ]
    text = accuracy.page({**now, "before": {"version": "v0", "rows": old}})
    assert "v0 and this version scored the same rows of 3 sources in one run. 2 of 3 rules changed" in text
    assert "| one | a rule | 2 → 3 | 10.0 % → 13.3 % | −2.0 % → +6.7 % |  → 67 % | worse |\n| dropped |" in text
    text = accuracy.page({**now, "before": {"version": "v0", "rows": now["rows"]}})
    assert "of 3 sources in one run. No rule is new, better, worse or gone." in text
    assert "Changes since" not in accuracy.page(now)


def test_rows_before_are_merged_if_they_are_of_one_version() -> None:
    old, new = ({**result(*own), "before": {"version": "v1", "rows": result(*own)["rows"]}} for own in ("ab", "bc"))
    assert [r["source"] for r in accuracy.merged(old, new)["before"]["rows"]] == ["a", "b", "c"]
    later = {**new, "before": {**new["before"], "version": "v2"}}
    assert accuracy.merged(old, later)["before"] == later["before"]
    assert accuracy.merged(old, result("b"))["before"] == old["before"]


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="older versions are in the repository")
def test_older_version_scores_the_same_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Version v9 of a clone halves the times of PALEO's formulas, and one of its rules has another name."""
    clone = tmp_path / "clone"
    git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "clone", "-qs", "--no-tags", str(ROOT), str(clone)], check=True)
    for name, now, then in (
        ("src/chronograd/predict/paleo.py", "return (flops / platform.peak", "return 0.5 * (flops / platform.peak"),
        ("benchmarks/sources/paleo.py", "formulas, against the measurements", "an old rule against the measurements"),
    ):
        text = (clone / name).read_text()
        assert now in text
        (clone / name).write_text(text.replace(now, then))
    subprocess.run([*git, "commit", "-qam", "older"], check=True)
    subprocess.run([*git, "tag", "v9"], check=True)
    monkeypatch.setattr(accuracy, "ROOT", clone)
    (tmp_path / "tables").mkdir()
    saved = tmp_path / "r.json"
    assert (
        accuracy.main(["--measured", str(tmp_path / "tables"), "--only", "paleo", "--since", "--save", str(saved)]) == 1
    )
    head, _, code, paper, old = capsys.readouterr().out.splitlines()
    assert head == "v9 → this tree"
    assert [line.split()[-1] for line in (code, paper, old)] == ["better", "new", "gone"]
    assert json.loads(saved.read_text())["before"]["version"] == "v9"


def test_page_opens_with_the_main_questions() -> None:
    """Each question has the range of its rows; a question without rows is omitted."""
    lines = accuracy.answers([
        {"source": "timm, training, rtx3090, nchw", "rule": "fit on 25 rows", "mape": 0.1, "bias": -0.02, "coverage80": 0.8, "n": 900},
        {"source": "timm, training, rtx3090, nhwc", "rule": "fit on 25 rows", "mape": 0.07, "bias": 0.01, "coverage80": 0.8, "n": 600},
        {"source": "Pollux", "rule": "r", "mape": 0.06, "coverage80": None, "n": 5},
    ])  # fmt: skip
    assert lines[2:] == [
        "| an unseen network on a GPU, from 25 timed networks | 7.0 % to 10.0 % | −2.0 % to +1.0 % | 80 % | 1,500 |",
        "| up to 64 GPUs, from timings on a few | 6.0 % |  |  | 5 |",
    ]


def test_page_has_averages_and_draws_median_and_p90() -> None:
    """The figure weights the rows of a question by their cases: (3 · 10 % + 1 · 2 %) / 4 = 8 %."""
    first = {"source": "Pollux", "rule": "r", "mape": 0.11, "median_ape": 0.1, "p90_ape": 0.2, "n": 3}
    second = {"source": "TensorFlow", "rule": "r", "mape": 0.03, "median_ape": 0.02, "p90_ape": 0.04, "n": 1}
    assert accuracy.expectations([first, second]) == [
        "- **Up to 64 GPUs, from timings on a few**: 3 % to 11 % off on average, nine of ten within 4 % to 20 %."
    ]
    (row, rest) = accuracy.picture([first, second]).rows()
    assert row["error of a prediction, %"] == pytest.approx(8)
    assert rest["error of a prediction, %"] == pytest.approx(16 - 8)


def test_breakdown_has_bias_and_coverage_of_each_value() -> None:
    row = row_of(
        *("s", "r", None, ["1", "2", "3"], [1.1, 0.8, 1.0], [True, False, True]), groups={"device": ["a", "a", "b"]}
    )
    assert row.bias == pytest.approx(-0.1 / 3)
    lines = accuracy.breakdown(row.to_json())
    assert lines[2:4] == ["| a | 2 | 15.0 % | −5.0 % | 50 % |", "| b | 1 | 0.0 % | +0.0 % | 100 % |"]


def test_page_has_every_row_with_its_worst_cases() -> None:
    text = accuracy.page(result("one source", "two source"))
    for source in ("one source", "two source"):
        assert f"| {source} | a rule | 3 | **13.3 %** | +6.7 % | 10.0 % | 26.0 % | 10.0 % | 67 % narrow |" in text
        assert f"<summary>{source}</summary>" in text
    worst = "| furthest off: a rule | predicted / measured |\n|---|---:|\n| two | 1.30 |\n| three | 0.90 |\n| one | 1.00 |\n"
    assert worst in text
    assert "- a rule: by seed 10.0 %, 20.0 %" in text
    assert (
        "2 of 2 rows with an aim miss it: their mean is bold. 80 % intervals cover 67 % on average over 2 rows.\n2 are too narrow"
        in text
    )
    assert text.endswith("\n")
    assert "nan" not in text


@pytest.mark.skipif(not PAGE.exists(), reason="no page was written yet")
def test_docs_page_matches_the_saved_results() -> None:
    result = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert PAGE.read_text(encoding="utf-8") == accuracy.page(result)


def test_docs_figure_matches_the_saved_results(tmp_path: Path) -> None:
    drawn = tmp_path / "accuracy.svg"
    plots.save(accuracy.picture(json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]), drawn)
    assert PAGE.with_suffix(".svg").read_text(encoding="utf-8") == drawn.read_text(encoding="utf-8")


def test_command_writes_the_page_and_refuses_bad_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, written = tmp_path / "r.json", tmp_path / "page.md"
    saved.write_text(json.dumps(result("a")))
    assert accuracy.main(["--page", str(written), "--from", str(saved)]) == 0
    assert written.read_text() == accuracy.page(result("a"))
    for wrong, message in (
        (["--page", str(written)], "--page needs --from"),
        ([], "--measured must be a folder"),
        (["--measured", str(tmp_path / "nowhere")], "--measured must be a folder"),
        (["--measured", str(tmp_path), "--only", "nothing"], "invalid choice"),
    ):
        with pytest.raises(SystemExit):
            accuracy.main(wrong)
        assert message in capsys.readouterr().err


def test_command_runs_prints_and_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PALEO's own cases need no table; a folder without tables gives no other rows."""
    saved = tmp_path / "results" / "r.json"
    saved.parent.mkdir()
    saved.write_text(json.dumps(result("kept")))
    arguments = ["--measured", str(tmp_path), "--only", "paleo", "tensorflow", "--save", str(saved)]
    assert accuracy.main([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed["seconds"]) == {"paleo", "tensorflow"}
    assert printed["rows"]
    both = json.loads(saved.read_text())
    assert both["rows"] == [*printed["rows"], *result("kept")["rows"]]  # in the order of the page
    assert accuracy.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(printed["rows"]) + 1


def write_timm(folder: Path, layout: str, rows: list[ThroughputRow]) -> None:
    with (folder / f"benchmark-infer-amp-{layout}-pt240-cu124-rtx3090.csv").open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["model", "infer_img_size", "infer_batch_size", "infer_samples_per_sec", "param_count"])
        table.writerows([(r.model, r.image_size, r.batch, r.batch / r.seconds, r.params_m) for r in rows])


@pytest.mark.slow
def test_timm_in_both_layouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each network has the same error in both layouts. The residual learns two fifths of that error."""
    timm = pytest.importorskip("timm")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, value in (("CALIBRATE", 10), ("SEEDS", 2)):
        monkeypatch.setattr(timm_source, name, value)
    folder = tmp_path / "timm"
    folder.mkdir()
    names = timm.list_models("test_*")
    residual = dict(zip(names, np.exp(0.08 * np.random.default_rng(0).standard_normal(len(names))), strict=True))
    truth = from_datasheet(catalog.device("rtx3090"), "fp16")
    for layout in ("nchw", "nhwc"):
        asked = [ThroughputRow(name, 160, 64, 1.0) for name in names]
        timed = join(ThroughputTable("t.csv", tuple(asked), "inference", "fp16", layout), asked).timed
        rows = [
            replace(t.row, seconds=t.sample.work.total_seconds(truth) * float(residual[t.row.model])) for t in timed
        ]
        other = [replace(rows[0], params_m=99.0), replace(rows[0], model="no_such_network")]
        write_timm(folder, layout, rows + other)
    (folder / "benchmark-infer-amp-nhwc-pt240-cu124-abacus.csv").write_text(
        "model,infer_batch_size,infer_samples_per_sec\na,1,1\n"
    )
    said: list[str] = []
    found = timm_source.rows(tmp_path, said.append)
    assert [(r.source, r.rule, r.aim) for r in found[:3]] == [
        ("timm, inference, rtx3090, nchw", "fit on 25 rows, prior of round numbers", 0.10),
        ("timm, inference, rtx3090, nchw", "fit on 25 rows, prior of nhwc", 0.085),
        ("timm, inference, rtx3090, nchw", "network also timed in nhwc, fit on 25 rows", 0.07),
    ]
    assert {r.source for r in found[3:]} == {"timm, inference, rtx3090, nhwc"}
    assert any("abacus.csv is left out" in line for line in said)
    for row in found:
        assert row.n == 2 * (len(names) - 10)
        assert len(row.by_seed) == 2
        assert row.mape == pytest.approx(np.mean(row.by_seed))
        assert row.note.startswith("2 of 20 rows left out: 1 with other parameters, 1 not in this timm, 0 others")
    for alone, _, carried in (found[:3], found[3:]):
        assert carried.mape < 0.6 * alone.mape

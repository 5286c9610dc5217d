"""The serving study: page values for known results, and a run of its smallest size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chronograd.cli.main import main
from chronograd_lab.common.results import Results
from chronograd_lab.common.written import ClaimError
from chronograd_lab.studies.serving import study
from chronograd_lab.studies.serving.study import STUDY

FOLDER = Path(__file__).parents[3] / "docs" / "studies"
SETTINGS = {**STUDY.sizes["laptop"], "networks": ["net"], "of_knee": [0.3, 0.9, 1.2], "asked": [0.3, 0.9]}


def results(factor: float, gain: float = 1.5) -> Results:
    """Return results of a server predicted to answer in 10, 16 and 30 ms that takes `factor` times as long."""
    predicted = {30.0: 0.010, 90.0: 0.016, 120.0: 0.030}

    def point(rate: float, repeat: int) -> dict[str, Any]:
        names = ("latency_mean_s", "latency_p50_s", "latency_p95_s", "latency_p99_s")
        times = dict.fromkeys(names, predicted[rate])
        measured = dict.fromkeys(names, predicted[rate] * factor * (1 + 0.01 * repeat - 0.01))
        return {"network": "net", "of_knee": rate / 100, "rate": rate, "repeat": repeat, **measured, "requests": 500,
                "failed_requests": 0, "run_s": 0.008 * factor, "rows_of_batch": 1.0, "late_p99_s": 0.0, "taken_by_host": 0.01,
                "taken_by_others": 0.02, "lone_s": 0.009, "predicted": times, "model": {name: 0.5 * s for name, s in times.items()},
                "beside": {name: 0.8 * s for name, s in times.items()}, "first": {name: 1.1 * s for name, s in times.items()}}  # fmt: skip

    server = {"network": "net", "repeat": 0, "knee": 100.0, "most": 150.0, "lone_s": 0.009, "batch_s": {"1": 0.008, "4": 0.016}, "most_rows": 4,
              "loop_s": 0.0005, "answer_s": 0.0001, "slice_s": 0.0014, "travel_s": 0.0005, "factors": [1.0], "wake_s": {"0.03": 0.001}}  # fmt: skip
    closed = [
        {"network": "net", "repeat": repeat, "way": way, "requests_per_s": rate * (1 + 0.01 * repeat), "p99_s": 0.02}
        for repeat in range(3)
        for way, rate in (("one by one", 100.0), ("batched", 100.0 * gain))
    ]
    asleep = [
        {**point(rate, 1), "latency_p50_s": 3 * factor * predicted[rate], "taken_by_host": 0.3} for rate in (30.0, 90.0)
    ]
    rows = {
        "servers": [server],
        "points": [point(rate, n) for n in range(3) for rate in predicted],
        "closed": closed,
        "asleep": asleep,
    }
    curve = {
        "rate": [30.0, 120.0],
        "latency_p50_s": [0.01, 0.03],
        "latency_p95_s": [0.01, 0.03],
        "latency_p99_s": [0.01, 0.03],
    }
    return Results("serving", "laptop", SETTINGS, rows=rows, curves={"net": curve})


def test_correct_and_wrong_predictions() -> None:
    assert study.values(results(1.1))["near"]["p50"] == {"count": 2, "of": 2, "median": pytest.approx(1 - 1 / 1.1)}
    assert study.values(results(1.5))["near"]["p50"]["count"] == 0


def test_knee_is_where_the_mean_doubles() -> None:
    """A single request takes 9 ms (0.9 of the lowest rate's mean); 18 ms is 1/7 of the way from 16 to 30."""
    for factor in (1.0, 2.0):  # a uniformly slower server has the same knee
        knee = study.values(results(factor))["knees"]["net"]
        assert knee["measured"] == pytest.approx(90 + 30 / 7)
        assert knee["error"] == pytest.approx(0)


def test_unmeasured_knee_has_no_error() -> None:
    below = results(1.0)
    points = [point for point in below.rows["points"] if point["rate"] < 100]
    below = replace(below, rows={**below.rows, "points": points})
    assert study.values(below)["knees"]["net"]["error"] is None
    table = study.blocks(below)["The knee"].table
    assert table is not None
    assert table.rows[0][3:6] == ["–", "–", "–"]


def test_http_share_is_the_mean_over_rounds() -> None:
    """Reading, answering and transfer take 1 of 9 ms."""
    assert study.values(results(1.0))["http"]["net"] == pytest.approx(1 / 9)


def test_gain_from_better_inputs() -> None:
    knowing = study.values(results(0.8))["knowing"]
    assert {name: (one["count"], round(one["median"], 3)) for name, one in knowing.items()} == {
        "model": (0, 0.375), "separate": (2, 0.0), "first": (0, 0.375), "predicted": (0, 0.25),
    }  # fmt: skip


def test_sleep_cost_and_host_time() -> None:
    asleep = study.values(results(1.0))["asleep"]
    assert asleep == {"times": pytest.approx(3), "host": 0.3, "host_awake": pytest.approx(0.01), "cases": 2}


def test_insignificant_gain_is_not_reported() -> None:
    for gain, is_significant in ((1.5, "yes"), (1.005, "no")):
        table = study.blocks(results(1.0, gain=gain))["The gain of batching"].table
        assert table is not None
        assert table.rows[0][-1] == is_significant


def test_worse_predictions_contradict_the_page() -> None:
    published = Results.load(FOLDER / "serving" / "results.json")
    for point in published.rows["points"]:
        point["latency_p50_s"] *= 1.5
    with pytest.raises(ClaimError, match="The queue predicts 0 of 9 median latencies within 15 %"):
        STUDY.page(published)


@pytest.mark.serve
@pytest.mark.slow
def test_smallest_size_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "run", "serving", "--size", "smoke", "--out", str(tmp_path)]) == 0
    assert "The knee: 1 row of size smoke." in capsys.readouterr().out
    found = Results.load(tmp_path / "results.json")
    assert {row["network"] for row in found.rows["points"]} == {"lenet5"}
    below, beyond = sorted(found.rows["points"], key=lambda row: row["rate"])
    assert below["failed_requests"] == 0
    assert beyond["failed_requests"] < beyond["requests"]  # a busy machine also rejects some


def test_rate_is_a_share_of_the_measured_knee() -> None:
    """The server's estimate set the rates. The page divides by the measured knee, which may differ."""
    results = Results.load(FOLDER / "serving" / "results.json")
    table = next(s for s in STUDY.page(results).sections if s.title.startswith("Latency")).table
    knees = next(s for s in STUDY.page(results).sections if s.title == "The knee").table
    assert table is not None
    assert knees is not None
    measured = {row[0]: float(row[4].replace(",", "")) for row in knees.rows}
    for network, share, rate, *_ in table.rows:
        assert int(share.split()[0]) == pytest.approx(100 * float(rate.replace(",", "")) / measured[network], abs=1)

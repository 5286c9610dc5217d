"""Time to accuracy: the smoke size from run to page, and runs with a known speed model."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronograd.figure import Lines
from chronograd.predict.speed import OPTIMUS_RESNET50, SpeedModel
from chronograd.report.html import render_html
from chronograd.units import seconds
from chronograd_lab.common.published_runs import RESNET50_EPOCHS_TO_92
from chronograd_lab.common.results import Results, Row
from chronograd_lab.common.rows import matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.written import ClaimError
from chronograd_lab.studies.depth_and_device.optimus_chain import CHAIN, TARGET
from chronograd_lab.studies.time_to_accuracy import study
from chronograd_lab.studies.time_to_accuracy.study import STUDY, experiments
from chronograd_lab.studies.time_to_accuracy.time_forecasts import (
    ALL_REDUCE,
    ASYNCHRONOUS,
    SINGLE,
    forecasts,
    of_optimus,
    on_device,
    reached,
)

TRUTH = SpeedModel("asynchronous", (0.02, 0.006, 0.004, 0.001))
PAIRS = [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2)]
ALWAYS = ["Time to 92 % against workers", "The best number of workers"]
LAST = ["All-reduce of lenet5 on v100, predicted", "Its steps per second"]
STUDIES = Path(__file__).parents[3] / "docs" / "studies"
FITTED = ["Steps per second of parameter servers here", "Time to accuracy here", "More workers, 4 servers"]


@pytest.mark.ray
def test_smoke_size_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    settings = STUDY.sizes["smoke"]
    results = STUDY.conduct(StudyRunner(tmp_path, STUDY.name, "smoke", lambda _: None), settings)
    results.save(tmp_path / "results.json")
    results = Results.load(tmp_path / "results.json")
    assert [row["run"] for row in results.rows["runs"]] == list(experiments(settings))
    assert all(row["steps_per_s"] > 0 for row in results.rows["runs"])
    assert results.rows["runs"][-1]["staleness"] > 0
    assert results.rows["points"] == []  # one pair of workers and servers gives no speed model
    page = STUDY.page(results)
    assert [s.title for s in page.sections] == [*ALWAYS, *LAST]
    assert render_html(page).startswith("<!doctype html>")


def test_target_of_the_smoke_size_is_twice_chance() -> None:
    """Two epochs of a few hundred digits reach it, with parameter servers, too."""
    settings = STUDY.sizes["smoke"]
    assert (settings["data"], settings["target_accuracy"]) == ("digits", pytest.approx(2 / 10))


def made_up(stale: float) -> Results:
    """Return runs with the speed of TRUTH that reach the target after 4 epochs of 20 steps, delayed by staleness."""
    settings = {**STUDY.sizes["smoke"], "pairs": PAIRS, "ranks": [2]}

    def run(method: str, name: str, workers: int, servers: int | None, speed: float, epochs: float) -> Row:
        return {"run": name, "method": method, "workers": workers, "servers": servers, "steps_per_s": speed, "epochs": epochs,
                "staleness": workers - 1.0 if servers else None, "time_s": 20 * epochs / speed, "accuracy": 0.8}  # fmt: skip

    runs = [run(SINGLE, f"single, seed {seed}", 1, None, 50.0, 4.0) for seed in (0, 1)]
    runs.append(run(ALL_REDUCE, "all-reduce, 2 ranks", 2, None, TRUTH.all_reduce().steps_per_s(2), 4.0))
    for w, p in PAIRS:
        name = f"asynchronous, {w} worker{'s' * (w > 1)}, {p} server{'s' * (p > 1)}"
        runs.append(run(ASYNCHRONOUS, name, w, p, TRUTH.steps_per_s(w, p), 4 * (1 + stale * (w - 1))))
    asked = {**of_optimus(settings["optimus"]), **on_device(settings["device"]), **forecasts(runs, settings)}
    return Results(STUDY.name, "smoke", settings, {"runs": runs, **asked})


def test_planted_speed_model_predicts_times() -> None:
    results = made_up(stale=0.0)
    rows = results.rows
    assert [c["value"] for c in rows["coefficients"]] == pytest.approx(TRUTH.coefficients)
    assert all(abs(p["left_out"]) < 1e-6 for p in rows["points"])
    times = {(row["series"], row["workers"]): row for row in rows["here"]}
    assert times["4 servers", 8]["time_s"] == pytest.approx(80 / TRUTH.steps_per_s(8, 4))
    assert times[ALL_REDUCE, 2]["time_s"] == pytest.approx(80 * (0.02 / 2 + 0.006 / 2 + 2 * 0.004))
    for row in rows["here"]:
        assert 1.1 < row["high"] / row["time_s"] < 1.3  # the 0.1 of the seeds, and little from the fit
        assert row["f_low"] <= row["steps_per_s"] <= row["f_high"]
    assert list(STUDY.blocks(results)) == [*ALWAYS, *FITTED, *LAST]
    runs = study.values(results)["runs"]
    assert (runs["inside"], runs["of"]) == (7, 7)


def test_staleness_is_separate_from_speed() -> None:
    results = made_up(stale=1.0)
    values = study.values(results)
    assert values["last"]["run"] == "asynchronous, 4 workers, 1 server"
    assert values["last"]["times"] == pytest.approx(4)
    assert values["last"]["staleness"] == 3
    assert values["here"]["on_1_server"]["workers"] == 1
    assert values["here"]["on_1_server"]["time_s"] == pytest.approx(80 * 0.031)
    assert values["runs"]["inside"] == 3  # the runs of one worker and the all-reduce run
    assert values["runs"]["own_off"] == pytest.approx(0, abs=1e-6)
    table = STUDY.blocks(results)["Time to accuracy here"].table
    assert table is not None
    *_, own = next(row for row in table.rows if row[0] == "asynchronous, 4 workers, 2 servers")
    assert float(own) == pytest.approx(16 * 20 / TRUTH.steps_per_s(4, 2), abs=0.05)


def test_runs_without_others_at_the_target_have_no_prediction() -> None:
    rows = made_up(stale=1.0).rows
    late = next(run for run in rows["runs"] if run["method"] == ALL_REDUCE)
    late.update(time_s=None, epochs=None)
    for name, *_, predicted, own in study._runs_table(rows).rows:
        is_predicted = not name.startswith("single") and name != late["run"]
        assert [predicted != "–", own != "–"] == [is_predicted] * 2, name


def test_runs_inside_the_band_contradict_the_page() -> None:
    results = Results.load(STUDIES / "time-to-accuracy" / "results.json")
    for row in results.rows["here"]:
        row["low"], row["high"] = 0.0, 1000.0
    with pytest.raises(ClaimError, match="assumes that staleness costs nothing"):
        STUDY.page(results)


def test_optimal_worker_counts_of_optimus() -> None:
    rows = of_optimus(STUDY.sizes["laptop"]["optimus"])
    found = {(row["batch"], row["series"]): (row["best"], row["exact"]) for row in rows["optimus_best"]}
    for key, (whole, real) in {(40, "2 servers"): (4, 4.07), (40, "4 servers"): (6, 5.76), (128, "2 servers"): (7, 7.29),
                               (128, "4 servers"): (10, 10.30)}.items():  # fmt: skip
        assert found[key] == (whole, pytest.approx(real, abs=0.005))
    one = next(r for r in rows["optimus"] if (r["batch"], r["series"], r["workers"]) == (128, "2 servers", 7))
    epochs, low, high = RESNET50_EPOCHS_TO_92
    with_128 = SpeedModel("synchronous", OPTIMUS_RESNET50.coefficients, 128)
    steps = epochs * 50_000 / 128
    assert one["time_s"] == pytest.approx(steps / with_128.steps_per_s(7, 2))
    assert one["high"] / one["time_s"] == pytest.approx((high / low) ** 0.5)
    # Three runs took 33, 29 and 26 epochs.
    assert one["real_time_s"] == pytest.approx(one["time_s"] * (33 * 29 * 26) ** (1 / 3) / epochs)
    # A noise scale of 8 batches of 128: steps grow by (1 + 1024/40) / (1 + 8).
    (more,) = {row["steps"] for row in rows["optimus_best"] if row["batch"] == 40}
    assert more == pytest.approx(steps * 26.6 / 9)


def test_page_shows_curves_for_predicted_epochs() -> None:
    """Epochs come from the results of `depth-and-device`, and times from the published coefficients."""
    depth = Results.load(STUDIES / "depth-and-device" / "results.json")
    (ahead,) = matching(depth.rows["ahead"], rule=CHAIN, target=TARGET)
    results = Results.load(STUDIES / "time-to-accuracy" / "results.json")
    epochs = results.settings["optimus"]["epochs"]
    assert epochs == [ahead["epochs"], ahead["low"], ahead["high"]]
    held = matching(depth.rows["held"], rule=CHAIN, target=TARGET)
    assert results.settings["optimus"]["real_epochs"] == [row["seen"] for row in held]
    page = STUDY.page(results)
    figure = page.sections[0].figure
    assert figure is not None
    a0, a1, a2, a3, a4 = 1.02, 2.78, 4.92, 0.0, 0.02
    fastest: dict[int, tuple[float, int, float]] = {}
    for panel, count in zip(figure.panels, (epochs[0], (33 * 29 * 26) ** (1 / 3)), strict=True):
        assert isinstance(panel, Lines)
        assert [series.label for series in panel.series] == ["2 servers", "4 servers"]
        for series, p in zip(panel.series, (2, 4), strict=True):
            assert list(series.x) == list(range(1, 21))
            steps = count * 50_000 / 128
            days = [steps * (a0 * 128 / w + a1 + a2 * w / p + a3 * w + a4 * p) / 86400 for w in range(1, 21)]
            assert list(series.y) == pytest.approx(days, rel=1e-4)
            fastest.setdefault(p, (min(days) * 86400, days.index(min(days)) + 1, days[-1] / min(days)))
    best = study.values(results)["best"]["at_128"]
    for p, (time_s, workers, slower) in fastest.items():
        assert f"{seconds(time_s)} with {workers} workers on {p} servers" in page.sections[0].takeaway
        assert best[f"on_{p}_servers"]["slower"] == pytest.approx(slower)
    assert [panel.y_label for panel in figure.panels if isinstance(panel, Lines)] == ["time to 92 %, days"] * 2


def test_epoch_and_time_at_a_target() -> None:
    columns = {"epoch": [1, 2, 3], "seconds": [2.0, 4.0, 6.0], "test_accuracy": [0.5, 0.7, 0.6]}
    assert reached(columns, 0.6) == pytest.approx((1.5, 3.0))
    assert reached(columns, 0.4) == (1.0, 2.0)
    assert reached(columns, 0.8) == (None, None)

"""ONNX parity: a real run of the smoke size, and page values of made-up numbers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chronograd.deploy.quantise import Turns, in_turn
from chronograd.report.html import render_html
from chronograd_lab.common.results import Results, Row
from chronograd_lab.common.rows import matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.written import ClaimError
from chronograd_lab.studies.onnx_parity import study
from chronograd_lab.studies.onnx_parity.study import APART, EDGE, HALF, PYTORCH, RUNTIME, SOUND, STUDY, WEIGHT, timed

PAGE = Path(__file__).parents[3] / "docs" / "studies" / "onnx-parity" / "results.json"


@pytest.mark.onnx
@pytest.mark.slow
def test_smoke_size_end_to_end(tmp_path: Path) -> None:
    settings = STUDY.sizes["smoke"]
    results = STUDY.conduct(StudyRunner(tmp_path, STUDY.name, "smoke", lambda _: None), settings)
    rows = results.rows
    assert [(row["network"], row["is_trained"], row["holds"]) for row in rows["files"]] == [
        ("SSD-MobileNet-V1 × 0.25", False, True),
        ("ResNet-8, digits", True, True),
    ]
    assert [port["shape"][1:] for port in rows["files"][0]["outputs"]] == [[144, 4], [144, 4]]
    said = {row["fault"]: [bool(row[who]) for who in ("load", "checker", "parity")] for row in rows["checks"]}
    assert said == {
        SOUND: [False, False, False], HALF: [True, True, True], EDGE: [False, True, True], WEIGHT: [False, False, True]
    }  # fmt: skip
    digits = matching(rows["parity"], network="ResNet-8, digits")
    assert [(row["batch"], row["kind"]) for row in digits] == [(b, k) for b in (1, 2) for k in ("random", "digits")]
    assert all(row["holds"] and row["num_same"] == row["num_rows"] == 8 for row in digits)
    for row in rows["exact"]:
        largest = row["largest"]
        assert 0 < largest[PYTORCH] < 1e-4 * row["size"]
        assert largest[APART] <= largest[PYTORCH] + largest[RUNTIME]
        assert row["runtime_nearer"] + row["pytorch_nearer"] <= 1
    assert {(row["network"], row["batch"]) for row in rows["times"]} == {
        (f["network"], b) for f in rows["files"] for b in (1, 2)
    }
    (eight,) = rows["int8"]
    assert eight["bytes"] < eight["float_bytes"]
    assert eight["before"]["num_samples"] == 360
    assert STUDY.page(results).sections[0].takeaway == "2 rows of size smoke."


def parity_row(name: str, tightest: float, absolute: float, batch: int = 1) -> Row:
    return {
        "network": name, "batch": batch, "output": "logits", "kind": "random", "num_values": 100, "num_equal": 25, "num_beyond": 0,
        "largest_absolute": absolute, "largest_output": 2.0, "largest_relative": 1e-5, "largest_ulp": 40, "tightest": tightest, "num_same": 9,
        "num_rows": 10, "samples": 10, "holds": tightest <= 1,
    }  # fmt: skip


def made_results() -> Results:
    port = {"name": "images", "dtype": "float32", "shape": ["batch", 3, 8, 8]}
    out = {"name": "logits", "dtype": "float32", "shape": ["batch", 10]}
    file = {"network": "A", "weights": "initial", "is_trained": False, "dummy": [2, 3, 8, 8], "holds": True,
            "inputs": [port], "outputs": [out], "opset": 20, "bytes": 4096, "operators": 9}  # fmt: skip
    time = {"batch": 1, "pairs": 100, "threads": 2, "pytorch_median_s": 0.002, "pytorch_p95_s": 0.003, "runtime_median_s": 0.001,
            "runtime_p95_s": 0.002, "ratio": 0.5, "low": 0.4, "high": 0.6, "refused": False, "others": 0.2, "cores": 2,
            "pytorch_cpu_median_s": 0.0018, "runtime_cpu_median_s": 0.0009, "cpu_ratio": 0.5, "cpu_low": 0.4, "cpu_high": 0.6}  # fmt: skip
    score = {"accuracy": 0.9, "loss": 0.3, "num_samples": 100}
    eight = {"network": "A", "float_bytes": 4096, "bytes": 1024, "how": "static", "before": score,
             "after": {**score, "accuracy": 0.89}, "changed": {"lost": 3, "won": 2, "p": 1.0},
             "speed": {"batch": 8, "ratio": 1.1, "ratio_low": 0.9, "ratio_high": 1.2}}  # fmt: skip
    checks = [{"network": "A", "fault": fault, "load": load, "checker": checker, "parity": parity} for fault, load, checker, parity in (
        (SOUND, "", "", ""), (HALF, "no ONNX file", "torn", "torn"), (EDGE, "", "no such edge", "no such edge"),
        (WEIGHT, "", "", "7 values beyond"))]  # fmt: skip
    exact = {"output": "logits", "size": 2.0, "varies": 1.0, "largest": {PYTORCH: 1e-6, RUNTIME: 2e-6, APART: 2.5e-6},
             "runtime_nearer": 0.4, "pytorch_nearer": 0.5}  # fmt: skip
    rows: dict[str, list[Row]] = {
        "files": [file, {**file, "network": "B"}],
        "checks": checks,
        "parity": [parity_row("A", 0.01, 2e-7), parity_row("A", 0.02, 4e-7, batch=8), parity_row("B", 0.25, 3e-5)],
        "exact": [{"network": "A", **exact}, {"network": "B", **exact}],
        "times": [{"network": "A", **time}, {"network": "B", **time, "cpu_low": 0.9, "cpu_high": 1.1}],
        "int8": [eight],
    }
    return Results(STUDY.name, "laptop", {"rtol": 1e-3, "atol": 1e-5, "batches": [1, 8]}, rows=rows)


def test_values_follow_from_the_rows() -> None:
    found = study.values(made_results())
    assert found["match"] == {"count": 2, "of": 2, "digits": 4, "equal": 0.25, "rtol": "0.00025", "atol": "2.5e-06"}
    assert found["rows"] == {"num_same": 27, "num_rows": 30}
    assert found["faults"] == {"of": 3, "load": 1, "checker": 2, "parity": 3}
    assert found["times"] == {"of": 2, "less": 1, "pairs": 100, "threads": 2}
    assert (found["off"]["low"], found["off"]["high"], found["off"]["most"]) == (2.0, 2.0, "1e-06")
    eight = found["eight"]
    assert (eight["smallest"], eight["loss"], eight["faster"], eight["of"]) == (0.25, pytest.approx(-1), 0, 1)


def test_tables_have_a_row_for_each_network() -> None:
    shown = study.blocks(made_results())
    assert shown["Eight bits"].table.rows[0][2:6] == ["25 %", "90.00 %", "89.00 %", "3 : 2 (p 1)"]  # type: ignore[union-attr]
    assert "2.0e-07" in render_html(STUDY.plain(made_results()))


def test_times_on_a_busy_machine_are_refused() -> None:
    """Other programs may use slightly more than one. At 1.9 the times are unreliable."""
    wall, cpu = np.array([0.09, 0.10, 0.11]), np.array([0.05, 0.05, 0.05])
    row = timed(Turns(wall, 0.7 * wall, cpu, 0.5 * cpu, others=1.1), cores=2)
    assert (row["refused"], row["cpu_ratio"], row["ratio"]) == (False, pytest.approx(0.5), pytest.approx(0.7))
    assert (row["pytorch_median_s"], row["pytorch_cpu_median_s"]) == (0.10, 0.05)
    busy = timed(Turns(wall, wall, cpu, cpu, others=1.9), cores=2)
    assert busy == {"refused": True, "others": 1.9, "cores": 2, "pairs": 3}
    assert missing([{"network": "A", "batch": 1, "threads": 1, **busy}]) == 1


def missing(times: list[Row]) -> int:
    """Return the number of settings listed as not timed."""
    table = study.blocks(replace(made_results(), rows={**made_results().rows, "times": times}))[
        "Run by ONNX Runtime"
    ].table
    assert table is not None
    assert table.rows == []
    assert all("was not timed" in note for note in table.notes)
    return len(table.notes)


def test_times_without_processor_time_are_skipped() -> None:
    assert missing([{k: v for k, v in row.items() if "cpu" not in k} for row in made_results().rows["times"]]) == 2


def test_alternating_calls_have_wall_and_processor_time() -> None:
    """A call that sleeps takes wall time but no processor time."""
    turns = in_turn(lambda: time.sleep(0.01), lambda: None, seconds=0.0)
    assert float(np.median(turns.first_s)) >= 0.01
    assert float(np.median(turns.first_cpu_s)) < 0.01
    assert len(turns.second_cpu_s) == len(turns.first_s)
    assert turns.others >= 0


def _differs(rows: dict[str, list[Row]]) -> None:
    rows["files"][1]["holds"] = False


def _slower(rows: dict[str, list[Row]]) -> None:
    rows["times"][0]["cpu_high"] = 1.1


def _rounds_more(rows: dict[str, list[Row]]) -> None:
    rows["exact"][2]["largest"][RUNTIME] *= 4


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_differs, "All 6 networks match within"),
        (_slower, "In all 12 settings it takes less processor time"),
        (_rounds_more, "Against the same network in float64"),
    ],
)
def test_different_results_contradict_the_page(change: Callable[[dict[str, list[Row]]], None], sentence: str) -> None:
    published = Results.load(PAGE)
    change(published.rows)
    with pytest.raises(ClaimError, match=sentence):
        STUDY.page(published)

"""Inference plans: the cheapest setting per sample within a latency."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import norm

import chronograd
from chronograd import job as jobs
from chronograd.cli.main import main
from chronograd.count.network import trace_network
from chronograd.hardware import catalog
from chronograd.plan.search import SearchSpace
from chronograd.plan.serving import _takeaway, serve
from chronograd.predict.prediction import predict

TRACE = trace_network("resnet20", mode="inference")
JOB = jobs.from_dict(
    {
        "mode": "inference",
        "network": {"name": "resnet20"},
        "data": {"name": "synthetic", "shape": [3, 32, 32], "classes": 10},
        "training": {"precision": "fp32"},
        "cluster": {"price_usd_per_hour": 2.0},
    }
)
DEVICES = [catalog.device(name) for name in ("t4", "v100")]
BATCHES = [1, 4, 16, 64, 256, 1024]


def test_cheapest_within_latency_matches_exhaustive_search() -> None:
    confidence, found = 0.8, []
    for device in DEVICES:
        for batch in BATCHES:
            one = jobs.changed(JOB, [f"cluster.device={device.name}", f"training.batch={batch}"])
            record = predict(TRACE, one)
            sigma = record.provenance.sigma_log
            assert sigma is not None
            z = norm.ppf(confidence)
            late_s = record.value("latency_s") * math.exp(z * sigma)
            found.append((late_s, (record.value("cost_usd_per_million_samples"), device.name, batch)))
    bound = statistics.median(late_s for late_s, _ in found)  # half of them stay within it
    expected = [setting for late_s, setting in found if late_s <= bound]
    data = serve(TRACE, JOB, SearchSpace(DEVICES, [1], BATCHES), latency_s=bound, confidence=confidence).data
    usd, device_name, batch = min(expected)
    best = data["settings"][0]
    assert (best["device"], best["batch_per_device"]) == (device_name, batch)
    assert best["usd_per_million_samples"] == pytest.approx(usd)
    assert data["kept"] == len(expected)


def test_usual_counts_are_powers_of_two_up_to_a_node() -> None:
    inputs = Path(__file__).parents[1] / "golden" / "inputs"
    job, trace = (str(inputs / name) for name in ("job.yaml", "asked.json.gz"))
    plan = chronograd.plan_inference(
        job, "cluster.price_usd_per_hour=2", trace=trace, on=["v100"], batches=[1], latency=1.0
    )
    assert sorted(setting["count"] for setting in plan.data["settings"]) == [1, 2, 4, 8]


def test_longer_latency_is_never_dearer() -> None:
    costs = [
        serve(TRACE, JOB, SearchSpace(DEVICES, [1, 8], BATCHES), latency_s=bound).data["settings"][0][
            "usd_per_million_samples"
        ]
        for bound in (0.05, 0.2, 1.0, None)
    ]
    assert sorted(costs, reverse=True) == costs


def test_unreachable_latency_reports_the_fastest() -> None:
    answer = serve(TRACE, JOB, SearchSpace(DEVICES, [1], BATCHES), latency_s=1e-7)
    assert answer.data["settings"] == []
    assert answer.sections[0].takeaway.startswith(
        "No setting answers within 100 ns with 80 % probability; the fastest is "
    )
    assert answer.data["fastest"]["batch_per_device"] == 1


def test_takeaway_if_only_outliers_remain() -> None:
    result = serve(TRACE, JOB, SearchSpace(DEVICES, [1], BATCHES)).result
    assert result.fastest is not None
    takeaway = _takeaway(replace(result, settings=[]), "sample")
    assert takeaway.startswith(
        "Nothing is recommended: every price is far below those of similar offers; the fastest is 1 × "
    )


def test_plan_command_for_inference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    TRACE.save(tmp_path / "net.json.gz")
    line = ["plan", "resnet20", "--trace", str(tmp_path / "net.json.gz"), "--on", "v100", "--counts", "1"]
    assert main([*line, "--inference", "--latency", "20ms", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["latency_s"] == 0.02
    assert all(row["probability"] >= 0.8 for row in data["settings"])
    assert main([*line, "--latency", "20ms"]) == 2
    assert "add --inference" in capsys.readouterr().err
    assert main([*line, "--inference", "--to", "75%"]) == 2
    assert "No such option '--to'" in capsys.readouterr().err

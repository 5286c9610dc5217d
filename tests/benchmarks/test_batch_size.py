"""The batch size benchmark: its comparison in closed form, early stopping at the target, and its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.batch_size import PERCEPTRON, Trained, compared, make_job, save, table, train, verdict

from chronograd import job as jobs
from chronograd.data import datasets
from chronograd.predict.batch_size import BatchModel
from chronograd.record import Quantity

ROOT = Path(__file__).parent.parent.parent
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "batch_size.json").read_text())


def test_steps_and_measured_noise_scale_are_compared(tmp_path: Path) -> None:
    """Planted critical batch of 50; the better rate measures 100, the worse one 7."""
    truth, runs = BatchModel(100, 5000), []
    for batch in (10, 50, 250):
        for rate, slower, measured in ((0.1, 1.0, 100), (0.2, 1.5, 7)):
            noise = Quantity(value=measured, unit="sample")
            runs.append(Trained(batch, rate, 0, truth.steps(batch) * slower, 1.0, noise))
    found = compared(runs)
    assert found["fitted_noise_scale"] == pytest.approx(50)
    assert found["measured_over_fitted"] == pytest.approx(2)
    assert table(found).splitlines()[3] == "| 50 | 0.1 | 200 | 200 | 10,000 | 100 |"
    assert "2.00 times" in verdict(found)
    for measured in (1, 2, 2):
        save(tmp_path / "found.json", {"network": "a", "target_test_loss": measured, "rows": []})
    saved = json.loads((tmp_path / "found.json").read_text())
    assert [w["target_test_loss"] for w in saved["workloads"]] == [1, 2]


def test_run_ends_at_the_target() -> None:
    """Synthetic images reach the target in a few steps, before the last step."""
    fields = {"network": {"name": PERCEPTRON, "options": {"image_size": 8}}, "data": {"name": "synthetic", "shape": [1, 8, 8], "classes": 4, "samples": 64}}  # fmt: skip
    job = make_job(PERCEPTRON, 16, 0.1, 0, 100)
    job = jobs.from_dict(
        {**fields, "training": job.training.model_dump(exclude_unset=True), "cluster": {"device": "cpu"}}
    )
    dataset = datasets.load(job.data, 0)
    start = train(job, dataset, 100.0, 40)
    assert start.steps is not None
    assert start.steps <= 16
    assert train(job, dataset, 0.0, 40).steps is None


@pytest.mark.parametrize("workload", RESULTS["workloads"], ids=lambda w: f"{w['network']}-{w['target_test_loss']}")
def test_page_matches_the_saved_results(workload: dict[str, Any]) -> None:
    """The last digit may differ, as processors sum in different orders."""
    page = (ROOT / "docs" / "convergence.md").read_text()
    assert table(workload) in page
    runs = [Trained(**{**run, "noise_scale": Quantity(**run["noise_scale"])}) for run in workload["runs"]]
    assert compared(runs)["rows"] == [pytest.approx(row) for row in workload["rows"]]

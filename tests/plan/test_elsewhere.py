"""A job on other devices: equal to single predictions, and no time for jobs that do not fit."""

from __future__ import annotations

import math

import pytest

from chronograd import job as jobs
from chronograd.count.network import trace_network
from chronograd.job import Job, changed
from chronograd.plan.elsewhere import elsewhere, plan_section
from chronograd.predict.prediction import predict
from chronograd.record import Quantity
from chronograd.trace import Trace

SAMPLES = 1437
NAMES = ("step_time_s", "throughput_samples_per_s", "epoch_time_s", "training_time_s", "epochs", "memory_peak_bytes")


@pytest.fixture(scope="module")
def trace() -> Trace:
    return trace_network("resnet20")


def job_of(**training: object) -> Job:
    return jobs.from_dict({"network": {"name": "resnet20"}, "data": {"name": "digits"}, "training": training})


def figures(q: Quantity) -> list[float]:
    return [math.nan if v is None else v for v in (q.value, q.low, q.high)]


def test_records_match_single_predictions(trace: Trace) -> None:
    """Include a batch that three devices cannot divide evenly, and a device without a price."""
    job = job_of(batch=64, epochs=7)
    records = elsewhere(trace, job, SAMPLES, ("v100", "k80-gk210", "cpu"), (1, 3, 128, 8))
    assert [(r.device, r.world) for r in records] == [
        (name, n) for name in ("v100", "k80-gk210", "cpu") for n in (1, 3, 8)
    ]
    for record in records:
        n = record.world
        fields = [f"cluster.device={record.device}", f"cluster.count={n}"]
        alone = predict(trace, changed(job, [*fields, f"backend={'ddp' if n > 1 else 'single'}"]), samples=SAMPLES)
        for name in (*NAMES, "cost_usd", "cost_usd_per_hour"):
            assert figures(record[name]) == pytest.approx(figures(alone[name]), rel=1e-9, nan_ok=True), name
        assert record.job == alone.job
        assert (record["cost_usd"].reason, record.backend) == (alone["cost_usd"].reason, alone.backend)


def test_jobs_that_do_not_fit_have_no_time_or_cost(trace: Trace) -> None:
    records = elsewhere(trace, job_of(batch=1024), SAMPLES, ("v100",), (1, 2))
    huge = elsewhere(trace, job_of(batch=2**20), 2**20, ("v100",), (1, 1024))
    assert [r["training_time_s"].value is None for r in (*records, *huge)] == [False, False, True, False]
    assert huge[0]["cost_usd"].reason.startswith("does not fit: a rank needs")
    assert plan_section(huge).takeaway.startswith("1024×v100 is predicted fastest")

"""Measured inference and training on text, with real ranks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chronograd import job as jobs
from chronograd.data import datasets
from chronograd.data.trace_job import trace_job
from chronograd.errors import JobError
from chronograd.job import Job
from chronograd.launch import jobs as launch
from chronograd.measure.result import Method, Timing, latency_quantities
from chronograd.predict.memory import footprint_of_job
from chronograd.predict.prediction import predict
from chronograd.record import FORWARD_PARTS, STEP_PARTS, subtract
from chronograd.rundir import StepLine
from chronograd.train.forward import ForwardStep
from chronograd.train.rank_context import RankContext, rank_context_from_environment

TEXT: dict[str, Any] = {
    "network": {"name": "gpt2-small", "options": {"layers": 1, "width": 32, "heads": 2, "dropout": 0.0}},
    "data": {"name": "tokens", "shape": [16], "classes": 20, "samples": 64, "test_samples": 16},
    "training": {"recipe": "sgd", "batch": 8, "epochs": 2, "optimizer": "adamw", "learning_rate": 0.01},
    "cluster": {"device": "cpu", "threads": 1},
}
IMAGES: dict[str, Any] = {
    "network": {"name": "small-cnn"},
    "data": {"name": "synthetic", "shape": [3, 8, 8], "classes": 5, "samples": 64},
    "training": {"batch": 4},
    "cluster": {"device": "cpu", "threads": 1},
}


def inference_job(fields: dict[str, Any], *changes: str) -> Job:
    return jobs.changed(jobs.from_dict(fields), ["mode=inference", *changes])


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> RankContext:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    return rank_context_from_environment(jobs.from_dict(IMAGES))


@pytest.mark.parametrize("fields", [IMAGES, TEXT], ids=["images", "text"])
def test_step_output_matches_evaluation_mode(fields: dict[str, Any], place: RankContext) -> None:
    job = inference_job(fields)
    dataset = datasets.load(job.data, job.training.seed)
    step = ForwardStep(job, dataset, place)
    step.run(3)
    seen = step.input.prepare(step.input.gather(step.order.samples(3)))
    with torch.no_grad():
        torch.testing.assert_close(step.outputs, step.network(seen))
    assert not step.network.training
    assert not step.outputs.requires_grad
    assert len(step.outputs) == job.training.batch
    assert [name for name, _ in step.parts(0)] == ["input", "transfer", "input", "forward"]


@pytest.mark.parametrize("fields", [IMAGES, TEXT], ids=["images", "text"])
def test_inference_has_percentiles_and_no_training_values(fields: dict[str, Any], tmp_path: Path) -> None:
    job = inference_job(fields)
    record = launch.measure(job, Timing(2, 120), out=tmp_path / "run").record()
    assert record.job.mode == "inference"
    assert record.title.startswith(f"inference of {job.network.name} on {job.data.name} at batch {job.training.batch}")
    p50, p95, p99 = (record.value(f"latency_p{n}_s") for n in (50, 95, 99))
    assert 0 < p50 <= p95 <= p99
    assert record["latency_s"].n == 120
    assert record["latency_s"] == record["step_time_s"]
    assert record.value("throughput_samples_per_s") == pytest.approx(job.training.batch / record.value("latency_s"))
    assert set(FORWARD_PARTS) < set(record.quantities)
    assert not (set(STEP_PARTS) - set(FORWARD_PARTS)) & set(record.quantities)
    if job.is_text:
        assert record.value("throughput_tokens_per_s") == pytest.approx(16 * record.value("throughput_samples_per_s"))
    held = {one.name for one in subtract(predict(trace_job(job), job), record) if one.ratio is not None}
    assert held >= {"latency_s", "throughput_samples_per_s", "memory_peak_bytes", "forward_s"}


def test_inference_memory_matches_the_trace(tmp_path: Path) -> None:
    job = inference_job(IMAGES, "network.name=resnet20", "data.shape=[3,32,32]", "training.batch=16")
    record = launch.measure(job, Timing(1, 3), out=tmp_path / "run").record()
    predicted = footprint_of_job(trace_job(job), job).at(16).total
    # The trace excludes the workspace of convolutions.
    assert record.value("memory_peak_bytes") == pytest.approx(predicted, rel=0.25)


def test_inference_ranks_are_independent(tmp_path: Path) -> None:
    job = inference_job(IMAGES, "backend=ddp", "cluster.count=2")
    record = launch.measure(job, Timing(1, 20), out=tmp_path / "run").record()
    assert record.world == 2
    assert "communication_exposed_s" not in record.quantities
    assert record.value("throughput_samples_per_s") == pytest.approx(4 / record.value("latency_s"))


def test_few_batches_have_no_high_percentile() -> None:
    lines = [
        StepLine(step=i + 1, mode="parts", step_time_s=0.01 * (i + 1), forward_s=0.01 * (i + 1)) for i in range(30)
    ]
    found = latency_quantities({0: lines}, 8, Method("clock", "clock"))
    assert found["latency_p50_s"].value == pytest.approx(np.quantile([0.01 * (i + 1) for i in range(30)], 0.5))
    assert found["latency_p95_s"].value == pytest.approx(np.quantile([0.01 * (i + 1) for i in range(30)], 0.95))
    assert found["latency_p99_s"].value is None
    assert "takes 100" in found["latency_p99_s"].reason
    low, high = found["latency_p50_s"].low, found["latency_p50_s"].high
    assert low is not None
    assert high is not None
    # Of 30, fewer than 11 are below the median with at most 10 % probability, and 20 or more with at most 10 %.
    assert (round(low, 2), round(high, 2)) == (0.11, 0.2)


@pytest.mark.parametrize(
    ("fields", "changes", "words"),
    [
        (IMAGES, ["backend=data_parallel"], "runs no job in inference"),
        (TEXT, ["backend=data_parallel"], "runs no job of text"),
        (TEXT, ["training.augmentation.flip=true"], "augmentation is of images"),
        (TEXT, ["training.trainable=head"], "trains the whole network"),
    ],
)
def test_unsupported_jobs_are_refused(fields: dict[str, Any], changes: list[str], words: str) -> None:
    with pytest.raises(JobError, match=words):
        launch.check_anywhere(inference_job(fields, *changes))


def test_inference_job_cannot_be_trained(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="nothing is trained"):
        launch.train(inference_job(IMAGES), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# -- text ------------------------------------------------------------------------------------------------


def test_text_is_trained_on_the_next_token(tmp_path: Path) -> None:
    """The loss falls from ln V to the entropy of the words, its minimum."""
    job = jobs.changed(jobs.from_dict(TEXT), ["training.epochs=6"])
    record = launch.train(job, out=tmp_path / "run").record()
    losses = [loss for loss in record.curves["loss"].columns["loss"] if loss is not None]
    shares = (1 / np.arange(1, 21)) / (1 / np.arange(1, 21)).sum()
    entropy = float(-(shares * np.log(shares)).sum())
    assert losses[0] == pytest.approx(math.log(20), abs=0.1)
    assert entropy - 0.1 < np.mean(losses[-8:]) < math.log(20) - 0.15
    # Guessing the most frequent word is right with its frequency.
    assert record.value("test_accuracy") == pytest.approx(shares[0], abs=0.06)
    assert record.value("throughput_tokens_per_s") == pytest.approx(16 * record.value("throughput_samples_per_s"))
    assert "rows of test tokens" in record["test_accuracy"].source


def test_two_ranks_train_text_like_one(tmp_path: Path) -> None:
    one = launch.train(jobs.from_dict(TEXT), out=tmp_path / "one").record()
    two = jobs.changed(jobs.from_dict(TEXT), ["backend=ddp", "cluster.count=2"])
    other = launch.train(two, out=tmp_path / "two").record()
    first, second = (record.curves["loss"].columns["loss"] for record in (one, other))
    assert first[0] == pytest.approx(second[0], abs=1e-5)
    assert first == pytest.approx(second, abs=1e-3)
    assert one.value("test_accuracy") == pytest.approx(other.value("test_accuracy"), abs=0.02)

"""Language models on real text: their score is bits per byte, for one rank and two, before and after an interruption."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from chronograd import job as jobs
from chronograd.data import datasets
from chronograd.forecast.learning import training_section
from chronograd.job import Job
from chronograd.launch import jobs as launch
from chronograd.rundir import RunDir
from chronograd.rundir.steps import Epoch


def make_job(*overrides: str) -> Job:
    job = jobs.from_dict(
        {
            "network": {"name": "small-llama", "options": {"width": 16, "layers": 1, "heads": 2}},
            "data": {"name": "pride-and-prejudice", "shape": [16], "epoch_samples": 64, "test_samples": 32},
            "training": {
                "recipe": "adamw",
                "learning_rate": 0.01,
                "schedule": "constant",
                "warmup": 0.0,
                "epochs": 3,
                "batch": 8,
            },
            "cluster": {"threads": 1},
        }
    )
    return jobs.changed(job, list(overrides))


def bits(run: RunDir) -> list[float]:
    return [end.bits_per_byte or math.nan for end in run.read_steps(0).of(Epoch)]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return launch.train(make_job(), out=tmp_path_factory.mktemp("language") / "single")


def test_record_has_bits_per_byte_instead_of_an_accuracy(single: RunDir) -> None:
    record, ends = single.record(), single.read_steps(0).of(Epoch)
    assert [end.step for end in ends] == [8, 16, 24]
    # A byte is a token, so the bits are the loss in nats over log 2.
    assert bits(single) == pytest.approx([(end.test_loss or 0.0) / math.log(2) for end in ends])
    assert 3 < bits(single)[-1] < bits(single)[0] < 9
    assert record.value("bits_per_byte") == bits(single)[-1]
    assert datasets.card(make_job().data).digest in record["bits_per_byte"].source
    assert "test_accuracy" not in record.quantities
    assert record["time_to_bits_per_byte_s"].reason == "the job has no training.target_bits_per_byte"
    assert record.curves["training"].columns["bits_per_byte"] == bits(single)
    tokens, samples = record["throughput_tokens_per_s"].value, record.value("throughput_samples_per_s")
    assert tokens == pytest.approx(16 * samples)
    section = training_section(record)
    assert f"Training ended at {bits(single)[-1]:.4g} bits per byte after 3 epochs" in section.takeaway
    assert section.figure is not None
    assert [panel.y_label for panel in section.figure.panels] == ["training loss", "bits per byte"]


def test_two_ranks_learn_the_same(single: RunDir, tmp_path: Path) -> None:
    two = launch.train(make_job("cluster.count=2", "backend=ddp"), out=tmp_path / "two")
    expected, got = (run.record().curves["loss"].columns["loss"] for run in (single, two))
    assert got == pytest.approx(expected, abs=1e-3)
    assert bits(two) == pytest.approx(bits(single), abs=1e-3)


def test_resumed_run_goes_on_where_the_text_was_left(single: RunDir, tmp_path: Path) -> None:
    run = launch.train(make_job("training.epochs=2"), out=tmp_path / "run")
    launch.extend(run, ["training.epochs=3"])
    launch.resume(run)
    assert bits(run) == bits(single)


def test_run_stops_at_its_target_and_counts_pairs_by_their_bytes(tmp_path: Path) -> None:
    """Any network that learned byte frequencies takes fewer than 7 bits per byte."""
    overrides = ["data.tokenizer=pairs", "data.classes=280", "training.target_bits_per_byte=7", "training.epochs=9"]
    run = launch.train(make_job(*overrides), out=tmp_path / "run")
    record, last = run.record(), run.read_steps(0).of(Epoch)[-1]
    size = datasets.card(make_job(*overrides).data).bytes_per_token
    assert size is not None
    assert size > 1.1
    assert last.bits_per_byte == pytest.approx((last.test_loss or 0.0) / math.log(2) / size)
    assert record.provenance.stopped == "the target of bits per byte was reached"
    assert record.value("epochs") < 9
    assert record.value("time_to_bits_per_byte_s") == last.seconds
    assert "at or below the target of 7" in training_section(record).takeaway

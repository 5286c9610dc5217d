"""Jobs over several seeds: one run per seed, one common record, and resuming after an interruption."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import pytest

from chronograd import job as jobs
from chronograd.errors import JobError
from chronograd.forecast.learning import training_section
from chronograd.launch.repeats import record_of_all, resume_over_seeds, train_over_seeds
from chronograd.record import Curve, Quantity, Record
from chronograd.rundir import RunDir


def make_job() -> jobs.Job:
    return jobs.from_dict(
        {
            "network": {"name": "tiny_networks:plain"},
            "data": {"name": "digits", "samples": 200},
            "training": {"batch": 20, "epochs": 2, "seed": 3},
            "cluster": {"device": "cpu", "threads": 1},
        }
    )


def test_seeds_are_trained_and_averaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(Path(__file__).parent.parent / "train")
    monkeypatch.setenv("PYTHONPATH", folder, prepend=os.pathsep)
    monkeypatch.syspath_prepend(folder)
    whole = train_over_seeds(make_job(), 2, out=tmp_path / "whole")
    ones = [RunDir.open(whole.path / f"seed-{seed}") for seed in (3, 4)]
    assert [run.job().training.seed for run in ones] == [3, 4]
    accuracies = [run.record().value("test_accuracy") for run in ones]
    found = whole.record()["test_accuracy"]
    assert found.value == pytest.approx(statistics.mean(accuracies))
    assert found.std == pytest.approx(statistics.stdev(accuracies))
    assert found.n == 2
    # After one seed is lost, resuming trains it again identically and leaves the other unchanged.
    first = (ones[0].path / "record.json").read_bytes()
    (whole.path / "record.json").unlink()
    for path in sorted(ones[1].path.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    ones[1].path.rmdir()
    again = resume_over_seeds(RunDir.open(whole.path))
    assert again.record().value("test_accuracy") == found.value
    assert (ones[0].path / "record.json").read_bytes() == first
    with pytest.raises(JobError, match="is a single run"):
        resume_over_seeds(ones[0])


def test_incomplete_seeds_are_reported() -> None:
    def record(accuracy: float, reached_s: float | None) -> Record:
        made = Record(kind="measured", title="training")
        made.put("test_accuracy", Quantity(value=accuracy, unit="1", source="test images"))
        missing = Quantity.missing("s", "not reached")
        made.put("time_to_accuracy_s", missing if reached_s is None else Quantity(value=reached_s, unit="s"))
        columns: dict[str, list[float | None]] = {"step": [1.0, 2.0], "test_accuracy": [None, accuracy]}
        made.curves["training"] = Curve(columns=columns)
        return made

    whole = record_of_all([record(0.5, 2.0), record(0.7, None), record(0.9, 4.0)])
    assert whole.value("test_accuracy") == pytest.approx(0.7)
    assert whole["test_accuracy"].std == pytest.approx(0.2)
    reached = whole["time_to_accuracy_s"]
    assert (reached.value, reached.n) == (3.0, 2)
    assert reached.source.startswith("mean over 2 of 3 seeds")
    assert whole.curves["training"].columns["test_accuracy"] == [None, pytest.approx(0.7)]


def test_agent_seeds_are_averaged_over_common_epochs() -> None:
    """One seed reaches its target early, so two epochs are common. Bounds are over seeds; no loss means no panel."""

    def record(*returns: float) -> Record:
        job = jobs.from_dict(
            {"task": "reinforcement", "network": {"name": "mlp"}, "data": {"name": "gymnasium:CartPole-v1"}}
        )
        made = Record(kind="measured", title="dqn", job=jobs.resolved(job))
        for name in ("mean_return", "frames", "training_time_s"):
            made.put(name, Quantity(value=returns[-1], unit=""))
        count = range(1, len(returns) + 1)
        columns: dict[str, list[float | None]] = {
            "step": [100.0 * i for i in count],
            "frames": [400.0 * i for i in count],
        }
        columns |= {"mean_return": list(returns)}
        columns |= {"return_low": [r - 5 for r in returns], "return_high": [r + 5 for r in returns]}
        made.curves = {
            "training": Curve(columns=columns, source="one seed"),
            "loss": Curve(columns={"step": [], "loss": []}),
        }
        return made

    whole = record_of_all([record(10, 20, 60), record(20, 60)])
    curve = whole.curves["training"]
    assert curve.columns["frames"] == [400, 800]
    assert curve.columns["mean_return"] == [15, 40]
    assert (curve.columns["return_low"], curve.columns["return_high"]) == ([10, 20], [20, 60])
    assert curve.source == (
        "mean over 2 seeds, of the first 2 epochs, which all have; "
        "return_low and return_high: the lowest and the highest mean return of a seed"
    )
    section = training_section(whole)
    assert [row["series"] for row in section.rows()] == ["evaluation"] * 2
    assert "over seeds, with the lowest and the highest seed" in section.caption
    whole.curves = {}
    assert training_section(whole).figure is None

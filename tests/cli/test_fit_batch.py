"""`chronograd fit batch` on runs that follow a planted noise scale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chronograd import job as jobs
from chronograd.cli.main import main
from chronograd.data.datasets import card
from chronograd.predict.batch_size import BatchModel
from chronograd.rundir import RunDir
from chronograd.rundir.steps import Epoch, MemoryLine, StepLine, WorkLine
from chronograd.train.result import training_record

TRUTH = BatchModel(400, 12_800)  # critical batch 32
SAMPLES, TARGET = 1437, 0.9


def write_run(
    folder: Path, batch: int, rate: float = 0.1, slower: float = 1.0, every: int = 0, **job_fields: str
) -> Path:
    """Write a run whose accuracy rises linearly through the target at S(batch) × `slower` steps."""
    job = jobs.from_dict(
        {
            "network": {"name": job_fields.get("network", "resnet20")},
            "data": {"name": "digits"},
            "training": {"batch": batch, "epochs": 2000, "learning_rate": rate, "noise_scale_every": every},
            "backend": job_fields.get("backend", "single"),
        }
    )
    run, per_epoch, reached = RunDir.create(job, {}, out=folder), SAMPLES // batch, TRUTH.steps(batch) * slower
    with run.step_writer() as lines:
        lines.write(WorkLine(step=0, dataset_samples=SAMPLES))
        for epoch in range(1, int(1.1 * TRUTH.steps(batch) / per_epoch) + 3):
            for step in range((epoch - 1) * per_epoch + 1, epoch * per_epoch + 1):
                # |G|² = 1 and tr(Σ) = 32, of gradients over half a batch and all of it; batches have no sample twice.
                sq_small, sq_big = (1 + 32 / n - 32 / SAMPLES for n in (batch / 2, batch))
                noise = {"grad_sq_small": sq_small, "grad_sq_big": sq_big, "batch_small": batch / 2, "batch_big": batch}
                lines.write(StepLine(step=step, epoch=epoch, seconds=0.1 * step, step_time_s=0.1, loss=1.0, samples=batch,
                            **(noise if every and step % every == 0 else {})))  # fmt: skip
            lines.write(Epoch(step=step, epoch=epoch, seconds=0.1 * step, epoch_time_s=0.1 * per_epoch,
                        train_loss=3 - 2 * (step - per_epoch / 2) / reached, test_loss=1.0,
                        test_accuracy=TARGET * step / reached))  # fmt: skip
        lines.write(MemoryLine(step=step, memory_peak_bytes=1, source="here"))
    run.save_record(training_record(run, job, card(job.data), "done"))
    return folder


def fitted(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    assert main(["fit", "batch", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("runs")
    for batch in (16, 32, 128):
        write_run(home / f"b{batch}", batch)
    write_run(home / "b32-slow", 32, rate=0.05, slower=1.05)
    write_run(home / "b32-never", 32, rate=0.4, slower=3.0)
    write_run(home / "measured", 64, every=5)
    return home


def test_runs_at_several_batches_give_the_critical_batch(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [folder / name for name in ("b16", "b32", "b128", "b32-slow", "b32-never")]
    for asked in (("--to", 0.9), ("--metric", "loss", "--to", 1.0)):
        found = fitted(capsys, *runs, *asked, "--batches", "32,64")
        assert found["noise_scale_from"] == "steps"
        assert found["noise_scale"] == pytest.approx(32, rel=1e-3)
        assert found["min_steps"] == pytest.approx(400, rel=1e-3)
        assert [run["is_counted"] for run in found["runs"]] == [True, True, True, False, False]
        assert found["runs"][4]["steps"] is None
        one, other = found["batches"]
        assert (one["steps"], other["steps"]) == (pytest.approx(800, rel=1e-3), pytest.approx(600, rel=1e-3))
        assert one["epochs"] == pytest.approx(800 * 32 / SAMPLES, rel=1e-3)
        assert one["efficiency"] == pytest.approx(0.5, rel=1e-3)
        assert one["low"] <= one["steps"] <= one["high"]


def test_one_run_with_measured_noise_scale_gives_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = fitted(capsys, folder / "measured", "--to", 0.9, "--batches", "32")
    assert found["noise_scale_from"] == "measured"
    assert found["noise_scale"] == pytest.approx(32)
    assert found["batches"][0]["steps"] == pytest.approx(800, rel=1e-3)
    assert main(["fit", "batch", str(folder / "measured"), "--to", "0.9"]) == 0
    printed = capsys.readouterr().out
    assert "Critical batch, as measured: 32 samples (32 … 32)" in printed
    assert "at least 400 steps (400 … 400) and 12,800 samples" in printed


@pytest.mark.parametrize(
    ("names", "options", "status", "said"),
    [
        (["b16"], ["--to", "0.9"], 2, "the run has no noise scale: training.noise_scale_every is 0"),
        (["b16", "b32"], ["--to", "0.9"], 2, "training.noise_scale_every=10"),
        (["b16", "b32", "b32-never", "b128"], ["--to", "1.5"], 2, "at no batch did all seeds"),
        (["b32"], ["--to", "0.001"], 2, "within its first epoch"),
        (["b32"], ["--metric", "loss"], 2, "--metric loss needs --to"),
        (["b32"], ["--to", "0.9", "--batches", "none"], 2, "--batches"),
        (["b16", "b32", "b128"], [], 2, "a target is needed"),
        (["nothing"], [], 1, "no run directory"),
    ],
)
def test_unusable_runs_give_one_error(
    folder: Path, capsys: pytest.CaptureFixture[str], names: list[str], options: list[str], status: int, said: str
) -> None:
    assert main(["fit", "batch", *(str(folder / name) for name in names), *options]) == status
    printed = capsys.readouterr()
    assert said in " ".join(printed.err.split())
    assert not printed.out


def test_runs_of_other_jobs_are_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "other", 64, network="resnet32")
    assert main(["fit", "batch", str(folder / "b16"), str(tmp_path / "other"), "--to", "0.9"]) == 2
    assert "its network differs" in capsys.readouterr().err
    write_run(tmp_path / "servers", 64, backend="parameter_server")
    assert main(["fit", "batch", str(tmp_path / "servers"), "--to", "0.9"]) == 2
    assert "updates are asynchronous" in capsys.readouterr().err

"""The gradient noise scale: its measured values are correct, and measuring does not affect training."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from chronograd import job as jobs
from chronograd.backends import registry
from chronograd.data import datasets
from chronograd.errors import JobError
from chronograd.job import Job
from chronograd.launch import jobs as launch
from chronograd.rundir import RunDir, StepLine
from chronograd.rundir.steps import Epoch
from chronograd.train import loop, noise_scale
from chronograd.train import step as step_module
from chronograd.train.checkpoint_folder import list_checkpoints
from chronograd.train.noise_scale import GradientNoise
from chronograd.train.rank_context import RankContext
from chronograd.train.result import training_record
from chronograd.train.step import TrainingStep

PLACE = RankContext(rank=0, world_size=1, device=torch.device("cpu"), threads=1)
FIELDS = {"grad_sq_small", "grad_sq_big", "batch_small", "batch_big", "noise_scale_s"}


@pytest.fixture(autouse=True)
def _networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)


def make_job(*overrides: str, network: str = "random") -> Job:
    job = jobs.from_dict(
        {
            "network": {"name": f"tiny_networks:{network}"},
            "data": {"name": "synthetic", "shape": [1, 8, 8], "classes": 10, "samples": 192},
            "training": {"recipe": "sgd-momentum", "batch": 16, "epochs": 2, "learning_rate": 0.05},
            "cluster": {"device": "cpu", "threads": 1},
        }
    )
    return jobs.changed(job, list(overrides))


def train(job: Job, out: Path) -> RunDir:
    run, dataset = RunDir.create(job, out=out), datasets.load(job.data, job.training.seed)
    step = TrainingStep(job, dataset, PLACE)
    with run.step_writer() as lines:
        loop.train(step, dataset, PLACE, run, lines)
    return run


def last_weights(run: RunDir) -> dict[str, torch.Tensor]:
    return load_file(list_checkpoints(run.checkpoints)[-1] / "model.safetensors")


def measured_in(line: StepLine) -> list[float | None]:
    return [getattr(line, name) for name in FIELDS]


def check_same(one: RunDir, other: RunDir) -> None:
    """Check that weights, buffers and losses are bit-identical."""
    a, b = last_weights(one), last_weights(other)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    for rank in one.ranks():
        losses = [[line.loss for line in run.read_steps(rank).steps] for run in (one, other)]
        assert losses[0] == losses[1]


# -- effect on training ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("training.accumulation=3", "training.ema_decay=0.9"),
        ("training.augmentation.copies=2", "training.augmentation.crop=1", "training.augmentation.pixel_dropout=0.1"),
        ("training.precision=bf16", "training.recipe=adamw"),
    ],
)
def test_measuring_does_not_change_one_rank(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    """Use batch norm and dropout: the extra passes must not change running means or random draws."""
    plain = train(make_job(*overrides), tmp_path / "plain")
    measured = train(make_job(*overrides, "training.noise_scale_every=2"), tmp_path / "measured")
    check_same(plain, measured)
    lines = measured.read_steps().steps
    assert [line.step for line in lines if None not in measured_in(line)] == list(range(1, 25, 2))
    assert all({*measured_in(line)} == {None} for line in [*lines[1::2], *plain.read_steps().steps])


def test_ranks_measure_own_and_average_gradients(tmp_path: Path) -> None:
    """Use shares of 8 and 9 samples in two accumulated parts. Compare the first step's gradients with one process."""
    overrides = ["training.batch=17", "training.accumulation=2"]
    plain, measured = (
        launch.train(
            make_job(
                *overrides, f"training.noise_scale_every={every}", "backend=ddp", "cluster.count=2", network="plain"
            ),
            out=tmp_path / str(every),
            launcher="local",
        )
        for every in (0, 2)
    )
    check_same(plain, measured)
    job = make_job(*overrides, network="plain")
    step = TrainingStep(job, datasets.load(job.data, job.training.seed), PLACE)
    for name, call in step.parts(0):
        if name in ("input", "transfer"):
            call()
    for rank, samples in enumerate((slice(0, 8), slice(8, 17))):
        lines = [line for line in measured.read_steps(rank).steps if line.grad_sq_big is not None]
        assert [line.step for line in lines] == list(range(1, 23, 2))
        assert (lines[0].batch_small, lines[0].batch_big) == (8 + rank, 17)
        for field, over in (("grad_sq_small", samples), ("grad_sq_big", slice(0, 17))):
            expected = gradient(step, over)
            assert getattr(lines[0], field) == pytest.approx(float(expected @ expected), rel=1e-4)


def test_generators_and_buffers_are_restored() -> None:
    network = torch.nn.BatchNorm1d(3)
    torch.manual_seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    with noise_scale._unchanged(network, torch.device("cpu")):
        network(torch.rand(5, 3))
        np.random.rand()
        random.random()
        assert network.num_batches_tracked == 1
    assert network.num_batches_tracked == 0
    assert torch.equal(network.running_mean, torch.zeros(3))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]


# -- measured values -------------------------------------------------------------------------------------


def gradient(step: TrainingStep, samples: slice | list[int]) -> torch.Tensor:
    loss = step._loss_of(step.network(step._seen[samples]), step._targets[samples])
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(step.network.parameters()))])


@pytest.mark.parametrize(
    ("overrides", "ends"),
    [(("training.batch=15",), (0, 7, 15)), (("training.accumulation=3",), (0, 5, 10, 16))],
)
def test_batch_parts_are_halves_or_accumulated_parts(overrides: tuple[str, ...], ends: tuple[int, ...]) -> None:
    """The gradient of a batch without batch norm is the combination of its parts."""
    job = make_job(*overrides, "training.noise_scale_every=1", network="plain")
    step = TrainingStep(job, datasets.load(job.data), PLACE)
    step.noise = GradientNoise(step)
    found = {}
    for name, call in step.parts(0):
        call()
        if name == "noise_scale" and not found:
            parts = [gradient(step, slice(a, b)) for a, b in itertools.pairwise(ends)]
            sizes = np.diff(ends)
            found = {
                "grad_sq_small": float(sum(g @ g for g in parts) / len(parts)),
                "grad_sq_big": float((whole := gradient(step, slice(0, ends[-1]))) @ whole),
                "batch_small": len(sizes) / (1 / sizes).sum(),
                "batch_big": ends[-1],
            }
    measured = {k: v for k, v in step.noise.found.items() if k != "noise_scale_s"}
    assert measured == pytest.approx(found, rel=1e-4)


def test_copies_of_a_sample_stay_in_one_part() -> None:
    """Use 16 samples in two copies: the halves are samples 0 to 7 and 8 to 15 with both copies."""
    extra = ("training.augmentation.copies=2", "training.augmentation.crop=2", "training.noise_scale_every=1")
    job = make_job(*extra, network="plain")
    step = TrainingStep(job, datasets.load(job.data), PLACE)
    step.noise, expected = GradientNoise(step), 0.0
    for name, call in step.parts(0):
        if name == "noise_scale" and not expected:
            halves = [[*range(a, a + 8), *range(16 + a, 24 + a)] for a in (0, 8)]
            expected = sum(float((g := gradient(step, half)) @ g) for half in halves) / 2
        call()
    assert len(step._seen) == 32
    assert step.noise.found["grad_sq_small"] == pytest.approx(expected, rel=1e-4)
    assert (step.noise.found["batch_small"], step.noise.found["batch_big"]) == (8, 16)


def test_training_time_excludes_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a clock that advances a second per measured part only."""
    now = [0.0]

    def loss_on(step: TrainingStep, samples: slice) -> torch.Tensor:
        now[0] += 1
        return plain_loss_on(step, samples)

    plain_loss_on = TrainingStep.loss_on
    monkeypatch.setattr(TrainingStep, "loss_on", loss_on)
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    for module in (loop, noise_scale, step_module):
        monkeypatch.setattr(module, "time", clock)
    run = train(make_job("training.noise_scale_every=8"), tmp_path / "run")
    log = run.read_steps()
    assert [line.noise_scale_s for line in log.steps if line.noise_scale_s is not None] == [2.0, 2.0, 2.0]
    assert {line.step_time_s for line in log.steps} == {0.0}
    assert {line.backward_s for line in log.steps} == {0.0}
    assert [epoch.epoch_time_s for epoch in log.of(Epoch)] == [0.0, 0.0]


# -- the record ------------------------------------------------------------------------------------------


def test_record_has_the_scale_or_a_reason(tmp_path: Path) -> None:
    """Random labels leave almost no gradient above the noise after a few steps, but enough measurements."""
    job = make_job("training.noise_scale_every=1", "training.learning_rate=0.001", network="plain")
    run = train(job, tmp_path / "run")
    record = training_record(run, job, datasets.card(job.data), "done")
    found = record["gradient_noise_scale"]
    assert (found.unit, found.n) == ("sample", 24)
    assert found.value is not None
    assert found.low is not None
    assert 0 < found.low <= found.value
    assert found.high is None or found.value <= found.high
    assert record.curves["gradient_noise_scale"].columns["step"] == [6, 12, 18, 24]

    off = make_job("training.noise_scale_every=0")
    record = training_record(train(off, tmp_path / "off"), off, datasets.card(off.data), "done")
    assert record["gradient_noise_scale"].value is None
    assert "noise_scale_every is 0" in record["gradient_noise_scale"].reason
    assert "gradient_noise_scale" not in record.curves


# -- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", sorted(set(registry.names()) - {"single", "ddp"}))
def test_other_backends_refuse_measuring(backend: str) -> None:
    job = jobs.changed(make_job("training.noise_scale_every=10"), [f"backend={backend}", "network.name=lenet5"])
    with pytest.raises(JobError, match=f"backend {backend} does not .*"):
        registry.load(backend).plan(job, Path("run"), ["train"])


def test_batch_of_one_has_no_parts() -> None:
    with pytest.raises(JobError, match=r"training\.batch is 1"):
        make_job("training.noise_scale_every=1", "training.batch=1")

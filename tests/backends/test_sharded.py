"""Backends with sharded parameters: two and four processes, checkpoints of parts, kills, and what they refuse."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.backends import sharded_networks

from chronograd import job as jobs
from chronograd.backends import registry
from chronograd.count.cached import cached_trace
from chronograd.errors import JobError, RunError
from chronograd.job import Job
from chronograd.launch import jobs as launch
from chronograd.measure.result import Timing
from chronograd.models.weights import load_pretrained
from chronograd.predict.memory import footprint_of_job
from chronograd.predict.sharding import sent_bytes
from chronograd.rundir import RunDir
from chronograd.train import shards
from chronograd.train.checkpoint_folder import MODEL, list_checkpoints

NETWORKS = Path(__file__).parent
BACKENDS = ("fsdp", "tensor_parallel")


@pytest.fixture(autouse=True)
def _networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(NETWORKS), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(NETWORKS))


def make_job(*overrides: str, **options: Any) -> Job:
    """Return a job of three epochs with 4 steps; ranks of fsdp have unequal shares of a batch of 9."""
    job = jobs.from_dict(
        {
            "network": {"name": "sharded_networks:killed", "options": options},
            "data": {"name": "tokens", "shape": [12], "classes": 20, "samples": 38},
            "training": {"recipe": "adamw", "batch": 9, "epochs": 3, "learning_rate": 0.003},
            "cluster": {"device": "cpu", "threads": 1},
        }
    )
    return jobs.changed(job, overrides)


def sharded(backend: str, ranks: int, *overrides: str, **options: Any) -> Job:
    return make_job(f"backend={backend}", f"cluster.count={ranks}", *overrides, **options)


def final_files(run: RunDir) -> dict[str, bytes]:
    newest = list_checkpoints(run.checkpoints)[-1]
    return {path.name: path.read_bytes() for path in newest.glob("*.safetensors")}


def check_equal(run: RunDir, single: RunDir) -> None:
    """Check losses and weights against those of one process, as the contract does."""
    expected, got = (one.record().curves["loss"].columns["loss"] for one in (single, run))
    assert len(got) == len(expected) == 12
    assert got[1] == pytest.approx(expected[1], abs=1e-5)
    assert got == pytest.approx(expected, abs=1e-3)
    weights, ours = (load_file(list_checkpoints(one.checkpoints)[-1] / MODEL) for one in (single, run))
    assert ours.keys() == weights.keys()
    assert all(torch.allclose(ours[name], weights[name], atol=1e-3) for name in weights)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(NETWORKS), prepend=os.pathsep)
        patch.syspath_prepend(str(NETWORKS))
        return launch.train(make_job(), out=tmp_path_factory.mktemp("single") / "run")


@pytest.mark.parametrize(
    ("backend", "overrides"),
    [
        ("fsdp", ["training.zero_stage=2", "training.accumulation=2"]),
        ("fsdp", ["training.activation_checkpointing=blocks"]),
        ("tensor_parallel", ["training.accumulation=2"]),
    ],
)
def test_four_processes_equal_one(tmp_path: Path, backend: str, overrides: list[str], single: RunDir) -> None:
    run = launch.train(sharded(backend, 4, *overrides), out=tmp_path / "run", launcher="local")
    assert run.ranks() == [0, 1, 2, 3]
    check_equal(run, single)


@pytest.mark.parametrize(("backend", "at"), [("fsdp", "checkpoint"), ("tensor_parallel", "step")])
def test_killed_run_ends_with_the_same_bits(tmp_path: Path, backend: str, at: str) -> None:
    """Kill rank 1 in a step, or while half of its part of a checkpoint is written. Both lose the second epoch."""
    mark = str(tmp_path / "mark")
    whole = launch.train(sharded(backend, 2), out=tmp_path / "whole", launcher="local")
    job = sharded(backend, 2, at=at, mark=mark)
    with pytest.raises(RunError, match="rank 1 was killed by SIGKILL"):
        launch.train(job, out=tmp_path / "killed", launcher="local")
    killed = RunDir(tmp_path / "killed")
    assert [path.name for path in list_checkpoints(killed.checkpoints)] == ["step-00000004"]
    launch.resume(killed, launcher="local")
    assert final_files(killed) == final_files(whole)
    assert set(final_files(whole)) == {"model.safetensors", "optimizer.safetensors", "optimizer.1.safetensors"}
    assert killed.record().curves["loss"].columns == whole.record().curves["loss"].columns
    # Other verbs read the newest checkpoint of a run like any other.
    network = sharded_networks.killed()
    assert load_pretrained(network, str(killed.path), "").source.endswith("after step 12")
    expected = load_file(list_checkpoints(killed.checkpoints)[-1] / MODEL)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in network.state_dict().items())


def test_another_number_of_ranks_reads_the_parts(tmp_path: Path, single: RunDir) -> None:
    """Continue the second checkpoint of two ranks of fsdp with three of fsdp, and with two of tensor_parallel."""
    first = launch.train(sharded("fsdp", 2), out=tmp_path / "first", launcher="local")
    shutil.rmtree(list_checkpoints(first.checkpoints)[-1])
    for job in (sharded("fsdp", 3), sharded("tensor_parallel", 2)):
        run = launch.create(job, tmp_path / job.backend)
        shutil.copytree(first.checkpoints, run.checkpoints, dirs_exist_ok=True)
        launch.resume(run, launcher="local")
        assert [line.step for line in run.read_steps(0).steps] == list(range(9, 13))
        expected, got = (load_file(list_checkpoints(one.checkpoints)[-1] / MODEL) for one in (single, run))
        assert all(torch.allclose(got[name], expected[name], atol=1e-3) for name in expected)


@pytest.mark.parametrize(("backend", "ranks"), [("fsdp", 4), ("tensor_parallel", 2)])
def test_memory_and_traffic_are_as_predicted(tmp_path: Path, backend: str, ranks: int) -> None:
    """Measure processes: memory within 5 % of the prediction, and exactly the bytes that they send."""
    options = {"layers": 2, "width": 128, "heads": 4, "ffn": 320, "vocab": 20, "sequence": 12}
    job = jobs.from_dict({**jobs.stated(sharded(backend, ranks)), "network": {"name": "llama-7b", "options": options}})
    record = launch.measure(job, Timing(1, 1), flops_per_step=1.0, out=tmp_path / "run", launcher="local").record()
    trace = cached_trace("llama-7b", options, input_shape=(12,), num_classes=20)
    predicted = footprint_of_job(trace, job).at(job.images_per_rank)
    assert record.value("memory_peak_bytes") == pytest.approx(predicted.total, rel=0.05)
    assert record.value("sent_bytes") == sent_bytes(trace, job)


def test_parts_of_a_matrix_are_read_across_files(tmp_path: Path) -> None:
    """Store a matrix as quarters in two files, and read it whole; another shape is refused."""
    matrix = torch.arange(12.0).view(3, 4)
    for rank, columns in enumerate((slice(0, 1), slice(1, 4))):
        metadata = {shards.OFFSETS: f'{{"m": [0, {columns.start}]}}'}
        shards.save_tensors({"m": matrix[:, columns]}, tmp_path / str(rank), metadata)
    with shards.PartFiles([tmp_path / "0", tmp_path / "1"]) as stored:
        assert stored.names() == ["m"]
        assert torch.equal(stored.read("m", like=torch.empty(0)), matrix)
        with pytest.raises(ValueError, match=r"m has shape \(3, 4\) there, and \(4, 3\) here"):
            stored.read_into(torch.empty(4, 3), "m")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "override",
    ["training.compile=true", "training.ema_decay=0.9", "training.precision=fp16", "training.noise_scale_every=5"],
)
def test_unsupported_fields_are_refused(backend: str, override: str) -> None:
    name = override.partition("=")[0]
    with pytest.raises(JobError, match=rf"{name} is .*backend {backend}"):
        registry.find(backend).plan(sharded(backend, 2, override), Path(), [])


def test_fsdp_has_stage_2_or_3() -> None:
    assert sharded("fsdp", 2).training.zero_stage == 3
    with pytest.raises(JobError, match="zero_stage is 1, and backend fsdp shards at least gradients"):
        registry.find("fsdp").plan(sharded("fsdp", 2, "training.zero_stage=1"), Path(), [])
    with pytest.raises(JobError, match="zero_stage is 3, which backend ddp does not run"):
        launch.check(sharded("ddp", 2, "training.zero_stage=3"))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ({"name": "gpt2-small"}, "GPT2 has no block whose matrices backend tensor_parallel can share"),
        (
            {"name": "llama-7b", "options": {"layers": 1, "width": 12, "heads": 3, "ffn": 8}},
            "heads of LlamaAttention is 3, which 2 ranks cannot share",
        ),
    ],
)
def test_networks_that_ranks_cannot_share_are_refused(network: dict[str, Any], message: str) -> None:
    job = jobs.from_dict({**jobs.stated(sharded("tensor_parallel", 2)), "network": network})
    with pytest.raises(JobError, match=message):
        launch.check(job)

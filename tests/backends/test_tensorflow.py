"""TensorFlow backends: ports and update rules compared with torch's, refused jobs, and real runs without torch.

test_contract.py checks that two replicas train like `single`. The process of the tests never imports TensorFlow.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file

from chronograd import job as jobs
from chronograd.backends import registry
from chronograd.backends.tensorflow import rendezvous
from chronograd.backends.tensorflow.ports import PORTS
from chronograd.backends.tensorflow.prepared import folder as prepared_folder
from chronograd.errors import JobError, RunError
from chronograd.job import Job, Training
from chronograd.launch import jobs as launch
from chronograd.launch.local import free_port
from chronograd.measure.result import Timing
from chronograd.models.registry import build
from chronograd.rundir import Line, RunDir
from chronograd.train.checkpoint_folder import list_checkpoints
from chronograd.train.optimizer import make_optimizer
from chronograd.train.watchdog import note_path, read_note

needs_tensorflow = pytest.mark.tensorflow


def make_job(backend: str, *overrides: str, count: int = 2) -> Job:
    """Return a job of two epochs with four steps each."""
    job = jobs.from_dict(
        {
            "network": {"name": "lenet5"},
            "data": {"name": "synthetic", "shape": [1, 12, 12], "classes": 5, "samples": 66, "test_samples": 20},
            "training": {"recipe": "sgd-momentum", "batch": 15, "epochs": 2, "learning_rate": 0.02},
            "cluster": {"device": "cpu", "count": count, "threads": 1},
            "backend": backend,
        }
    )
    return jobs.changed(job, overrides)


# -- ports and update rules compared with torch's --------------------------------------------------------

# Each architecture, with image sizes that give odd sides to strided layers.
NETWORKS = {
    "lenet5": (1, 28, 28),
    "small-cnn": (3, 15, 15),
    "resnet8": (3, 17, 17),
    "resnet20": (1, 8, 8),
    "resnet18-cifar": (3, 16, 16),
    "resnet50": (3, 32, 32),
    "resnet50-v1": (3, 32, 32),
    "torchvision:resnet50": (3, 33, 33),
}
RULES: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.0},
    "momentum": {"momentum": 0.9, "weight_decay": 0.1},
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "adamw": {"optimizer": "adamw", "momentum": 0.9, "weight_decay": 0.1},
    "adadelta": {"optimizer": "adadelta", "momentum": 0.9, "weight_decay": 0.1},
}


def write_torch_outputs(name: str, shape: tuple[int, ...]) -> dict[str, Any]:
    network = build(name, input_shape=shape, num_classes=7)
    for path, buffer in network.named_buffers():
        if path.endswith("running_mean"):
            buffer.normal_(0, 0.1)
        if path.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
    weights = {f"weight {path}": tensor.numpy().copy() for path, tensor in network.state_dict().items()}
    images = torch.randn(4, *shape)
    with torch.no_grad():
        evaluated = network.eval()(images)
        network.train()(images)
    assert evaluated.std(dim=0).min() > 1e-3, "logits that do not follow the image would prove nothing"
    after = {f"after {path}": buffer.numpy() for path, buffer in network.named_buffers()}
    return {"network": name, "images_NCHW": images.numpy(), "evaluated": evaluated.numpy(), **weights, **after}


def write_torch_updates(fields: dict[str, Any]) -> dict[str, Any]:
    module = torch.nn.Linear(5, 3, bias=False)
    start = module.weight.detach().numpy().copy()
    optimizer = make_optimizer(module, Training(learning_rate=0.3, **fields))
    gradients, after = torch.randn(4, 3, 5), []
    for gradient in gradients:
        module.weight.grad = gradient.clone()
        optimizer.step()
        after.append(module.weight.detach().numpy().copy())
    told = json.dumps({"learning_rate": 0.3, **fields})
    return {"training": told, "start": start, "gradients": gradients.numpy(), "after": np.stack(after)}


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """Return the differences that keras_checks.py reports for all networks and rules."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("keras")
    for name, shape in NETWORKS.items():
        np.savez(folder / f"port-{name.replace(':', '-')}.npz", **write_torch_outputs(name, shape))
    for name, fields in RULES.items():
        np.savez(folder / f"update-{name}.npz", **write_torch_updates(fields))
    script = Path(__file__).with_name("keras_checks.py")
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, script, folder], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads((folder / "found.json").read_text()))


@needs_tensorflow
@pytest.mark.parametrize("name", NETWORKS)
def test_keras_port_matches_the_torch_network(name: str, differences: dict[str, dict[str, float]]) -> None:
    port = differences[f"port-{name.replace(':', '-')}"]
    assert port["evaluated"] < 1e-4
    assert port["kept"] == 0
    assert port.get("running", 0.0) < 1e-3
    assert ("running" in port) == ("resnet" in name)


def test_every_kind_of_keras_port_is_compared() -> None:
    deeper = {f"resnet{depth}" for depth in (14, 32, 44, 56, 110)}  # loops of the same blocks
    assert set(NETWORKS) | deeper == set(PORTS)


@needs_tensorflow
@pytest.mark.parametrize("name", RULES)
def test_update_rules_match_torch(name: str, differences: dict[str, dict[str, float]]) -> None:
    assert differences[f"update-{name}"]["worst"] < 1e-6


# -- refused jobs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "override", "match"),
    [
        ("tf_mirrored", "network.name=alexnet", "network alexnet has no Keras port(.|\n)*lenet5.*torchvision:resnet50"),
        ("tf_mirrored", "network.options={num_classes: 3}", "has no options"),
        ("tf_mirrored", "training.augmentation={flip: true, crop: 2}", "does not take training.augmentation=.*flip"),
        ("tf_multiworker", "training.accumulation=2", "does not take training.accumulation=2"),
        ("tf_multiworker", "training.ema_decay=0.9", "does not take training.ema_decay=0.9"),
        ("tf_multiworker", "training.trainable=head", "does not take training.trainable='head'"),
        ("tf_mirrored", "training.precision=bf16", "training.precision is bf16"),
        ("tf_mirrored", "communication.all_reduce=ring", "all_reduce is ring, which backend tf_mirrored does not have"),
        ("tf_multiworker", "communication.all_reduce=hierarchical_copy", "which backend tf_multiworker does not have"),
        ("tf_mirrored", "communication.all_reduce=nccl", "nccl, which TensorFlow does on GPUs only"),
        ("tf_multiworker", "communication.all_reduce=nccl", "nccl, which TensorFlow does on GPUs only"),
        ("tf_mirrored", "communication.bucket_bytes=1000", "MirroredStrategy has no such size"),
        ("tf_multiworker", "communication.compression=fp16", "compression is fp16"),
        ("tf_multiworker", "communication.servers=2", "communication.servers is 2"),
        ("tf_multiworker", "cluster.max_restarts=1", "max_restarts is 1"),
    ],
)
def test_unsupported_fields_are_refused_by_name(backend: str, override: str, match: str) -> None:
    registry.load(backend).plan(make_job(backend), Path(), [])
    with pytest.raises(JobError, match=match) as refused:
        registry.load(backend).plan(make_job(backend, override), Path(), [])
    assert refused.value.hint


# -- rendezvous of ranks ---------------------------------------------------------------------------------


def meet(ranks: list[int], world_size: int, timeout_s: float) -> dict[int, Any]:
    master = "127.0.0.1", free_port()
    result: dict[int, Any] = {}

    def one(rank: int) -> None:
        try:
            result[rank] = rendezvous.addresses(rank, world_size, master, timeout_s)
        except RunError as error:
            result[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    return result


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_ranks_learn_each_others_addresses(order: list[int]) -> None:
    told = meet(order, 3, timeout_s=20)
    assert told[0] == told[1] == told[2]
    assert len(set(told[0])) == 3
    assert all(address.startswith("127.0.0.1:") for address in told[0])


@pytest.mark.parametrize("alone", [0, 1])
def test_rank_reports_a_timeout_while_waiting_for_others(alone: int) -> None:
    error = meet([alone], 2, timeout_s=0.3)[alone]
    assert isinstance(error, RunError)
    assert f"rank {alone} of 2 did not meet the others at 127.0.0.1:" in error.message


# -- real runs -------------------------------------------------------------------------------------------


@pytest.fixture
def without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ranks fail if they import torch, which the test process has loaded already."""
    folder = tmp_path / "in-the-way"
    folder.mkdir()
    (folder / "torch.py").write_text("raise SystemError('torch was imported')")
    monkeypatch.setenv("PYTHONPATH", str(folder))


def weights(run: RunDir) -> dict[str, torch.Tensor]:
    return load_file(list_checkpoints(run.checkpoints)[-1] / "model.safetensors")


@pytest.fixture(scope="module")
def one_replica(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, RunDir]:
    """One job, trained by `single` and by one replica, with batch norm, Nesterov momentum and label smoothing."""
    overrides = [
        *("network.name=resnet8", "training.nesterov=true", "training.weight_decay=0.01"),
        *("training.label_smoothing=0.1", "training.schedule=cosine", "training.warmup=0.2"),
    ]
    folder = tmp_path_factory.mktemp("one-replica")
    first, second = (
        launch.train(make_job(backend, *overrides, count=1), out=folder / backend)
        for backend in ("single", "tf_mirrored")
    )
    return first, second


@needs_tensorflow
def test_one_replica_trains_batch_norm_as_single_does(one_replica: tuple[RunDir, RunDir]) -> None:
    losses = [run.record().curves["loss"].columns["loss"] for run in one_replica]
    assert losses[1][:2] == pytest.approx(losses[0][:2], abs=1e-5)
    assert losses[1] == pytest.approx(losses[0], abs=1e-3)
    ours, theirs = (weights(run) for run in one_replica)
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name], atol=2e-3) for name in ours)
    assert int(theirs["bn1.num_batches_tracked"]) == 8
    trained = [run.record().value("trained_params") for run in one_replica]
    assert trained[0] == trained[1]


@needs_tensorflow
def test_failing_rank_ends_the_run_with_its_error(one_replica: tuple[RunDir, RunDir], tmp_path: Path) -> None:
    """The checkpoint belongs to another job: the test changes its number of samples, and thus the steps of an epoch."""
    shutil.copytree(one_replica[1].path, tmp_path / "run")
    run = RunDir.open(tmp_path / "run")
    (run.path / "record.json").unlink()
    text = (run.path / "job.yaml").read_text()
    (run.path / "job.yaml").write_text(text.replace("samples: 66", "samples: 36"))
    with pytest.raises(RunError, match="is not of this job: it is at step 8"):
        launch.resume(run)


@needs_tensorflow
@pytest.mark.usefixtures("without_torch")
def test_resumed_run_matches_an_uninterrupted_one(tmp_path: Path) -> None:
    """Two processes with ring and AdamW restore the optimizer's state and step count from the checkpoint."""
    chosen = ["communication.all_reduce=ring", "communication.bucket_bytes=100000", "training.recipe=adamw"]
    job = make_job("tf_multiworker", *chosen, "training.epochs=2")
    run = launch.train(job, out=tmp_path / "run")
    record, whole = run.record(), weights(run)
    assert (record.provenance.all_reduce, record.provenance.processes) == ("ring", 2)
    assert "tensorflow" in record.versions
    first, last = list_checkpoints(run.checkpoints)
    for path in (*last.iterdir(), last):
        path.unlink() if path.is_file() else path.rmdir()
    (run.path / "record.json").unlink()
    launch.resume(run)
    assert run.read_steps(0).attempts == 2
    assert [line.attempt for line in run.read_steps(1).steps] == [1] * 4 + [2] * 4
    assert all(torch.allclose(whole[name], tensor, atol=1e-6) for name, tensor in weights(run).items())
    assert not torch.equal(whole["0.weight"], load_file(first / "model.safetensors")["0.weight"])
    assert not prepared_folder(run).exists()


@needs_tensorflow
@pytest.mark.usefixtures("without_torch")
def test_measurement_separates_exchange_and_computation(tmp_path: Path) -> None:
    job = make_job("tf_mirrored", "communication.all_reduce=hierarchical_copy")
    run = launch.measure(job, Timing(1, 3), flops_per_step=1e6, out=tmp_path / "run")
    record = run.record()
    assert record.provenance.all_reduce == "hierarchical_copy"
    assert run.ranks() == [0]
    for name in ("step_time_s", "input_s", "forward_s", "backward_s", "update_s", "communication_exposed_s"):
        assert record[name].n == 3, name
    assert record.value("throughput_samples_per_s") == pytest.approx(15 / record.value("step_time_s"))
    assert record.value("achieved_flops_per_s") == pytest.approx(1e6 / record.value("step_time_s"))
    modes = [line.mode for line in run.read_steps(0).steps]
    assert modes == ["parts", "no_exchange"] * 3
    for line in run.read_steps(0).steps[::2]:
        parts = (getattr(line, f"{part}_s") for part in ("input", "transfer", "forward", "backward", "update"))
        assert line.step_time_s == pytest.approx(sum(parts))


@needs_tensorflow
def test_processes_end_with_their_launcher(tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = tmp_path / "job.yaml"
    job.write_text(jobs.to_yaml(make_job("tf_multiworker", "training.epochs=100000")))
    code = f"from chronograd import job; from chronograd.launch import jobs; jobs.train(job.load({str(job)!r}), out={str(run)!r})"
    launching = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        wait_for(lambda: (run / "steps.1.jsonl").exists() and RunDir(run).read_steps(1).steps, 120)
        ranks = psutil.Process(launching.pid).children(recursive=True)
        assert len(ranks) == 2
    finally:
        launching.send_signal(signal.SIGKILL)
        launching.wait()
    wait_for(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in ranks), 20)


@needs_tensorflow
def test_hung_rank_is_reported(tmp_path: Path) -> None:
    run, stopped = RunDir(tmp_path / "run"), list[int]()

    def stop(line: Line) -> None:
        note = read_note(note_path(run, 1))
        if line.step == 3 and note is not None:
            stopped.append(note.process)
            os.kill(note.process, signal.SIGSTOP)

    job = make_job("tf_multiworker", "training.epochs=100000", "cluster.timeout_s=5")
    # TensorFlow's heartbeats may report first; they know the task but not its host.
    place = r"the (all-reduce of gradients|sum \((step|evaluation)\)) of step \d+ within 5 s"
    ours = f"rank 1 failed with a time-out: it (did not come to|stopped in) {place}"
    told = rf"{ours}|task:1(.|\n)*stopped sending heartbeats"
    with pytest.raises(RunError, match=told):
        launch.train(job, out=run.path, on_line=stop)
    assert len(stopped) == 1
    assert not psutil.pid_exists(stopped[0])


def wait_for(is_so: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)

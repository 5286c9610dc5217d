"""Asynchronous SGD: server updates in closed form, and real runs on a separate Ray cluster."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from chronograd import job as jobs
from chronograd.backends import parameter_server, registry
from chronograd.backends.parameter_server.actors import ParameterServer, Shard, group_fields, shards, trained_parameters
from chronograd.errors import InputError, JobError, RunError
from chronograd.job import Job, Training
from chronograd.launch import jobs as launch
from chronograd.measure.result import Timing
from chronograd.rundir import Line, RunDir, StepLine
from chronograd.rundir.steps import merged
from chronograd.train.checkpoint_folder import list_checkpoints
from chronograd.train.optimizer import make_optimizer, set_rate

NETWORKS = Path(__file__).parent.parent / "train"
MARK = "CHRONOGRAD_TEST_MARK"
needs_ray = pytest.mark.ray


def make_job(learners: int = 1, servers: int = 1, **training: Any) -> Job:
    """Return a job of 24 updates in two epochs."""
    return jobs.from_dict(
        {
            "network": {"name": "tiny_networks:plain"},
            "data": {"name": "synthetic", "shape": [1, 8, 8], "classes": 10, "samples": 380},
            "training": {"recipe": "sgd-momentum", "batch": 31, "epochs": 2, "learning_rate": 0.05, **training},
            "cluster": {"device": "cpu", "count": learners, "threads": 1},
            "communication": {"servers": servers},
            "backend": "parameter_server",
        }
    )


# -- updates of a server ---------------------------------------------------------------------------------


def make_server(is_staleness_aware: bool = False, **training: Any) -> ParameterServer:
    """Return a server of one parameter: two numbers that start at 1, and plain SGD at rate 0.5 for 10 steps."""
    given = Training(**{"optimizer": "sgd", "learning_rate": 0.5, "momentum": 0.0, "schedule": "constant", **training})
    shard = Shard((0,), (torch.Size([2]),))
    server = ParameterServer(shard, torch.optim.SGD, [{"params": [0], "factor": 1.0}], given, 10, is_staleness_aware)
    server.load(np.ones(2, np.float32), {}, 0)
    return server


def push(server: ParameterServer, gradient: float, version: int) -> int:
    """Push a gradient and return its staleness."""
    return server.push(np.full(2, gradient, np.float32), frozenset(), version).staleness


def test_staleness_counts_updates_in_between() -> None:
    server = make_server()
    assert [push(server, 0.0, version) for version in (0, 0, 1, 3, 0)] == [0, 1, 1, 0, 4]
    version, values = server.pull()
    assert (version, values.tolist()) == (5, [1.0, 1.0])


@pytest.mark.parametrize(("is_aware", "expected"), [(False, 1 - 4 * 0.5), (True, 1 - 0.5 * (1 + 1 + 1 / 2 + 1 / 3))])
def test_stale_gradients_get_a_lower_rate_on_request(is_aware: bool, expected: float) -> None:
    """Four gradients of 1 on version 0 have staleness 0, 1, 2, 3: rates 0.5 / max(1, staleness)."""
    server = make_server(is_aware)
    assert [push(server, 1.0, 0) for _ in range(4)] == [0, 1, 2, 3]
    assert server.pull()[1] == pytest.approx(expected)


def test_schedule_follows_the_number_of_updates() -> None:
    """one_cycle without momentum: rates 0.25, 0.5, 0.5, 0.4375 of a run of 10 steps, whichever learner pushes."""
    server = make_server(schedule="one_cycle")
    before, rates = 1.0, []
    for _ in range(4):
        push(server, 1.0, 0)
        after = float(server.pull()[1][0])
        rates.append(before - after)
        before = after
    assert rates == pytest.approx([0.25, 0.5, 0.5, 0.4375])


def test_weight_decay_skips_parameters_without_gradient() -> None:
    server = make_server(weight_decay=0.1)
    server.push(np.ones(2, np.float32), frozenset({0}), 0)
    assert server.pull()[1].tolist() == [1.0, 1.0]


def test_parameters_are_balanced_over_servers() -> None:
    parameters = [torch.zeros(n) for n in (10, 60, 30, 20, 40)]
    # Largest first, each to the server with less data: 60 | 40, 30 → 60 | 70, 20 → 80 | 70, 10 → 80 | 80.
    assert [shard.members for shard in shards(parameters, 2)] == [(1, 3), (0, 2, 4)]
    assert [shard.size for shard in shards(parameters, 2)] == [80, 80]
    with pytest.raises(InputError, match=r"servers is 6, and there are 5 parameters"):
        shards(parameters, 6)
    with pytest.raises(InputError, match=r"float32 parameters, not torch\.float64"):
        shards([torch.zeros(1, dtype=torch.float64)], 1)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adadelta"])
def test_two_servers_match_one_optimizer(optimizer: str) -> None:
    """Parameter groups have different rates and decays; the combined state equals that of one optimizer."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    fields: dict[str, Any] = {
        "optimizer": optimizer,
        "learning_rate": 0.1,
        "momentum": 0.9,
        "weight_decay": 0.01,
        "parameter_groups": [{"match": "*.bias", "learning_rate_factor": 0.5, "weight_decay": 0.0}],
    }
    training = Training(**fields)
    whole = make_optimizer(network, training)
    parameters = trained_parameters(whole)
    parts = shards(parameters, 2)
    servers = [ParameterServer(p, type(whole), group_fields(whole, p), training, 10, False) for p in parts]
    for part, server in zip(parts, servers, strict=True):
        server.load(np.concatenate([parameters[i].detach().numpy().ravel() for i in part.members]), {}, 0)
    for step in range(3):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        for part, server in zip(parts, servers, strict=True):
            gradients = np.concatenate([parameters[i].grad.numpy().ravel() for i in part.members])
            server.push(gradients, frozenset(), step)
        set_rate(whole, training, step, 10)
        whole.step()
    for part, server in zip(parts, servers, strict=True):
        values = part.pieces(torch.tensor(server.pull()[1]))
        assert all(torch.equal(v, parameters[i]) for v, i in zip(values, part.members, strict=True))
        for place, state in server.optimizer_state().items():
            expected = whole.state_dict()["state"][part.members[place]]
            assert all(torch.equal(torch.as_tensor(v), torch.as_tensor(expected[k])) for k, v in state.items())


# -- refused jobs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.ema_decay=0.9", "has no training.ema_decay"),
        ("training.precision=fp16", "has no training.precision fp16"),
        ("communication.compression=fp16", "has no communication.compression"),
    ],
)
def test_unsupported_jobs_are_refused_before_the_start(override: str, message: str) -> None:
    with pytest.raises(JobError, match=message):
        parameter_server.plan(jobs.changed(make_job(), [override]), Path("run"), ["train"])


def test_one_process_drives_all_learners() -> None:
    plan = parameter_server.plan(make_job(learners=3), Path("run"), ["train"])
    assert (plan.world_size, plan.launcher) == (1, "local")
    assert plan.command[-2:] == (str(Path("run").absolute()), "train")


# -- real runs -------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(NETWORKS), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(NETWORKS))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Mark the environment of every process that the test starts, and check that none outlives the test."""
    monkeypatch.setenv(MARK, str(tmp_path))
    yield str(tmp_path)
    for pid in marked(str(tmp_path)):
        os.kill(pid, signal.SIGKILL)


def marked(mark: str, containing: str = "") -> list[int]:
    """Return other live processes with the mark whose title contains `containing`."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            title = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"{MARK}={mark}".encode() in environment and containing in title:
            found.append(int(folder.name))
    return found


def wait_until(is_true: Any, seconds: float) -> float:
    """Return the seconds until a condition holds. Fails after a deadline."""
    start = time.monotonic()
    while not is_true():
        assert time.monotonic() - start < seconds, f"not within {seconds:g} s"
        time.sleep(0.1)
    return time.monotonic() - start


@needs_ray
def test_one_learner_equals_single_and_leaves_no_process(tmp_path: Path, mark: str) -> None:
    """The contract of backends with two servers, then one more epoch from the checkpoint."""
    single = jobs.changed(make_job(), ["backend=single", "communication.servers=1"])
    expected = launch.train(single, out=tmp_path / "single").record().curves
    run = launch.train(make_job(servers=2), out=tmp_path / "asynchronous")
    assert marked(mark) == []
    record = run.record()
    got = record.curves
    losses = [curves["loss"].columns["loss"] for curves in (expected, got)]
    assert len(losses[1]) == 24
    assert losses[1][:2] == pytest.approx(losses[0][:2], abs=1e-5)
    assert losses[1][20] == pytest.approx(losses[0][20], abs=1e-3)
    for name in ("step", "test_accuracy", "test_loss"):
        assert got["training"].columns[name] == pytest.approx(expected["training"].columns[name], abs=1e-3)
    assert record.value("staleness") == 0
    assert record.tables.staleness == [{"staleness": 0, "updates": 24, "share": 1.0}]
    assert [path.name for path in list_checkpoints(run.checkpoints)] == ["step-00000012", "step-00000024"]
    own = sum(record.value(name) for name in ("pull_s", "compute_s", "push_s"))
    assert 0 < own < 2 * record.value("step_time_s")


def is_timed(line: Line) -> bool:
    return min(line.pull_s, line.compute_s, line.push_s) > 0 and line.samples == 31


@needs_ray
def test_measurement_and_record(tmp_path: Path, mark: str) -> None:
    run = launch.measure(make_job(learners=2), Timing(2, 12), flops_per_step=1e6, out=tmp_path / "run")
    assert marked(mark) == []
    record = run.record()
    assert record["step_time_s"].n == 12
    assert record.value("throughput_samples_per_s") == pytest.approx(31 / record.value("step_time_s"))
    assert record.value("achieved_flops_per_s") == pytest.approx(1e6 / record.value("compute_s"))
    times = sorted((line.step, line.time_s) for rank in run.ranks() for line in run.read_steps(rank).steps)
    elapsed = times[-1][1] - times[0][1]
    assert record.value("step_time_s") * 12 == pytest.approx(elapsed, rel=0.5)
    assert "staleness" in record.quantities
    assert record["forward_s"].reason


@needs_ray
def test_dead_learner_is_reported(tmp_path: Path, mark: str) -> None:
    job = jobs.changed(make_job(epochs=1000), ["network.name=tiny_networks:random", "network.options.sleep_s=0.02"])
    killed: list[int] = []

    def kill(line: Line) -> None:
        if not killed:
            killed.extend(marked(mark, "ray::GradientLearner"))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    with pytest.raises(RunError, match="learner 0 died") as raised:
        launch.train(job, out=tmp_path / "run", on_line=kill)
    assert len(killed) == 1
    assert "--resume" in raised.value.hint
    wait_until(lambda: not marked(mark), 10)


@needs_ray
@pytest.mark.real_exec
def test_learners_share_all_updates_of_a_run_that_restarts_twice(tmp_path: Path, mark: str) -> None:
    """Kill the driver, then a server, each between two checkpoints; the third attempt ends the run."""
    # A learner waits before its 14th minibatch. No epoch ends without it, and the other learners finish this epoch's other
    # minibatches, or wait too: 13 updates each are 39, or 3 epochs and 3 updates. So 3 updates after a checkpoint come surely.
    job = jobs.changed(make_job(learners=3, servers=2, epochs=7), ["cluster.max_restarts=2"])
    hold = tmp_path / "hold"
    hold.touch()
    job = jobs.changed(
        job, ["network.name=tiny_networks:random", f"network.options.hold={hold}", "network.options.hold_at=14"]
    )
    victims = ["parameter_server.run", "ray::ParameterServer"]
    killed: list[int] = []

    def kill(run: RunDir) -> None:
        if len(killed) == len(victims):
            return
        if not any(Path(f"{hold}-{pid}").exists() for pid in marked(mark, "ray::GradientLearner")):
            return
        newest = merged(run.logs().values()).steps[-1]
        if newest.attempt == len(killed) + 1 and newest.step % 12 >= 3:
            wait_until((run.checkpoints / f"step-{newest.step // 12 * 12:08}").is_dir, 60)
            killed.append(marked(mark, victims[len(killed)])[0])
            os.kill(killed[-1], signal.SIGKILL)
            if len(killed) == len(victims):
                hold.unlink()

    run = launch.resume(launch.create(job, tmp_path / "run"), on_poll=kill)
    assert len(killed) == 2
    assert marked(mark) == []
    assert re.search(r"parameter server [01] died", run.output_path(0).read_text())
    assert run.ranks() == [0, 1, 2]
    log, record = merged(run.logs().values()), run.record()
    assert [line.step for line in log.steps] == list(range(1, 85))
    assert (log.attempts, record.provenance.attempts) == (3, 3)
    assert record.value("redone_steps") == len(log.discarded) >= 3 + 3
    assert record.value("lost_s") > record.value("redone_s") > 0
    assert len(record.curves["loss"].columns["loss"]) == 84
    assert record["step_time_s"].n == 84 - 3 * 5
    assert record.value("training_time_s") + record.value("lost_s") < record.value("wall_time_s")
    assert all(line.learner == rank and is_timed(line) for rank in run.ranks() for line in run.read_steps(rank).steps)
    # A learner pulls after its own push, so about one push of each other learner comes in between.
    assert 0.5 < record.value("staleness") < 3.5
    assert sum(row["updates"] for row in record.tables.staleness) == record["staleness"].n == 84
    assert record.curves["training"].columns["step"] == list(range(12, 85, 12))
    assert record.value("test_accuracy") <= 1
    assert any("3 learners and 2 parameter servers" in note for note in record.notes)


@needs_ray
@pytest.mark.parametrize(
    ("victim", "who"), [("ray::GradientLearner", "learner 0 hung: it"), ("ray::ParameterServer", "server 0 hung: it")]
)
def test_hung_actor_is_reported(victim: str, who: str, tmp_path: Path, mark: str) -> None:
    job = jobs.changed(make_job(epochs=1000), ["network.name=tiny_networks:random", "cluster.timeout_s=6"])
    stopped: list[int] = []

    def stop(line: Line) -> None:
        if not stopped and isinstance(line, StepLine):  # lines of the driver precede the actors
            stopped.extend(marked(mark, victim))
            os.kill(stopped[0], signal.SIGSTOP)

    with pytest.raises(RunError, match=who):
        launch.train(job, out=tmp_path / "run", on_line=stop)
    wait_until(lambda: not marked(mark), 15)


FAILING = """
from torch import nn

class Failing(nn.Linear):
    calls = 0
    def forward(self, images):
        self.calls += self.training
        if self.calls == 3:
            raise ValueError("no good the third time")
        return super().forward(images.flatten(1))

def failing(num_classes):
    return Failing(64, num_classes)
"""


@needs_ray
def test_learner_error_is_reported(tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "networks_that_fail.py").write_text(FAILING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    job = jobs.changed(make_job(), ["network.name=networks_that_fail:failing"])
    with pytest.raises(RunError, match="learner 0 failed with ValueError: no good the third time"):
        launch.train(job, out=tmp_path / "run")
    assert marked(mark) == []


@needs_ray
def test_more_servers_than_parameters_are_refused(tmp_path: Path, mark: str) -> None:
    with pytest.raises(RunError, match=r"servers is 9, and there are 4 parameters"):
        launch.train(make_job(servers=9), out=tmp_path / "nine")
    assert marked(mark) == []


@needs_ray
def test_ray_and_actors_end_with_their_launcher(tmp_path: Path, mark: str) -> None:
    job = jobs.changed(make_job(epochs=1000), ["network.name=tiny_networks:random", "network.options.sleep_s=0.02"])
    path = tmp_path / "job.yaml"
    path.write_text(jobs.to_yaml(job))
    out = tmp_path / "run"
    launcher = subprocess.Popen(
        [sys.executable, "-m", "chronograd", "train", str(path), "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    steps = RunDir(out).steps_path(0)
    wait_until(lambda: steps.exists() and b'"loss"' in steps.read_bytes(), 300)
    assert len(marked(mark, "ray::")) >= 2
    launcher.kill()
    launcher.wait()
    wait_until(lambda: not marked(mark), 15)
    # A started run resumes from its last checkpoint.
    run = RunDir.open(out)
    assert json.loads((out / "environment.json").read_bytes())
    assert not run.is_finished


def test_parameter_server_is_a_registered_backend() -> None:
    assert "parameter_server" in registry.names()

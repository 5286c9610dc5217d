"""Horovod beyond the contract of all backends: the data it sends, when it sends them, and jobs it refuses."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import psutil
import pytest

from chronograd import job as jobs
from chronograd.backends import horovod, registry
from chronograd.backends.horovod import build as horovod_build
from chronograd.backends.horovod import rank, rendezvous
from chronograd.backends.plan import RankPlan
from chronograd.errors import JobError, RunError
from chronograd.job import Job
from chronograd.launch import horovodrun
from chronograd.launch import jobs as launch
from chronograd.measure.result import Timing
from chronograd.rundir import RunDir
from chronograd.train.checkpoint_folder import MODEL, OPTIMIZER, list_checkpoints

NETWORKS = Path(__file__).parent.parent / "train"
real = pytest.mark.horovod
Trained = Callable[..., RunDir]


def make_job(*overrides: str) -> Job:
    """Return a job of 12 steps; two ranks have unequal shares of a batch of 31."""
    job = jobs.from_dict(
        {
            "network": {"name": "tiny_networks:plain"},
            "data": {"name": "synthetic", "shape": [1, 8, 8], "classes": 10, "samples": 380},
            "training": {"recipe": "sgd-momentum", "batch": 31, "epochs": 1, "learning_rate": 0.05},
            "cluster": {"device": "cpu", "count": 2, "threads": 1},
            "backend": "horovod",
        }
    )
    return jobs.changed(job, list(overrides))


def losses(run: RunDir) -> list[float]:
    found = [loss for loss in run.record().curves["loss"].columns["loss"] if loss is not None]
    assert len(found) == 12
    return found


@pytest.fixture(scope="module", autouse=True)
def _networks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(NETWORKS), prepend=os.pathsep)
        patch.syspath_prepend(str(NETWORKS))
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Return a function that trains each job once, by its overrides."""
    folder = tmp_path_factory.mktemp("horovod")
    return cache(lambda *overrides: launch.train(make_job(*overrides), parent=folder))


# -- without Horovod --------------------------------------------------------------------------------


def test_missing_horovod_shows_the_build_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(RunError, match=r"python -m chronograd\.backends\.horovod"):
        registry.find("horovod")


def test_environment_of_other_packages_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = horovod_build.python().parents[1]
    folder.mkdir(parents=True)
    (folder / horovod_build.READY).write_text("/some/other/site-packages\n")
    assert not horovod_build.is_built()
    (folder / horovod_build.READY).write_text(horovod_build.seen_packages())
    assert horovod_build.is_built()


def test_horovod_environment_imports_this_package_first(tmp_path: Path) -> None:
    """A Python without packages that reads the .pth file imports this package."""
    (tmp_path / "seen.pth").write_text(horovod_build.seen_packages())
    script = f"import site; site.addsitedir({str(tmp_path)!r}); import chronograd.job; print(chronograd.job.__file__)"
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.strip() == jobs.__file__, done.stderr


def test_source_is_patched_once_and_only_in_known_versions(tmp_path: Path) -> None:
    for name, old, _ in horovod_build.MENDS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"before\n{old}\nafter\n")
    horovod_build.mend(tmp_path)
    assert (tmp_path / "CMakeLists.txt").read_text() == "before\nset(CMAKE_CXX_STANDARD 20)\nafter\n"
    with pytest.raises(RunError, match="not the source that we know"):
        horovod_build.mend(tmp_path)


def test_plan_sets_horovods_fusion_threshold() -> None:
    plan = horovod.plan(make_job("communication.bucket_bytes=1000000"), Path("run"), ["train"])
    assert (plan.world_size, plan.launcher) == (2, "horovodrun")
    assert plan.environment == {"OMP_NUM_THREADS": "1", "HOROVOD_FUSION_THRESHOLD": "1000000"}
    assert "HOROVOD_FUSION_THRESHOLD" not in horovod.plan(make_job(), Path("run"), ["train"]).environment


def test_unsupported_options_are_refused_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobError, match="channels_last"):
        horovod.plan(make_job("training.channels_last=true"), Path(), [])
    monkeypatch.setattr("chronograd.measure.environment.gpus", lambda: [{"name": "NVIDIA A100-SXM4-80GB"}])
    horovod.plan(make_job(), Path(), [])
    with pytest.raises(JobError, match=r"cluster\.device is local; .* averages on the CPU"):
        horovod.plan(make_job("cluster.device=local"), Path(), [])


def test_rank_needs_a_launcher(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOROVOD_RANK", "RANK"):
        monkeypatch.delenv(name, raising=False)
    assert rank.main() == 1
    assert "started without RANK" in capsys.readouterr().err


def test_places_of_five_ranks_on_nodes_of_two() -> None:
    """The last node has one rank, so the ranks with local rank 1 are one fewer."""
    variables = rendezvous.variables(
        {"RANK": "3", "WORLD_SIZE": "5", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "2000"}
    )
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
    assert [variables[f"HOROVOD_{name}"] for name in names] == ["3", "5", "1", "2", "1", "2", "node-1"]
    assert rendezvous.place_of(4, 5, 2)["local_size"] == 1
    assert rendezvous.place_of(4, 5, 2)["cross_size"] == 3
    assert "HOROVOD_GLOO_IFACE" not in variables


# -- real processes ---------------------------------------------------------------------------------


@real
def test_launchers_start_only_their_backends(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="launcher torchrun cannot start ranks of backend horovod"):
        launch.train(make_job(), out=tmp_path / "a", launcher="torchrun")
    with pytest.raises(JobError, match="launcher horovodrun cannot start ranks of backend ddp"):
        launch.train(make_job("backend=ddp"), out=tmp_path / "b", launcher="horovodrun")


@real
def test_one_rank_trains_like_single(trained: Trained) -> None:
    one, single = (losses(trained("cluster.count=1", f"backend={name}")) for name in ("horovod", "single"))
    assert one == single


@real
def test_half_precision_exchange_changes_losses_little(trained: Trained) -> None:
    """The first loss precedes any exchange. float16 has 11 significant bits, so later losses differ by less than 1 %."""
    whole, half = losses(trained()), losses(trained("communication.compression=fp16"))
    assert half[0] == whole[0]
    assert half[1:] != whole[1:]
    assert half == pytest.approx(whole, abs=1e-2)


@real
def test_accumulated_gradients_are_sent_once(trained: Trained) -> None:
    """Three unequal parts make the same update as the whole batch."""
    parts = losses(trained("training.accumulation=3", "communication.bucket_bytes=100"))
    assert parts == pytest.approx(losses(trained()), abs=1e-4)


@real
def test_no_sync_delays_the_average_to_the_last_part(tmp_path: Path) -> None:
    """Rank 0's weight is 0; the two ranks have gradients 1 and 2.

    Without synchronisation each rank keeps its own gradient. Two parts of a batch sum to 2 and 4, whose average of 3
    is subtracted at rate 1. Horovod's warnings are errors.
    """
    code = """
import os, warnings, torch
from chronograd.backends.horovod.rank import HorovodCommunicator
from chronograd.job import GradientExchange
rank, exchange = int(os.environ["HOROVOD_RANK"]), HorovodCommunicator(GradientExchange())
warnings.simplefilter("error")
network, ones = torch.nn.Linear(1, 1, bias=False), torch.ones(1, 1)
network.weight.data.fill_(rank)
backward = lambda: (model(ones) * (rank + 1)).sum().backward()
with exchange.process_group(None):
    model, optimizer = exchange.parallel(network, torch.optim.SGD(network.parameters(), lr=1.0), None)
    with exchange.no_sync(model, optimizer):
        with exchange.no_sync(model, optimizer):
            backward()
        exchange.wait_for_gradients(optimizer)
        apart = model.weight.grad.item()
        optimizer.zero_grad(set_to_none=True)
    with exchange.no_sync(model, optimizer):
        backward()
    backward()
    exchange.wait_for_gradients(optimizer)
    together = model.weight.grad.item()
    optimizer.step()
    total = exchange.sum(torch.tensor(rank + 1, dtype=torch.float64)).item()
    first = exchange.broadcast_from_rank0(torch.tensor([rank, 7])).tolist()
    exchange.wait(None)
    print(apart, together, model.weight.item(), total, first)
"""
    plan = RankPlan((str(horovod_build.python()), "-c", code), 2)
    horovodrun.launch(plan, RunDir(tmp_path))
    printed = (tmp_path / "output.horovodrun.txt").read_text().splitlines()
    assert sorted(printed) == [f"[{rank}]<stdout>:{rank + 1}.0 3.0 -3.0 3.0 [0, 7]" for rank in range(2)]


@real
def test_rate_and_epochs_scale_with_the_ranks(trained: Trained) -> None:
    scaled = trained("training.scale_by_ranks=[learning_rate, epochs]", "training.epochs=2")
    assert scaled.record().value("epochs") == 1
    assert scaled.job().training.learning_rate == pytest.approx(0.1)
    assert losses(scaled)[0] == losses(trained())[0]
    assert losses(scaled)[2:] != losses(trained())[2:]


@real
def test_exposed_communication_is_measured(tmp_path: Path) -> None:
    """Includes accumulated batches, which keep their gradients local in both kinds of step."""
    job = make_job("training.accumulation=2")
    record = launch.measure(job, Timing(2, 6), out=tmp_path / "run").record()
    exposed = record["communication_exposed_s"]
    assert exposed.value is not None
    assert exposed.n == 6
    assert 0 <= exposed.value < record.value("step_time_s")


@real
def test_first_failing_rank_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="rank 1 failed with ValueError: no good on rank 1") as caught:
        launch.train(make_job("network.name=tiny_networks:raising"), out=tmp_path / "run")
    assert "[1]<stderr>:" in str(caught.value)
    assert "[0]<" not in str(caught.value)


@real
def test_resume_after_kill_9_is_bit_identical(tmp_path: Path, trained: Trained) -> None:
    """Kill the process that started horovodrun: the ranks end, and the resumed run equals an uninterrupted one."""
    hold = tmp_path / "hold"
    options = f"network.options={{hold: {hold}, hold_at: 16}}"
    held = ("network.name=tiny_networks:random", options, "training.epochs=3")
    whole = trained(*held)
    out = tmp_path / "killed"
    (tmp_path / "job.yaml").write_text(jobs.to_yaml(make_job(*held)))
    hold.touch()
    command = [sys.executable, "-m", "chronograd", "train", str(tmp_path / "job.yaml"), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    while not any(line.step > 14 for line in RunDir(out).read_steps().steps):
        assert process.poll() is None, f"it ended, with exit status {process.returncode}"
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
    ranks = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    for one in ranks:
        with contextlib.suppress(psutil.NoSuchProcess):
            while one.is_running() and one.status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() < deadline, "waited too long"
                time.sleep(0.05)
    hold.unlink()
    killed = RunDir.open(out)
    assert not killed.is_finished
    resumed = launch.resume(killed)
    assert _final_bytes(resumed) == _final_bytes(whole)
    assert resumed.read_steps(1).attempts == 2


@real
def test_hung_rank_is_reported_and_all_ranks_restart(tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    options = f"network.options={{how: stop, times: 2, marks: {tmp_path / 'marks'}}}"
    hung = ("network.name=tiny_networks:failing", options, "cluster.timeout_s=6", "cluster.max_restarts=1")
    told = (
        "after 1 restart from the newest checkpoint: rank 1 failed with a time-out: it did not come to the all-reduce"
    )
    with pytest.raises(RunError, match=told):
        launch.train(make_job(*hung, "training.epochs=3"), out=tmp_path / "run")
    assert RunDir.open(tmp_path / "run").read_steps(0).attempts == 2


def _final_bytes(run: RunDir) -> list[bytes]:
    newest = list_checkpoints(run.checkpoints)[-1]
    assert newest.name == "step-00000036"
    return [(newest / name).read_bytes() for name in (MODEL, OPTIMIZER)]

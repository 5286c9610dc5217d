"""Sweeps on a real Ray cluster: one node with two CPUs."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import chronograd
from chronograd import job as jobs
from chronograd.cli.main import main
from chronograd.errors import JobError, RunError
from chronograd.job import Job
from chronograd.launch import jobs as launch
from chronograd.launch import ray as launcher
from chronograd.launch.local import free_port

pytestmark = pytest.mark.ray
NETWORKS = Path(__file__).parent.parent / "train"


def make_job(
    *, backend: str = "single", count: int = 1, network: str = "tiny_networks:plain", rate: float = 0.1
) -> Job:
    return jobs.from_dict(
        {
            "network": {"name": network},
            "data": {"name": "synthetic", "shape": [1, 8, 8], "classes": 10, "samples": 64},
            "training": {"batch": 16, "epochs": 1, "learning_rate": rate},
            "cluster": {"device": "cpu", "count": count},
            "backend": backend,
        }
    )


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a cluster like `ray start --head`, blocked in the foreground so that it ends with its process."""
    port = free_port()
    # Restrict access to this user. Ray reads these variables at import, so no earlier test may import it.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        yield from _head(port, tmp_path_factory.mktemp("ray") / "output.txt")


def _head(port: int, output: Path) -> Iterator[str]:
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(NETWORKS)}
    command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--head", "--block"]
    options = ["--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=2", "--include-dashboard=false"]
    ports = [f"--{name}-port={free_port()}" for name in ("node-manager", "object-manager", "ray-client-server")]
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # socket paths must be short
    with output.open("wb") as stream:
        head = subprocess.Popen(
            [*command, *options, *ports, "--object-store-memory=100000000", f"--temp-dir={folder}"],
            env=environment,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 240
        while b"Ray runtime started" not in output.read_bytes():
            assert head.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.5)
        yield f"127.0.0.1:{port}"
    finally:
        os.killpg(head.pid, signal.SIGTERM)
        try:
            head.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(head.pid, signal.SIGKILL)
            head.wait()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def _networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(NETWORKS))
    # Ray warns about future GPU behaviour for tasks without GPUs.
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


def test_sweep_skips_finished_runs_and_resumes_others(address: str, tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    def on_state(name: str, state: str, text: str) -> None:
        seen.append((name, state))

    sent = {
        "rates/a": make_job(rate=0.1),
        "bad": make_job(network="tiny_networks:none_such"),
        "two-ranks": make_job(backend="ddp", count=2),
    }
    with pytest.raises(RunError, match=r"1 of 3 runs failed\nbad: .*none_such") as raised:
        launcher.sweep(sent, tmp_path, address, on_state)
    assert "keeps the others" in raised.value.hint
    assert {state for name, state in seen if name != "bad"} == {"sent", "finished"}
    assert ("bad", "failed") in seen
    seen.clear()
    mended = {**sent, "bad": make_job(rate=0.2)}
    runs = launcher.sweep(mended, tmp_path, address, on_state)
    assert sorted(seen) == [("bad", "finished"), ("bad", "sent"), ("rates/a", "kept"), ("two-ranks", "kept")]
    assert set(runs) == set(sent)
    assert all(run.is_finished and run.path == tmp_path / name for name, run in runs.items())
    assert runs["two-ranks"].ranks() == [0, 1]
    assert runs["rates/a"].job().cluster.threads == 1


def test_verb_trains_each_point_of_a_sweep(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.yaml").write_text(jobs.to_yaml(make_job()))
    words = [str(tmp_path / "job.yaml"), "--sweep", "training.learning_rate=0.1,0.2", "--out", str(tmp_path / "rates")]
    assert main(["launch", *words, "--on", "ray", "--address", address, "--json"]) == 0
    printed = capsys.readouterr()
    assert {"run-0 sent", "run-0 finished", "run-1 sent", "run-1 finished"} <= set(printed.err.splitlines())
    assert [one["job"]["training"]["learning_rate"] for one in json.loads(printed.out)] == [0.1, 0.2]
    again = chronograd.launch_ray(*words[:1], sweep=words[2], out=words[4], address=address)
    assert again.data == json.loads(printed.out)


def test_asynchronous_sgd_joins_the_given_cluster(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setenv("PYTHONPATH", str(NETWORKS), prepend=os.pathsep)
    job = jobs.changed(make_job(backend="parameter_server"), ["cluster.threads=1"])
    record = launch.train(job, out=tmp_path / "one").record()
    assert (record.value("epochs"), record["staleness"].n) == (1, 4)
    with pytest.raises(RunError, match="2 learners and 1 parameter servers need 3 CPUs and 0 GPUs of Ray, which has 2"):
        launch.train(jobs.changed(job, ["cluster.count=2"]), out=tmp_path / "two")


def test_oversized_job_and_invalid_run_name(address: str, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="big needs 3 CPUs and 0 GPUs on one node; the largest has 2 CPUs"):
        launcher.sweep({"big": make_job(backend="ddp", count=3)}, tmp_path, address)
    with pytest.raises(JobError, match=r"'\.\./x' does not name a folder"):
        launcher.sweep({"../x": make_job()}, tmp_path, address)
    assert list(tmp_path.iterdir()) == []


def test_no_cluster_at_the_address(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no Ray cluster at '127\.0\.0\.1:1'"):
        launcher.sweep({"a": make_job()}, tmp_path, "127.0.0.1:1")

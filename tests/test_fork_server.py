"""Forked processes behave like a new interpreter: output, exit status, session, and end with the parent."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fork_server import ForkedProcess, Server, library_of

from chronograd import job as jobs
from chronograd.backends.plan import torch_worker
from chronograd.rundir import RunDir
from chronograd.train.rank_command import PARENT_VARIABLE

NETWORKS = Path(__file__).parent / "train"


def started(popen: Callable[..., Any], run: Path, **variables: str) -> Any:
    return popen(
        torch_worker(run, ["train"]),
        env={**os.environ, "PYTHONPATH": f"{NETWORKS}:{os.environ.get('PYTHONPATH', '')}", **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def endless(tmp_path: Path) -> RunDir:
    job = {
        "network": {"name": "tiny_networks:random", "options": {"sleep_s": 0.02}},
        "data": {"name": "synthetic", "shape": [1, 8, 8], "classes": 10, "samples": 64},
        "training": {"batch": 16, "epochs": 10_000},
        "cluster": {"device": "cpu", "threads": 1},
    }
    return RunDir.create(jobs.from_dict(job), out=tmp_path / "run")


def test_output_and_status_equal_those_of_an_interpreter(tmp_path: Path, fork_server: Server) -> None:
    ended = []
    for popen in (fork_server.popen, subprocess.Popen):
        with started(popen, tmp_path / "nowhere") as process:
            assert isinstance(process, ForkedProcess) == (popen is not subprocess.Popen)
            ended.append((process.stdout.read(), process.wait(60)))
    assert ended[0] == ended[1]
    assert ended[0][1] != 0
    assert "nowhere" in ended[0][0]


def test_fork_leads_a_session_and_returns_signals(endless: RunDir, fork_server: Server) -> None:
    with started(fork_server.popen, endless.path) as process:
        assert process.poll() is None
        assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(60) == process.poll() == process.returncode == -signal.SIGKILL


def test_fork_ends_with_its_parent(endless: RunDir, fork_server: Server) -> None:
    with started(fork_server.popen, endless.path, **{PARENT_VARIABLE: "1"}) as process:
        process.stdin.close()
        assert process.wait(60) == 1


def test_other_commands_start_a_new_process(fork_server: Server) -> None:
    assert library_of(torch_worker(Path(), ["train"])) == "torch"
    assert library_of(torch_worker(Path(), [], "chronograd.backends.tensorflow.worker")) == "tensorflow"
    for words, variables in (
        (["-c", "import time; time.sleep(60)"], {}),
        (["-P", "-m", "chronograd.train.worker", "--help"], {"PYTHONHASHSEED": "1"}),
        (["-P", "-m", "chronograd.backends.tensorflow.worker", "--help"], {"TF_CPP_MIN_LOG_LEVEL": "0"}),
    ):
        command = [torch_worker(Path(), [])[0], *words]
        with fork_server.popen(command, env={**os.environ, **variables}, stdout=subprocess.PIPE) as process:
            assert isinstance(process, subprocess.Popen)
            process.kill()

"""The command line of torchrun and its restarts; tests/backends/test_contract.py runs it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from chronograd import job as jobs
from chronograd.backends.plan import RankPlan
from chronograd.errors import RunError
from chronograd.launch import jobs as launch
from chronograd.launch import torchrun
from chronograd.train.checkpoint_folder import list_checkpoints

NETWORKS = Path(__file__).parent.parent / "train"


def test_command_line_uses_loopback() -> None:
    command = torchrun.command(RankPlan(("python", "-m", "worker"), world_size=3), Path("/tmp/store"))
    assert command[1:] == (
        *("-P", "-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-conf=store_type=file"),
        *("--rdzv-endpoint=/tmp/store", "--local-addr=127.0.0.1"),
        *("--nproc-per-node=3", "--no-python", "python", "-m", "worker"),
    )


@pytest.mark.parametrize(
    ("codes", "moments", "expected"),
    [
        ((-15, -9), (7, 7), "rank 1 was killed by SIGKILL; torchrun then ended the other ranks"),
        ((-9, -15), (7, 7), "rank 0 was killed by SIGKILL; torchrun then ended the other ranks"),
        ((1, -9, -15), (7, 6, 8), "rank 1 was killed by SIGKILL; torchrun then ended the other ranks"),
        ((-15, -15), (7, 6), "rank 1 was killed by SIGTERM; torchrun then ended the other ranks"),
        ((-11, -9, -15), (7, 6, 8), "rank 1 was killed by SIGKILL; rank 0 was killed by SIGSEGV; torchrun then ended the other ranks"),
        ((-9,), (7,), "rank 0 was killed by SIGKILL"),
        ((1, 1), (7, 7), ""),
    ],
)  # fmt: skip
def test_first_killed_rank_is_reported_first(codes: tuple[int, ...], moments: tuple[int, ...], expected: str) -> None:
    """Use a report in torchrun's own format."""
    failures = {rank: ProcessFailure(rank, 100 + rank, code, "") for rank, code in enumerate(codes)}
    for failure, moment in zip(failures.values(), moments, strict=True):
        failure.timestamp = moment
    assert torchrun.killed(ChildFailedError("python", failures).format_msg()) == expected


@pytest.mark.slow
def test_killed_rank_restarts_without_effect_on_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run twelve steps in three epochs. Rank 1 is killed in the tenth, so the ninth runs again."""
    monkeypatch.setenv("PYTHONPATH", str(NETWORKS), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(NETWORKS))
    job = jobs.from_dict(
        {
            "network": {"name": "tiny_networks:killed_once"},
            "data": {"name": "synthetic", "shape": [1, 8, 8], "classes": 10, "samples": 128},
            "training": {"batch": 32, "epochs": 3},
            "cluster": {"device": "cpu", "count": 2, "threads": 1},
            "backend": "ddp",
        }
    )
    with pytest.raises(RunError, match=r"^rank 1 was killed by SIGKILL"):
        launch.train(job, out=tmp_path / "killed", launcher="torchrun")
    again = launch.resume(launch.RunDir.open(tmp_path / "killed"), launcher="local")
    restarted = launch.train(jobs.changed(job, ["cluster.max_restarts=1"]), out=tmp_path / "restarted")
    log = restarted.read_steps(0)
    assert [line.step for line in log.steps] == list(range(1, 13))
    assert log.attempts == 2
    assert log.redone >= 1
    assert any("2 times" in note for note in restarted.record().notes)
    first, second = (
        load_file(list_checkpoints(run.checkpoints)[-1] / "model.safetensors") for run in (again, restarted)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)

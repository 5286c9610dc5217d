"""Threads and devices of a rank."""

from __future__ import annotations

import pytest

from chronograd import job as jobs
from chronograd.errors import InputError
from chronograd.job import Cluster, Job
from chronograd.measure import environment
from chronograd.train.rank_context import check_machine, threads_per_rank


def make_job(*overrides: str) -> Job:
    return jobs.changed(jobs.from_dict({"network": {"name": "n"}, "data": {"name": "digits"}}), list(overrides))


def test_cores_are_divided_unless_the_job_sets_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "cores", lambda: 6)
    assert [threads_per_rank(Cluster(), ranks) for ranks in (1, 2, 4, 9)] == [6, 3, 1, 1]
    assert threads_per_rank(Cluster(threads=5), 9) == 5


@pytest.mark.parametrize(
    ("device", "gpu"),
    [
        ("a100-80", "NVIDIA A100-SXM4-80GB"),
        ("rtx3090", "NVIDIA GeForce RTX 3090"),
        ("h100", "NVIDIA H100 80GB HBM3"),
        ("v100", "Tesla V100-SXM2-16GB"),
        ("local", "NVIDIA anything"),
    ],
)
def test_device_matches_the_driver_name(device: str, gpu: str) -> None:
    check_machine(make_job(f"cluster.device={device}"), 1, [gpu])


@pytest.mark.parametrize(
    ("overrides", "gpus", "message"),
    [
        (["cluster.device=a100-40"], ["NVIDIA A100-SXM4-80GB"], "this machine has NVIDIA A100-SXM4-80GB"),
        (["cluster.device=v100"], [], "this machine has no NVIDIA GPU"),
        (["training.precision=fp16"], [], "needs an NVIDIA GPU"),
        (["cluster.device=cpu", "training.precision=tf32"], ["NVIDIA H100"], "needs an NVIDIA GPU"),
        (["cluster.count=2", "backend=ddp"], ["NVIDIA H100"], "2 ranks on this machine need one GPU each; it has 1"),
    ],
)
def test_unsupported_jobs_are_refused(overrides: list[str], gpus: list[str], message: str) -> None:
    job = make_job(*overrides)
    with pytest.raises(InputError, match=message):
        check_machine(job, job.cluster.count, gpus)

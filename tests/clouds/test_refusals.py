"""Jobs that single platforms refuse, and fields that no job sets."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tests.clouds.cases import submission_of

from chronograd.clouds import fields, registry
from chronograd.clouds.complaints import complaints
from chronograd.errors import InputError
from chronograd.job import Cluster


@pytest.mark.parametrize(("backend", "cores"), [("ddp", 4 * 8), ("data_parallel", 4)])
def test_cores_are_those_of_the_ranks_of_a_node(backend: str, cores: int) -> None:
    """Data-parallel threads are one rank with all 8 GPUs."""
    asked = submission_of("sagemaker", "digits")
    job = asked.job.model_copy(update={"backend": backend, "cluster": Cluster(count=8, threads=4)})
    assert asked.model_copy(update={"job": job, "devices": 8}).cores == cores


def test_watsonx_refuses_a_second_node() -> None:
    complain = registry.platform("watsonx").complain
    one, two = (SimpleNamespace(nodes=count, checkpoints=None, spot=False) for count in (1, 2))
    assert complain(one) == []  # type: ignore[arg-type]
    (told,) = complain(two)  # type: ignore[arg-type]
    assert "takes 2 nodes" in told


def test_sagemaker_refuses_shards_on_several_nodes() -> None:
    """A checkpoint is one folder of all ranks, and the nodes have no folder in common."""
    platform = registry.platform("sagemaker")
    one = submission_of("sagemaker", "language")
    two = one.model_copy(update={"nodes": 2})
    assert not any("into one folder" in told for told in platform.complain(one))
    assert any("2 nodes of SageMaker share none" in told for told in platform.complain(two))


def test_pytorchjob_run_policy_does_not_restart_failed_jobs() -> None:
    platform = registry.platform("pytorchjob")
    for restarts in (0, 3):
        rendered = fields.document(platform, submission_of("pytorchjob", "digits", restarts=restarts))
        assert fields.get(rendered, "spec.runPolicy.backoffLimit") == restarts


@pytest.mark.parametrize(
    ("given", "is_told"), [({"checkpoints": None}, True), ({}, False), ({"spot": False, "checkpoints": None}, False)]
)
def test_sagemaker_on_spot_needs_checkpoints(given: dict[str, object], is_told: bool) -> None:
    wanted = {"spot": True, "output": "s3://lab/out", "checkpoints": "s3://lab/checkpoints", **given}
    platform = registry.platform("sagemaker")
    try:
        told = complaints(platform, submission_of("sagemaker", "digits", **wanted))
    except InputError as error:
        told = [str(error)]
    assert any("--spot without --checkpoints" in one for one in told) == is_told

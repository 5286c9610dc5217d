"""What single platforms refuse, and fields that no job chooses."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tests.clouds.cases import asked

from chronograd.clouds import fields, registry
from chronograd.clouds.complaints import complaints
from chronograd.errors import InputError


def test_watsonx_takes_no_second_node() -> None:
    complain = registry.platform("watsonx").complain
    one, two = (SimpleNamespace(nodes=count, checkpoints=None, spot=False) for count in (1, 2))
    assert complain(one) == []  # type: ignore[arg-type]
    (told,) = complain(two)  # type: ignore[arg-type]
    assert "takes 2 nodes" in told


def test_a_failed_pytorchjob_is_not_started_again_by_its_run_policy() -> None:
    platform = registry.platform("pytorchjob")
    for restarts in (0, 3):
        rendered = fields.document(platform, asked("pytorchjob", "digits", restarts=restarts))
        assert fields.get(rendered, "spec.runPolicy.backoffLimit") == restarts


@pytest.mark.parametrize(
    ("given", "is_told"), [({"checkpoints": None}, True), ({}, False), ({"spot": False, "checkpoints": None}, False)]
)
def test_sagemaker_on_spot_needs_checkpoints(given: dict[str, object], is_told: bool) -> None:
    wanted = {"spot": True, "output": "s3://lab/out", "checkpoints": "s3://lab/checkpoints", **given}
    platform = registry.platform("sagemaker")
    try:
        told = complaints(platform, asked("sagemaker", "digits", **wanted))
    except InputError as error:
        told = [str(error)]
    assert any("--spot without --checkpoints" in one for one in told) == is_told

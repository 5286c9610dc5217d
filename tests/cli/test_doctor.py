"""What `doctor` says of backends is what `registry.find` does."""

from __future__ import annotations

import json

import pytest

from chronograd.backends import registry
from chronograd.cli.main import main
from chronograd.errors import RunError
from chronograd.job import BACKENDS


def test_every_backend_is_listed_with_a_reason_where_it_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)["backends"]}
    assert set(found) == set(BACKENDS) == set(registry.names())
    assert found["single"] == {"name": "single", "available": True, "reason": ""}
    for name, row in found.items():
        if row["available"]:
            registry.find(name)
        else:
            with pytest.raises(RunError) as caught:
                registry.find(name)
            assert row["reason"] in caught.value.message


def test_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in (*BACKENDS, "slurm", "torchrun"))

"""`doctor` reports backends as `registry.find` does, and obstacles set its exit status."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from chronograd.backends import registry
from chronograd.cli.main import main
from chronograd.doctor import checks as doctor_checks
from chronograd.doctor import storage as doctor_storage
from chronograd.errors import MissingExtraError, RunError
from chronograd.job import BACKENDS

DIGITS = str(Path(__file__).parents[2] / "examples" / "digits.yaml")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the deadlines, as the machine is shared."""
    for name in ("BUILD_S", "REST_S"):
        monkeypatch.setattr(doctor_checks, name, 240.0)
    monkeypatch.setattr(doctor_storage, "DEADLINE_S", 60.0)


@pytest.mark.slow
def test_unavailable_backends_are_listed_with_a_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "64000")
    assert main(["doctor", "--json", "--out", str(tmp_path)]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    found = {row["name"]: row for row in data["backends"]}
    assert set(found) == set(BACKENDS) == set(registry.names())
    assert found["single"] == {"name": "single", "available": True, "reason": ""}
    for name, row in found.items():
        if row["available"]:
            registry.find(name)
        else:
            with pytest.raises((RunError, MissingExtraError)) as caught:
                registry.find(name)
            if isinstance(caught.value, RunError):
                assert row["reason"] in caught.value.message
            assert row["reason"]
    threads = next(row for row in data["findings"] if row["what"] == "OMP_NUM_THREADS")
    assert threads["state"] == "warning"
    assert threads["numbers"]["threads"] == 64000
    assert data["can_start"] is True
    assert {"devices", "cores", "memory", "storage", "link", "software"} == {row["group"] for row in data["findings"]}


def test_obstacles_come_first_with_a_remedy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file replaces the run directory, and PyTorch cannot be imported."""
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["doctor", DIGITS, "--all", "--out", str(tmp_path / "file")]) == 1
    text = capsys.readouterr().out
    assert text.startswith("Obstacles\n")
    obstacles = " ".join(text[: text.index("Fine\n")].split())  # long paths break the lines
    assert "PyTorch: cannot be imported" in obstacles
    assert "libcudart.so.12" in obstacles
    assert "file: cannot be written" in obstacles
    assert "→ pip install --force-reinstall torch" in text
    assert "A run cannot start as it is" in text
    assert all(name in text for name in (*BACKENDS, "slurm", "torchrun"))


def test_invalid_job_is_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", DIGITS, "training.batch=none"]) == 2
    assert "training.batch" in capsys.readouterr().err

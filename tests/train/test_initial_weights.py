"""Initial weights are read before the run is written, so an invalid file leaves no run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from chronograd import job as jobs
from chronograd.errors import InputError
from chronograd.launch.jobs import create
from chronograd.models import registry

JOB = jobs.from_dict(
    {"network": {"name": "lenet5"}, "data": {"name": "synthetic", "shape": [1, 28, 28], "classes": 10, "samples": 64},
     "training": {"batch": 8}, "cluster": {"device": "cpu"}}
)  # fmt: skip


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    network = registry.build("lenet5", input_shape=(1, 28, 28), num_classes=10)
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def test_valid_weights_are_copied(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    save_file(weights, tmp_path / "w.safetensors")
    assert create(JOB, tmp_path / "run", initial_weights=tmp_path / "w.safetensors").initial_weights.is_file()


@pytest.mark.parametrize("kind", ["absent", "folder", "text", "missing", "added", "shape", "lfs"])
def test_invalid_weights_leave_no_run(tmp_path: Path, weights: dict[str, torch.Tensor], kind: str) -> None:
    path, first = tmp_path / "w.safetensors", next(iter(weights))
    if kind == "folder":
        path.mkdir()
    elif kind in ("text", "lfs"):
        path.write_text("hello" if kind == "text" else "version https://git-lfs.github.com/spec/v1\n")
    elif kind != "absent":
        changed = dict(weights)
        if kind == "missing":
            del changed[first]
        elif kind == "added":
            changed["other"] = torch.zeros(1)
        else:
            changed[first] = torch.zeros(3)
        save_file(changed, path)
    with pytest.raises(InputError) as refused:
        create(JOB, tmp_path / "run", initial_weights=path)
    assert str(path) in str(refused.value)
    assert "--resume" not in str(refused.value)
    assert not (tmp_path / "run").exists()

"""`measure` for networks with custom inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import chronograd
from chronograd.cli.main import main
from chronograd.errors import InputError
from chronograd.rundir import RunDir

NETWORKS = """
import torch
from torch import nn

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 64), nn.Linear(6, 64), nn.Linear(64, 3)

    def forward(self, x, y):
        return self.c(torch.relu(self.a(x) + self.b(y)))

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(50, 16), nn.Linear(16, 5)

    def forward(self, tokens, *, scale):
        return {"scores": self.out(self.table(tokens).mean(1)) * scale}

class Volume(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv3d(2, 4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.conv(x).mean((2, 3, 4)))

def words():
    return (torch.arange(24).reshape(4, 6),), {"scale": torch.ones(4, 1)}
"""


@pytest.fixture(autouse=True)
def _networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets.py").write_text(NETWORKS)
    monkeypatch.chdir(tmp_path)


def test_volumes_train_channels_last() -> None:
    words = ["measure", "nets.py:Volume", "--input", "2,5,5,5", "--batch", "4", "--steps", "2", "--warmup", "1"]
    assert main([*words, "training.channels_last=true", "cluster.threads=1", "--out", "run"]) == 0
    assert RunDir.open("run").record()["step_time_s"].n == 2


def test_training_with_two_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    words = ["measure", "nets.py:Two", "--input", "8", "--input", "6", "--batch", "32", "--steps", "7", "--warmup", "2"]
    assert main([*words, "cluster.threads=1", "--out", "run"]) == 0
    record, run = RunDir.open("run").record(), RunDir.open("run")
    assert record["step_time_s"].n == 7
    assert all(record.value(part) > 0 for part in ("forward_s", "backward_s", "update_s"))
    # Forward: 32 samples of 8·64 + 6·64 + 64·3 products; backward: weights and the hidden layer.
    forward = 2 * 32 * (8 * 64 + 6 * 64 + 64 * 3)
    flops = record.value("achieved_flops_per_s") * record.value("step_time_s")
    assert flops == pytest.approx(2 * forward + 2 * 32 * 64 * 3, rel=0.01)
    assert run.job().training.batch == 32
    assert torch.get_num_threads() == threads
    assert main(["explain", "run"]) == 0


def test_example_with_keyword_inputs_in_inference() -> None:
    answer = chronograd.measure("nets.py:Words", "network.inputs=[nets.py:words]", "data.name=inputs", "training.batch=8",
                                "mode=inference", num_steps=5, warmup=1, out="run")  # fmt: skip
    (record,) = answer.records.values()
    assert record["step_time_s"].n == 5
    assert record["backward_s"].value is None
    assert record.cluster.batch_per_rank == 8


def test_several_ranks_are_refused() -> None:
    with pytest.raises(InputError, match="in one process, not with backend ddp and 2 ranks"):
        chronograd.measure("nets.py:Two", 'network.inputs=["8","6"]', "data.name=inputs", "backend=ddp", "cluster.count=2",
                           out="run")  # fmt: skip
    assert not Path("run").exists()


def test_images_have_the_layout_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    Path("nets.py").write_text(
        "import torch\nfrom torch import nn\nclass Net(nn.Conv2d):\n"
        "    def __init__(self):\n        super().__init__(3, 4, 3)\n"
        "    def forward(self, x):\n        SEEN.append(x.is_contiguous(memory_format=torch.channels_last))\n"
        "        return super().forward(x).mean((2, 3))\nSEEN = nn.Conv2d.seen\n"
    )
    monkeypatch.setattr("torch.nn.Conv2d.seen", seen, raising=False)
    for layout in (True, False):
        chronograd.measure("nets.py:Net", 'network.inputs=["3x8x8"]', "data.name=inputs", "training.batch=2", "mode=inference",
                           f"training.channels_last={str(layout).lower()}", num_steps=1, warmup=1, out=f"run-{layout}")  # fmt: skip
        assert set(seen[-2:]) == {layout}

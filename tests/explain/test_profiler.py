"""Traces of torch.profiler: real ones of loops on the CPU, one of two ranks, and made-up intervals of a GPU."""

from __future__ import annotations

import gzip
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from chronograd.errors import ChronogradError, FileFormatError
from chronograd.explain.explanation import explain
from chronograd.explain.profiler import _minus, _union, read


def traced(path: Path, input_s: float = 0.0, sleep_s: float = 0.0, batch: int = 64) -> Path:
    """Six steps of a small network, with a loader that takes so long."""
    network = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(32 * 784, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    class Images(torch.utils.data.Dataset[Any]):
        image = torch.ones(3, 32, 32)  # at hand: making each while profiled is a tenth of a step

        def __len__(self) -> int:
            return 6 * batch

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            if input_s:
                time.sleep(input_s / batch)
            return self.image, index % 10

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for x, y in torch.utils.data.DataLoader(Images(), batch_size=batch):
            nn.functional.cross_entropy(network(x), y).backward()
            time.sleep(sleep_s)
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    profiler.export_chrome_trace(str(path))
    return path


def test_input_of_a_real_trace_is_found(tmp_path: Path) -> None:
    healthy = explain([traced(tmp_path / "a.json")]).runs[0]
    assert "input_bound" not in [c.cause for c in healthy.causes]
    step_s = healthy.split.step_s.value
    assert step_s is not None
    slow = explain([traced(tmp_path / "b.json", input_s=step_s)])
    assert slow.causes[0].cause == "input_bound"
    assert slow.runs[0].run.kind == "profile"
    packed = tmp_path / "b.json.gz"
    with (tmp_path / "b.json").open("rb") as source, gzip.open(packed, "wb") as target:
        shutil.copyfileobj(source, target)
    assert explain([packed]).causes[0].cost == slow.causes[0].cost


def gpu_trace(path: Path, rank: int, wait_us: float, idle_us: float = 0.0) -> Path:
    """Four steps: 1000 us of kernels, then an all-reduce of which `wait_us` are exposed, then nothing for `idle_us`."""
    events = []
    at = 0.0
    for step in range(4):
        length = 1000 + wait_us + idle_us
        mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": length, "tid": 1}
        kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": at, "dur": 1000, "tid": 7}
        reduce = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": at + 500, "dur": 500 + wait_us}
        events += [mark, kernel, {**reduce, "tid": 9}]
        at += length
    told = {"rank": rank, "world_size": 2, "backend": "nccl"}
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": told, "deviceProperties": [{"name": "X"}]}))
    return path


def test_two_ranks_of_a_gpu_trace_are_one_run(tmp_path: Path) -> None:
    paths = [gpu_trace(tmp_path / f"{rank}.json", rank, wait_us=4000) for rank in range(2)]
    (run,) = read(paths)
    assert run.world == 2
    one = explain(paths).runs[0]
    assert one.split.share("exposed_s") == pytest.approx(0.8)
    assert one.split.share("computation_s") == pytest.approx(0.2)
    assert one.causes[0].cause == "slow_link"


def test_a_gpu_that_waits_for_launches_has_too_small_a_batch(tmp_path: Path) -> None:
    paths = [gpu_trace(tmp_path / f"{rank}.json", rank, wait_us=0, idle_us=1500) for rank in range(2)]
    found = explain(paths).causes[0]
    assert found.cause == "small_batch"
    assert found.cost == pytest.approx(0.6)


def test_the_cost_of_intervals_is_arithmetic() -> None:
    assert _union([(5, 7), (0, 2), (1, 3)]) == [(0, 3), (5, 7)]
    assert _minus([(0, 10)], [(2, 3), (5, 6)]) == [(0, 2), (3, 5), (6, 10)]
    assert _minus([(0, 2), (4, 6)], [(1, 5)]) == [(0, 1), (5, 6)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"traceEvents": 3}',
        "[" * 100_000,
        '{"traceEvents": [], "distributedInfo": {"rank": 5}}',
        "\x1f\x8bno",
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(FileFormatError):
        explain([path])


def test_a_trace_without_steps_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    odd = [{"ph": "X", "ts": "1"}, 7, None, {"ph": "X", "ts": 1, "dur": -1, "name": "x"}]
    path.write_text(json.dumps({"traceEvents": odd}))
    with pytest.raises(ChronogradError, match=r"profiler\.step"):
        explain([path])

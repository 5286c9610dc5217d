"""Traces of torch.profiler: real CPU loops, two ranks, and synthetic GPU intervals."""

from __future__ import annotations

import csv
import gzip
import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from chronograd.cli.main import main
from chronograd.data.published import data_folder
from chronograd.errors import ChronogradError, FileFormatError
from chronograd.explain.answer import explain as answer_of
from chronograd.explain.device_time import is_communication
from chronograd.explain.explanation import explain
from chronograd.explain.intervals import Intervals
from chronograd.explain.profiler import read
from chronograd.report.html import render_html
from chronograd.report.terminal import plain_console, render_terminal


def traced(path: Path, input_s: float = 0.0, sleep_s: float = 0.0, batch: int = 64) -> Path:
    """Trace six steps of a small network with a slow loader."""
    network = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(32 * 784, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    class Images(torch.utils.data.Dataset[Any]):
        image = torch.ones(3, 32, 32)  # made once, as making it takes 10 % of a profiled step

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


def test_slow_input_in_a_real_trace(tmp_path: Path) -> None:
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
    """Return four steps: 1000 us of kernels, an all-reduce with `wait_us` exposed, then `idle_us` without work."""
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


def test_two_gpu_ranks_are_one_run(tmp_path: Path) -> None:
    paths = [gpu_trace(tmp_path / f"{rank}.json", rank, wait_us=4000) for rank in range(2)]
    (run,) = read(paths)
    assert run.world == 2
    one = explain(paths).runs[0]
    assert one.split.share("exposed_s") == pytest.approx(0.8)
    assert one.split.share("computation_s") == pytest.approx(0.2)
    assert one.causes[0].cause == "slow_link"


def ranked(path: Path, rank: int, at: float, device: str = "X", world: int = 8, base_ns: int = 0) -> Path:
    """Return a kernel of 100 us of one rank, which starts at `at` microseconds."""
    told = {"distributedInfo": {"rank": rank, "world_size": world, "backend": "nccl"}, "baseTimeNanoseconds": base_ns}
    events = [("kernel", "gemm", at, 100.0, {"tid": 7, "device": 0})]
    return written(path, events, **told, deviceProperties=[{"id": 0, "name": device}])


@pytest.mark.parametrize(
    ("others", "runs"),
    [
        ({}, [[0, 3]]),
        ({"at": 99.0}, [[0, 3]]),
        ({"at": 200.0}, [[0], [3]]),
        ({"base_ns": 10**15}, [[0], [3]]),
        ({"at": -1e12, "base_ns": 10**15}, [[0, 3]]),
        ({"device": "Y"}, [[0], [3]]),
        ({"world": 16}, [[0], [3]]),
        ({"rank": 0}, [[0], [0]]),
    ],
)
def test_ranks_of_one_run_have_equal_devices_and_times(
    tmp_path: Path, others: dict[str, Any], runs: list[list[int]]
) -> None:
    paths = [ranked(tmp_path / "a.json", 0, 0.0), ranked(tmp_path / "b.json", **({"rank": 3, "at": 50.0} | others))]
    found = read(paths)
    assert [sorted(run.ranks) for run in found] == runs
    assert [run.name for run in found] == ["a.json", "b.json"][: len(runs)]


def test_two_ranks_before_and_after_are_two_runs(tmp_path: Path) -> None:
    paths = []
    for when, at in (("before", 0.0), ("after", 1e6)):
        (tmp_path / when).mkdir()
        paths += [ranked(tmp_path / when / f"rank{rank}.json", rank, at + rank, world=2) for rank in range(2)]
    after, before = read([*paths[2:], *paths[:2]])
    assert (after.name, before.name) == ("after/rank0.json", "before/rank0.json")
    assert [list(run.ranks) for run in (after, before)] == [[0, 1], [0, 1]]


def test_folder_of_traces(tmp_path: Path) -> None:
    for rank in range(2):
        ranked(tmp_path / f"host_{rank}.17000{rank}.pt.trace.json", rank, 0.0, world=2)
    (tmp_path / "notes.txt").write_text("")
    (one,) = explain([tmp_path]).runs
    assert list(one.run.ranks) == [0, 1]


def test_all_eight_ranks_are_shown(tmp_path: Path) -> None:
    """The screen has 80 letters; tables of the HTML page are no wider than a phone."""
    answer = answer_of([ranked(tmp_path / f"{rank}.json", rank, 0.0) for rank in range(8)])
    text = render_terminal(answer, plain_console(80), full_with="--full")
    assert max(map(len, text.splitlines())) <= 80
    headings = [line.split("span")[-1] for line in text.splitlines() if line.startswith("part of the span")]
    assert len(headings) == 2
    assert re.findall(r"rank (\d)", "".join(headings)) == [str(rank) for rank in range(8)]
    page = render_html(answer).partition("Device activity")[2].partition("</details>")[0]
    tables = page.split("<table")[1:]
    assert [re.findall(r">rank (\d)<", table) for table in tables] == [["0", "1", "2"], ["3", "4", "5"], ["6", "7"]]


LONG = "resnet50_on_a_host_with_a_long_name_{}.1623143089861.pt.trace.json"


@pytest.mark.parametrize("number", [1, 2])
def test_long_names_leave_room_for_numbers(
    tmp_path: Path, number: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = [LONG.format(i) * (1 + (number == 1)) for i in range(number)]
    for i, name in enumerate(names):
        written(tmp_path / name, [("kernel", "gemm", 0.0, 10.0 * (i + 1), {"device": 0})])
    assert main(["explain", *(str(tmp_path / name) for name in names)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    if number == 2:
        assert f"run 2: {names[1]}" in lines
        assert [line.split() for line in lines if line.startswith("busy ")] == [["busy", "100.0", "%", "100.0", "%"]]
        assert any(line.startswith("run 2  computation") and "20 µs" in line for line in lines)


def test_cuda_graph_capture_is_not_idle_time(tmp_path: Path) -> None:
    """The idle time of a capture is meaningless, as no kernels run."""
    events: list[tuple[str, str, float, float, dict[str, Any]]] = [
        ("kernel", "gemm", 0.0, 10.0, {"device": 0}),
        ("cuda_runtime", "cudaStreamBeginCapture", 20.0, 5.0, {}),
        ("kernel", "gemm", 1000.0, 10.0, {"device": 0}),
    ]
    (usual,) = explain([written(tmp_path / "usual.json", [(*e[:4], dict(e[4])) for e in events[::2]])]).runs
    assert usual.causes[0].cause == "idle_device"
    answer = answer_of([written(tmp_path / "t.json", events)])
    assert "captures a graph" in answer.sections[0].takeaway
    assert any("captures a graph" in note for note in answer.notes)
    (one,) = answer.data["runs"]
    assert not one["causes"]
    assert next(f for f in one["others"] if f["cause"] == "idle_device")["verdict"] == "not measured"
    with pytest.raises(ChronogradError, match="no kernel") as error:
        explain([written(tmp_path / "bare.json", [("cuda_runtime", "cudaStreamBeginCapture", 0.0, 5.0, {})])])
    assert "captures a graph" in (error.value.hint or "")


def test_gpu_waiting_for_launches_is_idle(tmp_path: Path) -> None:
    paths = [gpu_trace(tmp_path / f"{rank}.json", rank, wait_us=0, idle_us=1500) for rank in range(2)]
    found = explain(paths).causes[0]
    assert found.cause == "idle_device"
    assert found.cost == pytest.approx(0.6)


def test_interval_arithmetic() -> None:
    one = Intervals.union([(5, 7), (0, 2), (1, 3), (4, 4)])
    assert (one.starts.tolist(), one.ends.tolist()) == ([0, 5], [3, 7])
    assert one.within(np.array([0, 2, 3, 6]), np.array([10, 6, 5, 6])).tolist() == [5, 2, 0, 0]
    assert one.gaps().within(np.array([0]), np.array([10])).tolist() == [2]
    other = one | Intervals.union([(2, 6)])
    assert (other.starts.tolist(), other.ends.tolist()) == ([0], [7])
    assert one.hold(np.array([-1, 0, 3, 4, 7, 8])).tolist() == [False, True, True, False, True, False]
    assert Intervals.union([]).within(np.array([0]), np.array([1])).tolist() == [0]


def test_intervals_match_counted_ticks() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        given = [sorted(pair) for pair in rng.integers(0, 60, (rng.integers(1, 12), 2)).tolist()]
        ticks = {tick for low, high in given for tick in range(low, high)}
        low, high = sorted(rng.integers(0, 60, 2).tolist())
        covered = Intervals.union(np.array(given)).within(np.array([low]), np.array([high]))
        assert covered.tolist() == [len(ticks & set(range(low, high)))]


@pytest.mark.parametrize(
    ("name", "is_it"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", True),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", True),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16>", True),
        ("void vllm::cross_device_reduce_1stage<__hip_bfloat16, 8>", True),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<2>", True),
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)", True),
        ("void mori::moe::EpCombineIntraNodeKernel<hip_bfloat16>", True),
        ("void splitKreduce_kernel<32, 16, int, float>", False),
        ("void at::native::vectorized_gather_kernel<16, long>(char*, c", False),
        ("void cub::DeviceReduceByKeyKernel<cub::DispatchReduceByKey<long>>", False),
        ("void (anonymous namespace)::groupnorm_kernel_dispatch_up<__half>", False),
        ("_combined_routing_memset", False),
        ("small_reduce_kernel", False),
    ],
)
def test_communication_is_recognized_by_names(name: str, is_it: bool) -> None:
    assert is_communication(name) is is_it


def written(path: Path, events: list[tuple[str, str, float, float, dict[str, Any]]], **told: Any) -> Path:
    """Write a trace of complete events: category, name, start and duration in microseconds, and arguments."""
    raw = [
        {
            "ph": "X",
            "cat": category,
            "name": name,
            "ts": start,
            "dur": length,
            "tid": arguments.pop("tid", 1),
            "args": arguments,
        }
        for category, name, start, length, arguments in events
    ]
    path.write_text(json.dumps({"traceEvents": raw, **told}))
    return path


RANK_OF_8 = {
    "distributedInfo": {"rank": 2, "world_size": 8, "backend": "nccl"},
    "deviceProperties": [{"id": 0, "name": "X"}],
}
ONE_STEP = [
    ("kernel", "gemm", 100.0, 200.0, {"tid": 7, "device": 0}),
    ("kernel", "ncclDevKernel_SendRecv", 250.0, 500.0, {"tid": 9, "device": 0}),
    ("gpu_memcpy", "Memcpy HtoD", 700.0, 100.0, {"tid": 8, "device": 0}),
    ("kernel", "gemm", 1000.0, 100.0, {"tid": 7, "device": 0}),
]


def test_exposed_communication_of_one_rank_of_eight(tmp_path: Path) -> None:
    """The step of 1000 us has 300 of computation, 450 of exposed exchange, 50 of exposed copies, and 200 idle."""
    one = explain([written(tmp_path / "t.json", [(*e[:4], dict(e[4])) for e in ONE_STEP], **RANK_OF_8)]).runs[0]
    device = one.run.first.device
    assert device is not None
    assert device.as_data()["shares"] == pytest.approx(
        {
            "busy": 0.8, "computation": 0.3, "communication": 0.5, "exposed_communication": 0.45, "copies": 0.1,
            "exposed_copies": 0.05, "idle": 0.2, "idle_input": 0.0, "idle_synchronizing": 0.0, "idle_launching": 0.2,
        }
    )  # fmt: skip
    assert {name: share for name, _, share in one.split.rows()} == pytest.approx(
        {
            "computation": 0.3, "input": 0.0, "exposed communication": 0.45, "straggling": None, "exposed copies": 0.05,
            "idle device": 0.2,
        }
    )  # fmt: skip
    assert "1 of 8 ranks are available" in (one.split.straggling_s.reason or "")
    assert [(c.cause, c.cost) for c in one.causes] == [
        ("slow_link", pytest.approx(0.45)),
        ("idle_device", pytest.approx(0.2)),
    ]
    assert "1 of 8 ranks are available" in one.causes[0].evidence[-1]


def test_trace_of_one_step_states_its_wider_interval(tmp_path: Path) -> None:
    run = explain([written(tmp_path / "t.json", [(*e[:4], dict(e[4])) for e in ONE_STEP], **RANK_OF_8)]).runs[0]
    step = run.split.step_s
    assert (step.value, step.low, step.high) == pytest.approx((1e-3, 0.8e-3, 1.2e-3))
    assert any("one step" in note for note in run.run.notes)


def test_steps_begin_with_their_first_kernel(tmp_path: Path) -> None:
    """The host is 1000 us ahead: by its clock the device would be idle in the first step."""
    events: list[tuple[str, str, float, float, dict[str, Any]]] = []
    for step in range(5):
        events.append(("user_annotation", f"ProfilerStep#{step}", 500.0 * step, 500.0, {}))
        events.append(("cuda_runtime", "cudaLaunchKernel", 500.0 * step + 10, 5.0, {"correlation": step}))
        events.append(("kernel", "gemm", 1000.0 + 800.0 * step, 600.0, {"tid": 7, "device": 0, "correlation": step}))
    run = explain([written(tmp_path / "t.json", events)]).runs[0]
    assert run.run.first.step_s.tolist() == pytest.approx([800e-6] * 4)
    assert run.split.share("computation_s") == pytest.approx(0.75)
    assert run.split.share("idle_s") == pytest.approx(0.25)


def test_idle_time_is_attributed_to_host_activity(tmp_path: Path) -> None:
    """Kernels of 100 us from 0, 300, 600 and 1000: gaps of 200 after a synchronisation, 200 in input, and 300."""
    events = [
        *(("kernel", "gemm", at, 100.0, {"tid": 7, "device": 0}) for at in (0.0, 300.0, 600.0, 1000.0)),
        ("cuda_runtime", "cudaStreamSynchronize", 50.0, 60.0, {}),
        ("user_annotation", "enumerate(DataLoader)#x", 380.0, 220.0, {}),
        ("cuda_runtime", "cudaMemcpyAsync", 690.0, 60.0, {}),
    ]
    device = explain([written(tmp_path / "t.json", events)]).runs[0].run.first.device
    assert device is not None
    assert (device.synchronizing_s, device.input_s, device.launching_s) == pytest.approx((200e-6, 200e-6, 300e-6))


def test_busiest_of_several_devices_is_reported(tmp_path: Path) -> None:
    events = [("kernel", "gemm", 0.0, 10.0, {"device": 0}), ("kernel", "gemm", 100.0, 50.0, {"device": 1})]
    device = explain([written(tmp_path / "t.json", events)]).runs[0].run.first.device
    assert device is not None
    assert device.span_s == pytest.approx(50e-6)
    assert "busiest of 2" in device.name


def test_operator_names_of_2021(tmp_path: Path) -> None:
    events = [("Kernel", "gemm", 0.0, 10.0, {"device": 0}), ("Memcpy", "Memcpy HtoD", 10.0, 10.0, {"device": 0})]
    device = explain([written(tmp_path / "t.json", events)]).runs[0].run.first.device
    assert device is not None
    assert (device.share(device.computation_s), device.share(device.copies_s)) == pytest.approx((0.5, 0.5))


def test_two_traces_of_one_rank_are_compared(tmp_path: Path) -> None:
    paths = [
        written(tmp_path / f"{length}.json", [("kernel", "gemm", 0.0, length, {"device": 0})])
        for length in (10.0, 20.0)
    ]
    assert [one.split.step_s.value for one in explain(paths).runs] == pytest.approx([10e-6, 20e-6])


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([("cuda_runtime", "cudaLaunchKernel", 0.0, 5.0, {})], {}),
        ([("cpu_op", "aten::mm", 0.0, 5.0, {})], {"distributedInfo": {"backend": "nccl"}}),
    ],
)
def test_trace_without_its_device_is_refused(tmp_path: Path, events: list[Any], told: dict[str, Any]) -> None:
    with pytest.raises(ChronogradError, match="no kernel"):
        explain([written(tmp_path / "t.json", [*events, ("user_annotation", "ProfilerStep#1", 0.0, 9.0, {})], **told)])


TRACES = data_folder() / "traces"
_TABLE = TRACES / "traces.csv"
PUBLIC = list(csv.DictReader(_TABLE.read_text().splitlines())) if _TABLE.is_file() else []


@pytest.mark.data
@pytest.mark.parametrize("row", PUBLIC, ids=lambda row: str(row["file"]).removesuffix(".json.gz"))
def test_public_traces_are_explained_or_refused(row: dict[str, str]) -> None:
    """Shares agree with a simple union of intervals within 2 percentage points."""
    path = TRACES / row["file"]
    if not row["busy_pct"] and row["world_size"] != "300":  # this one exchanges with gloo and computes on the CPU
        with pytest.raises(ChronogradError, match="no kernel"):
            explain([path])
        return
    one = explain([path]).runs[0]
    if not row["busy_pct"]:
        assert one.split.share("exposed_s") == pytest.approx(0.85, abs=0.02)
        return
    device = one.run.first.device
    assert device is not None
    assert device.span_s * 1e3 == pytest.approx(float(row["gpu_span_ms"]), abs=1e-3)
    columns = {
        "busy": "busy_pct", "computation": "compute_pct", "communication": "communication_pct",
        "exposed_communication": "exposed_communication_pct", "copies": "copy_pct", "exposed_copies": "exposed_copy_pct",
        "idle": "idle_pct",
    }  # fmt: skip
    shares = {name: 100 * share for name, share in device.as_data()["shares"].items() if name in columns}
    assert shares == pytest.approx({name: float(row[column]) for name, column in columns.items()}, abs=2)
    assert sum(share for _, share in one.split.shares()) == pytest.approx(1.0, abs=1e-6)
    if float(row["exposed_communication_pct"]) > 20:
        assert "slow_link" in [cause.cause for cause in one.causes]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"traceEvents": 3}',
        "[" * 100_000,
        '{"traceEvents": [], "distributedInfo": {"rank": 5, "world_size": 2}}',
        "\x1f\x8bno",
    ],
)
def test_invalid_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(FileFormatError):
        explain([path])


def test_trace_without_steps_states_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    odd = [{"ph": "X", "ts": "1"}, 7, None, {"ph": "X", "ts": 1, "dur": -1, "name": "x"}]
    path.write_text(json.dumps({"traceEvents": odd}))
    with pytest.raises(ChronogradError, match=r"profiler\.step"):
        explain([path])

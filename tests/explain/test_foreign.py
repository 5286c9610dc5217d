"""Traces of other tools and versions, and contradictory traces: read, or refused for the real reason."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

import pytest

from chronograd.errors import FileFormatError
from chronograd.explain import answer, profiler
from chronograd.explain.trace_file import distinguished

FOLDER = Path(__file__).parent / "foreign"
# Text in the answer; the step time of a trace, and the busy share of its device.
READ = {
    "array_without_end.json": ["follows a wait of the host", "a step of 1 ms"],
    "begin_end.json": ["follows a wait of the host", "a step of 1 ms"],
    "rocm_mi250.json": [
        "AMD Instinct MI250X",
        "follows a wait of the host",
        "no kernel runs in 400 µs of a step of 1 ms",
    ],
    "long_kernel_names.json": ["nn_align8", "tn_align8"],
    "cpu_resnet.pt.trace.json": ["aten::mkldnn_convolution took 17.8 ms by itself, 59 %", "aten::addmm"],
    "negative_duration.json": ["contradicts itself: 1 of 33 events ends before it begins"],
    "overlap_on_stream.json": ["contradicts itself: 4 of 8 kernels overlap"],
    "nanoseconds.json": ["the unit of time is unclear"],
}
REFUSED = {
    "jax.trace.json.gz": "written by JAX or TensorFlow",
    "steps_on_another_clock.json": "contradicts itself: all kernels run before its 4 steps, 1 h 00 min away",
    "cut_off.json": "cut off in line 1",
}


@pytest.mark.parametrize("name", READ)
def test_reads_foreign_traces(name: str) -> None:
    made = answer.explain([FOLDER / name])
    text = json.dumps([*made.notes, *(vars(section) for section in made.sections)], default=str, ensure_ascii=False)
    for told in READ[name]:
        assert told in text


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_states_the_real_reason(name: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        profiler.read([FOLDER / name])
    assert REFUSED[name] in caught.value.message


def test_every_file_has_an_expected_result() -> None:
    assert {path.name for path in FOLDER.iterdir()} == READ.keys() | REFUSED.keys()


def as_strings(trace: str) -> str:
    data = json.loads(trace)
    return json.dumps(
        {**data, "traceEvents": [{**e, "ts": str(e["ts"])} if "ts" in e else e for e in data["traceEvents"]]}
    )


def test_equal_traces_in_different_formats(tmp_path: Path) -> None:
    """Zipped, compressed, with times as strings, or with a NaN counter: equal steps and device time."""
    text = (FOLDER / "rocm_mi250.json").read_text()
    (whole,) = profiler.read([FOLDER / "rocm_mi250.json"])
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("trace.json", text)
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "c.json").write_text(as_strings(text))
    (tmp_path / "d.json").write_text(text.replace('"stream": 7', '"stream": 7, "est. achieved occupancy %": nan'))
    for path in sorted(tmp_path.iterdir()):
        (found,) = profiler.read([path])
        assert found.first.step_s.tolist() == pytest.approx(whole.first.step_s.tolist())
        assert found.first.device == whole.first.device


def test_different_names_stay_different() -> None:
    names = ["void " + "cutlass<" * 12 + end for end in ("nn>", "nt>", "tn>")] + ["relu"]
    short = distinguished(names)
    assert len(set(short)) == 4
    assert all(len(name) <= 60 for name in short)


def four_steps(path: Path, device_row: dict[str, object], mark: str = "cpu_op") -> Path:
    """Write four steps of 1 ms with 600 us of work each, in rows of a device as another tool writes them."""
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": 5, "args": {"name": "Ascend Hardware"}}
    ]
    for step in range(4):
        at = 1e3 * step
        host = {"ph": "X", "cat": mark, "pid": 1, "tid": 1}
        events += [
            {**host, "name": f"ProfilerStep#{step}", "ts": at, "dur": 1e3},
            {**host, "cat": "cpu_op", "name": "aten::mm", "ts": at + 20, "dur": 30},
            {"ph": "X", "name": "MatMul", "pid": 5, "tid": 3, "ts": at + 40, "dur": 600, **device_row},
        ]
    path.write_text(json.dumps(events))
    return path


def test_a_profile_of_onnx_runtime_names_its_writer(tmp_path: Path) -> None:
    row = {"ph": "X", "pid": 1, "tid": 1, "dur": 5}
    events = [{**row, "cat": "Session", "ts": 0, "name": "model_loading", "args": {}}]
    events += [
        {**row, "cat": "Node", "ts": 10 * k, "name": "Conv_kernel_time", "args": {"op_name": "Conv"}} for k in range(9)
    ]
    (tmp_path / "t.json").write_text(json.dumps(events))
    with pytest.raises(FileFormatError, match="written by ONNX Runtime"):
        profiler.read([tmp_path / "t.json"])


@pytest.mark.parametrize("task", ["AI_CORE", "KERNEL_AIVEC", "MIX_AIC"])
def test_rows_of_an_ascend_device_are_its_work(tmp_path: Path, task: str) -> None:
    made = answer.explain([four_steps(tmp_path / "t.json", {"args": {"Task Type": task, "Stream Id": 3}})])
    (one,) = made.result.runs  # type: ignore[union-attr]
    assert one.split.share("computation_s") == pytest.approx(0.6)
    assert one.split.share("idle_s") == pytest.approx(0.4)
    assert (one.run.first.start.device, one.run.first.start.device_name) == ("npu", "Ascend Hardware")


def test_waits_and_collectives_of_an_ascend_device(tmp_path: Path) -> None:
    """A wait for an event is no work; a collective is communication."""
    events = json.loads(four_steps(tmp_path / "t.json", {"args": {"Task Type": "AI_CORE"}}).read_text())
    late = {"ph": "X", "pid": 5, "tid": 4, "dur": 200}
    for step in range(4):
        events.append({**late, "name": "EVENT_WAIT", "ts": 1e3 * step + 750, "args": {"Task Type": "EVENT_WAIT"}})
        events.append({**late, "name": "hcom_allReduce__1_0", "ts": 1e3 * step + 640})
    (tmp_path / "t.json").write_text(json.dumps(events))
    (run,) = profiler.read([tmp_path / "t.json"])
    assert run.first.wait_s.tolist() == pytest.approx([200e-6] * 3)
    assert run.first.launch_s.tolist() == pytest.approx([200e-6] * 3)


def test_marks_of_steps_among_operators_are_no_work(tmp_path: Path) -> None:
    """30 us of operators are 3 % of each step of 1 ms, if no rows of a device exist."""
    events = json.loads(four_steps(tmp_path / "t.json", {}).read_text())
    (tmp_path / "t.json").write_text(json.dumps([event for event in events if event.get("name") != "MatMul"]))
    (run,) = profiler.read([tmp_path / "t.json"])
    assert dict(run.first.operators) == {"aten::mm": pytest.approx(120e-6)}
    assert run.first.launch_s.tolist() == pytest.approx([970e-6] * 4)


@pytest.mark.parametrize(
    "row", [{"cat": "hpu_op"}, {"cat": "mtia_ccp_events"}, {"cat": "new_device", "args": {"stream": 1}}]
)
def test_error_names_device_rows_that_are_not_read(tmp_path: Path, row: dict[str, object]) -> None:
    with pytest.raises(FileFormatError, match=f"a kind that is not read: 4 rows of category {row['cat']}"):
        profiler.read([four_steps(tmp_path / "t.json", row)])


@pytest.mark.parametrize(
    ("lines", "writer"),
    [
        (['{"data": ["step"]}', '{"Type": 79, "CudaEvent": {"startNs": "0"}}'], "Nsight Systems exported it"),
        (['{"loss": 1.0}', '{"loss": 0.5}'], "one JSON object on each line"),
    ],
)
def test_objects_on_lines_name_their_writer(tmp_path: Path, lines: list[str], writer: str) -> None:
    (tmp_path / "t.json").write_text("\n".join(lines))
    with pytest.raises(FileFormatError, match=writer):
        profiler.read([tmp_path / "t.json"])


def test_old_autograd_trace_names_its_writer(tmp_path: Path) -> None:
    event = {"ph": "X", "name": "aten::mm", "ts": 1, "dur": 5, "tid": 1, "pid": "CPU functions", "args": {}}
    (tmp_path / "t.json").write_text(json.dumps([event]))
    with pytest.raises(FileFormatError, match=r"torch\.autograd\.profiler of PyTorch 1\.7 or older"):
        profiler.read([tmp_path / "t.json"])


def test_contradictory_trace_is_doubted_in_its_first_sentence() -> None:
    (activity,) = [
        s for s in answer.explain([FOLDER / "overlap_on_stream.json"]).sections if s.title == "Device activity"
    ]
    assert "these shares are uncertain" in activity.takeaway


def test_packed_trace_of_empty_events_is_refused_before_parsing(tmp_path: Path) -> None:
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(b'{"traceEvents":[' + b"{}," * 1_000_000, 9))
    with pytest.raises(FileFormatError, match="unpacks to more than 100 times"):
        profiler.read([tmp_path / "t.json.gz"])


def test_number_of_values_is_limited_before_parsing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chronograd.explain.trace_file.MAX_VALUES", 10)
    with pytest.raises(FileFormatError, match="may have at most 10"):
        profiler.read([four_steps(tmp_path / "t.json", {})])

"""Timelines have the trace-event format, and their events add up to the step."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from chronograd import job as jobs
from chronograd.count.network import trace_network
from chronograd.predict.prediction import predict_step
from chronograd.predict.setting import setting_of
from chronograd.predict.timeline import timeline_of_run, timeline_of_step
from chronograd.record import AtWork, Record
from chronograd.rundir import RunDir
from chronograd.rundir.steps import MemoryLine, StepLine

Event = dict[str, Any]
TRACE = trace_network("resnet20")


def job(**cluster: Any) -> jobs.Job:
    return jobs.from_dict(
        {
            "network": {"name": "resnet20"},
            "data": {"name": "cifar10"},
            "training": {"recipe": "sgd", "batch": 512},
            "cluster": {"device": "v100", "count": 16, **cluster},
            "backend": "ddp",
        }
    )


def check_format(timeline: dict[str, Any]) -> list[Event]:
    """Check the requirements of the Trace Event Format and return the complete events."""
    assert json.loads(json.dumps(timeline, allow_nan=False)) == timeline
    assert timeline["displayTimeUnit"] in ("ms", "ns")
    needed = {"X": {"name", "cat", "pid", "tid", "ts", "dur"}, "M": {"name", "pid", "args"}, "C": {"name", "pid", "ts"}}
    for event in timeline["traceEvents"]:
        assert needed[event["ph"]] <= set(event)
        assert event.get("ts", 0.0) >= 0.0
        if event["ph"] == "C":
            assert all(isinstance(v, float) for v in event["args"].values())
    slices = [e for e in timeline["traceEvents"] if e["ph"] == "X"]
    named = {(e["pid"], e["tid"]) for e in timeline["traceEvents"] if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in slices} <= named
    assert {e["pid"] for e in slices} <= {e["pid"] for e in timeline["traceEvents"] if e["name"] == "process_name"}
    return slices


def on_track(slices: list[Event], track: int, process: int = 0) -> list[Event]:
    return sorted((e for e in slices if (e["pid"], e["tid"]) == (process, track)), key=lambda e: (e["ts"], -e["dur"]))


def ends(event: Event) -> float:
    return float(event["ts"] + event["dur"])


@pytest.mark.parametrize("overlap_device", ["v100", "cpu"])
def test_predicted_step_has_the_predicted_length(overlap_device: str) -> None:
    setting = setting_of(job(device=overlap_device, step_sigma_log=0.1, input_samples_per_s=1e5))
    step = predict_step(TRACE, setting)
    slices = check_format(timeline_of_step(TRACE, setting))
    compute, communication = on_track(slices, 0), on_track(slices, 1)
    for track in (compute, communication):
        assert all(ends(a) <= b["ts"] + 1e-3 for a, b in itertools.pairwise(track))
    assert ends(compute[-1]) == pytest.approx(step.seconds * 1e6, rel=1e-6)
    assert compute[-1]["name"] == "update"
    for phase in ("forward", "backward"):
        shown = sum(e["dur"] for e in compute if e["cat"] == phase)
        assert shown == pytest.approx(step.parts[f"{phase}_s"] * 1e6, rel=1e-6)
    assert communication[-1]["name"] == "wait for the slowest rank"
    # The update starts when the slowest rank arrives.
    assert ends(communication[-1]) == pytest.approx(compute[-1]["ts"], rel=1e-6)
    exchanged = [e for e in communication if e["cat"] == "communication"]
    assert len(exchanged) == step.communication.num_buckets
    assert sum(e["args"]["bytes"] for e in exchanged) == 4 * TRACE.params


def test_timeline_counts_memory() -> None:
    setting = setting_of(job())
    events = timeline_of_step(TRACE, setting)["traceEvents"]
    live = [e["args"]["bytes"] for e in events if e["ph"] == "C"]
    assert max(live) == pytest.approx(predict_step(TRACE, setting).memory.total, rel=0.2)


def test_one_device_has_no_communication() -> None:
    slices = check_format(timeline_of_step(TRACE, setting_of(job(count=1))))
    assert on_track(slices, 1) == []


def test_agent_run_shows_its_parts(tmp_path: Path) -> None:
    """Show them next to the driver's steps, once there is a record."""
    run = RunDir.create(out=tmp_path / "run")
    with run.step_writer() as lines:
        lines.write(StepLine(step=100, step_time_s=0.01))
    record = Record(kind="measured", title="apex")
    spans = [("actor", 0, 0.0, 0.2), ("learner", 0, 0.1, 0.4), ("actor", 0, 0.25, 0.5)]
    record.tables.timeline = [AtWork(role=role, number=n, start=start, end=end) for role, n, start, end in spans]
    run.save_record(record)
    slices = check_format(timeline_of_run(run))
    assert [(e["ts"], ends(e)) for e in on_track(slices, 0, 1)] == [(0, 200_000), (250_000, 500_000)]
    assert [(e["ts"], ends(e)) for e in on_track(slices, 0, 2)] == [(100_000, 400_000)]


def test_measured_run_shows_the_steps_of_each_rank(tmp_path: Path) -> None:
    run = RunDir.create(out=tmp_path / "run")
    parts = {"input_s": 0.001, "transfer_s": 0.0, "forward_s": 0.004, "backward_s": 0.008, "update_s": 0.002}
    for rank in (0, 1):
        with run.step_writer(rank) as lines:
            lines.write(StepLine(step=1, mode="plain", step_time_s=0.01))
            lines.write(StepLine(step=2, mode="parts", step_time_s=0.015, **parts))
            lines.write(StepLine(step=3, mode="no_exchange", **parts))
            lines.write(MemoryLine(step=3, memory_peak_bytes=1, source="x"))
    slices = check_format(timeline_of_run(run))
    for rank in (0, 1):
        steps = [e for e in on_track(slices, 0, rank) if e["cat"] == "step"]
        assert [e["name"] for e in steps] == ["step 1", "step 2", "step 3 without exchange"]
        assert [e["ts"] for e in steps] == pytest.approx([0, 10_000, 25_000])
        inside = [e for e in on_track(slices, 0, rank) if e["cat"] == "part" and 10_000 <= e["ts"] < 25_000]
        assert [e["name"] for e in inside] == ["input", "forward", "backward", "update"]
        assert ends(inside[-1]) == pytest.approx(ends(steps[1]))

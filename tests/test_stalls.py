"""One long pause is reported separately and does not change the step time, on synthetic lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chronograd.data.datasets import card
from chronograd.job import Job, changed, from_dict
from chronograd.measure.result import Method, step_quantities
from chronograd.record import Quantity
from chronograd.rundir import RunDir, StepLine
from chronograd.rundir.stalls import find, stalls_of
from chronograd.rundir.steps import Epoch, MemoryLine, Stall
from chronograd.train.result import training_record

METHOD = Method("clock", "clock")


def make_job(*overrides: str) -> Job:
    job = from_dict(
        {
            "network": {"name": "resnet20"},
            "data": {"name": "digits"},
            "training": {"batch": 4, "epochs": 2},
            "cluster": {"count": 2},
            "backend": "ddp",
        }
    )
    return changed(job, list(overrides))


def steps(times: dict[int, float], count: int = 40, usual_s: float = 0.1, wait: bool = False) -> list[StepLine]:
    """Return steps of normal duration except some; forward or a wait in backward takes the excess."""
    lines, now = [], 1000.0
    for step in range(1, count + 1):
        took = times.get(step, usual_s)
        now += took
        more = took - usual_s
        lines.append(
            StepLine(
                time=now, step=step, epoch=1 + (step - 1) // 20, step_time_s=took, loss=1.0, samples=2, seconds=now - 1000,
                forward_s=0.4 * usual_s + (0 if wait else more), backward_s=0.5 * usual_s + (more if wait else 0),
                exchange_wait_s=more if wait else 0.0, input_s=0.0, transfer_s=0.0, update_s=0.1 * usual_s,
            )
        )  # fmt: skip
    return lines


def stall(line: StepLine, **said: object) -> Stall:
    """Return a stall that ends with the step of a line."""
    assert line.step_time_s is not None
    known = {"time": line.time, "step": line.step, "seconds": line.step_time_s, "place": "backward", **said}
    return Stall(**known)  # type: ignore[arg-type]


def test_stopped_rank_is_reported_and_its_step_excluded() -> None:
    lines = {0: steps({17: 25.1}, wait=True), 1: steps({17: 25.1})}
    events = {0: [stall(lines[0][16], is_waiting=1)], 1: [stall(lines[1][16], stopped_s=24.9)]}
    found = find(lines, events)
    assert found.steps == {17}
    (one,) = found.found
    assert (one.reason, one.ranks, one.seconds) == ("stopped", (1,), pytest.approx(25.0))
    assert found.sentences() == [
        "step 17 took 25.1 s, usually 100 ms: rank 1 was not running for 24.9 s, stopped in backward"
    ]
    quantity = step_quantities(lines, 4, METHOD, found)["step_time_s"]
    assert quantity.value == pytest.approx(0.1)
    assert quantity.low is not None
    assert quantity.high is not None
    assert quantity.value is not None
    assert quantity.low <= quantity.value <= quantity.high
    assert quantity.source.endswith("without 1 stalled step (stall_s)")


def test_known_stop_counts_without_being_an_outlier() -> None:
    """Two seconds in a step of one second: not a statistical outlier."""
    lines = {0: steps({12: 3.0}, usual_s=1.0)}
    assert not find(lines).found
    assert find(lines, {0: [stall(lines[0][11], stopped_s=2.0)]}).steps == {12}


def test_silent_link_is_reported_with_its_ends() -> None:
    lines = {rank: steps({8: 20.1}, wait=True) for rank in (0, 1)}
    events = {
        rank: [stall(lines[rank][7], is_waiting=1, place="all-reduce of gradients", links="10.0.0.1 → 10.0.0.2")]
        for rank in (0, 1)
    }
    (one,) = find(lines, events).found
    assert (one.reason, one.ranks) == ("link", ())
    assert one.text == "the link 10.0.0.1 → 10.0.0.2 did not answer for 20.1 s, in all-reduce of gradients"


def test_slow_disk_is_attributed_to_the_reading_rank() -> None:
    lines = {0: steps({9: 20.1}, wait=True), 1: steps({9: 20.1})}
    events = {0: [stall(lines[0][8], is_waiting=1)], 1: [stall(lines[1][8], place="input", busy_s=0.2)]}
    (one,) = find(lines, events).found
    assert (one.reason, one.ranks) == ("rank", (1,))
    assert one.text == "rank 1 took 20.1 s reading its batch; it used the processor for 200 ms of these"


def test_parts_of_the_step_replace_missing_notes() -> None:
    (one,) = find({0: steps({9: 20.1}, wait=True), 1: steps({9: 20.1})}).found
    assert (one.reason, one.ranks, one.text) == ("rank", (1,), "rank 1 took 20 s in forward")
    (one,) = find({rank: steps({9: 20.1}, wait=True) for rank in (0, 1)}).found
    assert (one.reason, one.ranks) == ("waiting", ())


@pytest.mark.parametrize(
    ("times", "why"),
    [
        (dict.fromkeys(range(10, 40, 5), 3.0), "many long steps are the loader's, and belong to the mean"),
        ({1: 3.0, 2: 3.0}, "the first steps are warm-up"),
        ({9: 0.9}, "a hiccup below a second"),
        ({9: 1.2}, "twelve times is not enough where steps take"),
    ],
)
def test_no_stall(times: dict[int, float], why: str) -> None:
    usual_s = 0.3 if times == {9: 1.2} else 0.1
    assert not find({0: steps(times, usual_s=usual_s)}).found, why


def test_wait_for_a_checkpoint_is_no_stall() -> None:
    """Rank 1 waits in the first step of an epoch for rank 0, which saved before its step began."""
    lines = {0: steps({}), 1: steps({21: 3.0}, wait=True)}
    assert not find(lines).found


def test_stop_between_steps_belongs_to_no_step() -> None:
    lines = {rank: steps({}) for rank in (0, 1)}
    after = lines[1][19].time + 30
    events = {
        0: [Stall(time=after, step=20, place="sum (evaluation)", seconds=25.0, is_waiting=1)],
        1: [Stall(time=after, step=20, place="evaluation", seconds=25.0, stopped_s=24.8)],
    }
    stalls = find(lines, events)
    assert not stalls.steps
    assert stalls.sentences() == [
        "24.8 s were lost after step 20: rank 1 was not running for 24.8 s, stopped in evaluation"
    ]


def write_run(folder: Path, stopped: bool) -> RunDir:
    run = RunDir.create(make_job(), out=folder)
    for rank in (0, 1):
        lines = steps({17: 25.1} if stopped else {}, wait=rank == 0)
        with run.step_writer(rank) as writer:
            for line in lines:
                writer.write(line)
                if stopped and line.step == 17:
                    writer.write(stall(line, is_waiting=int(rank == 0), stopped_s=24.9 * rank))
                if rank == 0 and line.step % 20 == 0:
                    writer.write(
                        Epoch(
                            time=line.time, step=line.step, epoch=line.step // 20, seconds=line.needed("seconds"),
                            epoch_time_s=(27.0 if stopped and line.step == 20 else 2.0), train_loss=1.0, test_loss=1.0,
                            test_accuracy=0.5,
                        )
                    )  # fmt: skip
            writer.write(MemoryLine(time=lines[-1].time, step=40, memory_peak_bytes=100, source="here"))
    return run


def test_record_separates_stall_and_step_time(tmp_path: Path) -> None:
    job = make_job()
    records = [
        training_record(write_run(tmp_path / str(stopped), stopped), job, card(job.data), "done")
        for stopped in (False, True)
    ]
    calm, stopped = records
    for name in ("step_time_s", "epoch_time_s", "throughput_samples_per_s"):
        assert stopped.value(name) == pytest.approx(calm.value(name)), name
    assert stopped.value("training_time_s") == pytest.approx(calm.value("training_time_s") + 25)
    assert stopped["wall_time_s"].value == pytest.approx((calm["wall_time_s"].value or 0) + 25)
    lost = stopped["stall_s"]
    assert (lost.value, lost.n) == (pytest.approx(25.0), 1)
    assert "rank 1 was not running for 24.9 s" in lost.source
    assert any("rank 1 was not running" in note for note in stopped.notes)
    assert "stall_s" not in calm.quantities
    json.loads(stopped.model_dump_json())


def test_all_stalls_of_a_step_are_recorded(tmp_path: Path) -> None:
    run = RunDir.create(out=tmp_path / "run")
    with run.step_writer(0) as writer:
        for place in ("forward", "backward"):
            writer.write(Stall(step=3, place=place, seconds=2.0, stopped_s=1.5))
    assert [one.place for one in run.read_steps(0).of(Stall)] == ["forward", "backward"]
    assert stalls_of(run.logs()).seconds == 3.0


def test_interval_contains_its_mean() -> None:
    quantity = Quantity.of_samples([0.1] * 30 + [25.0], "s", "clock")
    assert quantity.low is not None
    assert quantity.high is not None
    assert quantity.value is not None
    assert quantity.low <= quantity.value <= quantity.high

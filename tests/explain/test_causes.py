"""Each cause on runs of known figures: reported at its cost, and not reported just below the threshold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.explain.written import HEALTHY, STARTED, STEPS, WARMUP, write_run

from chronograd.explain.explanation import Explained, explain
from chronograd.record import Quantity, Record
from chronograd.rundir import RunDir
from chronograd.rundir.steps import Stall

# D is added to HEALTHY and doubles the step of 100 ms.
D = 0.1


def more(extra_s: float, *parts: str) -> dict[str, float]:
    return {part: HEALTHY[part] + extra_s for part in parts}


def late(extra_s: float, by: str) -> dict[str, Any]:
    """Delay one part of every step on every rank."""
    return {"at": lambda rank, step: more(extra_s, by)}


def exposed(extra_s: float, every: int = 1) -> dict[str, Any]:
    """Make all ranks wait for gradients, once in `every` steps."""
    return {"at": lambda rank, step: more(extra_s, "backward_s", "exchange_wait_s") if step % every == 0 else {}}


def slow_rank(extra_s: float, part: str = "forward_s", turns: int = 0, **told: Any) -> dict[str, Any]:
    """Delay one rank, so that the other waits: rank 1, or each for `turns` steps in turn."""

    def at(rank: int, step: int) -> dict[str, float]:
        slow = step // turns % 2 if turns else 1
        return more(extra_s, part) if rank == slow else more(extra_s, "backward_s", "exchange_wait_s")

    return {"at": at, **told}


def slowest_in(fifths: int) -> dict[str, Any]:
    """Delay rank 1 by D in `fifths` of five steps, and rank 0 by 5 ms in the others."""

    def at(rank: int, step: int) -> dict[str, float]:
        is_rank_1, extra_s = (True, D) if step % 5 < fifths else (False, 0.005)
        return (
            more(extra_s, "forward_s") if (rank == 1) == is_rank_1 else more(extra_s, "backward_s", "exchange_wait_s")
        )

    return {"at": at}


def input_of_the_second_half(rank: int, step: int) -> dict[str, float]:
    return more(D, "input_s") if step > WARMUP + (STEPS - WARMUP) // 2 else {}


def shared(steps_per_epoch: int) -> dict[str, Any]:
    """Set the steps of an epoch: 50 if two ranks share 1,000 samples at 10 a step, 100 if each processes all."""
    return {"work": {"steps_per_epoch": steps_per_epoch}}


GPU = {"environment": {"gpus": [{"name": "Tesla T4"}]}}
GIVEN = {"gpus_given": "CUDA_VISIBLE_DEVICES=0"}
WALL_S = STEPS * 0.1
CROWDED = {"threads": 16}
# A rank takes 90 ms for forward and backward, 8 for the update, 1 for exchange; batch 4x saves 3/4 of the fixed part.
FIXED_75_MS = (0.09, 0.135)
FIXED_10_MS = (0.09, 0.33)
SCALES_45_MS = (0.045, 0.18)

# Cause, planted fault, and its cost by hand.
PLANTED: dict[str, tuple[str, dict[str, Any], float]] = {
    "a GPU was given": ("no_accelerator", {"start": GIVEN}, 0.98 * 0.9),
    "a GPU is there": ("no_accelerator", GPU, 0.98 * 0.9),
    "the whole data set each": ("no_sharding", shared(100), 0.5),
    "shares that overlap": ("no_sharding", shared(70), 1 - 1 / 1.4),
    # Minus the time of 400 kB on one machine: twice the loopback link's 2 × 0.167 ms + 0.395 ms, and 2 ms.
    "a slow link": ("slow_link", exposed(D), (0.101 - 0.00346) / 0.2),
    "a slow rank": ("slow_worker", slow_rank(D), 0.5),
    "a rank that is slow in four of five steps": ("slow_worker", slowest_in(4), D / (0.1 + 0.8 * D + 0.2 * 0.005)),
    "a slow rank, parts not marked": ("slow_worker", slow_rank(D, has_parts=False), 0.5),
    "a rank that waits for its input": ("slow_worker", slow_rank(D, "input_s"), 0.5),
    "slow input": ("input_bound", late(D, "input_s"), 0.505),
    "too many threads": (
        "too_many_threads",
        {"start": CROWDED, "what_if_threads": (0.09, 0.045), "what_if_batch": SCALES_45_MS},
        0.45,
    ),
    "a small batch": ("small_batch", {"what_if_batch": FIXED_75_MS}, (0.075 + 0.008 + 0.001) * 0.75 / 0.1),
    "memory that is returned": ("returned_memory", {"page_faults": (10_000, 2e-6)}, 0.2),
    "a long start": ("start_up", {"start_up_s": WALL_S}, 0.5),
}
# Faults below the threshold, or similar to another cause.
NEAR_MISSES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a GPU was used": {"start": {**GIVEN, "device": "cuda:0"}, **GPU},
    "no GPU was to be expected": {"environment": {"gpus": []}},
    "samples that pad the last batch": shared(54),
    "a link at 9 %": exposed(0.012),
    "a link that is slow in every fifth step": exposed(2 * D, every=5),
    "a rank slow by 14 %": slow_rank(0.016),
    "a rank that is slow in three of five steps": slowest_in(3),
    "ranks that are slow in turn": slow_rank(D, turns=1),
    "a rank that is slow in the first half, the other in the second": slow_rank(D, turns=STEPS // 2),
    "input at 9 %": late(0.009, "input_s"),
    "input in the second half only": {"at": input_of_the_second_half},
    "threads that are as many as cores": {"start": {"threads": 1, "cores": 2}},
    "many threads that cost 8 %": {
        "start": CROWDED,
        "what_if_threads": (0.09, 0.082),
        "what_if_batch": (0.082, 0.328),
    },
    "many threads on a GPU": {"start": {**CROWDED, "device": "cuda:0"}},
    "page faults of 9 %": {"page_faults": (4_500, 2e-6)},
    "a batch at 14 %": {"what_if_batch": FIXED_10_MS},
    "a start at 9 %": {"start_up_s": 0.1 * WALL_S},
    "a processor waited for 19 % of the time": {"queued": (0.19, 0.5)},
    "a processor that one rank waited for": {"queued": (0.5, 0.02)},
}  # fmt: skip


def explained(path: Path, **told: Any) -> Explained:
    return explain([write_run(path, **told)]).runs[0]


def costs(one: Explained) -> dict[str, float | None]:
    """Return the cost of each reported cause, largest first."""
    return {finding.cause: finding.cost for finding in one.causes}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_cause_is_the_only_one_at_its_cost(tmp_path: Path, name: str) -> None:
    cause, told, cost = PLANTED[name]
    one = explained(tmp_path / "run", **told)
    assert costs(one) == {cause: pytest.approx(cost, abs=0.01)}
    first = one.causes[0]
    assert any(character.isdigit() for character in " ".join(first.evidence))
    assert first.experiment


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_cause_below_its_threshold_is_not_reported(tmp_path: Path, name: str) -> None:
    assert costs(explained(tmp_path / "run", **NEAR_MISSES[name])) == {}


@pytest.mark.parametrize("name", PLANTED)
def test_busy_host_is_reported_with_the_planted_cause(tmp_path: Path, name: str) -> None:
    """The host is busy if both ranks waited. The planted cause is listed in either case."""
    cause, told, cost = PLANTED[name]
    quiet = explained(tmp_path / "quiet", **told, queued=(0.5, 0.19))
    assert costs(quiet) == {cause: pytest.approx(cost, abs=0.01)}
    busy = explained(tmp_path / "busy", **told, queued=(0.5, 0.6))
    by_cause = {finding.cause: finding for finding in busy.findings}
    if cause == "too_many_threads":  # here the run's own threads wait
        assert costs(busy) == {cause: pytest.approx(cost, abs=0.01)}
        assert "its own threads outnumber the cores" in by_cause["busy_host"].evidence
    elif cause == "small_batch":  # an experiment on a busy host is unreliable
        assert costs(busy) == {"busy_host": pytest.approx(0.5)}
        assert by_cause[cause].verdict == "not measured"
    else:
        assert costs(busy) == {cause: pytest.approx(cost, abs=0.01), "busy_host": pytest.approx(0.5)}


def test_busy_host_alone_is_reported(tmp_path: Path) -> None:
    assert costs(explained(tmp_path / "run", queued=(0.21, 0.4))) == {"busy_host": pytest.approx(0.21)}
    assert costs(explained(tmp_path / "one", world=1, queued=(0.3,))) == {"busy_host": pytest.approx(0.3)}


def test_threads_without_an_experiment(tmp_path: Path) -> None:
    """Clearly too many, or unknown."""
    plain = explained(tmp_path / "plain", start=CROWDED)
    assert costs(plain) == {"too_many_threads": None}
    assert "2 ranks of 16 threads on 2 cores" in plain.causes[0].evidence
    few = explained(tmp_path / "few", start={"threads": 3})
    assert costs(few) == {}
    assert {f.cause: f.verdict for f in few.findings}["too_many_threads"] == "not measured"


def test_slow_rank_evidence_states_rank_and_part(tmp_path: Path) -> None:
    first = explained(tmp_path / "run", **slow_rank(D)).causes[0]
    assert first.title.startswith("rank 1 is slow")
    assert "in 100 % of the steps, by 100 ms in forward" in first.evidence[0]


def test_parts_of_a_step_add_up(tmp_path: Path) -> None:
    one = explained(tmp_path / "run", **slow_rank(D))
    shares = {name: share for name, _, share in one.split.rows()}
    own = (0.099 + 0.199) / 2 - 0.001  # the mean of both ranks, less input
    # Rank 0 waits 100 ms for the other one and each waits 1 ms for the exchange: on average, 51 of 200 ms.
    expected = {"computation": own / 0.2, "input": 0.005, "exposed communication": 0.255, "straggling": 0.25}
    assert shares == {name: pytest.approx(share) for name, share in expected.items()}
    assert sum(share for _, share in one.split.shares()) == pytest.approx(1.0)


def test_exposed_communication_is_that_of_the_record(tmp_path: Path) -> None:
    """A measurement compares steps with and without exchange; its record and its explanation state the same time."""
    path = write_run(tmp_path / "run", slow_rank(D)["at"])
    exposed = Quantity(value=0.06, unit="s", low=0.05, high=0.07)
    quantities = {"step_time_s": Quantity(value=0.2, unit="s"), "communication_exposed_s": exposed}
    RunDir.open(path).save_record(Record(kind="measured", title="two ranks", quantities=quantities))
    (one,) = explain([path]).runs
    assert one.split.exposed_s == exposed
    assert sum(share for _, share in one.split.shares()) == pytest.approx(1.0)
    assert (one.split.straggling_s.value or 0.0) <= 0.06


def stalled(path: Path, queued: tuple[float, float] = (0.02, 0.02)) -> Explained:
    """Explain 45 steps of 100 ms; in one of them, rank 1 stood still for 20 s more."""

    def at(rank: int, step: int) -> dict[str, float]:
        if step != 30:
            return {}
        return more(20.0, "forward_s") if rank == 1 else more(20.0, "backward_s", "exchange_wait_s")

    return explained(path, at=at, queued=queued)


def test_busy_host_comes_before_the_stall_that_it_makes(tmp_path: Path) -> None:
    quiet, busy = stalled(tmp_path / "quiet"), stalled(tmp_path / "busy", (0.5, 0.3))
    assert [one.cause for one in quiet.causes] == ["stall"]
    assert quiet.causes[0].remedies
    assert [one.cause for one in busy.causes] == ["busy_host", "stall"]
    assert not busy.causes[1].remedies


def test_pause_before_the_first_step_belongs_to_start_up(tmp_path: Path) -> None:
    """Rank 1 is stopped for 7 of 10 s before the first step; 45 steps of 100 ms follow."""
    path = write_run(tmp_path / "run", start_up_s=10.0)
    with RunDir.open(path).step_writer(1) as lines:
        lines.write(Stall(step=0, time=STARTED + 8.0, place="start", seconds=7.0, stopped_s=7.0))
    (one,) = explain([path]).runs
    by_cause = {finding.cause: finding for finding in one.findings}
    assert by_cause["stall"].verdict == "not found"
    assert by_cause["stall"].cost == 0.0
    assert one.causes[0].cause == "start_up"
    assert 0 < (one.causes[0].cost or 0.0) < 1
    assert any("rank 1 was not running for 7 s" in sentence for sentence in by_cause["start_up"].evidence)


@pytest.mark.parametrize(("rank_batch", "steps", "cost"), [(10, STEPS, 0.5), (5, STEPS, None), (5, 49, None)])
def test_work_growing_with_the_ranks(tmp_path: Path, rank_batch: int, steps: int, cost: float | None) -> None:
    """Twice the samples, equal samples, and 9 % more."""
    alone = write_run(tmp_path / "one", world=1)
    work = {"rank_batch": rank_batch, "steps_per_epoch": 500 // rank_batch}
    both = explain([write_run(tmp_path / "two", steps=steps, work=work), alone])
    assert [row.world for row in both.compared] == [1, 2]
    assert costs(both.runs[0]) == {}
    assert costs(both.runs[1]) == ({} if cost is None else {"work_scaled": pytest.approx(cost)})


def test_run_and_record_are_compared_by_their_steps(tmp_path: Path) -> None:
    """A record has no total time, so 40 steps of 100 ms must not be compared with one of 50 ms."""
    record = Record(
        kind="measured",
        title="two ranks",
        job={"training": {"batch": 20}},
        cluster={"count": 2},
        quantities={"step_time_s": Quantity(value=0.05, unit="s")},
    )
    record.save(tmp_path / "two.json")
    both = explain([write_run(tmp_path / "one", world=1, work={"rank_batch": 20}), tmp_path / "two.json"])
    assert [row.seconds for row in both.compared] == [pytest.approx(sum(HEALTHY.values())), 0.05]
    assert [row.samples for row in both.compared] == [20, 20]
    assert both.compared[1].speedup == pytest.approx(sum(HEALTHY.values()) / 0.05)
    assert both.compared[1].throughput == pytest.approx(sum(HEALTHY.values()) / 0.05)
    (work,) = (finding for finding in both.runs[1].findings if finding.cause == "work_scaled")
    assert work.verdict == "not found"

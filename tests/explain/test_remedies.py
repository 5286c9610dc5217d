"""What to do and what it would give, on runs whose figures are written down; comparisons with a busy machine are void."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.explain.test_causes import D, exposed, late, more, slow_rank
from tests.explain.written import HEALTHY, write_run

from chronograd.cli.main import main
from chronograd.explain.explanation import Explanation, explain
from chronograd.explain.ranks import scaling_text
from chronograd.explain.remedies import MAX_REMEDIES, MIN_GAIN, Remedy, ranked
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Link
from chronograd.job import resolved

# Of HEALTHY: 100 ms, of which 8 are the update; a planted part adds D = 100 ms.
STEP, UPDATE = 0.2, HEALTHY["update_s"]


def remedies(path: Path, cause: str) -> dict[str, Remedy]:
    (found,) = (finding for finding in explain([path]).causes if finding.cause == cause)
    assert found.remedies
    assert [remedy.gain for remedy in found.remedies] == sorted((r.gain for r in found.remedies), reverse=True)
    return {remedy.what: remedy for remedy in found.remedies}


def test_a_slow_link_is_used_less_often_for_less_or_replaced(tmp_path: Path) -> None:
    by_name = remedies(write_run(tmp_path / "run", start={"host": None}, **exposed(D)), "slow_link")
    wait_s = D + 0.001
    less_often = by_name["exchange once in 4 batches"]
    assert less_often.before_s == pytest.approx(STEP)
    # Four batches: four times what is neither exchange nor update, and one of each.
    assert less_often.after_s == pytest.approx((4 * (STEP - wait_s - UPDATE) + wait_s + UPDATE) / 4)
    link = catalog.link("ethernet-10g")
    # 400 kB among two: two messages of half of it.
    exchange_s = 2 * (link.latency_s + 200_000 / link.bandwidth_bytes_per_s)
    assert by_name["10 Gbit/s between the hosts"].after_s == pytest.approx(STEP - wait_s + exchange_s)
    assert less_often.how == "model.no_sync() around the others"


def test_ranks_of_one_machine_are_not_told_to_get_a_faster_network(tmp_path: Path) -> None:
    one = remedies(write_run(tmp_path / "one", start={"host": "a"}, **exposed(D)), "slow_link")
    assert not any("Gbit/s" in what for what in one)
    assert "exchange once in 4 batches" in one


def test_causes_are_sorted_by_the_cost_that_is_shown(tmp_path: Path) -> None:
    """A start-up is a share of the run, others of a step: the largest number leads all the same."""
    path = write_run(tmp_path / "run", start_up_s=60.0, **exposed(9 * D))
    causes = explain([path]).causes
    assert {cause.cause for cause in causes} >= {"start_up", "slow_link"}
    costs = [cause.cost or 0.0 for cause in causes]
    assert costs == sorted(costs, reverse=True)


def test_gradients_of_half_the_size_save_half_of_the_wait_at_least(tmp_path: Path) -> None:
    """Without sizes of gradients nothing is known of another link."""
    path = write_run(tmp_path / "run", what_if_batch=(0.09, 0.36), work={"gradient_bytes": None}, **exposed(D))
    assert remedies(path, "slow_link")["send gradients in fp16"].after_s == pytest.approx(STEP - (D + 0.001) / 2)


def test_what_hides_behind_backward_is_predicted_of_a_network_that_is_known(tmp_path: Path) -> None:
    """Half of the bytes over the link that explains the wait: more than half of it is gone, as much as `exchange` says."""
    from chronograd.data.trace_job import trace_job
    from chronograd.explain.evidence import read
    from chronograd.explain.remedies import slow_link
    from chronograd.explain.split import split
    from chronograd.job import from_dict
    from chronograd.predict.collectives import Topology
    from chronograd.predict.prediction import rank_work
    from chronograd.predict.scaling import Packing, exchange
    from chronograd.predict.setting import setting_of
    from chronograd.record import JobHeader

    run = read(write_run(tmp_path / "run", **exposed(D)))
    known = {"network": {"name": "small-cnn"}, "data": {"name": "digits"}, "training": {"batch": 64}, "backend": "ddp",
             "cluster": {"device": "v100", "count": 2}, "communication": {"bucket_bytes": 200_000}}  # fmt: skip
    job = from_dict(known)
    object.__setattr__(run, "job", JobHeader.model_validate(resolved(job)))
    found = {remedy.what: remedy for remedy in slow_link(run, split(run), None)}
    wait_s = D + 0.001
    after_s = found["send gradients in fp16"].after_s
    assert after_s < STEP - wait_s / 2
    # By hand: the bandwidth at which all gradients are waited for as long as in the run; half of them at the same.
    trace = trace_job(job)
    times, _ = rank_work(trace, 32, setting_of(job))
    backward_s = float(run.first.parts["backward_s"].mean()) - wait_s

    def exposed_s(bandwidth: float, share: float) -> float:
        link = Link(name="x", title="x", latency_s=0.0, bandwidth_bytes_per_s=bandwidth)
        topology = Topology(2, 1, link, link)
        return float(exchange(trace, times, backward_s, topology, "ring", 1.0, Packing(200_000, share)).exposed_s)

    bandwidth = min(np.geomspace(1e5, 1e9, 4001), key=lambda b: abs(exposed_s(b, 1.0) - wait_s))
    assert after_s == pytest.approx(STEP - wait_s + exposed_s(bandwidth, 0.5), rel=0.01)


def test_a_job_is_told_its_fields(tmp_path: Path) -> None:
    from chronograd.explain.evidence import read
    from chronograd.explain.remedies import slow_link
    from chronograd.explain.split import split
    from chronograd.record import JobHeader

    run = read(write_run(tmp_path / "run", **exposed(D)))
    header = {"network": {"name": "resnet20"}, "training": {"batch": 64}, "communication": {"compression": "fp16"}}
    object.__setattr__(run, "job", JobHeader.model_validate(header))
    hows = [remedy.how for remedy in slow_link(run, split(run), None)]
    assert "training.accumulation=4 training.batch=256" in hows
    assert "communication.compression=fp16" not in hows


def test_a_slow_rank_gets_a_host_like_the_others_or_less_to_do(tmp_path: Path) -> None:
    by_name = remedies(write_run(tmp_path / "run", **slow_rank(D)), "slow_worker")
    own = (0.099, 0.199)
    assert by_name["give rank 1 a host like the others"].after_s == pytest.approx(STEP - (own[1] - own[0]))
    balanced = 2 / (1 / own[0] + 1 / own[1])
    assert by_name["give rank 1 a smaller batch, as it is slower"].after_s == pytest.approx(STEP - own[1] + balanced)


@pytest.mark.parametrize(("cores", "workers", "expected"), [
    (8, 0, {"keep the data in memory": 0.099, "2 loader workers instead of 0": 0.099}),
    (2, 0, {"keep the data in memory": 0.099}),
    (8, 1, {"keep the data in memory": 0.099, "2 loader workers instead of 1": 0.1}),
])  # fmt: skip
def test_input_is_made_ready_beside_the_step_where_there_are_cores(
    tmp_path: Path, cores: int, workers: int, expected: dict[str, float]
) -> None:
    """Two ranks on the host. One worker delivers a batch in a step of 200 ms, two in 100."""
    path = write_run(tmp_path / "run", start={"cores": cores}, work={"workers": workers}, **late(D, "input_s"))
    after = {name: remedy.after_s for name, remedy in remedies(path, "input_bound").items()}
    assert after == pytest.approx(expected)


@pytest.mark.parametrize(("cause", "told", "after_s"), [
    ("no_sharding", {"work": {"steps_per_epoch": 100}}, 0.05),
    ("no_accelerator", {"start": {"gpus_given": "CUDA_VISIBLE_DEVICES=0"}}, 0.1 * (1 - 0.98 * 0.9)),
    ("busy_host", {"queued": (0.4, 0.5)}, 0.1 * 0.6),
    # Of 90 ms 75 do not depend on the batch, nor do 8 of update and 1 of exchange: a batch four times as large saves 3/4.
    ("small_batch", {"what_if_batch": (0.09, 0.135)}, 0.1 - 0.75 * 0.084),
])  # fmt: skip
def test_what_a_cause_costs_is_what_its_remedy_saves(
    tmp_path: Path, cause: str, told: dict[str, Any], after_s: float
) -> None:
    (remedy,) = remedies(write_run(tmp_path / "run", **told), cause).values()
    assert remedy.before_s == pytest.approx(0.1)
    assert remedy.after_s == pytest.approx(after_s, abs=2e-4)


def test_threads_are_told_by_their_number(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", start={"threads": 16}, what_if_threads=(0.09, 0.03))
    (remedy,) = remedies(path, "too_many_threads").values()
    assert remedy.what == "1 thread for each rank"
    assert remedy.how.startswith("OMP_NUM_THREADS=1")
    assert remedy.after_s < 0.5 * remedy.before_s


def test_one_start_for_several_runs(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", start_up_s=20.0)
    (remedy,) = remedies(path, "start_up").values()
    assert remedy.per == "run"
    assert remedy.before_s - remedy.after_s == pytest.approx(0.75 * 20.0, rel=0.1)


def test_the_best_come_first_and_small_ones_are_left_out() -> None:
    made = [Remedy(str(after), "", 1.0, after) for after in (0.9, 0.5, 0.99, 0.7, 0.6, 0.8)]
    assert [remedy.what for remedy in ranked(made)] == ["0.5", "0.6", "0.7", "0.8"]
    assert len(ranked(made)) == MAX_REMEDIES
    assert ranked([Remedy("little", "", 1.0, 1 - 0.9 * MIN_GAIN)]) == ()


# -- comparisons -------------------------------------------------------------------------------------------------------


def compared(*paths: Path) -> Explanation:
    return explain(list(paths))


def test_a_busy_host_voids_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The reader's case: one rank beside others' work, two without; no efficiency is printed."""
    alone = write_run(tmp_path / "one", lambda rank, step: more(0.4, "forward_s"), world=1, queued=(0.59,))
    both = write_run(tmp_path / "two")
    found = compared(alone, both)
    assert found.void == (
        "the comparison is unreliable: other processes used 59 % of the host during one. "
        "Run it again while nothing else runs"
    )
    assert [row["efficiency"] for row in found.as_data()["compared"]] == [None, None]
    assert main(["explain", str(alone), str(both)]) == 0
    text = capsys.readouterr().out
    assert "The comparison is unreliable: other processes used 59 % of the host during one." in text
    assert "efficiency" not in text
    assert "times as fast" not in text
    assert "speed-up" not in text


def test_more_than_ranks_can_do_is_void_whatever_slowed_the_first(tmp_path: Path) -> None:
    """Steps of 501 ms on one rank and of 100 ms with twice the samples on two; nobody noted why."""
    work = {"rank_batch": 10}
    alone = write_run(tmp_path / "one", lambda rank, step: more(0.4, "forward_s"), world=1, work=work)
    both = write_run(tmp_path / "two", work=work)
    assert "2 ranks cannot process 10.02 times the samples of one" in compared(alone, both).void


def test_a_quiet_comparison_stands(tmp_path: Path) -> None:
    quiet = compared(write_run(tmp_path / "one", world=1), write_run(tmp_path / "two"))
    assert quiet.void == ""
    assert quiet.as_data()["compared"][1]["speedup"] == pytest.approx(1.0, abs=0.02)
    assert explain([tmp_path / "two"]).void == ""
    faster = write_run(tmp_path / "faster", lambda rank, step: {"forward_s": 0.001}, world=1)
    slower = write_run(tmp_path / "slower", lambda rank, step: more(0.4, "forward_s"), world=1)
    alike = compared(slower, faster)
    assert alike.void == ""
    assert scaling_text(alike.compared).startswith("on the same number of ranks faster is ")
    assert "efficiency" not in scaling_text(alike.compared)

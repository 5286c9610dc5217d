"""Remedies and their gains on runs of known figures; comparisons on a busy machine are invalid."""

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

# HEALTHY takes 100 ms, including 8 ms of update; a planted part adds D = 100 ms.
STEP, UPDATE = 0.2, HEALTHY["update_s"]


def remedies(path: Path, cause: str) -> dict[str, Remedy]:
    (found,) = (finding for finding in explain([path]).causes if finding.cause == cause)
    assert found.remedies
    assert [remedy.gain for remedy in found.remedies] == sorted((r.gain for r in found.remedies), reverse=True)
    return {remedy.what: remedy for remedy in found.remedies}


def test_remedies_of_a_slow_link(tmp_path: Path) -> None:
    by_name = remedies(write_run(tmp_path / "run", start={"host": None}, **exposed(D)), "slow_link")
    wait_s = D + 0.001
    less_often = by_name["exchange once in 4 batches"]
    assert less_often.before_s == pytest.approx(STEP)
    # Four batches take one exchange, one update, and four times the rest.
    assert less_often.after_s == pytest.approx((4 * (STEP - wait_s - UPDATE) + wait_s + UPDATE) / 4)
    link = catalog.link("ethernet-10g")
    # 400 kB between two ranks are two messages of half the size.
    exchange_s = 2 * (link.latency_s + 200_000 / link.bandwidth_bytes_per_s)
    assert by_name["10 Gbit/s between the hosts"].after_s == pytest.approx(STEP - wait_s + exchange_s)
    assert less_often.how == "model.no_sync() around the others"


def test_no_faster_network_for_ranks_of_one_machine(tmp_path: Path) -> None:
    one = remedies(write_run(tmp_path / "one", start={"host": "a"}, **exposed(D)), "slow_link")
    assert not any("Gbit/s" in what for what in one)
    assert "exchange once in 4 batches" in one


def test_causes_are_sorted_by_the_shown_cost(tmp_path: Path) -> None:
    """Start-up cost is a share of the run, other costs a share of a step; the largest number leads."""
    path = write_run(tmp_path / "run", start_up_s=60.0, **exposed(9 * D))
    causes = explain([path]).causes
    assert {cause.cause for cause in causes} >= {"start_up", "slow_link"}
    costs = [cause.cost or 0.0 for cause in causes]
    assert costs == sorted(costs, reverse=True)


def test_half_size_gradients_save_at_least_half_of_the_wait(tmp_path: Path) -> None:
    """The gain of another link is unknown if the gradient sizes are."""
    path = write_run(tmp_path / "run", what_if_batch=(0.09, 0.36), work={"gradient_bytes": None}, **exposed(D))
    assert remedies(path, "slow_link")["send gradients in fp16"].after_s == pytest.approx(STEP - (D + 0.001) / 2)


def test_overlap_with_backward_is_predicted_for_known_networks(tmp_path: Path) -> None:
    """Half of the bytes on the link that explains the wait: `exchange` predicts a gain above one half."""
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
    # By hand: the bandwidth that explains the run's wait for all gradients, then the wait for half of them.
    trace = trace_job(job)
    times, _ = rank_work(trace, 32, setting_of(job))
    backward_s = float(run.first.parts["backward_s"].mean()) - wait_s

    def exposed_s(bandwidth: float, share: float) -> float:
        link = Link(name="x", title="x", latency_s=0.0, bandwidth_bytes_per_s=bandwidth)
        topology = Topology(2, 1, link, link)
        return float(exchange(trace, times, backward_s, topology, "ring", 1.0, Packing(200_000, share)).exposed_s)

    bandwidth = min(np.geomspace(1e5, 1e9, 4001), key=lambda b: abs(exposed_s(b, 1.0) - wait_s))
    assert after_s == pytest.approx(STEP - wait_s + exposed_s(bandwidth, 0.5), rel=0.01)


def test_remedies_name_the_fields_of_a_job(tmp_path: Path) -> None:
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


def test_remedies_of_a_slow_rank(tmp_path: Path) -> None:
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
def test_loader_workers_are_suggested_if_cores_are_free(
    tmp_path: Path, cores: int, workers: int, expected: dict[str, float]
) -> None:
    """Two ranks on the host. One worker delivers a batch in a step of 200 ms; steps of 100 ms need two."""
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
def test_cost_of_a_cause_equals_the_saving_of_its_remedy(
    tmp_path: Path, cause: str, told: dict[str, Any], after_s: float
) -> None:
    (remedy,) = remedies(write_run(tmp_path / "run", **told), cause).values()
    assert remedy.before_s == pytest.approx(0.1)
    assert remedy.after_s == pytest.approx(after_s, abs=2e-4)


def test_thread_remedy_states_the_number(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", start={"threads": 16}, what_if_threads=(0.09, 0.03))
    (remedy,) = remedies(path, "too_many_threads").values()
    assert remedy.what == "1 thread for each rank"
    assert remedy.how.startswith("OMP_NUM_THREADS=1")
    assert remedy.after_s < 0.5 * remedy.before_s


def test_one_start_up_for_several_runs(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", start_up_s=20.0)
    (remedy,) = remedies(path, "start_up").values()
    assert remedy.per == "run"
    assert remedy.before_s - remedy.after_s == pytest.approx(0.75 * 20.0, rel=0.1)


def test_best_remedies_come_first_without_small_ones() -> None:
    made = [Remedy(str(after), "", 1.0, after) for after in (0.9, 0.5, 0.99, 0.7, 0.6, 0.8)]
    assert [remedy.what for remedy in ranked(made)] == ["0.5", "0.6", "0.7", "0.8"]
    assert len(ranked(made)) == MAX_REMEDIES
    assert ranked([Remedy("little", "", 1.0, 1 - 0.9 * MIN_GAIN)]) == ()


# -- comparisons -------------------------------------------------------------------------------------------------------


def compared(*paths: Path) -> Explanation:
    return explain(list(paths))


def test_busy_host_makes_a_comparison_unreliable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The reported case: one rank on a busy host, two on a quiet one. No efficiency is printed."""
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


def test_superlinear_speedup_is_unreliable(tmp_path: Path) -> None:
    """Steps of 501 ms on one rank, and of 100 ms with twice the samples on two ranks, for an unknown reason."""
    work = {"rank_batch": 10}
    alone = write_run(tmp_path / "one", lambda rank, step: more(0.4, "forward_s"), world=1, work=work)
    both = write_run(tmp_path / "two", work=work)
    assert "2 ranks cannot process 10.02 times the samples of one" in compared(alone, both).void


def test_comparison_on_a_quiet_machine_is_valid(tmp_path: Path) -> None:
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

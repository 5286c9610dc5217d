"""Schedules computed by hand: each policy on tiny workloads."""

from dataclasses import replace

import numpy as np
import pytest

from chronograd.errors import InputError, NotFoundError
from chronograd.predict.speed import SpeedModel
from chronograd.schedule.events import Conditions, simulate
from chronograd.schedule.jobs import Allocation, Pool, ScheduledJob, best_goodput
from chronograd.schedule.policies import names, policy
from chronograd.schedule.timelines import timeline_of_schedule

AT_EVENTS = Conditions(resize_s=0, interval_s=0)
LINEAR = [0.0, 1.0, 2.0, 3.0, 4.0]


def job(name, arrival_s, work, speeds=LINEAR, gpus=1, **other):
    return ScheduledJob(name, arrival_s, work, [[speed] for speed in speeds], Allocation(gpus), **other)


def ends(jobs, gpus, name, conditions=AT_EVENTS):
    return simulate(jobs, Pool(gpus), policy(name), conditions).ended_s.tolist()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # A holds both GPUs until 4; then B and C run side by side.
        ("fifo", [4, 6, 7]),
        # At 1, A needs 3 s, B 2 s, C 3 s: B runs, A does not fit, C does. At 3, C needs 1 s and stays, so A does not
        # fit. A goes on at 4 with its last 6 samples.
        ("srtf", [7, 3, 4]),
        # All are in the first queue, and A started first.
        ("tiresias", [4, 6, 7]),
        # At 1, A and B get one GPU each and C none; B ends at 3, C runs until 6, and A's last sample takes both GPUs.
        ("fair", [6.5, 3, 6]),
        ("optimus", [6.5, 3, 6]),
        ("pollux", [6.5, 3, 6]),
    ],
)
def test_three_jobs_on_two_gpus(name, expected):
    jobs = [job("A", 0, 8, LINEAR[:3], gpus=2), job("B", 1, 2, LINEAR[:3]), job("C", 1, 3, LINEAR[:3])]
    assert ends(jobs, 2, name) == pytest.approx(expected)


def test_the_third_gpu_goes_to_the_gain_or_to_the_smallest_share():
    slow = job("slow", 0, 30, [0, 1, 1.5, 1.6])  # 10 s are saved by the second GPU
    quick = job("quick", 0, 12, LINEAR[:4])  # 6 s
    # Optimus: slow has two GPUs until 12, then three for its last 12 samples.
    assert ends([quick, slow], 3, "optimus") == pytest.approx([12, 19.5])
    # Fair: equal shares in the order of arrival, so quick has two GPUs until 6.
    assert ends([quick, slow], 3, "fair") == pytest.approx([6, 21])


def test_a_fair_share_counts_the_scarcest_resource():
    # A task of "servers" takes a sixth of the slots, one of "plain" a twelfth of the GPUs. With 4 and 8 tasks, both have two
    # thirds of their dominant resource.
    plain = ScheduledJob("plain", 0, 80, [[float(n)] for n in range(13)], Allocation(1))
    served = [[0.0] * 7, *([0.0, *[float(n)] * 6] for n in range(1, 13))]
    servers = ScheduledJob("servers", 0, 40, served, Allocation(1, 1))
    pool = Pool(12, 6)
    assert [pool.share(Allocation(*size)) for size in ((8, 0), (4, 4), (6, 1))] == [8 / 12, 4 / 6, 6 / 12]
    schedule = simulate([plain, servers], pool, policy("fair"), AT_EVENTS)
    assert [stay.size for stay in schedule.stays] == [(8, 0), (4, 4)]
    assert schedule.ended_s.tolist() == [10, 10]


def test_a_fair_share_has_no_gpu_that_slows_a_job():
    assert ends([job("A", 0, 10, [0, 1, 2, 1.5])], 3, "fair") == [5]


def test_optimus_adds_workers_and_servers_by_gain():
    # A step takes 4/w + w/p seconds. (1, 1) 5, (2, 1) 4, (2, 2) 3; without a third slot the last gain is the third worker.
    model = SpeedModel("synchronous", (1, 0, 1, 0, 0), 4)
    one = ScheduledJob.of_model("ps", 0, 60, model, Allocation(1, 1), Allocation(3, 3))
    for slots, workers, servers, end in ((1, 2, 1, 240), (2, 3, 2, 170), (3, 3, 3, 140)):
        schedule = simulate([one], Pool(3, slots), policy("optimus"), AT_EVENTS)
        assert schedule.stays[0].size == (workers, servers)
        assert schedule.ended_s[0] == pytest.approx(end)


def test_workers_and_servers_share_the_places_of_cpus():
    model = SpeedModel("synchronous", (1, 0, 1, 0, 0), 4)
    one = ScheduledJob.of_model("ps", 0, 60, model, Allocation(1, 1), Allocation(3, 3))
    schedule = simulate([one], Pool(3, is_shared=True), policy("optimus"), AT_EVENTS)
    assert schedule.stays[0].size == (2, 1)
    assert schedule.utilization == 1


def test_tiresias_demotes_a_job_after_a_gpu_hour():
    jobs = [job("long", 0, 5000, LINEAR[:2]), job("short", 100, 1000, LINEAR[:2])]
    assert ends(jobs, 1, "tiresias", Conditions(resize_s=0, interval_s=600)) == pytest.approx([6000, 4600])


def test_pollux_gives_gpus_by_the_harmonic_mean_of_speed_ups():
    # A second GPU is worth 1/1.2 to A (relative to an equal share of two); B's second and third are worth more.
    jobs = [job("A", 0, 10, [0, 1, 1.2, 1.3, 1.35]), job("B", 0, 30, LINEAR)]
    assert ends(jobs, 4, "pollux") == pytest.approx([10, 10])
    assert ends(jobs, 4, "fair") == pytest.approx([10 / 1.2, 10 / 1.2 + (30 - 20 / 1.2) / 4])


def test_only_pollux_adapts_the_batch():
    one = job("A", 0, 8, [0, 1, 1.25], goodput=[0, 1, 4], gpus=2)
    assert {name: ends([one], 2, name) for name in names()} == {
        name: [2 if name == "pollux" else pytest.approx(6.4)] for name in names()
    }


def test_goodput_is_throughput_times_efficiency():
    # At a noise scale of 100, a batch of 300 needs (1 + 1/3) / (1 + 1) of the steps, so twice the samples.
    assert best_goodput([{100: 10.0, 300: 30.0}], 100, 100) == pytest.approx([0, 15])


def test_a_resize_pauses_a_job_and_keeps_its_work():
    # A does 4 samples until 2, pauses until 3, does 2 until 5, when B ends, pauses until 6, and ends at 8.
    jobs = [job("A", 0, 10, LINEAR[:3]), job("B", 2, 3, LINEAR[:3])]
    schedule = simulate(jobs, Pool(2), policy("fair"), Conditions(resize_s=1, interval_s=0))
    assert schedule.ended_s.tolist() == pytest.approx([8, 5])
    assert schedule.restarts.tolist() == [2, 0]
    assert schedule.waiting_s.tolist() == pytest.approx([0, 0])


def test_a_start_comes_before_the_first_step():
    # A starts until 2 and ends at 12; B waits for it, starts until 14 and ends at 19.
    jobs = [job("A", 0, 10, LINEAR[:2]), job("B", 0, 5, LINEAR[:2])]
    schedule = simulate(jobs, Pool(1), policy("fifo"), Conditions(start_s=2))
    assert schedule.ended_s.tolist() == pytest.approx([12, 19])
    assert [(stay.index, stay.start_s, stay.is_paused) for stay in schedule.stays] == [
        (0, 0, True), (0, 2, False), (1, 12, True), (1, 14, False)
    ]  # fmt: skip


def test_a_trace_viewer_shows_each_job_and_the_gpus_in_use():
    jobs = [job("A", 0, 10, LINEAR[:2]), job("B", 3, 5, LINEAR[:2])]
    events = timeline_of_schedule(simulate(jobs, Pool(1), policy("fifo"), Conditions(start_s=2)), "V100")["traceEvents"]
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["A", "B"]
    spans = [(e["pid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert spans == [
        (0, "starts", 0, 2e6), (0, "1 worker", 2e6, 10e6),
        (1, "waits", 3e6, 9e6), (1, "starts", 12e6, 2e6), (1, "1 worker", 14e6, 5e6),
    ]  # fmt: skip
    used = {e["ts"]: e["args"]["count"] for e in events if e["name"] == "V100 in use"}
    assert used == {0: 1, 2e6: 1, 12e6: 1, 14e6: 1, 19e6: 0}


def test_regular_policies_decide_at_intervals():
    # B arrives at 1 and waits for the decision at 10.
    jobs = [job("A", 0, 30, LINEAR[:3]), job("B", 1, 5, LINEAR[:3])]
    schedule = simulate(jobs, Pool(2), policy("optimus"), Conditions(resize_s=0, interval_s=10))
    assert schedule.ended_s.tolist() == pytest.approx([20, 15])
    assert schedule.waiting_s.tolist() == pytest.approx([0, 9])


def test_impossible_schedules_are_refused():
    with pytest.raises(NotFoundError, match="policy"):
        policy("lottery")
    with pytest.raises(InputError, match="A requests 4 GPUs, and the cluster has 2"):
        simulate([job("A", 0, 1, gpus=4)], Pool(2), policy("fifo"))
    model = SpeedModel("synchronous", (1, 0, 1, 0, 0), 4)
    servers = ScheduledJob.of_model("ps", 0, 60, model, Allocation(1, 3), Allocation(3, 3))
    with pytest.raises(InputError, match="ps requests 3 servers, and the cluster has places for 2"):
        simulate([servers], Pool(2, 2), policy("fifo"))
    with pytest.raises(InputError, match="ps requests 1 GPU and 3 servers, and the cluster has 2"):
        simulate([servers], Pool(2, is_shared=True), policy("fifo"))
    with pytest.raises(InputError, match="no job"):
        simulate([], Pool(2), policy("fifo"))
    with pytest.raises(InputError, match="requests 9 workers"):
        job("A", 0, 1, gpus=9)
    with pytest.raises(InputError, match="makes no progress"):
        job("A", 0, 1, [0, 0])
    with pytest.raises(InputError, match="makes no progress at one of its sizes"):
        job("A", 0, 1, [0, 0, 0, 5], gpus=3)  # Optimus would give it one GPU for ever


def test_the_speed_of_a_job_is_known_once_it_has_run():
    # The job runs at half its predicted speed. Shortest remaining time first learns that before it chooses again.
    slow = job("slow", 0, 10, LINEAR[:2], speed_sigma=1.0)
    seen = []

    def spy(moment):
        seen.append([(state.pace, state.left) for state in moment.jobs])
        return policy("srtf").allocate(moment)

    random = np.random.default_rng(3)
    schedule = simulate(
        [slow, job("late", 1, 1, LINEAR[:2])], Pool(1), replace(policy("srtf"), allocate=spy), AT_EVENTS, random
    )
    pace = float(np.exp(np.random.default_rng(3).standard_normal((2, 2))[0, 1]))
    assert seen[0][0] == (1.0, 10)
    assert seen[1][0] == (pytest.approx(pace), pytest.approx(10 - pace))
    assert schedule.ended_s.min() > 1

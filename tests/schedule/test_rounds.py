"""Schedules in rounds, computed by hand: shares of time, and the policies that give them."""

from dataclasses import replace

import pytest

from chronograd.schedule.events import Conditions, simulate
from chronograd.schedule.jobs import Allocation, JobState, Moment, Pool, ScheduledJob
from chronograd.schedule.policies import policy

ROUNDS = Conditions(resize_s=0, interval_s=1)


def job(name, seconds, gpus=1, arrival_s=0.0, speed=None):
    """Return a job that takes some seconds alone, at one sample per second and GPU unless `speed` is that of its size."""
    speeds = [float(n) for n in range(gpus)] + [speed or float(gpus)]
    return ScheduledJob(name, arrival_s, seconds * speeds[-1], [[s] for s in speeds], Allocation(gpus))


def ends(jobs, gpus, name, conditions=ROUNDS):
    return simulate(jobs, Pool(gpus), policy(name), conditions).ended_s.tolist()


def shares(states, gpus, name, now_s=0.0):
    moment = Moment(states, Pool(gpus), now_s, interval_s=1.0)
    policy(name).allocate(moment)
    return [state.share for state in states]


def test_max_min_fairness_takes_turns():
    # Credits at 1: A -1/2, B +1/2; at 2 both 0, so B goes on: A B B A A B B A.
    assert ends([job("A", 4), job("B", 4)], 1, "gavel") == pytest.approx([8, 7])


def test_max_min_fairness_gives_equal_gpu_time():
    # Two thirds of a GPU each, so A has a third of the time. B and C run in rounds 0, 2, 3 and 5, A in 1 and 4.
    assert ends([job("A", 2, gpus=2), job("B", 4), job("C", 4)], 2, "gavel") == pytest.approx([5, 6, 6])


def test_a_job_that_cannot_use_its_part_leaves_the_rest():
    # Three GPUs: A uses one, the other two are a half of the time for B, C, D and E, which request one each, and all of it for A.
    states = [JobState(i, job(name, 9, gpus=g), left=9.0 * g) for i, (name, g) in enumerate([("A", 1), ("B", 4)])]
    assert shares(states, 4, "gavel") == pytest.approx([1, 3 / 4])


def test_finish_time_fairness_helps_the_job_that_waited():
    # Both need 10 s, and 20 s on half of the GPU. At 10, A has waited 10 s: 10 / (20 rho - 10) + 10 / (20 rho) = 1, rho = (3 + 5^0.5) / 4.
    states = [JobState(0, job("A", 10), left=10.0), JobState(1, job("B", 10, arrival_s=10), left=10.0)]
    golden = (5**0.5 - 1) / 2
    assert shares(states, 1, "themis", now_s=10.0) == pytest.approx([golden, 1 - golden])
    assert shares([replace(state, share=0.0) for state in states], 1, "gavel", now_s=10.0) == pytest.approx([0.5, 0.5])


def test_finish_time_fairness_ends_equal_jobs_together():
    assert ends([job("A", 2), job("B", 2)], 1, "themis") == pytest.approx([4, 3])


def test_the_shortest_makespan_runs_the_longest_job_all_the_time():
    # B and C share the second GPU; in the order of arrival, A would start after them and end at 9.
    jobs = [job("B", 3), job("C", 3), job("A", 6)]
    assert ends(jobs, 2, "makespan") == pytest.approx([5, 6, 6])
    assert ends(jobs, 2, "fifo") == pytest.approx([3, 3, 9])


def test_the_largest_throughput_comes_from_jobs_that_scale():
    # Two GPUs make A 1.2 times as fast, so B and C run first.
    jobs = [job("A", 10, gpus=2, speed=1.2), job("B", 3), job("C", 3)]
    assert ends(jobs, 2, "throughput") == pytest.approx([13, 3, 3])


def test_allox_starts_the_shortest_of_the_first_jobs():
    # Two of ten jobs may start, so B runs first. Then one of nine may, which is A, and the others follow in their order.
    jobs = [job("A", 9), job("B", 1), *(job(f"C{n}", 5) for n in range(8))]
    assert ends(jobs, 1, "allox")[:4] == pytest.approx([10, 1, 15, 20])


def test_allox_gives_a_job_of_two_gpus_half_of_the_time():
    # B keeps its GPU. A earns half a round of credit per round and runs in round 2, and then from 5, when B has ended.
    assert ends([job("A", 2, gpus=2), job("B", 4)], 2, "allox") == pytest.approx([6, 5])


def test_allox_does_not_preempt_jobs_of_one_gpu():
    schedule = simulate([job("A", 9), job("B", 1, arrival_s=1)], Pool(1), policy("allox"), ROUNDS)
    assert schedule.ended_s.tolist() == pytest.approx([9, 10])
    assert schedule.restarts.sum() == 0


def test_a_round_that_goes_on_has_no_pause():
    # A and B share one GPU with a pause of a quarter of a round at each change: A 0 1, B 1 3, A 3 5 ...
    one = simulate([job("A", 2)], Pool(1), policy("gavel"), Conditions(resize_s=0.25, start_s=0.25, interval_s=1))
    assert one.ended_s.tolist() == pytest.approx([2.25])
    both = simulate(
        [job("A", 1.5), job("B", 1)], Pool(1), policy("gavel"), Conditions(resize_s=0.25, start_s=0.25, interval_s=1)
    )
    # A runs 0.75 s until 1, B runs 1 s from 1.25 to 2.25, A pauses until 3.25 and runs 0.75 s.
    assert both.ended_s.tolist() == pytest.approx([4, 2.25])

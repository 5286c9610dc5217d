"""Fairness of schedules, computed by hand."""

import numpy as np
import pytest

from chronograd.schedule.events import Conditions, simulate
from chronograd.schedule.fairness import finish_time_fairness, jain_index
from chronograd.schedule.jobs import Allocation, Pool, ScheduledJob
from chronograd.schedule.policies import policy


def job(name, seconds, gpus=1, arrival_s=0.0):
    return ScheduledJob(name, arrival_s, seconds * gpus, [[float(n)] for n in range(gpus + 1)], Allocation(gpus))


def rho(jobs, gpus, name="fifo"):
    return finish_time_fairness(
        simulate(jobs, Pool(gpus), policy(name), Conditions(resize_s=0, interval_s=1)), gpus
    ).tolist()


def test_a_job_alone_has_a_fairness_of_one():
    assert rho([job("A", 5)], 1) == pytest.approx([1])
    assert rho([job("A", 5), job("B", 3)], 2) == pytest.approx([1, 1])


def test_the_first_in_the_queue_gains_the_loss_of_the_second():
    # A is done at 4 with two jobs present: 4 / (4 * 2). B is done at 8 with 1.5 present on average: 8 / (4 * 1.5).
    assert rho([job("A", 4), job("B", 4)], 1) == pytest.approx([1 / 2, 4 / 3])


def test_a_large_job_has_a_smaller_part_of_the_time_it_wants():
    # Two jobs on two GPUs: the part of each is one GPU, on which A would need 8 s. B needs one and waits for 4 s.
    assert rho([job("A", 4, gpus=2), job("B", 2)], 2) == pytest.approx([4 / 8, 6 / 2])


def test_a_job_that_arrives_later_counts_from_then_on():
    # From 0 to 3 A is alone, from 3 to 4 with B: 5 / 4 jobs on average.
    assert rho([job("A", 4), job("B", 4, arrival_s=3)], 1)[0] == pytest.approx(4 / (4 * 5 / 4))


def test_jains_index():
    assert jain_index(np.array([3.0, 3.0, 3.0])) == pytest.approx(1)
    assert jain_index(np.array([1.0, 2.0])) == pytest.approx(9 / (2 * 5))
    assert jain_index(np.array([1e300, 1e300])) == pytest.approx(1)

"""Jobs on nodes, and jobs whose batch changes."""

import numpy as np
import pytest

from chronograd.errors import InputError
from chronograd.schedule.events import Conditions, simulate
from chronograd.schedule.jobs import Allocation, Phase, Pool, ScheduledJob
from chronograd.schedule.placement import FreeNodes
from chronograd.schedule.policies import policy

AT_EVENTS = Conditions(resize_s=0, interval_s=0)


def job(name, arrival_s, work, gpus=1, **other):
    """Return a job that is half as fast on two nodes as on one."""
    speeds = [[0.0], [1.0], [2.0]]
    return ScheduledJob(name, arrival_s, work, speeds, Allocation(gpus), spread=[0.0, 1.0, 1.0], **other)


def test_workers_have_the_fullest_node_and_few_nodes():
    nodes = FreeNodes(12, 4, [4, 1, 5])
    first = nodes.take(3)
    assert (first, nodes.take(1), nodes.take(5)) == ({0: 3}, {0: 1}, {1: 4, 2: 1})
    assert not nodes.is_spread({1: 4, 2: 1})
    nodes.give_back(first)
    scattered = nodes.take(6)
    assert scattered == {0: 3, 2: 3}
    assert not nodes.is_spread(scattered)
    assert nodes.is_spread({0: 1, 1: 1})
    nodes.lose(1)
    assert nodes.is_lost(scattered)
    assert not nodes.is_lost({0: 3, 1: 1})


def test_a_job_on_more_nodes_than_it_needs_runs_slower():
    # A and B are on the first node, C on the second. When A ends, a GPU is free on each node: D does 8 samples at half its speed.
    jobs = [job("A", 0, 2), job("B", 0, 20), job("C", 0, 20), job("D", 1, 8, gpus=2)]
    schedule = simulate(jobs, Pool(4, gpus_per_node=2), policy("fifo"), AT_EVENTS)
    assert schedule.ended_s[3] == pytest.approx(10)
    assert [stay.is_spread for stay in schedule.stays if stay.index == 3] == [True]
    packed = simulate(jobs, Pool(4, gpus_per_node=4), policy("fifo"), AT_EVENTS)
    assert packed.ended_s[3] == pytest.approx(6)


def test_the_largest_job_is_placed_first():
    # In the order of arrival A and B would take a GPU of each node, or C half of two.
    jobs = [job("A", 0, 4), job("B", 0, 4), job("C", 0, 8, gpus=2)]
    schedule = simulate(jobs, Pool(4, gpus_per_node=2), policy("fifo"), AT_EVENTS)
    assert schedule.ended_s.tolist() == pytest.approx([4, 4, 4])


def test_a_change_of_the_batch_changes_the_speed_without_a_pause():
    # Four samples at 1/s, then six at 3/s.
    one = ScheduledJob("A", 1, 10, [[0.0], [1.0]], Allocation(1), phases=[Phase(4, [[0.0], [3.0]])])
    schedule = simulate([one], Pool(1), policy("fifo"), Conditions(resize_s=5))
    assert schedule.ended_s.tolist() == pytest.approx([7])
    assert schedule.restarts.sum() == 0
    assert one.requested_s == pytest.approx(6)


def test_a_scheduler_knows_the_present_batch_only():
    a = ScheduledJob("A", 0, 10, [[0.0], [1.0]], Allocation(1), phases=[Phase(5.0, [[0.0], [5.0]])])
    b = ScheduledJob("B", 4.5, 4, [[0.0], [1.0]], Allocation(1))
    ends = simulate([a, b], Pool(1), policy("srtf"), AT_EVENTS).ended_s.tolist()
    # At 4.5, A seems to need 5.5 s, so B runs until 8.5. Then A needs 0.5 s, and 1 s at its next batch.
    assert ends == pytest.approx([10, 8.5])


@pytest.mark.parametrize("starts", [[0.0], [10.0], [6.0, 4.0], [12.0]])
def test_batches_change_in_order_within_the_work(starts):
    with pytest.raises(InputError, match="A changes its batch after"):
        ScheduledJob("A", 0, 10, [[0.0], [1.0]], Allocation(1), phases=[Phase(s, [[0.0], [1.0]]) for s in starts])


def test_jobs_leave_a_reclaimed_node():
    # The last of three nodes goes first, so A stays on the first one. B moves when two are gone, with a pause.
    jobs = [job("A", 0, 1000, gpus=2), job("B", 0, 1000)]
    conditions = Conditions(resize_s=10, reclaim_s=200, outage_s=100)
    schedule = simulate(jobs, Pool(6, gpus_per_node=2), policy("fifo"), conditions, np.random.default_rng(0))
    assert schedule.ended_s[0] == pytest.approx(500)
    moves = schedule.restarts[1]
    assert moves > 0
    assert schedule.ended_s[1] == pytest.approx(1000 + 10 * moves + schedule.waiting_s[1])

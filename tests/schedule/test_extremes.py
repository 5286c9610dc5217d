"""Workloads with extreme numbers: every simulation ends, and every job ends once."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronograd.errors import InputError
from chronograd.schedule import events
from chronograd.schedule.answer import schedule_answer
from chronograd.schedule.events import Conditions, simulate, usual_interval_s
from chronograd.schedule.jobs import Allocation, Pool, ScheduledJob
from chronograd.schedule.policies import names, policy

ARRIVALS = st.one_of(st.sampled_from([0.0, 1.0, 3600.0, 1e9, 1e12]), st.floats(0, 1e12))
WORK = st.one_of(st.sampled_from([1e-12, 1e-6, 1.0, 1e12]), st.floats(1e-12, 1e12))
SPEEDS = st.one_of(st.sampled_from([1e-6, 1.0, 1e5, 1e12]), st.floats(1e-6, 1e12))
POOL = Pool(4, gpus_per_node=2)


def job(name, arrival_s, work, speed, gpus=1, **other):
    return ScheduledJob(name, arrival_s, work, [[speed * n] for n in range(5)], Allocation(gpus), **other)


@st.composite
def jobs(draw):
    count = draw(st.integers(1, 6))
    return [
        job(
            f"{i}", draw(ARRIVALS), draw(WORK), draw(SPEEDS), draw(st.integers(1, 4)),
            work_sigma=draw(st.sampled_from([0.0, 0.3])), speed_sigma=draw(st.sampled_from([0.0, 0.3])),
        )
        for i in range(count)
    ]  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(jobs(), st.sampled_from(names()), st.sampled_from([0.0, 1e-9, 30.0]), st.booleans(), st.integers(0, 9))
def test_every_simulation_ends_and_every_job_ends_once(workload, name, resize_s, is_regular, seed):
    interval_s = usual_interval_s(workload, resize_s) if is_regular else 0.0
    conditions = Conditions(resize_s=resize_s, interval_s=interval_s)
    schedule = simulate(workload, POOL, policy(name), conditions, np.random.default_rng(seed))
    assert np.isfinite(schedule.ended_s).all()
    assert (schedule.completion_s >= 0).all()
    assert (schedule.waiting_s >= -1e-6 * schedule.ended_s.max()).all()
    assert 0 <= schedule.utilization <= 1 + 1e-9
    for i, own in enumerate(workload):
        stays = sorted((stay for stay in schedule.stays if stay.index == i), key=lambda stay: stay.start_s)
        assert all(own.arrival_s <= stay.start_s < stay.end_s <= schedule.ended_s[i] for stay in stays)
        assert all(before.end_s <= after.start_s for before, after in itertools.pairwise(stays))


@settings(max_examples=15, deadline=None)
@given(jobs(), st.sampled_from(names()), st.floats(-3, 9), st.floats(5, 9), st.integers(0, 9))
def test_failures_and_reclaimed_nodes_end_or_are_refused(workload, name, mtbf, reclaim, seed):
    interval_s = usual_interval_s(workload)
    conditions = Conditions(interval_s=interval_s, mtbf_s=10**mtbf, reclaim_s=10**reclaim)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "MAX_EVENTS", 10_001)
        try:
            schedule = simulate(workload, POOL, policy(name), conditions, np.random.default_rng(seed))
        except InputError:  # without an end: see the tests below
            return
    assert np.isfinite(schedule.ended_s).all()


@pytest.mark.parametrize("name", names())
def test_short_jobs_that_take_turns_end(name):
    """Two jobs of a second, which do not fit side by side, with pauses of 30 s: a turn is longer than a pause."""
    workload = [job("a", 0, 1.0, 0.5, gpus=2), job("b", 0, 0.9, 0.25, gpus=4)]
    conditions = Conditions(resize_s=30.0, interval_s=usual_interval_s(workload, 30.0))
    schedule = simulate(workload, POOL, policy(name), conditions)
    assert conditions.interval_s == 60
    assert (schedule.ended_s > 0).all()
    assert (schedule.ended_s < 600).all()


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize(("work", "speed", "arrival_s"), [(1e-6, 1e3, 3600), (64, 1e5, 2e9), (1e-12, 1e12, 1e12)])
def test_a_job_shorter_than_a_step_of_the_clock_ends(name, work, speed, arrival_s):
    jobs = [job("long", 0, 7200, 1.0), job("tiny", arrival_s, work, speed)]
    schedule = simulate(jobs, POOL, policy(name), Conditions(interval_s=0))
    assert schedule.ended_s[1] == pytest.approx(arrival_s, abs=1e-3)
    assert schedule.ended_s[0] <= 7200


def test_jobs_of_no_time_have_an_answer():
    conditions = Conditions(interval_s=0)
    answer = schedule_answer([job("a", 1e9, 1e-6, 1e3)], POOL, [policy("fifo"), policy("fair")], conditions, draws=2)
    assert answer.result.policies[0].utilization.value == 0
    assert answer.result.jobs[0].end_s.value == 1e9
    assert "nan" not in "".join(section.takeaway for section in answer.sections)


@pytest.mark.parametrize(
    ("conditions", "complaint"),
    [
        (Conditions(mtbf_s=1.0), "long needs 10 min 00 s until a checkpoint, and a GPU fails every 1 s"),
        (Conditions(interval_s=1e-3), "long needs 2 h 00 min, and fair decides every 0.001 s"),
        (Conditions(reclaim_s=1e-3, outage_s=1.0), "no end in sight for long"),
    ],
)
def test_a_simulation_without_an_end_is_refused(conditions, complaint, monkeypatch):
    monkeypatch.setattr(events, "MAX_EVENTS", 20_000)
    with pytest.raises(InputError, match=complaint) as error:
        simulate([job("long", 0, 7200, 1.0)], POOL, policy("fair"), conditions, np.random.default_rng(0))
    assert "give a longer" in error.value.hint


class Steady(np.random.Generator):
    """A source of chance in which every waiting time is the mean."""

    def exponential(self, scale=1.0, size=None):
        return scale


def test_a_node_comes_back_as_another_goes_and_the_clock_goes_on():
    """One of two nodes goes after 50 s. From then on one comes back every 100 s as the other goes."""
    conditions = Conditions(reclaim_s=100.0, outage_s=100.0)
    pool, draw = Pool(2, gpus_per_node=1), Steady(np.random.PCG64(0))
    schedule = simulate([job("a", 0, 1000, 1.0)], pool, policy("fifo"), conditions, draw)
    assert schedule.ended_s[0] == 1000
    assert schedule.capacity_s == 2 * 50 + 950

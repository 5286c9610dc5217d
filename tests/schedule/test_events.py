"""Properties of every policy on random workloads."""

from dataclasses import replace

import numpy as np
import pytest

from chronograd.predict.speed import OPTIMUS_RESNET50, SpeedModel
from chronograd.schedule.events import Conditions, simulate
from chronograd.schedule.jobs import Allocation, Pool, ScheduledJob
from chronograd.schedule.policies import names, policy


def workload(seed, count=30, gpus=8):
    """Return random jobs: half of them with servers, all with a best number of workers."""
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(400, count))
    found = []
    for i in range(count):
        model = OPTIMUS_RESNET50 if i % 2 else SpeedModel("all-reduce", (0.02, 0.5, 0.5, 0.05), 128)
        requested = Allocation(int(random.choice([1, 2, 4])), i % 2)
        found.append(
            ScheduledJob.of_model(
                f"job-{i}", float(arrivals[i]), float(random.lognormal(5, 1)), model, requested, Allocation(gpus, 4),
                work_sigma=0.3, speed_sigma=0.1,
            )
        )  # fmt: skip
    return found


@pytest.fixture(params=names())
def schedule_of(request):
    return lambda jobs, cluster, *more: simulate(jobs, cluster, policy(request.param), *more)


def places_in_use(schedule, at):
    gpus = slots = 0
    for stay in schedule.stays:
        if stay.start_s <= at < stay.end_s:
            gpus, slots = gpus + stay.size.workers, slots + stay.size.servers
    return gpus, slots


@pytest.mark.parametrize("seed", range(3))
def test_no_gpu_is_used_twice_and_all_work_is_done(schedule_of, seed):
    jobs, cluster = workload(seed), Pool(8, 6, gpus_per_node=4)
    schedule = schedule_of(jobs, cluster, Conditions(resize_s=20))
    assert (schedule.completion_s > 0).all()
    assert schedule.utilization <= 1
    for at in np.linspace(0, schedule.ended_s.max(), 300):
        gpus, slots = places_in_use(schedule, at)
        assert gpus <= 8
        assert slots <= 6
    done = np.zeros(len(jobs))
    for stay in schedule.stays:
        if not stay.is_paused:
            done[stay.index] += jobs[stay.index].speed(stay.size) * (stay.end_s - stay.start_s)
    assert done == pytest.approx([job.work for job in jobs])


def test_stays_cover_the_time_of_each_job(schedule_of):
    jobs = workload(4)
    schedule = schedule_of(jobs, Pool(8, 6), Conditions(resize_s=20), np.random.default_rng(0))
    held, ran = np.zeros(len(jobs)), np.zeros(len(jobs))
    for stay in schedule.stays:
        held[stay.index] += stay.size.workers * (stay.end_s - stay.start_s)
        ran[stay.index] += stay.end_s - stay.start_s
    assert held == pytest.approx(schedule.gpu_s)
    assert ran == pytest.approx(schedule.running_s)


@pytest.mark.parametrize("seed", range(5))
def test_more_gpus_never_lengthen_the_makespan_of_fifo(seed):
    jobs = workload(seed)
    spans = [simulate(jobs, Pool(gpus, 40), policy("fifo"), Conditions()).makespan_s for gpus in (4, 5, 6, 8, 12)]
    assert spans == sorted(spans, reverse=True)


def test_equal_draws_give_equal_schedules_and_other_draws_others(schedule_of):
    jobs, cluster = workload(1), Pool(8, 6)
    one, same, other = (schedule_of(jobs, cluster, Conditions(), np.random.default_rng(n)) for n in (0, 0, 1))
    assert one.ended_s.tolist() == same.ended_s.tolist()
    assert one.ended_s.tolist() != other.ended_s.tolist()


def test_a_failure_costs_work_since_a_checkpoint_and_a_restart(schedule_of):
    for job in workload(2, count=8):
        plain = schedule_of([job], Pool(8, 6), Conditions(resize_s=0), np.random.default_rng(5))
        conditions = Conditions(resize_s=10, mtbf_s=2000, checkpoint_s=60)
        failing = schedule_of([job], Pool(8, 6), conditions, np.random.default_rng(5))
        lost = failing.ended_s[0] - plain.ended_s[0]
        assert -1e-6 <= lost <= failing.failures[0] * 70 + 1e-6


def test_failures_happen_at_their_rate():
    one = ScheduledJob("long", 0, 1e6, [[0], [1]], Allocation(1))
    schedules = [
        simulate(
            [one], Pool(1), policy("fifo"), Conditions(resize_s=0, mtbf_s=1e4, checkpoint_s=1), np.random.default_rng(n)
        )
        for n in range(20)
    ]
    counts = [int(schedule.failures[0]) for schedule in schedules]
    assert np.mean(counts) == pytest.approx(100, abs=3 * 10 / 20**0.5)


def test_reclaimed_nodes_are_not_used(schedule_of):
    jobs = workload(3, count=10)
    conditions = Conditions(resize_s=10, reclaim_s=3000, outage_s=2000)
    schedule = schedule_of(jobs, Pool(8, 8, gpus_per_node=4), conditions, np.random.default_rng(0))
    steady = schedule_of(jobs, Pool(8, 8, gpus_per_node=4), Conditions(resize_s=10), np.random.default_rng(0))
    assert schedule.capacity_s < 8 * schedule.makespan_s
    assert schedule.utilization <= 1
    assert schedule.makespan_s >= steady.makespan_s


def test_stragglers_run_at_their_factor():
    jobs = [ScheduledJob(f"{i}", 0, 100, [[0], [1]], Allocation(1)) for i in range(40)]
    schedule = simulate(
        jobs, Pool(40), policy("fifo"), Conditions(slow_share=0.5, slow_factor=0.25), np.random.default_rng(0)
    )
    assert set(schedule.ended_s.tolist()) == {100.0, 400.0}


def test_forecasts_improve_while_a_job_runs():
    one = ScheduledJob("A", 0, 100, [[0], [1]], Allocation(1), work_sigma=0.5)
    seen = []

    def spy(moment):
        seen.append(moment.jobs[0].left)
        return policy("fifo").allocate(moment)

    watched = replace(policy("fifo"), allocate=spy, decides="both")
    schedule = simulate([one], Pool(1), watched, Conditions(interval_s=20), np.random.default_rng(2))
    true = schedule.ended_s[0]
    errors = [abs(left + 20 * n - true) for n, left in enumerate(seen)]
    assert len(errors) > 4
    assert errors == sorted(errors, reverse=True)
    assert errors[0] == pytest.approx(abs(100 - true))

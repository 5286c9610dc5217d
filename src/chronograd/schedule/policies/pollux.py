"""Pollux: sizes and batches together, so that no job is far behind what an equal share would give it.

The speed-up of a job is its goodput over that of an equal share. The policy maximises the harmonic mean of speed-ups. A job that
would have to restart counts less, by the time that its restarts have cost so far. Sizes change only if the mean rises then.
Two differences
from the paper: each GPU goes where it raises the mean most, instead of by a genetic algorithm; and sizes are packed on the fewest
nodes. A job without a GPU has a speed-up of 0.01, because a harmonic mean of 0 cannot be compared.

Source: Qiao et al., Pollux, OSDI 2021, sections 4.1 and 4.2, with p = −1.
"""

from heapq import heapify, heappop, heappush

from chronograd.schedule.jobs import NOTHING, Allocation, Free, JobState, Moment, Sizes

TITLE = "goodput"
DECIDES = "interval"
ADAPTS_BATCH = True
WITHOUT_GPU = 0.01


def allocate(moment: Moment) -> Sizes:
    """Hand out GPUs by the gain of the mean; keep the present sizes if restarts would cost more."""
    fair = max(1, moment.pool.gpus // max(1, len(moment.jobs)))
    free, sizes = Free(moment.pool), Sizes()
    heap = [(-_gain(state, NOTHING, fair), state.index, state) for state in moment.jobs]
    heapify(heap)
    while heap:
        gain, index, state = heappop(heap)
        size = sizes.get(index, NOTHING)
        larger = state.job.grown(size)
        if gain < 0 and free.take(larger.more_than(size)):
            sizes[index] = larger
            if larger.workers < state.job.most_workers:
                heappush(heap, (-_gain(state, larger, fair), index, state))
    present = {state.index: state.size for state in moment.jobs if state.size != NOTHING}
    free = Free(moment.pool)
    is_possible = all(free.take(size) for size in present.values())
    return present if is_possible and _fitness(moment, present, fair) >= _fitness(moment, sizes, fair) else sizes


def _speed_up(state: JobState, size: Allocation, fair: int) -> float:
    """Return the goodput over that of an equal share."""
    equal = Allocation(min(fair, state.job.most_workers) - 1)
    share = state.speed(state.job.grown(equal), adapts_batch=True)
    return max(WITHOUT_GPU, state.speed(size, adapts_batch=True) / share)


def _gain(state: JobState, size: Allocation, fair: int) -> float:
    """Return how much one more worker reduces the reciprocal of the speed-up."""
    return 1 / _speed_up(state, size, fair) - 1 / _speed_up(state, state.job.grown(size), fair)


def _fitness(moment: Moment, sizes: Sizes, fair: int) -> float:
    """Return the harmonic mean of speed-ups, with the cost of restarts."""
    reciprocals = []
    for state in moment.jobs:
        size = sizes.get(state.index, NOTHING)
        speed_up = _speed_up(state, size, fair)
        if size not in (state.size, NOTHING) and state.started_s is not None:
            age = max(moment.now_s - state.job.arrival_s, 0.0)
            kept = max(0.0, age - state.restarts * moment.resize_s) / (age + moment.resize_s) if age else 0.0
            speed_up = max(WITHOUT_GPU, speed_up * kept)
        reciprocals.append(1 / speed_up)
    return len(reciprocals) / sum(reciprocals) if reciprocals else 0.0

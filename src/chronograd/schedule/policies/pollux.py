"""Pollux: sizes and batches together, so that no job is far behind what an equal share would give it.

The speed-up of a job is its goodput over that of an equal share. The policy maximises the harmonic mean of speed-ups. A job that
would have to restart counts less, by the time that its restarts have cost so far. Sizes change only if the mean rises then.
Differences from the paper: GPUs are handed out one by one where they raise the mean most, instead of by a genetic algorithm, and
sizes are packed on the fewest nodes. A job without a GPU has a speed-up of 0.01, because a harmonic mean of 0 cannot be compared.

Source: Qiao et al., Pollux, OSDI 2021, sections 4.1 and 4.2, with p = −1.
"""

from heapq import heapify, heappop, heappush

from chronograd.schedule.jobs import NOTHING, Allocation, Free, JobState, Moment, Sizes

TITLE, DECIDES, ADAPTS_BATCH = "goodput", "interval", True
WITHOUT_GPU = 0.01


def allocate(moment: Moment) -> Sizes:
    """Hand out GPUs by the gain of the mean; keep the present sizes if restarts would cost more."""
    fair = max(1, moment.pool.gpus // max(1, len(moment.jobs)))
    free, sizes = Free(moment.pool), Sizes()
    heap = [(-_gain(state, 0, fair), state.index, 0, state) for state in moment.jobs]
    heapify(heap)
    while heap:
        gain, index, workers, state = heappop(heap)
        if gain < 0 and free.take(Allocation(1, min(1, state.job.most_servers) if workers == 0 else 0)):
            sizes[index] = _size(state, workers + 1)
            if workers + 1 < state.job.most_workers:
                heappush(heap, (-_gain(state, workers + 1, fair), index, workers + 1, state))
    present = {state.index: state.size for state in moment.jobs if state.size != NOTHING}
    is_possible = all(free_again.take(size) for free_again in [Free(moment.pool)] for size in present.values())
    return present if is_possible and _fitness(moment, present, fair) >= _fitness(moment, sizes, fair) else sizes


def _size(state: JobState, workers: int) -> Allocation:
    return Allocation(workers, min(1, state.job.most_servers)) if workers else NOTHING


def _speed_up(state: JobState, workers: int, fair: int) -> float:
    equal = state.job.speed(_size(state, min(fair, state.job.most_workers)), adapts_batch=True)
    return max(WITHOUT_GPU, state.job.speed(_size(state, workers), adapts_batch=True) / equal)


def _gain(state: JobState, workers: int, fair: int) -> float:
    """Return how much one more worker reduces the reciprocal of the speed-up."""
    return 1 / _speed_up(state, workers, fair) - 1 / _speed_up(state, workers + 1, fair)


def _fitness(moment: Moment, sizes: Sizes, fair: int) -> float:
    """Return the harmonic mean of speed-ups, with the cost of restarts."""
    reciprocals = []
    for state in moment.jobs:
        size = sizes.get(state.index, NOTHING)
        speed_up = _speed_up(state, size.workers, fair)
        if size not in (state.size, NOTHING) and state.started_s is not None:
            age = max(moment.now_s - state.job.arrival_s, 0.0)
            kept = max(0.0, age - state.restarts * moment.resize_s) / (age + moment.resize_s) if age else 0.0
            speed_up = max(WITHOUT_GPU, speed_up * kept)
        reciprocals.append(1 / speed_up)
    return len(reciprocals) / sum(reciprocals) if reciprocals else 0.0

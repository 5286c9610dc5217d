"""Dominant-resource fairness: equal shares of the cluster for all jobs, whatever they gain from them.

A task is a worker together with its part of the job's servers. The next task goes to the job with the smallest dominant share,
its largest share of any resource. A job takes no worker that makes it slower.

Source: Ghodsi et al., Dominant resource fairness, NSDI 2011, algorithm 1. It is the baseline of Optimus.
"""

from heapq import heapify, heappop, heappush

from chronograd.schedule.jobs import NOTHING, Free, Moment, Sizes

TITLE, DECIDES = "dominant-resource fairness", "interval"


def allocate(moment: Moment) -> Sizes:
    """Fill shares evenly until nothing fits; equal shares in the order of arrival."""
    free, sizes = Free(moment.pool), Sizes()
    heap = [(0.0, rank, state) for rank, state in enumerate(moment.jobs)]
    heapify(heap)
    while heap:
        _, rank, state = heappop(heap)
        size = sizes.get(state.index, NOTHING)
        larger = state.job.grown(size)
        is_useful = larger.workers <= state.job.most_workers and state.speed(larger) > state.speed(size)
        if is_useful and free.take(larger.more_than(size)):
            sizes[state.index] = larger
            heappush(heap, (moment.pool.share(larger), rank, state))
    return sizes

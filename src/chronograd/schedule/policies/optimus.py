"""Optimus: the next worker or server goes where it saves the most time for its share of the cluster.

Every job gets one worker, and one server if it has servers, in the order of arrival. Then the gain of one more task is the
predicted time that it saves, over the share of the cluster that it takes. The largest gain wins until nothing fits or saves.

Source: Peng et al., Optimus, EuroSys 2018, section 4.1, and its authors' code.
"""

from heapq import heapify, heappop, heappush

from chronograd.schedule.jobs import Allocation, Free, JobState, Moment, Pool, Sizes

TITLE, DECIDES = "marginal gain", "interval"
WORKER, SERVER = Allocation(1, 0), Allocation(0, 1)


def allocate(moment: Moment) -> Sizes:
    """Give each job the smallest size, then hand out what is left by marginal gain."""
    free = Free(moment.pool)
    states = {state.index: state for state in moment.jobs if free.take(state.job.smallest)}
    sizes = {index: state.job.smallest for index, state in states.items()}
    heap = [(-gain, index, task) for index in sizes for gain, task in _gains(states[index], sizes[index], moment.pool)]
    heapify(heap)
    while heap:
        gain, index, task = heappop(heap)
        size = sizes[index]
        if (-gain, task) not in _gains(states[index], size, moment.pool):  # the job has grown since
            continue
        if free.take(task):
            sizes[index] = Allocation(size.workers + task.workers, size.servers + task.servers)
            for gain, task in _gains(states[index], sizes[index], moment.pool):
                heappush(heap, (-gain, index, task))
    return sizes


def _gains(state: JobState, size: Allocation, pool: Pool) -> list[tuple[float, Allocation]]:
    """Return the gains above 0 of one more worker and of one more server."""
    now, found = state.seconds(size), []
    for task in (WORKER, SERVER):
        larger = Allocation(size.workers + task.workers, size.servers + task.servers)
        if larger.workers <= state.job.most_workers and larger.servers <= state.job.most_servers:
            gain = (now - state.seconds(larger)) / pool.share(task)
            if gain > 0:
                found.append((gain, task))
    return found

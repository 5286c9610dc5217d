"""AlloX: the shortest mean completion, as a matching of jobs with positions in the queues of GPUs. Jobs of one GPU keep it.

The job at the k-th position from the end of a queue delays k jobs by its time, so it costs k times its time. The first job of each queue
in the cheapest matching starts. For fairness, only the jobs that arrived first take part: a share ALPHA of those that wait, and at least
the number of free GPUs. The paper has jobs of one GPU. A job of g GPUs has the place of one: it is matched again in every round, and gets
1/g of the time.

Source: Le et al., AlloX: compute allocation in hybrid clusters, EuroSys 2020, sections 3.1 and 3.3. Jobs of several GPUs, rounds and ALPHA
are as in the artefact of Zheng et al., Shockwave, NSDI 2023, whose cluster ran it.
"""

import numpy as np
from scipy.optimize import linear_sum_assignment

from chronograd.schedule.jobs import JobState, Moment, Sizes
from chronograd.schedule.rounds import next_round

TITLE, DECIDES = "shortest mean completion", "interval"
ALPHA = 0.2


def allocate(moment: Moment) -> Sizes:
    """Match the jobs without a GPU with the other GPUs."""
    started = [state for state in moment.jobs if state.share == 1]
    free = moment.pool.gpus - len(started)
    others = [state for state in moment.jobs if state.share != 1]
    first = _first(others[: max(int(ALPHA * len(others)), free)], free)
    return next_round(moment, {state.index: 1 / state.gpus for state in [*started, *first]})


def _first(jobs: list[JobState], gpus: int) -> list[JobState]:
    """Return the first job of each GPU's queue in the cheapest matching."""
    if not jobs or gpus <= 0:
        return []
    length = -(-len(jobs) // gpus)  # a longer queue would cost more
    position = 1 + np.arange(gpus * length) // gpus  # from the end
    rows, places = linear_sum_assignment(np.outer([state.left_s for state in jobs], position))
    first: dict[int, tuple[int, int]] = {}
    for row, place in zip(rows.tolist(), places.tolist(), strict=True):
        first[place % gpus] = max(first.get(place % gpus, (0, 0)), (place // gpus + 1, row))
    return [jobs[row] for _, row in sorted(first.values(), key=lambda item: item[1])]

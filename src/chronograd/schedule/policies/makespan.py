"""Shortest makespan: all jobs end at the same time, in rounds.

A job needs a share of the time in proportion to its remaining time. The makespan of the present jobs is the largest of the longest job's
time and of all GPU time over the GPUs.

Source: Narayanan et al., Gavel, OSDI 2020, section 4.2.
"""

import numpy as np

from chronograd.schedule.jobs import Moment, Sizes
from chronograd.schedule.rounds import next_round, shares_at

TITLE, DECIDES = "shortest makespan", "interval"


def allocate(moment: Moment) -> Sizes:
    """Give shares in proportion to the remaining time; GPU time that is left goes to the shorter jobs."""
    if not moment.jobs:
        return Sizes()
    left_s = np.array([state.left_s for state in moment.jobs])
    part = np.maximum(left_s / left_s.max(), 1e-9)
    return next_round(moment, shares_at(lambda level: level * part, moment.jobs, moment.pool.gpus))

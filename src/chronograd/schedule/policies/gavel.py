"""Gavel's max-min fairness: equal GPU time for all jobs, in rounds.

A job that requests two GPUs runs for half as long as a job that requests one. A job that needs less than its share runs all the time, and
the others get the rest. On GPUs of one kind, this maximises the smallest normalised throughput.

Source: Narayanan et al., Heterogeneity-aware cluster scheduling policies for deep learning workloads (Gavel), OSDI 2020, section 4.1.
"""

import numpy as np

from chronograd.schedule.jobs import Moment, Sizes
from chronograd.schedule.rounds import next_round, shares_at

TITLE, DECIDES = "max-min fairness", "interval"


def allocate(moment: Moment) -> Sizes:
    """Give each job the same GPU time."""
    if not moment.jobs:
        return Sizes()
    sizes = np.array([state.gpus for state in moment.jobs])
    return next_round(moment, shares_at(lambda level: level / sizes, moment.jobs, moment.pool.gpus))

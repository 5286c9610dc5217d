"""Themis' finish-time fairness: no job ends much later than on its own part of the cluster.

The fairness rho of a job is the time from its arrival to its end over that time in isolation, on one n-th of the cluster for n jobs. The
policy gives shares of time that minimise the largest rho, in rounds. Left out: auctions between applications, and Themis' leases.

Source: Mahajan et al., Themis: fair and efficient GPU cluster scheduling, NSDI 2020, section 4; as shares of time in Narayanan et al.,
Gavel, OSDI 2020, section 4.2.
"""

import numpy as np

from chronograd.schedule.jobs import Moment, Sizes
from chronograd.schedule.rounds import next_round, shares_at

TITLE, DECIDES = "finish-time fairness", "interval"


def allocate(moment: Moment) -> Sizes:
    """Minimise the largest rho: a job needs the share with which it ends at rho times its time in isolation."""
    jobs = moment.jobs
    if not jobs:
        return Sizes()
    left_s = np.array([state.left_s for state in jobs])
    age_s = np.array([moment.now_s - state.job.arrival_s for state in jobs])
    alone = np.array([min(1.0, moment.pool.gpus / len(jobs) / state.gpus) for state in jobs])
    ran_s = np.array([state.attained / state.gpus for state in jobs])
    isolated_s = (ran_s + left_s) / alone

    def needed(fairness: float) -> np.ndarray:
        """Return the shares at 1/rho: all of the time for a job that cannot reach it any more."""
        rest_s = isolated_s / fairness - age_s
        return np.asarray(left_s / np.maximum(rest_s, 1e-9 * left_s))

    return next_round(moment, shares_at(needed, jobs, moment.pool.gpus))

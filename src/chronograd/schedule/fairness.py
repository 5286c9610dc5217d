"""The fairness of a schedule: finish-time fairness of each job, and Jain's index.

Source: Mahajan et al., Themis, NSDI 2020, section 3; Jain et al., A quantitative measure of fairness, DEC TR-301, 1984.
"""

from __future__ import annotations

import numpy as np

from chronograd.schedule.events import Timetable


def finish_time_fairness(schedule: Timetable, gpus: int) -> np.ndarray:
    """Return rho of each job: the time from arrival to end over that in isolation, on an n-th of the cluster.

    Above 1, a job would have been done sooner with its own part. n is the mean number of jobs between its arrival and its end. Its time in
    isolation is the predicted time at its requested size, and longer if that size is more than its part.

    Args:
        gpus: of the cluster.
    Returns: 1 for a job that needs no time that a clock could show.
    """
    arrived, ended, stayed = schedule.arrived_s, schedule.ended_s, schedule.completion_s
    present = _job_seconds(arrived, ended, ended) - _job_seconds(arrived, ended, arrived)
    mean_jobs = np.divide(present, stayed, out=np.ones_like(stayed), where=stayed > 0)
    sizes = np.array([job.requested.workers for job in schedule.jobs])
    alone_s = np.array([job.requested_s for job in schedule.jobs])
    isolated_s = alone_s * np.maximum(1.0, sizes * mean_jobs / gpus)
    return np.asarray(np.divide(stayed, isolated_s, out=np.ones_like(stayed), where=stayed > 0))


def jain_index(values: np.ndarray) -> float:
    """Return Jain's index of fairness: 1 if all values are equal, 1/n if one of n has everything.

    >>> jain_index(np.array([2.0, 2.0])), jain_index(np.array([1.0, 0.0]))
    (1.0, 0.5)
    """
    shares = values / values.max()  # squares of huge values have no number
    return float(shares.sum() ** 2 / (len(shares) * (shares**2).sum()))


def _job_seconds(arrived: np.ndarray, ended: np.ndarray, until: np.ndarray) -> np.ndarray:
    """Return the integral of the number of jobs from the start to some times."""

    def since(times: np.ndarray) -> np.ndarray:
        """Return the sum of max(0, until - time) over the times."""
        ordered = np.sort(times)
        count = np.searchsorted(ordered, until)
        return np.asarray(count * until - np.concatenate([[0.0], np.cumsum(ordered)])[count])

    return np.asarray(since(arrived) - since(ended))

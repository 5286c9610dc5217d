"""Tiresias: least attained service, in queues, without a prediction.

Attained service is GPUs times seconds. A job begins in the first queue and falls to the next at each limit. Within a queue, the
first to start runs first, so that jobs do not preempt each other all the time. The limits are parameters of the paper, which
derives them from past jobs. Those here are round numbers: one GPU-hour and ten. Left out: the promotion of starving jobs.

Source: Gu et al., Tiresias, NSDI 2019, discretised two-dimensional LAS.
"""

from bisect import bisect_right

from chronograd.schedule.jobs import JobState, Moment, Sizes, pack

TITLE, DECIDES = "least attained service", "both"
LIMITS = (3600.0, 36000.0)  # GPU-seconds


def allocate(moment: Moment) -> Sizes:
    """Order jobs by queue, then by start; those that have not run come last in their queue."""

    def key(state: JobState) -> tuple[int, float, float]:
        started = float("inf") if state.started_s is None else state.started_s
        return bisect_right(LIMITS, state.attained), started, state.job.arrival_s

    return pack(sorted(moment.jobs, key=key), moment.pool)

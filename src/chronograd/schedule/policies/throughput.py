"""Maximum throughput: GPUs go to the jobs that use them best.

The throughput of a job is its speed at the requested size over that of its smallest size. The jobs with the largest throughput for each
GPU run first, so those that scale well. Others may wait for long.

Source: Narayanan et al., Gavel, OSDI 2020, section 4.2: the largest sum of throughputs, on GPUs of one kind.
"""

from chronograd.schedule.jobs import JobState, Moment, Sizes, pack

TITLE, DECIDES = "maximum throughput", "events"


def allocate(moment: Moment) -> Sizes:
    """Order jobs by the throughput of a GPU; equal jobs run in the order of their arrival."""
    return pack(sorted(moment.jobs, key=_gain, reverse=True), moment.pool)


def _gain(state: JobState) -> float:
    """Return the speed at the requested size over that of the smallest size, for each GPU."""
    return round(state.speed(state.job.requested) / state.speed(state.job.smallest) / state.gpus, 9)

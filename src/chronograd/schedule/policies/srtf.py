"""Shortest remaining time first: the jobs that are done soonest run at their requested size, and may preempt others."""

from chronograd.schedule.jobs import Moment, Sizes, pack

TITLE, DECIDES = "shortest remaining time first", "events"


def allocate(moment: Moment) -> Sizes:
    """Order jobs by the predicted time that is left at the requested size."""
    return pack(sorted(moment.jobs, key=lambda state: state.seconds(state.job.requested)), moment.pool)

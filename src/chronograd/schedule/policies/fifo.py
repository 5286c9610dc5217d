"""First in, first out: jobs start in the order of their arrival, at the requested size, and keep it."""

from chronograd.schedule.jobs import Moment, Sizes, pack

TITLE, DECIDES = "first in, first out", "events"


def allocate(moment: Moment) -> Sizes:
    """Start the earliest jobs; nobody overtakes. Jobs that run arrived before those that wait, so they keep their size."""
    return pack(moment.jobs, moment.pool, in_order=True)

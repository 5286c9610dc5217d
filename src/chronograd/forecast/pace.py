"""The duration of an epoch or step of a log, and from it the time of a later one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chronograd.forecast.curves import Array
from chronograd.record import INTERVAL

MAX_BLOCKS = 10
CLOCK_FROM = 1e9  # times from here on are seconds since 1970 (September 2001 or later)
STOPPED_AFTER = 3.0  # times the interval between two points: a log without a new point by then has stopped


@dataclass(frozen=True)
class Pace:
    """Seconds of an epoch or step of a log, with the 80 % interval, and the time of its last point.

    Attributes:
        last: time of the last fitted point, in seconds since 1970 if `is_clock`, else since some start.
        latest: time of the last point in the log; `between`: seconds from it to the next.
    """

    seconds: float
    low: float
    high: float
    last: float
    latest: float
    between: float

    @property
    def is_clock(self) -> bool:
        return self.last > CLOCK_FROM

    def is_under_way(self, now: float) -> bool:
        """Return whether the log may still grow at `now`, in seconds since 1970."""
        return self.is_clock and self.latest <= now < self.latest + STOPPED_AFTER * self.between

    def seconds_to(self, ahead: float, low: float | None, high: float | None) -> tuple[float, float, float | None]:
        """Return the seconds from the last fitted point to one `ahead` epochs or steps later, with the 80 % interval.

        The logarithms of the errors of distance and pace are assumed independent. No `low` means 0 ahead, no `high` means
        never.
        """
        middle = ahead * self.seconds
        if ahead <= 0:
            return 0.0, 0.0, None if high is None else max(0.0, high) * self.high
        return (
            middle,
            middle * _combined_ratio(low or 0.0, ahead, self.low / self.seconds),
            (None if high is None else middle / _combined_ratio(ahead, high, self.seconds / self.high)),
        )


def _combined_ratio(less: float, more: float, pace: float) -> float:
    """Combine the ratio of two distances and the ratio of two paces, both at most 1, into one ratio."""
    if less <= 0:
        return 0.0
    return float(np.exp(-np.hypot(np.log(less / more), np.log(pace))))


def pace_of(steps: Array, times: Array | None, until: float) -> Pace | None:
    """Return the duration of an epoch or step from the times of all points; None if they do not show it. Pauses between two points count as one slow
    block.

    >>> pace_of(np.arange(1.0, 6.0), np.arange(5) * 60.0, 5).seconds
    60.0
    """
    if times is None or len(times) < 3:
        return None
    ends = np.unique(np.linspace(0, len(steps) - 1, min(MAX_BLOCKS, len(steps) - 1) + 1).astype(int))
    took = np.diff(times[ends]) / np.diff(steps[ends])
    took = took[took > 0]  # skips a clock that was set back, or times that restart
    if not len(took):
        return None
    low, middle, high = (float(value) for value in np.quantile(took, (INTERVAL[0], 0.5, INTERVAL[1])))
    last = float(np.interp(until, steps, times))
    return Pace(middle, low, high, last, float(times[-1]), middle * float(np.median(np.diff(steps))))

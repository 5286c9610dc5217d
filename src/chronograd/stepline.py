"""One line of a steps file (chronograd.rundir): its attempt, its step, and named figures of the right kind."""

from __future__ import annotations

import json
import math
import time
from typing import Any, NoReturn

from chronograd.errors import FileFormatError
from chronograd.record import STEP_PARTS

# Counts that are exact as float64; losses of which sums stay finite.
_MOST, _MOST_LOSS = 2**53, 1e100
_NUMBERS = {
    *(*STEP_PARTS, "step_time_s", "seconds", "samples", "time", "epoch", "epoch_time_s", "epoch_compute_time_s"),
    *("num_steps", "memory_peak_bytes", "rank", "staleness", "pull_s", "compute_s", "push_s", "exchange_wait_s"),
    *(
        "process_time",
        "busy_s",
        "queued_s",
        "user_s",
        "system_s",
        "cores",
        "params",
        "gradient_bytes",
        "dataset_samples",
    ),
    *("rank_batch", "steps_per_epoch", "workers", "times", "larger_seconds", "fair_threads", "fair_seconds"),
}
# Null where they were not finite, or not looked at.
_NUMBERS_OR_NULL = {"loss", "train_loss", "test_loss", "test_accuracy", "threads", "grad_sq_small", "grad_sq_big"}
_TEXTS = {"event", "text", "source", "mode", "device", "device_name", "host", "gpus_given", "sampler"}


def _since_boot_s() -> float:
    """Seconds that nobody sets; on Linux those of a machine that sleeps, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


_BOOTED = time.time() - _since_boot_s()


def wall_clock_s() -> float:
    """Seconds since 1970 by the clock as it was when this process began: it goes on evenly, however the clock is set."""
    return _BOOTED + _since_boot_s()


class Line(dict[str, Any]):
    """A step or an event. What it does not have is asked for in vain: FileFormatError says which."""

    def __missing__(self, name: str) -> NoReturn:
        what = f"its {self['event']} event" if "event" in self else "a line"
        raise FileFormatError(f"the run is damaged: {what} of step {self.get('step')} has no {name}")


def parse_line(raw: bytes) -> Line | None:
    """A line, or None if it is torn: cut off while it was written.

    Raises ValueError for a whole line in which a figure is none.
    """
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or not all(_is_count(data.get(k)) for k in ("attempt", "step")):
        return None
    for name, value in data.items():
        if name in _NUMBERS or (name in _NUMBERS_OR_NULL and value is not None):
            least, most = (-_MOST_LOSS, _MOST_LOSS) if name in _NUMBERS_OR_NULL else (0, _MOST)
            is_right = isinstance(value, int | float) and not isinstance(value, bool) and least <= value < most
        elif name in _TEXTS:
            is_right = isinstance(value, str) and (value.isascii() or _can_be_written(value))
        else:
            is_right = not isinstance(value, float) or math.isfinite(value)
        if not is_right:
            raise ValueError(f"{name!r:.80} is {value!r:.80}")
    return Line(data)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def _can_be_written(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

"""How long to time steps."""

from __future__ import annotations

from dataclasses import dataclass

from chronograd.record import WARMUP


@dataclass(frozen=True)
class Timing:
    """After `warmup` steps, `num_steps`, or as many as fit in `seconds`."""

    warmup: int = WARMUP
    num_steps: int = 30
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.warmup < 1 or self.num_steps < 1 or not self.seconds > 0:
            raise ValueError(f"at least one step of warm-up and one timed step, and some seconds; got {self}")

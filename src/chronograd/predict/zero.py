"""ZeRO's traffic. What its stages keep where is in `memory`.

Stages 0 to 2 move what an all-reduce moves: a reduce-scatter of gradients and an all-gather of parameters (or of summed
gradients). Stage 3 gathers parameters twice, for forward and for backward: 1.5 times as much.

Source: Rajbhandari et al. 2020, ZeRO, section 7.
"""

from __future__ import annotations

from typing import Any

Seconds = Any  # a number or an array


def traffic_factor(stage: int) -> float:
    """Bytes that a stage moves per step, over those of an all-reduce.

    >>> traffic_factor(2), traffic_factor(3)
    (1.0, 1.5)
    """
    return 1.5 if stage == 3 else 1.0


def gather_exposed_s(stage: int, exchange_s: Seconds, forward_s: Seconds, overlap: float) -> Seconds:
    """What stage 3's all-gather in forward adds to a step: half an all-reduce, less what hides behind forward.

    The other two thirds of its traffic run in backward and hide there as an all-reduce does.

    Args:
        exchange_s: seconds of all all-reduces of a step.
        overlap: share of it that may run at the same time as forward, 0 to 1.

    >>> gather_exposed_s(3, 4.0, 1.5, 1.0), gather_exposed_s(2, 4.0, 1.5, 1.0)
    (0.5, 0.0)
    """
    gather_s = exchange_s * (traffic_factor(stage) - 1.0)
    excess = gather_s - forward_s
    hidden = gather_s - excess * (excess > 0)
    return gather_s - overlap * hidden

"""Parameters, multiply-adds and cache of a described transformer, in closed form.

A length is a number of tokens, or an array of them. Amounts are exact integers for a number, and floats for an array. Dense
attention multiplies every pair of positions, masked or not, as `docs/counting.md` defines it. Causal attention multiplies
only the pairs that the mask and the window leave. An encoder and its decoder have sequences of the same length.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from chronograd.configs.description import MambaPart, ModelDescription, ScoringPart

Length = TypeVar("Length", int, npt.NDArray[np.float64])
SCORES = "attention scores"


def params_by_kind(model: ModelDescription, *, active: bool = False) -> dict[str, int]:
    """Return parameters by kind of tensor, tied ones once; with `active` those that one token uses."""
    found: dict[str, int] = defaultdict(int)
    for tensor, copies in model.counted():
        found[tensor.kind] += copies * (tensor.active_params if active else tensor.params)
    return dict(found)


def macs_by_kind(
    model: ModelDescription, length: Length, *, causal: bool = False, windows: bool = False
) -> dict[str, Length]:
    """Return the multiply-adds of the forward pass of one sequence, by kind of tensor, and those of SCORES.

    Args:
        windows: dense attention multiplies a position only with those of a full window.
    """
    uses = {"token": length, "patch": length - 1, "sequence": length * 0 + 1}
    found: dict[str, Length] = defaultdict(lambda: length * 0)
    for tensor, copies in model.counted():
        if tensor.use != "never":
            found[tensor.kind] += copies * tensor.macs * uses[tensor.use]
    for group, part in model.parts():
        if isinstance(part, ScoringPart):
            pairs = pairs_of(part, length) if causal else length * _least(length, part.window if windows else None)
            found[SCORES] += len(group.places) * part.pair_macs * pairs
        elif isinstance(part, MambaPart):
            found["state space"] += len(group.places) * part.state_macs * length
    return dict(found)


def pairs_of(part: ScoringPart, length: Length) -> Length:
    """Return the pairs of a query and a key position that the mask leaves.

    A causal position i of 1 … T sees min(i, w) positions: w (w + 1) / 2 + (T − w) w in total, with the window w at most T.
    """
    if part.sees != "earlier":
        return length * length
    window = _least(length, part.window)
    return window * (window + 1) // 2 + (length - window) * window


def cached_numbers(model: ModelDescription, length: Length) -> Length:
    """Return the numbers in the cache of keys and values after `length` tokens. A window limits its layers."""
    total = length * 0
    for group, part in model.parts():
        if isinstance(part, ScoringPart):
            total += len(group.places) * part.cached * _least(length, part.window)
    return total


def _least(length: Length, window: int | None) -> Length:
    if window is None:
        return length
    return min(length, window) if isinstance(length, int) else np.minimum(length, float(window))

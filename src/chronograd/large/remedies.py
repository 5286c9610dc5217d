"""Changes of a setting that save memory: each is predicted again, so that its saving is not a guess."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chronograd.errors import InputError
from chronograd.large.asking import with_changes
from chronograd.large.prediction import LargePrediction

# Changes that often make a setting fit, in addition to the remedies of its parts.
USUAL = (
    "training.zero_stage=1",
    "training.zero_stage=3",
    "large.recompute=selective",
    "large.recompute=full",
    "large.loss=chunked",
    "large.attention=fused",
    "cluster.layout.tensor=8",
    "large.offload=optimizer",
)
ENOUGH = 0.9  # probability of fitting at which no further change is tried
MOST_CHANGES = 4
_CHANGE = re.compile(r"[a-z_]+(\.[a-z_]+)*=\S+")


@dataclass(frozen=True)
class Remedied:
    """A setting after some changes: bytes of its fullest stage that they save, and its new prediction."""

    changes: tuple[str, ...]
    saved_bytes: float
    prediction: LargePrediction


def change_in(remedy: str) -> str | None:
    """Return the `FIELD=VALUE` at the start of a remedy's text; None if it is only words.

    >>> change_in("large.loss=chunked"), change_in("large.loss=chunked, which stores a part"), change_in("shorter sequences")
    ('large.loss=chunked', 'large.loss=chunked', None)
    """
    match = _CHANGE.match(remedy)
    return None if match is None else match[0].rstrip(",;:.")


def remedied(prediction: LargePrediction, changes: Sequence[str]) -> Remedied | None:
    """Return the prediction with some changes; None if they are impossible in this setting."""
    try:
        other = LargePrediction(with_changes(prediction.setting, changes))
        return Remedied(tuple(changes), prediction.fullest.used_bytes - other.fullest.used_bytes, other)
    except InputError:
        return None


def of_parts(prediction: LargePrediction) -> dict[str, Remedied]:
    """Return the remedy of each part of the fullest stage that saves memory, by its text."""
    found = {}
    for part in prediction.fullest.parts:
        change = change_in(part.remedy)
        own = None if change is None else remedied(prediction, [change])
        if own is not None and own.saved_bytes > 0:
            found[part.remedy] = own
    return found


def until_it_fits(prediction: LargePrediction) -> list[Remedied]:
    """Return changes that make a setting fit: each step adds the fastest one that is enough, or the one that saves the most."""
    own = (change_in(part.remedy) for part in prediction.fullest.parts)
    candidates = list(dict.fromkeys([*filter(None, own), *USUAL]))
    steps: list[Remedied] = []
    while len(steps) < MOST_CHANGES and (steps[-1].prediction if steps else prediction).fit < ENOUGH:
        before = steps[-1].changes if steps else ()
        best = _best(
            remedied(prediction, [*before, one]) for one in candidates if _field(one) not in map(_field, before)
        )
        if best is None or best.saved_bytes <= (steps[-1].saved_bytes if steps else 0):
            break
        steps.append(best)
    return steps


def _best(found: Iterable[Remedied | None]) -> Remedied | None:
    """Return the fastest change that is enough, if possible one without rounding to fewer bits; else the one that saves the most."""
    known = [one for one in found if one is not None]
    enough = [one for one in known if one.prediction.fit >= ENOUGH]
    if enough:
        return max(enough, key=lambda one: ("_bits" not in one.changes[-1], one.prediction.tokens_per_s))
    return max(known, key=lambda one: one.saved_bytes, default=None)


def _field(change: str) -> str:
    return change.partition("=")[0]

"""A throughput as written by people (`812 images/s`, `78 ms/step`), or from a record, a run or a table."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from chronograd.errors import InputError
from chronograd.record import Record
from chronograd.units import quantity

Per = Literal["samples per second", "tokens per second", "steps per second", "seconds per step", "seconds per sample"]

_NUMBER = re.compile(r"\s*(\d[\d,_]*(?:\.\d+)?(?:e[+-]?\d+)?|\.\d+)\s*(.*?)\s*", re.IGNORECASE)
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
_SAMPLES = ("", "image", "img", "im", "sample", "sequence", "seq")
_TOKENS = ("token", "tok")
_STEPS = ("step", "it", "iter", "iteration", "batch", "batche")
_HINT = "write it as 812 images/s, 812/s, 78 ms/step or 12.8 steps/s"


@dataclass(frozen=True)
class Claim:
    """A figure of all devices together, or of each. `text` is its original spelling."""

    value: float
    per: Per
    text: str
    is_per_device: bool = False

    def samples_per_s(self, batch: int, devices: int = 1, tokens: int = 1) -> float:
        """Return the samples per second of all devices, for steps of `batch` samples over all of them, with `tokens` tokens
        each.
        """
        if self.per in ("samples per second", "tokens per second"):
            of_all = self.value * (devices if self.is_per_device else 1)
            return of_all / tokens if self.per == "tokens per second" else of_all
        if self.per == "steps per second":
            return self.value * batch
        return (batch if self.per == "seconds per step" else 1) / self.value


def is_claim(text: str) -> bool:
    """Return whether a word of the command line is a figure rather than a name."""
    return re.match(r"\s*\.?\d", text) is not None and _NUMBER.fullmatch(text) is not None


def parse(text: str) -> Claim:
    """Return a figure with its unit; a number alone is samples per second. Raises InputError.

    >>> parse("812 images/s").samples_per_s(64), parse("78.5 ms").samples_per_s(64)
    (812.0, 815.2866242038217)
    """
    match = _NUMBER.fullmatch(text)
    value = float(re.sub("[,_]", "", match[1])) if match else math.nan
    if match is None or not 0 < value < 1e15:
        raise InputError(f"{text!r} is not a throughput above 0", _HINT)
    unit = re.sub(r"\s+(per|an?)\s+|\s*/\s*", "/", match[2].lower())
    unit = re.sub(r"\bsec(ond)?s?\b", "s", unit)
    whole = re.sub(r"/(gpu|device|rank)$", "", unit)
    above, _, below = whole.partition("/")
    thing = (below if above in _SECONDS else above).rstrip("s")
    if above in _SECONDS and whole == unit:
        if thing in _STEPS or below == "":
            return Claim(value * _SECONDS[above], "seconds per step", text)
        if thing and thing in _SAMPLES:
            return Claim(value * _SECONDS[above], "seconds per sample", text)
    if above not in _SECONDS and (below == "s" or unit == ""):
        if thing in _SAMPLES:
            return Claim(value, "samples per second", text, whole != unit)
        if thing in _TOKENS:
            return Claim(value, "tokens per second", text, whole != unit)
        if thing in _STEPS:
            return Claim(value, "steps per second", text)
    raise InputError(f"{text!r}: {match[2]!r} is not a unit of throughput", _HINT)


def of_record(record: Record) -> Claim:
    """Return the throughput of a record. Raises InputError if it has none."""
    rate = record["throughput_samples_per_s"]
    if rate.value is None:
        raise InputError(f"{record.title} has no throughput: {rate.reason}", f"give the figure itself: {_HINT}")
    return Claim(rate.value, "samples per second", quantity(rate.value, "sample/s"))

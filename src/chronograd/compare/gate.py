"""The regression gate on two sets of runs: it fails if a figure changed by more than its limit, beyond the noise between runs.

    step_time > 5%          fail if a step takes over 5 % longer than in the baseline
    throughput < -5%        fail if throughput fell by over 5 %
    step_time > 20 ms       an absolute difference

A condition holds only if the whole 95 % interval of the change is beyond its limit. The steps of one run say little about the
next run. On a shared machine, means of runs of one job deviated by 23 %. Their steps let us expect 3.4 % (standard error by
blocks). So a run counts as one sample, no matter how many steps it has:

- several runs of each, or other runs of the same jobs: the pooled spread between runs, with Student's t.
- runs in rounds, with one run of each side: the spread of the changes within a round, with Student's t. Anything that affects
  both runs of a round, such as a machine that is slow for a while, cancels.
- otherwise (fewer than two degrees of freedom) the spread between runs is unknown. We assume that times and rates deviate by
  BETWEEN_RUNS, or by the deviation of their steps if that is larger. A pair of runs then proves only large changes.
- the memory of one run each is compared directly. Other figures without a spread are never judged from one run each.

Percentages are compared as logarithms, differences directly. Left out: drift between the two sides, because no statistic can
distinguish it from a change. So runs should take turns, as those of `bench.rounds` do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

from chronograd.errors import InputError, NotFoundError
from chronograd.record import QUANTITIES, Z80, Quantity, Record
from chronograd.units import quantity
from chronograd.words import how_many

CONFIDENCE = 0.95
# Assumed deviation of the log of a time or rate between runs of one job, if there are too few runs to measure it. We measured 5
# to 23 % on shared machines (docs/decisions/gate.md), and 1 to 3 % on a dedicated machine.
BETWEEN_RUNS = 0.10
TIMED_UNITS = {"s", "sample/s", "frame/s", "FLOP/s", "usd", "1/s"}
TIMED_NAMES = {"mfu", "ppp"}
ENOUGH = 3  # runs of each: with two, Student's t doubles the interval
MIN_ROUNDS = 3  # two rounds have one degree of freedom, so their interval is 12.7 standard errors to either side
# The spread of the step time stands for that of figures computed from it.
SPREAD_OF = {"throughput_samples_per_s": "step_time_s", "achieved_flops_per_s": "step_time_s"}
BETTER_HIGH = {"throughput_samples_per_s", "achieved_flops_per_s", "mfu", "ppp", "test_accuracy",
               "mean_return", "best_return", "throughput_frames_per_s", "updates_per_s"}  # fmt: skip
UNITS = {
    "s": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0, "h": 3600.0},
    "B": {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30},
    "1": {"points": 0.01, "point": 0.01},
    "sample/s": {"samples/s": 1.0, "sample/s": 1.0},
    "FLOP/s": {"FLOP/s": 1.0, "GFLOP/s": 1e9, "TFLOP/s": 1e12},
    "usd": {"usd": 1.0, "$": 1.0},
}
_CONDITION = re.compile(r"\s*(\w+)\s*([<>])=?\s*([-−+]?\d+(?:\.\d+)?)\s*(%|[^\d\s]\S*)?\s*")
_SUFFIX = re.compile(r"_(samples_per_s|per_s|bytes|s|usd)$")
Verdict = Literal["fails", "passes", "cannot tell"]


@dataclass(frozen=True)
class Condition:
    """A condition that fails if the change of `name` is above or below `limit`. Relative limits are fractions."""

    text: str
    name: str
    is_above: bool
    limit: float
    is_relative: bool

    @property
    def warning(self) -> str:
        """Return a warning for a condition that fails for an improvement; else ""."""
        if self.is_above != (self.name in BETTER_HIGH):
            return ""
        other = f"{_short(self.name)} {'<' if self.is_above else '>'}"
        return f"{self.text!r} fails for an improvement; to fail for a regression write '{other} …'"


@dataclass(frozen=True)
class ConditionOutcome:
    """The outcome of a condition.

    Attributes:
        change: from baseline to run, in the condition's terms: a fraction, or a difference in `unit`.
        low, high: 95 % interval of the change; equal to `change` for memory of one run each, infinite if the spread is unknown.
        seen: the smallest change that would have failed, with this number of runs and this spread.
        runs_needed: runs of each side that make half the interval as small as the limit; None if it already is.
        spread: source of the interval.
        is_assumed: whether the spread between runs was assumed, because there are too few runs to measure it.
    """

    condition: Condition
    unit: str
    change: float
    low: float
    high: float
    seen: float
    runs_needed: int | None
    spread: str
    is_assumed: bool = False

    @property
    def verdict(self) -> Verdict:
        low, high, limit = self.low, self.high, self.condition.limit
        if not self.condition.is_above:
            low, high, limit = -high, -low, -limit
        return "fails" if low > limit else "passes" if high <= limit else "cannot tell"

    def line(self) -> str:
        """Return the verdict, the condition, the change with its interval, and the smallest change that would have failed."""
        change, low, high, seen = map(self._text, (self.change, self.low, self.high, self.seen))
        told = f"{self.verdict:<11}  {self.condition.text}: {change}"
        if not math.isfinite(self.high):
            return f"{told}; {self.spread}: give at least {ENOUGH} runs of each"
        told += f", 95 % interval {low} to {high}; {self.spread}"
        if self.low < self.high:
            told += f"; a change of {seen} would have failed"
        if self.verdict == "cannot tell" and self.is_assumed:
            told += f"; give at least {ENOUGH} runs of each, taken in turn, to measure the spread between runs"
        elif self.verdict == "cannot tell" and self.runs_needed is not None:
            limit = self._text(abs(self.condition.limit)).lstrip("+")
            told += f"; too noisy to detect {limit}; that would need about {how_many(self.runs_needed, 'runs')} of each"
        return told

    def as_data(self) -> dict[str, Any]:
        return {
            "condition": self.condition.text,
            "name": self.condition.name,
            "unit": "%" if self.condition.is_relative else self.unit,
            **{key: self._number(getattr(self, key)) for key in ("change", "low", "high", "seen")},
            "limit": 100 * self.condition.limit if self.condition.is_relative else self.condition.limit,
            "runs_needed": self.runs_needed,
            "spread": self.spread,
            "spread_is_assumed": self.is_assumed,
            "verdict": self.verdict,
        }  # fmt: skip

    def _number(self, value: float) -> float | None:
        return None if not math.isfinite(value) else 100 * value if self.condition.is_relative else value

    def _text(self, value: float) -> str:
        if self.condition.is_relative:
            return f"{100 * value:+.1f} %"
        if self.unit == "1":
            return f"{100 * value:+.2f} percentage points"
        sign = "-" if value < 0 else "+"
        return f"{sign}{quantity(abs(value), self.unit)}"


def read_condition(text: str, known: Sequence[str] = ()) -> Condition:
    """Return a condition such as `step_time > 5%`.

    Args:
        known: names of figures that the records have in addition to the usual ones.
    Raises: InputError for text that is not a condition, NotFoundError for a name that no record has.

    >>> read_condition("throughput < -5%").limit
    -0.05
    """
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise InputError(f"cannot read the condition {text!r}", "write NAME > LIMIT, such as 'step_time > 5%'")
    word, sign, number, unit = found.groups()
    names = {name: name for name in (*QUANTITIES, *known)}
    names |= {_short(name): name for name in reversed(names)}
    if word not in names:
        raise NotFoundError("figure", word, names, "`chronograd compare A B`")
    name = names[word]
    own = UNITS.get(QUANTITIES.get(name, ("", ""))[1], {})
    if unit != "%" and unit not in own:
        choice = " or ".join(f"{number}{u}" for u in ("%", *[f" {u}" for u in list(own)[:2]]))
        said = "has no unit" if unit is None else f"has the unit {unit!r}, but {word} has another unit"
        raise InputError(f"the limit of {text!r} {said}", f"write {choice}")
    limit = float(number.replace("−", "-")) * (0.01 if unit == "%" else own[unit])
    if unit == "%" and limit <= -1:
        raise InputError(f"{text!r} can never hold: nothing falls by 100 % or more", "write a smaller decrease")
    return Condition(" ".join(text.split()), name, sign == ">", limit, unit == "%")


def judge(
    condition: Condition,
    baseline: Sequence[Record],
    runs: Sequence[Record],
    others: Sequence[Sequence[Record]] = (),
    is_paired: bool = False,
) -> ConditionOutcome:
    """Return the outcome of a condition.

    Args:
        others: more runs, in groups of one job on one machine, which show the spread between runs.
        is_paired: the runs at the same position of both sides belong to one round; `others` are then not used.
    Raises: InputError if a record does not have the figure, or if pairs are incomplete.
    """
    if is_paired and not MIN_ROUNDS <= len(baseline) == len(runs):
        raise InputError(
            f"pairs need the same number of runs on each side, {MIN_ROUNDS} or more; you gave {len(baseline)} and {len(runs)}",
            "measure both jobs in turn with `chronograd compare jobs A B`",
        )
    sides = [[_figure(condition, record) for record in side] for side in (baseline, runs)]
    unit = sides[0][0].unit
    values = [[_value(condition, q) for q in side] for side in sides]
    change = float(np.mean(values[1]) - np.mean(values[0]))
    beside = [
        [_value(condition, record[condition.name]) for record in group if (record[condition.name].value or 0) > 0]
        for group in others
    ]
    between = _between_runs([*values, *beside])
    counts = [len(side) for side in values]
    told = f"{counts[0]} against {counts[1]} run{'s' if counts[1] > 1 else ''}"
    if is_paired:
        changes = np.subtract(values[1], values[0])
        single = float(np.std(changes, ddof=1)) / math.sqrt(2)
        half = _quantile(len(changes) - 1) * single * math.sqrt(2 / len(changes))
        told = f"{counts[0]} rounds of a run of each; interval from the spread of their changes"
    elif between is not None:
        single, freedom = between
        half = _quantile(freedom) * single * math.sqrt(sum(1 / n for n in counts))
        more = sum(len(group) for group in beside)
        told += f"; interval from their spread{f' and that of {more} other runs of the same job' if more else ''}"
    else:
        half, single, words = _assumed(condition, unit, (baseline, runs))
        told += words
    back = math.expm1 if condition.is_relative else float
    sign = 1 if condition.is_above else -1
    limit = math.log1p(condition.limit) if condition.is_relative else condition.limit
    # Half an interval is about two standard errors of the difference of two means.
    is_wide = half > abs(limit) > 0 and math.isfinite(half)
    return ConditionOutcome(
        condition,
        unit,
        change=back(change),
        low=back(change - half) if math.isfinite(half) else -math.inf,
        high=back(change + half) if math.isfinite(half) else math.inf,
        seen=back(limit + sign * half) if math.isfinite(half) else math.inf,
        runs_needed=max(2, math.ceil(2 * (2 * single / limit) ** 2)) if is_wide else None,
        spread=told,
        is_assumed=between is None and not is_paired,
    )


def differences_of_setting(a: Record, b: Record) -> list[str]:
    """Return words on differences between two records that could explain a change: hardware, counts, threads, backend."""
    pairs = [
        (name, getattr(a.cluster, name), getattr(b.cluster, name)) for name in ("ran_on", "count", "threads", "device")
    ]
    pairs += [("backend", a.backend, b.backend), ("kind", a.kind, b.kind)]
    return [f"{name} {left or 'unknown'} and {right or 'unknown'}" for name, left, right in pairs if left != right]


def _figure(condition: Condition, record: Record) -> Quantity:
    found = record[condition.name]
    if found.value is None:
        raise InputError(
            f"{condition.text!r} cannot be judged: {record.title} ({record.created}) has no "
            f"{_short(condition.name)}: {found.reason or 'no reason was given'}",
            "leave the condition out, or create records with this figure",
        )
    return found


def _value(condition: Condition, found: Quantity) -> float:
    assert found.value is not None
    if not condition.is_relative:
        return found.value
    if found.value <= 0:
        raise InputError(
            f"{condition.text!r} is not possible: there is no percentage of {found.value:g}", "write a difference"
        )
    return math.log(found.value)


def _spread(condition: Condition, record: Record) -> float | None:
    """Return the deviation between runs, estimated from one run alone; None if the run has none."""
    own = record[condition.name]
    assert own.value is not None
    found = _deviation(own)
    step = record[SPREAD_OF.get(condition.name, condition.name)]
    if found is None and step.value and (of_step := _deviation(step)) is not None:
        found = of_step / step.value * own.value
    if found is None and condition.name == "test_accuracy" and own.n:  # binomial, from the number of test images
        found = math.sqrt(own.value * (1 - own.value) / own.n)
    return None if found is None else found / own.value if condition.is_relative else found


def _deviation(found: Quantity) -> float | None:
    if found.std is not None:
        return found.std
    return None if found.low is None or found.high is None else (found.high - found.low) / (2 * Z80)


def _quantile(freedom: int) -> float:
    """Return half the width of the interval of a mean, in standard errors, by Student's t."""
    return float(stats.t.ppf(0.5 + CONFIDENCE / 2, freedom))


def _between_runs(groups: Sequence[Sequence[float]]) -> tuple[float, int] | None:
    """Return the pooled deviation of runs within groups and its degrees of freedom; None if there are fewer than two."""
    freedom = sum(len(group) - 1 for group in groups if group)
    if freedom < 2:
        return None
    squares = sum(float(np.sum((np.asarray(group) - np.mean(group)) ** 2)) for group in groups if group)
    return math.sqrt(squares / freedom), freedom


def _assumed(condition: Condition, unit: str, sides: Sequence[Sequence[Record]]) -> tuple[float, float, str]:
    """Return half the 95 % interval of the difference of means from an assumed spread, the deviation of a run, and words."""
    known = [[s for record in side if (s := _spread(condition, record)) is not None] for side in sides]
    is_timed = unit in TIMED_UNITS or condition.name in TIMED_NAMES
    least = 0.0
    if is_timed and all(record.kind == "measured" for side in sides for record in side):
        means = [
            1.0 if condition.is_relative else abs(float(np.mean([r.value(condition.name) for r in s]))) for s in sides
        ]
        least = BETWEEN_RUNS * max(means)
    elif unit == "B" and not all(known):
        return 0.0, 0.0, ", spread unknown"
    elif not all(known):
        return math.inf, math.inf, "; the spread between runs is unknown"
    deviations = [max(least, math.sqrt(float(np.mean(np.square(side)))) if side else 0.0) for side in known]
    half = math.sqrt(sum(d**2 / len(side) for d, side in zip(deviations, sides, strict=True)))
    quantile = float(stats.norm.ppf(0.5 + CONFIDENCE / 2))
    prior = f"; assumed spread between runs: {100 * BETWEEN_RUNS:.0f} %"
    words = "; interval from the spread within each run"
    if least and min(deviations) <= least:
        is_more = max(deviations) > least  # the steps of only one side deviate by more
        words = f"{prior}, or the spread within a run if that is larger" if is_more else prior
    return quantile * half, math.sqrt(sum(d**2 for d in deviations) / 2), words


def _short(name: str) -> str:
    return _SUFFIX.sub("", name)

"""Rows of results: selection, values of a column, means and spreads over seeds, and their words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from chronograd.units import signed as minus
from chronograd_lab.common.results import Row


def matching(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """Return the rows that have the wanted values."""
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def distinct(rows: Sequence[Row], key: str, **wanted: Any) -> list[Any]:
    """Return the values of a column of the rows that have the wanted values, in order of their first appearance."""
    return list(dict.fromkeys(row[key] for row in matching(rows, **wanted)))


def grouped(rows: Sequence[Row], *keys: str) -> dict[Any, list[Row]]:
    """Group rows by their value in a column, or by their values in several, in order of the first appearance.

    >>> grouped([{"a": 2, "b": 1}, {"a": 1, "b": 1}, {"a": 2, "b": 3}], "a")
    {2: [{'a': 2, 'b': 1}, {'a': 2, 'b': 3}], 1: [{'a': 1, 'b': 1}]}
    """
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        values = tuple(row[key] for key in keys)
        groups.setdefault(values if len(keys) > 1 else values[0], []).append(row)
    return groups


def mean(rows: Sequence[Row], key: str, **wanted: Any) -> float | None:
    """Return the mean of the known values in a column of the rows that have the wanted values; None if there are none."""
    values = [row[key] for row in matching(rows, **wanted) if row[key] is not None]
    return float(np.mean(values)) if values else None


def processor_s(row: Row) -> float | None:
    """Return the processor seconds of a run, user and system together; None if its row does not state them.

    >>> processor_s({"user_s": 2.5, "system_s": 0.5}), processor_s({"processor_s": 4.0}), processor_s({"seconds": 3.0})
    (3.0, 4.0, None)
    """
    user_s, system_s = row.get("user_s"), row.get("system_s")
    return row.get("processor_s") if user_s is None or system_s is None else float(user_s + system_s)


def cost(rows: Sequence[Row]) -> dict[str, float]:
    """Return the number of runs, and the sums of their seconds of training and of processor time.

    >>> cost([{"seconds": 3.0, "user_s": 2.5, "system_s": 0.5}, {"seconds": 1.0, "user_s": 1.0, "system_s": 0.0}])
    {'runs': 2, 'training_s': 4.0, 'processor_s': 4.0}
    """
    used = [(row["seconds"], row["user_s"] + row["system_s"]) for row in rows]
    return {"runs": len(rows), "training_s": sum(s for s, _ in used), "processor_s": sum(s for _, s in used)}


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds; for one seed the deviation is unknown."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        std = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(float(np.mean(values)), std, len(values))

    def __sub__(self, other: Spread) -> Difference:
        return difference(self, other)

    def __gt__(self, other: Spread) -> bool:
        """Return whether the mean is above the other one and the difference is significant.

        >>> Spread(0.82, 0.005, 3) > Spread(0.80, 0.005, 3), Spread(0.81, 0.02, 3) > Spread(0.80, 0.02, 3)
        (True, False)
        """
        apart = self - other
        return apart.is_seen and apart.mean > 0

    def __lt__(self, other: Spread) -> bool:
        """Return whether the mean is below the other one and the difference is significant."""
        return other > self

    def __format__(self, form: str) -> str:
        """Format the mean, with its deviation.

        >>> f"{Spread.of([0.5, 0.6]):%}, {Spread.of([100.0, 200.0]):.4g}, {Spread.of([100.0]):.4g}"
        '55.00 ± 7.07 %, 150 ± 70.7, 100'
        """
        if form == "%":
            return self.percent()
        return f"{self.mean:{form}}" + ("" if self.std is None else f" ± {self.std:.3g}")

    @property
    def low(self) -> float:
        return self.mean - (self.std or 0.0)

    @property
    def high(self) -> float:
        return self.mean + (self.std or 0.0)

    def percent(self) -> str:
        """Return the mean as percent, with its deviation.

        >>> Spread.of([0.5, 0.6]).percent(), Spread.of([0.5]).percent()
        ('55.00 ± 7.07 %', '50.00 %')
        """
        plus = "" if self.std is None else f" ± {100 * self.std:.2f}"
        return f"{100 * self.mean:.2f}{plus} %"

    def cells(self) -> list[str]:
        """Return cells of a table: the accuracy with its deviation, and the number of seeds."""
        return [self.percent(), str(self.n)]


def spread(rows: Sequence[Row], key: str = "accuracy", **wanted: Any) -> Spread:
    """Return the spread of the rows that have the wanted values. Raises ValueError if there is none."""
    values = [float(row[key]) for row in matching(rows, **wanted)]
    if not values:
        raise ValueError(f"no row has {wanted}")
    return Spread.of(values)


@dataclass(frozen=True)
class Difference:
    """The difference of two means over repeats: Welch's t-test, and the 95 % interval.

    Attributes:
        interval: None if either mean has fewer than two repeats, or none of them differ; also `p`.
        is_seen: whether the difference is significant: the interval, which is wide for few repeats, excludes zero.
        detectable: half of the interval: these repeats cannot detect a smaller difference.
    """

    mean: float
    interval: tuple[float, float] | None
    p: float | None
    least: int

    @property
    def is_seen(self) -> bool:
        return self.interval is not None and self.interval[0] * self.interval[1] > 0

    @property
    def detectable(self) -> float | None:
        return None if self.interval is None else (self.interval[1] - self.interval[0]) / 2

    def __format__(self, form: str) -> str:
        """Format the difference; `%` gives percentage points of accuracies.

        >>> f"{Spread(3, 1, 3) - Spread(8, 1, 3):.1f}"
        '−5.0 (−7.3 … −2.7, p = 0.0036)'
        """
        return self.points() if form == "%" else self.words(lambda value: minus(f"{value:+{form}}"))

    def points(self) -> str:
        """Return the difference of accuracies in words: percentage points, their interval, and whether it is significant."""
        return self.words(lambda value: minus(f"{100 * value:+.1f}"), " percentage points")

    def words(self, form: Callable[[float], str], unit: str = "") -> str:
        """Return the difference with its interval, or state that there is none. `form` writes a number with its sign."""
        mean = f"{form(self.mean)}{unit}"
        if self.interval is None or self.p is None:
            return f"{mean} (too few seeds to judge)"
        low, high = (form(value) for value in self.interval)
        verdict = "" if self.is_seen else f"; not significant with {seeds(self.least)}"
        return f"{mean} ({low} … {high}, p = {self.p:.2g}{verdict})"


def difference(a: Spread, b: Spread) -> Difference:
    """Return a minus b: B. L. Welch, The generalization of Student's problem, 1947.

    >>> difference(Spread(0.82, 0.005, 3), Spread(0.80, 0.005, 3)).points()
    '+2.0 percentage points (+0.9 … +3.1, p = 0.008)'
    >>> difference(Spread(0.81, 0.02, 3), Spread(0.80, 0.02, 3)).points()
    '+1.0 percentage points (−3.5 … +5.5, p = 0.57; not significant with 3 seeds)'
    >>> difference(Spread(0.30, 0.01, 2), Spread(0.41, 0.01, 2)).points()
    '−11.0 percentage points (−15.3 … −6.7, p = 0.0082)'
    """
    mean, least = a.mean - b.mean, min(a.n, b.n)
    if a.std is None or b.std is None or a.std + b.std == 0:
        return Difference(mean, None, None, least)
    parts = a.std**2 / a.n, b.std**2 / b.n
    error = float(np.sqrt(sum(parts)))
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (a.n - 1) + parts[1] ** 2 / (b.n - 1))
    half = error * float(stats.t.ppf(0.975, freedom))
    p = 2 * float(stats.t.sf(abs(mean) / error, freedom))
    return Difference(mean, (mean - half, mean + half), p, least)


def trend(xs: Sequence[float], ys: Sequence[float]) -> Difference:
    """Return the change of y for a step of 1 in x: the slope of a straight line through all runs, with its 95 % interval.

    If single values of x have too few runs to differ significantly, all of them together may show a direction.

    >>> trend([0, 0, 0, 1, 1, 1], [0.50, 0.51, 0.52, 0.53, 0.54, 0.55]).points()
    '+3.0 percentage points (+0.7 … +5.3, p = 0.021)'
    """
    fitted = stats.linregress(xs, ys)
    half = float(fitted.stderr * stats.t.ppf(0.975, len(xs) - 2))
    slope = float(fitted.slope)
    return Difference(slope, (slope - half, slope + half), float(fitted.pvalue), len(xs) // len(set(xs)))


def unresolved(accuracy: float, test_images: int) -> float:
    """Return the largest difference of two accuracies that `test_images` images cannot resolve at 95 %, each network tested on separate ones.

    >>> round(unresolved(0.5, 2000), 3)
    0.031
    """
    return float(1.96 * (2 * accuracy * (1 - accuracy) / test_images) ** 0.5)


def shown(value: float | None, form: Callable[[float], str], otherwise: str = "–") -> str:
    """Return a value as printed, or a replacement for an unknown one.

    >>> shown(0.5, "{:.2f}".format), shown(None, "{:.2f}".format)
    ('0.50', '–')
    """
    return otherwise if value is None else form(value)


def signed(points: float) -> str:
    """Return percentage points with their sign.

    >>> signed(1.24), signed(-0.04), signed(-3.4)
    ('+1.2', '+0.0', '−3.4')
    """
    return minus(f"{round(points, 1) + 0.0:+.1f}")


def plural(n: int, word: str) -> str:
    """Return a number with its word, in the plural if needed.

    >>> plural(1, "node"), plural(2, "node")
    ('1 node', '2 nodes')
    """
    return f"{n} {word}{'s' * (n > 1)}"


def seeds(n: int) -> str:
    return plural(n, "seed") if n > 1 else "one seed"


def ends(values: Iterable[float]) -> dict[str, float]:
    """Return the smallest and the largest value, for a page.

    >>> ends([3, 1, 2])
    {'least': 1, 'most': 3}
    """
    known = list(values)
    return {"least": min(known), "most": max(known)}


def six_digits(value: float) -> float:
    """Return a value rounded to six digits, as results and figures store it."""
    return float(f"{value:.6g}")


def upper(text: str) -> str:
    """Return text with a capital first letter."""
    return text[0].upper() + text[1:]

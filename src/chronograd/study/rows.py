"""Rows of results: those that match, the values of a column, means and spreads over seeds, and how these are worded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chronograd.study.results import Row


def matching(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """The rows that have the wanted values."""
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def distinct(rows: Sequence[Row], key: str, **wanted: Any) -> list[Any]:
    """Values of a column of the rows that have the wanted values, in the order in which they first come."""
    return list(dict.fromkeys(row[key] for row in matching(rows, **wanted)))


def grouped(rows: Sequence[Row], *keys: str) -> dict[Any, list[Row]]:
    """Rows by their value in a column, or by their values in several, in the order in which these first come.

    >>> grouped([{"a": 2, "b": 1}, {"a": 1, "b": 1}, {"a": 2, "b": 3}], "a")
    {2: [{'a': 2, 'b': 1}, {'a': 2, 'b': 3}], 1: [{'a': 1, 'b': 1}]}
    """
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        values = tuple(row[key] for key in keys)
        groups.setdefault(values if len(keys) > 1 else values[0], []).append(row)
    return groups


def mean(rows: Sequence[Row], key: str, **wanted: Any) -> float | None:
    """Of what is known in a column of the rows that have the wanted values; None if nothing is."""
    values = [row[key] for row in matching(rows, **wanted) if row[key] is not None]
    return float(np.mean(values)) if values else None


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds; of one seed the deviation is not known."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        std = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(float(np.mean(values)), std, len(values))

    @property
    def low(self) -> float:
        return self.mean - (self.std or 0.0)

    @property
    def high(self) -> float:
        return self.mean + (self.std or 0.0)

    def percent(self) -> str:
        """
        >>> Spread.of([0.5, 0.6]).percent(), Spread.of([0.5]).percent()
        ('55.00 ± 7.07 %', '50.00 %')
        """
        plus = "" if self.std is None else f" ± {100 * self.std:.2f}"
        return f"{100 * self.mean:.2f}{plus} %"

    def cells(self) -> list[str]:
        """Of a table: the accuracy with its deviation, and how many seeds."""
        return [self.percent(), str(self.n)]


def spread(rows: Sequence[Row], key: str = "accuracy", **wanted: Any) -> Spread:
    """Of the rows that have the wanted values. Raises ValueError if there is none."""
    values = [float(row[key]) for row in matching(rows, **wanted)]
    if not values:
        raise ValueError(f"no row has {wanted}")
    return Spread.of(values)


def is_apart(a: Spread, b: Spread) -> bool:
    """Whether two means differ by more than twice the standard error of their difference; unknown spreads are not."""
    if a.std is None or b.std is None:
        return False
    error = float(np.sqrt(a.std**2 / a.n + b.std**2 / b.n))
    return abs(a.mean - b.mean) > 2 * error


def points_apart(a: Spread, b: Spread) -> str:
    """The difference of two accuracies in words: points, and whether the seeds tell them apart.

    >>> points_apart(Spread(0.82, 0.005, 3), Spread(0.80, 0.005, 3))
    '+2.0 points, more than the seeds differ'
    """
    points = 100 * (a.mean - b.mean)
    sign = "+" if points >= 0 else "−"
    verdict = "more than the seeds differ" if is_apart(a, b) else "no more than the seeds differ"
    verdict = "from one seed" if a.std is None or b.std is None else verdict
    return f"{sign}{abs(points):.1f} points, {verdict}"


def shown(value: float | None, form: Callable[[float], str], otherwise: str = "–") -> str:
    """A value as it is printed, or what stands for one that is not known.

    >>> shown(0.5, "{:.2f}".format), shown(None, "{:.2f}".format)
    ('0.50', '–')
    """
    return otherwise if value is None else form(value)


def signed(points: float) -> str:
    """
    >>> signed(1.24), signed(-0.04)
    ('+1.2', '+0.0')
    """
    return f"{round(points, 1) + 0.0:+.1f}"


def plural(n: int, word: str) -> str:
    """
    >>> plural(1, "node"), plural(2, "node")
    ('1 node', '2 nodes')
    """
    return f"{n} {word}{'s' * (n > 1)}"


def seeds(n: int) -> str:
    return plural(n, "seed") if n > 1 else "one seed"


def upper(text: str) -> str:
    """With a capital letter at its beginning."""
    return text[0].upper() + text[1:]

"""Values that follow from a study's results in one or two steps, without the code of its page.

    leaves        each number of rows, curves and settings; the number of rows of each kind
    aggregates    mean, deviation, extremes, median and sum of a column, over rows that agree in one, two or all other columns
    pairs         difference and ratio of two of these of a column or of a row; Welch's interval and p of two sets of seeds

Nearly any number is by chance a ratio of two others. Therefore the results are varied: every measured number becomes slightly
larger or smaller, and the page is generated again. A number of a page is derived if the same step gives the printed value each time.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

from chronograd.answer import Answer
from chronograd_lab.common.results import Results, Row
from chronograd_lab.common.study import MISSING

Array = np.ndarray[Any, Any]
# A column with more values identifies rows rather than groups. Do not form pairs of more groups.
_MAX_GROUPS, _MAX_PAIRED, _MAX_TESTED, _MAX_COLUMNS = 60, 60, 20, 200
_REPEATS = ("seed", "round")
_SCALES = {
    "%": 1e-2, "points": 1e-2, "percentage points": 1e-2, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0, "d": 86400.0, "k": 1e3, "M": 1e6,
    "million": 1e6, "TFLOP/s": 1e12, "GFLOP/s": 1e9, "¢": 1e-2,
    **{f"{p}B{s}": 10.0 ** (3 * i) for i, p in enumerate("kMGT", 1) for s in ("", "/s")},
    **{f"{p}iB": 2.0 ** (10 * i) for i, p in enumerate("KMGT", 1)},
}  # fmt: skip
_DIGITS = r"[+−-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_UNITS = "|".join(sorted(map(re.escape, _SCALES), key=len, reverse=True))
_NUMBER = re.compile(rf"(?<![\w.,·–])(?<!\w[-−])({_DIGITS})(?:e(\d+))?(?:\s?({_UNITS})(?![\w/]))?(?!\w|-\w|[.,]\d)")
_YEAR = re.compile(r"(19|20)\d\d")
_DURATION = re.compile(r"(?<![\w.])(?:(\d+) d )?(?:(\d+) h)?(?: ?(\d+) min)?(?: ?(\d+) s)?(?!\w)")
_DURATION_S = (86400.0, 3600.0, 60.0, 1.0)


@dataclass(frozen=True)
class Number:
    """A printed number in its unit. `half` is half of its last digit."""

    text: str
    start: int
    value: float
    half: float
    scale: float = 1.0

    def is_printed_of(self, values: Array) -> Array:
        """Return which values would be printed like this, in its unit or its base unit."""
        low, high = abs(self.value) - 1.001 * self.half, abs(self.value) + 1.001 * self.half
        with np.errstate(invalid="ignore"):
            fits = (values >= low) & (values <= high)
            return fits | ((values >= self.scale * low) & (values <= self.scale * high))


def numbers(text: str) -> list[Number]:
    """Return the numbers of a text, durations in seconds. Skip parts of names and years.

    >>> [(n.value, n.half, n.scale) for n in numbers("ResNet-50 on 2 k80: 1,131.5 images/s, 2 h 05 min, −4.0 %")]
    [(2.0, 0.5, 0.01), (1131.5, 0.05, 0.01), (7500.0, 30.0, 1.0), (-4.0, 0.05, 0.01)]
    """
    found = []
    for match in _DURATION.finditer(text):
        given = [(float(digits), size) for digits, size in zip(match.groups(), _DURATION_S, strict=True) if digits]
        if len(given) > 1:
            found.append(Number(match[0], match.start(), sum(n * s for n, s in given), given[-1][1] / 2))
    taken = [range(n.start, n.start + len(n.text)) for n in found]
    for match in _NUMBER.finditer(text):
        if not any(match.start() in span for span in taken):
            if _YEAR.fullmatch(match[0]):
                continue
            digits = match[1].replace(",", "").replace("−", "-")
            power = 10.0 ** int(match[2] or 0)
            half = 0.5 * 10.0 ** -len(digits.partition(".")[2])
            scale = _SCALES.get(match[3] or "", 0.0)
            found.append(Number(match[0], match.start(), power * float(digits), power * half, scale))
    found = sorted(found, key=lambda number: number.start)
    # "1.21 to 6.76 GB/s", "3.4 points (1.2 … 5.6)": the unit is written once.
    for i in reversed(range(len(found))):
        if not found[i].scale:
            after = text[found[i].start + len(found[i].text) : found[i + 1].start] if i + 1 < len(found) else "."
            is_of_next = re.fullmatch(r" ?(±|…|to|and|,|or) ?", after)
            found[i] = replace(found[i], scale=found[i + 1].scale if is_of_next else 0.01)
    return found


def prose(page: Answer) -> list[str]:
    """Return every sentence of a page that results may fill in; section titles and notes on limits are excluded."""
    texts = [*page.opening(), *(f"{h.label}: {h.value} ({h.detail})" for h in page.highlights)]
    for section in page.sections:
        if section.title not in ("What fell short", MISSING):
            texts += [section.takeaway, section.intro, section.caption, *section.lines]
    return [text for text in texts if text]


# -- results, varied -------------------------------------------------------------------------------


def varied(results: Results, seed: int, by: float) -> Results:
    """Return the results with every measured number changed: floats with more digits than a person types, and large counts.

    Values from settings and numbers that identify rows do not change. Each column moves together, which changes means. Its values
    also move separately, by a third as much, which changes ratios.
    """
    rng = np.random.default_rng(seed)
    asked = set(_leaves(dict(results.settings)))
    moves: dict[str, float] = {}

    def change(value: Any, column: str) -> Any:
        if isinstance(value, dict):
            return {key: change(v, f"{column}.{key}") for key, v in value.items()}
        if isinstance(value, list):
            return [change(v, column) for v in value]
        if not _is_number(value) or not np.isfinite(value) or value in asked or not _is_measured(value):
            return value
        if column not in moves:
            moves[column] = rng.uniform(-1, 1)
        return type(value)(value * (1 + by * (moves[column] + rng.uniform(-1, 1) / 3)))

    curves = {
        name: {key: change(values, key) for key, values in columns.items()} for name, columns in results.curves.items()
    }
    return replace(results, rows=change(results.rows, ""), curves=curves)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_measured(value: float) -> bool:
    """Return whether it has more digits than a person types, or is a large count."""
    if value == int(value):
        return abs(value) >= 100
    return len(f"{value:.12g}".partition("e")[0].replace(".", "").strip("0-")) > 2


def _leaves(value: Any) -> Iterator[float]:
    if _is_number(value):
        yield float(value)
    elif isinstance(value, str):
        yield from (float(digits) for digits in re.findall(r"\d+(?:\.\d+)?", value))
    elif isinstance(value, dict):
        for one in value.values():
            yield from _leaves(one)
    elif isinstance(value, list | tuple):
        yield float(len(value))
        for one in value:
            yield from _leaves(one)


# -- derived values ----------------------------------------------------------------------------------


def derived(results: Results) -> tuple[Array, Array]:
    """Return all derived absolute values, NaN if undefined, in an order that does not depend on the values.

    The first array has counts and the results themselves, the second one the rest.
    """
    leaves = [*_leaves(results.rows), *_leaves(dict(results.settings)), *_leaves(results.environment)]
    asked = set(_leaves(dict(results.settings)))
    curves = [
        {"arm": name.rpartition("/")[0], "name": name}
        | {column: next((v for v in reversed(values) if v is not None), None) for column, values in columns.items()}
        for name, columns in results.curves.items()
    ]
    leaves += [len(values) for columns in results.curves.values() for values in columns.values()]
    parts = []
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # for groups without values
        for rows in (*results.rows.values(), curves):
            counts, further = _of_table(rows, asked) if rows else ([], [])
            leaves += counts
            parts += further
        plain = np.abs(np.concatenate(parts)) if parts else np.empty(0)
        first = np.abs(np.array(leaves, dtype=float))
        return first, np.concatenate([plain, 1 / plain, np.abs(1 - plain), 1 / first, np.abs(1 - first)])


def _of_table(rows: Sequence[Row], asked: set[float]) -> tuple[list[float], list[Array]]:
    names = list(dict.fromkeys(key for row in rows for key in row))
    keys = [name for name in names if _identifies_rows(rows, name, asked)]
    measured = [name for name in names if any(_is_number(row.get(name)) for row in rows)]
    columns = np.array([[float(r[n]) if _is_number(r.get(n)) else np.nan for r in rows] for n in measured], dtype=float)
    if not measured:
        return [], []
    a, b = (np.array(side) for side in np.nonzero(~np.eye(len(measured), dtype=bool)))
    both = np.concatenate([columns, columns[a] / columns[b], columns[a] - columns[b]])[:_MAX_COLUMNS]
    apart = tuple(key for key in keys if key not in _REPEATS)
    counts: list[float] = []
    parts = []
    for by in dict.fromkeys([(), *((key,) for key in keys), *itertools.combinations(keys, 2), apart]):
        groups: dict[Any, list[int]] = {}
        for i, row in enumerate(rows):
            groups.setdefault(tuple(row.get(key) for key in by), []).append(i)
        places = list(groups.values())
        counts += [len(groups), *map(len, places)]
        is_simple = len(by) < 2 or by == apart
        if len(places) > _MAX_GROUPS and not is_simple:
            continue
        parts += [_summaries((both if is_simple else columns)[:, own]) for own in places]
        if is_simple and 1 < len(places) <= _MAX_PAIRED:
            means = np.array([np.nanmean(columns[:, own], axis=1) for own in places])
            parts += [(means[:, None] - means[None]).ravel(), (means[:, None] / means[None]).ravel()]
        if by == apart and len(places) <= _MAX_TESTED:
            parts += [_tests(columns[:, one], columns[:, other]) for one, other in itertools.combinations(places, 2)]
    return counts, parts


def _identifies_rows(rows: Sequence[Row], name: str, asked: set[float]) -> bool:
    """Return whether a column identifies rows: names, flags and values from settings do, measurements do not."""
    values = [row.get(name) for row in rows]
    if any(isinstance(v, list | dict) for v in values):
        return False
    is_kind = all(v is None or isinstance(v, str | bool) or v in asked for v in values)
    return (is_kind or name in _REPEATS) and len(set(values)) <= _MAX_GROUPS


def _summaries(values: Array) -> Array:
    """Return summaries of each column over a group."""
    of = (np.nanmean, np.nanmin, np.nanmax, np.nanmedian, np.nansum)
    deviation = np.nanstd(values, axis=1, ddof=1) if values.shape[1] > 1 else np.full(len(values), np.nan)
    return np.concatenate([*(summary(values, axis=1) for summary in of), deviation])


def _tests(a: Array, b: Array) -> Array:
    """Bounds and half the width of Welch's 95 % interval, and p, of each column in two groups."""
    if min(a.shape[1], b.shape[1]) < 2:
        return np.full(4 * len(a), np.nan)
    test = stats.ttest_ind(a, b, axis=1, equal_var=False)
    interval = test.confidence_interval()
    found = (test.pvalue, interval.low, interval.high, (interval.high - interval.low) / 2)
    return np.concatenate([np.asarray(v, dtype=float) for v in found])


# -- pages -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """A number of a sentence.

    Attributes:
        printed: the number for the results, then for each variant with the same words in the sentence.
        follows: whether the same step gives all of these.
    """

    sentence: str
    printed: Sequence[Number]
    follows: bool

    @property
    def span(self) -> range:
        return range(self.printed[0].start, self.printed[0].start + len(self.printed[0].text))

    @property
    def place(self) -> str:
        """Return the words around it."""
        return self.sentence[max(0, self.span.start - 40) : self.span.stop + 40]


class Pages:
    """Pages of a study: one for its results, and some for variants of them."""

    def __init__(self, results: Results, page: Callable[[Results], Answer]) -> None:
        variants = [results, *(varied(results, seed, by) for seed, by in VARIANTS)]
        self.asked = set(_leaves(dict(results.settings)))
        self.prose = [list(dict.fromkeys(prose(page(one)))) for one in variants]
        self.known = [derived(one) for one in variants]

    def claims(self) -> list[Claim]:
        """Return every number of the prose. Skip sentences whose words change in a variant."""
        made = []
        by_words = [self._by_words(texts) for texts in self.prose]
        for key, sentences in by_words[0].items():
            alike = [i for i, others in enumerate(by_words) if len(others.get(key, ())) == len(sentences)]
            for place, sentence in enumerate(sentences):
                for printed in zip(*(numbers(by_words[i][key][place]) for i in alike), strict=True):
                    made.append(Claim(sentence, printed, follows(printed, [self.known[i] for i in alike])))
        return made

    def _by_words(self, texts: Sequence[str]) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for text in texts:
            groups.setdefault(self._words(text), []).append(text)
        return groups

    def _words(self, text: str) -> str:
        """Return a sentence without its numbers, except those in settings: "best at 0.01" is not "best at 0.1"."""
        for number in reversed(numbers(text)):
            if number.value not in self.asked:
                text = f"{text[: number.start]}#{text[number.start + len(number.text) :]}"
        return text


# Seeds and the largest relative change of measured numbers. It is visible in two digits. At least one change is too small to swap
# the larger of two values, on which the words of a sentence may depend.
VARIANTS = ((1, 0.05), (2, 0.02))


def follows(printed: Sequence[Number], known: Sequence[tuple[Array, Array]]) -> bool:
    """Return whether the same step gives each of the numbers, each from its results.

    A number that no variant changes must be in the results, or count something in them.
    """
    stays = len(printed) > 1 and len({number.value for number in printed}) == 1
    for kind in (0,) if stays else (0, 1):
        places = np.arange(len(known[0][kind]))
        for number, values in zip(printed, known, strict=True):
            places = places[number.is_printed_of(values[kind][places])]
        if len(places):
            return True
    return False

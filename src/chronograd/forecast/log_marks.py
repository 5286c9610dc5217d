"""Time stamps, places in the source and progress bars in a printed line."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from chronograd.forecast.log_times import BAR, WITHOUT_YEAR, seconds_of_year

_STAMP = re.compile(r"\d{4}[-/]\d\d[-/]\d\d[ T_,]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?(?!\d)")
# glog (I0301 10:00:00.123456), month and day, or a year of two digits: no full date, so times are seconds of the year.
_SHORT_STAMP = re.compile(
    r"(?<![\d/-])(?:[IWEF](\d\d)(\d\d)|(\d\d)/(\d\d)|\d\d-(\d\d)-(\d\d)) (\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)(?:\s{1,8}\d{1,8}(?= \w))?"
)
# A line of the program's source: `solver.cpp:228]`, `trainer:after_iter:261`.
_PLACE = re.compile(
    r"(?<![\w/.:-])(?:[\w/-]{1,80}+\.(?:py|cc|cpp|cu|h)|[A-Za-z_][\w.]{0,80}+:[A-Za-z_]\w{0,80}+):\d{1,7}+\]?(?![\w.])(?: \(\d{1,6}/\d{1,6}\))?"
)  # the count in round brackets after it is the rank of its process
# tqdm: `desc: 10%|█  | 50/500 [00:10<01:30, 5.0it/s, loss=0.5]`. Keras: `469/469 [====] - 12s 30ms/step` and `━━━━ 12s 30ms/step`.
_TQDM = re.compile(
    r":?\s{0,4}\d{1,3}%\|[^|]{0,400}+\|\s{0,4}(\d{1,12}+)/(\d{1,12}+) \[([\d:]{1,12}+)<[^,\]]{1,20}+,[^,\]]{1,20}+\]?"
)
_KERAS = re.compile(
    r"(\d{1,12}+)/(\d{1,12}+)\s{0,4}(?:\[[=>.]{1,400}+\]|[━╸╺\u2501]{1,400}+)(?:\s{0,3}-?\s{0,3}(\d{1,7}+)s \d{1,9}+[mµun]?s/(?:step|sample|epoch))?"
)
# The bar of pytorch-cifar and its copies: `[===>..]  Step: 38ms | Tot: 12s382ms | Loss: 1.3 | Acc: 50.1% (250/500) 39/391`.
_CIFAR = re.compile(
    r"\[=*+>?\.*+\]\s{1,4}Step: \S{1,30} \| Tot: (?P<time>\S{1,30}) \|(?P<values>.{0,300}?)\s(?P<count>\d{1,12}+)/(?P<total>\d{1,12}+)\s*+$"
)

ENOUGH_BARS = 8  # full bars that make a curve; with fewer, the values within an epoch are points, too


def stamp_of(text: str) -> dict[str, Any]:
    """Return the column of the first full time stamp in a text; empty without one.

    >>> stamp_of("[2026/03/01 10:00:00,5] start")
    {'timestamp': '2026-03-01T10:00:00.5'}
    """
    stamp = _STAMP.search(text)
    return {"timestamp": _iso(stamp[0])} if stamp else {}


def _iso(stamp: str) -> str:
    return f"{stamp[:10].replace('/', '-')}T{stamp[11:].replace(',', '.')}"


def without_marks(line: str) -> tuple[str, dict[str, Any]]:
    """Return the line without its time stamp, its place in a source file and its progress bar, and their columns.

    The epoch is None if the line belongs to the epoch of a line before it.
    """
    row: dict[str, Any] = {}
    if (stamp := _STAMP.search(line)) is not None:
        row["timestamp"] = _iso(stamp[0])
        line = _without(line, stamp)
    elif (stamp := _SHORT_STAMP.search(line)) is not None:
        month, day = (next(filter(None, stamp.group(*which))) for which in ((1, 3, 5), (2, 4, 6)))
        if (time := seconds_of_year(int(month), int(day), stamp[7].replace(",", "."))) is not None:
            row[WITHOUT_YEAR] = time
            line = _without(line, stamp)
    line = _PLACE.sub(" ", line)
    if (bar := _CIFAR.search(line)) is not None:
        return bar["values"], {
            **row,
            "epoch": None,
            "iter": bar["count"],
            "of iterations": bar["total"],
            BAR: bar["time"],
        }
    bar = _TQDM.search(line) or _KERAS.search(line)
    if bar is not None:
        row |= {"iter": bar[1], "of iterations": bar[2]}
        if bar[3] and (bar.re is _TQDM or bar[1] == bar[2]):  # within an epoch, Keras prints the remaining time there
            row[BAR] = bar[3] if ":" in bar[3] else f"{bar[3]}s"
        line = _without(line, bar)
    return line, row


def _without(line: str, match: re.Match[str]) -> str:
    return f"{line[: match.start()]}  {line[match.end() :]}"


def of_full_bars(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows without bars that are empty, and without those of a part of an epoch if enough full ones show the curve.

    A program redraws the bar of an epoch with its mean so far, so only the full bar has the result of the epoch. If two bars
    without names follow each other in every epoch, the second and shorter one is that of an evaluation; a note says so.
    """
    bars = [row for row in rows if BAR in row and "epoch" in row]
    full = Counter(row["of iterations"] for row in bars if row["iter"] == row["of iterations"])

    def is_partial(row: dict[str, Any]) -> bool:
        if BAR not in row or "epoch" not in row:
            return False
        return row["iter"] == "0" or (row["iter"] != row["of iterations"] and full[row["of iterations"]] >= ENOUGH_BARS)

    kept = [row for row in rows if not is_partial(row)]
    return kept, _name_second_bars(kept, full)


def _name_second_bars(rows: list[dict[str, Any]], full: Counter[str]) -> list[str]:
    """Give the shorter one of two bars that alternate the split `test`, if nothing names a split; return a note on it."""
    bars = [row for row in rows if BAR in row and row["of iterations"] in full]
    totals = [row["of iterations"] for row in bars]
    if len(full) != 2 or len(totals) < 2 * ENOUGH_BARS or any(row.get("mode") for row in bars):
        return []
    longest, shortest = sorted(full, key=int, reverse=True)
    if totals != [longest, shortest] * (len(totals) // 2) + [longest] * (len(totals) % 2):
        return []
    for row in bars:
        row["mode"] = "train" if row["of iterations"] == longest else "test"
    return [f"every epoch has two bars, of {longest} and of {shortest} batches: the second one is read as the test"]

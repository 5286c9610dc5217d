"""Rows from the lines that programs print while they train.

A line is read in this order:

    an object        JSON or a Python dictionary at its end
    a known format   lines that words cannot explain, such as those of darknet (`log_formats`)
    a header         names without numbers, one of them a metric or a counter
    cells            the values below a header
    pairs            a name and the number after it: `Epoch: [3]`, `loss=0.52`, `elapsed 0.25h`, `correct: 90/100`
    parts            pairs after a name in brackets or a split: `[train] loss=0.5, [valid] loss=0.6`, `tot_loss[loss=0.5]`

Time stamps and progress bars are removed first (`log_marks`). The last word of a name decides
whether its number is a counter. A number keeps its unit or per cent sign. Consecutive lines with one pair each form one row until a
name repeats.

A row is stored if it has a counter or a metric. Its `mode` is the split that the line names. A line without a counter and
without a split belongs to the last split named.

Lines come from others, so every pattern takes linear time: repeats are bounded or possessive.
"""

from __future__ import annotations

import ast
import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from chronograd.forecast.log_formats import SPACY, known_line, plain, spelled
from chronograd.forecast.log_marks import of_full_bars, stamp_of, without_marks
from chronograd.forecast.log_tables import LogRows, is_number
from chronograd.forecast.log_times import UNITS, WITHOUT_YEAR
from chronograd.forecast.log_words import (
    HELD_OUT,
    NO_SPLIT,
    STEPS,
    counter_of,
    metric_of,
    split_rank,
    without_split,
    words,
)

_SPLIT_NAME = "train|training|val|valid|validation|cv|eval|evaluation|test|testing"
_SPLIT = re.compile(rf"(?<![A-Za-z])({_SPLIT_NAME})(?![A-Za-z])", re.IGNORECASE)
_SPLIT_ALONE = re.compile(rf"\W*+{_SPLIT.pattern}(?: (?:set|phase|results|metrics|loop))?\W*+", re.IGNORECASE)
_BOX = re.compile(r"\s{0,9}\|([^|]{1,120}+)\|([^|]{1,120}+)\|\s{0,9}")  # | name | value |
_WORD = r"[\w@/.()%'-]{0,63}+"
# A unit after a blank may be the name of the next number: `loss 0.7 seconds: 3.2`.
_UNIT = rf"(?:{'|'.join(sorted(UNITS, key=len, reverse=True))})(?![A-Za-z/]|\s{{0,3}}[:=])"
_UNIT = rf"(?:{_UNIT}|\s{_UNIT}(?!\s{{1,3}}[\d.]))"
_NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3}){1,6}+(?:\.\d{1,30}+)?+|\d{1,30}+(?:\.\d{0,30}+)?+|\.\d{1,30}+)(?:[eE][-+]?\d{1,4}+)?+"
    r"|[-+]?(?:nan|NaN|NAN|inf|Inf|INF|infinity|Infinity)"
)
_DURATION = rf"{_UNIT}(?:(?: and |[ ,]{{0,2}})\d{{1,4}}(?:\.\d{{1,6}})?{_UNIT}){{0,3}}"
_PAIR = re.compile(
    rf"(?<![\w.])(?P<name>[A-Za-z]{_WORD}(?: [A-Za-z(]{_WORD}){{0,3}}+)(?P<sign>[\s:=#\[]{{1,40}}+)"
    rf"(?:(?P<clock>\d{{1,3}}:\d\d(?::\d\d)?(?:\.\d{{1,9}}+)?+)|(?P<number>{_NUMBER})"
    rf"(?:\s{{0,4}}/\s{{0,4}}(?P<total>\d{{1,12}}+)|(?P<unit>\s?%|{_DURATION}))?)(?!\w|\.\d|:\d)"
)
_MEAN = re.compile(rf"\s{{0,4}}\(\s{{0,6}}({_NUMBER})\)")  # of an evaluation, after the value of its last batch
_ORDINAL = re.compile(r"(?<![\w./])(\d{1,9}+)(?:(?:st|nd|rd|th) )?epoch\b", re.IGNORECASE)  # `7epoch results:`
_PART = re.compile(
    rf"(?P<group>[A-Za-z]\w{{0,40}}+)\[(?=[a-z_]{{1,40}}+=)|\[(?P<bracket>[A-Za-z_]{{2,20}}+)\]"
    rf"|(?<![\w/.-])(?P<split>{_SPLIT_NAME})(?: set)?\s?(?::|\||\s-\s)(?!\s{{0,3}}[-+\d.])|(?P<end>\])",
    re.IGNORECASE,
)
_BEFORE_COUNT = re.compile(r" {1,4}\[ {0,6}\d{1,12}/")
_COUNT = re.compile(r"(?<![\w.,/:-])(\d{1,12}+)\s{0,4}/\s{0,4}(\d{1,12}+)(?![\w.,/:-])")
_FIRST_COUNT = re.compile(
    r"\s{0,9}\[?(\d{1,12}+)\]?:?\s{1,9}(?=[A-Za-z][\w@/.'-]{0,63}+(?: [A-Za-z][\w@/.'-]{0,63}+)?\s?[:=])"
)  # [12] valid-auc:0.9; 12: learn: 0.6
_VALUE = re.compile(r"[-+]?\.?\d[\w.,/%+-]{0,40}+:?|-?nan|-?inf", re.IGNORECASE)
LONGEST_HEADER = 2000  # letters
MOST_LINES_OF_OBJECT = 60
_ITEM = re.compile(r"\s{0,20}[\"'][^\"']{1,100}[\"']\s{0,3}:\s{0,3}[^{}\[\]]{1,200}")  # of an object on several lines
_BEST = re.compile(r"(?<![\w-])best (?:metric|result|score|model|performance)s?\s?[,:]", re.IGNORECASE)
_BEFORE_NAME = re.compile(r"info|debug|warning|[a-z]{1,12}/s(?:ec)?(?:/[a-z]{1,12})?|s/[a-z]{1,12}", re.IGNORECASE)
_MAY_REPEAT = {"mode", "of iterations", "timestamp", WITHOUT_YEAR}  # within a block
_RESULTS = {"score", "bleu", "psnr", "fid", "recall", "precision"}  # results whose names no metric has
Row = dict[str, Any]


def rows_of_lines(text: str) -> LogRows:
    """Return rows from the lines about training; no rows if there are none."""
    reader = _Reader()
    for line in _with_whole_objects([line for line in text.split("\n") if line.strip()]):
        reader.read(line)
    reader.end_block()
    return LogRows(*of_full_bars(reader.rows))


def _with_whole_objects(lines: list[str]) -> Iterator[str]:
    """Yield lines, with an object that is printed on several lines as one.

    >>> list(_with_whole_objects(["{'loss': 0.5,", " 'acc': 0.9}", "end {"]))
    ["{'loss': 0.5, 'acc': 0.9}", 'end {']
    """
    at = 0
    while at < len(lines):
        line, at = lines[at], at + 1
        _, bracket, first = line.rpartition("{")
        if bracket and (not first.strip() or _ITEM.fullmatch(first)):
            last = at
            while last < min(len(lines), at + MOST_LINES_OF_OBJECT) and _ITEM.fullmatch(lines[last]):
                last += 1
            end = lines[last].strip() if last < len(lines) else ""
            if end == "}" or (end.endswith("}") and _ITEM.fullmatch(end[:-1])):
                line = " ".join([line, *map(str.strip, lines[at : last + 1])])
                at = last + 1
        yield line


class _Reader:
    """The rows so far, and the parts of earlier lines that later lines depend on.

    Attributes:
        split: the last split named. epoch: the last one named. headers: the names of the cells of the next lines, separated in either way. label: the first
        cell of its first row, if that is a word. block: the row of consecutive lines with one pair each. group: the heading of a
        box, such as `rollout/`.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.split = self.group = ""
        self.epoch: str | None = None
        self.headers: list[list[str]] = []
        self.label: str | None = None
        self.block: Row = {}

    def read(self, line: str) -> None:
        line = plain(line)
        if (known := _of_object(line) or known_line(line)) is not None:
            self._add(dict(known))
            return
        line = self._unboxed(line)
        if (split := _SPLIT_ALONE.fullmatch(line)) is not None:
            self.end_block()
            self.split = split[1].lower()
            return
        line, row = without_marks(line)
        if "epoch" in row:
            row["epoch"] = self.epoch
        if headers := _headers(line):
            self.headers, self.label = headers, None
        elif (cells := self._cells(line.replace("|", " ").split())) is not None:
            self._add(row | cells if cells else {})
        else:
            self._read_pairs(line, row)

    def end_block(self) -> None:
        block, self.block = self.block, {}
        if _is_row(block):
            self.rows.append(block)

    def _add(self, row: Row) -> None:
        if row:
            self.end_block()
            self.rows.append(row)

    def _unboxed(self, line: str) -> str:
        """Return `name: value` for a line of a box; its group comes before the name. Empty for the heading of a group."""
        box = _BOX.fullmatch(line)
        if box is None:
            if line.strip("-=# ") == "":
                self.group = ""
            return line
        name, value = box[1].strip(), box[2].strip()
        if not value and name.endswith("/"):
            self.group = name
            return ""
        return f"{self.group}{name}: {value}"

    def _cells(self, cells: list[str]) -> Row | None:
        """Return the values under the last header; empty for a row of a part of the data. None if the cells do not fit it."""
        label = cells.pop(0) if cells and not _VALUE.fullmatch(cells[0]) else None
        if (
            len(cells) < 2
            or not all(map(_VALUE.fullmatch, cells))
            or (label and (metric_of(label) or counter_of(label)))
        ):
            return None
        widths = (len(cells) + 1, len(cells)) if label else (len(cells),)  # the label may have a name, too
        names = next((names for width in widths for names in self.headers if len(names) == width), None)
        if names is None:
            return None
        names = names[len(names) - len(cells) :]
        self.label = self.label or label
        if label != self.label:  # such as the rows of single classes below that of all
            return {}
        row: Row = {}
        for name, cell in zip(names, cells, strict=True):
            count, _, total = cell.partition("/")
            counter = counter_of(name, has_total=True)
            if counter is not None and count.isdecimal() and (not total or total.isdecimal()):
                row.setdefault(counter, count)
            elif is_number(cell.rstrip(":")):
                row.setdefault(name, cell.rstrip(":"))
        return row

    def _read_pairs(self, line: str, row: Row) -> None:
        pairs = list(_PAIR.finditer(line))
        place = _place(line, pairs, row)
        parts = _parts(line)
        mode = "" if parts or self.group else self._mode(line, pairs, is_placed=bool(place))
        if mode in HELD_OUT and place.get("of iterations") not in (None, "", place.get("iter")):
            self.split = mode  # progress within an evaluation
            return
        row |= place
        self.epoch = row.get("epoch", self.epoch)
        is_end = mode in HELD_OUT and bool(place.get("of iterations"))
        best = _BEST.search(line)  # after it are the best so far, not a point
        for pair in pairs:
            if not _is_count(pair) and pair["name"] not in ("epoch", "iter"):
                first, _, rest = pair["name"].partition(" ")
                name = rest if rest and first.lower() == mode else pair["name"]
                name = _own_name(name)
                name = f"best {name}" if best is not None and pair.start() >= best.end() else name
                mean = _MEAN.match(line, pair.end()) if is_end else None
                row.setdefault(_in_part(parts, pair.start(), name), _value(pair) if mean is None else mean[1])
        if len(pairs) == 1 and not _around(line, pairs[0]).strip(" \t]|*->:"):
            self._extend_block(row, mode)
        elif _is_row(row):
            self._add({**row, "mode": mode} if mode or self.split else row)
        else:
            return
        self.split = "" if parts else mode

    def _mode(self, line: str, pairs: list[re.Match[str]], is_placed: bool) -> str:
        """Return the split of a line: one named before its first value, or the last one named if the line has no counter."""
        values = [pair for pair in pairs if not _is_count(pair)]
        first = values[0] if values else None
        before = line if first is None else line[: first.start()]
        if first is not None and not metric_of(first["name"]):  # `Test net output #0`, but not `test_time`
            before += " ".join(word for word in first["name"].split() if word.isalpha())
        if (named := _SPLIT.search(before)) is not None:
            return named[1].lower()
        word = first["name"].partition(" ")[0] if first is not None else ""
        if (
            len(values) > 1
            and _SPLIT.fullmatch(word)
            and all(split_rank(pair["name"]) == NO_SPLIT for pair in values[1:])
        ):
            return word.lower()  # `train Loss: 0.5 Acc: 0.8`
        if line.lstrip().startswith("* ") and self.split not in HELD_OUT:  # the summary of an evaluation
            return "val"
        return "" if is_placed else self.split

    def _extend_block(self, row: Row, mode: str) -> None:
        if mode or self.split:
            row = {**row, "mode": mode}
        is_other = self.block.get("mode", mode) != mode
        if is_other or (row.keys() & self.block.keys()) - _MAY_REPEAT:
            self.end_block()
        self.block |= row


def _of_object(line: str) -> Row | None:
    """Return the JSON object, or Python dictionary, at the end of a line, with the time stamp before it."""
    before, bracket, after = line.strip().partition("{")
    if not bracket or not after.endswith("}"):
        return None
    try:
        row = json.loads("{" + after)
    except (ValueError, RecursionError):
        try:
            row = ast.literal_eval("{" + after)  # accepts literals only; no code runs
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
    if not isinstance(row, dict) or not all(isinstance(name, str) for name in row):
        return None
    if "epoch" not in row:  # a bar before it may be that of an evaluation
        return {**stamp_of(before), **row}
    return {**without_marks(before)[1], **row}


def _headers(line: str) -> list[list[str]]:
    """Return the names of a header, separated by two blanks and by one; nothing for another line."""
    if len(line) > LONGEST_HEADER or any(map(_VALUE.fullmatch, line.split())):
        return []
    line = spelled(line.replace("|", "  ")).strip()
    headers = [[cell.strip(": ") for cell in cells] for cells in (re.split(r"\s{2,}", line), line.split())]
    headers = [[SPACY.get(name, name) for name in names] if SPACY.keys() <= set(names) else names for names in headers]
    headers = [
        names for names in headers if len(names) > 1 and any(metric_of(name) or counter_of(name) for name in names)
    ]
    return [] if _PAIR.search(line) else headers


def _parts(line: str) -> list[tuple[int, str]]:
    """Return where the parts of a line begin, and the prefix of their names; nothing unless it names two parts.

    >>> [prefix for _, prefix in _parts("[train] loss=0.5, [valid] loss=0.6")], _parts("val: loss 0.6")
    (['train/', 'valid/'], [])
    """
    parts: list[tuple[int, str]] = []
    is_group = False
    for part in _PART.finditer(line):
        name = part["group"] or part["bracket"] or part["split"]
        if name is None and not is_group:
            continue
        is_group = part["group"] is not None
        parts.append((part.end(), f"{name.lower()}/" if name else ""))
    names = [prefix.rstrip("/") for _, prefix in parts if prefix]
    is_of_splits = len({name for name in names if _SPLIT.fullmatch(name)}) > 1
    is_of_metrics = len(set(names)) > 1 and any(metric_of(name) for name in names)
    return parts if is_of_splits or is_of_metrics else []


def _in_part(parts: list[tuple[int, str]], place: int, name: str) -> str:
    """Return a name with the prefix of the last part that begins before it: `valid/acc`, and `tot_loss` for its loss."""
    at = bisect_right(parts, place, key=itemgetter(0))
    prefix = parts[at - 1][1] if at else ""
    return prefix[:-1] if prefix[:-1].endswith(name) else prefix + name


def _around(line: str, pair: re.Match[str]) -> str:
    """Return the line without a pair, and without the mean or difference in brackets after its number."""
    mean = _MEAN.match(line, pair.end())
    return line[: pair.start()] + line[(mean or pair).end() :]


def _own_name(name: str) -> str:
    """Return a name without quotes, and without the level of a logger or the unit of a speed, and the words before it.

    >>> _own_name("CV info cv_loss"), _own_name("s/gpu LR"), _own_name("total loss'"), _own_name("img/s")
    ('cv_loss', 'LR', 'total loss', 'img/s')
    """
    parts = name.strip("'").split(" ")
    last = max((at for at, word in enumerate(parts[:-1]) if _BEFORE_NAME.fullmatch(word)), default=-1)
    return " ".join(parts[last + 1 :])


def _counter(pair: re.Match[str]) -> str | None:
    """Return the counter that a pair's name names. A split alone, before a count, is that of an epoch: `Train: 3 [50/100]`."""
    if without_split(pair["name"]) == "" and not pair["total"] and _BEFORE_COUNT.match(pair.string, pair.end()):
        return "epoch"
    return counter_of(pair["name"], bool(pair["total"]))


def _is_count(pair: re.Match[str]) -> bool:
    """Return whether a pair is a counter, or a count of a total that is no metric: `Test: [10/196]`."""
    if pair["clock"] or pair["unit"]:
        return False
    counter = _counter(pair)
    if counter == "iter" or (counter is None and pair["total"]):
        return pair["number"].rstrip(".").isdecimal() and (counter is not None or metric_of(pair["name"]) is None)
    return counter is not None and is_number(pair["number"]) and not pair["number"].startswith("-")


def _place(line: str, pairs: list[re.Match[str]], row: Row) -> Row:
    """Return the columns of the line's counters: `epoch`, `iter` and `of iterations`. A count in the text precedes that of a bar."""
    place: Row = {}
    for pair in filter(_is_count, pairs):
        if _counter(pair) == "epoch":
            place.setdefault("epoch", _count_of(pair))
        elif "global" in words(pair["name"]) and not pair["total"]:  # next to that of the epoch
            place["global step"] = _count_of(pair)
        elif "iter" not in place:
            place |= {"iter": _count_of(pair), "of iterations": pair["total"] or ""}
    if not place and (ordinal := _ORDINAL.search(line)) is not None:
        place["epoch"] = ordinal[1]
    if "iter" not in place and "iter" not in row:
        ends = [0, *(pair.end() for pair in pairs)]
        rest = "  ".join(line[a:b] for a, b in zip(ends, [*(pair.start() for pair in pairs), len(line)], strict=True))
        if (count := _COUNT.search(rest)) is not None:
            place |= {"iter": count[1], "of iterations": count[2]}
        elif not place and (first := _FIRST_COUNT.match(line)) is not None:
            place |= {"iter": first[1], "of iterations": ""}
    return place or {name: row[name] for name in ("iter", "of iterations") if name in row}


def _count_of(pair: re.Match[str]) -> str:
    """Return the digits of a count, without separators of thousands and the full stop of a sentence."""
    return pair["number"].replace(",", "").rstrip(".")


def _value(pair: re.Match[str]) -> Any:
    """Return the number as text with its unit, or a share: 90/100."""
    if pair["clock"]:
        return pair["clock"]
    number = pair["number"].replace(",", "")
    if pair["total"]:
        return float(number) / max(float(pair["total"]), 1.0)
    return number + (pair["unit"] or "").strip()


def _is_row(row: Row) -> bool:
    """Return whether a row has a counter or a metric."""
    return "epoch" in row or "iter" in row or any(metric_of(name) or _is_worth_a_row(words(name)) for name in row)


def _is_worth_a_row(text: str) -> bool:
    return text in STEPS or not _RESULTS.isdisjoint(text.split())

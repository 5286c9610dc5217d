"""Tables in text. The delimiter, the header and the decimal sign are detected from the lines.

Delimiters are tabs, semicolons, bars, commas or blanks. Lines before the header, comments, rules and repeated headers are
skipped.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chronograd.errors import FileFormatError
from chronograd.forecast.log_times import UNITS

DELIMITERS = ("\t", ";", "|", ",", " ")  # in order of preference if several fit the same number of lines
NUMERIC_ROWS = 0.6  # share of rows, or of cells between blanks, with numbers: below it the text is prose
SAMPLE = 2000  # lines that show the delimiter of a longer table
MAX_OTHER_LINES = 0.1  # share of lines with another number of cells between blanks
MISSING = {"", "-", "–", "na", "n/a", "none", "null"}
_RULE = re.compile(r"[-|+=:\s]++")
# Used on cells with `fullmatch`. Possessive repeats: the cell of a stranger may be long.
_NUMBER = re.compile(r"[-+]?(\d[\d,]*+(\.\d*+)?|\.\d++)(e[-+]?\d++)?\s*+%?|[-+]?(nan|inf(inity)?)", re.IGNORECASE)
_POINT = re.compile(r"[-+]?\d*+\.\d++(e[-+]?\d++)?\s*+%?", re.IGNORECASE)
_COMMA = re.compile(r"[-+]?\d++,\d++(e[-+]?\d++)?\s*+%?", re.IGNORECASE)
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})++(\.\d++)?\s*+%?")

Row = dict[str, str]
Cells = tuple[int, list[str]]  # a line's number and its cells


@dataclass
class LogRows:
    """Rows of a text, each by the names of its columns, and notes on omitted lines."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def is_number(cell: str) -> bool:
    """Return whether a cell is a number. It may have a decimal comma or a per cent sign.

    >>> [is_number(cell) for cell in ("1.5e-3", "0,42", "91.2 %", "NaN", "loss", "")]
    [True, True, True, True, False, False]
    """
    return _NUMBER.fullmatch(cell) is not None


def table_of(text: str, path: Path = Path("the table")) -> LogRows | None:
    """Return the rows of a table; None if the text is not a table. Raises FileFormatError for a table that cannot be read.

    >>> table_of("epoch;loss\\n1;0,5\\n2;0,4").rows
    [{'epoch': '1', 'loss': '0.5'}, {'epoch': '2', 'loss': '0.4'}]
    """
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    comments = [(number, line.strip().lstrip("#")) for number, line in lines if line.lstrip().startswith("#")]
    body = [(number, line) for number, line in lines if not line.lstrip().startswith("#") and not _RULE.fullmatch(line)]
    delimiter = max(DELIMITERS, key=lambda one: _fitting(body, one))
    cells = _without_last_separators([(number, _cells(line, delimiter)) for number, line in body])
    width = _width(cells)
    cells = _with_one_header(cells, width)
    at = next((i for i, (_, row) in enumerate(cells) if len(row) == width and _is_header(row)), None)
    header = None if at is None else cells[at][1]
    if header is None:  # numbers below a comment that names them
        named = [row for _, line in comments for row in (_cells(line, delimiter), line.split()) if len(row) == width]
        header, at = (named[-1], -1) if named and _is_header(named[-1]) else (None, -1)
    if header is None or at is None:
        _check_shape(cells, delimiter, path)
        return None
    if delimiter == " " and sum(len(row) != width for _, row in cells) > MAX_OTHER_LINES * len(cells):
        return None  # text with several small tables
    found = _read(cells[at + 1 :], header, is_whole=text.endswith("\n"))
    if not _is_numeric(found.rows, of_cells=delimiter == " "):
        return None
    _one_decimal_sign(found.rows, delimiter)
    return found


def _check_shape(cells: Sequence[Cells], delimiter: str, path: Path) -> None:
    """Raise FileFormatError for numbers without a header, and for a header that most rows do not fit."""
    first, rows = (cells[0][1], [row for _, row in cells[1:]]) if cells else ([], [])
    numeric = [row for row in rows if len(row) > 1 and all(is_number(cell) or cell.lower() in MISSING for cell in row)]
    if delimiter == " " or len(numeric) < NUMERIC_ROWS * len(rows) or not numeric:
        return
    if len(first) == len(numeric[0]) and all(map(is_number, first)):
        raise FileFormatError(
            f"the first line of {path} is numbers, so the table has no header",
            "add a first line such as epoch,time,loss",
        )
    widths = Counter(len(row) for row in rows if len(row) != len(first))
    if widths and len(first) > 1 and _is_header(first):
        width, count = widths.most_common(1)[0]
        raise FileFormatError(
            f"{count:,} of {len(rows):,} rows of {path} have {width} cells, and its header has {len(first)}",
            "write a header with a name for each cell; put rows of another run in another file",
        )


def _cells(line: str, delimiter: str) -> list[str]:
    if delimiter == " ":
        return line.split()
    if delimiter == "|":
        line = line.strip().strip("|")
    try:
        cells = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:
        cells = line.split(delimiter)
    return [cell.strip() for cell in cells]


def _without_last_separators(cells: list[Cells]) -> list[Cells]:
    """Drop the empty cell after a separator that ends most rows, but not the first one.

    >>> _without_last_separators([(1, ["epoch", "loss"]), (2, ["1", "0.5", ""]), (3, ["2", "0.4", ""])])
    [(1, ['epoch', 'loss']), (2, ['1', '0.5']), (3, ['2', '0.4'])]
    """
    width = len(cells[0][1]) if cells else 0
    if 2 * sum(len(row) == width + 1 and not row[width] for _, row in cells) <= len(cells):
        return cells
    return [(number, row if any(row[width:]) else row[:width]) for number, row in cells]


def _fitting(lines: Sequence[tuple[int, str]], delimiter: str) -> int:
    """Return the number of lines with the most common number of cells above one; a delimiter of blanks must fit half of all
    lines.
    """
    lines = lines[:: 1 + len(lines) // SAMPLE]
    widths = Counter(len(_cells(line, delimiter)) for _, line in lines if delimiter in line or delimiter == " ")
    count = max((count for width, count in widths.items() if width > 1), default=0)
    return min(count, 1) if delimiter == " " and count < len(lines) / 2 else count


def _width(cells: Sequence[Cells]) -> int:
    widths = Counter(len(row) for _, row in cells)
    return max(widths, key=lambda width: (min(width, 2), widths[width]), default=0)


def _is_header(cells: Sequence[str]) -> bool:
    named = [cell for cell in cells if cell]
    return bool(named) and len(set(named)) == len(named) and not any(is_number(cell) for cell in named)


def _with_one_header(cells: list[Cells], width: int) -> list[Cells]:
    """Return lines with one header if its names go on in a second line, such as `Validation` above `Accuracy`. A second line in
    brackets is a form: `(hh:mm:ss)`.

    >>> _with_one_header([(1, ["Epoch", "Batch", "Batch"]), (2, ["", "Loss", "Rate"]), (3, ["1", "2", "3"])], 3)
    [(2, ['Epoch', 'Batch Loss', 'Batch Rate']), (3, ['1', '2', '3'])]
    """
    for at, ((_, above), (number, below)) in enumerate(itertools.pairwise(cells[:SAMPLE])):
        if len(above) != width or len(below) != width or width < 2:
            continue
        if any(map(is_number, (*above, *below))) or _is_header(above) or all(below) or not all(above):
            return cells
        names = [
            f"{a} {b}".strip() if not b.startswith("(") or b.strip("()") in UNITS else a
            for a, b in zip(above, below, strict=True)
        ]
        return [*cells[:at], (number, names), *cells[at + 2 :]] if _is_header(names) else cells
    return cells


def _is_numeric(rows: Sequence[Row], *, of_cells: bool) -> bool:
    if of_cells:
        cells = [cell for row in rows for cell in row.values()]
        return bool(cells) and sum(map(is_number, cells)) >= NUMERIC_ROWS * len(cells)
    return bool(rows) and sum(any(map(is_number, row.values())) for row in rows) >= NUMERIC_ROWS * len(rows)


def _read(cells: Sequence[Cells], header: list[str], *, is_whole: bool) -> LogRows:
    """Return the rows below a header. The header may repeat, or change if the run continues with other columns."""
    found = LogRows()
    odd: list[int] = []
    for at, (number, row) in enumerate(cells):
        if row == header:
            found.notes.append(f"the header is repeated in line {number:,} and skipped")
        elif len(row) > 1 and all(row) and _is_header(row) and len(set(row) & set(header)) > 1:
            header = row
            found.notes.append(f"from line {number:,} on the columns are {', '.join(row)[:120]}")
        elif len(row) < len(header) and at == len(cells) - 1 and not is_whole:
            found.notes.append(f"line {number:,} is cut off, so it is left out")
        elif len(row) > len(header) and any(row[len(header) :]):
            odd.append(number)
        elif at == len(cells) - 1 and len(found.rows) > 1 and _is_text(row):
            found.notes.append(f"line {number:,} is text, so it is left out")
        else:
            found.rows.append({name: cell for name, cell in zip(header, row, strict=False) if name})
    if odd:
        found.notes.append(left_out(odd, "is longer than the header", "are longer than the header"))
    return found


def _is_text(cells: Sequence[str]) -> bool:
    """Return whether most cells are words, such as those of a closing line below a table.

    >>> _is_text("Total training time is 1:31:02".split()), _is_text(["59", "1:31:02", "0.5"])
    (True, False)
    """
    return 2 * sum(cell.isalpha() and not is_number(cell) and cell.lower() not in MISSING for cell in cells) > len(
        cells
    )


def left_out(lines: Sequence[int], one: str, many: str) -> str:
    """Return a note on omitted lines, with their numbers.

    >>> left_out([7], "is torn", "are torn"), left_out([7, 9], "is torn", "are torn")
    ('line 7 is torn and left out', '2 lines are torn and left out (the first: line 7)')
    """
    if len(lines) == 1:
        return f"line {lines[0]:,} {one} and left out"
    return f"{len(lines):,} lines {many} and left out (the first: line {lines[0]:,})"


def _one_decimal_sign(rows: Iterable[Row], delimiter: str) -> None:
    """Change decimal commas to points, unless commas separate cells or group thousands (cells with points as well)."""
    rows = list(rows)
    cells = [cell for row in rows for cell in row.values() if cell]
    is_decimal = delimiter != "," and not any(_POINT.fullmatch(cell) for cell in cells)
    for row in rows:
        for name, cell in row.items():
            if is_decimal and _COMMA.fullmatch(cell):
                row[name] = cell.replace(",", ".")
            elif not is_decimal and _THOUSANDS.fullmatch(cell):
                row[name] = cell.replace(",", "")

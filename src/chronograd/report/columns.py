"""A table in the columns of a terminal: no line is wider, and no word is broken.

Wide text and long headings are first wrapped at blanks. Columns that still do not fit are left out, the least important first.
If the columns of a table are alike, none is left out, and they stand in blocks below one another. In full, all of the table is
printed, and lines may be longer than the terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from chronograd.answer import Table
from chronograd.words import tight

GAP = 2  # blanks between columns
TEXT = 24  # minimum letters of a text column, if the text is that long; a third of a narrow screen


@dataclass(frozen=True)
class LaidOut:
    """Lines of a table, the first `head` of them headings; and the parts that were left out."""

    lines: list[str]
    head: int
    columns_left_out: list[str]
    rows_left_out: int


def lay_out(table: Table, width: int, in_full: bool = False) -> LaidOut:
    """Lay out a table in lines of at most `width` letters; in full it has every row and column, and may be wider."""
    if table.is_stacked:
        return _stacked(table, width, in_full)
    rows = table.rows if in_full or not table.most else table.rows[: table.most]
    chosen = [i for i in range(len(table.columns)) if in_full or i not in table.details]
    order = [*table.drop, *(i for i in reversed(chosen[1:]) if i not in table.drop)]
    columns = [_Column.of(table, rows, i, min(TEXT, width // 3)) for i in range(len(table.columns))]
    while (widths := _widths([columns[i] for i in chosen], width)) is None:
        least = next((i for i in order if i in chosen), None)
        if in_full or least is None:
            widths = [columns[i].least for i in chosen]
            break
        chosen.remove(least)
    shown = [columns[i] for i in chosen]
    head = _rows([column.heading for column in shown], shown, widths, bottom=True)
    body = [line for row in rows for line in _rows([row[i] for i in chosen], shown, widths)]
    rule = "─" * (sum(widths) + GAP * (len(widths) - 1))
    hidden = [name for i, name in enumerate(table.columns) if i not in chosen and name]
    return LaidOut([*head, rule, *body], len(head) + 1, hidden, len(table.rows) - len(rows))


def _stacked(table: Table, width: int, in_full: bool) -> LaidOut:
    """Lay out a table in the smallest number of blocks, with an empty line between them."""
    for most in range(len(table.columns) - 1, 0, -1):
        blocks = [lay_out(block, width, in_full) for block in table.blocks(most)]
        lines = [line for block in blocks for line in ("", *block.lines)][1:]
        if not any(block.columns_left_out for block in blocks) and max(map(cell_len, lines)) <= width:
            break
    return LaidOut(lines, blocks[0].head, blocks[0].columns_left_out, blocks[0].rows_left_out)


@dataclass(frozen=True)
class _Column:
    """A heading, and the maximum and minimum letters of its column. Numbers are not wrapped."""

    heading: str
    is_right: bool
    natural: int
    least: int

    @classmethod
    def of(cls, table: Table, rows: Sequence[Sequence[str]], index: int, text: int) -> _Column:
        heading, is_right = table.columns[index], index in table.right
        lines = [line for row in rows for line in row[index].splitlines()]
        longest = max(map(cell_len, lines), default=0)
        words = max((cell_len(word) for line in lines for word in _words(line)), default=0)
        least = longest if is_right else max(words, min(longest, text))
        heads = max((cell_len(word) for word in _words(heading)), default=0)
        return cls(heading, is_right, max(longest, cell_len(heading)), max(least, heads))


def _widths(columns: Sequence[_Column], width: int) -> list[int] | None:
    """Return the letters of each column; None if they do not fit. The widest column shrinks first."""
    space = width - GAP * (len(columns) - 1)
    if sum(column.least for column in columns) > space:
        return None
    widths = [column.natural for column in columns]
    while sum(widths) > space:
        wide = [i for i, column in enumerate(columns) if widths[i] > column.least]
        widths[max(wide, key=lambda i: widths[i])] -= 1
    return widths


def _rows(cells: Sequence[str], columns: Sequence[_Column], widths: Sequence[int], bottom: bool = False) -> list[str]:
    """Return the lines of one row. Headings are aligned at the bottom."""
    blocks = [wrapped(cell, width) for cell, width in zip(cells, widths, strict=True)]
    height = max(map(len, blocks), default=1)
    lines = []
    for number in range(height):
        texts = []
        for block, column, width in zip(blocks, columns, widths, strict=True):
            place = number - (height - len(block)) if bottom else number
            text = block[place] if 0 <= place < len(block) else ""
            blanks = " " * (width - cell_len(text))
            texts.append(blanks + text if column.is_right else text + blanks)
        lines.append((" " * GAP).join(texts).rstrip())
    return lines


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Wrap text in lines of at most `width` letters, only at blanks, and not between a number and its unit.

    A longer word has its own line. Lines keep the indentation of the text, and continued lines have `indent` more.

    >>> wrapped("a step takes 12 ms on one device", 13)
    ['a step takes', '12 ms on one', 'device']
    """
    lines = []
    for line in text.splitlines() or [""]:
        if cell_len(line) <= width:
            lines.append(line)
            continue
        margin = line[: len(line) - len(line.lstrip(" "))]
        line_so_far = ""
        for word in _words(line):
            longer = f"{line_so_far} {word}" if line_so_far.strip() else f"{line_so_far or margin}{word}"
            if line_so_far.strip() and cell_len(longer) > width:
                lines.append(line_so_far)
                longer = f"{margin}{indent}{word}"
            line_so_far = longer
        lines.append(line_so_far)
    return [line.replace(_HARD, " ") for line in lines]


_HARD = "\u00a0"  # a blank without a line break


def _words(text: str) -> list[str]:
    """Return the pieces that stay together: words, a number with its unit, and short quoted text for copying."""
    quoted = [
        part.replace(" ", _HARD) if i % 2 and len(part) <= TEXT else part for i, part in enumerate(text.split("`"))
    ]
    return [word for word in tight("`".join(quoted)).split(" ") if word]

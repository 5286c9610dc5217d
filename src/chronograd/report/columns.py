"""A table in as many columns as a terminal has: no line is wider, and no word is broken.

What is too wide is first wrapped at blanks: text, and long headings. What then does not fit is left out, a column at a time,
the least important first; of a table whose columns are alike none is, and they stand in blocks below one another. All of it
can be had in full, where lines may become longer than the terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from chronograd.answer import Table
from chronograd.words import tight

GAP = 2  # blanks between columns
TEXT = 24  # letters that a column of text keeps at least, where it has so many; a third of a narrow screen


@dataclass(frozen=True)
class LaidOut:
    """Lines of a table, of which the first `head` are its headings; and what of it was left out."""

    lines: list[str]
    head: int
    columns_left_out: list[str]
    rows_left_out: int


def lay_out(table: Table, width: int, in_full: bool = False) -> LaidOut:
    """A table in lines of at most `width` letters; in full it has every row and column, and may be wider."""
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
    """In as few blocks as fit, with an empty line between them."""
    for most in range(len(table.columns) - 1, 0, -1):
        blocks = [lay_out(block, width, in_full) for block in table.blocks(most)]
        lines = [line for block in blocks for line in ("", *block.lines)][1:]
        if not any(block.columns_left_out for block in blocks) and max(map(cell_len, lines)) <= width:
            break
    return LaidOut(lines, blocks[0].head, blocks[0].columns_left_out, blocks[0].rows_left_out)


@dataclass(frozen=True)
class _Column:
    """A heading, and how many letters its column takes at most and at least. Numbers are not wrapped."""

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
    """Letters of each column; None where they do not fit. The widest gives way first."""
    space = width - GAP * (len(columns) - 1)
    if sum(column.least for column in columns) > space:
        return None
    widths = [column.natural for column in columns]
    while sum(widths) > space:
        wide = [i for i, column in enumerate(columns) if widths[i] > column.least]
        widths[max(wide, key=lambda i: widths[i])] -= 1
    return widths


def _rows(cells: Sequence[str], columns: Sequence[_Column], widths: Sequence[int], bottom: bool = False) -> list[str]:
    """The lines of one row. Headings stand at the bottom of theirs."""
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
    """Text in lines of at most `width` letters, broken at blanks only, and not between a number and its unit.

    A word that is longer has a line of its own. Lines begin as those of the text do, and what is wrapped `indent` further.

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


_HARD = "\u00a0"  # a blank at which no line ends


def _words(text: str) -> list[str]:
    """What stays together: words, a number and its unit, and what is quoted for copying where it is short."""
    quoted = [
        part.replace(" ", _HARD) if i % 2 and len(part) <= TEXT else part for i, part in enumerate(text.split("`"))
    ]
    return [word for word in tight("`".join(quoted)).split(" ") if word]

"""An `Answer` as text for a terminal: first the sentence, below it the rows behind it, as wide as the screen.

Without a terminal the same text is plain, with the width in COLUMNS, else 80. Rows and columns that were left out can be shown
with --full.
"""

from __future__ import annotations

import io
import shutil
import sys
from dataclasses import replace
from typing import IO

from rich.console import Console
from rich.text import Text

from chronograd.answer import Answer, Section, Table
from chronograd.errors import printable
from chronograd.report.columns import LaidOut, lay_out, wrapped

PROSE_WIDTH = 100  # maximum letters of a line of sentences, also on a wide screen
MAX_NAMES = 5  # of columns that were left out


def render_terminal(
    answer: Answer, console: Console | None = None, *, in_full: bool = False, full_with: str = ""
) -> str:
    """Return the whole answer as text, each line without trailing blanks.

    Args:
        in_full: every row and column of tables, and the settings.
        full_with: the option that shows all; printed where anything was left out.
    """
    screen = console or plain_console()
    with screen.capture() as captured:
        left_out = []
        for number, section in enumerate(answer.sections):
            if number:
                screen.print()
            left_out += _show(screen, section, in_full)
        if answer.notes or (left_out and full_with):
            screen.print()
        for note in answer.notes:
            _prose(screen, f"note: {note}", style="dim")
        if left_out and full_with:
            _prose(screen, f"{full_with} shows {_what_more(left_out)}.", style="dim")
        if in_full and answer.asked:
            _prose(screen, "\n".join(["", *(f"{name}: {value}" for name, value in answer.asked)]), style="dim")
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def show(answer: Answer, stream: IO[str] | None = None, *, in_full: bool = False, full_with: str = "") -> None:
    """Print an answer, in colour on a terminal."""
    out = stream or sys.stdout
    console = Console(file=out, highlight=False) if out.isatty() else plain_console()
    out.write(render_terminal(answer, console, in_full=in_full, full_with=full_with))


def say(text: str, stream: IO[str] | None = None) -> None:
    """Print sentences that belong to no answer, wrapped in the same way."""
    out = stream or sys.stdout
    width = min(shutil.get_terminal_size((80, 24)).columns, PROSE_WIDTH)
    out.write("".join(f"{line}\n" for line in wrapped(printable(text), width)))


def plain_console(width: int | None = None) -> Console:
    """Return a console without colour; its width is COLUMNS, else 80."""
    columns = width or shutil.get_terminal_size((80, 24)).columns
    return Console(file=io.StringIO(), no_color=True, width=columns, highlight=False, force_terminal=False)


def _show(screen: Console, section: Section, in_full: bool) -> list[LaidOut]:
    """Print a section; return its table if anything was left out."""
    _prose(screen, section.title, style="bold")
    for sentence in (section.takeaway, *section.lines, section.intro):
        if sentence:
            _prose(screen, sentence)
    table = None
    if section.table is not None and section.table.rows:
        table = lay_out(_printable(section.table), screen.width, in_full)
        screen.print()
        for number, line in enumerate(table.lines):
            screen.print(Text(line, style="dim" if number < table.head else ""), soft_wrap=True)
        notes = [note for note in section.table.notes if note.partition(":")[0] not in table.columns_left_out]
        if notes:
            screen.print()
        for note in notes:
            _prose(screen, note, style="dim")
    if section.caption and section.figure is None:
        screen.print()
        _prose(screen, section.caption, style="dim")
    return [table] if table is not None and (table.rows_left_out or table.columns_left_out) else []


def _what_more(tables: list[LaidOut]) -> str:
    """Describe the parts of tables that were left out."""
    rows = sum(table.rows_left_out for table in tables)
    names = list(dict.fromkeys(name for table in tables for name in table.columns_left_out))
    parts = [f"{rows:,} more row{'s' if rows > 1 else ''}"] if rows else []
    if len(names) > MAX_NAMES:
        names[MAX_NAMES - 1 :] = [f"and {len(names) - MAX_NAMES + 1} more"]
    if names:
        parts.append(f"the column{'s' if len(names) > 1 else ''} {', '.join(names)}")
    return " and ".join(parts)


def _printable(table: Table) -> Table:
    """Make every name and cell of a table safe for a terminal."""
    rows = [[printable(cell) for cell in row] for row in table.rows]
    return replace(table, columns=[printable(name) for name in table.columns], rows=rows)


def _prose(screen: Console, text: str, style: str = "") -> None:
    """Print sentences, wrapped at blanks, without control characters: they may contain foreign text."""
    text = printable(text)
    for line in wrapped(text, min(screen.width, PROSE_WIDTH), indent="  " if text.startswith(" ") else ""):
        screen.print(Text(line, style=style), soft_wrap=True)

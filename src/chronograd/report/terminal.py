"""Writes an `Answer` as text for a terminal: the sentence first, the table that bears it below.

Without a terminal the same text is plain, and neither tables nor sentences are folded.
"""

from __future__ import annotations

import io
import sys
import textwrap
from typing import IO

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from chronograd.answer import Answer, Section, Table

PLAIN_WIDTH = 200  # columns where there is no terminal, so that no table is folded
PROSE_WIDTH = 100


def render_terminal(answer: Answer, console: Console | None = None) -> str:
    """The whole answer as text, each line without blanks at its end."""
    screen = console or plain_console()
    with screen.capture() as captured:
        for number, section in enumerate(answer.sections):
            if number:
                screen.print()
            _show(screen, section)
        if answer.notes:
            screen.print()
        for note in answer.notes:
            _prose(screen, f"note: {note}", style="dim")
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def show(answer: Answer, stream: IO[str] | None = None) -> None:
    """Print an answer, in colour and as wide as the terminal where there is one."""
    out = stream or sys.stdout
    console = Console(file=out, highlight=False) if out.isatty() else plain_console()
    out.write(render_terminal(answer, console))


def plain_console() -> Console:
    return Console(file=io.StringIO(), no_color=True, width=PLAIN_WIDTH, highlight=False, force_terminal=False)


def _show(screen: Console, section: Section) -> None:
    screen.print(Text(section.title, style="bold"), soft_wrap=True)
    for sentence in (section.takeaway, *section.lines, section.intro):
        if sentence:
            _prose(screen, sentence)
    if section.table is not None and section.table.rows:
        screen.print(_table(section.table))
        for note in section.table.notes:
            _prose(screen, note, style="dim")
    if section.caption and section.figure is None:
        _prose(screen, section.caption, style="dim")


def _prose(screen: Console, text: str, style: str = "") -> None:
    """Sentences are wrapped on a terminal; words that a user copies, such as commands, stay whole."""
    width = min(screen.width, PROSE_WIDTH) if screen.is_terminal else max(len(text), 1)
    for line in text.splitlines():
        for part in textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]:
            screen.print(Text(part, style=style), soft_wrap=True)


def _table(data: Table) -> RichTable:
    """A rule under the header only; columns in `right` are right-aligned."""
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(data.columns):
        table.add_column(Text(name), justify="right" if index in data.right else "left", overflow="fold")
    for row in data.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table

"""Shared code of verbs: job arguments, JSON output, and tables for terminals and pipes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, TypeVar

import click

from chronograd.errors import printable

if TYPE_CHECKING:
    from rich.console import Console

    from chronograd.answer import Answer

# Kinds of values of options.
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


def answer_options(function: F) -> F:
    """Add --json, --save FILE and --full, for verbs that `show` an answer."""

    def keep(context: click.Context, option: click.Parameter, value: Any) -> None:
        context.meta[option.name or ""] = value

    text = "Also save the answer (.json), for `chronograd report`."
    save = click.option("--save", type=FILE, expose_value=False, callback=keep, help=text)
    text = "Every row and column, sources and provenance, at any width."
    full = click.option("--full", is_flag=True, expose_value=False, callback=keep, help=text)
    return json_option(save(full(function)))


def show(answer: Answer, as_json: bool, summary: Sequence[str] | None = None, *, is_verbatim: bool = False) -> int:
    """Print an answer, as text or as JSON, or its summary; save it if asked, and return its exit status."""
    context = click.get_current_context(silent=True)
    asked = {} if context is None else context.meta
    if path := asked.get("save"):
        answer.save(path)
    if as_json:
        print_json(answer.as_data())
    elif summary is not None:
        from chronograd.report.terminal import say

        for line in summary:
            (echo if is_verbatim else say)(line)
    else:
        from chronograd.report import terminal

        terminal.show(answer, in_full=asked.get("full", False), full_with="--full" if "full" in asked else "")
    return answer.exit_status


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text that may come from others: control characters, which could steer the terminal, are printed as escapes."""
    click.echo(printable(str(text)), err=err, nl=nl)


def print_json(data: Any) -> None:
    echo(json.dumps(data, indent=1, allow_nan=False))


def console(stderr: bool = False) -> Console:
    """Return a console without colour or bars if there is no terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    plain = not stream.isatty()
    return Console(file=stream, no_color=plain or None, width=200 if plain else None, soft_wrap=False, highlight=False)


@contextmanager
def progress(title: str) -> Iterator[Callable[[float, str], None]]:
    """Show a bar on a terminal; elsewhere a line at every fifth of the way, on standard error."""
    if sys.stderr.isatty():
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}", markup=False),
        )
        with Progress(*columns, console=console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, total=1.0, text="")
            yield lambda share, text: bar.update(task, completed=share, text=printable(text))
        return
    said = -1

    def say(share: float, text: str) -> None:
        nonlocal said
        if int(share * 5) > said:
            said = int(share * 5)
            echo(f"{title}: {100 * share:.0f} % ({text})", err=True)

    yield say


SILENCE_S = 1.0  # after this time a waiting user sees a message


@contextmanager
def waiting(text: str) -> Iterator[Callable[[str], None]]:
    """Show the current activity on standard error of a terminal, once it has taken a second; then remove it.

    Yields: a function that takes the words of the next stage.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.text import Text

    words, status = text, None

    def begin() -> None:
        nonlocal status
        status = console(stderr=True).status(Text(f"{printable(words)} …"))
        status.start()

    def say(text: str) -> None:
        nonlocal words
        words = text
        if status is not None:
            status.update(Text(f"{printable(words)} …"))

    timer = Timer(SILENCE_S, begin)
    timer.daemon = True
    timer.start()
    try:
        yield say
    finally:
        timer.cancel()
        timer.join()
        if status is not None:
            status.stop()

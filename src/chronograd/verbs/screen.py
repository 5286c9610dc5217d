"""Progress output of a verb: a line on a terminal, nothing in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chronograd.answer import Answer


@dataclass(frozen=True)
class Display:
    """Functions with which the command line shows progress.

    Attributes:
        waiting: takes a text and returns a context that shows it; the context yields a function that changes the text.
        progress: takes a title and returns a context; it yields a function of the finished share and a text.
        say: shows a line at once.
        announce: shows an answer before its verb ends.
    """

    waiting: Callable[[str], AbstractContextManager[Callable[[str], None]]]
    progress: Callable[[str], AbstractContextManager[Callable[[float, str], None]]]
    say: Callable[[str], None]
    announce: Callable[[Answer], None]


_screen: Display | None = None


@contextmanager
def shown_on(screen: Display) -> Iterator[None]:
    """Show progress on a screen inside this context."""
    global _screen
    before, _screen = _screen, screen
    try:
        yield
    finally:
        _screen = before


@contextmanager
def _nothing() -> Iterator[Callable[..., None]]:
    yield lambda *_: None


def is_shown() -> bool:
    """Return whether progress is visible, because the verb was called on the command line."""
    return _screen is not None


def waiting(text: str) -> AbstractContextManager[Callable[[str], None]]:
    """Show the current stage; the context yields a function that takes the text of the next one."""
    return _nothing() if _screen is None else _screen.waiting(text)


def progress(title: str) -> AbstractContextManager[Callable[[float, str], None]]:
    """Show a bar; the context yields a function of the finished share and a text."""
    return _nothing() if _screen is None else _screen.progress(title)


def announce(answer: Answer) -> None:
    """Show an answer before the verb ends, for example of a server."""
    if _screen is not None:
        _screen.announce(answer)


def say(text: Any) -> None:
    """Show a line."""
    if _screen is not None:
        _screen.say(str(text))

"""A run in progress, drawn on a terminal or printed as plain lines, from the figures of chronograd.watch.progress."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from chronograd.errors import RunError, printable
from chronograd.rundir import RunDir
from chronograd.rundir.listing import seeds_of
from chronograd.rundir.steps import Epoch
from chronograd.schedule.log import is_locked
from chronograd.units import percent, quantity, seconds
from chronograd.watch.progress import LiveRun, RankFigures, RunFigures

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

DRAW_EVERY_S = 0.4
# How often a followed run is polled, and how often a line is printed without a terminal.
POLL_S, SAY_EVERY_S = 0.2, 5.0
# Failed ranks restart sooner than this, if something restarts them.
RESTART_S = 60.0
# A run without a live rank writes nothing for longer than this. Where the file system has no locks, an evaluation must be shorter.
GONE_S = 600.0
# Reading and drawing take at most this share of a core, which the ranks may need; with many ranks they are rarer.
MAX_SHARE = 0.02
SEPARATOR = " · "
# Lines around the ranks: two of the run, an empty one, the header, the waiting, and the prompt.
_OTHER_LINES = 8
_MIN_ROWS = 4


class Screen:
    """A display that may be called at any rate with the current run; as a context manager it restores the terminal.

    On a terminal the figures are redrawn about every DRAW_EVERY_S, with a line above them for each epoch that ends and each
    note. Elsewhere only these lines are printed, and with `say_every_s` one line of figures at that interval.

    Attributes:
        figures: those shown last.
    """

    figures: RunFigures | None = None

    def __init__(self, console: Console, say_every_s: float | None = None) -> None:
        self._console = console
        self._say_every_s = say_every_s
        self._live: LiveRun | None = None
        self._display: Live | None = None
        self._next_s = self._next_said_s = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            from rich.live import Live

            self._display = Live(console=self._console, auto_refresh=False)
            self._display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._show(self._live)
        if self._display is not None:
            self._display.stop()

    def __call__(self, run: RunDir) -> None:
        if self._live is None or self._live.run != run:
            self._live = LiveRun(run)
            self._live.poll()  # skips epochs and notes of earlier attempts
        start_s = time.monotonic()
        if start_s >= self._next_s:
            self._show(self._live)
            spent_s = time.monotonic() - start_s
            self._next_s = start_s + max(DRAW_EVERY_S, spent_s / MAX_SHARE)

    def _show(self, live: LiveRun) -> None:
        for end in live.poll():
            self._console.print(epoch_text(end, live.num_epochs))
        for note in live.notes:
            self._console.print(f"note: {printable(note)}", soft_wrap=True, markup=False)
        if self._display is not None:
            self.figures = live.figures()
            self._display.update(drawing(self.figures, self._console.height), refresh=True)
        elif self._say_every_s is not None and time.monotonic() >= self._next_said_s:
            self.figures = live.figures()
            self._console.print(line_of(self.figures), soft_wrap=True)
            self._next_said_s = time.monotonic() + self._say_every_s


def follow(whole: RunDir, console: Console) -> None:
    """Show a run, or its current seed, until it has a record.

    Raises RunError if a failed rank is not restarted, or if no rank is alive.
    """
    failed_at: float | None = None
    to_go_on = f"go on with `chronograd train --resume {whole.path}`"
    with Screen(console, SAY_EVERY_S) as screen:
        while not whole.is_finished:
            run = next((RunDir(path) for path in reversed(seeds_of(whole.path))), whole)
            screen(run)
            figures = screen.figures
            if figures is None or figures.phase != "failed":
                failed_at = None
            else:
                failed_at = failed_at or time.monotonic()
                if time.monotonic() - failed_at > RESTART_S:
                    raise RunError(figures.error, f"remove the cause, then {to_go_on}")
            if silent := _abandoned(run):
                raise RunError(f"no rank of {run.path} is alive, and nothing was written there for {silent}", to_go_on)
            time.sleep(POLL_S)


def _abandoned(run: RunDir) -> str:
    """Return how long the ranks of a run wrote nothing if all have ended; else an empty text."""
    paths = [run.steps_path(rank) for rank in run.ranks()]
    silent_s = time.time() - max((path.stat().st_mtime for path in paths), default=math.inf)
    return seconds(silent_s) if silent_s > GONE_S and not any(map(is_locked, paths)) else ""


def epoch_text(end: Epoch, num_epochs: int | None) -> str:
    """Return the end of an epoch as one line."""
    tested = "" if end.test_accuracy is None else f"test accuracy {percent(end.test_accuracy)}  "
    if end.bits_per_byte is not None:
        tested = f"{end.bits_per_byte:.3f} bits per byte  "
    if end.mean_return is not None:
        tested = f"mean return {quantity(end.mean_return, '')}  "
    epoch = f"{end.epoch}" if num_epochs is None else f"{end.epoch}/{num_epochs}"
    loss = "no update yet" if end.updates == 0 else f"train loss {_loss(end.train_loss)}"
    return f"epoch {epoch}  step {end.step}  {loss}  {tested}{seconds(end.seconds)}"


def line_of(figures: RunFigures) -> str:
    """Return the figures of the run in one line."""
    parts = [figures.phase, _step(figures), *_learning(figures)]
    if figures.steps_per_s is not None:
        parts.append(f"{_rate(figures.steps_per_s)} steps/s")
    parts += [*_waiting(figures), *_history(figures)]
    if figures.left_s:
        parts.append(f"{seconds(figures.left_s, 2)} left")
    return SEPARATOR.join(filter(None, parts))


def drawing(figures: RunFigures, height: int) -> RenderableType:
    """Return two lines of the run and, for several ranks, a row for each, as far as they fit."""
    from rich.console import Group
    from rich.text import Text

    shown: list[RenderableType] = [_head(figures)]
    below = [*_learning(figures), *_history(figures)]
    if len(figures.ranks) == 1:
        below += [_rank_words(figures.ranks[0])]
    shown.append(Text(SEPARATOR.join(filter(None, below))))
    if len(figures.ranks) > 1:
        shown += [Text(), *_rank_rows(figures, max(_MIN_ROWS, height - _OTHER_LINES))]
        waiting = _waiting(figures)
        if waiting:
            shown.append(Text(SEPARATOR.join(waiting)))
    if figures.error:
        shown.append(Text(printable(figures.error), style="bold red"))
    return Group(*shown)


def _head(figures: RunFigures) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    line = Table.grid(padding=(0, 2))
    cells: list[RenderableType] = [Text(f"{figures.phase:<10}", style="bold")]
    if step := _step(figures):
        cells.append(Text(step))
    if figures.num_steps:
        cells.append(ProgressBar(total=figures.num_steps, completed=figures.step, width=30))
    if figures.steps_per_s is not None:
        cells.append(Text(f"{_rate(figures.steps_per_s)} steps/s"))
    if figures.left_s:
        cells.append(Text(f"{seconds(figures.left_s, 2)} left"))
    line.add_row(*cells)
    return line


def _rank_rows(figures: RunFigures, most: int) -> Iterator[RenderableType]:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    is_asynchronous = figures.is_asynchronous
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim", show_edge=False)
    own = ("pull", "compute", "push", "staleness") if is_asynchronous else ("waits for gradients", "input")
    for name in ("learner" if is_asynchronous else "rank", "step", "steps/s", *own):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    slowest = None if figures.straggler is None else figures.straggler.rank
    ranks = _most_telling(figures.ranks, slowest, most)
    for rank in ranks:
        table.add_row(*_cells(rank, is_asynchronous), _mark(rank, slowest))
    yield table
    if len(ranks) < len(figures.ranks):
        yield Text(f"and {len(figures.ranks) - len(ranks)} more, as fast", style="dim")


def _most_telling(ranks: tuple[RankFigures, ...], slowest: int | None, most: int) -> list[RankFigures]:
    """Return the ranks to show, in order: silent, slow or late ranks are preferred to the others."""
    if len(ranks) <= most:
        return list(ranks)
    told = sorted(ranks, key=lambda r: (-(r.silent_s or 0.0), r.rank != slowest, r.step, r.exchange_share or 0.0))
    return sorted(told[:most], key=lambda r: r.rank)


def _cells(rank: RankFigures, is_asynchronous: bool) -> list[str]:
    shares = (rank.pull_share, rank.compute_share, rank.push_share)
    if is_asynchronous:
        own = [*(percent(share, 0) for share in shares), "–" if rank.staleness is None else f"{rank.staleness:.1f}"]
    else:
        own = [percent(rank.exchange_share, 0), percent(rank.input_share, 0)]
    return [str(rank.rank), f"{rank.step:,}", _rate(rank.steps_per_s), *own]


def _mark(rank: RankFigures, slowest: int | None) -> Text:
    from rich.text import Text

    if rank.silent_s is not None:
        return Text(f"silent for {seconds(rank.silent_s, 2)}", style="bold red")
    return Text("slowest" if rank.rank == slowest else "", style="yellow")


def _step(figures: RunFigures) -> str:
    if not figures.step:
        return ""
    return f"step {figures.step:,}" + (f"/{figures.num_steps:,}" if figures.num_steps else "")


def _learning(figures: RunFigures) -> list[str]:
    found = []
    if figures.epoch:
        found.append(f"epochs {figures.epoch}" + (f"/{figures.num_epochs}" if figures.num_epochs else ""))
    if figures.loss is not None:
        found.append(f"loss {_loss(figures.loss)}")
    if figures.test_accuracy is not None:
        best = figures.best_accuracy or 0.0
        told = "" if best <= figures.test_accuracy else f" (best {percent(best)})"
        found.append(f"test accuracy {percent(figures.test_accuracy)}{told}")
    if figures.bits_per_byte is not None:
        found.append(f"{figures.bits_per_byte:.3f} bits per byte")
    if figures.mean_return is not None:
        best = figures.mean_return if figures.best_return is None else figures.best_return
        told = "" if best <= figures.mean_return else f" (best {quantity(best, '')})"
        found.append(f"mean return {quantity(figures.mean_return, '')}{told}")
    return found


def _waiting(figures: RunFigures) -> list[str]:
    """Return the cost of communication, the slowest rank, and the silent ranks."""
    found = []
    if figures.communication_share is not None:
        found.append(f"communication {percent(figures.communication_share, 0)} of a step")
    slow = figures.straggler
    if slow is not None and figures.is_asynchronous:
        found.append(f"learner {slow.rank} is slowest: a gradient takes {percent(slow.share, 0)} longer")
    elif slow is not None:
        found.append(f"the others wait {seconds(slow.wait_s, 2)} ({percent(slow.share, 0)}) for rank {slow.rank}")
    silent = [str(rank.rank) for rank in figures.ranks if rank.silent_s is not None]
    if silent:
        found.append(f"silent: rank {', '.join(silent)}")
    return found


def _history(figures: RunFigures) -> list[str]:
    again = f", {figures.redone} steps done again" if figures.redone else ""
    return [f"attempt {figures.attempts}{again}"] if figures.attempts > 1 else []


def _rank_words(rank: RankFigures) -> str:
    """Return the figures of a single rank as words, instead of a table."""
    silent = f"silent for {seconds(rank.silent_s, 2)}" if rank.silent_s is not None else ""
    told = f"input {percent(rank.input_share, 0)} of a step" if rank.input_share is not None else ""
    if rank.staleness is not None:
        told = f"pull {percent(rank.pull_share, 0)}, compute {percent(rank.compute_share, 0)}, push {percent(rank.push_share, 0)}"
    return SEPARATOR.join(filter(None, (told, silent)))


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 1 else f"{rate:.3f}"


def _loss(loss: float | None) -> str:
    return "not finite" if loss is None or not math.isfinite(loss) else f"{loss:.4f}"


def console() -> Console:
    """Return a console for standard error, without colour if it is not a terminal. Text from files is never markup."""
    import sys

    from rich.console import Console

    plain = not sys.stderr.isatty()
    return Console(
        file=sys.stderr, no_color=plain or None, width=200 if plain else None, soft_wrap=False, highlight=False,
        markup=False, emoji=False,
    )  # fmt: skip

"""The progress of a run while its ranks write their steps: speed, which rank waits for which, loss, time left.

It reads only the steps files, each line once, so a run can be watched from any machine that sees its directory. Figures cover
the last WINDOW_S seconds of the training clock, so they exclude evaluation and checkpoints.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from chronograd.errors import ChronogradError
from chronograd.rundir import Line, RunDir, StepFollower, StepLine
from chronograd.rundir.steps import Epoch, Error, NoteLine

WINDOW_S = 10.0
# Limits for very short steps: the number of steps in the window, and in the split of waiting, which reads every rank's step.
MAX_STEPS, MAX_SPLIT = 1024, 256
LOSS_STEPS = 20
# A rank is silent if it wrote nothing for this long, and for this many of its steps.
SILENT_S = 10.0
SILENT_STEPS = 10
# Waiting for the slowest rank below this share of a step is random variation.
STRAGGLING = 0.05
PARTS_OF_UPDATE = ("pull_s", "compute_s", "push_s")
_SUMMED = ("input_s", "exchange_wait_s", "staleness", *PARTS_OF_UPDATE)


@dataclass(frozen=True)
class RankFigures:
    """One rank, or one learner of an asynchronous run. Shares are of its time per step; None if not timed.

    Attributes:
        exchange_share: of waiting for gradients to be averaged, after its own last gradient.
        pull_share, compute_share, push_share, staleness: of a learner; None otherwise.
        silent_s: how long it wrote nothing, if that is long.
    """

    rank: int
    step: int
    steps_per_s: float | None
    exchange_share: float | None
    input_share: float | None
    pull_share: float | None
    compute_share: float | None
    push_share: float | None
    staleness: float | None
    silent_s: float | None


@dataclass(frozen=True)
class Straggler:
    """The rank that the others wait for: how long per step, and as a share of it.

    In an asynchronous run no rank waits. There it is how much longer its gradient takes than those of the others.
    """

    rank: int
    wait_s: float
    share: float


@dataclass(frozen=True)
class RunFigures:
    """A run at one moment.

    Attributes:
        phase: starting, training, evaluating, finishing, failed or ended.
        step: the last step that every rank has done; in an asynchronous run, the last update.
        num_steps: of the run; None if not known yet. `num_epochs` likewise.
        loss: mean over ranks and the last LOSS_STEPS steps; infinite if the last was not finite.
        left_s: training time left at this speed, without evaluation.
        redone: steps that were done again after a restart.
        communication_share: of a step, on the rank that waits least; the rest of the others' waiting is for that rank.
        error: of the rank that failed, in this attempt.
    """

    phase: str
    ranks: tuple[RankFigures, ...]
    step: int
    num_steps: int | None
    epoch: int
    num_epochs: int | None
    steps_per_s: float | None
    loss: float | None
    test_accuracy: float | None
    bits_per_byte: float | None
    best_accuracy: float | None
    mean_return: float | None
    best_return: float | None
    left_s: float | None
    attempts: int
    redone: int
    communication_share: float | None
    straggler: Straggler | None
    error: str

    @property
    def is_asynchronous(self) -> bool:
        return any(rank.staleness is not None for rank in self.ranks)


class RunLines:
    """An iterator over the lines of all ranks with their rank, each once: all of them, or those written from now on."""

    def __init__(self, run: RunDir, is_from_start: bool = True) -> None:
        self._run = run
        self._followers = {rank: StepFollower(run.steps_path(rank), is_from_start) for rank in run.ranks()}

    @property
    def num_ranks(self) -> int:
        return len(self._followers)

    def new(self) -> Iterator[tuple[int, Line]]:
        for rank in self._run.ranks():
            if rank not in self._followers:
                self._followers[rank] = StepFollower(self._run.steps_path(rank), is_from_start=True)
        for rank, follower in self._followers.items():
            yield from ((rank, line) for line in follower.new_lines())


class LiveRun:
    """A follower of a run. `poll` reads new lines and sets `notes`; `figures` returns the current figures."""

    def __init__(self, run: RunDir, clock: Callable[[], float] = time.monotonic) -> None:
        self.run = run
        self._clock = clock
        self._lines = RunLines(run)
        self._ranks: dict[int, _Rank] = {}
        self._last_epoch: Epoch | None = None
        self._best_accuracy: float | None = None
        self._best_return: float | None = None
        self._errors: dict[int, str] = {}
        self.notes: list[str] = []
        self.num_steps, self.num_epochs = planned(run)
        self._is_ended = False

    def poll(self) -> list[Epoch]:
        """Read the lines written since the last call. Returns the new ends of epochs."""
        self._is_ended = self.run.is_finished  # set before reading, so that no line comes after it
        known = set(self._ranks)
        ends = []
        self.notes = []
        for number, line in self._lines.new():
            if number in known:
                self._ranks[number].heard_at = self._clock()
            elif number not in self._ranks:
                written_s_ago = time.time() - self.run.steps_path(number).stat().st_mtime
                self._ranks[number] = _Rank(self._clock() - max(0.0, written_s_ago))
            self._ranks[number].add(line)
            if isinstance(line, Epoch):
                self._end_epoch(line)
                ends.append(line)
            elif isinstance(line, NoteLine):
                self.notes.append(line.text)
            elif isinstance(line, Error):
                told = f"rank {number if line.rank is None else line.rank} failed with {line.text}"
                self._errors.setdefault(line.attempt, told)
            elif (
                isinstance(line, StepLine) and line.mode is not None
            ):  # measured, or a custom training loop: no plan states the number of steps
                self.num_steps = self.num_epochs = None
        return ends

    def _end_epoch(self, epoch: Epoch) -> None:
        self._last_epoch = epoch
        if epoch.test_accuracy is not None:
            self._best_accuracy = max(epoch.test_accuracy, self._best_accuracy or 0.0)
        if epoch.mean_return is not None:
            self._best_return = max(
                epoch.mean_return, epoch.mean_return if self._best_return is None else self._best_return
            )
        if self.num_epochs is not None and epoch.epoch:
            self.num_steps = epoch.step // epoch.epoch * self.num_epochs

    def figures(self) -> RunFigures:
        now, ended = self._clock(), self._last_epoch
        attempts = max((rank.attempt for rank in self._ranks.values()), default=0)
        current = {n: rank for n, rank in sorted(self._ranks.items()) if rank.attempt == attempts}
        is_asynchronous = any("staleness" in rank.sums for rank in current.values())
        steps = [rank.step for rank in current.values()]
        step = (max if is_asynchronous else min)(steps, default=0)
        phase = self._phase(step, attempts)
        rates = [rate for rank in current.values() if (rate := rank.rate) is not None]
        rate = (sum(rates) if is_asynchronous else min(rates)) if rates else None
        communication, straggler = (None, _slowest_learner(current)) if is_asynchronous else _split_of_waiting(current)
        left = None if self.num_steps is None or not rate else max(0, self.num_steps - step) / rate
        return RunFigures(
            phase=phase,
            ranks=tuple(rank.figures(n, now if phase == "training" else None) for n, rank in current.items()),
            step=step,
            num_steps=self.num_steps,
            epoch=0 if ended is None else ended.epoch,
            num_epochs=self.num_epochs,
            steps_per_s=rate,
            loss=_mean_loss(current.values()),
            test_accuracy=None if ended is None else ended.test_accuracy,
            bits_per_byte=None if ended is None else ended.bits_per_byte,
            best_accuracy=self._best_accuracy,
            mean_return=None if ended is None else ended.mean_return,
            best_return=self._best_return,
            left_s=left,
            attempts=attempts,
            redone=_redone(self._ranks.values() if is_asynchronous else list(self._ranks.values())[:1]),
            communication_share=communication,
            straggler=straggler,
            error=self._errors.get(attempts, ""),
        )

    def _phase(self, step: int, attempts: int) -> str:
        if self._is_ended:
            return "ended"
        if attempts in self._errors:
            return "failed"
        if not any(rank.window for rank in self._ranks.values() if rank.attempt == attempts):
            return "starting"
        if self.num_steps is None or not self.num_epochs:
            return "training"
        evaluated = 0 if self._last_epoch is None else self._last_epoch.step
        if evaluated >= self.num_steps:
            return "finishing"
        is_end = step > evaluated and step % (self.num_steps // self.num_epochs) == 0
        return "evaluating" if is_end else "training"


def planned(run: RunDir) -> tuple[int | None, int | None]:
    """Return the steps and epochs of a run's job; None without a job, or if its data are not available here."""
    if not (run.path / "job.yaml").exists():
        return None, None
    from chronograd.data.datasets import card
    from chronograd.job import steps_per_epoch

    job = run.job()
    if job.reinforcement is not None:
        return job.reinforcement.steps_per_epoch * job.training.epochs, job.training.epochs
    try:
        return steps_per_epoch(card(job.data).train_size, job.training.batch) * job.training.epochs, job.training.epochs
    except ChronogradError:
        return None, job.training.epochs


class _Rank:
    """The last seconds of one rank, with running sums."""

    def __init__(self, heard_at: float) -> None:
        self.heard_at = heard_at
        self.attempt = self.step = 0
        self.bounds: dict[int, tuple[int, int]] = {}
        self._clear()

    def _clear(self) -> None:
        self.window: deque[tuple[StepLine, float]] = deque()  # steps with their seconds
        self.seconds = 0.0
        self.sums: dict[str, float] = {}

    def add(self, line: Line) -> None:
        if line.attempt != self.attempt:
            self.attempt = line.attempt
            self._clear()
        if not isinstance(line, StepLine):
            return
        self.step = line.step
        first, _ = self.bounds.get(self.attempt, (self.step, 0))
        self.bounds[self.attempt] = (first, self.step)
        seconds = seconds_of(line)
        if seconds is None:
            return
        seconds *= line.num_steps or 1
        self.window.append((line, seconds))
        self._sum(line, seconds, 1)
        while len(self.window) > 1 and (self.seconds > WINDOW_S or len(self.window) > MAX_STEPS):
            self._sum(*self.window.popleft(), -1)

    def _sum(self, line: StepLine, seconds: float, sign: int) -> None:
        self.seconds += sign * seconds
        for name in _SUMMED:
            value = getattr(line, name)
            if value is not None:
                self.sums[name] = self.sums.get(name, 0.0) + sign * value

    @property
    def rate(self) -> float | None:
        """Return the steps per second."""
        return sum(line.num_steps or 1 for line, _ in self.window) / self.seconds if self.seconds > 0 else None

    def share(self, name: str) -> float | None:
        return self.sums[name] / self.seconds if name in self.sums and self.seconds > 0 else None

    def figures(self, number: int, now: float | None) -> RankFigures:
        """Return the figures of a rank. `now` is None while no output is expected."""
        silent_s = None if now is None else now - self.heard_at
        if silent_s is not None and (silent_s < SILENT_S or silent_s * (self.rate or 0.0) < SILENT_STEPS):
            silent_s = None
        staleness = self.sums["staleness"] / len(self.window) if "staleness" in self.sums else None
        pull, compute, push = (self.share(name) for name in PARTS_OF_UPDATE)
        return RankFigures(
            rank=number,
            step=self.step,
            steps_per_s=self.rate,
            exchange_share=self.share("exchange_wait_s"),
            input_share=self.share("input_s"),
            pull_share=pull,
            compute_share=compute,
            push_share=push,
            staleness=staleness,
            silent_s=silent_s,
        )


def seconds_of(step: StepLine) -> float | None:
    """Return the time of a step on its rank, or of an update on its learner; None if not timed.

    The `step_time_s` of an update is the time since that of another learner, so its own parts are added up.
    """
    if step.pull_s is not None and step.compute_s is not None and step.push_s is not None:
        return step.pull_s + step.compute_s + step.push_s
    return step.step_time_s


def _split_of_waiting(ranks: Mapping[int, _Rank]) -> tuple[float | None, Straggler | None]:
    """Return communication as a share of a step, and the rank that others wait for.

    In each step the rank that waits least is the slowest. The others wait for it as long as their waiting exceeds its own.
    """
    waits = {
        number: {line.step: line.exchange_wait_s for line in _last(rank, MAX_SPLIT) if line.exchange_wait_s is not None}
        for number, rank in ranks.items()
    }
    common = set.intersection(*(set(own) for own in waits.values())) if waits else set()
    first = next(iter(ranks.values()), None)
    if len(waits) < 2 or not common or first is None or not first.rate:
        return None, None
    step_s = 1 / first.rate
    least_s = sum(min(own[step] for own in waits.values()) for step in common) / len(common)
    means = {number: sum(own[step] for step in common) / len(common) for number, own in waits.items()}
    slowest = min(means, key=lambda number: means[number])
    wait_s = (sum(means.values()) - means[slowest]) / (len(means) - 1) - means[slowest]
    straggler = Straggler(slowest, wait_s, wait_s / step_s)
    return least_s / step_s, straggler if straggler.share >= STRAGGLING else None


def _slowest_learner(ranks: Mapping[int, _Rank]) -> Straggler | None:
    means = {n: rank.sums["compute_s"] / len(rank.window) for n, rank in ranks.items() if rank.sums.get("compute_s")}
    if len(means) < 2:
        return None
    slowest = max(means, key=lambda number: means[number])
    others_s = (sum(means.values()) - means[slowest]) / (len(means) - 1)
    straggler = Straggler(slowest, means[slowest] - others_s, means[slowest] / others_s - 1)
    return straggler if straggler.share >= STRAGGLING else None


def _last(rank: _Rank, most: int) -> Iterator[StepLine]:
    """Yield the newest steps of a window."""
    return (line for line, _ in itertools.islice(reversed(rank.window), most))


def _mean_loss(ranks: Iterable[_Rank]) -> float | None:
    losses = [
        (line.step, line.loss, line.samples or 1)
        for rank in ranks
        for line in _last(rank, LOSS_STEPS)
        if line.loss is not None
    ]
    if not losses:
        return None
    newest = max(step for step, *_ in losses)
    if any(math.isnan(loss) for step, loss, _ in losses if step == newest):
        return math.inf
    known = [(loss, samples) for _, loss, samples in losses if not math.isnan(loss)]
    return sum(loss * samples for loss, samples in known) / sum(samples for _, samples in known)


def _redone(ranks: Iterable[_Rank]) -> int:
    """Return the number of repeated steps: in each attempt, those up to the highest step of earlier attempts."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for rank in ranks:
        for attempt, (low, high) in rank.bounds.items():
            first[attempt] = min(low, first.get(attempt, low))
            last[attempt] = max(high, last.get(attempt, high))
    redone = highest = 0
    for attempt in sorted(first):
        redone += max(0, min(last[attempt], highest) - first[attempt] + 1)
        highest = max(highest, last[attempt])
    return redone

"""`simulate staleness|speed`: a simulation of asynchronous training."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from chronograd.errors import InputError
from chronograd.verbs.kinds import ABOVE_0, NUMBERS, ListKind, ValueKind, parse_numbers, parse_whole_numbers
from chronograd.verbs.request import FILE, Request, Spelling
from chronograd.words import how_many

if TYPE_CHECKING:
    from chronograd.answer import Answer
    from chronograd.simulate.simulations import SimulatedSpeed, SimulatedStaleness


# Rows of a table of speeds, and gradients that an answer lists.
MAX_NUMBERS, MAX_GRADIENTS = 10_000, 1_000_000


def parse_span(text: str) -> tuple[int, ...]:
    """Return whole numbers. Raises ValueError.

    >>> parse_span("1:4"), parse_span("1,2,4")
    ((1, 2, 3, 4), (1, 2, 4))
    """
    span = re.fullmatch(r"([1-9]\d{0,5}):([1-9]\d{0,5})", text)
    if not span:
        return parse_whole_numbers(text)
    if int(span[1]) > int(span[2]):
        raise ValueError(f"{text} is empty; write the smaller number first")
    if int(span[2]) - int(span[1]) >= MAX_NUMBERS:
        raise ValueError(f"{text} has more than {MAX_NUMBERS:,} numbers; write fewer")
    return tuple(range(int(span[1]), int(span[2]) + 1))


def parse_duration(text: str) -> Any:
    """Return a fixed or random duration, such as 0.5 or exponential:0.5. Raises InputError."""
    from chronograd.simulate.staleness import Duration

    return Duration.parse(text)


DURATION = ValueKind("S", parse_duration, lambda value: hasattr(value, "mean"))
PUSHES = ValueKind("T,T,...", parse_numbers, lambda value: isinstance(value, tuple | list))
SPAN = ListKind("FROM:TO", parse_span, lambda _: False)


@dataclass(frozen=True, kw_only=True)
class SimulateStaleness(Request):
    """Simulate the staleness of gradients: updates by others between a learner's pull and its own update.

    Give the times of each learner's pushes, or the duration of a learner's parts: S is seconds such as 0.5, exponential:0.5
    (mean), uniform:0.4:0.6 or normal:0.5:0.1. At equal times learners act in the order of their numbers: each pushes, then
    pulls.
    """

    verb = "simulate staleness"
    examples = (
        "chronograd simulate staleness --pushes 1,2,3,4 --pushes 2.5,5",
        "chronograd simulate staleness --compute 1 --compute 2.5 --updates 1000",
        "chronograd simulate staleness --compute exponential:1 --learners 8 --softsync 4 --push 0.1",
        "chronograd simulate staleness --compute uniform:0.8:1.2 --learners 4 --push 0.1 --picture staleness.svg",
    )

    pushes: Annotated[tuple[Any, ...], PUSHES, Spelling(metavar="T,T,...")] = ()
    """Times of one learner's pushes, in seconds."""
    compute: Annotated[tuple[Any, ...], DURATION, Spelling(metavar="S")] = ()
    """Time to compute a gradient, of one learner; may be given several times."""
    pull: Annotated[tuple[Any, ...], DURATION, Spelling(metavar="S")] = ()
    """Time to pull weights, of all learners, or one value each."""
    push: Annotated[tuple[Any, ...], DURATION, Spelling(metavar="S")] = ()
    """Time to push a gradient, of all learners, or one value each."""
    serve: Annotated[Any, DURATION, Spelling(metavar="S")] = None
    """Time of the server for one gradient; 0 by default."""
    learners: Annotated[int | None, click.IntRange(1, 100_000)] = None
    """Number of equal learners, with a single --compute."""
    updates: int = 100
    """Updates to simulate."""
    softsync: Annotated[int | None, click.IntRange(1)] = None
    """n-softsync: an update takes learners/n gradients."""
    no_wait: bool = False
    """A learner pulls once its gradient is sent, before it is applied."""
    seed: Annotated[int, click.IntRange(0)] = 0
    """Seed of random durations."""
    picture: Annotated[Path | None, FILE] = None
    """Draw the first updates: .svg or .png."""

    def answer(self) -> Answer[SimulatedStaleness]:
        from chronograd.simulate import staleness as model
        from chronograd.simulate.simulations import learners, staleness_answer

        self._check()
        count = len(self.pushes) or self.learners or len(self.compute)
        if self.softsync and self.softsync > count:
            raise InputError(
                f"{self.softsync}-softsync needs {how_many(self.softsync, 'learners')}, not {count}", "add learners"
            )
        per_update = max(1, count // self.softsync) if self.softsync else 1
        if self.pushes:
            simulated = model.of_pushes([list(times) for times in self.pushes], per_update)
        elif self.updates * per_update > MAX_GRADIENTS:
            raise InputError(
                f"{how_many(self.updates, 'updates')} of {how_many(per_update, 'gradients')} are too many to list",
                f"ask for at most {MAX_GRADIENTS:,} gradients",
            )
        else:
            alike = learners(count, self.compute, self.pull, self.push)
            serve = self.serve or parse_duration("0")
            simulated = model.simulate(alike, self.updates, per_update, not self.no_wait, self.seed, serve)
        answer = staleness_answer(simulated, count, per_update)
        if self.picture is not None:
            from chronograd.report import plots

            figure = answer.sections[0].figure
            assert figure is not None  # there is at least one update
            plots.save(figure, self.picture)
        return answer

    def after(self, answer: Answer, as_json: bool) -> None:
        if self.picture is not None and not as_json:
            click.echo(f"picture: {self.picture}")

    def _check(self) -> None:
        if bool(self.pushes) == bool(self.compute):
            raise InputError("no durations were given", "give --pushes of each learner, or --compute")
        if self.pushes and (self.pull or self.push or self.serve or self.learners or self.no_wait):
            raise InputError(
                "--pushes are measured times, so durations do not apply",
                "give --pull, --push, --serve, --learners and --no-wait with --compute",
            )
        if self.learners is not None and len(self.compute) > 1:
            raise InputError("--learners needs a single duration", "give one --compute")


@dataclass(frozen=True, kw_only=True)
class SimulateSpeed(Request):
    """Simulate steps per second by workers and parameter servers, and find the best number of workers.

    A synchronous step of M samples takes a0·M/w + a1 + a2·w/p + a3·w + a4·p. Asynchronous workers together make w / (a0 +
    a1·w/p + a2·w + a3·p) steps per second. `chronograd fit speed` finds the coefficients. An all-reduce of the same work takes
    a0·M/w + a1 + a2·(w − 1)/w + a3·w. Asynchronous workers then share a minibatch.
    """

    verb = "simulate speed"
    examples = (
        "chronograd simulate speed --batch 128 --servers 2",
        "chronograd simulate speed --coefficients 1.02,2.78,4.92,0,0.02 --batch 40 --servers 4 --workers 1:20",
        "chronograd simulate speed --coefficients 2.83,3.92,0,0.11 --servers 4",
        "chronograd simulate speed --batch 128 --servers 4 --steps 10000 --all-reduce",
    )

    coefficients: Annotated[tuple[float, ...] | None, NUMBERS, Spelling(metavar="A,A,...")] = None
    """Five coefficients for synchronous steps, four for asynchronous ones. Default: ResNet-50 of Optimus."""
    batch: Annotated[float | None, ABOVE_0] = None
    """Global batch of a synchronous step."""
    servers: Annotated[int, click.IntRange(1)] = 1
    """Number of parameter servers."""
    workers: Annotated[tuple[int, ...], SPAN, Spelling(metavar="FROM:TO")] = tuple(range(1, 21))
    """Numbers of workers, such as 1:20 or 1,2,4; 1 to 20 by default."""
    steps: Annotated[float | None, ABOVE_0] = None
    """Steps to a target; prints their time."""
    all_reduce: bool = False
    """Compare with an all-reduce of the same work over the same link, without servers."""

    def answer(self) -> Answer[SimulatedSpeed]:
        from chronograd.predict.speed import NUM_COEFFICIENTS, OPTIMUS_RESNET50, SpeedModel
        from chronograd.simulate.simulations import speed_answer

        a = self.coefficients or OPTIMUS_RESNET50.coefficients
        is_asynchronous = len(a) == NUM_COEFFICIENTS["asynchronous"]
        if is_asynchronous and self.batch is not None:
            raise InputError("an asynchronous step is one worker's minibatch", "give --batch with five coefficients")
        standard = None if is_asynchronous or self.coefficients else OPTIMUS_RESNET50.batch
        model = SpeedModel("asynchronous" if is_asynchronous else "synchronous", tuple(a), self.batch or standard)
        return speed_answer(model, self.servers, list(self.workers), self.steps, self.all_reduce)


HELP = "Simulate the staleness of asynchronous SGD, or the speed by numbers of workers and servers."
REQUESTS = (SimulateStaleness, SimulateSpeed)

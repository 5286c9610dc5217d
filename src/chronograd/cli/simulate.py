"""`chronograd simulate staleness|speed`: asynchronous training without a machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chronograd.cli import common
from chronograd.words import how_many

if TYPE_CHECKING:
    from chronograd.simulate.staleness import Duration


@click.group()
def command() -> None:
    """Simulate what takes no machine: staleness of asynchronous SGD, speed by numbers of workers and servers."""


def _counts(option: str, text: str) -> list[int]:
    """`1:20` is 1, 2, … 20; `1,2,4` those three."""
    span = re.fullmatch(r"([1-9]\d{0,5}):([1-9]\d{0,5})", text)
    if not span:
        return common.whole_numbers(option, text)
    if int(span[1]) > int(span[2]):
        raise click.UsageError(f"{option} {text} is empty; write the smaller number first")
    return list(range(int(span[1]), int(span[2]) + 1))


def _durations(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> list[Duration]:
    from chronograd.simulate.staleness import Duration

    return [Duration.parse(text) for text in texts]


@command.command(
    name="staleness",
    epilog="\b\nchronograd simulate staleness --pushes 1,2,3,4 --pushes 2.5,5\n"
    "chronograd simulate staleness --compute 1 --compute 2.5 --updates 1000\n"
    "chronograd simulate staleness --compute exponential:1 --learners 8 --softsync 4 --push 0.1\n"
    "chronograd simulate staleness --compute uniform:0.8:1.2 --learners 4 --push 0.1 --picture staleness.svg",
)
@click.option("--pushes", multiple=True, metavar="T,T,...", help="One learner's pushes, seconds.")
@click.option("--compute", multiple=True, callback=_durations, metavar="S", help="Of one learner; may be repeated.")
@click.option("--pull", multiple=True, callback=_durations, metavar="S", help="Of all learners, or one for each.")
@click.option("--push", multiple=True, callback=_durations, metavar="S", help="Of all learners, or one for each.")
@click.option("--serve", metavar="S", help="Of the server, which takes one gradient at a time.  [default: 0]")
@click.option("--learners", type=click.IntRange(1, 100_000), help="So many alike, with a single --compute.")
@click.option("--updates", default=100, help="Updates to simulate.")
@click.option("--softsync", type=click.IntRange(1), help="n-softsync: an update takes learners/n gradients.")
@click.option("--no-wait", is_flag=True, help="A learner pulls as soon as its gradient is sent, not applied.")
@click.option("--seed", default=0, help="Of random durations.")
@click.option("--picture", type=common.FILE, help="Draw the first updates: .svg or .png.")
@common.answer_options
def staleness(pushes: tuple[str, ...], compute: list[Duration], pull: list[Duration], push: list[Duration],
              serve: str | None, learners: int | None, updates: int, softsync: int | None, no_wait: bool, seed: int,
              picture: Path | None, as_json: bool) -> None:  # fmt: skip
    """How stale gradients are: updates that others made between a learner's pull and its own update.

    Give the times of each learner's pushes, or what a learner takes: S is seconds such as 0.5, exponential:0.5 (mean),
    uniform:0.4:0.6 or normal:0.5:0.1. At one instant learners act in the order of their numbers, each its push, then its pull.
    """
    from chronograd.simulate import staleness as model
    from chronograd.simulate.simulations import learners as make
    from chronograd.simulate.simulations import staleness_answer

    if bool(pushes) == bool(compute):
        raise click.UsageError("give --pushes of each learner, or --compute")
    if pushes and (pull or push or serve or learners or no_wait):
        raise click.UsageError("--pull, --push, --serve, --learners and --no-wait go with --compute")
    if learners is not None and len(compute) > 1:
        raise click.UsageError("--learners goes with one --compute")
    count = len(pushes) or learners or len(compute)
    if softsync and softsync > count:
        raise click.UsageError(f"{softsync}-softsync needs {how_many(softsync, 'learners')}, not {count}")
    per_update = max(1, count // softsync) if softsync else 1
    if pushes:
        simulated = model.of_pushes([common.numbers("--pushes", text) for text in pushes], per_update)
    else:
        alike = make(count, compute, pull, push)
        simulated = model.simulate(alike, updates, per_update, not no_wait, seed, model.Duration.parse(serve or "0"))
    answer = staleness_answer(simulated, count, per_update)
    if picture is not None:
        from chronograd.report import plots

        figure = answer.sections[0].figure
        assert figure is not None  # pushes, and updates that were asked for, make one update or more
        plots.save(figure, picture)
    common.show(answer, as_json)
    if picture is not None and not as_json:
        common.echo(f"picture: {picture}")


@command.command(
    name="speed",
    epilog="\b\nchronograd simulate speed --batch 128 --servers 2\n"
    "chronograd simulate speed --coefficients 1.02,2.78,4.92,0,0.02 --batch 40 --servers 4 --workers 1:20\n"
    "chronograd simulate speed --coefficients 2.83,3.92,0,0.11 --servers 4\n"
    "chronograd simulate speed --batch 128 --servers 4 --steps 10000 --all-reduce",
)
@click.option(
    "--coefficients", metavar="A,A,...", help="Five: synchronous; four: asynchronous.  [default: ResNet-50 of Optimus]"
)
@click.option("--batch", type=float, help="Global batch of a synchronous step.")
@click.option("--servers", default=1, type=click.IntRange(1), help="Parameter servers.")
@click.option("--workers", default="1:20", metavar="FROM:TO", help="Numbers of workers, or 1,2,4.")
@click.option("--steps", type=common.ABOVE_0, help="Until a target: prints how long they take.")
@click.option("--all-reduce", is_flag=True, help="Beside it: the same work and link without servers.")
@common.answer_options
def speed(coefficients: str | None, batch: float | None, servers: int, workers: str, steps: float | None,
          all_reduce: bool, as_json: bool) -> None:  # fmt: skip
    """Steps per second by workers and parameter servers, and the best number of workers.

    A synchronous step of M samples takes a0·M/w + a1 + a2·w/p + a3·w + a4·p; asynchronous workers make
    w / (a0 + a1·w/p + a2·w + a3·p) steps a second together. `chronograd fit speed` finds the coefficients.
    An all-reduce of the same work takes a0·M/w + a1 + a2·(w − 1)/w + a3·w; asynchronous workers then share a minibatch.
    """
    from chronograd.predict.speed import NUM_COEFFICIENTS, OPTIMUS_RESNET50, SpeedModel
    from chronograd.simulate.simulations import speed_answer

    counts = _counts("--workers", workers)
    a = tuple(common.numbers("--coefficients", coefficients)) if coefficients else OPTIMUS_RESNET50.coefficients
    is_asynchronous = len(a) == NUM_COEFFICIENTS["asynchronous"]
    if is_asynchronous and batch is not None:
        raise click.UsageError("--batch goes with five coefficients: an asynchronous step is one worker's minibatch")
    standard = None if is_asynchronous or coefficients else OPTIMUS_RESNET50.batch
    model = SpeedModel("asynchronous" if is_asynchronous else "synchronous", a, batch or standard)
    common.show(speed_answer(model, servers, counts, steps, all_reduce), as_json)

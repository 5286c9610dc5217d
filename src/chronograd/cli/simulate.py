"""`chronograd simulate staleness|speed`: asynchronous training without a machine."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from chronograd.predict.speed import SpeedModel
    from chronograd.predict.staleness import Duration, Updates


@click.group()
def command() -> None:
    """Simulate what takes no machine: staleness of asynchronous SGD, speed by numbers of workers and servers."""


def _counts(option: str, text: str) -> list[int]:
    """`1:20` is 1, 2, … 20; `1,2,4` those three."""
    found = re.fullmatch(r"([1-9]\d{0,5}):([1-9]\d{0,5})", text)
    if not found:
        return common.whole_numbers(option, text)
    if int(found[1]) > int(found[2]):
        raise click.UsageError(f"{option} {text} is empty; write the smaller number first")
    return list(range(int(found[1]), int(found[2]) + 1))


def _durations(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> list[Duration]:
    from chronograd.predict.staleness import Duration

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
@click.option("--updates", default=100, show_default=True, help="Updates to simulate.")
@click.option("--softsync", type=click.IntRange(1), help="n-softsync: an update takes learners/n gradients.")
@click.option("--no-wait", is_flag=True, help="A learner pulls as soon as its gradient is sent, not applied.")
@click.option("--seed", default=0, show_default=True, help="Of random durations.")
@click.option(
    "--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw the first updates: .svg or .png."
)
@common.json_option
def staleness(pushes: tuple[str, ...], compute: list[Duration], pull: list[Duration], push: list[Duration],
              serve: str | None, learners: int | None, updates: int, softsync: int | None, no_wait: bool, seed: int,
              picture: Path | None, as_json: bool) -> None:  # fmt: skip
    """How stale gradients are: updates that others made between a learner's pull and its own update.

    Give the times of each learner's pushes, or what a learner takes: S is seconds such as 0.5, exponential:0.5 (mean),
    uniform:0.4:0.6 or normal:0.5:0.1. At one instant learners act in the order of their numbers, each its push, then its pull.
    """
    from chronograd.predict import staleness as model

    if bool(pushes) == bool(compute):
        raise click.UsageError("give --pushes of each learner, or --compute")
    if pushes and (pull or push or serve or learners or no_wait):
        raise click.UsageError("--pull, --push, --serve, --learners and --no-wait go with --compute")
    if learners is not None and len(compute) > 1:
        raise click.UsageError("--learners goes with one --compute")
    count = len(pushes) or learners or len(compute)
    if softsync and softsync > count:
        raise click.UsageError(f"{softsync}-softsync needs {softsync} learners, not {count}")
    per_update = max(1, count // softsync) if softsync else 1
    if pushes:
        found = model.of_pushes([common.numbers("--pushes", text) for text in pushes], per_update)
    else:
        parts = [_each(name, given, count) for name, given in (("compute", compute), ("pull", pull), ("push", push))]
        alike = [model.Learner(*of_one) for of_one in zip(*parts, strict=True)]
        found = model.simulate(alike, updates, per_update, not no_wait, seed, model.Duration.parse(serve or "0"))
    if picture is not None:
        _draw(found, count, picture)
    if as_json:
        common.print_json(_as_data(found, count))
        return
    _print(found, count, per_update)
    if picture is not None:
        click.echo(f"picture    {picture}")


def _draw(found: Updates, count: int, path: Path) -> None:
    from chronograd.figure import Figure
    from chronograd.report import lanes, plots

    plots.save(Figure([lanes.panel(found, count)]), path)


def _each(name: str, given: list[Duration], count: int) -> list[Duration]:
    from chronograd.predict.staleness import Duration

    if len(given) not in (0, 1, count):
        raise click.UsageError(f"{len(given)} times --{name} for {count} learners: give it once, or for each")
    return (given or [Duration("fixed", (0.0,))]) * (1 if len(given) == count else count)


def _as_data(found: Updates, count: int) -> dict[str, Any]:
    columns = (
        found.learner,
        found.index,
        found.applied_ns,
        found.staleness,
        found.update,
        found.pushed_ns,
        found.read_ns,
    )
    names = ("learner", "index", "time_s", "staleness", "update", "pushed_s", "read_s")
    rows = zip(*(c / 1e9 if n.endswith("_s") else c for n, c in zip(names, columns, strict=True)), strict=True)
    return {
        "updates": [{name: value.item() for name, value in zip(names, row, strict=True)} for row in rows],
        "mean_staleness": _known(found.mean),
        "updates_per_s": _known(found.updates_per_s),
        "waiting": found.num_waiting,
        "distribution": [
            {"staleness": value, "gradients": number, "share": number / len(found.staleness)}
            for value, number in found.distribution()
        ],
        "learners": [_learner(found, number) for number in range(1, count + 1)],
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _learner(found: Updates, number: int) -> dict[str, Any]:
    own = found.of_learner(number)
    mean, most = (float(own.mean()), int(own.max())) if len(own) else (None, None)
    return {"learner": number, "gradients": len(own), "mean_staleness": mean, "max_staleness": most}


# More are not printed in a terminal; --json has all.
_MOST_ROWS = 20


def _print(found: Updates, count: int, per_update: int) -> None:
    from chronograd.units import percent, seconds

    data = _as_data(found, count)
    shown = data["updates"][:_MOST_ROWS]
    rest = len(data["updates"]) - len(shown)
    common.print_table(
        ("applied", "gradient", "weights read", "staleness"),
        [
            [seconds(u["time_s"]), f"{u['index']} of learner {u['learner']}", seconds(u["read_s"]), str(u["staleness"])]
            for u in shown
        ],
        right=(0, 2, 3),
        title=f"{len(data['updates'])} gradients of {count} learner{'s' * (count > 1)}"
        + (f", {per_update} to an update" if per_update > 1 else ""),
        caption=f"and {rest:,} more: --json has all" if rest > 0 else "",
    )
    common.print_table(
        ("staleness", "gradients", "share"),
        [[str(d["staleness"]), str(d["gradients"]), percent(d["share"], 1)] for d in data["distribution"][:_MOST_ROWS]],
        right=range(3),
    )
    if data["mean_staleness"] is not None:
        rate = "" if data["updates_per_s"] is None else f", {data['updates_per_s']:.4g} updates per second"
        each = ", ".join(
            f"learner {one['learner']} {one['mean_staleness']:.3g}"
            for one in data["learners"][:8]
            if one["mean_staleness"] is not None
        )
        click.echo(f"mean staleness {data['mean_staleness']:.4g}{rate}; {each}")
    if found.num_waiting:
        click.echo(f"{found.num_waiting} gradients arrived and wait for an update")


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
@click.option("--servers", default=1, show_default=True, type=click.IntRange(1), help="Parameter servers.")
@click.option("--workers", default="1:20", show_default=True, metavar="FROM:TO", help="Numbers of workers, or 1,2,4.")
@click.option("--steps", type=click.FloatRange(0, min_open=True), help="Until a target: prints how long they take.")
@click.option("--all-reduce", is_flag=True, help="Beside it: the same work and link without servers.")
@common.json_option
def speed(coefficients: str | None, batch: float | None, servers: int, workers: str, steps: float | None,
          all_reduce: bool, as_json: bool) -> None:  # fmt: skip
    """Steps per second by workers and parameter servers, and the best number of workers.

    A synchronous step of M samples takes a0·M/w + a1 + a2·w/p + a3·w + a4·p; asynchronous workers make
    w / (a0 + a1·w/p + a2·w + a3·p) steps a second together. `chronograd fit speed` finds the coefficients.
    An all-reduce of the same work takes a0·M/w + a1 + a2·(w − 1)/w + a3·w; asynchronous workers then share a minibatch.
    """
    from chronograd.predict.speed import NUM_COEFFICIENTS, OPTIMUS_RESNET50, SpeedModel

    counts = _counts("--workers", workers)
    a = tuple(common.numbers("--coefficients", coefficients)) if coefficients else OPTIMUS_RESNET50.coefficients
    is_asynchronous = len(a) == NUM_COEFFICIENTS["asynchronous"]
    if is_asynchronous and batch is not None:
        raise click.UsageError("--batch goes with five coefficients: an asynchronous step is one worker's minibatch")
    standard = None if is_asynchronous or coefficients else OPTIMUS_RESNET50.batch
    model = SpeedModel("asynchronous" if is_asynchronous else "synchronous", a, batch or standard)
    found: dict[str, Any] = {"mode": model.mode, "coefficients": list(a), "batch": model.batch, "servers": servers}
    found |= _speeds(model, servers, counts, steps)
    if all_reduce:
        found["all_reduce"] = _speeds(model.all_reduce(), servers, counts, steps)
    if as_json:
        common.print_json(found)
        return
    title = f"{model.mode}, {servers} server{'s' * (servers > 1)}" + (f", batch {model.batch:g}" if model.batch else "")
    _print_speeds(title, found, model.steps_per_s(1, servers))
    if all_reduce:
        _print_speeds("all-reduce, no servers", found["all_reduce"], model.all_reduce().steps_per_s(1))


def _speeds(model: SpeedModel, servers: int, counts: list[int], steps: float | None) -> dict[str, Any]:
    speeds = [float(f) for f in model.steps_per_s(counts, servers)]
    found: dict[str, Any] = {
        "best_workers": model.best_workers(servers, counts),
        "closed_form_workers": model.closed_form(servers),
        "steps_per_s": {str(w): f for w, f in zip(counts, speeds, strict=True)},
    }
    if steps is not None:
        found["time_s"] = {str(w): float(t) for w, t in zip(counts, model.time_s(steps, counts, servers), strict=True)}
    return found


def _print_speeds(title: str, found: dict[str, Any], one: float) -> None:
    from chronograd.units import seconds

    exact, times = found["closed_form_workers"], found.get("time_s", {})
    told = f"; exactly {exact:.2f}" if exact is not None else "; more are always faster"
    common.print_table(
        ("workers", "steps/s", "speed-up", *(["time"] if times else []), ""),
        [
            [w, f"{f:.4g}", f"{f / one:.2f}", *([seconds(times[w])] if times else []), "best" * (w == str(found["best_workers"]))]
            for w, f in found["steps_per_s"].items()
        ],
        right=range(4 if times else 3),
        title=title,
        caption=f"best: {found['best_workers']}{told}",
    )  # fmt: skip

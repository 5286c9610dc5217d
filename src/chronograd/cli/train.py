"""`chronograd train JOB`: train to the epochs or the target accuracy, with a curve and checkpoints."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from chronograd.job import Job
    from chronograd.rundir import RunDir

OnPoll = Callable[["RunDir"], None]


@click.command(name="train")
@click.argument("job_file", metavar="JOB|NETWORK", required=False)
@click.argument("overrides", nargs=-1, metavar="[FIELD=VALUE]...")
@common.short_options
@common.print_config_option
@click.option("--out", type=click.Path(), help="Run directory; a new one in runs/ by default.")
@click.option(
    "--resume",
    "resumed",
    type=click.Path(),
    help="Go on with the run in this directory, without JOB. training.epochs=N extends it.",
)
@click.option("--initial-weights", type=click.Path(exists=True, dir_okay=False), help="A safetensors file.")
@click.option("--launcher", type=click.Choice(["local", "torchrun", "horovodrun"]), help="How ranks are started.")
@common.hosts_option
@click.option("--seeds", type=click.IntRange(2), help="Train once per seed; the record has mean and deviation.")
@click.option("--tensorboard", is_flag=True, help="Also write TensorBoard events, as the run goes on.")
@common.answer_options
def command(job_file: str | None, overrides: tuple[str, ...], print_config: bool, resumed: str | None, hosts: str | None,
            tensorboard: bool, as_json: bool, **options: Any) -> None:  # fmt: skip
    """Train a job to its epochs or target accuracy; resumes.

    Writes a run directory with a checkpoint per epoch. After an interruption, even by kill -9, --resume ends
    with bit-identical weights (same number of ranks and threads, on the CPU).

    \b
    chronograd train examples/digits.yaml
    chronograd train examples/digits.yaml training.epochs=20 --out runs/mine
    chronograd train --resume runs/mine
    chronograd train --resume runs/mine training.epochs=40
    """
    if job_file is None and resumed is None:
        raise click.UsageError("Name a JOB, or a run to --resume.")
    more: tuple[str, ...] = ()
    if resumed is not None and job_file is not None and "=" in job_file:
        more, overrides = (job_file, *overrides), ()
        job_file = None
    asked = None if job_file is None else common.read_asked(job_file, overrides, print_config)
    job = None if asked is None else asked.job
    for note in asked.notes if asked is not None else ():
        common.echo(f"note: {note}", err=True)
    if resumed is not None and any(options[name] is not None for name in ("out", "initial_weights", "seeds")):
        raise click.UsageError("--resume goes on with what was begun: leave --out, --initial-weights and --seeds out.")
    if tensorboard:
        importlib.import_module("chronograd.watch.tensorboard")  # an extra: better missed now than after training
    tensorboard = tensorboard or (resumed is not None and common.has_events(resumed))
    launcher = common.launcher(options.pop("launcher"), hosts)
    with _shown(tensorboard) as on_poll:
        run = _train(job, resumed, more, launcher=launcher, on_poll=on_poll, **options)
    if tensorboard:
        common.write_events(run)
    common.show_run(run, as_json)


def _train(job: Job | None, resumed: str | None, more: tuple[str, ...], seeds: int | None, out: str | None, initial_weights: str | None,
           **how: Any) -> RunDir:  # fmt: skip
    """`more`: overrides of the job of the run that is resumed. `how`: the launcher, and who is told how it goes."""
    from chronograd.errors import JobError
    from chronograd.launch import jobs, repeats
    from chronograd.rundir import RunDir

    if resumed is not None:
        run = RunDir.open(resumed)
        if repeats.seeds_of(run) is not None:
            if more:
                raise JobError(
                    f"{resumed} has several seeds and cannot be extended", "train a new run with more epochs"
                )
            return repeats.resume_over_seeds(run, **how)
        if more and (note := jobs.extend(run, more, how["launcher"])):
            common.echo(f"note: {note}", err=True)
    else:
        assert job is not None
        jobs.check_trained(job)
        if seeds is not None:
            return repeats.train_over_seeds(job, seeds, out=out, initial_weights=initial_weights, **how)
        run = jobs.create(job, out, initial_weights=initial_weights, launcher=how["launcher"])
    common.echo(f"run: {run.path}", err=True)
    return jobs.resume(run, job, **how)


@contextmanager
def _shown(with_events: bool) -> Iterator[OnPoll]:
    """Shows the run that goes on: on a terminal its ranks, else one plain line per epoch; and writes its events."""
    from chronograd.watch.terminal import Screen

    with ExitStack() as stack:
        followers: list[OnPoll] = [stack.enter_context(Screen(common.console(stderr=True)))]
        if with_events:
            from chronograd.watch.tensorboard import LiveEvents

            followers.append(stack.enter_context(closing(LiveEvents())))

        def on_poll(run: RunDir) -> None:
            for follower in followers:
                follower(run)

        yield on_poll

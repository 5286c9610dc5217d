"""`chronograd train JOB`: train to the epochs or the target accuracy, with a curve and checkpoints."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from chronograd.job import Job
    from chronograd.rundir import RunDir

OnLine = Callable[[dict[str, Any]], None]


@click.command(name="train")
@click.argument("job_file", metavar="JOB", required=False)
@click.argument("overrides", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option("--print-config", is_flag=True, help="Print the resolved job and stop; nothing is started.")
@click.option("--out", type=click.Path(), help="Run directory; a new one in runs/ by default.")
@click.option("--resume", "resumed", type=click.Path(), help="Go on with the run in this directory. JOB is not needed.")
@click.option("--initial-weights", type=click.Path(exists=True, dir_okay=False), help="A safetensors file.")
@click.option("--launcher", type=click.Choice(["local", "torchrun", "horovodrun"]), help="How ranks are started.")
@click.option("--seeds", type=click.IntRange(2), help="Train once per seed; the record has mean and deviation.")
@click.option("--tensorboard", is_flag=True, help="Also write TensorBoard events into the run directory.")
@common.json_option
def command(
    job_file: str | None,
    overrides: tuple[str, ...],
    print_config: bool,
    out: str | None,
    resumed: str | None,
    initial_weights: str | None,
    launcher: str | None,
    seeds: int | None,
    tensorboard: bool,
    as_json: bool,
) -> None:
    """Train a job to its epochs or target accuracy; resumes.

    Writes a run directory with a checkpoint per epoch. After an interruption, even by kill -9, --resume ends
    with bit-identical weights (same number of ranks and threads, on the CPU).

    \b
    chronograd train examples/digits.yaml
    chronograd train examples/digits.yaml training.epochs=20 --out runs/mine
    chronograd train --resume runs/mine
    """
    job = _job_to_train(job_file, overrides, print_config, resumed)
    if resumed is not None and (out is not None or initial_weights is not None or seeds is not None):
        raise click.UsageError("--resume goes on with what was begun: leave --out, --initial-weights and --seeds out.")
    if tensorboard:
        importlib.import_module("chronograd.report.tensorboard")  # an extra: better missed now than after training
    run = _train(job, out, resumed, initial_weights, launcher, seeds)
    if tensorboard:
        _write_events(run)
    record = run.record()
    if as_json:
        common.print_json({"run": str(run.path), **record.model_dump(mode="json")})
        return
    common.print_record(record)


def _job_to_train(
    job_file: str | None, overrides: Sequence[str], print_config: bool, resumed: str | None
) -> Job | None:
    """The job of the command line; None where a run is resumed that has its own."""
    if job_file is not None:
        return common.read_job(job_file, overrides, print_config)
    if resumed is None:
        raise click.UsageError("Name a JOB, or a run to --resume.")
    return None


def _train(
    job: Job | None,
    out: str | None,
    resumed: str | None,
    initial_weights: str | None,
    launcher: str | None,
    seeds: int | None,
) -> RunDir:
    from chronograd.launch import jobs, repeats
    from chronograd.rundir import RunDir

    if resumed is not None:
        run = RunDir.open(resumed)
        if repeats.seeds_of(run) is not None:
            with progress(run.job()) as on_line:
                return repeats.resume_over_seeds(run, launcher=launcher, on_line=on_line)
    elif seeds is not None:
        assert job is not None
        with progress(job) as on_line:
            return repeats.train_over_seeds(
                job, seeds, out=out, initial_weights=initial_weights, launcher=launcher, on_line=on_line
            )
    else:
        assert job is not None
        run = jobs.create(job, out, initial_weights=initial_weights)
    click.echo(f"run: {run.path}", err=True)
    with progress(run.job()) as on_line:
        return jobs.resume(run, job, launcher=launcher, on_line=on_line)


def _write_events(run: RunDir) -> None:
    """TensorBoard events of a run, or of each seed of repeats."""
    from chronograd.report.tensorboard import write_events
    from chronograd.rundir import RunDir

    ones = [RunDir.open(path) for path in sorted(run.path.glob("seed-*"))] or [run]
    for one in ones:
        click.echo(f"tensorboard: {write_events(one)}", err=True)


@contextmanager
def progress(job: Job) -> Iterator[OnLine]:
    """Shows the lines of rank 0 on standard error: a bar on a terminal, else one plain line per epoch."""
    from chronograd.data.datasets import card

    console = common.console(stderr=True)
    epochs = job.training.epochs
    if not console.is_terminal:
        yield lambda line: console.print(_epoch_text(line, epochs)) if line.get("event") == "epoch" else None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    total = card(job.data).train_size // job.training.batch * epochs
    columns = (
        TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
        BarColumn(),
        TextColumn("{task.fields[rate]} steps/s  loss {task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=total, rate="–", loss="–")

        def on_line(line: dict[str, Any]) -> None:
            if line.get("event") == "epoch":
                bar.console.print(_epoch_text(line, epochs))
            elif "loss" in line:
                loss = "not finite" if line["loss"] is None else f"{line['loss']:.3f}"
                rate = f"{1 / line['step_time_s']:.1f}" if line["step_time_s"] else "–"
                bar.update(task, completed=line["step"], rate=rate, loss=loss)

        yield on_line


def _epoch_text(line: dict[str, Any], epochs: int) -> str:
    from chronograd.units import percent, seconds

    loss = "not finite" if line["train_loss"] is None else f"{line['train_loss']:.4f}"
    accuracy = line["test_accuracy"]
    tested = "" if accuracy is None else f"test accuracy {percent(accuracy)}  "
    return f"epoch {line['epoch']}/{epochs}  step {line['step']}  train loss {loss}  {tested}{seconds(line['seconds'])}"

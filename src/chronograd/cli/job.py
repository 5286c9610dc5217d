"""`chronograd job from FILE`, `job log FILE`: the job of a platform's file, and the run of a platform's log."""

from __future__ import annotations

from pathlib import Path

import click

from chronograd.cli import common
from chronograd.words import how_many


@click.group()
def command() -> None:
    """Read the job that a platform's file trains, or the run that its log tells of."""


@command.command(name="from")
@click.argument("file", type=common.FILE)
@click.option("--out", type=common.FILE, help="Write the job file there.")
@common.json_option
def from_file(file: Path, out: Path | None, as_json: bool) -> None:
    """Print the job of FILE, rendered by `chronograd launch` or changed by hand since.

    What the file asks for beside the job, and what of it was not understood, goes to standard error.

    \b
    chronograd launch sagemaker examples/digits.yaml --out rendered ...
    chronograd job from rendered/sagemaker.json --out digits.yaml
    """
    from chronograd import job as jobs
    from chronograd.clouds import rendering
    from chronograd.files import as_asked, write_aside

    opened = rendering.opened(file)
    if as_json:
        common.print_json(opened.as_data())
        return
    text = jobs.to_yaml(opened.asked.job, is_whole=False)
    if out is not None:
        with as_asked(out):
            write_aside(out, text)
        common.echo(f"wrote the job to {out}", err=True)
    else:
        common.echo(text, nl=False)
    for line in opened.lines():
        common.echo(line, err=True)


@command.command(name="log")
@click.argument("file", type=common.FILE)
@click.option("--out", required=True, type=common.PATH, help="The run directory, which is made.")
@common.json_option
def from_log(file: Path, out: Path, as_json: bool) -> None:
    """Make a run directory of the log of a job that `chronograd launch` rendered.

    FILE is text as `kubectl logs`, `sky logs`, Azure ML's std_log.txt or watsonx.ai have it, or JSON of CloudWatch Logs or Cloud
    Logging. Once the job has ended its record is there, and `explain` and `compare` take the run as any other.

    \b
    aws logs filter-log-events --log-group-name /aws/sagemaker/TrainingJobs --log-stream-name-prefix digits/ > digits.json
    chronograd job log digits.json --out runs/digits
    """
    from chronograd.clouds.collect import collect

    run = collect(file, out)
    steps = len(run.read_steps().steps)
    if as_json:
        common.print_json({"run": str(run.path), "is_finished": run.is_finished, "steps": steps})
        return
    common.echo(
        f"{run.path}: {how_many(steps, 'steps')}"
        + ("" if run.is_finished else "; no record, as the log does not have its end")
    )

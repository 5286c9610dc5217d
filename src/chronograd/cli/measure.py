"""`chronograd measure JOB`: time the steps of a job for real."""

from __future__ import annotations

from contextlib import nullcontext

import click

from chronograd.cli import common


@click.command(name="measure")
@common.job_arguments
@click.option("--steps", "num_steps", default=30, show_default=True, type=click.IntRange(1), help="Steps to time.")
@click.option("--warmup", default=5, show_default=True, type=click.IntRange(1), help="Steps before the clock starts.")
@click.option("--seconds", default=60.0, show_default=True, type=click.FloatRange(0, min_open=True), help="At most.")
@click.option("--out", type=click.Path(), help="Run directory; a new one in runs/ by default.")
@click.option("--launcher", type=click.Choice(["local", "torchrun"]), help="How ranks are started.")
@common.json_option
def command(
    job_file: str,
    overrides: tuple[str, ...],
    print_config: bool,
    num_steps: int,
    warmup: int,
    seconds: float,
    out: str | None,
    launcher: str | None,
    as_json: bool,
) -> None:
    """Time a job's steps for real, on one process or many.

    Steps are timed after a warm-up, in their parts: input, transfer, forward, backward, exposed
    communication, update. Writes a run directory.

    \b
    chronograd measure examples/digits.yaml
    chronograd measure examples/digits.yaml backend=ddp cluster.count=2 --steps 50
    """
    job = common.read_job(job_file, overrides, print_config)
    from chronograd.launch import jobs

    console = common.console(stderr=True)
    with console.status("timing steps") if console.is_terminal else nullcontext():
        run = jobs.measure(job, num_steps=num_steps, warmup=warmup, seconds=seconds, out=out, launcher=launcher)
    record = run.record()
    if as_json:
        common.print_json({"run": str(run.path), **record.model_dump(mode="json")})
        return
    common.print_record(record)
    click.echo(f"run: {run.path}")

"""`chronograd measure JOB`: time the steps of a job for real."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from chronograd.job import Job


@click.command(name="measure")
@common.job_arguments
@click.option("--steps", "num_steps", type=click.IntRange(1), help="Steps to time: 30, in inference 200 batches.")
@click.option("--warmup", default=5, type=click.IntRange(1), help="Steps before the clock starts.")
@click.option("--seconds", default=60.0, type=common.ABOVE_0, help="At most.")
@click.option(
    "--world", "worlds", callback=common.counts, help="Numbers of ranks, such as 1,2,4: one run each, and a table."
)
@click.option("--scaling", default="strong",
              help="With --world: strong (the batch stays), weak (the batch of a rank stays), or strong,weak.")  # fmt: skip
@click.option("--epochs", "with_epochs", is_flag=True,
              help="Also time whole epochs: the second after one of warm-up, and one without loading data.")  # fmt: skip
@click.option(
    "--batches", callback=common.counts, help="With --epochs: batch sizes, such as 32,128,512, until memory is full."
)
@click.option("--layers", "with_layers", is_flag=True,
              help="Time each layer of the network in inference instead: waited for, not waited for, its matrix product alone.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(1), help="With --layers: passes of each kind; 20.")
@click.option("--on", metavar="DEVICE", shell_complete=common.complete_devices,
              help="With --layers: device to predict for; by default the one that is here, where it is known.")  # fmt: skip
@click.option("--out", type=click.Path(), help="Run directory; a new one in runs/ by default.")
@click.option("--launcher", help="How ranks are started: local, torchrun, horovodrun; the backend's own by default.")
@common.hosts_option
@common.answer_options
def command(job_file: str, overrides: tuple[str, ...], print_config: bool, worlds: list[int] | None, scaling: str,
            with_epochs: bool, batches: list[int] | None, with_layers: bool, repeats: int | None, on: str | None,
            out: str | None, hosts: str | None, as_json: bool, **timing: Any) -> None:  # fmt: skip
    """Time a job's steps for real, on one process or many.

    Steps are timed after a warm-up, in their parts: input, transfer, forward, backward, exposed
    communication, update. Writes a run directory.

    \b
    chronograd measure examples/digits.yaml
    chronograd measure examples/digits.yaml backend=ddp cluster.count=2 --steps 50
    chronograd measure examples/digits.yaml backend=ddp --world 1,2,4 --scaling strong,weak
    chronograd measure examples/digits.yaml backend=ddp cluster.count=2 --hosts node1,node2
    chronograd measure resnet18 --inference --batch 8
    chronograd measure examples/digits.yaml --epochs --batches 32,128,512
    chronograd measure torchvision:googlenet --layers --batch 8 --precision fp32
    """
    job = common.read_job(job_file, overrides, print_config)
    if with_layers:
        if worlds is not None or with_epochs or out or hosts or timing["launcher"] or timing["num_steps"]:
            raise click.UsageError(
                "--layers times passes in this process; it takes --batch, --precision, --repeats, --warmup"
            )
        _measure_layers(job, job_file, overrides, repeats or 20, timing["warmup"], on, as_json)
        return
    if repeats is not None or on is not None:
        raise click.UsageError("--repeats and --on belong to --layers")
    if batches is not None and not with_epochs:
        raise click.UsageError("--batches times epochs; add --epochs")
    if worlds is not None and job.mode == "inference":
        raise click.UsageError("--world shows how training scales; in inference each device works by itself")
    if worlds is not None and with_epochs:
        raise click.UsageError("--world times steps; leave --epochs out")
    timing["launcher"] = common.launcher(timing["launcher"], hosts)
    if worlds is not None:
        if timing.pop("launcher"):
            raise click.UsageError(
                "--world starts each run by its backend's own launcher; leave --launcher and --hosts out"
            )
        _measure_scaling(job, worlds, scaling.split(","), out, as_json, timing)
        return
    if batches is not None:
        from chronograd.bench.batches import measure_batches

        common.show(measure_batches(job, batches, out, **timing), as_json)
        return
    from chronograd.launch import jobs

    console = common.console(stderr=True)
    with console.status("timing steps") if console.is_terminal else nullcontext():
        run = jobs.measure(job, out=out, with_epochs=with_epochs, **timing)
    common.show_run(run, as_json)
    if not as_json:
        common.echo(f"run: {run.path}")


def _measure_layers(
    job: Job, job_file: str, overrides: tuple[str, ...], repeats: int, warmup: int, on: str | None, as_json: bool
) -> None:
    from chronograd.ask import is_batch_stated
    from chronograd.bench.layers import layers_answer, measure_layers
    from chronograd.job import changed

    if common.batches() is None and not is_batch_stated(job, job_file, overrides):
        job = changed(job, ["training.batch=1"])
    with common.waiting("timing layers") as say:
        times = measure_layers(job, repeats=repeats, warmup=warmup, on=on, say=say)
    common.show(layers_answer(times), as_json)


def _measure_scaling(
    job: Job, worlds: list[int], scalings: list[str], out: str | None, as_json: bool, timing: dict[str, Any]
) -> None:
    from chronograd.bench.scaling import measure_scaling
    from chronograd.data.datasets import card
    from chronograd.data.trace_job import trace_job
    from chronograd.measure import environment
    from chronograd.rundir import RunDir

    with common.waiting("counting the work of the network"):
        trace = trace_job(job)
    whole = RunDir.create(job, environment.environment(), out)
    common.echo(f"timing steps on {', '.join(map(str, worlds))} ranks", err=True)
    record = measure_scaling(
        job,
        worlds,
        scalings,  # type: ignore[arg-type]
        folder=whole.path,
        trace=trace,
        samples=card(job.data).train_size,
        say=lambda line: common.echo(line, err=True),
        **timing,
    )
    whole.save_record(record)
    if as_json:
        common.print_json(common.run_data(whole))
        return
    from chronograd.answer import Answer
    from chronograd.compare.ranks import throughput_section

    rows = [point.model_dump() for point in record.tables.scaling]
    sections = [
        throughput_section(
            f"{name} scaling: {record.title}", [r for r in rows if r["scaling"] == name], with_communication=True
        )
        for name in dict.fromkeys(row["scaling"] for row in rows)
    ]
    common.show(Answer(record.title, sections=sections, notes=record.notes), as_json=False)
    common.echo(f"run: {whole.path}")

"""`chronograd predict JOB --on 8xV100`: a record that has not happened yet."""

from __future__ import annotations

from pathlib import Path

import click

from chronograd.cli import common


@click.command(
    epilog="\b\nchronograd predict examples/digits.yaml --on 8xV100\nchronograd predict job.yaml --trace net.json.gz --on h100 --json"
)
@common.job_arguments
@click.option(
    "--on",
    "places",
    multiple=True,
    metavar="[COUNTx]DEVICE",
    help="Device, instead of the job's; may be given several times.",
)
@click.option("--trace", "trace_file", type=click.Path(path_type=Path), help="A saved trace; needs no torch.")
@click.option(
    "--algorithm",
    default="ring",
    show_default=True,
    help="All-reduce: ring, tree, halving_doubling, recursive_doubling or reduce_to_one.",
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Save the record (.json).")
@common.json_option
def command(job_file: str, overrides: tuple[str, ...], print_config: bool, places: tuple[str, ...],
            trace_file: Path | None, algorithm: str, out: Path | None, as_json: bool) -> None:  # fmt: skip
    """Predict step time by part, memory, throughput, utilisation and cost, each with an interval.

    Without torch, give a trace saved by `chronograd count JOB --out FILE`.
    """
    from chronograd.data.datasets import card
    from chronograd.data.trace_job import trace_job
    from chronograd.job import changed, parse_on
    from chronograd.predict.prediction import predict
    from chronograd.trace import Trace

    job = common.read_job(job_file, overrides, print_config)
    jobs = [job]
    if places:
        settings = [parse_on(place) for place in places]
        jobs = [changed(job, [f"cluster.count={count}", f"cluster.device={name}"]) for count, name in settings]
    if out is not None and len(jobs) > 1:
        raise click.UsageError("--out takes one record; give --on once")
    trace = Trace.load(trace_file) if trace_file else trace_job(job)
    samples = card(job.data).train_size
    records = [predict(trace, j, samples=samples, algorithm=algorithm) for j in jobs]
    if out is not None:
        records[0].save(out)
    if as_json:
        data = [r.model_dump(mode="json") for r in records]
        common.print_json(data if len(data) > 1 else data[0])
        return
    for record in records:
        common.print_record(record)

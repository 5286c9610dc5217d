"""`chronograd predict JOB --on 8xV100`: a record that has not happened yet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from chronograd.compare.scaling import Scaling


@click.command(
    epilog="\b\nchronograd predict examples/digits.yaml --on 8xV100\nchronograd predict job.yaml --trace net.json.gz --on h100 --json"
)
@common.job_arguments
@click.option(
    "--on",
    "places",
    multiple=True,
    metavar="[COUNTx]DEVICE",
    shell_complete=common.complete_devices,
    help="Device, instead of the job's; may be given several times.",
)
@common.trace_option
@click.option(
    "--algorithm",
    help="All-reduce: ring (usual), tree (PALEO's), halving_doubling, recursive_doubling or butterfly, reduce_to_one or "
    "one_to_all, hierarchical.",
)
@click.option(
    "--model",
    type=click.Choice(["operators", "paleo"]),
    default="operators",
    help="What predicts: a calibrated time of every operator, or PALEO (Qi et al. 2017).",
)
@click.option("--ppp", default=0.62, help="PALEO's percent of peak for computation, as a fraction.")
@click.option("--ppp-comm", default=0.72, help="The same for communication.")
@click.option("--scaling", type=click.Choice(["strong", "weak"]), help="A table over --counts instead of one setting.")
@click.option("--counts", default="1,2,4,8", callback=common.counts, help="Numbers of devices for --scaling.")
@click.option("--timeline", type=common.FILE, help="Save the step for Perfetto (.json).")
@click.option("--layers", is_flag=True, help="Print each layer's roofline and the three with most time to win.")
@click.option("--depth", type=click.IntRange(0), help="With --layers: depth of the modules; 0 is every operator.")
@click.option(
    "--measured-on",
    type=common.PATH,
    metavar="RECORD",
    help="A measured record of the same network on another device; what it showed there is carried over.",
)
@click.option("--out", type=common.FILE, help="Save the record (.json).")
@common.answer_options
def command(job_file: str, overrides: tuple[str, ...], print_config: bool, places: tuple[str, ...],
            trace_file: Path | None, algorithm: str | None, model: str, ppp: float, ppp_comm: float,
            scaling: Scaling | None, counts: list[int], timeline: Path | None, layers: bool, depth: int | None,
            measured_on: Path | None, out: Path | None, as_json: bool) -> None:  # fmt: skip
    """Predict step time by part, memory, throughput, utilisation and cost, each with an interval.

    Without torch, give a trace saved by `chronograd count JOB --out FILE`.
    """
    from chronograd.compare.scaling import predict_scaling
    from chronograd.data.datasets import card
    from chronograd.data.trace_job import trace_job
    from chronograd.hardware import catalog
    from chronograd.predict.answer import on_devices, predict_jobs
    from chronograd.predict.prediction import setting_of
    from chronograd.predict.timeline import timeline_of_step
    from chronograd.record import Record

    jobs = on_devices(common.read_job(job_file, overrides, print_config), places)
    is_paleo = model == "paleo"
    if out is not None and len(jobs) > 1:
        raise click.UsageError("--out takes one record; give --on once")
    if scaling is not None and out is not None:
        raise click.UsageError("--scaling prints a table and saves no record; leave --out out, or use --json")
    if timeline is not None and (len(jobs) > 1 or is_paleo or scaling):
        raise click.UsageError("--timeline takes one setting, and neither --model paleo nor --scaling")
    if is_paleo and layers:
        raise click.UsageError("--layers needs times of operators; leave --model paleo out")
    if is_paleo and measured_on is not None:
        raise click.UsageError("--measured-on corrects times of operators; leave --model paleo out")
    for job in jobs:
        catalog.device(job.cluster.device)  # before torch is imported
    with common.waiting("counting the work of the network"):
        trace = trace_job(jobs[0], trace_file)
    samples = card(jobs[0].data).train_size
    options: dict[str, Any] = {
        "algorithm": algorithm or ("tree" if is_paleo else None),
        "ppp": (ppp, ppp_comm) if is_paleo else None,
    }
    if scaling is not None:
        common.show(predict_scaling(trace, jobs, counts, scaling, samples, **options), as_json)
        return
    if timeline is not None:
        common.save_json(timeline, timeline_of_step(trace, setting_of(jobs[0], algorithm)))
    measured = Record.load(measured_on) if measured_on else None
    with common.waiting("predicting"):
        answer = predict_jobs(
            trace, jobs, samples=samples, depth=depth, with_layers=layers, measured=measured, **options
        )
    if out is not None:
        next(iter(answer.records.values())).save(out)
    common.show(answer, as_json)

"""`chronograd predict JOB --on 8xV100`: a record that has not happened yet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chronograd.compare.scaling import Scaling
    from chronograd.job import Job


@click.command(
    epilog="\b\nchronograd predict examples/digits.yaml --on 8xV100\n"
    "chronograd predict resnet50 --on v100 --precision fp16 --inference --batch 1,8,64\n"
    "chronograd predict gpt2-small --on a100 --precision bf16 --batch 8\n"
    "chronograd predict resnet50 --on v100 --measured-on rtx3090=234/s\n"
    "chronograd predict job.yaml --trace net.json.gz --on h100 --json"
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
    metavar="RECORD|DEVICE=FIGURE",
    help="What was measured of the same network on another device, which is carried over: a record, or a figure such as "
    "rtx3090=1234/s or 8xv100=78ms, of the same job.",
)
@click.option("--out", type=common.FILE, help="Save the record (.json).")
@common.answer_options
def command(job_file: str, overrides: tuple[str, ...], print_config: bool, places: tuple[str, ...],
            trace_file: Path | None, algorithm: str | None, model: str, ppp: float, ppp_comm: float,
            scaling: Scaling | None, counts: list[int], timeline: Path | None, layers: bool, depth: int | None,
            measured_on: str | None, out: Path | None, as_json: bool) -> None:  # fmt: skip
    """Predict step time by part, memory, throughput, utilisation and cost, each with an interval.

    With --inference: latency and throughput, of each batch of --batch 1,8,64, and what a million samples cost.

    Without torch, give a trace saved by `chronograd count JOB --out FILE`.
    """
    from chronograd.compare.scaling import predict_scaling
    from chronograd.data.datasets import card
    from chronograd.data.trace_job import trace_job
    from chronograd.hardware import catalog
    from chronograd.job import changed
    from chronograd.predict.answer import factor_of, of_figure, on_devices, predict_jobs
    from chronograd.predict.prediction import setting_of
    from chronograd.predict.serving import predict_batches
    from chronograd.predict.timeline import timeline_of_step
    from chronograd.record import Record

    job = common.read_job(job_file, overrides, print_config, takes_batches=True)
    batches = _batches(job, job_file, overrides)
    if len(batches) > 1:  # of which each device needs a sample
        job = changed(job, [f"training.batch={max(batches)}"])
    jobs = on_devices(job, places)
    is_paleo = model == "paleo"
    if scaling is not None and job.mode == "inference":
        raise click.UsageError("in inference each device works by itself: leave --scaling out")
    if len(batches) > 1 and (job.mode == "training" or scaling or timeline or is_paleo or layers or out):
        raise click.UsageError(
            "several batches are asked about in inference, as records of their own: give one --batch"
        )
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
    measured: Record | Callable[[Job], float] | None = None
    if measured_on is not None:
        measured = of_figure(trace, measured_on) if "=" in measured_on else Record.load(Path(measured_on))
    if len(batches) > 1:
        with common.waiting("predicting"):
            answer = predict_batches(trace, jobs, batches, factor_of(trace, measured))
        common.show(answer, as_json)
        return
    with common.waiting("predicting"):
        answer = predict_jobs(
            trace, jobs, samples=samples, depth=depth, with_layers=layers, measured=measured, **options
        )
    if out is not None:
        next(iter(answer.records.values())).save(out)
    common.show(answer, as_json)


def _batches(job: Job, job_file: str, overrides: Sequence[str]) -> Sequence[int]:
    """Those that are asked about: the job's own, several of --batch, and in inference the usual ones where none is stated."""
    from chronograd.ask import is_job_file
    from chronograd.predict.serving import USUAL_BATCHES

    asked = common.batches()
    if asked is not None:
        return asked
    is_stated = any(text.startswith("training.batch=") for text in overrides) or (
        is_job_file(job_file) and "batch" in job.training.model_fields_set
    )
    return USUAL_BATCHES if job.mode == "inference" and not is_stated else [job.training.batch]

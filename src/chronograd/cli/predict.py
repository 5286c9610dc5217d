"""`chronograd predict JOB --on 8xV100`: a record that has not happened yet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chronograd.answer import Answer
    from chronograd.compare.scaling import Scaling
    from chronograd.job import Job
    from chronograd.predict.carrying import Shown
    from chronograd.simulate.queueing import Server
    from chronograd.simulate.server import Served
    from chronograd.trace import Trace


def server_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of --serve: what is asked, and how the server is started."""
    for option in (
        click.option(
            "--threads", type=click.IntRange(1, 1024), help="With --serve, of an ONNX file: threads of one run."
        ),
        click.option(
            "--queue", "most_waiting", type=click.IntRange(1), help="With --serve: requests that may wait (256)."
        ),
        click.option(
            "--batch-wait",
            "wait_ms",
            type=click.FloatRange(0, 60_000),
            help="With --serve: as of `chronograd serve` (0).",
        ),
        click.option(
            "--replicas", type=click.IntRange(1, 100_000), help="With --serve: servers that share the requests."
        ),
        click.option(
            "--p99",
            metavar="TIME",
            help="With --serve: how soon 99 % of the requests are to be answered, such as 50ms.",
        ),
        click.option(
            "--rate", "rates", metavar="R,R,...", help="With --serve: requests per second, over all replicas."
        ),
        click.option(
            "--serve",
            is_flag=True,
            help="Predict a server: latency against load, its knee, replicas, cost of requests.",
        ),
    ):
        function = option(function)
    return function


@click.command(
    epilog="\b\nchronograd predict examples/digits.yaml --on 8xV100\n"
    "chronograd predict resnet50 --on v100 --precision fp16 --inference --batch 1,8,64\n"
    "chronograd predict gpt2-small --on a100 --precision bf16 --batch 8\n"
    "chronograd predict resnet50 --on v100 --measured-on rtx3090=234/s\n"
    "chronograd predict job.yaml --trace net.json.gz --on h100 --json\n"
    "chronograd predict resnet50 --serve --rate 200 --p99 50ms --on t4 --precision fp16"
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
@server_options
@common.answer_options
def command(job_file: str, overrides: tuple[str, ...], print_config: bool, places: tuple[str, ...],
            trace_file: Path | None, algorithm: str | None, model: str, ppp: float, ppp_comm: float,
            scaling: Scaling | None, counts: list[int], timeline: Path | None, layers: bool, depth: int | None,
            measured_on: str | None, out: Path | None, as_json: bool, serve: bool, **server: Any) -> None:  # fmt: skip
    """Predict step time by part, memory, throughput, utilisation and cost, each with an interval.

    With --inference: latency and throughput, of each batch of --batch 1,8,64, and what a million samples cost.

    With --serve: latency against the rate of requests behind `chronograd serve`, whose batches have --batch rows at most (32);
    of an ONNX file by the time that its batches take here.

    Without torch, give a trace saved by `chronograd count JOB --out FILE`.
    """
    from chronograd.data.datasets import card
    from chronograd.data.decoding import counted_input
    from chronograd.data.trace_job import trace_job
    from chronograd.hardware import catalog
    from chronograd.job import changed, from_dict
    from chronograd.judge.limits import limit_of
    from chronograd.predict.answer import of_figure, on_devices, predict_jobs, shown_of
    from chronograd.predict.serving import predict_batches
    from chronograd.predict.setting import setting_of
    from chronograd.predict.timeline import timeline_of_step
    from chronograd.record import Record

    if serve:
        of_a_step = (algorithm, scaling, timeline, depth, measured_on)
        if any(option is not None for option in of_a_step) or model != "operators" or layers:
            raise click.UsageError("--serve is about requests: leave options of a step, and --measured-on, out")
        _serve(job_file, overrides, print_config, places, trace_file, out, as_json, **server)
        return
    if any(value is not None for value in server.values()):
        raise click.UsageError(
            "--rate, --p99, --replicas, --batch-wait, --queue and --threads are of a server: add --serve"
        )
    asked = common.read_asked(job_file, overrides, print_config, takes_batches=True, can_download=True,
                              is_counted=trace_file is not None)  # fmt: skip
    job = asked.job
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
    if measured_on is not None and "=" in measured_on and len(batches) > 1:
        raise click.UsageError(
            f"--measured-on {measured_on} was measured at one batch, and {', '.join(map(str, batches))} are asked about: "
            f"name the batch that was measured, such as --batch {max(batches)}"
        )
    if out is not None and len(jobs) > 1:
        raise click.UsageError("--out takes one record; give --on once")
    if scaling is not None and out is not None:
        raise click.UsageError("--scaling prints a table and saves no record; leave --out out, or use --json")
    for name, is_given in (
        ("--measured-on", measured_on is not None),
        ("--layers", layers),
        ("--depth", depth is not None),
    ):
        if scaling is not None and is_given:
            raise click.UsageError(f"--scaling prints a table of whole steps as calibrated: leave {name} out")
    if timeline is not None and measured_on is not None:
        raise click.UsageError("--timeline draws the step as calibrated: leave --measured-on out")
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
    samples = card(jobs[0].data).train_size or None if asked.has_data else None
    options: dict[str, Any] = {
        "algorithm": algorithm or ("tree" if is_paleo else None),
        "ppp": (ppp, ppp_comm) if is_paleo else None,
    }
    if scaling is not None:
        common.show(_scaled(trace, jobs, counts, scaling, samples, options), as_json)
        return

    network = jobs[0].network.name
    saved = trace_file or (Path(network) if network.endswith((".json", ".json.gz")) else None)

    def traced(own: Job) -> Trace:
        """Of a record's own job, which a saved trace has to be of as well."""
        return trace_job(own, saved)

    def least_s(there: Job) -> float:
        device, precision = catalog.device(there.cluster.device), there.training.precision
        is_known = precision in device.peak_flops_per_s
        return limit_of(trace, there.images_per_rank, device, precision).least_s if is_known else 0.0

    measured: Record | Callable[[Job], Shown] | None = None
    if measured_on is not None:
        measured = of_figure(trace, measured_on, least_s) if "=" in measured_on else Record.load(Path(measured_on))
    if len(batches) > 1:
        with common.waiting("predicting"):
            answer = predict_batches(trace, jobs, batches, shown_of(trace, measured, traced))
        common.show(answer, as_json)
        return
    with common.waiting("predicting"):
        answer = predict_jobs(
            trace,
            jobs,
            samples=samples,
            depth=depth,
            with_layers=layers,
            measured=measured,
            traced=traced,
            paced=counted_input,
            has_epochs=asked.has_epochs,
            assumed=list(asked.assumed.values()),
            **options,
        )
    first = next(iter(answer.records.values()))
    if timeline is not None:  # of the job as predicted, with the input that it waits for
        paced = from_dict(first.job.model_dump(), first.title)
        common.save_json(timeline, timeline_of_step(trace, setting_of(paced, algorithm)))
    if out is not None:
        first.save(out)
    common.show(answer, as_json)


def _scaled(trace: Trace, jobs: Sequence[Job], counts: Sequence[int], scaling: Scaling, samples: int | None,
            options: dict[str, Any]) -> Answer:  # fmt: skip
    """Points of --scaling, each with the input of its own machines, and a note of each that waits for it."""
    from chronograd.compare.scaling import Ladder, predict_scaling
    from chronograd.data.decoding import counted_input
    from chronograd.words import listed

    said: dict[tuple[str, int, int], str] = {}

    def paced(job: Job, step_s: float) -> tuple[Job, str] | None:
        found = counted_input(job, step_s)
        if found is not None:
            said[job.cluster.device, job.cluster.count, job.training.batch] = found[1]
        return found

    answer = predict_scaling(trace, jobs, counts, scaling, samples, paced=paced, **options)
    tables = answer.data if isinstance(answer.data, list) else [answer.data]
    for job, table in zip(jobs, tables, strict=True):
        settings = [Ladder(job).at(count, scaling) for count in counts]
        keys = [(there.cluster.device, there.cluster.count, there.training.batch) for there in settings]
        notes = dict.fromkeys(said[key] for key in keys if key in said)
        table["notes"] = [
            f"{listed([str(key[1]) for key in keys if said.get(key) == note])} × {job.cluster.device}: {note}"
            for note in notes
        ]
    notes_of_all = [note for table in tables for note in table["notes"]]
    if any("bound by its input" in note for note in notes_of_all):
        notes_of_all.append("computation is the whole step of one device, its wait for its own host included")
    return replace(answer, notes=notes_of_all)


def _batches(job: Job, job_file: str, overrides: Sequence[str]) -> Sequence[int]:
    """Those that are asked about: the job's own, several of --batch, and in inference the usual ones where none is stated."""
    from chronograd.ask import is_batch_stated
    from chronograd.predict.serving import USUAL_BATCHES

    asked = common.batches()
    if asked is not None:
        return asked
    is_stated = is_batch_stated(job, job_file, overrides)
    return USUAL_BATCHES if job.mode == "inference" and not is_stated else [job.training.batch]


def _serve(job_file: str, overrides: Sequence[str], print_config: bool, places: Sequence[str], trace_file: Path | None,
           out: Path | None, as_json: bool, *, rates: str | None, p99: str | None, replicas: int | None, wait_ms: float | None,
           most_waiting: int | None, threads: int | None) -> None:  # fmt: skip
    """Predict a server of a network on devices, or of an ONNX file on this machine."""
    from chronograd.cli.plan import parse_latency
    from chronograd.simulate.queueing import Server
    from chronograd.simulate.server import Asked, server_answer

    rows, wait_s = common.batches() or [32], (wait_ms or 0.0) / 1e3
    if len(rows) > 1:
        raise click.UsageError("with --serve, --batch is the largest batch: give one number")
    levels = common.rates(rates)
    if out is not None and (len(levels) > 1 or len(places) > 1):
        raise click.UsageError("--out takes one record; give one --rate and one --on")
    asked = Asked(levels, None if p99 is None else parse_latency(p99), replicas)
    options = Server({1: 0.0}, wait_s=wait_s, most_waiting=most_waiting or 256)
    if job_file.endswith(".onnx"):
        if places or overrides or trace_file is not None or print_config:
            raise click.UsageError("an ONNX file is timed on this machine: leave --on, --trace and fields of a job out")
        from chronograd.deploy.timing import served_here

        with common.waiting("timing batches in ONNX Runtime") as say:
            served = [served_here(Path(job_file), options, rows[0], threads, say)]
    else:
        served = _served(job_file, overrides, print_config, places, trace_file, options, rows[0], threads)
    with common.waiting("following requests"):
        answer = server_answer(served, asked)
    if out is not None:
        next(iter(answer.records.values())).save(out)
    common.show(answer, as_json)


def _served(job_file: str, overrides: Sequence[str], print_config: bool, places: Sequence[str], trace_file: Path | None,
            options: Server, most_rows: int, threads: int | None) -> list[Served]:  # fmt: skip
    """A network on each of the devices."""
    from chronograd.data.trace_job import trace_job
    from chronograd.hardware import catalog
    from chronograd.job import changed
    from chronograd.predict.answer import on_devices
    from chronograd.simulate.server import FRONTEND, of_operators

    if threads is not None:
        raise click.UsageError("--threads is of an ONNX file; of a job write cluster.threads=N")
    job = changed(common.read_job(job_file, overrides, print_config, takes_batches=True), ["mode=inference"])
    jobs = on_devices(job, places)
    for one in jobs:
        catalog.device(one.cluster.device)  # before torch is imported
    with common.waiting("counting the work of the network"):
        trace = trace_job(jobs[0], trace_file)
    return [of_operators(trace, one, options, most_rows, FRONTEND) for one in jobs]

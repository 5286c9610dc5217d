"""`chronograd predict JOB --on 8xV100`: a record that has not happened yet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from chronograd.job import Job
    from chronograd.trace import Trace


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
    help="All-reduce: ring (usual), tree (PALEO's), halving_doubling, recursive_doubling or butterfly, reduce_to_one or "
    "one_to_all, hierarchical.",
)
@click.option(
    "--model",
    type=click.Choice(["operators", "paleo"]),
    default="operators",
    help="What predicts: a calibrated time of every operator, or PALEO (Qi et al. 2017).",
)
@click.option("--ppp", default=0.62, help="PALEO's percent of peak for computation, as a fraction; 0.62 by default.")
@click.option("--ppp-comm", default=0.72, help="The same for communication; 0.72 by default.")
@click.option("--scaling", type=click.Choice(["strong", "weak"]), help="A table over --counts instead of one setting.")
@click.option("--counts", default="1,2,4,8", show_default=True, help="Numbers of devices for --scaling.")
@click.option("--timeline", type=click.Path(dir_okay=False, path_type=Path), help="Save the step for Perfetto (.json).")
@click.option("--layers", is_flag=True, help="Print each layer's roofline and the three with most time to win.")
@click.option("--depth", type=click.IntRange(0), help="With --layers: depth of the modules; 0 is every operator.")
@click.option(
    "--measured-on",
    type=click.Path(path_type=Path),
    metavar="RECORD",
    help="A measured record of the same network on another device; what it showed there is carried over.",
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Save the record (.json).")
@common.json_option
def command(job_file: str, overrides: tuple[str, ...], print_config: bool, places: tuple[str, ...],
            trace_file: Path | None, algorithm: str | None, model: str, ppp: float, ppp_comm: float,
            scaling: str | None, counts: str, timeline: Path | None, layers: bool, depth: int | None,
            measured_on: Path | None, out: Path | None, as_json: bool) -> None:  # fmt: skip
    """Predict step time by part, memory, throughput, utilisation and cost, each with an interval.

    Without torch, give a trace saved by `chronograd count JOB --out FILE`.
    """
    from chronograd.data.datasets import card
    from chronograd.data.trace_job import trace_job
    from chronograd.job import changed, parse_on
    from chronograd.predict.carry import carried_factor
    from chronograd.predict.prediction import predict
    from chronograd.record import Record

    job = common.read_job(job_file, overrides, print_config)
    jobs = [job]
    if places:
        settings = [parse_on(place) for place in places]
        jobs = [changed(job, [f"cluster.count={count}", f"cluster.device={name}"]) for count, name in settings]
    if out is not None and len(jobs) > 1:
        raise click.UsageError("--out takes one record; give --on once")
    if scaling is not None and out is not None:
        raise click.UsageError("--scaling prints a table and saves no record; leave --out out, or use --json")
    is_paleo = model == "paleo"
    if timeline is not None and (len(jobs) > 1 or is_paleo or scaling):
        raise click.UsageError("--timeline takes one setting, and neither --model paleo nor --scaling")
    options: dict[str, Any] = {
        "algorithm": algorithm or ("tree" if is_paleo else None),
        "ppp": (ppp, ppp_comm) if is_paleo else None,
    }
    if layers and is_paleo:
        raise click.UsageError("--layers needs times of operators; leave --model paleo out")
    trace = trace_job(job, trace_file)
    if scaling is not None:
        _print_scaling([_scaling(trace, j, counts, scaling, options) for j in jobs], as_json)
        return
    if timeline is not None:
        _save_timeline(timeline, trace, jobs[0], options["algorithm"])
    if measured_on is not None:
        if is_paleo:
            raise click.UsageError("--measured-on corrects times of operators; leave --model paleo out")
        options["factor"] = carried_factor(trace, Record.load(measured_on))
    samples = card(job.data).train_size
    records = [predict(trace, j, samples=samples, depth=depth, **options) for j in jobs]
    if out is not None:
        records[0].save(out)
    if as_json:
        data = [r.model_dump(mode="json") for r in records]
        common.print_json(data if len(data) > 1 else data[0])
        return
    for record in records:
        if layers:
            common.print_layers(record)
        else:
            common.print_record(record)


def _scaling(trace: Trace, job: Job, counts: str, mode: str, options: dict[str, Any]) -> dict[str, Any]:
    from chronograd.predict.speedup import scaling_table

    numbers = common.whole_numbers("--counts", counts)
    return {
        "network": trace.network,
        "device": job.cluster.device,
        "mode": mode,
        "rows": scaling_table(trace, job, numbers, mode, **options),
    }


def _print_scaling(tables: list[dict[str, Any]], as_json: bool) -> None:
    from chronograd.units import dollars, quantity

    if as_json:
        common.print_json(tables if len(tables) > 1 else tables[0])
        return
    columns = {
        "count": "count", "nodes": "count", "batch_per_rank": "count", "step_time_s": "s",
        "communication_exposed_s": "s", "throughput_samples_per_s": "sample/s", "speed_up": "×", "efficiency": "1",
    }  # fmt: skip
    head = ("count", "nodes", "batch per rank", "step time", "exposed communication", "throughput", "speed-up")
    for table in tables:
        rows = []
        for row in table["rows"]:
            cells = [f"{row[n]:.2f} ×" if u == "×" else quantity(row[n], u) for n, u in columns.items()]
            usd = row["usd_per_million_samples"]
            rows.append([*cells, "–" if usd is None else dollars(usd)])
        title = f"{table['mode']} scaling of {table['network']} on {table['device']}"
        common.print_table((*head, "efficiency", "per million samples"), rows, title, range(len(head) + 2))


def _save_timeline(path: Path, trace: Trace, job: Job, algorithm: str) -> None:
    from chronograd.predict.prediction import setting_of
    from chronograd.predict.timeline import timeline_of_step

    common.save_json(path, timeline_of_step(trace, setting_of(job, algorithm)))

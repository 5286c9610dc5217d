"""Shared code of studies of many ranks: jobs on growing numbers of ranks, measured here and predicted for other devices.

Runs of one study never overlap, because they are timed. A run that is impossible here is a row with the reason. Predictions for
other devices are labelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chronograd.answer import Table
from chronograd.compare.scaling import Ladder, Scaling
from chronograd.errors import InputError
from chronograd.figure import Figure, Lines, Role, Series
from chronograd.hardware import market
from chronograd.hardware.catalog import Price
from chronograd.job import Job, changed, from_dict
from chronograd.launch import jobs
from chronograd.measure import environment
from chronograd.measure.result import Timing
from chronograd.predict.prediction import StepModel
from chronograd.record import Record, ScalingRow
from chronograd.rundir import RunDir, is_run_dir
from chronograd.units import percent, quantity, seconds
from chronograd.words import signed_percent
from chronograd_lab.common.published_throughputs import base_row, correction, factor_shown, published
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import Difference, Spread, grouped, matching, mean, plural, shown, six_digits, spread
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Column, table

_CROWDED = "{} ranks were not run here: there are {}, and ranks that share one measure how it is shared."
# A colour for each device or kind of scaling, on every figure of a page.
COLORS = ("accent", "vermilion", "green", "purple", "orange", "teal")


@dataclass(frozen=True)
class Sweep:
    """One job of a study and its numbers of ranks.

    Attributes:
        measured: numbers of ranks to run here; `predicted`: to predict, on the job's device.
        known: further columns of its rows. `algorithm`: of the all-reduce, for predictions.
        factor: the correction of predicted times of a job; see `published_throughputs.correction`.
    """

    name: str
    job: Job
    scaling: Scaling = "weak"
    measured: Sequence[int] = ()
    predicted: Sequence[int] = ()
    known: Row = field(default_factory=dict)
    algorithm: str | None = None
    factor: Callable[[Job], float | None] | None = None


def scaling_job(
    settings: Settings, backend: str, training: Row, data: str = "data", communication: Row | None = None, **cluster: Any
) -> Job:  # fmt: skip
    """Return a job of these settings on this machine, or on the device in `cluster`. `data`: the setting that holds the data."""
    return from_dict(
        {
            "network": {"name": settings["network"]},
            "data": dict(settings[data]),
            "training": {"recipe": "sgd-momentum", **training},
            "communication": communication or {},
            "cluster": {"device": "local", **cluster},
            "backend": backend,
        }
    )


def run_sweeps(runner: StudyRunner, settings: Settings, sweeps: Sequence[Sweep]) -> Results:
    """Return the table `points`: rows of `chronograd.bench.scaling.Point`, with `series`: the sweep's name. One run at a time.

    Measured runs are also predicted if this machine is calibrated for their framework: PyTorch, not TensorFlow. More ranks than
    cores are not run, because they would measure the sharing of cores. Each rank has the same threads in every world, chosen
    for the largest one.
    """
    rows: list[Row] = []
    cores = environment.cores()
    crowded = sorted({world for sweep in sweeps for world in sweep.measured if world > cores})
    notes = [_CROWDED.format(", ".join(map(str, crowded)), plural(cores, "core"))] if crowded else []
    sweeps = [replace(sweep, measured=[world for world in sweep.measured if world <= cores]) for sweep in sweeps]
    worlds = [1, *(world for sweep in sweeps for world in sweep.measured)]
    runner.parallel, runner.threads = 1, runner.threads_alone(worlds)
    for sweep in sweeps:
        job = changed(sweep.job, [f"cluster.threads={runner.threads}"]) if sweep.measured else sweep.job
        ladder = _ladder(job)

        def measure(one: Job, name: str = sweep.name) -> Record:
            per_rank = -(-one.training.batch // one.cluster.count)
            return measured(runner, settings, f"{name}/{one.cluster.count}x{per_rank}", one)

        points = ladder.measured(sweep.measured, sweep.scaling, measure, runner.say)
        is_predicted = not job.backend.startswith("tf_")
        worlds = [*sweep.predicted] or [point.world for point in points if point.kind == "measured" and is_predicted]
        try:
            points += _predicted(ladder, sweep, worlds)
        except InputError as error:
            runner.say(f"{sweep.name}: not predicted: {error.message}")
        rows += _rows(sweep, points)
    return runner.results(settings, rows={"points": rows}, notes=[*notes, *reasons(rows)])


def predicted_points(sweeps: Sequence[Sweep]) -> list[Row]:
    """Return the rows of the predicted numbers of ranks, in the form of the table `points`."""
    return [row for sweep in sweeps for row in _rows(sweep, _predicted(_ladder(sweep.job), sweep, sweep.predicted))]


def _ladder(job: Job) -> Ladder:
    from chronograd.data.datasets import card
    from chronograd.data.trace_job import trace_job

    return Ladder(job, trace_job(job), card(job.data).train_size)


def _predicted(ladder: Ladder, sweep: Sweep, worlds: Sequence[int]) -> list[ScalingRow]:
    return ladder.predicted(worlds, sweep.scaling, sweep.factor, StepModel(sweep.algorithm)) if worlds else []


def _rows(sweep: Sweep, points: Sequence[ScalingRow]) -> list[Row]:
    return [{"series": sweep.name, **point.model_dump(), **sweep.known} for point in points]


def measured(runner: StudyRunner, settings: Settings, name: str, job: Job) -> Record:
    """Return the record of a timed job, from an earlier run of the study if there is one."""
    path = runner.path(name)
    if is_run_dir(path) and RunDir.open(path).is_finished:
        return RunDir.open(path).record()
    if is_run_dir(path):
        path = runner.path(f"{name}-again")
    timing = Timing(settings["warmup"], settings["steps"], seconds=120.0)
    return jobs.measure(job, timing, out=path).record()


def cluster_sweeps(
    settings: Settings, job: Callable[..., Job], scalings: Sequence[Scaling] = ("weak",)
) -> list[Sweep]:  # fmt: skip
    """Return predictions for the GPUs of `clusters`, based on the published row of one GPU if there is one.

    Args:
        job: makes the job of a kind of scaling on a cluster, from the fields of `Cluster`.
    """
    sweeps, per_node = [], settings["per_node"]
    prices = gpu_prices([device for device, _ in settings["clusters"]], per_node)
    for device, link in settings["clusters"]:
        price = usd_per_gpu_hour(prices.get(device), per_node)
        row = base_row(device, settings["network"])
        cluster = {"device": device, "link": link, "per_node": per_node, "price_usd_per_hour": price}
        more: Any = {
            "predicted": settings["predicted_worlds"], "known": {"shown": None if row is None else factor_shown(row)},
            "factor": correction(device, settings["network"]),
        }  # fmt: skip
        sweeps += [Sweep(device, job(scaling, **cluster), scaling, **more) for scaling in scalings]
    return sweeps


def cluster_tables(results: Results, sweeps: Sequence[Sweep]) -> dict[str, list[Row]]:
    """Return the tables of the clusters' GPUs: `points` with the measured rows, `published` throughputs, and `prices`."""
    settings, devices = results.settings, [device for device, _ in results.settings["clusters"]]
    here = [row for row in results.rows["points"] if row["series"] not in devices]
    return {
        "points": [*here, *predicted_points(sweeps)],
        "published": [row for device in devices for row in published(device, settings["network"])],
        "prices": price_rows(gpu_prices(devices, settings["per_node"]), settings["per_node"]),
    }


def by_world(rows: Sequence[Row]) -> dict[str, Row]:
    """Return rows of one series by number of ranks, for a page: n1, n2, …"""
    return {f"n{row['world']}": row for row in rows}


def has_many(rows: Sequence[Row]) -> bool:
    """Return whether several ranks were measured."""
    return any(row["kind"] == "measured" and row["world"] > 1 for row in rows)


def here_table(rows: Sequence[Row], names: Mapping[str, Column]) -> Table:
    """Return the table of runs on this machine, and their predictions. `names`: the first columns."""
    rows = [row for row in rows if row["step_time_s"] is not None]

    def error(row: Row) -> str:
        same = {key: row[key] for key in ("series", "scaling", "world", "batch")}
        pairs = [row["step_time_s"] / other["step_time_s"] - 1 for other in matching(rows, kind="measured", **same)]
        return signed_percent(pairs[0]) if row["kind"] == "predicted" and pairs else ""

    return table(rows, {
        **names, "": "kind", "ranks": "world", "batch of a rank": "per_rank",
        "effective batch": "batch", "step": ("step_time_s", seconds), "growth": ("iteration_growth", "{:.2f} ×".format),
        "throughput": lambda row: quantity(row["throughput_samples_per_s"], "sample/s"),
        "speed-up": ("speed_up", "{:.2f} ×".format), "of ideal": lambda row: percent(row["efficiency"], 0),
        "exposed communication": lambda row: "" if row["world"] == 1 else shown(row["communication_exposed_s"], seconds, ""),
        "off by": error,
    }, text=len(names) + 1).without_empty_columns()  # fmt: skip


def beside_table(rows: Sequence[Row]) -> Table:
    """Return published rows of both kinds of scaling and their predictions; see `published_throughputs.beside_published`."""
    return table(rows, {
        "scaling": "scaling", "GPUs": "world", "nodes": "nodes", "batch of a GPU": "batch_per_gpu", "effective batch": ("batch", "{:,}".format),
        "step, published": ("step_time_s", seconds), "step, predicted": ("predicted_s", seconds),
        "error of the prediction": lambda row: signed_percent(row["predicted_s"] / row["step_time_s"] - 1),
        "speed-up, published": ("speed_up", "{:.2f} ×".format), "speed-up, predicted": ("predicted_speed_up", "{:.2f} ×".format),
    }, text=1)  # fmt: skip


def beside_figure(rows: Sequence[Row]) -> Figure:
    """Return a panel for each kind of scaling and batch, with the speed-ups: a predicted line, published points and the ideal."""
    panels = []
    for own, color in zip(grouped(rows, "set").values(), COLORS, strict=False):
        title = f"{own[0]['scaling']}, {own[0]['batch_per_gpu']} images on one GPU"
        series = line_and_points("", own, "predicted_speed_up", "speed_up", "published", color)
        series.append(ideal(own[:1], worlds=[row["world"] for row in own]))
        panels.append(against_ranks("times the throughput of one GPU", series, title, is_log=False))
    return Figure(panels)


def line_and_points(
    label: str, rows: Sequence[Row], predicted: str, points: str, kind: str, color: str, x: str = "world"
) -> list[Series]:
    """Return a predicted line, and the points of the column `points`: measured or published, as `kind` names them."""
    start = f"{label}, " if label else ""
    return [
        series_of(f"{start}predicted", rows, predicted, "predicted", color, x=x),
        series_of(f"{start}{kind}", rows, points, "measured", color, x=x),
    ]


@dataclass(frozen=True)
class Changes:
    """Settings that ran in rounds against a base: differences of their steps, as shares of the base.

    Attributes:
        significant: number of settings whose step differs. `detectable`: the largest difference that the rounds cannot detect.
    """

    spreads: Mapping[str, Spread]
    base: str

    def of(self, name: str) -> Difference:
        mean = self.spreads[self.base].mean
        scaled = [
            Spread(one.mean / mean, one.std and one.std / mean, one.n)
            for one in (self.spreads[name], self.spreads[self.base])
        ]
        return scaled[0] - scaled[1]

    @property
    def significant(self) -> int:
        return sum(self.of(name).is_seen for name in self.spreads)

    @property
    def detectable(self) -> float:
        return max(self.of(name).detectable or 0.0 for name in self.spreads if name != self.base)


def changes(rows: Sequence[Row], by: str, base: str) -> Changes:
    return Changes({name: spread(own, "step_time_s") for name, own in grouped(rows, by).items()}, base)


def rounds_table(rows: Sequence[Row], by: str, base: str, exposed: str, shown_as: Callable[[str], str] = str) -> Table:
    """Return the steps of settings that ran in rounds. `exposed`: the column of exposed communication."""
    own, found = grouped(rows, by), changes(rows, by, base)

    def change(name: str) -> str:
        if name == base:
            return ""
        one = found.of(name)
        ends = "one round" if one.interval is None else " … ".join(map(signed_percent, one.interval))
        return f"{signed_percent(one.mean)} ({ends})"

    return table(own, {
        by: shown_as, "step, mean of rounds": lambda name: seconds(found.spreads[name].mean),
        "rounds": lambda name: ", ".join(seconds(row["step_time_s"]) for row in own[name]),
        f"against {shown_as(base)}": change,
        "exposed communication": lambda name: shown(mean(own[name], exposed), seconds, ""),
    }).without_empty_columns()  # fmt: skip


def last(rows: Sequence[Row], **wanted: Any) -> Row | None:
    """Return the wanted row with most ranks and a step time; None if there is none."""
    known = [row for row in matching(rows, **wanted) if row["step_time_s"] is not None]
    return max(known, key=lambda row: row["world"], default=None)


def reasons(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return why rows are missing, each reason once, with its series."""
    missing: dict[str, dict[str, None]] = {}
    for row in rows:
        if row["kind"] == "missing":
            missing.setdefault(row["reason"], {})[row["series"]] = None
    return [f"{', '.join(series)}: {reason}" for reason, series in missing.items()]


def gpu_prices(devices: Sequence[str], per_node: int) -> dict[str, Price]:
    """Return the on-demand price of each device in an instance of `per_node`, so that costs differ only by the losses of runs.

    If one provider lists all of the devices in one year, those prices are used; else the prices of `predict`. A device without
    a known price is left out. Raises: NotFoundError for an unknown device.
    """
    offers = {device: market.offers(device, "on-demand") for device in devices}
    shared = set.intersection(*({(row.date[:4], row.vendor) for row in rows} for rows in offers.values()))
    if len(devices) > 1 and shared:
        year, vendor = max(shared)
        return {
            device: min(
                (row for row in rows if (row.date[:4], row.vendor) == (year, vendor)),
                key=lambda row: (row.most_devices < per_node, float(row.usd_per_hour(per_node))),
            )
            for device, rows in offers.items()
        }
    found = {device: market.price_of(device, count=per_node) for device in devices}
    return {device: price for device, price in found.items() if price is not None}


def usd_per_gpu_hour(price: Price | None, per_node: int) -> float | None:
    """Return US dollars an hour for one GPU of a whole node."""
    return None if price is None else float(price.usd_per_hour(per_node)) / per_node


def price_rows(prices: Mapping[str, Price], per_node: int) -> list[Row]:
    """Return the table `prices`: the price of each device, its provider and its date."""
    return [
        {
            "device": device, "usd_per_gpu_hour": usd_per_gpu_hour(price, per_node), "vendor": price.vendor, "instance": price.instance,
            "date": price.date, "includes_host": price.includes_host,
        }
        for device, price in prices.items()
    ]  # fmt: skip


def is_one_market(prices: Sequence[Row]) -> bool:
    """Return whether all prices are from one provider and year, so that costs on different devices can be compared."""
    return len({(row["vendor"], row["date"][:4]) for row in prices}) <= 1


def throughput_interval(row: Row) -> tuple[float | None, float | None]:
    """Return samples per second at the ends of the interval of a step."""
    low_s, high_s = row["low"], row["high"]
    return (row["batch"] / high_s if high_s else None, row["batch"] / low_s if low_s else None)


def series_of(
    label: str, rows: Sequence[Row], key: str, role: Role, color: str, unit: float = 1.0, *, x: str = "world"
) -> Series:
    """Return one series of a figure against ranks: values of a column, divided by `unit`."""
    return Series(label, role, [row[x] for row in rows], [_short(row[key], unit) for row in rows], color=color)


def with_interval(series: Series, bounds: Sequence[tuple[float | None, float | None]]) -> Series:
    """Return the series with a band or bars if all bounds are known."""
    if not bounds or any(None in pair for pair in bounds):
        return series
    low, high = zip(*bounds, strict=True)
    return replace(series, low=[_short(v) for v in low], high=[_short(v) for v in high])


def ideal(rows: Sequence[Row], key: str = "speed_up", worlds: Sequence[int] = ()) -> Series:
    """Return the ideal values, without any loss, from the value of one rank; rows hold one series."""
    first = next(row[key] for row in rows if row["world"] == 1)
    worlds = worlds or sorted({row["world"] for row in rows})
    return Series("ideal", "reference", worlds, [_short(n * first) for n in worlds])


def against_ranks(
    y_label: str, series: Sequence[Series], title: str = "", ranks: str = "GPUs", is_log: bool = True
) -> Lines:
    """Return a panel with a tick for each number of ranks."""
    ticks = sorted({x for s in series for x in s.x})
    return Lines(ranks, y_label, series, log_x=is_log, log_y=is_log, from_zero=not is_log, x_ticks=ticks, title=title)


def _short(value: float | None, unit: float = 1.0) -> float | None:
    return None if value is None else six_digits(value / unit)

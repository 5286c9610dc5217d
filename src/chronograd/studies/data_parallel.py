"""torch.nn.DataParallel on 1, 2 and 4 GPUs: three tables.

Time and speed-up; computation and communication; bandwidth utilisation; each at batch 32, 128 and 512 of a GPU.
DataParallel makes no replicas without GPUs, so rows measured here are DistributedDataParallel's, and say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.compare.ranks import UTILISATION
from chronograd.figure import Figure, Lines, Series
from chronograd.measure import environment
from chronograd.study.results import Results, Row, Settings
from chronograd.study.rows import grouped, matching, shown
from chronograd.study.runner import StudyRunner
from chronograd.study.scaling import Sweep, run_sweeps, scaling_job
from chronograd.study.study import Study, listed
from chronograd.units import percent, seconds

COLORS = ("accent", "vermilion", "green", "purple")
GROUP = ("backend", "place", "kind")  # of which a table has rows by batch, and a figure one line


def sweeps(settings: Settings, has_gpus: bool) -> list[Sweep]:
    """Batches are those of one GPU; the global batch grows with the GPUs."""

    def sweep(backend: str, place: str, batch: int, cluster: Row, **worlds: Any) -> Sweep:
        known = {"backend": backend, "place": place, "batch_per_gpu": batch}
        job = scaling_job(settings, backend, {"batch": batch, "epochs": 2}, **cluster)
        return Sweep(f"{backend}, {place}, batch {batch}", job, known=known, **worlds)

    here = "data_parallel" if has_gpus else "ddp"
    gpus = {"device": settings["device"], "intra_link": settings["intra_link"], "per_node": 4}
    return [
        *(sweep(here, "here", batch, {}, measured=settings["worlds"]) for batch in settings["batches"]),
        *(
            sweep(backend, settings["device"], batch, gpus, predicted=settings["predicted_worlds"])
            for backend in ("data_parallel", "ddp")
            for batch in settings["predicted_batches"]
        ),
    ]


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    return run_sweeps(runner, settings, sweeps(settings, bool(environment.gpus())))


def page(results: Results) -> Answer:
    rows = [row for row in results.rows["points"] if row["step_time_s"] is not None]
    samples = results.settings["epoch_samples"]
    sections = [_time_section(rows, samples), _split_section(rows, samples), _bandwidth_section(rows)]
    known = [row for row in matching(rows, backend="data_parallel") if row["speed_up"]]
    highlights = []
    if known:
        best = max(known, key=lambda row: row["speed_up"])
        detail = f"{best['world']} × {best['place']}, batch {best['batch_per_gpu']} each, {best['kind']}"
        highlights.append(Highlight("best speed-up of DataParallel", f"{best['speed_up']:.2f} ×", detail))
    return STUDY.answer(results, sections, highlights)


def _table(rows: Sequence[Row], columns: dict[str, Callable[[Row], str]], notes: Sequence[str] = ()) -> Table:
    """One row per backend, place and batch; the columns once per number of ranks."""
    worlds = sorted({row["world"] for row in rows})
    body = []
    for labels, own in grouped(rows, *GROUP).items():
        for batch, of_batch in sorted(grouped(own, "batch_per_gpu").items()):
            at = {row["world"]: row for row in reversed(of_batch)}
            cells = [cell(at[world]) if world in at else "" for world in worlds for cell in columns.values()]
            body.append([*labels, f"{batch:,}", *cells])
    heads = [f"{name}, {world}" for world in worlds for name in columns]
    return listed(("backend", "where", "", "batch of a rank", *heads), body, 3, notes).without_empty_columns()


def _time_section(rows: Sequence[Row], samples: int) -> Section:
    """Table 1."""
    several = [row for row in matching(rows, backend="data_parallel") if row["world"] > 1 and row["speed_up"]]
    takeaway = "No row of DataParallel is known."
    if several:
        best, worst = (pick(several, key=lambda row: row["speed_up"] / row["world"]) for pick in (max, min))
        takeaway = (
            f"DataParallel is nearest to ideal with {best['world']} GPUs at batch {best['batch_per_gpu']} "
            f"({best['speed_up']:.2f} ×) and furthest with {worst['world']} at batch {worst['batch_per_gpu']} "
            f"({worst['speed_up']:.2f} ×): its copies cost the same whatever the batch, so large batches hide them."
        )
    series = []
    for ((backend, place, kind), own), color in zip(grouped(rows, *GROUP).items(), COLORS * len(rows), strict=False):
        largest = max(row["batch_per_gpu"] for row in own)
        shown = sorted(matching(own, batch_per_gpu=largest), key=lambda row: row["world"])
        xs, ys = ([row[key] for row in shown] for key in ("world", "speed_up"))
        label = f"{backend}, {place}, batch {largest}, {kind}"
        series.append(Series(label, kind, xs, ys, color=color, is_joined=kind == "measured"))
    worlds = sorted({row["world"] for row in rows})
    series.append(Series("ideal", "reference", worlds, worlds))
    columns: dict[str, Callable[[Row], str]] = {
        "epoch": lambda row: seconds(samples / row["batch"] * row["step_time_s"]),
        "speed-up": lambda row: "" if row["speed_up"] is None or row["world"] == 1 else f"{row['speed_up']:.2f} ×",
    }
    return Section(
        "Time and speed-up",
        takeaway,
        f"Seconds of an epoch of {samples:,} samples; the batch of a rank stays, so the global batch grows.",
        figure=Figure([Lines("ranks", "speed-up", series, x_ticks=worlds, from_zero=True)]),
        table=_table(rows, columns),
    )


def _split_section(rows: Sequence[Row], samples: int) -> Section:
    """Table 2."""

    def of_epoch(row: Row, key: str) -> str:
        return shown(row[key], lambda value: seconds(samples / row["batch"] * value), "")

    title = "Computation and communication"
    several = [row for row in rows if row["world"] > 1 and row["communication_exposed_s"] is not None]
    if not several:
        return Section(title, "No communication is known.")
    shares = [(row["communication_exposed_s"] / row["step_time_s"], row) for row in several]
    most, least = (
        f"{row['backend']} on {row['place']}, {row['world']} ranks at batch {row['batch_per_gpu']}: {percent(share, 0)}"
        for share, row in (pick(shares, key=lambda pair: pair[0]) for pick in (max, min))
    )
    columns: dict[str, Callable[[Row], str]] = {
        "computation": lambda row: of_epoch(row, "compute_s"),
        "communication": lambda row: "" if row["world"] == 1 else of_epoch(row, "communication_exposed_s"),
    }
    return Section(
        title,
        f"Exposed communication is between {least} and {most} of a step.",
        "Seconds of an epoch: computation is one rank alone with the same batch of a rank, communication what is exposed.",
        table=_table(rows, columns),
    )


def _bandwidth_section(rows: Sequence[Row]) -> Section:
    """Table 3."""
    key = "bandwidth_utilisation"
    used = [row for row in rows if row[key]]
    takeaway = "No exchange takes time that is not hidden, so no utilisation can be told."
    if used:
        least, most = (
            f"{percent(row[key], 0)} ({row['series']}, {row['world']} ranks)"
            for row in (pick(used, key=lambda row: row[key]) for pick in (min, max))
        )
        takeaway = (
            f"Between {least} and {most} of the link's bandwidth; "
            "above 100 % part of the exchange is hidden behind backward, so that less time is exposed than it takes."
        )
    several = [row for row in rows if row["world"] > 1]
    columns = {"utilisation": lambda row: shown(row[key], lambda share: percent(share, 0), "")}
    table = _table(several, columns, [UTILISATION])
    return Section("Bandwidth utilisation", takeaway, table=table)


_GPUS = {"device": "v100", "intra_link": "pcie3"}
_LAPTOP = {
    "network": "resnet18-cifar", "data": {"name": "cifar10"}, "epoch_samples": 50_000, "batches": [8, 32],
    "worlds": [1, 2, 4], **_GPUS, "predicted_batches": [32, 128, 512], "predicted_worlds": [1, 2, 4], "steps": 5,
    "warmup": 2,
}  # fmt: skip
_SMOKE = {
    **_LAPTOP, "network": "lenet5", "data": {"name": "synthetic", "shape": [3, 32, 32], "classes": 10, "samples": 256},
    "batches": [8], "worlds": [1, 2], "predicted_batches": [32, 128], "predicted_worlds": [1, 4], "steps": 2, "warmup": 1,
}  # fmt: skip
_PAPER = {**_LAPTOP, "batches": [32, 128, 512], "steps": 30, "warmup": 5}

STUDY = Study(
    name="data-parallel",
    question="What do 2 and 4 GPUs gain with torch.nn.DataParallel, how much of it is communication, and how much bandwidth is used?",
    hypothesis="Speed-up grows with the batch, as every step copies the network to all GPUs and sums gradients on one",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "paper": _PAPER},
    conduct=conduct,
    page=page,
)

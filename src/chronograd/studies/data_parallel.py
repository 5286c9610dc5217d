"""torch.nn.DataParallel on 1, 2 and 4 GPUs: three tables.

Time and speed-up; computation and communication; bandwidth utilisation; each at batch 32, 128 and 512 of a GPU.
DataParallel makes no replicas without GPUs, so rows measured here are DistributedDataParallel's, and say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.compare.ranks import UTILISATION
from chronograd.figure import Figure, Lines, Role, Series
from chronograd.job import Job, from_dict
from chronograd.measure import environment
from chronograd.study.lab import Lab
from chronograd.study.ladders import Arm, climb, of, reasons
from chronograd.study.results import Results, Row, Settings
from chronograd.study.study import Study
from chronograd.study.tables import study_page
from chronograd.units import percent, seconds

COLORS = ("accent", "vermilion", "green", "purple")


def job(settings: Settings, backend: str, batch: int, **cluster: Any) -> Job:
    return from_dict(
        {
            "network": {"name": settings["network"]},
            "data": dict(settings["data"]),
            "training": {"recipe": "sgd-momentum", "batch": batch, "epochs": 2},
            "cluster": {"device": "local", **cluster},
            "backend": backend,
        }
    )


def arms(settings: Settings, has_gpus: bool) -> list[Arm]:
    """Batches are those of one GPU; the global batch grows with the GPUs."""
    here = "data_parallel" if has_gpus else "ddp"
    found = []
    for batch in settings["batches"]:
        found.append(
            Arm(f"{here}, here, batch {batch}", job(settings, here, batch), "weak", measured=settings["worlds"])
        )
    for backend in ("data_parallel", "ddp"):
        for batch in settings["predicted_batches"]:
            elsewhere = job(
                settings, backend, batch, device=settings["device"], intra_link=settings["intra_link"], per_node=4
            )
            name = f"{backend}, {settings['device']}, batch {batch}"
            found.append(Arm(name, elsewhere, "weak", predicted=settings["predicted_worlds"]))
    return found


def conduct(lab: Lab, settings: Settings) -> Results:
    rows = climb(lab, arms(settings, bool(environment.gpus())), settings["steps"], settings["warmup"])
    for row in rows:
        row["backend"], row["place"], batch = row["series"].split(", ")
        row["batch_per_gpu"] = int(batch.removeprefix("batch "))
    return lab.results(settings, rows={"points": rows}, notes=reasons(rows))


def page(results: Results) -> Answer:
    rows = [row for row in results.rows["points"] if row["step_time_s"] is not None]
    samples = results.settings["epoch_samples"]
    sections = [_time_section(rows, samples), _split_section(rows, samples), _bandwidth_section(rows)]
    best = max((row for row in rows if row["speed_up"] and row["backend"] == "data_parallel"),
               key=lambda row: row["speed_up"], default=None)  # fmt: skip
    highlights = []
    if best is not None:
        detail = f"{best['world']} × {best['place']}, batch {best['batch_per_gpu']} each, {best['kind']}"
        highlights.append(Highlight("best speed-up of DataParallel", f"{best['speed_up']:.2f} ×", detail))
    return study_page(STUDY, results, sections, highlights)


def _epoch_s(row: Row, samples: int) -> float:
    return float(samples / row["batch"] * row["step_time_s"])


def _groups(rows: Sequence[Row]) -> list[tuple[str, str, Role]]:
    return list(dict.fromkeys((row["backend"], row["place"], row["kind"]) for row in rows))


def _table(rows: Sequence[Row], columns: Sequence[str], cells: Any, notes: Sequence[str] = ()) -> Table:
    """One row per backend, place and batch; the columns once per number of ranks."""
    worlds = sorted({row["world"] for row in rows})
    body = []
    for backend, place, kind in _groups(rows):
        own = of(rows, backend=backend, place=place, kind=kind)
        for batch in sorted({row["batch_per_gpu"] for row in own}):
            line = [backend, place, kind, f"{batch:,}"]
            for world in worlds:
                found = of(own, batch_per_gpu=batch, world=world)
                line += cells(found[0]) if found else [""] * len(columns)
            body.append(line)
    heads = [f"{name}, {world}" for world in worlds for name in columns]
    right = set(range(3, 4 + len(heads)))
    return Table(("backend", "where", "", "batch of a rank", *heads), body, right, notes).without_empty_columns()


def _time_section(rows: Sequence[Row], samples: int) -> Section:
    """Table 1."""
    several = [row for row in rows if row["world"] > 1 and row["backend"] == "data_parallel" and row["speed_up"]]
    takeaway = "No row of DataParallel is known."
    if several:
        best = max(several, key=lambda row: row["speed_up"] / row["world"])
        worst = min(several, key=lambda row: row["speed_up"] / row["world"])
        takeaway = (
            f"DataParallel is nearest to ideal with {best['world']} GPUs at batch {best['batch_per_gpu']} "
            f"({best['speed_up']:.2f} ×) and furthest with {worst['world']} at batch {worst['batch_per_gpu']} "
            f"({worst['speed_up']:.2f} ×): its copies cost the same whatever the batch, so large batches hide them."
        )

    def cells(row: Row) -> list[str]:
        speed_up = "" if row["speed_up"] is None or row["world"] == 1 else f"{row['speed_up']:.2f} ×"
        return [seconds(_epoch_s(row, samples)), speed_up]

    series = []
    for i, (backend, place, kind) in enumerate(_groups(rows)):
        own = of(rows, backend=backend, place=place, kind=kind)
        largest = max(row["batch_per_gpu"] for row in own)
        chosen = sorted(of(own, batch_per_gpu=largest), key=lambda row: row["world"])
        series.append(Series(f"{backend}, {place}, batch {largest}, {kind}", kind, [r["world"] for r in chosen],
                             [r["speed_up"] for r in chosen], color=COLORS[i % len(COLORS)],
                             is_joined=kind == "measured"))  # fmt: skip
    worlds = sorted({row["world"] for row in rows})
    series.append(Series("ideal", "reference", worlds, worlds))
    return Section(
        "Time and speed-up",
        takeaway,
        f"Seconds of an epoch of {samples:,} samples; the batch of a rank stays, so the global batch grows.",
        figure=Figure([Lines("ranks", "speed-up", series, x_ticks=worlds, from_zero=True)]),
        table=_table(rows, ("epoch", "speed-up"), cells),
    )


def _split_section(rows: Sequence[Row], samples: int) -> Section:
    """Table 2."""

    def cells(row: Row) -> list[str]:
        steps = samples / row["batch"]
        compute = "" if row["compute_s"] is None else seconds(steps * row["compute_s"])
        exposed = row["communication_exposed_s"]
        return [compute, "" if exposed is None or row["world"] == 1 else seconds(steps * exposed)]

    several = [row for row in rows if row["world"] > 1 and row["communication_exposed_s"] is not None]
    shares = {(r["backend"], r["place"], r["world"], r["batch_per_gpu"]): r["communication_exposed_s"] / r["step_time_s"]
              for r in several}  # fmt: skip
    if not shares:
        return Section("Computation and communication", "No communication is known.")
    largest = max(shares, key=lambda key: shares[key])
    smallest = min(shares, key=lambda key: shares[key])
    told = [
        f"{b} on {p}, {w} ranks at batch {n}: {percent(shares[b, p, w, n], 0)}" for b, p, w, n in (largest, smallest)
    ]
    return Section(
        "Computation and communication",
        f"Exposed communication is between {told[1]} and {told[0]} of a step.",
        "Seconds of an epoch: computation is one rank alone with the same batch of a rank, communication what is exposed.",
        table=_table(rows, ("computation", "communication"), cells),
    )


def _bandwidth_section(rows: Sequence[Row]) -> Section:
    """Table 3."""
    used = [row for row in rows if row["bandwidth_utilisation"]]
    takeaway = "No exchange takes time that is not hidden, so no utilisation can be told."
    if used:
        most = max(used, key=lambda row: row["bandwidth_utilisation"])
        least = min(used, key=lambda row: row["bandwidth_utilisation"])
        takeaway = (
            f"Between {percent(least['bandwidth_utilisation'], 0)} ({least['series']}, {least['world']} ranks) and "
            f"{percent(most['bandwidth_utilisation'], 0)} ({most['series']}, {most['world']} ranks) of the link's bandwidth; "
            "above 100 % part of the exchange is hidden behind backward, so that less time is exposed than it takes."
        )

    def cells(row: Row) -> list[str]:
        return ["" if row["bandwidth_utilisation"] is None else percent(row["bandwidth_utilisation"], 0)]

    table = _table([row for row in rows if row["world"] > 1], ("utilisation",), cells, [UTILISATION])
    return Section("Bandwidth utilisation", takeaway, table=table)


STUDY = Study(
    name="data-parallel",
    question="What do 2 and 4 GPUs gain with torch.nn.DataParallel, how much of it is communication, and how much bandwidth is used?",
    hypothesis="Speed-up grows with the batch, as every step copies the network to all GPUs and sums gradients on one",
    sizes={
        "smoke": {
            "network": "lenet5",
            "data": {"name": "synthetic", "shape": [3, 32, 32], "classes": 10, "samples": 256},
            "epoch_samples": 50_000,
            "batches": [8],
            "worlds": [1, 2],
            "device": "v100",
            "intra_link": "pcie3",
            "predicted_batches": [32, 128],
            "predicted_worlds": [1, 4],
            "steps": 2,
            "warmup": 1,
        },
        "laptop": {
            "network": "resnet18-cifar",
            "data": {"name": "cifar10"},
            "epoch_samples": 50_000,
            "batches": [8, 32],
            "worlds": [1, 2, 4],
            "device": "v100",
            "intra_link": "pcie3",
            "predicted_batches": [32, 128, 512],
            "predicted_worlds": [1, 2, 4],
            "steps": 5,
            "warmup": 2,
        },
        "paper": {
            "network": "resnet18-cifar",
            "data": {"name": "cifar10"},
            "epoch_samples": 50_000,
            "batches": [32, 128, 512],
            "worlds": [1, 2, 4],
            "device": "v100",
            "intra_link": "pcie3",
            "predicted_batches": [32, 128, 512],
            "predicted_worlds": [1, 2, 4],
            "steps": 30,
            "warmup": 5,
        },
    },
    conduct=conduct,
    page=page,
)

"""Horovod: training time, throughput and efficiency of ResNet-50 on synthetic data, 1 to 16 ranks, 25 epochs.

It also measures two switches of Horovod: the fusion buffer, and gradients sent in half precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from chronograd.compare.scaling import Scaling
from chronograd.figure import Figure, Series
from chronograd.job import Job
from chronograd.units import dollars, percent, seconds
from chronograd.words import signed_percent
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import grouped, matching, shown
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.scaling import (
    COLORS,
    Sweep,
    against_ranks,
    by_world,
    changes,
    cluster_sweeps,
    cluster_tables,
    has_many,
    here_table,
    ideal,
    last,
    measured,
    rounds_table,
    run_sweeps,
    scaling_job,
    series_of,
    throughput_interval,
    with_interval,
)
from chronograd_lab.common.study import Study, table
from chronograd_lab.common.written import Block, key

HERE = {"horovod": "horovod, here", "ddp": "ddp, here"}
MIB = 2**20
LEARNING_RATE = 0.0125  # of one rank
BASE = "fusion of 64 MiB"
# Names of the switches: bytes of the fusion buffer and compression.
SWITCHES: dict[str, Row] = {
    BASE: {"bucket_bytes": 64 * MIB},
    "fusion of 1 MiB": {"bucket_bytes": MIB},
    "no fusion": {"bucket_bytes": 1},
    "fp16 compression": {"bucket_bytes": 64 * MIB, "compression": "fp16"},
}


def job(settings: Settings, backend: str, ranks: int = 1, switches: Row | None = None, **cluster: Any) -> Job:
    """Return a job with the learning rate multiplied by the ranks, as is usual with Horovod. Predictions have the published
    setting.
    """
    where = "gpu_" if "device" in cluster else ""
    training = {"batch": settings[f"{where}batch_per_rank"] * ranks, "epochs": settings["epochs"],
                "learning_rate": LEARNING_RATE, "scale_by_ranks": ["learning_rate"]}  # fmt: skip
    return scaling_job(settings, backend, training, f"{where}data", switches, count=ranks, **cluster)


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    sweeps = [Sweep(name, job(settings, of), measured=settings["worlds"]) for of, name in HERE.items()]
    results = run_sweeps(runner, settings, sweeps)
    largest = last(results.rows["points"], series=HERE["horovod"], kind="measured")  # one rank needs no Horovod
    switches = _switches(runner, settings) if largest is not None and largest["world"] > 1 else []
    return replace(results, rows={**results.rows, **predictions(results), "switches": switches})


def predictions(results: Results) -> dict[str, list[Row]]:
    def there(scaling: Scaling, **cluster: Any) -> Job:
        return job(results.settings, "horovod", **cluster)

    return cluster_tables(results, cluster_sweeps(results.settings, there))


def _switches(runner: StudyRunner, settings: Settings) -> list[Row]:
    """Run two ranks with each setting of the fusion buffer and of compression, in rounds."""
    rows = []
    for round_ in range(settings["rounds"]):
        for name, switches in SWITCHES.items():
            two = job(settings, "horovod", 2, switches, threads=runner.threads_alone([2]))
            record = measured(runner, settings, f"{name}/round-{round_}", two)
            runner.say(f"{name}: {seconds(record.value('step_time_s'))} a step")
            step, exposed = record["step_time_s"], record["communication_exposed_s"].value
            own = {"step_time_s": step.value, "low": step.low, "high": step.high, "exposed_s": exposed}
            rows.append({"switch": name, "round": round_, **own})
    return rows


# -- the page --------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    rows = results.rows
    here = {
        backend: {kind: by_world(matching(rows["points"], series=name, kind=kind)) for kind in ("measured", "predicted")}
        for backend, name in HERE.items()
    }  # fmt: skip
    return {
        **here,
        **{key(device): by_world(own) for device, own in grouped(_predicted(results), "series").items()},
        "servers": {f"n{row['gpus']}": row for row in rows["published"] if row["machine"].endswith("distributed")},
        "prices": {key(row["device"]): row for row in rows["prices"]},
        "switches": changes(rows["switches"], "switch", BASE),
        "cores": results.environment.get("cores"),
    }


def _predicted(results: Results) -> list[Row]:
    """Return predicted rows, each with the published row (`published`) of the same number of GPUs.

    If several machines have such a row, the first one's is used. Its speed-up is over one GPU of the same machine. Its training
    time is that of all epochs at its throughput.
    """
    rows, images = [], results.settings["epochs"] * results.settings["gpu_data"]["samples"]
    for device, _ in results.settings["clusters"]:
        of_device = matching(results.rows["published"], device=device)
        alone = {row["machine"]: row["images_per_s"] for row in matching(of_device, gpus=1)}
        for row in matching(results.rows["points"], series=device):
            published = next(iter(matching(of_device, gpus=row["world"])), None)
            if published:
                published = {
                    **published,
                    "speed_up": published["images_per_s"] / alone[published["machine"]],
                    "training_time_s": images / published["images_per_s"],
                }
            rows.append({**row, "published": published})
    return rows


def blocks(results: Results) -> dict[str, Block]:
    rows, per_node, links = _predicted(results), results.settings["per_node"], dict(results.settings["clusters"])
    here = [row for row in results.rows["points"] if row["series"] in HERE.values()]
    made = {
        "Throughput and total runtime": _throughput(rows),
        "Scaling against the ideal": _ideal(rows),
        "Effective batch: strong or weak?": Block(table(matching(rows, series=rows[0]["series"]), {
            "GPUs": "world", "images of a GPU": ("per_rank", "{:,}".format), "effective batch": ("batch", "{:,}".format),
            "learning rate": lambda row: f"{LEARNING_RATE * row['world']:g}",
        }, text=0)),
        "16 GPUs on two nodes against 8 on one": Block(table([row for row in rows if row["world"] >= per_node], {
            "device": "series", "GPUs": "world", "nodes": lambda row: str(row["world"] // per_node),
            "slowest link": lambda row: links[row["series"]] if row["world"] > per_node else "inside the node",
            "throughput": lambda row: _rate(row["throughput_samples_per_s"]), "all epochs": ("training_time_s", seconds),
            "step": ("step_time_s", seconds), "exposed communication": ("communication_exposed_s", seconds),
            "of ideal": lambda row: percent(row["efficiency"], 0),
        })),
    }  # fmt: skip
    if has_many(here):
        made["Here, on CPUs"] = Block(here_table(here, {"run": ("series", lambda name: name.removesuffix(", here"))}))
    if results.rows["switches"]:
        made["Fusion and compression"] = Block(rounds_table(results.rows["switches"], "switch", BASE, "exposed_s"))
    return made


def _lines(rows: Sequence[Row], column: str, published: str = "", unit: float = 1.0) -> list[Series]:
    """Return a predicted line for each device, with the published points of the column `published`."""
    series = []
    for (device, own), color in zip(grouped(rows, "series").items(), COLORS, strict=False):
        line = series_of(f"{device}, predicted", own, column, "predicted", color, unit)
        is_rate = column == "throughput_samples_per_s"
        series.append(with_interval(line, [throughput_interval(row) for row in own]) if is_rate else line)
        theirs = [row["published"] for row in own if row["published"]]
        if theirs and published:
            series.append(series_of(f"{device}, published", theirs, published, "measured", color, unit, x="gpus"))
    return series


def _throughput(rows: Sequence[Row]) -> Block:
    return Block(
        table(rows, {
            "device": "series", "GPUs": "world", "predicted": lambda row: _rate(row["throughput_samples_per_s"]),
            "80 % interval": lambda row: " … ".join(_plain(v) for v in throughput_interval(row) if v),
            "published": _published(lambda row, theirs: _rate(theirs["images_per_s"])),
            "error of the prediction": _published(lambda row, theirs: signed_percent(row["throughput_samples_per_s"] / theirs["images_per_s"] - 1)),
            "step": ("step_time_s", seconds), "all epochs": ("training_time_s", seconds),
            "all epochs, published": _published(lambda row, theirs: seconds(theirs["training_time_s"])),
            "cost": lambda row: shown(row["cost_usd"], dollars),
        }),
        Figure([
            against_ranks("images/s", _lines(rows, "throughput_samples_per_s", "images_per_s"), "Throughput"),
            against_ranks("hours", _lines(rows, "training_time_s", "training_time_s", 3600.0), "Total runtime, all epochs"),
        ]),
    )  # fmt: skip


def _published(cell: Callable[[Row, Row], str]) -> Callable[[Row], str]:
    """Return a column that is empty if there is no published row."""
    return lambda row: cell(row, row["published"]) if row["published"] else ""


def _rate(images_per_s: float) -> str:
    return f"{_plain(images_per_s)} images/s"


def _plain(images_per_s: float) -> str:
    return f"{images_per_s:,.0f}" if images_per_s >= 100 else f"{images_per_s:.1f}"


def _ideal(rows: Sequence[Row]) -> Block:
    lines = [*_lines(rows, "speed_up", "speed_up"), ideal(matching(rows, series=rows[0]["series"]))]
    return Block(
        table(rows, {
            "device": "series", "GPUs": "world", "speed-up": ("speed_up", "{:.2f} ×".format),
            "of ideal": lambda row: percent(row["efficiency"], 0),
            "published speed-up": _published(lambda row, theirs: f"{theirs['speed_up']:.2f} ×"),
            "published, of ideal": _published(lambda row, theirs: percent(theirs["speed_up"] / theirs["gpus"], 0)),
        }),
        Figure([against_ranks("times the throughput of one", lines, is_log=False)]),
    )  # fmt: skip


_PUBLISHED = {"name": "synthetic", "shape": [3, 224, 224], "classes": 1000, "samples": 128_000}
_TINY = {"name": "synthetic", "shape": [3, 16, 16], "classes": 10, "samples": 256}
_PAPER = {
    "network": "resnet50-v1", "data": _PUBLISHED, "batch_per_rank": 64, "gpu_data": _PUBLISHED, "gpu_batch_per_rank": 64,
    "epochs": 25, "worlds": [1, 2, 4, 8, 16], "clusters": [["k80-gk210", "ethernet-10g"], ["v100", "ethernet-25g"]],
    "predicted_worlds": [1, 2, 4, 8, 16], "per_node": 8, "rounds": 5, "steps": 30, "warmup": 5,
}  # fmt: skip
_LAPTOP = {
    **_PAPER, "data": {"name": "synthetic", "shape": [3, 64, 64], "classes": 1000, "samples": 12_800},
    "batch_per_rank": 8, "worlds": [1, 2], "rounds": 2, "steps": 6, "warmup": 2,
}  # fmt: skip
_SMOKE = {
    **_LAPTOP, "network": "lenet5", "data": _TINY, "gpu_data": _TINY, "epochs": 1, "worlds": [1, 2],
    "clusters": [["v100", "ethernet-25g"]], "predicted_worlds": [1, 4], "rounds": 1, "steps": 2, "warmup": 1,
}  # fmt: skip
_EVENING = {**_LAPTOP, "rounds": 5, "steps": 20, "warmup": 5}

STUDY = Study(
    name="horovod-scaling",
    question="How do throughput and training time scale from 1 to 16 ranks with Horovod, and what do fusion and compression change?",
    hypothesis="Weak scaling near 90 % where gradients are exchanged behind backward; fewer, larger messages are faster",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "evening": _EVENING, "paper": _PAPER},
    conduct=conduct,
    values=values,
    blocks=blocks,
    predictions=predictions,
)

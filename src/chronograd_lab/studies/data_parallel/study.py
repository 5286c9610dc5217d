"""torch.nn.DataParallel on 1, 2 and 4 GPUs: three tables.

Time and speed-up; computation and communication; all-reduce and bandwidth. Each is at batch 32, 128, 512, ... of a GPU until
its memory is full. DataParallel makes no replicas without GPUs. Rows measured here are therefore those of
DistributedDataParallel, and the page states this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from chronograd.answer import Table
from chronograd.compare.scaling import Scaling
from chronograd.data.trace_job import trace_job
from chronograd.figure import Figure, Lines, Series
from chronograd.hardware import catalog
from chronograd.job import Job, changed
from chronograd.measure import environment
from chronograd.predict.collectives import all_reduce_s
from chronograd.predict.memory import Footprint, reserve_bytes
from chronograd.predict.prediction import footprint_of, predict, rank_work
from chronograd.predict.scaling import REPLICA_OPERATOR_S, REPLICA_TENSOR_S, replicas_s
from chronograd.predict.setting import setting_of
from chronograd.units import percent, seconds
from chronograd.words import how_many, signed_percent
from chronograd_lab.common.published_throughputs import beside_published, one_gpu_steps
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import ends, grouped, matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.scaling import (
    COLORS,
    Sweep,
    against_ranks,
    beside_figure,
    beside_table,
    by_world,
    has_many,
    here_table,
    line_and_points,
    predicted_points,
    run_sweeps,
    scaling_job,
    series_of,
)
from chronograd_lab.common.study import Study, listed, table
from chronograd_lab.common.written import Block

DP, DDP = "data_parallel", "ddp"
# Two public solutions of this exercise, as reported by a reader of both (2026-11, recalled). The first has epochs at a constant
# global batch. The second has the best speed-up of four GPUs, and does not state which batch is constant.
PUBLIC_EPOCHS: list[Row] = [
    {"device": "rtx8000", "batch": 32, "world": world, "epoch_s": epoch_s}
    for world, epoch_s in ((1, 23.4), (2, 60.2), (4, 70.3))
]
PUBLIC_SPEED_UP: Row = {"device": "l4", "batch": 512, "world": 4, "speed_up": 1.96}
# Measured with two workers of torchvision's pipeline (crop, flip, tensor, normalise) on CIFAR-10: benchmarks/results/input.json.
LOADING: Row = {"images_per_s": 3149.01, "workers": 2, "processor": "AMD EPYC", "date": "2026-11-21"}


def job(settings: Settings, backend: str, device: str, batch: int) -> Job:
    """Return the job of the exercise: SGD 0.1, 0.9, 5e-4, on cards of one machine."""
    training = {"batch": batch, "epochs": 2, "learning_rate": 0.1, "weight_decay": 5e-4}
    cluster: dict[str, Any] = {} if device == "here" else {"device": device, "per_node": 4}
    return scaling_job(settings, backend, training, **cluster)


def here(settings: Settings, has_gpus: bool) -> list[Sweep]:
    backend = DP if has_gpus else DDP
    return [
        _sweep(settings, backend, "here", batch, "weak", measured=settings["worlds"]) for batch in settings["batches"]
    ]


def elsewhere(settings: Settings) -> dict[str, list[Row]]:
    """Predict the tables `points`, `parts` of DataParallel's exchange, and `largest`: the batches that fit in memory."""
    device, worlds = settings["device"], settings["predicted_worlds"]
    largest = _largest(settings, device)
    fits = [batch for batch in settings["predicted_batches"] if batch <= largest]
    sweeps = [
        *(_sweep(settings, DP, device, batch, scaling, predicted=worlds) for scaling in ("weak", "strong") for batch in fits),
        *(_sweep(settings, DDP, device, batch, "weak", predicted=worlds) for batch in fits),
    ]  # fmt: skip
    other = PUBLIC_SPEED_UP["device"]
    if other != device and settings["with_public"]:
        sweeps += [
            _sweep(settings, DP, other, PUBLIC_SPEED_UP["batch"], scaling, predicted=worlds)
            for scaling in ("weak", "strong")
        ]
    parts = [_parts(settings, device, batch, world) for batch in fits for world in worlds if world > 1]
    room = _room(device)
    memory = [
        {"device": device, "batch": batch, "bytes": _footprint(settings, device, batch).at(batch).total, "fits": batch in fits,
         "largest": largest, "room": room}
        for batch in settings["predicted_batches"]
    ]  # fmt: skip
    return {"points": predicted_points(sweeps), "parts": parts, "memory": memory}


def _sweep(settings: Settings, backend: str, place: str, batch: int, scaling: Scaling, **worlds: Any) -> Sweep:
    known = {"place": place, "batch_asked": batch}
    name = f"{backend}, {place}, {scaling}, batch {batch}"
    return Sweep(name, job(settings, backend, place, batch), scaling, known={"of": backend, **known}, **worlds)


def _footprint(settings: Settings, device: str, batch: int) -> Footprint:
    one = job(settings, "single", device, batch)
    return footprint_of(trace_job(one), setting_of(one))


def _room(device: str) -> int:
    whole = catalog.device(device)
    return whole.memory_bytes - reserve_bytes(whole)


def _largest(settings: Settings, device: str) -> int:
    return _footprint(settings, device, 1).largest_batch(_room(device))


def _parts(settings: Settings, device: str, batch: int, world: int) -> Row:
    """Return the parts of DataParallel's exchange in a step, weak scaling: host, copies, and the time of a ring by its
    formula.
    """
    many = changed(job(settings, DP, device, batch * world), [f"cluster.count={world}"])
    trace, setting = trace_job(many), setting_of(many)
    forward_s = rank_work(trace, batch, setting)[1]["forward_s"]
    size = sum(s.bytes.const for s in trace.storages if s.role == "gradient")
    link = setting.topology.slowest_link
    return {
        "batch_asked": batch,
        "world": world,
        "host_s": float(replicas_s(trace, world, forward_s)),
        "copies_s": float(all_reduce_s(setting.algorithm, size, setting.topology)),
        "ring_s": float(all_reduce_s("ring", size, setting.topology)),
        "bytes": size,
        "link": link.name,
        "link_bytes_per_s": link.bandwidth_bytes_per_s,
    }


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    results = run_sweeps(runner, settings, here(settings, bool(environment.gpus())))
    return replace(results, rows={**results.rows, **predictions(results), "loading": [LOADING]})


def predictions(results: Results) -> dict[str, list[Row]]:
    settings, measured = results.settings, matching(results.rows["points"], place="here")
    there = elsewhere(settings)
    one_gpu = [{**row, **_one_gpu_now(settings, row)} for row in one_gpu_steps()]
    t4 = beside_published("t4", settings["network"])
    return {**there, "points": [*measured, *there["points"]], "one_gpu": one_gpu, "t4": t4}


def _one_gpu_now(settings: Settings, row: Row) -> Row:
    """Predict a step timed on one GPU with the calibration that ships now, and its copy of fp32 images from the CPU's memory.

    The copy takes the time by the data sheet of the link.
    """
    batch, of_row = int(row["batch"]), {**settings, "network": "resnet18-cifar"}
    how = [
        f"training.precision={row['precision']}",
        f"training.channels_last={str(row['precision'] != 'fp32').lower()}",
    ]
    one = changed(job(of_row, "single", row["device"], batch), how)
    trace = trace_job(one)
    copy_s = rank_work(trace, batch, setting_of(one))[1]["transfer_s"]
    return {"copy_s": copy_s, "now_s": predict(trace, one).value("step_time_s")}


# -- the page --------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    weak, strong, ddp = (_rows(results, *of) for of in (("weak", DP), ("strong", DP), ("weak", DDP)))
    several = [row for row in weak if row["world"] > 1]
    of_most = matching(weak, world=max(row["world"] for row in weak))
    timed = grouped([row for row in _one_gpu(results) if row["step_s"] is not None], "precision")
    here = matching(results.rows["points"], place="here", kind="measured")
    is_worse = [
        row["speed_up"] < other["speed_up"]
        for row in strong for other in matching(several, world=row["world"], batch_asked=row["batch_asked"])
    ]  # fmt: skip
    return {
        "weak": _by_batch(weak), "strong": _by_batch(strong), "ddp": _by_batch(ddp), "here": _by_batch(here),
        "strong_worse": sum(is_worse), "pairs": len(is_worse),
        "best": max(several, key=lambda row: row["speed_up"]), "fed": ends(row["fed"] for row in of_most),
        "quickest_s": min(row["epoch_s"] for row in weak), "rate": ends(row["rate"] for row in several), "ring": ends(row["ring"] for row in several),
        "loading": {**results.rows["loading"][0], "epoch_s": _loading_s(results)},
        "memory": {f"b{row['batch']}": row for row in results.rows["memory"]},
        "one_gpu": {name: {f"b{row['batch']:.0f}": row for row in own} for name, own in timed.items()},
        "before": {name: _errors(own, "predicted_epoch_s") for name, own in timed.items()},
        "now": {name: _errors(own, "now_epoch_s") for name, own in timed.items()},
        "t4": {name: by_world(own) for name, own in grouped(results.rows["t4"], "set").items()},
        "public": by_world(_public(results)), "public_speed_up": PUBLIC_SPEED_UP["speed_up"],
        "l4": {row["scaling"]: row for row in _public_rows(results, PUBLIC_SPEED_UP)},
        "tensor_s": REPLICA_TENSOR_S, "operator_s": REPLICA_OPERATOR_S,
    }  # fmt: skip


def _by_batch(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """Return rows by batch of a GPU and number of GPUs: b32.n4."""
    return {f"b{batch}": by_world(own) for batch, own in grouped(rows, "batch_asked").items()}


def _rows(results: Results, scaling: str, backend: str = DP) -> list[Row]:
    """Return predictions for the study's GPUs, with the seconds of an epoch and the parts of DataParallel's exchange.

    The rate is that of the whole exchange over the first GPU's link, 2(n − 1) · S in the time of the communication. Ring: a
    ring all-reduce of the same duration, 2(n − 1)/n · S over each GPU's link.
    """
    known = {"of": backend, "place": results.settings["device"], "scaling": scaling, "kind": "predicted"}
    parts = {(part["batch_asked"], part["world"]): part for part in results.rows["parts"]}
    rows: list[Row] = []
    for point in matching(results.rows["points"], **known):
        row = {**point, **_epoch(results, point), **parts.get((point["batch_asked"], point["world"]), {})}
        row["fed"] = matching([*rows, row], batch_asked=row["batch_asked"], world=1)[0]["loaded_s"] / row["loaded_s"]
        if row["world"] > 1:
            row["rate"] = 2 * (row["world"] - 1) * row["bytes"] / row["communication_exposed_s"]
            row["ring"] = row["rate"] / row["world"]
        rows.append(row)
    return rows


def _epoch(results: Results, row: Row) -> Row:
    """Return the updates of an epoch, its seconds, and its seconds with loading, which runs in parallel.

    The last batch of an epoch is smaller than the others and counts by its share of a full one.
    """
    updates = results.settings["epoch_samples"] / row["batch"]
    epoch_s = float(updates * row["step_time_s"])
    return {"updates": updates, "epoch_s": epoch_s, "loaded_s": max(_loading_s(results), epoch_s)}


def _loading_s(results: Results) -> float:
    return float(results.settings["epoch_samples"] / results.rows["loading"][0]["images_per_s"])


def _one_gpu(results: Results) -> list[Row]:
    """Return steps on one GPU with the seconds of an epoch; a batch that does not fit has only predicted ones."""
    rows = []
    for row in results.rows["one_gpu"]:
        updates = results.settings["epoch_samples"] / row["batch"]
        names = {"now_s": "now_epoch_s", "predicted_s": "predicted_epoch_s", "step_s": "alone_s", "copy_s": "copies_s"}
        row = {**row, **{name: updates * row[key] for key, name in names.items() if row[key] is not None}}
        rows.append(row if row["step_s"] is None else {**row, "epoch_s": row["alone_s"] + row["copies_s"]})
    return rows


def _errors(timed: Sequence[Row], column: str) -> Row:
    """Return the mean error and bias of predicted epochs, and the smallest and largest error of those that are too short."""
    errors = np.array([row[column] / row["epoch_s"] - 1 for row in timed])
    short = [*-errors[errors < 0]] or [0.0]
    return {"mean": float(np.mean(np.abs(errors))), "bias": float(np.mean(errors)), "batches": len(errors),
            "num_short": int(np.sum(errors < 0)), "least": float(min(short)), "most": float(max(short))}  # fmt: skip


def _public_rows(results: Results, theirs: Row) -> list[Row]:
    """Return predictions of DataParallel for the setting of a public solution, in both kinds of scaling."""
    wanted = {"of": DP, "place": theirs["device"], "world": theirs["world"], "batch_asked": theirs["batch"]}
    return matching(results.rows["points"], **wanted)


def _public(results: Results) -> list[Row]:
    """Return the solution of constant global batch with its prediction.

    `added_s`: the excess of a step over 1/n of the step of one GPU, for both.
    """
    rows: list[Row] = []
    for theirs in PUBLIC_EPOCHS:
        for row in matching(_public_rows(results, theirs), scaling="strong"):
            epoch = _epoch(results, row)
            own = {**theirs, "predicted_s": epoch["epoch_s"]}
            first = rows[0] if rows else own
            for column in ("epoch_s", "predicted_s"):
                own[f"added_{column}"] = (own[column] - first[column] / row["world"]) / epoch["updates"]
            rows.append(own)
    return rows


def blocks(results: Results) -> dict[str, Block]:
    weak, strong = (_rows(results, scaling) for scaling in ("weak", "strong"))
    several = [row for row in weak if row["world"] > 1]
    both = [
        {**row, "strong": other["speed_up"]}
        for row in several for other in matching(strong, world=row["world"], batch_asked=row["batch_asked"])
    ]  # fmt: skip
    here, public = matching(results.rows["points"], place="here"), _public(results)
    made = {
        "Table 1: time and speed-up": Block(_wide(weak, "batch_asked", "world", {
            "epoch with loading": lambda row: seconds(row["loaded_s"]),
            "speed-up with loading": lambda row: "" if row["world"] == 1 else f"{row['fed']:.2f} ×",
            "steps alone": lambda row: seconds(row["epoch_s"]),
            "speed-up of steps": lambda row: "" if row["world"] == 1 else f"{row['speed_up']:.2f} ×",
        }), _speed_ups(weak, results.settings["with_public"])),
        "Strong or weak?": Block(_wide(both, "batch_asked", "world", {
            "weak": lambda row: f"{row['speed_up']:.2f} ×", "strong": lambda row: f"{row['strong']:.2f} ×",
        }, "batch, of a GPU (weak) or in total (strong)")),
        "Table 2: computation and communication": Block(_wide(several, "batch_asked", "world", {
            name: _of_epoch(column)
            for name, column in (("computation", "compute_s"), ("communication", "communication_exposed_s"),
                                 ("host part", "host_s"), ("copies", "copies_s"))
        })),
        "Table 3: all-reduce and bandwidth": Block(_wide(several, "batch_asked", "world", {
            "ring by formula": lambda row: seconds(row["ring_s"]), "copies": lambda row: seconds(row["copies_s"]),
            "communication": lambda row: seconds(row["communication_exposed_s"]),
            "GB/s as a ring": lambda row: f"{row['ring'] / 1e9:.2f}",
            "of the link as a ring": lambda row: percent(row["ring"] / row["link_bytes_per_s"], 0),
            "GB/s of the copies": lambda row: f"{row['rate'] / 1e9:.2f}",
            "of the link": lambda row: percent(row["rate"] / row["link_bytes_per_s"], 0),
        })),
        "One GPU, measured: NVIDIA H200 SXM5 141 GB": _one_gpu_block(_one_gpu(results)),
    }  # fmt: skip
    if public:
        made["Compared with two public solutions"] = Block(table(public, {
            "GPUs": "world", "public, an epoch": ("epoch_s", "{:.1f} s".format), "predicted": ("predicted_s", "{:.1f} s".format),
            "error of the prediction": lambda row: signed_percent(row["predicted_s"] / row["epoch_s"] - 1),
        }, text=0), _public_speed_ups(results, public))  # fmt: skip
    if t4 := results.rows["t4"]:
        made["Two and four GPUs, published: a process for each"] = Block(beside_table(t4), beside_figure(t4))
    if has_many(here):
        made["Here, on CPUs"] = Block(here_table(here, {}))
    return made


def _of_epoch(column: str) -> Callable[[Row], str]:
    return lambda row: seconds(row["updates"] * row[column])


def _wide(
    rows: Sequence[Row],
    index: str,
    group: str,
    columns: Mapping[str, Callable[[Row], str]],
    head: str = "batch of a GPU",
) -> Table:
    """Return a table with a row for each value of `index`, under `head`, and the columns once for each value of `group`."""
    groups = sorted({row[group] for row in rows})
    body = []
    for value, own in sorted(grouped(rows, index).items()):
        at = {row[group]: row for row in own}
        cells = [cell(at[one]) if one in at else "" for one in groups for cell in columns.values()]
        body.append([f"{value:,.0f}", *cells])
    labels = [how_many(one, "GPUs") if group == "world" else one for one in groups]
    heads = [f"{name}, {label}" for label in labels for name in columns]
    return listed([head, *heads], body, 0).without_empty_columns()


def _speed_ups(rows: Sequence[Row], with_public: bool) -> Figure:
    worlds = sorted({row["world"] for row in rows} - {1})
    batches = sorted({row["batch_asked"] for row in rows})
    series = [
        series_of(how_many(world, "GPUs"), matching(rows, world=world), "speed_up", "predicted", color, x="batch_asked")
        for world, color in zip(worlds, COLORS, strict=False)
    ]
    series += [
        Series(f"ideal, {how_many(n, 'GPUs')}", "reference", batches, [n] * len(batches), color=color)
        for n, color in zip(worlds, COLORS, strict=False)
    ]
    if with_public:
        batch, world, speed_up = (PUBLIC_SPEED_UP[key] for key in ("batch", "world", "speed_up"))
        label = f"published: {world} × {PUBLIC_SPEED_UP['device']}"
        series.append(Series(label, "measured", [batch], [speed_up], color=COLORS[worlds.index(world)]))
    panel = against_ranks("times the throughput of one GPU", series, "DataParallel", "batch of a GPU", is_log=False)
    return Figure([replace(panel, log_x=True)])


def _public_speed_ups(results: Results, public: Sequence[Row]) -> Figure:
    """Return the speed-ups of both public solutions, with their predictions and the ideal."""
    alone, worlds = public[0], [row["world"] for row in public]
    many, l4 = f"{alone['device']}, batch {alone['batch']} in total", PUBLIC_SPEED_UP
    times = [{**row, **{f"{c}_times": alone[c] / row[c] for c in ("predicted_s", "epoch_s")}} for row in public]
    series = line_and_points(many, times, "predicted_s_times", "epoch_s_times", "published", COLORS[0])
    for (scaling, of), color in zip((("strong", "in total"), ("weak", "of a GPU")), COLORS[1:], strict=False):
        own = matching(results.rows["points"], of=DP, place=l4["device"], batch_asked=l4["batch"], scaling=scaling)
        series.append(
            series_of(f"{l4['device']}, batch {l4['batch']} {of}, predicted", own, "speed_up", "predicted", color)
        )
    series += [
        Series(f"{l4['device']}, batch {l4['batch']}, published", "measured", [l4["world"]], [l4["speed_up"]], color=COLORS[3]),
        Series("ideal", "reference", worlds, worlds),
    ]  # fmt: skip
    return Figure([against_ranks("times the throughput of one GPU", series, is_log=False)])


def _one_gpu_block(rows: Sequence[Row]) -> Block:
    def cell(column: str, otherwise: str = "") -> Callable[[Row], str]:
        return lambda row: seconds(row[column]) if column in row else otherwise

    def error(column: str) -> Callable[[Row], str]:
        return lambda row: signed_percent(row[column] / row["epoch_s"] - 1) if "epoch_s" in row else ""

    series: list[Series] = []
    for (precision, own), color in zip(grouped(rows, "precision").items(), COLORS, strict=False):
        fits = [row for row in own if "epoch_s" in row]
        series += line_and_points(precision, fits, "now_epoch_s", "epoch_s", "measured", color, x="batch")
    table_ = table(rows, {
        "precision": "precision", "batch": ("batch", "{:,.0f}".format), "steps, measured": cell("alone_s", "does not fit"),
        "with copies": cell("epoch_s"), "predicted now": cell("now_epoch_s"), "error now": error("now_epoch_s"),
        "predicted before": cell("predicted_epoch_s"), "error before": error("predicted_epoch_s"),
    }, text=1)  # fmt: skip
    return Block(table_, Figure([Lines("batch", "seconds of an epoch", series, log_x=True, log_y=True)]))


_LAPTOP = {
    "network": "resnet18-cifar", "data": {"name": "cifar10"}, "epoch_samples": 50_000, "batches": [8, 32], "worlds": [1, 2],
    "device": "rtx8000", "predicted_batches": [32, 128, 512, 2048, 8192, 32768], "predicted_worlds": [1, 2, 4],
    "with_public": True, "steps": 5, "warmup": 2,
}  # fmt: skip
_SMOKE = {
    **_LAPTOP, "network": "lenet5", "data": {"name": "synthetic", "shape": [3, 32, 32], "classes": 10, "samples": 256},
    "batches": [8], "worlds": [1, 2], "predicted_batches": [32, 128], "predicted_worlds": [1, 4], "with_public": False,
    "steps": 2, "warmup": 1,
}  # fmt: skip
_PAPER = {**_LAPTOP, "batches": [32, 128, 512], "worlds": [1, 2, 4], "steps": 30, "warmup": 5}
_EVENING = {**_LAPTOP, "batches": [8, 32, 128], "steps": 20, "warmup": 3}

STUDY = Study(
    name="data-parallel",
    question="What do 2 and 4 GPUs gain with torch.nn.DataParallel, how much of it is communication, and how much bandwidth is used?",
    hypothesis="Speed-up grows with the batch, as every step copies the network to all GPUs and sums gradients on one",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "evening": _EVENING, "paper": _PAPER},
    conduct=conduct,
    values=values,
    blocks=blocks,
    predictions=predictions,
)

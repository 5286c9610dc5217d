"""torch.nn.DataParallel on 1, 2 and 4 GPUs: three tables.

Time and speed-up; computation and communication; all-reduce and bandwidth; each at batch 32, 128, 512, ... of a GPU until its
memory is full. DataParallel makes no replicas without GPUs, so rows measured here are DistributedDataParallel's, and say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.compare.scaling import Scaling
from chronograd.data.trace_job import trace_job
from chronograd.figure import Figure, Lines, Series
from chronograd.hardware import catalog
from chronograd.job import Job, changed
from chronograd.measure import environment
from chronograd.predict.collectives import all_reduce_s
from chronograd.predict.memory import reserve_bytes
from chronograd.predict.prediction import footprint_of, rank_work
from chronograd.predict.scaling import REPLICA_OPERATOR_S, REPLICA_TENSOR_S, replicas_s
from chronograd.predict.setting import setting_of
from chronograd.units import memory, percent, seconds
from chronograd.words import how_many, signed_percent
from chronograd.words import listed as enumerated
from chronograd_lab.common.published_throughputs import one_gpu_steps
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import grouped, matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.scaling import COLORS, Sweep, against_ranks, run_sweeps, scaling_job, series_of
from chronograd_lab.common.study import Study, listed, table

DP, DDP = "data_parallel", "ddp"
# Two public solutions of this exercise, as a reader of both reported them (2026-11, recalled): epochs of the first with the global
# batch kept; of the second the best speed-up of four GPUs, which does not say which batch is kept.
PUBLIC_EPOCHS: list[Row] = [
    {"device": "rtx8000", "batch": 32, "world": world, "epoch_s": epoch_s}
    for world, epoch_s in ((1, 23.4), (2, 60.2), (4, 70.3))
]
PUBLIC_SPEED_UP: Row = {"device": "l4", "batch": 512, "world": 4, "speed_up": 1.96}
# Measured with two workers of torchvision's pipeline (crop, flip, tensor, normalise) on CIFAR-10: benchmarks/results/input.json.
LOADING: Row = {"images_per_s": 3149.01, "workers": 2, "processor": "AMD EPYC", "date": "2026-11-21"}


def job(settings: Settings, backend: str, device: str, batch: int) -> Job:
    """Of the exercise: SGD 0.1, 0.9, 5e-4, on cards of one machine."""
    training = {"batch": batch, "epochs": 2, "learning_rate": 0.1, "weight_decay": 5e-4}
    cluster: dict[str, Any] = {} if device == "here" else {"device": device, "per_node": 4}
    return scaling_job(settings, backend, training, **cluster)


def here(settings: Settings, has_gpus: bool) -> list[Sweep]:
    backend = DP if has_gpus else DDP
    return [
        _sweep(settings, backend, "here", batch, "weak", measured=settings["worlds"]) for batch in settings["batches"]
    ]


def elsewhere(runner: StudyRunner, settings: Settings) -> dict[str, list[Row]]:
    """Predicted: the tables `points`, `parts` of DataParallel's exchange, and `largest`: the batches that memory holds."""
    device, worlds = settings["device"], settings["predicted_worlds"]
    fits, largest = [], _largest(settings, device)
    for batch in settings["predicted_batches"]:
        if batch <= largest:
            fits.append(batch)
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
    points = run_sweeps(runner, settings, sweeps).rows["points"]
    parts = [_parts(settings, device, batch, world) for batch in fits for world in worlds if world > 1]
    needs = {batch: _needs(settings, device, batch) for batch in settings["predicted_batches"]}
    memory_rows = [
        {"device": device, "batch": batch, "bytes": need, "fits": batch in fits} for batch, need in needs.items()
    ]
    room = catalog.device(device).memory_bytes - reserve_bytes(catalog.device(device))
    return {
        "points": points,
        "parts": parts,
        "memory": [{**row, "largest": largest, "room": room} for row in memory_rows],
    }


def _sweep(settings: Settings, backend: str, place: str, batch: int, scaling: Scaling, **worlds: Any) -> Sweep:
    known = {"place": place, "batch_asked": batch}
    name = f"{backend}, {place}, {scaling}, batch {batch}"
    return Sweep(name, job(settings, backend, place, batch), scaling, known={"of": backend, **known}, **worlds)


def _needs(settings: Settings, device: str, batch: int) -> int:
    one = job(settings, "single", device, batch)
    return footprint_of(trace_job(one), setting_of(one)).at(batch).total


def _largest(settings: Settings, device: str) -> int:
    one = job(settings, "single", device, 1)
    whole = catalog.device(device)
    return footprint_of(trace_job(one), setting_of(one)).largest_batch(whole.memory_bytes - reserve_bytes(whole))


def _parts(settings: Settings, device: str, batch: int, world: int) -> Row:
    """Of DataParallel's exchange in a step, weak scaling: the host's part, the copies, and what a ring would take by its formula."""
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
    there = elsewhere(runner, settings)
    results = run_sweeps(runner, settings, here(settings, bool(environment.gpus())))
    points = [*results.rows["points"], *there["points"]]
    one_gpu = [{**row, "copy_s": _copy_s(settings, row["device"], int(row["batch"]))} for row in one_gpu_steps()]
    return replace(results, rows={**there, "points": points, "one_gpu": one_gpu, "loading": [LOADING]})


def _copy_s(settings: Settings, device: str, batch: int) -> float:
    """Seconds to copy a batch of fp32 images from the CPU's memory to a GPU, by the data sheet of its link: predicted, not measured."""
    one = job(settings, "single", device, batch)
    return rank_work(trace_job(one), batch, setting_of(one))[1]["transfer_s"]


def page(results: Results) -> Answer:
    sections = [
        _time_section(results),
        _form_section(results),
        _split_section(results),
        _bandwidth_section(results),
        _one_gpu_section(results),
        *_public_sections(results),
        *_here_sections(results),
    ]
    device = results.settings["device"]
    known = [row for row in _of(results, "weak") if row["world"] > 1]
    best = max(known, key=lambda row: row["speed_up"])
    detail = f"{best['world']} × {device}, batch {best['per_rank']:,} each, predicted"
    highlights = [Highlight("best speed-up of DataParallel", f"{best['speed_up']:.2f} ×", detail)]
    return STUDY.answer(results, sections, highlights, [section.takeaway for section in sections[:4]])


def _of(results: Results, scaling: str, backend: str = DP, place: str = "") -> list[Row]:
    place = place or results.settings["device"]
    return matching(results.rows["points"], of=backend, place=place, scaling=scaling, kind="predicted")


def _epoch_s(results: Results, row: Row) -> float:
    """An epoch of whole steps, of which the last may be short."""
    return float(-(-results.settings["epoch_samples"] // row["batch"]) * row["step_time_s"])


def _by_world(rows: Sequence[Row], columns: dict[str, Callable[[Row], str]], labels: Sequence[str] = ()) -> Table:
    """A row for each batch of a GPU; the columns once per number of GPUs."""
    worlds = sorted({row["world"] for row in rows})
    body = []
    for batch, of_batch in sorted(grouped(rows, "batch_asked").items()):
        at = {row["world"]: row for row in of_batch}
        body.append(
            [f"{batch:,}", *(cell(at[world]) if world in at else "" for world in worlds for cell in columns.values())]
        )
    heads = [f"{name}, {world} GPU{'s' * (world > 1)}" for world in worlds for name in columns]
    return listed(("batch of a GPU", *labels, *heads), body, 0).without_empty_columns()


def _time_section(results: Results) -> Section:
    """Table 1."""
    rows, device = _of(results, "weak"), results.settings["device"]
    several = [row for row in rows if row["world"] > 1]
    of_most = matching(several, world=max(row["world"] for row in several))
    best, worst = (pick(of_most, key=lambda row: row["speed_up"]) for pick in (max, min))
    samples = results.settings["epoch_samples"]
    worlds = sorted({row["world"] for row in several})
    series = [
        series_of(how_many(world, "GPUs"), matching(rows, world=world), "speed_up", "predicted", color, x="batch_asked")
        for world, color in zip(worlds, COLORS, strict=False)
    ]
    batches = sorted({row["batch_asked"] for row in rows})
    series += [
        Series(f"ideal, {how_many(world, 'GPUs')}", "reference", batches, [world] * len(batches)) for world in worlds
    ]
    if results.settings["with_public"]:
        series.append(
            Series(f"published: {PUBLIC_SPEED_UP['world']} × {PUBLIC_SPEED_UP['device']}", "measured", [PUBLIC_SPEED_UP["batch"]],
                   [PUBLIC_SPEED_UP["speed_up"]], color=COLORS[worlds.index(PUBLIC_SPEED_UP["world"])])
        )  # fmt: skip
    (loading,) = results.rows["loading"]
    loading_s = samples / loading["images_per_s"]
    quickest_s = min(_epoch_s(results, row) for row in rows)
    alone = {row["batch_asked"]: max(loading_s, _epoch_s(results, row)) for row in matching(rows, world=1)}
    fed = [alone[row["batch_asked"]] / max(loading_s, _epoch_s(results, row)) for row in of_most]
    panel = against_ranks("times the throughput of one GPU", series, "DataParallel", "batch of a GPU", is_log=False)
    full = [row for row in results.rows["memory"] if not row["fits"]]
    largest, room = results.rows["memory"][0]["largest"], results.rows["memory"][0]["room"]
    no_more = (
        f" Batch {full[0]['batch']:,} no longer fits: it needs {memory(full[0]['bytes'])} where {memory(room)} are free; {largest:,} is the largest."
        if full
        else f" All of these batches fit; {largest:,} is the largest."
    )
    return Section(
        "Table 1: time and speed-up",
        f"With loading, DataParallel on {worst['world']} × {device} gives {min(fed):.2f} to {max(fed):.2f} times the throughput of one GPU. "
        f"{loading['workers']} workers take {seconds(loading_s)} to load an epoch; its steps alone take {seconds(quickest_s)} at best. "
        f"Without loading, with the same batch for each GPU, it gives {worst['speed_up']:.2f} times the throughput of "
        f"one at batch {worst['batch_asked']:,} and {best['speed_up']:.2f} times at batch {best['batch_asked']:,}. "
        f"Its work for the replicas costs the same at every batch.{no_more}",
        f"Predicted seconds of the second epoch, of {how_many(samples, 'images')}, with the copies from the CPU to the GPU. With loading, as the exercise asks: "
        f"the longer of the steps and of loading, which run at the same time. {how_many(loading['workers'], 'workers')} of torchvision's pipeline load "
        f"{loading['images_per_s']:,.0f} images/s (measured on {loading['processor']}, {loading['date']}); more workers load more. Steps alone: without loading.",
        figure=Figure([replace(panel, log_x=True)]),
        caption=f"Predicted; 80 % interval of a step: {percent(several[0]['low'] / several[0]['step_time_s'], 0)} to "
        f"{percent(several[0]['high'] / several[0]['step_time_s'], 0)} of it.",
        table=_by_world(rows, {
            "epoch with loading": lambda row: seconds(max(loading_s, _epoch_s(results, row))),
            "speed-up with loading": lambda row: "" if row["world"] == 1
            else f"{alone[row['batch_asked']] / max(loading_s, _epoch_s(results, row)):.2f} ×",
            "steps alone": lambda row: seconds(_epoch_s(results, row)),
            "speed-up of steps": lambda row: "" if row["world"] == 1 else f"{row['speed_up']:.2f} ×",
        }),
    )  # fmt: skip


def _one_gpu_section(results: Results) -> Section:
    """One GPU at growing batches, measured, beside what was predicted before it was at hand."""
    samples, steps = results.settings["epoch_samples"], results.rows["one_gpu"]
    timed = [row for row in steps if row["step_s"] is not None]
    precisions = list(grouped(steps, "precision"))
    device = catalog.device(steps[0]["device"]).title

    def epoch_s(row: Row, key: str = "step_s") -> float:
        return float(-(-samples // int(row["batch"])) * row[key])

    def with_copies_s(row: Row) -> float:
        return epoch_s(row) + epoch_s(row, "copy_s")

    series, body = [], []
    for precision, color in zip(precisions, COLORS, strict=False):
        own = matching(timed, precision=precision)
        xs = [row["batch"] for row in own]
        series.append(Series(precision, "measured", xs, [epoch_s(row) for row in own], color=color, is_joined=True))
    for batch, of_batch in sorted(grouped(steps, "batch").items()):
        at = {row["precision"]: row for row in of_batch}
        cells = []
        for row in (at.get(precision) for precision in precisions):
            known = row is not None and row["step_s"] is not None
            verdict = "does not fit" if row is not None else ""
            cells += (
                [
                    seconds(with_copies_s(row)),
                    seconds(epoch_s(row)),
                    seconds(epoch_s(row, "predicted_s")),
                ]
                if row and known
                else [verdict, "", ""]
            )
        body.append([f"{int(batch):,}", *cells])
    small, large = (
        pick((row for row in timed if row["precision"] == "tf32"), key=lambda row: row["batch"]) for pick in (min, max)
    )
    full = [row for row in steps if row["step_s"] is None]
    no_more = (
        f" Batch {int(full[0]['batch']):,} does not fit in {enumerated([row['precision'] for row in full])}."
        if full
        else ""
    )
    return Section(
        f"One GPU, measured: {device}",
        f"In tf32, which PyTorch's convolutions take there by default, an epoch takes {seconds(with_copies_s(small))} at batch {int(small['batch']):,} "
        f"and {seconds(with_copies_s(large))} at batch {int(large['batch']):,}, copies included.{no_more} {prediction_errors(timed)}",
        f"ResNet-18 on 32×32, {how_many(samples, 'images')} an epoch, channels-last but in fp32, which is single precision throughout; {steps[0]['software']}, {steps[0]['date']}. "
        "Loading is left out and copies are included, as the exercise asks. The images were on the GPU already when the steps were timed, so the copies of "
        f"fp32 pixels from the CPU's memory were not measured. By the data sheet of the link they add {seconds(epoch_s(timed[0], 'copy_s'))} to an epoch.",
        figure=Figure([Lines("batch", "seconds of an epoch", series, log_x=True, log_y=True)]),
        table=listed(
            ["batch", *(f"{p}, {what}" for p in precisions for what in ("with copies", "steps alone", "predicted"))],
            body,
            0,
        ),
    )


def prediction_errors(timed: Sequence[Row]) -> str:
    """Return the mean error and bias of predictions by precision, and the range of the worst precision.

    >>> rows = [{"precision": "fp32", "predicted_s": 0.5, "step_s": 1.0}, {"precision": "fp32", "predicted_s": 1.1, "step_s": 1.0}]
    >>> prediction_errors(rows)
    'Predicted before we had the machine, fp32 was 50 % too fast at 1 of 2 batches. Mean error and bias: fp32 30 % (−20.0 %).'
    """
    errors = {
        precision: [row["predicted_s"] / row["step_s"] - 1 for row in own]
        for precision, own in grouped(timed, "precision").items()
    }
    worst = max(errors, key=lambda precision: float(np.mean(np.abs(errors[precision]))))
    is_fast = float(np.mean(errors[worst])) < 0
    sizes = sorted(abs(error) for error in errors[worst] if (error < 0) == is_fast)
    low, high = percent(sizes[0], 0), percent(sizes[-1], 0)
    size = high if low == high else f"{low} to {high}"
    each = enumerated(
        [
            f"{p} {percent(float(np.mean(np.abs(own))), 0)} ({signed_percent(float(np.mean(own)))})"
            for p, own in errors.items()
        ]
    )
    return (
        f"Predicted before we had the machine, {worst} was {size} too {'fast' if is_fast else 'slow'} at {len(sizes)} of {how_many(len(errors[worst]), 'batches')}. "
        f"Mean error and bias: {each}."
    )


def _form_section(results: Results) -> Section:
    """Weak as asked; strong as the other form."""
    weak, strong = (_of(results, scaling) for scaling in ("weak", "strong"))
    pairs = [
        (row, other)
        for row in weak
        if row["world"] > 1
        for other in matching(strong, world=row["world"], batch_asked=row["batch_asked"])
    ]
    better = sum(row["speed_up"] > other["speed_up"] for row, other in pairs)
    row, other = min(pairs, key=lambda pair: pair[1]["speed_up"])
    rows = [{**a, "other": b["speed_up"]} for a, b in pairs]
    return Section(
        "Strong or weak?",
        f"The same batch for each GPU is weak scaling; strong scaling, which shares one batch out, would be worse in {better} "
        f"of {how_many(len(pairs), 'settings')}: at batch {other['batch_asked']:,} on {how_many(other['world'], 'GPUs')} {other['speed_up']:.2f} instead of {row['speed_up']:.2f} times.",
        "A GPU then computes on an n-th of the batch, and the replicas cost as much as before.",
        table=_by_world(rows, {
            "weak": lambda row: f"{row['speed_up']:.2f} ×", "strong": lambda row: f"{row['other']:.2f} ×",
        }),
    )  # fmt: skip


def _split_section(results: Results) -> Section:
    """Table 2."""
    rows = _of(results, "weak")
    parts = {(part["batch_asked"], part["world"]): part for part in results.rows["parts"]}
    many = [{**row, **parts[row["batch_asked"], row["world"]]} for row in rows if row["world"] > 1]
    first = min(many, key=lambda row: (row["batch_asked"], -row["world"]))
    other = min(_of(results, "weak", DDP), key=lambda row: (row["batch_asked"], -row["world"]))

    def of_epoch(row: Row, value: float) -> str:
        return seconds(-(-results.settings["epoch_samples"] // row["batch"]) * value)

    return Section(
        "Table 2: computation and communication",
        f"At batch {first['batch_asked']:,} on {first['world']} GPUs communication is {percent(first['communication_exposed_s'] / first['step_time_s'], 0)} of a "
        f"step, {seconds(first['communication_exposed_s'])}: {seconds(first['host_s'])} of it is the one Python process, {seconds(first['copies_s'])} copies; "
        f"DistributedDataParallel, with a process for each GPU, exposes {seconds(other['communication_exposed_s'])}. Both are told apart as "
        "a run tells them: the step of one GPU at the batch of a GPU is computation, what a step of several takes beyond it communication.",
        "Of an epoch. Computation is the step of one GPU alone with the same batch, communication all that a step of several takes beyond "
        f"it: replicate, scatter and gather, {1e6 * REPLICA_TENSOR_S:.0f} µs for each tensor of each replica; forward of all replicas in threads of one "
        f"interpreter, {1e6 * REPLICA_OPERATOR_S:.0f} µs for each operator, as far as it is longer than the GPU's forward (both measured with PyTorch on a "
        "CPU); copies of parameters and gradients over the first GPU's link, one GPU after the other; and waiting for the slowest.",
        table=_by_world(many, {
            "computation": lambda row: of_epoch(row, row["compute_s"]),
            "communication": lambda row: of_epoch(row, row["communication_exposed_s"]),
            "of it host": lambda row: of_epoch(row, row["host_s"]), "copies": lambda row: of_epoch(row, row["copies_s"]),
        }),
    )  # fmt: skip


def bandwidth(part: Row, communication_s: float) -> float:
    """Bytes per second of the whole exchange: 2(n − 1) · S over the first GPU's link in the time of the communication."""
    return float(2 * (part["world"] - 1) * part["bytes"] / communication_s)


def ring_bandwidth(part: Row, communication_s: float) -> float:
    """Bytes per second of a ring all-reduce that took as long as the communication: 2(n − 1)/n · S over each GPU's link."""
    return bandwidth(part, communication_s) / float(part["world"])


def _bandwidth_section(results: Results) -> Section:
    """Table 3."""
    parts = {(part["batch_asked"], part["world"]): part for part in results.rows["parts"]}
    rows = [{**row, **parts[row["batch_asked"], row["world"]]} for row in _of(results, "weak") if row["world"] > 1]
    rows = [
        {
            **row,
            "rate": bandwidth(row, row["communication_exposed_s"]),
            "ring": ring_bandwidth(row, row["communication_exposed_s"]),
        }
        for row in rows
    ]
    slowest, quickest = (pick(rows, key=lambda row: row["ring"]) for pick in (min, max))
    least, most = (pick(rows, key=lambda row: row["rate"]) for pick in (min, max))
    one = rows[0]
    copies = [
        f"{seconds(row['copies_s'])} on {how_many(row['world'], 'GPUs')}"
        for row in matching(rows, batch_asked=one["batch_asked"])
    ]
    return Section(
        "Table 3: all-reduce and bandwidth",
        f"As a ring all-reduce the communication is {slowest['ring'] / 1e9:.2f} to {quickest['ring'] / 1e9:.2f} GB/s, "
        f"{percent(slowest['ring'] / one['link_bytes_per_s'], 0)} to {percent(quickest['ring'] / one['link_bytes_per_s'], 0)} of the link. "
        f"The whole exchange of DataParallel moves {least['rate'] / 1e9:.2f} to {most['rate'] / 1e9:.2f} GB/s, {percent(least['rate'] / one['link_bytes_per_s'], 0)} to "
        f"{percent(most['rate'] / one['link_bytes_per_s'], 0)} of {one['link']}'s {one['link_bytes_per_s'] / 1e9:.2f} GB/s. The link waits for the host, and at large batches for the slowest GPU. By 2(n − 1) · (α + S/B) the copies alone take "
        f"{enumerated(copies)}.",
        f"S = {one['bytes'] / 1e6:.1f} MB of gradients, n GPUs, α and B: latency and bandwidth of the link. All-reduce in a ring: 2(n − 1) · α + 2(n − 1)/n · S/B. "
        "Its bandwidth is 2(n − 1)/n · S / communication, as the exercise asks. "
        "DataParallel has no ring: parameters go to n − 1 GPUs and gradients come back, 2(n − 1) · (α + S/B). Its bandwidth on the first "
        "GPU's link is 2(n − 1) · S / communication. Bandwidth utilisation = bandwidth / B.",
        table=_by_world(rows, {
            "ring by formula": lambda row: seconds(row["ring_s"]), "copies": lambda row: seconds(row["copies_s"]),
            "communication": lambda row: seconds(row["communication_exposed_s"]),
            "GB/s as a ring": lambda row: f"{row['ring'] / 1e9:.2f}",
            "of the link as a ring": lambda row: percent(row["ring"] / row["link_bytes_per_s"], 0),
            "GB/s of the copies": lambda row: f"{row['rate'] / 1e9:.2f}",
            "of the link": lambda row: percent(row["rate"] / row["link_bytes_per_s"], 0),
        }),
    )  # fmt: skip


def _public_sections(results: Results) -> list[Section]:
    """Two public solutions of the exercise beside the prediction."""
    rows = []
    for theirs in PUBLIC_EPOCHS:
        for row in matching(
            _of(results, "strong", place=theirs["device"]), world=theirs["world"], batch_asked=theirs["batch"]
        ):
            epoch_s = _epoch_s(results, row)
            rows.append(
                {**theirs, "predicted_s": epoch_s, "step_s": row["step_time_s"], "steps": epoch_s / row["step_time_s"]}
            )
    speed_ups = [
        row["speed_up"]
        for scaling in ("weak", "strong")
        for row in matching(
            _of(results, scaling, place=PUBLIC_SPEED_UP["device"]),
            world=PUBLIC_SPEED_UP["world"],
            batch_asked=PUBLIC_SPEED_UP["batch"],
        )
    ]
    if len(rows) < len(PUBLIC_EPOCHS):
        return []
    lines = []
    if len(speed_ups) == 2:
        lines.append(
            f"The other, {PUBLIC_SPEED_UP['world']} × {PUBLIC_SPEED_UP['device']} at batch {PUBLIC_SPEED_UP['batch']}, reached "
            f"{PUBLIC_SPEED_UP['speed_up']:.2f} times one GPU. Predicted are {speed_ups[0]:.2f} with that batch for each GPU "
            f"({signed_percent(speed_ups[0] / PUBLIC_SPEED_UP['speed_up'] - 1)}) and {speed_ups[1]:.2f} with it in all "
            f"({signed_percent(speed_ups[1] / PUBLIC_SPEED_UP['speed_up'] - 1)}). That card copies between GPUs through the host's memory, and its host is not known; neither is in the prediction."
        )
    one, *several = rows
    added = [(row["world"], (row["epoch_s"] - one["epoch_s"] / row["world"]) / row["steps"]) for row in several]
    ours = [(row["world"], row["step_s"] - one["step_s"] / row["world"]) for row in several]
    theirs_s, ours_s = (enumerated([f"{row[key]:.1f} s" for row in rows]) for key in ("epoch_s", "predicted_s"))
    worlds = enumerated([str(row["world"]) for row in rows])
    beyond = enumerated([f"{1000 * value:.0f} ms more on {world}" for world, value in added])
    ours_beyond = enumerated([f"{1000 * value:.0f} ms" for _, value in ours])
    return [
        Section(
            "Beside two public solutions",
            f"With a global batch of {one['batch']} kept, one public solution on {one['device']} took {theirs_s} an epoch on {worlds} GPUs. "
            f"Predicted are {ours_s}: both are slower with every GPU.",
            f"Beyond an n-th of one GPU's step, each step took {beyond} there; predicted are {ours_beyond}. Hosts differ, and that of the "
            "solution is not known. Nothing is fitted to either solution.",
            table=table(rows, {
                "GPUs": "world", "public, an epoch": lambda row: f"{row['epoch_s']:.1f} s",
                "predicted": lambda row: f"{row['predicted_s']:.1f} s",
                "predicted is off by": lambda row: signed_percent(row["predicted_s"] / row["epoch_s"] - 1),
            }, text=0),
            lines=lines,
        )
    ]  # fmt: skip


def _here_sections(results: Results) -> list[Section]:
    rows = [row for row in matching(results.rows["points"], place="here") if row["step_time_s"]]
    measured = [row for row in rows if row["kind"] == "measured" and row["world"] > 1]
    if not measured:
        return []
    most = max(measured, key=lambda row: row["speed_up"])
    rows = [
        {**row, "told": next(iter(matching(rows, kind="predicted", world=row["world"], batch=row["batch"])), None)}
        for row in rows
        if row["kind"] == "measured"
    ]
    return [
        Section(
            f"Here, on CPUs: {most['backend']}",
            f"{most['world']} ranks give up to {most['speed_up']:.2f} times the throughput of one, at batch {most['per_rank']:,} each.",
            "DataParallel makes no replicas without GPUs, so this is DistributedDataParallel, a rank to a core; each is one run.",
            table=table(rows, {
                "batch of a rank": ("per_rank", "{:,}".format), "ranks": "world", "step": ("step_time_s", seconds),
                "speed-up": ("speed_up", "{:.2f} ×".format),
                "exposed communication": lambda row: "" if row["world"] == 1 else seconds(row["communication_exposed_s"]),
                "predicted step": lambda row: "" if row["told"] is None else seconds(row["told"]["step_time_s"]),
                "off by": lambda row: "" if row["told"] is None else signed_percent(row["told"]["step_time_s"] / row["step_time_s"] - 1),
            }, text=0),
        )
    ]  # fmt: skip


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
    computed=page,
)

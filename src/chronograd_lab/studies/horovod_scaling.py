"""Horovod: training time, throughput and efficiency of ResNet-50 on synthetic data, 1 to 16 ranks, 25 epochs.

And what its two switches change: the fusion buffer, and gradients sent in half precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from chronograd.answer import Answer, Highlight, Section
from chronograd.figure import Figure, Series
from chronograd.job import Job
from chronograd.units import dollars, percent, seconds
from chronograd.words import how_many, listed, signed_percent
from chronograd_lab.common.published_throughputs import base_row, correction, factor_shown, published
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import Spread, difference, grouped, matching, mean, plural, shown, spread
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.scaling import (
    COLORS,
    Sweep,
    against_ranks,
    gpu_prices,
    ideal,
    last,
    measured,
    price_rows,
    priced,
    run_sweeps,
    scaling_job,
    series_of,
    throughput_interval,
    usd_per_gpu_hour,
    with_interval,
)
from chronograd_lab.common.study import Study, table

# Scaling efficiency at 128 GPUs (32 servers of 4 Pascal GPUs, RoCE 25 Gbit/s): Horovod's README and docs/benchmarks.rst.
PUBLISHED = {"Inception V3": 0.90, "ResNet-101": 0.90, "VGG-16": 0.79}
WATCHDOG, FALLBACK = "horovod, here", "ddp, here"
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
    """With the learning rate multiplied by the ranks, as Horovod's users do. On GPUs, predicted: the published setting."""
    where = "gpu_" if "device" in cluster else ""
    training = {"batch": settings[f"{where}batch_per_rank"] * ranks, "epochs": settings["epochs"],
                "learning_rate": LEARNING_RATE, "scale_by_ranks": ["learning_rate"]}  # fmt: skip
    return scaling_job(settings, backend, training, f"{where}data", switches, count=ranks, **cluster)


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    sweeps = [
        Sweep(name, job(settings, backend), measured=settings["worlds"])
        for name, backend in ((WATCHDOG, "horovod"), (FALLBACK, "ddp"))
    ]
    results = run_sweeps(runner, settings, [*sweeps, *elsewhere(settings)])
    largest = last(results.rows["points"], series=WATCHDOG, kind="measured")  # one rank needs no Horovod
    switches = _switches(runner, settings) if largest is not None and largest["world"] > 1 else []
    prices = gpu_prices([device for device, _ in settings["clusters"]], settings["per_node"])
    more = {
        "switches": switches,
        "published": published_rows(settings),
        "prices": price_rows(prices, settings["per_node"]),
    }
    return replace(results, rows={**results.rows, **more})


def elsewhere(settings: Settings) -> list[Sweep]:
    """What is predicted of GPUs: it rests on the published row of one, where there is one."""
    sweeps, per_node = [], settings["per_node"]
    prices = gpu_prices([device for device, _ in settings["clusters"]], per_node)
    for device, link in settings["clusters"]:
        price = usd_per_gpu_hour(prices.get(device), per_node)
        row = base_row(device, settings["network"])
        there = job(settings, "horovod", device=device, link=link, per_node=per_node, price_usd_per_hour=price)
        known = {"shown": None if row is None else factor_shown(row)}
        factor = correction(device, settings["network"])
        sweeps.append(Sweep(device, there, predicted=settings["predicted_worlds"], known=known, factor=factor))
    return sweeps


def published_rows(settings: Settings) -> list[Row]:
    return [row for device, _ in settings["clusters"] for row in published(device, settings["network"])]


def _switches(runner: StudyRunner, settings: Settings) -> list[Row]:
    """Two ranks with each setting of the fusion buffer and of compression, in two rounds."""
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


def page(results: Results) -> Answer:
    points = results.rows["points"]
    sections = [
        _throughput_section(results),
        _ideal_section(results),
        _batch_section(results),
        _nodes_section(results),
        *_here_sections(results),
    ]
    highlights = []
    for device, _ in results.settings["clusters"]:
        largest = last(points, series=device)
        if largest is not None:
            detail = f"{largest['world']} × {device}, predicted"
            highlights.append(Highlight("scaling efficiency", percent(largest["efficiency"], 0), detail))
    return STUDY.answer(results, sections, highlights, [section.takeaway for section in sections[:4]])


def _devices(results: Results) -> list[tuple[str, list[Row], list[Row]]]:
    """Device, its predicted rows, and published rows: of numbers of GPUs that several machines have, the first machine's.

    Speed-up is over the row of one GPU of the same machine.
    """
    devices = []
    for device, _ in results.settings["clusters"]:
        own = matching(results.rows["points"], series=device)
        beside: dict[int, Row] = {}
        of_device = matching(results.rows["published"], device=device)
        alone = {row["machine"]: row["images_per_s"] for row in matching(of_device, gpus=1)}
        for row in of_device:
            if row["gpus"] in [point["world"] for point in own]:
                beside.setdefault(row["gpus"], {**row, "speed_up": row["images_per_s"] / alone[row["machine"]]})
        devices.append((device, own, list(beside.values())))
    return devices


def _beside(row: Row, published_of: Sequence[Row]) -> Row | None:
    """The published row of as many GPUs."""
    return next((other for other in published_of if other["gpus"] == row["world"]), None)


def _of_beside(row: Row, form: Callable[[Row], str]) -> str:
    """A cell about the published row beside a predicted one; empty without one."""
    return form(row["beside"]) if row["beside"] else ""


def _throughput_section(results: Results) -> Section:
    """Throughput and total runtime against GPUs, with the published rows beside."""
    epochs, samples = results.settings["epochs"], results.settings["gpu_data"]["samples"]
    rates, times, rows = [], [], []
    for (device, own, theirs), color in zip(_devices(results), COLORS, strict=False):
        predicted = series_of(f"{device}, predicted", own, "throughput_samples_per_s", "predicted", color)
        rates.append(with_interval(predicted, [throughput_interval(row) for row in own]))
        if theirs:
            rates.append(series_of(f"{device}, published", theirs, "images_per_s", "measured", color, x="gpus"))
        times.append(series_of(f"{device}, predicted", own, "training_time_s", "predicted", color, 3600.0))
        rows += [{**row, "beside": _beside(row, theirs)} for row in own]
    device, own, theirs = _devices(results)[0]
    one, most = (
        own[0],
        max((row for row in own if row["world"] <= results.settings["per_node"]), key=lambda r: r["world"]),
    )
    held = _beside(most, theirs)
    beside = f" (published: {held['images_per_s']:,.0f})" if held else ""
    return Section(
        "Throughput and total runtime",
        f"{most['world']} × {device} are predicted to train {most['throughput_samples_per_s']:,.0f} images/s{beside} where one "
        f"trains {one['throughput_samples_per_s']:.1f}, so that {epochs} epochs take {seconds(most['training_time_s'])} in place "
        f"of {seconds(one['training_time_s'])}.",
        _rests_on(results),
        figure=Figure([
            against_ranks("images/s", rates, "Throughput"),
            against_ranks("hours", times, f"Total runtime, {how_many(epochs, 'epochs')}"),
        ]),
        caption="Hollow points and lines: predicted, with the 80 % interval. Filled points: published.",
        table=table(rows, {
            "device": "series", "GPUs": "world", "predicted": lambda row: _rate(row["throughput_samples_per_s"]),
            "80 % interval": lambda row: " … ".join(_plain(v) for v in throughput_interval(row) if v),
            "published": lambda row: _of_beside(row, lambda r: _rate(r["images_per_s"])),
            "predicted is off by": lambda row: _of_beside(row, lambda r: _off(row, r)),
            "step": ("step_time_s", seconds), "all epochs": ("training_time_s", seconds),
            "cost": lambda row: shown(row["cost_usd"], dollars),
        }),
        lines=[
            f"An epoch is {how_many(samples, 'images')}, made on the device, so that no input is waited for. Cost is time × "
            f"GPUs × the hourly price of one. {priced(results.rows['prices'])}",
        ],
    )  # fmt: skip


def _rate(images_per_s: float) -> str:
    return f"{_plain(images_per_s)} images/s"


def _plain(images_per_s: float) -> str:
    return f"{images_per_s:,.0f}" if images_per_s >= 100 else f"{images_per_s:.1f}"


def _off(row: Row, theirs: Row) -> str:
    """The error of a predicted throughput; where the published batch is another one, that is part of it."""
    return signed_percent(row["throughput_samples_per_s"] / theirs["images_per_s"] - 1)


def _rests_on(results: Results) -> str:
    """In words, for each device: the published row of one GPU, and how far the prediction was from it."""
    texts = []
    for device, own, theirs in _devices(results):
        if theirs and own:
            one = theirs[0]
            texts.append(
                f"{device}: {one['images_per_s']:g} images/s at batch {one['batch_per_gpu']} ({one['source']}, {one['date']}), "
                f"which took {own[0]['shown']:.2f} times as long as the operators' times said; all its steps are corrected by that."
            )
    return " ".join(["Predictions rest on the published row of one GPU; the other rows are held against them.", *texts])


def _ideal_section(results: Results) -> Section:
    """Speed-up against the ideal."""
    series: list[Series] = []
    rows = []
    for (device, own, theirs), color in zip(_devices(results), COLORS, strict=False):
        series.append(series_of(f"{device}, predicted", own, "speed_up", "predicted", color))
        if theirs:
            series.append(series_of(f"{device}, published", theirs, "speed_up", "measured", color, x="gpus"))
        rows += [{**row, "beside": _beside(row, theirs)} for row in own]
    first = _devices(results)[0][1]
    named = []
    for device, own, theirs in _devices(results):
        most = max((row for row in own if row["world"] <= results.settings["per_node"]), key=lambda row: row["world"])
        held = _beside(most, theirs)
        beside = f" (published {percent(held['speed_up'] / held['gpus'], 0)})" if held else ""
        named.append(f"{most['world']} × {device} reach {percent(most['efficiency'], 0)} of it{beside}")
    others = "; ".join(f"{name} {percent(value, 0)}" for name, value in PUBLISHED.items())
    return Section(
        "Scaling against the ideal",
        f"Ideal is n times the throughput of one GPU: {listed(named)}, in one node.",
        "What is lost in a node is mostly waiting for the slowest of n GPUs, by a spread of steps that is the median of published "
        f"machines, these among them. Horovod's own figures at 128 GPUs on 25 Gbit/s: {others}.",
        figure=Figure([against_ranks("times the throughput of one", [*series, ideal(first)], is_log=False)]),
        table=table(rows, {
            "device": "series", "GPUs": "world", "speed-up": ("speed_up", "{:.2f} ×".format),
            "of ideal": lambda row: percent(row["efficiency"], 0),
            "published speed-up": lambda row: _of_beside(row, lambda r: f"{r['speed_up']:.2f} ×"),
            "published, of ideal": lambda row: _of_beside(row, lambda r: percent(r["speed_up"] / r["gpus"], 0)),
        }),
    )  # fmt: skip


def _batch_section(results: Results) -> Section:
    rows = _devices(results)[0][1]
    least, most = rows[0], rows[-1]
    return Section(
        "Effective batch: strong or weak?",
        f"This is weak scaling: every GPU keeps its {how_many(least['per_rank'], 'images')}, so the effective batch grows from "
        f"{least['batch']:,} to {most['batch']:,} and an epoch has {most['world']} times fewer steps.",
        "The learning rate is multiplied by the number of GPUs, as Horovod's users do. Strong scaling would keep "
        f"{how_many(least['batch'], 'images')} in all: {max(1, least['batch'] // most['world'])} a GPU at {how_many(most['world'], 'GPUs')}, with the "
        "same gradients to exchange after less work.",
        table=table(rows, {
            "GPUs": "world", "images of a GPU": ("per_rank", "{:,}".format), "effective batch": ("batch", "{:,}".format),
            "learning rate": lambda row: f"{LEARNING_RATE * row['world']:g}",
        }, text=0),
    )  # fmt: skip


def _nodes_section(results: Results) -> Section:
    """The largest number of GPUs in one node against twice as many in two."""
    per_node = results.settings["per_node"]
    title = f"{2 * per_node} GPUs on two nodes against {per_node} on one"
    pairs = []
    for device, own, _ in _devices(results):
        one, two = (next(iter(matching(own, world=n)), None) for n in (per_node, 2 * per_node))
        if one and two:
            pairs.append((device, one, two))
    if not pairs:
        return Section(title, "No device is predicted at both numbers of GPUs.")
    device, one, two = pairs[0]
    rows = [{**row, "nodes": row["world"] // per_node} for _, *both in pairs for row in both]
    links = dict(results.settings["clusters"])
    theirs = [row for row in results.rows["published"] if row["machine"].endswith("distributed")]
    held = [next(iter(matching(theirs, device=device, gpus=row["world"])), None) for row in (one, two)]
    lines = []
    if held[0] and held[1]:
        ratio = held[1]["images_per_s"] / held[0]["images_per_s"]
        lines.append(
            f"Published, {held[0]['machine']}: {held[0]['images_per_s']:g} and {held[1]['images_per_s']:g} images/s, "
            f"{ratio:.2f} times. Its parameter servers exchange between machines in the run of {per_node}, too, so that run "
            "is slowed already; a ring inside a node is not."
        )
    added_s = two["communication_exposed_s"] - one["communication_exposed_s"]
    return Section(
        title,
        f"{2 * per_node} × {device} on two nodes give {two['throughput_samples_per_s'] / one['throughput_samples_per_s']:.2f} times "
        f"the throughput of {per_node} on one and take {percent(two['training_time_s'] / one['training_time_s'], 0)} of the time "
        f"({seconds(two['training_time_s'])} against {seconds(one['training_time_s'])}). The ring now crosses one {links[device]} "
        f"link per node, and that with the wait for the slowest of more GPUs adds {seconds(added_s)} to a step.",
        "The batch of a GPU stays, so its work stays; only waiting for gradients and for the slowest of more GPUs is added.",
        table=table(rows, {
            "device": "series", "GPUs": "world", "nodes": "nodes", "slowest link": lambda row: links[row["series"]] if row["nodes"] > 1
            else "inside the node", "throughput": lambda row: _rate(row["throughput_samples_per_s"]),
            "all epochs": ("training_time_s", seconds), "step": ("step_time_s", seconds),
            "exposed communication": ("communication_exposed_s", seconds),
            "of ideal": lambda row: percent(row["efficiency"], 0),
        }),
        lines=lines,
    )  # fmt: skip


def _here_sections(results: Results) -> list[Section]:
    """What ran on this machine: Horovod and DDP, and Horovod's switches."""
    rows = [row for row in results.rows["points"] if row["series"] in (WATCHDOG, FALLBACK) and row["step_time_s"]]
    many = [row for row in rows if row["kind"] == "measured" and row["world"] > 1]
    sections = []
    if many:
        sections.append(_here_section(results, rows))
    if results.rows["switches"]:
        sections.append(_switch_section(results.rows["switches"]))
    return sections


def _here_section(results: Results, rows: list[Row]) -> Section:
    alone = [row["step_time_s"] for row in matching(rows, world=1, kind="measured")]
    named = [
        f"{'Horovod' if name == WATCHDOG else 'DDP'} gives {largest['speed_up']:.2f} times the throughput of one rank"
        for name in (WATCHDOG, FALLBACK)
        if (largest := last(rows, series=name, kind="measured")) is not None
    ]
    cores = results.environment.get("cores", 1)
    return Section(
        "Here, on CPUs",
        f"With a rank on each of {how_many(cores, 'cores')} {listed(named)}; a run of each is too few to say more, as one and the same rank alone took "
        f"{listed([seconds(value) for value in alone])}.",
        "More ranks than cores are not run: they would measure how cores are shared.",
        table=table(rows, {
            "": lambda row: row["series"].removesuffix(", here"), " ": "kind", "ranks": "world",
            "effective batch": "batch", "step": ("step_time_s", seconds),
            "growth": ("iteration_growth", "{:.2f} ×".format),
            "exposed communication": lambda row: "" if row["world"] == 1 else seconds(row["communication_exposed_s"]),
        }, text=2),
        lines=_causes(rows),
    )  # fmt: skip


def _causes(rows: list[Row]) -> list[str]:
    """Of predictions for this machine: what of an error is there with one rank already."""
    texts = []
    for name in (WATCHDOG, FALLBACK):
        errors = [
            f"{signed_percent(other['step_time_s'] / row['step_time_s'] - 1)} at {row['world']}"
            for row in matching(rows, series=name, kind="measured")
            for other in matching(rows, series=name, world=row["world"], kind="predicted")
        ]
        if errors:
            texts.append(f"{'Horovod' if name == WATCHDOG else 'DDP'} {listed(errors)}")
    if not texts:
        return []
    return [
        f"Predicted steps are off by: {'; '.join(texts)} ranks. One rank exchanges nothing, so that error is the machine's: it ran "
        "slower here than when its operators were calibrated, and one and the same rank not twice alike. What the error with "
        "several ranks differs from it is of that size, so these runs neither bear out nor refute the predicted exchange."
    ]


def _switch_section(rows: list[Row]) -> Section:
    own = grouped(rows, "switch")
    spreads = {name: spread(of, "step_time_s") for name, of in own.items()}
    base = spreads[BASE]
    differences = {name: difference(other, base) for name, other in spreads.items() if name != BASE}
    seen = [f"{name} {signed_percent(d.mean / base.mean)}" for name, d in differences.items() if d.is_seen]
    least = max((d.detectable for d in differences.values() if d.detectable is not None), default=None)
    could = (
        ""
        if least is None
        else f"; differences up to {percent(least / base.mean, 0)} of a step could not have been seen"
    )
    takeaway = (
        f"Against a fusion buffer of 64 MiB the step of two ranks changes: {', '.join(seen)}."
        if seen
        else f"Of {plural(base.n, 'round')} each no switch can be said to change the step of two ranks{could}."
    )
    return Section(
        "Fusion and compression",
        takeaway,
        "Two ranks, each setting in every round, one after the other.",
        table=table(spreads, {
            "setting": str, "step, mean of rounds": lambda name: seconds(spreads[name].mean),
            "rounds from … to": lambda name: _range(own[name]),
            "against 64 MiB": lambda name: "" if name == BASE else _change(spreads[name], base),
            "exposed": lambda name: shown(mean(own[name], "exposed_s"), seconds, ""),
            "rounds": lambda name: str(spreads[name].n),
        }),
    )  # fmt: skip


def _range(rows: Sequence[Row]) -> str:
    steps = [row["step_time_s"] for row in rows]
    return f"{seconds(min(steps))} … {seconds(max(steps))}"


def _change(other: Spread, base: Spread) -> str:
    """Mean change and its 95 % interval, as shares of the base."""
    change = difference(other, base)
    if change.interval is None:
        return f"{signed_percent(change.mean / base.mean)}, one round"
    low, high = (signed_percent(value / base.mean) for value in change.interval)
    return f"{signed_percent(change.mean / base.mean)} ({low} … {high})"


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
    computed=page,
)

"""The all-reduce choices of tf.distribute, each predicted with its own model and measured here if it runs: is AUTO best?

One machine: NcclAllReduce, HierarchicalCopyAllReduce, ReductionToOneDevice. Two: AUTO, RING, NCCL. The choice of AUTO is read
from TensorFlow's source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chronograd.answer import Table
from chronograd.data.trace_job import trace_job
from chronograd.figure import Bar, Bars, Figure, Lines
from chronograd.hardware import catalog
from chronograd.predict.carrying import Corrected
from chronograd.predict.collectives import Topology, all_reduce_s, hierarchical_copy
from chronograd.predict.prediction import predict
from chronograd.predict.scaling import straggler_wait_s, topology_of
from chronograd.predict.setting import setting_of
from chronograd.units import percent, seconds
from chronograd.words import signed_percent
from chronograd_lab.common.published_throughputs import correction, published
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import grouped, matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.scaling import (
    COLORS,
    Sweep,
    against_ranks,
    by_world,
    changes,
    rounds_table,
    run_sweeps,
    scaling_job,
    series_of,
)
from chronograd_lab.common.study import Study, table
from chronograd_lab.common.written import Block, key

CHOICES = {
    "tf_mirrored": ("auto", "nccl", "hierarchical_copy", "reduction_to_one_device"),
    "tf_multiworker": ("auto", "ring", "nccl"),
}
ONE, TWO = "tf_mirrored", "tf_multiworker"
STRATEGIES = {ONE: "MirroredStrategy", TWO: "MultiWorkerMirroredStrategy"}


@dataclass(frozen=True)
class Model:
    """The prediction of an exchange: its way in words, a formula, and its seconds for (bytes, topology)."""

    words: str
    formula: str
    seconds: Callable[[float, Topology], float]


def _ring(size: float, t: Topology) -> float:
    return float(all_reduce_s("ring", size, t))


def _two_hubs(size: float, t: Topology) -> float:
    # In a machine with two switches, each half of two to four GPUs is under one switch.
    across = t.across if t.across is not None and t.on_node > (t.per_group or t.on_node) else t.intra
    return hierarchical_copy(size, int(t.num_ranks), t.intra, across)


def _to_one(size: float, t: Topology) -> float:
    return float(all_reduce_s("reduce_to_one", size, t))


def _through_hosts(size: float, t: Topology) -> float:
    """Return the seconds of TensorFlow's own ring: data between machines is copied to the host, sent by gRPC, and copied to the
    next GPU.
    """
    inter, host = t.inter, t.intra
    rate = 1 / (1 / inter.bandwidth_bytes_per_s + 2 / host.bandwidth_bytes_per_s)
    staged = inter.model_copy(update={"bandwidth_bytes_per_s": rate, "latency_s": inter.latency_s + 2 * host.latency_s})
    return float(all_reduce_s("ring", size, replace(t, inter=staged)))


NCCL = Model("a ring: each GPU sends n-ths to the next", "2(n − 1) · α + 2(n − 1)/n · S/B", _ring)
MODELS = {
    "nccl": NCCL,
    "hierarchical_copy": Model("two hubs, one for each half", "2(n/2 − 1) · (α + S/B) + 2(α + S/B')", _two_hubs),
    "reduction_to_one_device": Model("all to one GPU and back, over the link to each", "Σ 2(α + S/B)", _to_one),
    "ring": Model(
        "a ring through the hosts' memory",
        "2(n − 1) · (α + 2α') + 2(n − 1)/n · S · (1/B + 2/B')",
        _through_hosts,
    ),
}
# All-reduces of NCCL 2.0 between the cards of one machine, from DeepBench: card, number, fp32 numbers, milliseconds.
PUBLISHED = (
    ("GTX 1080 Ti", 4, 16_777_216, 9.145), ("GTX 1080 Ti", 4, 38_360_000, 20.80), ("GTX 1080 Ti", 8, 16_777_216, 13.56),
    ("GTX 1080 Ti", 8, 38_360_000, 30.86), ("M40", 4, 16_777_216, 19.36), ("M40", 4, 38_360_000, 38.54),
    ("M40", 8, 16_777_216, 22.92), ("M40", 8, 38_360_000, 43.63),
)  # fmt: skip
# The choice of AUTO on GPUs; the page has the places in TensorFlow's source.
AUTO = {ONE: "nccl", TWO: "ring"}


def sweeps(settings: Settings) -> list[Sweep]:
    """Return each choice in every round here."""

    def sweep(name: str, backend: str, choice: str) -> Sweep:
        training = {"batch": settings["batch_per_rank"], "learning_rate": 0.01}
        job = scaling_job(settings, backend, training, communication={"all_reduce": choice})
        known = {"set": backend, "choice": choice, "place": "here"}
        return Sweep(name, job, known=known, measured=settings["worlds"])

    return [
        sweep(f"{backend} {choice}, round {round_}", backend, choice)
        for round_ in range(settings["rounds"])
        for backend, choices in CHOICES.items()
        for choice in choices
    ]


def predicted(settings: Settings) -> list[Row]:
    """Return a step of every choice on GPUs: computation, the wait for the slowest, and the exchange, none of it hidden.

    TensorFlow packs all gradients into one message, which is complete at the end of the backward pass.
    """
    device, link = settings["device"], settings["link"]
    rows = []
    for backend, choices in CHOICES.items():
        for per_node in settings["predicted_worlds"]:
            world = per_node if backend == ONE else 2 * per_node
            cluster: dict[str, Any] = {"device": device, "link": link}
            batch = settings["gpu_batch_per_rank"]
            job = scaling_job(
                {**settings, "network": settings["gpu_network"]}, "single", {"batch": batch}, "gpu_data", **cluster
            )
            trace, factor = trace_job(job), correction(device, settings["gpu_network"])
            alone = predict(trace, job, shown=Corrected(factor(job)) if factor else None)
            step = alone["step_time_s"]
            compute_s = alone.value("step_time_s")
            wait_s = straggler_wait_s(compute_s, world, setting_of(job).step_sigma_log)
            size = sum(s.bytes.const for s in trace.storages if s.role == "gradient")
            topology = topology_of(catalog.device(device), world, per_node, link)
            for choice in choices:
                taken = AUTO[backend] if choice == "auto" else choice
                exchange_s = MODELS[taken].seconds(size, topology) if world > 1 else 0.0
                step_s = compute_s + wait_s + exchange_s
                own = {"set": backend, "choice": choice, "model": taken, "world": world, "nodes": world // per_node}
                parts = {"compute_s": compute_s, "wait_s": wait_s, "exchange_s": exchange_s, "step_time_s": step_s}
                interval = {"compute_low_s": step.low, "compute_high_s": step.high}
                rows.append({**own, "bytes": size, **parts, **interval, "images_per_s": world * batch / step_s})
    return rows


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    results = run_sweeps(runner, settings, sweeps(settings))
    return replace(results, rows={**results.rows, **predictions(results)})


def predictions(results: Results) -> dict[str, list[Row]]:
    settings = results.settings
    theirs = matching(published(settings["device"], settings["gpu_network"]), gpus=8)
    return {"predicted": predicted(settings), "rings": published_rings(settings), "without_nccl": theirs}


# -- the page --------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    settings, rows = results.settings, results.rows["predicted"]
    most = max(row["world"] for row in rows)
    topology = topology_of(catalog.device(settings["device"]), most, None, settings["link"])
    links = {"near": topology.intra, "across": topology.across or topology.intra, "far": topology.inter}
    measured = {backend: _measured(results, backend) for backend in CHOICES}
    return {
        **{backend: _by_choice(matching(rows, set=backend)) for backend in CHOICES},
        "behind": {backend: max(row["behind"] for row in own) for backend, own in grouped(_auto(rows), "set").items()},
        "detectable": {backend: changes(own, "choice", "auto").detectable for backend, own in measured.items() if own},
        "links": {name: link.bandwidth_bytes_per_s for name, link in links.items()},
        "bytes": rows[0]["bytes"],
        "compute": rows[0],
        "rings": {f"{key(row['card'])}_{row['world']}": row for row in results.rows["rings"]},
        "without_nccl": dict(zip(("gce", "ec2"), results.rows["without_nccl"], strict=False)),
    }


def published_rings(settings: Settings) -> list[Row]:
    """Return published all-reduces with the time of the ring by its formula, over the links of the study's device."""
    rows: list[Row] = []
    for card, world, numbers, ms in PUBLISHED:
        topology = topology_of(catalog.device(settings["device"]), world, 8, settings["link"])
        predicted_s = _ring(4 * numbers, topology)
        own = {"card": card, "world": world, "bytes": 4 * numbers, "published_s": ms / 1000, "predicted_s": predicted_s}
        rows.append({**own, "error": 1000 * predicted_s / ms - 1})
    return rows


def _by_choice(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    return {choice: by_world(own) for choice, own in grouped(rows, "choice").items()}


def _auto(rows: Sequence[Row]) -> list[Row]:
    """Return the steps of AUTO, each with the step of the fastest choice for the same GPUs, and the excess of AUTO over it."""
    auto = []
    for row in matching(rows, choice="auto"):
        fastest = min(matching(rows, set=row["set"], world=row["world"]), key=lambda other: other["step_time_s"])
        behind = row["step_time_s"] / fastest["step_time_s"] - 1
        auto.append({**row, "fastest": fastest, "behind": behind})
    return auto


def _measured(results: Results, backend: str) -> list[Row]:
    """Return the runs of a backend with its smallest number of ranks above one."""
    rows = matching(results.rows["points"], set=backend, kind="measured")
    worlds = [row["world"] for row in rows if row["world"] > 1]
    return matching(rows, world=min(worlds)) if worlds else []


def blocks(results: Results) -> dict[str, Block]:
    one, two = (matching(results.rows["predicted"], set=backend) for backend in CHOICES)
    models = table(MODELS, {
        "choice": _shown, "how": lambda name: MODELS[name].words, "exchange": lambda name: MODELS[name].formula,
    }, text=3)  # fmt: skip
    here = {backend: own for backend in CHOICES if (own := _measured(results, backend))}
    named = {choice: _shown(choice) for choice in CHOICES[ONE][1:]}
    return {
        "One machine": Block(_table([row for row in one if row["choice"] != "auto"]), _figure(one, named)),
        "Two machines": Block(_table(two), _figure(two, {"nccl": "NCCL", "ring": "RING = AUTO"})),
        "Is AUTO best?": Block(table(_auto(results.rows["predicted"]), {
            "strategy": lambda row: STRATEGIES[row["set"]], "AUTO is": lambda row: _shown(row["model"]), "GPUs": "world",
            "step": ("step_time_s", seconds), "step of the fastest": lambda row: seconds(row["fastest"]["step_time_s"]),
            "behind": lambda row: percent(row["behind"], 0),
        }, text=2)),
        "The prediction of each choice": Block(models),
        "Published: NCCL on other cards": Block(table(results.rows["rings"], {
            "card": "card", "GPUs": "world", "message": lambda row: f"{row['bytes'] / 1e6:.1f} MB", "published": ("published_s", seconds),
            "ring by formula": ("predicted_s", seconds), "error of the prediction": lambda row: signed_percent(row["error"]),
        })),
        **{f"Here, on CPUs: {backend}": _here(own) for backend, own in here.items()},
    }  # fmt: skip


def _shown(choice: str) -> str:
    """Return the name that TensorFlow uses."""
    names = {"hierarchical_copy": "HierarchicalCopy", "reduction_to_one_device": "ReductionToOneDevice"}
    return names.get(choice, choice.upper())


def _table(rows: Sequence[Row]) -> Table:
    return table(rows, {
        "choice": lambda row: _shown(row["choice"]), "predicted as": lambda row: MODELS[row["model"]].words, "GPUs": "world",
        "computation": ("compute_s", seconds), "wait for the slowest": ("wait_s", seconds),
        "exchange": ("exchange_s", seconds), "step": ("step_time_s", seconds),
        "images/s": ("images_per_s", "{:,.0f}".format),
    }, text=2)  # fmt: skip


def _figure(rows: Sequence[Row], named: Mapping[str, str]) -> Figure:
    """Return the exchange and throughput of each choice; `named`: choices and their labels."""

    def panel(title: str, label: str, column: str, unit: float, least: int) -> Lines:
        series = [
            series_of(name, [row for row in matching(rows, choice=choice) if row["world"] >= least], column, "predicted", color, unit)
            for (choice, name), color in zip(named.items(), COLORS, strict=False)
        ]  # fmt: skip
        return against_ranks(label, series, title, is_log=False)

    exchange = panel("Exchange of a step", "ms", "exchange_s", 1e-3, 2)
    return Figure([exchange, panel("Throughput", "images/s", "images_per_s", 1.0, 1)])


def _here(rows: Sequence[Row]) -> Block:
    bars = []
    for choice, own in grouped(rows, "choice").items():
        steps = [1000 * row["step_time_s"] for row in own]
        mean = sum(steps) / len(steps)
        bars.append(Bar(_shown(choice), "measured", {"step": mean}, min(steps), max(steps), seconds(mean / 1000)))
    figure = Figure([Bars("time per step, ms", "choice", bars)])
    return Block(rounds_table(rows, "choice", "auto", "communication_exposed_s", _shown), figure)


_GPUS = {
    "device": "k80-gk210", "link": "ethernet-10g", "gpu_network": "resnet50-v1", "gpu_data": {"name": "fashion-mnist"},
    "gpu_batch_per_rank": 64, "predicted_worlds": [1, 2, 4, 8],
}  # fmt: skip
_SMOKE = {
    "network": "lenet5", "data": {"name": "synthetic", "shape": [1, 28, 28], "classes": 10, "samples": 64},
    "batch_per_rank": 8, "worlds": [2], "rounds": 1, **_GPUS, "predicted_worlds": [1, 4], "steps": 2, "warmup": 1,
}  # fmt: skip
_LAPTOP = {
    "network": "resnet18-cifar", "data": {"name": "cifar10", "samples": 1024}, "batch_per_rank": 16, "worlds": [1, 2],
    "rounds": 2, **_GPUS, "steps": 5, "warmup": 2,
}  # fmt: skip
_PAPER = {
    "network": "resnet50-v1", "data": {"name": "fashion-mnist"}, "batch_per_rank": 64, "worlds": [1, 2, 4, 8],
    "rounds": 5, **_GPUS, "steps": 30, "warmup": 5,
}  # fmt: skip
_EVENING = {**_LAPTOP, "rounds": 5, "steps": 20, "warmup": 3}

STUDY = Study(
    name="all-reduce-algorithms",
    question="Which all-reduce of tf.distribute is fastest on one machine and between machines, and does AUTO choose it?",
    hypothesis="NCCL's rings on GPUs; without them a ring between workers; reducing to one device falls behind as ranks grow",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "evening": _EVENING, "paper": _PAPER},
    conduct=conduct,
    values=values,
    blocks=blocks,
    predictions=predictions,
)

"""The all-reduce choices of tf.distribute, each predicted with a model of its own and measured where it runs: is AUTO best?

One machine: NcclAllReduce, HierarchicalCopyAllReduce, ReductionToOneDevice. Two: AUTO, RING, NCCL. What AUTO takes is read
from TensorFlow's source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chronograd.answer import Answer, Highlight, Section
from chronograd.data.trace_job import trace_job
from chronograd.figure import Bar, Bars, Figure
from chronograd.hardware import catalog
from chronograd.predict.carrying import Corrected
from chronograd.predict.collectives import Topology, all_reduce_s, hierarchical_copy
from chronograd.predict.prediction import predict
from chronograd.predict.scaling import straggler_wait_s, topology_of
from chronograd.predict.setting import setting_of
from chronograd.units import percent, seconds
from chronograd.words import how_many
from chronograd.words import listed as enumerated
from chronograd_lab.common.published_throughputs import correction
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import Spread, difference, distinct, grouped, matching, spread, upper
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.scaling import COLORS, Sweep, against_ranks, run_sweeps, scaling_job, series_of
from chronograd_lab.common.study import Study, listed, table

CHOICES = {
    "tf_mirrored": ("auto", "nccl", "hierarchical_copy", "reduction_to_one_device"),
    "tf_multiworker": ("auto", "ring", "nccl"),
}
ONE, TWO = "tf_mirrored", "tf_multiworker"
LEAST_ROUNDS = 5  # below which no statement of difference is made


@dataclass(frozen=True)
class Model:
    """How an exchange is predicted: in words, as a formula, and its seconds for (bytes, topology)."""

    words: str
    formula: str
    seconds: Callable[[float, Topology], float]


def _ring(size: float, t: Topology) -> float:
    return float(all_reduce_s("ring", size, t))


def _two_hubs(size: float, t: Topology) -> float:
    # Halves of two to four sit under one switch of a machine with two.
    across = t.across if t.across is not None and t.on_node > (t.per_group or t.on_node) else t.intra
    return hierarchical_copy(size, int(t.num_ranks), t.intra, across)


def _to_one(size: float, t: Topology) -> float:
    return float(all_reduce_s("reduce_to_one", size, t))


def _through_hosts(size: float, t: Topology) -> float:
    """TensorFlow's own ring: what crosses machines is copied to the host, sent by gRPC, and copied to the next GPU."""
    inter, host = t.inter, t.intra
    rate = 1 / (1 / inter.bandwidth_bytes_per_s + 2 / host.bandwidth_bytes_per_s)
    staged = inter.model_copy(update={"bandwidth_bytes_per_s": rate, "latency_s": inter.latency_s + 2 * host.latency_s})
    return float(all_reduce_s("ring", size, replace(t, inter=staged)))


NCCL = Model("a ring: each GPU sends n-ths to the next", "2(n − 1) · α + 2(n − 1)/n · S/B", _ring)
MODELS = {
    "nccl": NCCL,
    "hierarchical_copy": Model("two hubs, one for each half", "2(n/2 − 1) · (α + S/B) + 2(α + S/B')", _two_hubs),
    "reduction_to_one_device": Model("all to one GPU and back, over its link", "2(n − 1) · (α + S/B)", _to_one),
    "ring": Model(
        "a ring through the hosts' memory",
        "2(n − 1) · (α + 2α') + 2(n − 1)/n · S · (1/B + 2/B')",
        _through_hosts,
    ),
}
# What AUTO takes on GPUs, and where TensorFlow's source says so.
AUTO = {ONE: "nccl", TWO: "ring"}
SOURCES = {
    ONE: (
        "NcclAllReduce(num_packs=1) where all devices are GPUs and the kernel is there, else ReductionToOneDevice: select_cross_device_ops "
        "in tensorflow/python/distribute/cross_device_ops.py"
    ),
    TWO: (
        "The hint AUTO is not nccl, and the strategy sets collective_nccl outside of eager mode only, so AssignCollectiveType takes "
        "TensorFlow's ring: tensorflow/core/common_runtime/collective_param_resolver_local.cc, "
        "tensorflow/python/distribute/collective_all_reduce_strategy.py"
    ),
}


def sweeps(settings: Settings) -> list[Sweep]:
    """Each choice in every round here."""

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
    """A step of every choice on GPUs: computation, the wait for the slowest, and the exchange, of which nothing is hidden.

    TensorFlow packs all gradients into one message, which is complete when backward has ended.
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
    return replace(results, rows={**results.rows, "predicted": predicted(settings)})


def page(results: Results) -> Answer:
    rows = results.rows["predicted"]
    settings = results.settings
    one, two = (matching(rows, set=name) for name in CHOICES)
    sections = [
        _section_of_one(one, settings),
        _section_of_two(two, settings),
        _auto_section(one, two),
        _models_section(rows, settings),
        *(_measured_section(backend, results) for backend in CHOICES),
    ]
    most = max(row["world"] for row in one)
    highlights = [
        Highlight(
            f"{_shown(name)} on {how_many(most, 'GPUs')}", seconds(row["exchange_s"]), "exchange of a step, predicted"
        )
        for name in ("nccl", "hierarchical_copy", "reduction_to_one_device")
        for row in matching(one, choice=name, world=most)
    ]
    return STUDY.answer(results, sections, highlights, [section.takeaway for section in sections[:3]])


def _shown(choice: str) -> str:
    """As TensorFlow writes it."""
    names = {"hierarchical_copy": "HierarchicalCopy", "reduction_to_one_device": "ReductionToOneDevice"}
    return names.get(choice, choice.upper())


def _figure(rows: Sequence[Row], choices: Sequence[str], others: Sequence[str] = ()) -> Figure:
    """Draw each choice. `others` lie on the line of the choice that AUTO uses between machines, and share its label."""
    panels = []
    for key, label, unit in (("exchange_s", "ms", 1e-3), ("images_per_s", "images/s", 1.0)):
        series = []
        for choice, color in zip(choices, COLORS, strict=False):
            own = [row for row in matching(rows, choice=choice) if row["world"] > 1 or key == "images_per_s"]
            same = [_shown(other) for other in others if AUTO[TWO] == choice]
            series.append(series_of(" = ".join([_shown(choice), *same]), own, key, "predicted", color, unit))
        title = "Exchange of a step" if key == "exchange_s" else "Throughput"
        panels.append(against_ranks(label, series, title, is_log=False))
    return Figure(panels)


def _section_of_one(rows: list[Row], settings: Settings) -> Section:
    """2.2.5"""
    choices = CHOICES[ONE][1:]
    most = {choice: max(matching(rows, choice=choice), key=lambda row: row["world"]) for choice in choices}
    order = sorted(choices, key=lambda choice: most[choice]["step_time_s"])
    fastest = most[order[0]]
    behind = [
        f"{_shown(choice)} takes {percent(most[choice]['step_time_s'] / fastest['step_time_s'] - 1, 0)} longer a step"
        for choice in order[1:]
    ]
    return Section(
        "One machine",
        f"On {fastest['world']} × {settings['device']} in one machine {_shown(order[0])} is predicted fastest, "
        f"{seconds(fastest['step_time_s'])} a step; {' and '.join(behind)}.",
        "The ring sends twice the gradients over each link whatever the number of GPUs; two hubs send n times, and one device "
        "2(n − 1) times the gradients over one link.",
        figure=_figure(rows, choices),
        caption="Predicted. With 2 GPUs each half is one GPU, so both ways of copying move the same. Computation is the same for all: "
        f"80 % interval {seconds(rows[0]['compute_low_s'])} … {seconds(rows[0]['compute_high_s'])}.",
        table=_table([row for row in rows if row["choice"] != "auto"]),
    )  # fmt: skip


def _section_of_two(rows: list[Row], settings: Settings) -> Section:
    """2.2.6"""
    most = {choice: max(matching(rows, choice=choice), key=lambda row: row["world"]) for choice in CHOICES[TWO]}
    ring, nccl = most["ring"], most["nccl"]
    return Section(
        "Two machines",
        f"On {nccl['world']} × {settings['device']} in two machines over {settings['link']} NCCL is predicted to take "
        f"{seconds(nccl['step_time_s'])} a step, RING {percent(ring['step_time_s'] / nccl['step_time_s'] - 1, 0)} more, and AUTO, "
        "which is RING, as much.",
        "Both are rings and cross each machine's link once; RING's messages go through the hosts' memory on both sides. Where these "
        "copies overlap with sending, the two take the same; what gRPC adds is left out. So RING is predicted between equal and "
        "this much slower, and never faster.",
        figure=_figure(rows, ("nccl", "ring"), ("auto",)),
        caption="Predicted, on two machines with 1, 2, 4 and 8 GPUs each. AUTO lies on RING.",
        table=_table(rows),
    )  # fmt: skip


def _table(rows: Sequence[Row]) -> Any:
    return table(rows, {
        "choice": lambda row: _shown(row["choice"]), "predicted as": lambda row: MODELS[row["model"]].words, "GPUs": "world",
        "computation": ("compute_s", seconds), "wait for the slowest": ("wait_s", seconds),
        "exchange": ("exchange_s", seconds), "step": ("step_time_s", seconds),
        "images/s": ("images_per_s", "{:,.0f}".format),
    }, text=2)  # fmt: skip


def _auto_section(one: list[Row], two: list[Row]) -> Section:
    verdicts, rows = [], []
    for backend, own in ((ONE, one), (TWO, two)):
        many = [row for row in own if row["world"] > 1]
        pairs = [
            (
                row["step_time_s"],
                min(o["step_time_s"] for o in matching(many, world=row["world"]) if o["choice"] != "auto"),
            )
            for row in matching(many, choice="auto")
        ]
        worst = max(auto_s / best_s - 1 for auto_s, best_s in pairs)
        verdicts.append(worst)
        rows.append([
            "one machine, MirroredStrategy" if backend == ONE else "several, MultiWorkerMirroredStrategy",
            _shown(AUTO[backend]), SOURCES[backend], percent(worst, 0),
        ])  # fmt: skip
    best = "best at every number of GPUs" if verdicts[0] < 1e-9 else f"up to {percent(verdicts[0], 0)} behind the best"
    behind = (
        "best as well"
        if verdicts[1] < 1e-9
        else f"not: it is TensorFlow's own ring, a step up to {percent(verdicts[1], 0)} behind NCCL"
    )
    return Section(
        "Is AUTO best?",
        f"On one machine yes: AUTO is {_shown(AUTO[ONE])}, {best}; between machines with GPUs {behind}.",
        "Ask for NCCL by name there. On CPUs AUTO has no choice: TensorFlow's ring between processes, reduction to one device in one.",
        table=listed(("where", "AUTO is", "TensorFlow's source, read in 2026-11", "behind the best, at most"), rows, 3),
    )


def _models_section(rows: list[Row], settings: Settings) -> Section:
    topology = topology_of(
        catalog.device(settings["device"]), max(row["world"] for row in rows), None, settings["link"]
    )
    near, across, far = topology.intra, topology.across or topology.intra, topology.inter
    return Section(
        "How each is predicted",
        f"Each choice has a cost model of its own, for {rows[0]['bytes'] / 1e6:.1f} MB of gradients in one message.",
        f"S: bytes of the gradients; n: GPUs; α and B: latency and bandwidth of a link, {near.bandwidth_bytes_per_s / 1e9:.2f} GB/s within a "
        f"switch, {across.bandwidth_bytes_per_s / 1e9:.2f} GB/s between two switches of a machine, {far.bandwidth_bytes_per_s / 1e9:.2f} GB/s between "
        "machines; a ring goes at the pace of its slowest link.",
        table=table(MODELS, {
            "choice": _shown, "how": lambda name: MODELS[name].words, "exchange": lambda name: MODELS[name].formula,
        }, text=3),
        lines=[
            "TensorFlow packs all gradients into one message, so nothing of it is hidden behind backward. Left out: copies of several "
            "GPUs that share a switch at the same time, the sums themselves, and gRPC's own work."
        ],
    )  # fmt: skip


def _measured_section(backend: str, results: Results) -> Section:
    """Step times of the choices that run here, at the smallest number of several ranks; a difference is stated by a test only."""
    title = f"Here, on CPUs: {backend}"
    rows = matching(results.rows["points"], set=backend)
    known = [row for row in rows if row["kind"] == "measured" and row["world"] > 1]
    missing = [_shown(choice) for choice in distinct(rows, "choice", kind="missing")]
    lacks = f"Without GPUs {enumerated(missing)} does not run." if missing else ""
    if not known:
        return Section(title, "None of its choices ran here with several ranks.", lacks)
    world = min(row["world"] for row in known)
    own = grouped(matching(known, world=world), "choice")
    spreads = {choice: spread(of, "step_time_s") for choice, of in own.items()}
    rounds = min(one.n for one in spreads.values())
    others = {choice: one for choice, one in spreads.items() if choice != "auto"}
    bars = [
        Bar(
            _shown(choice),
            "measured",
            {"step": 1000 * spreads[choice].mean},
            1000 * min(row["step_time_s"] for row in of),
            1000 * max(row["step_time_s"] for row in of),
            seconds(spreads[choice].mean),
        )
        for choice, of in own.items()
    ]
    return Section(
        title,
        _verdict(spreads.get("auto"), others, rounds, world),
        f"AUTO is {'reduction to one device' if backend == ONE else 'the ring'} here, so one choice is measured under two names: what "
        f"lies between them is noise. {lacks}",
        figure=Figure([Bars("time per step, ms", "choice", bars)]),
        caption="Bars end at the mean of rounds, whiskers at the fastest and the slowest.",
        table=table(own, {
            "choice": _shown, "ranks": lambda name: str(world), "step, mean of rounds": lambda name: seconds(spreads[name].mean),
            "rounds": lambda name: ", ".join(seconds(row["step_time_s"]) for row in own[name]),
        }),
    )  # fmt: skip


def _verdict(auto: Spread | None, others: dict[str, Spread], rounds: int, world: int) -> str:
    """What rounds bear of AUTO against each of the others, in words."""
    if auto is None or not others:
        return f"With {world} ranks no choice was measured beside AUTO."
    found = {choice: difference(auto, other) for choice, other in others.items()}
    seen = [choice for choice, one in found.items() if one.is_seen and rounds >= LEAST_ROUNDS]
    if seen:
        changes = [
            f"{percent(abs(found[c].mean) / others[c].mean, 1)} {'more' if found[c].mean > 0 else 'less'} than {_shown(c)}"
            for c in seen
        ]
        return f"With {world} ranks AUTO takes {enumerated(changes)}."
    could = max((one.detectable or 0.0) / auto.mean for one in found.values())
    least = f", fewer than the {LEAST_ROUNDS} that a statement needs" if rounds < LEAST_ROUNDS else ""
    limit = (
        f"differences up to {percent(could, 0)} of a step could not have been seen"
        if could
        else "nothing could have been seen"
    )
    return upper(f"with {world} ranks no choice can be called the faster: of {rounds} rounds{least}, {limit}.")


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
    computed=page,
)

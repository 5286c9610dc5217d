"""Strong and weak scaling of ResNet-50 on Fashion-MNIST with tf.distribute: throughput, time, cost.

An effective batch of 256 that stays (strong) or 256 images per learner (weak), 1 to 16 learners, 10 epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from chronograd.answer import Answer, Highlight, Section
from chronograd.compare.scaling import Scaling
from chronograd.figure import Figure, Lines, Series
from chronograd.job import Job
from chronograd.units import dollars, percent, quantity, seconds
from chronograd.words import how_many, listed
from chronograd_lab.common.published_throughputs import base_row, correction, factor_shown, published
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import distinct, grouped, matching, plural, shown
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.scaling import (
    COLORS,
    Sweep,
    against_ranks,
    gpu_prices,
    ideal,
    is_one_market,
    last,
    price_rows,
    priced,
    run_sweeps,
    scaling_job,
    series_of,
    throughput_interval,
    usd_per_gpu_hour,
)
from chronograd_lab.common.study import Study, table

SCALINGS: tuple[Scaling, Scaling] = ("strong", "weak")
HERE = "here"


def job(settings: Settings, scaling: Scaling, **cluster: Any) -> Job:
    """With one learner; `batches` are the global batch of strong scaling and that of a learner in weak scaling.

    On a device that is not here, of which it is predicted, those of the published setting.
    """
    batch = settings["gpu_batches" if cluster else "batches"][SCALINGS.index(scaling)]
    training = {"batch": batch, "epochs": settings["epochs"], "learning_rate": 0.01}
    return scaling_job(settings, "ddp" if cluster else settings["backend"], training, **cluster)


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    """Measured here with the backend of the setting; predicted on its GPUs."""
    here = [Sweep(HERE, job(settings, scaling), scaling, measured=settings["worlds"]) for scaling in SCALINGS]
    results = run_sweeps(runner, settings, [*here, *elsewhere(settings)])
    prices = gpu_prices([device for device, _ in settings["clusters"]], settings["per_node"])
    return replace(
        results,
        rows={
            **results.rows,
            "published": published_rows(settings),
            "prices": price_rows(prices, settings["per_node"]),
        },
    )


def elsewhere(settings: Settings) -> list[Sweep]:
    """What is predicted of GPUs, one all-reduce ring over the nodes; it rests on the published row of one GPU, where there is one."""
    sweeps, per_node = [], settings["per_node"]
    prices = gpu_prices([device for device, _ in settings["clusters"]], per_node)
    for device, link in settings["clusters"]:
        price = usd_per_gpu_hour(prices.get(device), per_node)
        row = base_row(device, settings["network"])
        known = {"shown": None if row is None else factor_shown(row)}
        for scaling in SCALINGS:
            there = job(settings, scaling, device=device, link=link, per_node=per_node, price_usd_per_hour=price)
            factor = correction(device, settings["network"])
            sweeps.append(
                Sweep(device, there, scaling, predicted=settings["predicted_worlds"], known=known, factor=factor)
            )
    return sweeps


def published_rows(settings: Settings) -> list[Row]:
    return [row for device, _ in settings["clusters"] for row in published(device, settings["network"])]


def page(results: Results) -> Answer:
    sections = [
        _throughput_section(results),
        _time_section(results),
        _cost_section(results),
        _iteration_section(results),
        _trade_section(results),
        *_here_sections(results),
    ]
    highlights = []
    for device, own in _devices(results).items():
        for scaling in SCALINGS:
            row = _most(own, scaling)
            detail = f"{row['world']} × {device}, effective batch {row['batch']:,}, predicted"
            highlights.append(Highlight(f"efficiency, {scaling} scaling", percent(row["efficiency"], 0), detail))
    return STUDY.answer(results, sections, highlights, [section.takeaway for section in sections[:4]])


def _devices(results: Results) -> dict[str, list[Row]]:
    return {device: matching(results.rows["points"], series=device) for device, _ in results.settings["clusters"]}


def _most(rows: Sequence[Row], scaling: str) -> Row:
    """The row of most learners."""
    return max(matching(rows, scaling=scaling), key=lambda row: row["world"])


def _panels(results: Results, key: str, y_label: str, unit: float = 1.0, with_ideal: bool = False) -> list[Lines]:
    """A panel for each device, a line for each kind of scaling."""
    panels = []
    for device, own in _devices(results).items():
        series: list[Series] = []
        for scaling, color in zip(SCALINGS, COLORS, strict=False):
            of_kind = [row for row in matching(own, scaling=scaling) if row[key] is not None]
            if of_kind:
                series.append(series_of(f"{scaling} scaling", of_kind, key, "predicted", color, unit))
        if with_ideal:
            series.append(ideal(matching(own, scaling="strong"), key))
        if series:
            panels.append(against_ranks(y_label, series, f"{device}, predicted", "learners"))
    return panels


def _rows(results: Results) -> list[Row]:
    return [row for own in _devices(results).values() for row in own]


def _throughput_section(results: Results) -> Section:
    """2.2.1"""
    named = []
    for device, own in _devices(results).items():
        texts = []
        for world in dict.fromkeys((_most_in_node(results, own), max(row["world"] for row in own))):
            strong, weak = (matching(own, scaling=scaling, world=world)[0] for scaling in SCALINGS)
            nodes = _nodes(results, weak)
            where = "in one node" if nodes == 1 else f"on {how_many(nodes, 'nodes')}"
            texts.append(
                f"{world} {where} train {weak['speed_up']:.1f} times as fast in weak scaling and {strong['speed_up']:.1f} times in strong"
            )
        named.append(f"Beside one {device}, {'; '.join(texts)}, as predicted.")
    batch = results.settings["gpu_batches"]
    return Section(
        "Throughput",
        " ".join(named),
        f"Strong scaling keeps the effective batch at {batch[0]:,}; weak scaling gives every learner {how_many(batch[1], 'images')}. "
        + _rests_on(results),
        figure=Figure(_panels(results, "throughput_samples_per_s", "images/s", with_ideal=True)),
        caption="One learner is the same run in both. Dashed: n times its throughput.",
        table=table(_rows(results), {
            "device": "series", "scaling": "scaling", "learners": "world", "effective batch": ("batch", "{:,}".format),
            "of a learner": ("per_rank", "{:,}".format),
            "throughput": lambda row: quantity(row["throughput_samples_per_s"], "sample/s"),
            "80 % interval": lambda row: " … ".join(f"{v:,.0f}" for v in throughput_interval(row) if v),
            "speed-up": ("speed_up", "{:.2f} ×".format), "of ideal": lambda row: percent(row["efficiency"], 0),
        }, text=2),
    )  # fmt: skip


def _rests_on(results: Results) -> str:
    texts = []
    for device, own in _devices(results).items():
        row = next(iter(matching(results.rows["published"], device=device, gpus=1)), None)
        if row is not None:
            size = row["image_size"]
            texts.append(
                f"{device}: {row['images_per_s']:g} images/s of {size} × {size} ({row['source']}, {row['date']}) took "
                f"{own[0]['shown']:.2f} times as long as predicted"
            )
    if not texts:
        return "Nothing is published of these devices, so predictions rest on their data sheets and relatives."
    return (
        "No published row has ResNet-50 on images of 28 × 28. Predictions are corrected by what the published row of one GPU at a "
        f"larger size showed, as far as the device and not its host sets the pace. {'; '.join(texts)}."
    )


def _time_section(results: Results) -> Section:
    """2.2.2"""
    devices = _devices(results)
    named = []
    for device, own in devices.items():
        one = matching(own, world=1)[0]
        strong, weak = (_most(own, scaling) for scaling in SCALINGS)
        named.append(
            f"{plural(results.settings['epochs'], 'epoch')} take {seconds(one['training_time_s'])} on one {device}; on {weak['world']} "
            f"{seconds(weak['training_time_s'])} in weak scaling and {seconds(strong['training_time_s'])} in strong."
        )
    slower = _turning(results)
    return Section(
        "Training time",
        " ".join(named),
        slower,
        figure=Figure(_panels(results, "training_time_s", "minutes", 60.0)),
        table=table(_rows(results), {
            "device": "series", "scaling": "scaling", "learners": "world", "step": ("step_time_s", seconds),
            "training": ("training_time_s", seconds),
        }, text=2),
    )  # fmt: skip


def _turning(results: Results) -> str:
    """From which number of learners on strong scaling takes longer than with fewer."""
    texts = []
    for device, own in _devices(results).items():
        rows = sorted(matching(own, scaling="strong"), key=lambda row: row["world"])
        best = min(rows, key=lambda row: row["training_time_s"])
        if best["world"] < rows[-1]["world"]:
            texts.append(f"on {device} strong scaling is fastest with {best['world']} and slower with more")
    if not texts:
        return "Strong scaling gains time with every doubling."
    return (
        f"More learners do not always gain time: {'; '.join(texts)}. A learner's share is then so small that its host issues kernels "
        "more slowly than they run, and the exchange of gradients, which does not shrink, is no longer hidden."
    )


def _cost_section(results: Results) -> Section:
    """2.2.3"""
    known = [row for row in _rows(results) if row["cost_usd"] is not None]
    if not known:
        return Section("Cost", "No price is known for these devices.")
    named = []
    for device, own in _devices(results).items():
        if all(row["cost_usd"] is not None for row in own):
            worlds = list(dict.fromkeys((_most_in_node(results, own), max(row["world"] for row in own))))
            costs = [
                f"{_dollars(matching(own, scaling=s, world=n)[0]['cost_usd'])} on {n}"
                for s in ("weak", "strong")
                for n in worlds
            ]
            weak, strong = listed(costs[: len(worlds)]), listed(costs[len(worlds) :])
            one = _dollars(matching(own, world=1)[0]["cost_usd"])
            named.append(f"One {device} costs {one}; weak scaling {weak}, strong scaling {strong}.")
    return Section(
        "Cost",
        " ".join(named),
        f"Time × learners × the hourly price of one GPU. {priced(results.rows['prices'])}",
        figure=Figure(_panels(results, "cost_usd", "US dollars")),
        table=table(known, {
            "device": "series", "scaling": "scaling", "learners": "world", "training": ("training_time_s", seconds),
            "cost": ("cost_usd", _dollars),
            "a GPU and hour": lambda row: dollars(row["cost_usd"] / row["world"] / row["training_time_s"] * 3600),
            "provider, date": lambda row: _provider(results, row),
        }, text=2),
    )  # fmt: skip


def _provider(results: Results, row: Row) -> str:
    (price,) = matching(results.rows["prices"], device=row["series"])
    return f"{price['vendor']}, {price['date'] or 'date unknown'}"


def _dollars(usd: float) -> str:
    """Format dollars to a tenth of a cent, as these runs cost cents; smaller amounts to two digits.

    >>> _dollars(2), _dollars(0.0604), _dollars(0.00012)
    ('$2.00', '$0.060', '$0.00012')
    """
    return f"${usd:.3f}" if 0.001 <= usd < 1 else dollars(usd)


def _iteration_section(results: Results) -> Section:
    """2.2.4"""
    series = []
    named = []
    for (device, own), color in zip(_devices(results).items(), COLORS, strict=False):
        weak = matching(own, scaling="weak")
        series.append(series_of(f"{device}, predicted", weak, "iteration_growth", "predicted", color))
        most = _most(own, "weak")
        named.append(
            f"{most['iteration_growth']:.2f} times on {device} (efficiency {percent(1 / most['iteration_growth'], 0)})"
        )
    world = max(row["world"] for row in _rows(results))
    rows = [row for row in _rows(results) if row["scaling"] == "weak"]
    return Section(
        "Weak-scaling efficiency",
        f"From 1 to {how_many(world, 'learners')} an iteration of weak scaling grows to {listed(named)}.",
        "Ideal weak scaling keeps the time of an iteration; efficiency is that of one learner over that of n.",
        figure=Figure([against_ranks("times that of one learner", series, "Time of an iteration, weak scaling", "learners", is_log=False)]),
        table=table(rows, {
            "device": "series", "learners": "world", "nodes": lambda row: str(_nodes(results, row)),
            "iteration": ("step_time_s", seconds), "growth": ("iteration_growth", "{:.2f} ×".format),
            "efficiency": lambda row: percent(row["efficiency"], 0),
            "exposed communication": lambda row: "" if row["world"] == 1 else seconds(row["communication_exposed_s"]),
        }),
        lines=[
            "The effective batch is n times as large, which the learning rate must follow, and an epoch has n times fewer updates: "
            "what weak scaling gains in throughput it may lose in epochs to an accuracy."
        ],
    )  # fmt: skip


def _most_in_node(results: Results, rows: Sequence[Row]) -> int:
    """The largest number of learners that one node holds."""
    return max(int(row["world"]) for row in rows if _nodes(results, row) == 1)


def _nodes(results: Results, row: Row) -> int:
    return -(-int(row["world"]) // int(results.settings["per_node"]))


def _trade_section(results: Results) -> Section:
    """Time against cost, learner by learner."""
    series, rows = [], [row for row in _rows(results) if row["cost_usd"] is not None]
    for place, (device, own) in enumerate(_devices(results).items()):
        for kind, scaling in enumerate(SCALINGS):
            known = [row for row in matching(own, scaling=scaling) if row["cost_usd"] is not None]
            if known:
                color = COLORS[2 * place + kind]
                minutes = [{**row, "minutes": row["training_time_s"] / 60} for row in known]
                line = series_of(f"{device}, {scaling}", minutes, "cost_usd", "predicted", color, x="minutes")
                series.append(replace(line, notes=[str(row["world"]) for row in known]))
    if not rows:
        return Section("Time against cost", "No price is known for these devices.")
    fastest = min(rows, key=lambda row: row["training_time_s"])
    is_one = is_one_market(results.rows["prices"])
    rivals = {device: rows if is_one else matching(rows, series=device) for device in distinct(rows, "series")}
    front = [row for row in rows if not any(_is_better(other, row) for other in rivals[row["series"]])]
    unbeaten = [row for row in front if row["world"] > 1 or row["scaling"] == "strong"]
    named = [
        f"{listed([str(row['world']) for row in own])} × {device} ({scaling})"
        for (device, scaling), own in grouped(unbeaten, "series", "scaling").items()
    ]
    return Section(
        "Time against cost",
        f"The fastest run is {fastest['world']} × {fastest['series']}, {fastest['scaling']} scaling: {seconds(fastest['training_time_s'])} "
        f"for {_dollars(fastest['cost_usd'])}. No run {'' if is_one else 'on the same device '}is both faster and cheaper than {'; '.join(named)}.",
        priced(results.rows["prices"]),
        figure=Figure([Lines("training time, minutes", "cost, US dollars", series, log_x=True, log_y=True)]),
        caption="Beside each point: the number of learners.",
        table=table(sorted(rows, key=lambda row: row["training_time_s"]), {
            "device": "series", "scaling": "scaling", "learners": "world", "training": ("training_time_s", seconds),
            "cost": ("cost_usd", _dollars), "beaten by none": lambda row: "yes" if row in front else "",
        }, text=2),
    )  # fmt: skip


def _is_better(one: Row, other: Row) -> bool:
    """Whether one run is faster and cheaper than another."""
    return bool(one["training_time_s"] < other["training_time_s"] and one["cost_usd"] < other["cost_usd"])


def _here_sections(results: Results) -> list[Section]:
    """Measured with TensorFlow on this machine, which nothing here predicts."""
    own = matching(results.rows["points"], series=HERE, kind="measured")
    many = [row for row in own if row["world"] > 1]
    if not many:
        return []
    named = []
    for scaling in SCALINGS:
        row = last(own, scaling=scaling)
        if row is not None and row["world"] > 1:
            named.append(f"{scaling} scaling {row['speed_up']:.2f} times the throughput of one")
    backend = results.settings["backend"]
    return [
        Section(
            "Here, on CPUs",
            f"{how_many(many[0]['world'], 'learners')} of {backend} on this machine's cores give with {listed(named)}; each is one run.",
            "Not predicted: this machine's operators are calibrated with PyTorch, and TensorFlow runs others."
            if backend.startswith("tf_")
            else "",
            table=table(own, {
                "scaling": "scaling", "learners": "world", "effective batch": ("batch", "{:,}".format),
                "of a learner": ("per_rank", "{:,}".format), "iteration": ("step_time_s", seconds),
                "throughput": lambda row: quantity(row["throughput_samples_per_s"], "sample/s"),
                "of ideal": lambda row: percent(row["efficiency"], 0),
                "growth of an iteration": ("iteration_growth", "{:.2f} ×".format),
                "exposed communication": lambda row: "" if row["world"] == 1 else shown(row["communication_exposed_s"], seconds),
            }),
        )
    ]  # fmt: skip


_PAPER = {
    "network": "resnet50-v1", "data": {"name": "fashion-mnist"}, "backend": "tf_multiworker", "batches": [256, 256],
    "gpu_batches": [256, 256], "epochs": 10, "worlds": [1, 2, 4, 8, 16],
    "clusters": [["k80-gk210", "ethernet-10g"], ["v100", "ethernet-25g"]], "per_node": 8,
    "predicted_worlds": [1, 2, 4, 8, 16], "steps": 30, "warmup": 5,
}  # fmt: skip
_LAPTOP = {**_PAPER, "batches": [32, 16], "worlds": [1, 2], "steps": 5, "warmup": 1}
_SMOKE = {
    **_LAPTOP, "network": "lenet5", "data": {"name": "synthetic", "shape": [1, 16, 16], "classes": 10, "samples": 256},
    "backend": "ddp", "batches": [16, 8], "gpu_batches": [32, 32], "epochs": 1, "clusters": [["v100", "ethernet-25g"]],
    "predicted_worlds": [1, 4], "steps": 2,
}  # fmt: skip
_EVENING = {**_LAPTOP, "batches": [64, 32], "steps": 20, "warmup": 3}

STUDY = Study(
    name="strong-and-weak",
    question="Does ResNet-50 on Fashion-MNIST scale better when the batch grows with the learners, and what does it cost?",
    hypothesis="Weak scaling stays close to ideal; strong scaling loses more with every learner, as its steps get shorter "
    "and its gradients do not.",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "evening": _EVENING, "paper": _PAPER},
    conduct=conduct,
    computed=page,
)

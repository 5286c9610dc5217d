"""Strong and weak scaling of ResNet-50 on Fashion-MNIST with tf.distribute: throughput, time, cost.

Global batch 256 (strong) or 64 per learner (weak), 1 to 16 learners, 10 epochs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chronograd.answer import Answer, Highlight, Section
from chronograd.compare.ranks import communication_section, throughput_section
from chronograd.compare.scaling import Scaling
from chronograd.figure import Figure, Lines, Series
from chronograd.job import Job
from chronograd.study.results import Results, Row, Settings
from chronograd.study.rows import distinct, matching, shown
from chronograd.study.runner import StudyRunner
from chronograd.study.scaling import Sweep, last, run_sweeps, scaling_job
from chronograd.study.study import Study, table
from chronograd.units import dollars, percent, seconds

SCALINGS: tuple[Scaling, Scaling] = ("strong", "weak")
CALIBRATED = "Predictions for this machine rest on its calibration, which is made with PyTorch whatever the backend."


def job(settings: Settings, scaling: Scaling, **cluster: Any) -> Job:
    """With one learner; `batches` are the global batch of strong scaling and that of a learner in weak scaling.

    On a device that is not here, of which it is predicted, those of the published setting.
    """
    batch = settings["gpu_batches" if cluster else "batches"][SCALINGS.index(scaling)]
    training = {"batch": batch, "epochs": settings["epochs"], "learning_rate": 0.01}
    return scaling_job(settings, "ddp" if cluster else settings["backend"], training, **cluster)


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    """Measured here with the backend of the setting; predicted on its GPUs, one all-reduce ring over the nodes."""
    sweeps = []
    for scaling in SCALINGS:
        sweeps.append(Sweep("here", job(settings, scaling), scaling, measured=settings["worlds"]))
        for device in settings["devices"]:
            elsewhere = job(settings, scaling, device=device, link=settings["link"])
            sweeps.append(Sweep(device, elsewhere, scaling, predicted=settings["predicted_worlds"]))
    return run_sweeps(runner, settings, sweeps)


def page(results: Results) -> Answer:
    rows = results.rows["points"]
    here = matching(rows, series="here")
    devices = [device for device in results.settings["devices"] if last(rows, series=device)]
    sections = [
        *(throughput_section(f"{name.capitalize()} scaling here", matching(here, scaling=name), CALIBRATED)
          for name in SCALINGS),
        communication_section("Computation and communication here", here),
        *(_device_section(rows, device) for device in devices),
        *([_cost_section(rows, devices)] if devices else []),
        _answer_section(rows),
    ]  # fmt: skip
    highlights = []
    for name in SCALINGS:
        row = last(here, scaling=name, kind="measured")
        if row is not None and row["efficiency"] is not None and row["world"] > 1:
            detail = f"{row['world']} learners here, effective batch {row['batch']:,}"
            highlights.append(Highlight(f"{name} scaling efficiency", percent(row["efficiency"], 0), detail))
    return STUDY.answer(results, sections, highlights)


def _device_section(rows: list[Row], device: str) -> Section:
    own = [{**row, "series": row["scaling"]} for row in matching(rows, series=device)]
    strong, weak = (last(rows, series=device, scaling=name) or {} for name in SCALINGS)
    takeaway = (
        f"{strong['world']} × {device} are predicted to give {strong['speed_up']:.1f} times the throughput of one when the "
        f"batch stays at {strong['batch']:,}, and {weak['speed_up']:.1f} times when it grows to {weak['batch']:,}."
    )
    return replace(throughput_section(f"On {device}, predicted", own), takeaway=takeaway)


def _cost_section(rows: list[Row], devices: list[str]) -> Section:
    """Training time against its cost, and the table of both."""
    groups = {
        f"{device}, {name}": [row for row in matching(rows, series=device, scaling=name) if row["cost_usd"] is not None]
        for device in devices
        for name in SCALINGS
    }
    cheapest = min((row for row in rows if row["cost_usd"]), key=lambda row: row["cost_usd"], default=None)
    if cheapest is None:
        return Section("Time and cost", "No price is known for these devices.")
    series = [
        Series(label, "predicted", [row["training_time_s"] / 60 for row in own], [row["cost_usd"] for row in own])
        for label, own in groups.items()
        if own
    ]
    return Section(
        "Time and cost",
        f"The cheapest run is {cheapest['world']} × {cheapest['series']}, {cheapest['scaling']} scaling: "
        f"{dollars(cheapest['cost_usd'])} in {seconds(cheapest['training_time_s'])}; more learners buy time at the price of "
        "their lost efficiency.",
        figure=Figure([Lines("training time, minutes", "cost, usd", series, log_x=True, log_y=True)]),
        table=table([{**row, "label": label} for label, own in groups.items() for row in own], {
            "device and scaling": "label", "learners": "world", "training time": ("training_time_s", seconds),
            "cost": ("cost_usd", dollars),
        }),
    )  # fmt: skip


def _answer_section(rows: list[Row]) -> Section:
    """Weak or strong, the effective batch, how far from ideal and why: for the largest number of learners each."""
    largest = [last(rows, series=series, scaling=name) for series in distinct(rows, "series") for name in SCALINGS]
    weak = [row for row in matching(rows, scaling="weak") if row["efficiency"] and row["world"] > 1]
    better = sum(
        row["efficiency"] > other["efficiency"]
        for row in weak
        for other in matching(rows, scaling="strong", **{key: row[key] for key in ("series", "world", "kind")})
        if other["efficiency"]
    )
    return Section(
        "Weak or strong?",
        f"Weak scaling is the more efficient in {better} of {len(weak)} comparisons at the same number of learners: its "
        "learners keep their batch, so the same gradients are exchanged for more samples. Its effective batch is n times as "
        "large, which the learning rate must follow.",
        table=table([row for row in largest if row is not None and row["efficiency"] is not None], {
            "where": "series", "": "kind", "scaling": "scaling", "learners": "world",
            "effective batch": ("batch", "{:,}".format), "per learner": ("per_rank", "{:,}".format),
            "efficiency": lambda row: percent(row["efficiency"], 0),
            "lost to ideal": lambda row: percent(1 - row["efficiency"], 0), "exposed communication": _exposed,
            "growth of an iteration": ("iteration_growth", "{:.2f} ×".format),
        }, text=3),
    )  # fmt: skip


def _exposed(row: Row) -> str:
    return shown(row["communication_exposed_s"], lambda exposed: percent(exposed / row["step_time_s"], 0), "")


_PAPER = {
    "network": "resnet50-v1", "data": {"name": "fashion-mnist"}, "backend": "tf_multiworker", "batches": [256, 64],
    "gpu_batches": [256, 64], "epochs": 10, "worlds": [1, 2, 4, 8, 16], "devices": ["k80-gk210", "v100"],
    "link": "ethernet-25g", "predicted_worlds": [1, 2, 4, 8, 16], "steps": 30, "warmup": 5,
}  # fmt: skip
_LAPTOP = {**_PAPER, "batches": [32, 16], "worlds": [1, 2], "steps": 5, "warmup": 1}
_SMOKE = {
    **_LAPTOP, "network": "lenet5", "data": {"name": "synthetic", "shape": [1, 16, 16], "classes": 10, "samples": 256},
    "backend": "ddp", "batches": [16, 8], "epochs": 1, "devices": ["v100"], "predicted_worlds": [1, 4], "steps": 2,
}  # fmt: skip

STUDY = Study(
    name="strong-and-weak",
    question="Does ResNet-50 on Fashion-MNIST scale better when the batch grows with the learners, and what does it cost?",
    hypothesis="Weak scaling stays close to ideal; strong scaling loses more with every learner, as its steps get shorter "
    "and its gradients do not.",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "paper": _PAPER},
    conduct=conduct,
    page=page,
)

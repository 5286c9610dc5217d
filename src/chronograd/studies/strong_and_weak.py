"""Strong and weak scaling of ResNet-50 on Fashion-MNIST with tf.distribute: throughput, time, cost.

Global batch 256 (strong) or 64 per learner (weak), 1 to 16 learners, 10 epochs.
"""

from __future__ import annotations

from typing import Any

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.compare.ranks import communication_section, throughput_section
from chronograd.compare.scaling import Scaling
from chronograd.figure import Figure, Lines, Series
from chronograd.job import Job, from_dict
from chronograd.study.lab import Lab
from chronograd.study.ladders import Arm, climb, last, of, reasons
from chronograd.study.results import Results, Row, Settings
from chronograd.study.study import Study
from chronograd.study.tables import study_page
from chronograd.units import dollars, percent, seconds

STRONG, WEAK = "strong", "weak"
CALIBRATED = "Predictions for this machine rest on its calibration, which is made with PyTorch whatever the backend."


def job(settings: Settings, scaling: str, **cluster: Any) -> Job:
    """With one learner; `batches` are the global batch of strong scaling and that of a learner in weak scaling.

    On a device that is not here, of which it is predicted, those of the published setting.
    """
    sizes = settings["gpu_batches" if cluster else "batches"]
    batch = sizes[0 if scaling == STRONG else 1]
    return from_dict(
        {
            "network": {"name": settings["network"]},
            "data": dict(settings["data"]),
            "training": {"recipe": "sgd-momentum", "batch": batch, "epochs": settings["epochs"], "learning_rate": 0.01},
            "cluster": {"device": "local", **cluster},
            "backend": settings["backend"] if not cluster else "ddp",
        }
    )


def arms(settings: Settings) -> list[Arm]:
    """Measured here with the backend of the setting; predicted on its GPUs, one all-reduce ring over the nodes."""
    found = []
    scalings: tuple[Scaling, Scaling] = ("strong", "weak")
    for scaling in scalings:
        found.append(Arm("here", job(settings, scaling), scaling, measured=settings["worlds"]))
        for device in settings["devices"]:
            elsewhere = job(settings, scaling, device=device, link=settings["link"])
            found.append(Arm(device, elsewhere, scaling, predicted=settings["predicted_worlds"]))
    return found


def conduct(lab: Lab, settings: Settings) -> Results:
    rows = climb(lab, arms(settings), settings["steps"], settings["warmup"])
    return lab.results(settings, rows={"points": rows}, notes=reasons(rows))


def page(results: Results) -> Answer:
    rows = results.rows["points"]
    here = of(rows, series="here")
    elsewhere = [device for device in results.settings["devices"] if last(rows, series=device)]
    sections = [
        throughput_section(f"{name.capitalize()} scaling here", of(here, scaling=name), CALIBRATED)
        for name in (STRONG, WEAK)
    ]
    sections.append(communication_section("Computation and communication here", here))
    for device in elsewhere:
        sections.append(_device_section(rows, device))
    if elsewhere:
        sections.append(_cost_section(rows, elsewhere))
    sections.append(_answer_section(rows))
    return study_page(STUDY, results, sections, _highlights(rows))


def _device_section(rows: list[Row], device: str) -> Section:
    own = [{**row, "series": row["scaling"]} for row in of(rows, series=device)]
    section = throughput_section(f"On {device}, predicted", own)
    strong, weak = (last(rows, series=device, scaling=name) for name in (STRONG, WEAK))
    assert strong is not None
    assert weak is not None
    return Section(
        section.title,
        f"{strong['world']} × {device} are predicted to give {strong['speed_up']:.1f} times the throughput of one when the "
        f"batch stays at {strong['batch']:,}, and {weak['speed_up']:.1f} times when it grows to {weak['batch']:,}.",
        figure=section.figure,
        caption=section.caption,
        table=section.table,
    )


def _cost_section(rows: list[Row], devices: list[str]) -> Section:
    """Training time against its cost, and the table of both."""
    series, body = [], []
    for device in devices:
        for name in (STRONG, WEAK):
            own = [row for row in of(rows, series=device, scaling=name) if row["cost_usd"] is not None]
            if not own:
                continue
            label = f"{device}, {name}"
            xs, ys = [row["training_time_s"] / 60 for row in own], [row["cost_usd"] for row in own]
            series.append(Series(label, "predicted", xs, ys))
            body += [[label, str(r["world"]), seconds(r["training_time_s"]), dollars(r["cost_usd"])] for r in own]
    cheapest = min((row for row in rows if row["cost_usd"]), key=lambda row: row["cost_usd"], default=None)
    if cheapest is None:
        return Section("Time and cost", "No price is known for these devices.")
    return Section(
        "Time and cost",
        f"The cheapest run is {cheapest['world']} × {cheapest['series']}, {cheapest['scaling']} scaling: "
        f"{dollars(cheapest['cost_usd'])} in {seconds(cheapest['training_time_s'])}; more learners buy time at the price of "
        "their lost efficiency.",
        figure=Figure([Lines("training time, minutes", "cost, usd", series, log_x=True, log_y=True)]),
        table=Table(("device and scaling", "learners", "training time", "cost"), body, {1, 2, 3}),
    )


def _answer_section(rows: list[Row]) -> Section:
    """Weak or strong, the effective batch, how far from ideal and why: for the largest number of learners each."""
    body = []
    for row in (
        last(rows, series=s, scaling=c) for s in dict.fromkeys(r["series"] for r in rows) for c in (STRONG, WEAK)
    ):
        if row is None or row["efficiency"] is None:
            continue
        lost = 1 - row["efficiency"]
        share = (
            row["communication_exposed_s"] / row["step_time_s"] if row["communication_exposed_s"] is not None else None
        )
        body.append(
            [
                row["series"],
                row["kind"],
                row["scaling"],
                str(row["world"]),
                f"{row['batch']:,}",
                f"{row['per_rank']:,}",
                percent(row["efficiency"], 0),
                percent(lost, 0),
                "" if share is None else percent(share, 0),
                f"{row['iteration_growth']:.2f} ×",
            ]
        )
    weak = [row for row in rows if row["scaling"] == WEAK and row["efficiency"] and row["world"] > 1]
    better = sum(
        row["efficiency"] > other["efficiency"]
        for row in weak
        for other in rows
        if other["scaling"] == STRONG
        and (other["series"], other["world"], other["kind"]) == (row["series"], row["world"], row["kind"])
        and other["efficiency"]
    )
    columns = ("where", "", "scaling", "learners", "effective batch", "per learner", "efficiency", "lost to ideal",
               "exposed communication", "growth of an iteration")  # fmt: skip
    return Section(
        "Weak or strong?",
        f"Weak scaling is the more efficient in {better} of {len(weak)} comparisons at the same number of learners: its "
        "learners keep their batch, so the same gradients are exchanged for more samples. Its effective batch is n times as "
        "large, which the learning rate must follow.",
        table=Table(columns, body, set(range(3, 10))),
    )


def _highlights(rows: list[Row]) -> list[Highlight]:
    found = []
    for name in (STRONG, WEAK):
        row = last(rows, series="here", scaling=name, kind="measured")
        if row is not None and row["efficiency"] is not None and row["world"] > 1:
            detail = f"{row['world']} learners here, effective batch {row['batch']:,}"
            found.append(Highlight(f"{name} scaling efficiency", percent(row["efficiency"], 0), detail))
    return found


_TINY = {"name": "synthetic", "shape": [1, 16, 16], "classes": 10, "samples": 256}
STUDY = Study(
    name="strong-and-weak",
    question="Does ResNet-50 on Fashion-MNIST scale better when the batch grows with the learners, and what does it cost?",
    hypothesis="Weak scaling stays close to ideal; strong scaling loses more with every learner, as its steps get shorter "
    "and its gradients do not.",
    sizes={
        "smoke": {
            "network": "lenet5",
            "data": _TINY,
            "backend": "ddp",
            "batches": [16, 8],
            "gpu_batches": [256, 64],
            "epochs": 1,
            "worlds": [1, 2],
            "devices": ["v100"],
            "link": "ethernet-25g",
            "predicted_worlds": [1, 4],
            "steps": 2,
            "warmup": 1,
        },
        "laptop": {
            "network": "resnet50",
            "data": {"name": "fashion-mnist"},
            "backend": "tf_multiworker",
            "batches": [32, 16],
            "gpu_batches": [256, 64],
            "epochs": 10,
            "worlds": [1, 2],
            "devices": ["k80-gk210", "v100"],
            "link": "ethernet-25g",
            "predicted_worlds": [1, 2, 4, 8, 16],
            "steps": 5,
            "warmup": 1,
        },
        "paper": {
            "network": "resnet50",
            "data": {"name": "fashion-mnist"},
            "backend": "tf_multiworker",
            "batches": [256, 64],
            "gpu_batches": [256, 64],
            "epochs": 10,
            "worlds": [1, 2, 4, 8, 16],
            "devices": ["k80-gk210", "v100"],
            "link": "ethernet-25g",
            "predicted_worlds": [1, 2, 4, 8, 16],
            "steps": 30,
            "warmup": 5,
        },
    },
    conduct=conduct,
    page=page,
)

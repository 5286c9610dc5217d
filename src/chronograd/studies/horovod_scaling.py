"""Horovod: training time, throughput and efficiency of ResNet-50 on synthetic data, 1 to 16 ranks, 25 epochs.

And what its two switches change: the fusion buffer, and gradients sent in half precision.
"""

from __future__ import annotations

from typing import Any

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.compare.ranks import communication_section, throughput_section
from chronograd.job import Job, from_dict
from chronograd.record import Record
from chronograd.study.lab import Lab
from chronograd.study.ladders import Arm, climb, last, measured, of, reasons
from chronograd.study.results import Results, Row, Settings
from chronograd.study.study import Study
from chronograd.study.tables import study_page
from chronograd.units import percent, seconds

# Scaling efficiency at 128 GPUs (32 servers of 4 Pascal GPUs, RoCE 25 Gbit/s): Horovod's README and docs/benchmarks.rst.
PUBLISHED = {"Inception V3": 0.90, "ResNet-101": 0.90, "VGG-16": 0.79}
HERE, FALLBACK = "horovod, here", "ddp, here"
MIB = 2**20
# Names of the switches: bytes of the fusion buffer and compression.
SWITCHES: dict[str, dict[str, Any]] = {
    "fusion of 64 MiB": {"bucket_bytes": 64 * MIB},
    "fusion of 1 MiB": {"bucket_bytes": MIB},
    "no fusion": {"bucket_bytes": 1},
    "fp16 compression": {"bucket_bytes": 64 * MIB, "compression": "fp16"},
}


def job(
    settings: Settings, backend: str, ranks: int = 1, communication: dict[str, Any] | None = None, **cluster: Any
) -> Job:
    """With the learning rate multiplied by the ranks, as Horovod's users do. On GPUs, predicted: the published setting."""
    is_elsewhere = "device" in cluster
    batch = settings["gpu_batch_per_rank" if is_elsewhere else "batch_per_rank"]
    training = {"recipe": "sgd-momentum", "batch": batch * ranks, "epochs": settings["epochs"],
                "learning_rate": 0.0125, "scale_by_ranks": ["learning_rate"]}  # fmt: skip
    return from_dict(
        {
            "network": {"name": settings["network"]},
            "data": dict(settings["gpu_data" if is_elsewhere else "data"]),
            "training": training,
            "communication": communication or {},
            "cluster": {"device": "local", "count": ranks, **cluster},
            "backend": backend,
        }
    )


def conduct(lab: Lab, settings: Settings) -> Results:
    arms = [Arm(name, job(settings, backend), "weak", measured=settings["worlds"]) for name, backend in
            ((HERE, "horovod"), (FALLBACK, "ddp"))]  # fmt: skip
    for device, link in settings["clusters"]:
        elsewhere = job(settings, "horovod", device=device, link=link)
        arms.append(Arm(f"{device} over {link}", elsewhere, "weak", predicted=settings["predicted_worlds"]))
    rows = climb(lab, arms, settings["steps"], settings["warmup"])
    largest = last(rows, series=HERE, kind="measured")  # one rank needs no Horovod
    switches = _switches(lab, settings) if largest is not None and largest["world"] > 1 else []
    return lab.results(settings, rows={"points": rows, "switches": switches}, notes=reasons(rows))


def _switches(lab: Lab, settings: Settings) -> list[Row]:
    """Two ranks with each setting of the fusion buffer and of compression, in two rounds."""
    found = []
    for round_ in range(settings["rounds"]):
        for name, communication in SWITCHES.items():
            one = job(settings, "horovod", 2, communication, threads=lab.threads_alone([2]))
            record = measured(lab, f"{name}/round-{round_}", one, settings["steps"], settings["warmup"])
            lab.say(f"{name}: {seconds(record.value('step_time_s'))} a step")
            found.append({"switch": name, "round": round_, **_step(record)})
    return found


def _step(record: Record) -> Row:
    step, exposed = record["step_time_s"], record["communication_exposed_s"]
    return {"step_time_s": step.value, "low": step.low, "high": step.high, "exposed_s": exposed.value}


def page(results: Results) -> Answer:
    rows = results.rows["points"]
    sections, highlights = [], []
    for name in (HERE, FALLBACK):
        own = of(rows, series=name)
        largest = last(own, kind="measured")
        if largest is None or largest["world"] == 1:
            continue
        sections.append(throughput_section(name.capitalize(), own))
        highlights.append(
            Highlight(f"efficiency, {name}", percent(largest["efficiency"], 0), f"{largest['world']} ranks")
        )
    here = [row for row in rows if row["series"] in (HERE, FALLBACK)]
    sections.append(communication_section("Computation and communication", here))
    if results.rows["switches"]:
        sections.append(_switch_section(results.rows["switches"]))
    sections += _predicted_sections(results)
    return study_page(STUDY, results, sections, highlights[:3])


def _switch_section(rows: list[Row]) -> Section:
    body, means = [], {}
    for name in dict.fromkeys(row["switch"] for row in rows):
        own = [row for row in rows if row["switch"] == name]
        steps = [row["step_time_s"] for row in own]
        exposed = [row["exposed_s"] for row in own if row["exposed_s"] is not None]
        means[name] = sum(steps) / len(steps)
        body.append([name, seconds(means[name]), f"{seconds(min(steps))} … {seconds(max(steps))}",
                     seconds(sum(exposed) / len(exposed)) if exposed else "", str(len(own))])  # fmt: skip
    base = means["fusion of 64 MiB"]
    told = [f"{name} {100 * (mean / base - 1):+.0f} %" for name, mean in means.items() if name != "fusion of 64 MiB"]
    spread = max(row["high"] / row["low"] - 1 for row in rows if row["low"])
    return Section(
        "Fusion and compression",
        f"Against a fusion buffer of 64 MiB the step of two ranks takes: {', '.join(told)}; the middle 80 % of steps of one "
        f"run lie up to {percent(spread, 0)} apart, so smaller differences say nothing.",
        table=Table(("setting", "step, mean of rounds", "rounds from … to", "exposed", "rounds"), body, {1, 2, 3, 4}),
    )


def _predicted_sections(results: Results) -> list[Section]:
    found = []
    for device, link in results.settings["clusters"]:
        own = of(results.rows["points"], series=f"{device} over {link}")
        largest = last(own)
        if largest is None:
            continue
        section = throughput_section(f"On {device} over {link}, predicted", own)
        published = "; ".join(f"{name} {percent(value, 0)}" for name, value in PUBLISHED.items())
        takeaway = (
            f"{largest['world']} × {device} are predicted at {percent(largest['efficiency'], 0)} scaling efficiency and "
            f"{results.settings['epochs']} epochs in {seconds(largest['training_time_s'])}. Published at 128 GPUs on "
            f"25 Gbit/s: {published}."
        )
        found.append(
            Section(section.title, takeaway, figure=section.figure, caption=section.caption, table=section.table)
        )
    return found


_PUBLISHED = {"name": "synthetic", "shape": [3, 224, 224], "classes": 1000, "samples": 128_000}
_GPUS = [["k80-gk210", "ethernet-10g"], ["v100", "ethernet-25g"]]
STUDY = Study(
    name="horovod-scaling",
    question="How do throughput and training time scale from 1 to 16 ranks with Horovod, and what do fusion and compression change?",
    hypothesis="Weak scaling near 90 % where gradients are exchanged behind backward; fewer, larger messages are faster",
    sizes={
        "smoke": {
            "network": "lenet5",
            "data": {"name": "synthetic", "shape": [3, 16, 16], "classes": 10, "samples": 256},
            "batch_per_rank": 8,
            "gpu_data": {"name": "synthetic", "shape": [3, 16, 16], "classes": 10, "samples": 256},
            "gpu_batch_per_rank": 64,
            "epochs": 1,
            "worlds": [1, 2],
            "clusters": [["v100", "ethernet-25g"]],
            "predicted_worlds": [1, 4],
            "rounds": 1,
            "steps": 2,
            "warmup": 1,
        },
        "laptop": {
            "network": "resnet50",
            "data": {"name": "synthetic", "shape": [3, 64, 64], "classes": 1000, "samples": 12_800},
            "batch_per_rank": 8,
            "gpu_data": _PUBLISHED,
            "gpu_batch_per_rank": 64,
            "epochs": 25,
            "worlds": [1, 2, 4],
            "clusters": _GPUS,
            "predicted_worlds": [1, 2, 4, 8, 16],
            "rounds": 2,
            "steps": 6,
            "warmup": 2,
        },
        "paper": {
            "network": "resnet50",
            "data": _PUBLISHED,
            "batch_per_rank": 64,
            "gpu_data": _PUBLISHED,
            "gpu_batch_per_rank": 64,
            "epochs": 25,
            "worlds": [1, 2, 4, 8, 16],
            "clusters": _GPUS,
            "predicted_worlds": [1, 2, 4, 8, 16],
            "rounds": 3,
            "steps": 30,
            "warmup": 5,
        },
    },
    conduct=conduct,
    page=page,
)

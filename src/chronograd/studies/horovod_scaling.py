"""Horovod: training time, throughput and efficiency of ResNet-50 on synthetic data, 1 to 16 ranks, 25 epochs.

And what its two switches change: the fusion buffer, and gradients sent in half precision.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chronograd.answer import Answer, Highlight, Section
from chronograd.compare.ranks import communication_section, throughput_section
from chronograd.job import Job
from chronograd.study.results import Results, Row, Settings
from chronograd.study.rows import grouped, matching, mean, shown
from chronograd.study.runner import StudyRunner
from chronograd.study.scaling import Sweep, last, measured, run_sweeps, scaling_job
from chronograd.study.study import Study, table
from chronograd.units import percent, seconds

# Scaling efficiency at 128 GPUs (32 servers of 4 Pascal GPUs, RoCE 25 Gbit/s): Horovod's README and docs/benchmarks.rst.
PUBLISHED = {"Inception V3": 0.90, "ResNet-101": 0.90, "VGG-16": 0.79}
WATCHDOG, FALLBACK = "horovod, here", "ddp, here"
MIB = 2**20
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
                "learning_rate": 0.0125, "scale_by_ranks": ["learning_rate"]}  # fmt: skip
    return scaling_job(settings, backend, training, f"{where}data", switches, count=ranks, **cluster)


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    sweeps = [
        Sweep(name, job(settings, backend), measured=settings["worlds"])
        for name, backend in ((WATCHDOG, "horovod"), (FALLBACK, "ddp"))
    ]
    for device, link in settings["clusters"]:
        elsewhere = job(settings, "horovod", device=device, link=link)
        sweeps.append(Sweep(f"{device} over {link}", elsewhere, predicted=settings["predicted_worlds"]))
    results = run_sweeps(runner, settings, sweeps)
    largest = last(results.rows["points"], series=WATCHDOG, kind="measured")  # one rank needs no Horovod
    switches = _switches(runner, settings) if largest is not None and largest["world"] > 1 else []
    return replace(results, rows={**results.rows, "switches": switches})


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
    rows = results.rows["points"]
    sections, highlights = [], []
    for name in (WATCHDOG, FALLBACK):
        largest = last(rows, series=name, kind="measured")
        if largest is not None and largest["world"] > 1:
            sections.append(throughput_section(name.capitalize(), matching(rows, series=name)))
            efficiency = percent(largest["efficiency"], 0)
            highlights.append(Highlight(f"efficiency, {name}", efficiency, f"{largest['world']} ranks"))
    here = [row for row in rows if row["series"] in (WATCHDOG, FALLBACK)]
    sections.append(communication_section("Computation and communication", here))
    if results.rows["switches"]:
        sections.append(_switch_section(results.rows["switches"]))
    sections += _predicted_sections(results)
    return STUDY.answer(results, sections, highlights)


def _switch_section(rows: list[Row]) -> Section:
    own = grouped(rows, "switch")
    means = {name: mean(of, "step_time_s") or 0.0 for name, of in own.items()}
    steps = {name: [row["step_time_s"] for row in of] for name, of in own.items()}
    changes = [f"{name} {100 * (step / means[BASE] - 1):+.0f} %" for name, step in means.items() if name != BASE]
    spread = max(row["high"] / row["low"] - 1 for row in rows if row["low"])
    return Section(
        "Fusion and compression",
        f"Against a fusion buffer of 64 MiB the step of two ranks takes: {', '.join(changes)}; the ends of the 80 % interval of steps of one "
        f"run lie up to {percent(spread, 0)} apart, so smaller differences say nothing.",
        table=table(means, {
            "setting": str, "step, mean of rounds": lambda name: seconds(means[name]),
            "rounds from … to": lambda name: f"{seconds(min(steps[name]))} … {seconds(max(steps[name]))}",
            "exposed": lambda name: shown(mean(own[name], "exposed_s"), seconds, ""),
            "rounds": lambda name: str(len(steps[name])),
        }),
    )  # fmt: skip


def _predicted_sections(results: Results) -> list[Section]:
    published = "; ".join(f"{name} {percent(value, 0)}" for name, value in PUBLISHED.items())
    sections = []
    for device, link in results.settings["clusters"]:
        own = matching(results.rows["points"], series=f"{device} over {link}")
        largest = last(own)
        if largest is not None:
            takeaway = (
                f"{largest['world']} × {device} are predicted at {percent(largest['efficiency'], 0)} scaling efficiency and "
                f"{results.settings['epochs']} epochs in {seconds(largest['training_time_s'])}. Published at 128 GPUs on "
                f"25 Gbit/s: {published}."
            )
            section = throughput_section(f"On {device} over {link}, predicted", own)
            sections.append(replace(section, takeaway=takeaway))
    return sections


_PUBLISHED = {"name": "synthetic", "shape": [3, 224, 224], "classes": 1000, "samples": 128_000}
_TINY = {"name": "synthetic", "shape": [3, 16, 16], "classes": 10, "samples": 256}
_PAPER = {
    "network": "resnet50-v1", "data": _PUBLISHED, "batch_per_rank": 64, "gpu_data": _PUBLISHED, "gpu_batch_per_rank": 64,
    "epochs": 25, "worlds": [1, 2, 4, 8, 16], "clusters": [["k80-gk210", "ethernet-10g"], ["v100", "ethernet-25g"]],
    "predicted_worlds": [1, 2, 4, 8, 16], "rounds": 3, "steps": 30, "warmup": 5,
}  # fmt: skip
_LAPTOP = {
    **_PAPER, "data": {"name": "synthetic", "shape": [3, 64, 64], "classes": 1000, "samples": 12_800},
    "batch_per_rank": 8, "worlds": [1, 2, 4], "rounds": 2, "steps": 6, "warmup": 2,
}  # fmt: skip
_SMOKE = {
    **_LAPTOP, "network": "lenet5", "data": _TINY, "gpu_data": _TINY, "epochs": 1, "worlds": [1, 2],
    "clusters": [["v100", "ethernet-25g"]], "predicted_worlds": [1, 4], "rounds": 1, "steps": 2, "warmup": 1,
}  # fmt: skip

STUDY = Study(
    name="horovod-scaling",
    question="How do throughput and training time scale from 1 to 16 ranks with Horovod, and what do fusion and compression change?",
    hypothesis="Weak scaling near 90 % where gradients are exchanged behind backward; fewer, larger messages are faster",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "paper": _PAPER},
    conduct=conduct,
    page=page,
)

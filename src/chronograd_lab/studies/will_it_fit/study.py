"""Does training a model fit on a GPU? Probability, cause and remedy for common models, devices and ways of training.

A way of training is full training with AdamW on one GPU or on several with FSDP, or LoRA or QLoRA on one. The verdict is the probability that
the predicted peak fits. Two published sets score it, if CHRONOGRAD_MEASURED names their folder: runs that ran, which therefore fit, and
SimuMax's measured peaks (MooreThreads/SimuMax, docs/b200), compared with devices with less memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chronograd.answer import Table
from chronograd.figure import Bar, Bars, Figure
from chronograd.hardware import catalog
from chronograd.large.asking import ask_large
from chronograd.large.memory import memory_of, probability_of_fit
from chronograd.large.prediction import LargePrediction
from chronograd.large.remedies import ENOUGH, until_it_fits
from chronograd.units import GIB, chance, memory, percent
from chronograd_lab.common.large_runs import TimedRun, measured_peaks, timed
from chronograd_lab.common.published_runs import MEASURED_VARIABLE, large_models_folder
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import distinct, grouped, matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed, table
from chronograd_lab.common.written import Block

# Options of each way of training, and its number of GPUs.
WAYS: dict[str, tuple[Mapping[str, Any], int]] = {
    "AdamW": ({}, 1),
    "LoRA": ({"lora": 16}, 1),
    "QLoRA": ({"qlora": 16}, 1),
    "FSDP on 8": ({"fsdp": True}, 8),
}
YES, NO = 0.95, 0.05  # probabilities from which a verdict is sure
# Files whose rows state all that memory depends on: Megatron-Bridge and vTrain do not state recomputation.
RAN = {"llm_foundry": "MPT under FSDP", "simumax": "SimuMax's runs", "seqsel": "Korthikanti et al."}


# -- conduct: predictions --------------------------------------------------------------------------------


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    folder = large_models_folder()
    notes = (
        []
        if folder
        else [f"No published runs: {MEASURED_VARIABLE} names no folder that has them, so no verdict was scored."]
    )
    return runner.results(settings, rows={"ran": [], "peaks": [], **predictions(settings)}, notes=notes)


def predictions(settings: Settings) -> dict[str, list[Row]]:
    """Return the verdicts on the cells; those on published runs, too, if their folder is available."""
    cells = [
        _cell(model, device, way, settings)
        for model in settings["models"]
        for way in WAYS
        for device in settings["devices"]
    ]
    folder = large_models_folder()
    return {"cells": cells, **({} if folder is None else _scored(folder, settings["devices"]))}


def _cell(model: str, device: str, way: str, settings: Settings) -> Row:
    """Return the verdict on a model, with its largest part and the changes that make it fit."""
    options, count = WAYS[way]
    asked = ask_large(
        model, ["large.kernels=eager"], {"sequence": settings["sequence"], **options}, f"{count}x{device}", 1
    )
    prediction = LargePrediction(asked.setting)
    largest = max(prediction.fullest.parts, key=lambda part: part.bytes)
    steps = until_it_fits(prediction)
    last = steps[-1] if steps else None
    return {
        "model": model, "device": device, "way": way, "room": prediction.device.memory_bytes,
        "bytes": prediction.fullest.used_bytes, "fit": prediction.fit, "cause": largest.name, "cause_bytes": largest.bytes,
        "remedy": [] if last is None else list(last.changes), "fit_after": None if last is None else last.prediction.fit,
    }  # fmt: skip


# -- conduct: published runs -------------------------------------------------------------------------------


def _scored(folder: Path, devices: Sequence[str]) -> dict[str, list[Row]]:
    """Return verdicts on runs that ran and on measured peaks."""
    runs = [run for run in timed(folder) if run.file in RAN]
    return {"ran": [_ran(run) for run in runs], "peaks": peaks_of(folder, runs, devices)}


def _ran(run: TimedRun) -> Row:
    return {"set": RAN[run.file], "fit": _fit(run, catalog.device(run.device).memory_bytes)}


def _fit(run: TimedRun, room: float) -> float:
    return min(probability_of_fit(stage, room) for stage in memory_of(run.setting))


def peaks_of(folder: Path, runs: Sequence[TimedRun], devices: Sequence[str]) -> list[Row]:
    """Return for each measured peak and each device whether the run would fit, and the predicted probability.

    Runs of one layout share a measurement, so only the first of them counts.
    """
    peaks = measured_peaks(folder)
    seen: set[str] = set()
    found = []
    for run in (run for run in runs if run.name in peaks):
        source, reserved = peaks[run.name]
        if source in seen:
            continue
        seen.add(source)
        for device in devices:
            room = catalog.device(device).memory_bytes
            found.append(
                {
                    "run": run.name,
                    "device": device,
                    "reserved": reserved,
                    "fits": reserved <= room,
                    "fit": _fit(run, room),
                }
            )
    return found


# -- page ------------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    cells, ran, peaks = (results.rows[name] for name in ("cells", "ran", "peaks"))
    failed = [cell for cell in cells if cell["fit"] < ENOUGH]
    helped = [cell for cell in failed if cell["fit_after"] is not None and cell["fit_after"] >= ENOUGH]
    verdicts = [_verdict(row) for row in peaks]
    return {
        "cells": len(cells),
        "sure": sum(cell["fit"] >= YES for cell in cells),
        "failed": len(failed),
        "helped": len(helped),
        "smallest": {
            _name(way): {_name(model): _smallest(own) for model, own in grouped(rows, "model").items()}
            for way, rows in grouped(cells, "way").items()
        },
        "need": {
            _name(way): {_name(row["model"]): row["bytes"] for row in matching(rows, device=results.settings["shown_on"])}
            for way, rows in grouped(cells, "way").items()
        },
        "ran": {"runs": len(ran), "sure": sum(row["fit"] >= YES for row in ran), "wrong": sum(row["fit"] <= NO for row in ran)},
        "peaks": {verdict: verdicts.count(verdict) for verdict in ("right", "wrong", "unsure")} | {"all": len(peaks)},
    }  # fmt: skip


def _name(text: str) -> str:
    return text.replace("-", "_").replace(".", "_").replace(" ", "_")


def _smallest(rows: Sequence[Row]) -> str:
    """Return the first device, by memory, on which a setting surely fits."""
    fitting = [row for row in rows if row["fit"] >= YES]
    return min(fitting, key=lambda row: row["room"])["device"] if fitting else "none"


def _verdict(row: Row) -> str:
    """Return whether a verdict on a measured peak is right, wrong, or unsure."""
    if NO < row["fit"] < YES:
        return "unsure"
    return "right" if (row["fit"] >= YES) == row["fits"] else "wrong"


def blocks(results: Results) -> dict[str, Block]:
    cells, device = results.rows["cells"], results.settings["shown_on"]
    shown = {"Which GPU is large enough?": Block(_verdicts(cells))}
    shown["How much memory does it take?"] = _needs(matching(cells, device=device))
    shown["What is in the way, and what helps?"] = Block(
        _remedies([row for row in cells if row["fit"] < ENOUGH and row["device"] in results.settings["remedies_on"]])
    )
    if results.rows["ran"]:
        shown["How often is the verdict right?"] = Block(_scores(results.rows["ran"], results.rows["peaks"]))
    return shown


def _verdicts(cells: Sequence[Row]) -> Table:
    devices = distinct(cells, "device")
    body = [
        [model, way, *(chance(row["fit"]) for row in own)]
        for (model, way), own in grouped(cells, "model", "way").items()
    ]
    titles = [f"{name}, {catalog.device(name).memory_bytes / GIB:.0f} GiB" for name in devices]
    return listed(["model", "training", *titles], body)


def _needs(cells: Sequence[Row]) -> Block:
    bars = [
        Bar(
            f"{row['model']}, {row['way']}",
            "predicted",
            {"largest part": row["cause_bytes"] / GIB, "other parts": (row["bytes"] - row["cause_bytes"]) / GIB},
        )
        for row in cells
    ]
    return Block(
        table(cells, {"model": "model", "training": "way", "memory per GPU": ("bytes", memory), "largest part": "cause",
                      "share of it": lambda row: percent(row["cause_bytes"] / row["bytes"], 0)}),
        Figure([Bars("GiB per GPU", "model", bars, {"largest part": "accent", "other parts": "grey"})]),
    )  # fmt: skip


def _remedies(cells: Sequence[Row]) -> Table:
    return table(cells, {
        "model": "model", "training": "way", "GPU": "device", "needs": ("bytes", memory), "largest part": "cause",
        "changes": lambda row: ", ".join(row["remedy"]) or "none helps",
        "fits then with": lambda row: "–" if row["fit_after"] is None else chance(row["fit_after"]),
    })  # fmt: skip


def _scores(ran: Sequence[Row], peaks: Sequence[Row]) -> Table:
    body = [
        [
            f"{name}, all ran",
            len(own),
            sum(row["fit"] >= YES for row in own),
            sum(row["fit"] <= NO for row in own),
        ]
        for name, own in grouped(ran, "set").items()
    ]
    verdicts = [_verdict(row) for row in peaks]
    body.append(["measured peaks on each GPU", len(peaks), verdicts.count("right"), verdicts.count("wrong")])
    return listed(
        ["verdicts on", "number", "sure and right", "sure and wrong"], [[str(cell) for cell in row] for row in body]
    )


_LAPTOP: dict[str, Any] = {
    "models": ["llama-3.2-1b", "llama-3.2-3b", "llama-3-8b", "qwen3-14b", "qwen3-32b", "llama-3-70b"],
    "devices": ["rtx4090", "a100-40", "l40s", "a100-80", "h200", "b200"], "sequence": 4096, "shown_on": "a100-80",
    "remedies_on": ["rtx4090", "a100-80"],
}  # fmt: skip
_SMOKE = {**_LAPTOP, "models": _LAPTOP["models"][:2], "devices": ["rtx4090", "a100-80"]}

STUDY = Study(
    name="will-it-fit",
    question="Does training a common model fit on a common GPU, why not, and what would help?",
    hypothesis="Full training with AdamW takes 16 to 18 bytes a parameter, LoRA 2 and QLoRA half of one, and activations come on top",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP},
    conduct=conduct,
    values=values,
    blocks=blocks,
    predictions=lambda results: predictions(results.settings),
)

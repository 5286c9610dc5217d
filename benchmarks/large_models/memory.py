"""Memory of large models, against published runs and other rules.

    python -m benchmarks.large_models.memory --measured DIR [--worst N] [--tracker]

Megatron's rows are of the last stage. Its attention kernel is taken from the row; rows that leave it to the container ("auto") are scored
with the kernel that is nearer, and shown on their own. The rows of a seeded half chose the constants; the other half is "held out".

The textbook rule has 18 bytes a parameter, and the activations of Korthikanti et al. for the first stage. PyTorch's tracker follows tensors
on a CPU, for rows with one rank a model. Weights × 4 is what `accelerate estimate-memory` prints for Adam, as its documentation states.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.large_models import rows as of
from benchmarks.large_models.tracker import tracked
from chronograd.configs.work import params_by_kind
from chronograd.hardware import catalog
from chronograd.large.memory import StageMemory, memory_of, probability_of_fit
from chronograd.large.setting import LargeSetting
from chronograd_lab.common.large_runs import timed

SEED = 0
KERNELS = {"unfused": ["plain"], "local": ["plain"], "flash": ["fused"], "auto": ["fused", "plain"]}
WIDTH_80 = 1.2816  # standard deviations to each side of an interval of 80 %


@dataclass(frozen=True)
class Scored:
    """A predicted and a measured peak, and those of the other rules.

    Attributes:
        is_stated: whether the kernel of attention is; `is_whole` whether a job can state every flag that changes memory.
        sigma_log: of the predicted peak.
    """

    name: str
    device: str
    is_stated: bool
    predicted: float
    measured: float
    sigma_log: float
    textbook: float
    weights: float
    is_whole: bool = True


def textbook(setting: LargeSetting) -> float:
    """Return 18 bytes a parameter, and 34 bytes of activations a token and width, with the scores if they are stored."""
    layout, model = setting.layout, setting.model
    ranks = layout.tensor * layout.pipeline
    params = sum(params_by_kind(model).values()) / ranks
    layers = sum(len(group.places) for group in model.groups) / layout.pipeline
    flights = min(layout.pipeline, setting.micro_batches)
    scores = 0.0
    if setting.options.attention == "plain":
        heads = max(getattr(part, "heads", 0) for _, part in model.parts())
        scores = 5 * heads * setting.sequence / model.width
    whole = 34 + scores if layout.sequence else 10 * layout.tensor + 24 + scores
    return 18 * params + layers * flights * setting.tokens * model.width * whole / layout.tensor


def scored(name: str, setting: LargeSetting, predicted: StageMemory, measured: float, is_stated: bool = True) -> Scored:
    weights = 4 * 2 * sum(params_by_kind(setting.model).values())
    device = setting.job.cluster.device
    return Scored(
        name, device, is_stated, predicted.allocated_bytes, measured, predicted.sigma_log, textbook(setting), weights
    )


def megatron(measured: Path) -> list[Scored]:
    found = []
    for row in filter(of.is_scored, of.read(measured, "megatron_golden")):
        truth = float(row["mem_max_allocated_bytes"])
        kernels = KERNELS[row["attention_backend"]]
        settings = [of.of_megatron(row, kernel) for kernel in kernels]
        options = [scored(row["case"], one, memory_of(one)[-1], truth, is_stated=len(kernels) == 1) for one in settings]
        nearest = min(options, key=lambda one: abs(one.predicted / truth - 1))
        found.append(replace(nearest, is_whole=not of.has_other_options(row)))
    return found


def settings_of(measured: Path, file: str) -> list[tuple[str, LargeSetting]]:
    """Return names and settings of the rows of a file, which `timed` reads."""
    return [(one.name, one.setting) for one in timed(measured / "large_models") if one.file == file]


def simumax(measured: Path) -> list[Scored]:
    gib = {row["case"]: float(row["measured_max_allocated_gib"]) for row in of.read(measured, "simumax_b200")}
    found = []
    for name, setting in settings_of(measured, "simumax"):
        fullest = max(memory_of(setting), key=lambda one: one.allocated_bytes)
        found.append(scored(name, setting, fullest, gib[name] * 2**30))
    return found


def peft(measured: Path) -> list[Scored]:
    found = []
    for row in of.read(measured, "peft"):
        if row["method"] == "lora" and row["task"] == "MetaMathQA":
            setting = of.of_peft(row)
            one = memory_of(setting)[0]
            reserved = scored(row["run"], setting, one, float(row["memory_reserved_max_bytes"]))
            found.append(replace(reserved, predicted=one.reserved_bytes))  # only what is reserved was measured
    return found


def line(title: str, rows: Sequence[Scored], predict: Callable[[Scored], float] | None = None) -> str:
    """Return the errors of a rule, by default those of the product, whose intervals are scored as well."""
    predict, is_own = predict or (lambda one: one.predicted), predict is None
    errors = np.array([predict(one) / one.measured - 1 for one in rows])
    inside = np.mean([abs(np.log(one.predicted / one.measured)) <= WIDTH_80 * one.sigma_log for one in rows])
    worst = np.quantile(abs(errors), 0.9)
    return f"{title:44} {len(rows):4} {abs(errors).mean():7.1%} {np.median(abs(errors)):7.1%} {worst:7.1%} {errors.mean():+7.1%} {f'{inside:.0%}' if is_own else '':>5}"


def halves(rows: Iterable[Scored]) -> tuple[list[Scored], list[Scored]]:
    """Return the rows of a seeded half of the cases, and those of the other half."""
    rows = list(rows)
    names = sorted({one.name for one in rows})
    random.Random(SEED).shuffle(names)
    first = set(names[: len(names) // 2])
    return [one for one in rows if one.name in first], [one for one in rows if one.name not in first]


def foundry(measured: Path) -> str:
    """Return the verdicts on configurations that ran under FSDP, which therefore fit."""
    chances = []
    for _, setting in settings_of(measured, "llm_foundry"):
        room = catalog.device(setting.job.cluster.device).usable_bytes
        chances.append(min(probability_of_fit(one, room) for one in memory_of(setting)))
    low, sure = sum(chance < 0.05 for chance in chances), sum(chance >= 0.95 for chance in chances)
    return f"{len(chances)} FSDP configurations that ran: fits with 95 % {sure}, in between {len(chances) - sure - low}, does not fit {low}"


def by_tracker(measured: Path) -> str:
    """Return the error of PyTorch's tracker on Megatron's rows of GPT whose models have one rank."""
    alone = [
        row
        for row in of.read(measured, "megatron_golden")
        if of.is_scored(row) and row["family"] == "gpt" and row["tp"] == row["pp"] == row["cp"] == "1"
    ]
    errors = np.array(
        [
            tracked(of.of_megatron(row, KERNELS[row["attention_backend"]][0])) / float(row["mem_max_allocated_bytes"])
            - 1
            for row in alone
        ]
    )
    return f"{'Megatron, one rank a model: PyTorch':44} {len(alone):4} {abs(errors).mean():7.1%} {np.median(abs(errors)):7.1%} {'':7} {errors.mean():+7.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, required=True, help="folder of published tables")
    parser.add_argument("--worst", type=int, default=0, help="also print the N largest errors")
    parser.add_argument("--tracker", action="store_true", help="also run PyTorch's tracker, a minute and a half")
    arguments = parser.parse_args()
    runs, b200 = megatron(arguments.measured), simumax(arguments.measured)
    print(f"{'peak memory':44} {'n':>4} {'mean':>7} {'median':>7} {'p90':>7} {'bias':>7} inside 80 %")
    print(line("Megatron, all", runs))
    for title, group in zip(
        ("Megatron, half that chose the constants", "Megatron, held out"), halves(runs), strict=True
    ):
        print(line(title, group))
    print(line("Megatron, kernel of attention stated", [one for one in runs if one.is_stated]))
    print(line("Megatron, kernel left to the container", [one for one in runs if not one.is_stated]))
    print(line("Megatron, flags that a job can state", [one for one in runs if one.is_whole]))
    for device in sorted({one.device for one in runs}):
        print(line(f"Megatron, {device}", [one for one in runs if one.device == device]))
    print(line("SimuMax' runs, b200", b200))
    print(line("LoRA of Llama-3.2-3B, l40s, reserved", peft(arguments.measured)))
    for title, rows in (("Megatron", runs), ("SimuMax' runs", b200)):
        print(line(f"{title}: textbook", rows, lambda one: one.textbook))
        print(line(f"{title}: weights × 4", rows, lambda one: one.weights))
    if arguments.tracker:
        print(by_tracker(arguments.measured))
    print(foundry(arguments.measured))
    both = [*runs, *b200]
    for title, group in (("all", both), ("with flags that a job can state", [one for one in both if one.is_whole])):
        wrong = sum(one.measured > one.predicted * np.exp(1.6449 * one.sigma_log) for one in group)
        print(
            f"a device on which the predicted peak fits with 95 %, {title}: too small for {wrong} of {len(group)} runs"
        )
    for one in sorted(both, key=lambda one: -abs(one.predicted / one.measured - 1))[: arguments.worst]:
        print(f"{one.predicted / one.measured - 1:+7.1%} {one.measured / 2**30:6.1f} GiB {one.device:8} {one.name}")


if __name__ == "__main__":
    main()

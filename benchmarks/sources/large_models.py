"""Large models: peak memory and step times of published training runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.large_models import memory, step
from benchmarks.sources import Row, row_of
from chronograd.large.step import step_of
from chronograd_lab.common.large_runs import timed

SOURCE = "large models"
TITLES = {
    "vtrain": "Megatron GPT on 2 to 8 A100 in every layout",
    "llm_foundry": "MPT of 125 M to 70 B under FSDP",
    "simumax": "SimuMax' runs on B200",
    "seqsel": "Megatron of 22 B to 1 T on A100",
    "bridge": "tuned recipes in fp8 and bf16",
}
NOTES = {
    "vtrain": "These times are exactly linear in the number of micro-batches: vTrain composed them from profiled operators. "
    "The host's work per operator was fitted to half of them.",
    "llm_foundry": "The shares of the A100's peak and bandwidth were fitted to half of these rows; the other half is as close.",
    "bridge": "The speed of grouped products was fitted to half of the mixtures of experts.",
}


def rows(folder: Path) -> list[Row]:
    """Return a row of memory and one of step time per collection. Empty if the tables are missing."""
    tables = folder / "large_models"
    if not (tables / "megatron_golden.csv").exists():
        return []
    _, held_out = memory.halves(memory.megatron(folder))
    note = "Two constants of the backward pass were fitted to these runs."
    scored = [step.Scored(row, step_of(row.setting, row.software)) for row in timed(tables)]
    return [
        _memory("peak memory of Megatron's regression runs, the half that chose no constant", held_out),
        _memory("peak memory of SimuMax' runs on B200", memory.simumax(folder), note),
        *(
            _steps(f"step: {title}", [one for one in scored if one.row.file == file], NOTES.get(file, ""))
            for file, title in TITLES.items()
        ),
    ]


def _memory(rule: str, found: Sequence[memory.Scored], note: str = "") -> Row:
    ratios = np.array([one.predicted / one.measured for one in found])
    inside = np.abs(np.log(ratios)) <= memory.WIDTH_80 * np.array([one.sigma_log for one in found])
    groups = {
        "device": [one.device for one in found],
        "attention kernel": ["stated" if one.is_stated else "left to the container" for one in found],
    }
    return row_of(SOURCE, rule, 0.03, [one.name for one in found], ratios, inside, groups, note=note)


def _steps(rule: str, found: Sequence[step.Scored], note: str) -> Row:
    ratios = [math.exp(one.log_error) for one in found]
    inside = [abs(one.log_error) <= memory.WIDTH_80 * one.step.sigma_log for one in found]
    groups = {"device": [one.row.device for one in found]}
    return row_of(SOURCE, rule, 0.15, [one.row.name for one in found], ratios, inside, groups, note=note)

"""Large models: the peak memory of published training runs (Megatron, SimuMax)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.large_models.memory import WIDTH_80, Scored, halves, megatron, simumax
from benchmarks.sources import Row, row_of

SOURCE = "large models"


def rows(folder: Path) -> list[Row]:
    """Return the rows of memory. Empty if the tables are missing."""
    if not (folder / "large_models" / "megatron_golden.csv").exists():
        return []
    _, held_out = halves(megatron(folder))
    note = "two constants of the backward pass were fitted to these runs"
    return [
        _memory("peak memory of Megatron's regression runs, the half that chose no constant", held_out),
        _memory("peak memory of SimuMax' runs on B200", simumax(folder), note),
    ]


def _memory(rule: str, found: Sequence[Scored], note: str = "") -> Row:
    ratios = np.array([one.predicted / one.measured for one in found])
    inside = [abs(np.log(ratio)) <= WIDTH_80 * one.sigma_log for ratio, one in zip(ratios.tolist(), found, strict=True)]
    groups = {
        "device": [one.device for one in found],
        "attention kernel": ["stated" if one.is_stated else "left to the container" for one in found],
    }
    return row_of(SOURCE, rule, 0.03, [one.name for one in found], ratios, inside, groups, note=note)

"""Pollux: step times of data-parallel training by local batch and placement, T4 machines of four GPUs each.

For each network a seed takes half of the placements with at most eight replicas. A step model fitted on them predicts first the
other half, then every placement with more replicas.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np

from benchmarks.sources import Row, row_of
from benchmarks.step_scaling import Steps, fit_step

MAX_FITTED = 8
SEEDS = range(5)


def rows(folder: Path) -> list[Row]:
    """Return two rows: other placements, and more replicas. Empty if the table is missing."""
    path = folder / "pollux" / "step_and_sync_times.csv"
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        table = list(csv.DictReader(stream))
    found = {True: _Cases(), False: _Cases()}
    for seed in SEEDS:
        for app in sorted({line["app"] for line in table}):
            lines = [line for line in table if line["app"] == app]
            steps, groups = _steps(lines), np.array([_placement(line) for line in lines])
            is_small = steps.replicas <= MAX_FITTED
            small = np.unique(groups[is_small])
            chosen = np.random.default_rng(seed).permutation(small)[: (len(small) + 1) // 2]
            is_fitted = is_small & np.isin(groups, chosen)
            if is_fitted.sum() < 10:
                continue
            model = fit_step(steps.chosen(is_fitted), groups[is_fitted].tolist())
            for is_more, cases in found.items():
                out = ~is_fitted & (is_small != is_more)
                scored = steps.chosen(out)
                ratio = model.seconds(scored) / scored.seconds
                cases.names += [f"{app} {g}, batch {b:g}" for g, b in zip(groups[out], scored.local_batch, strict=True)]
                cases.ratios += ratio.tolist()
                cases.inside += (np.abs(np.log(ratio)) <= model.half_width80).tolist()
                cases.seeds += [seed] * len(ratio)
    rules = {
        True: f"half of the placements of at most {MAX_FITTED} replicas predict more replicas, to 64",
        False: f"half of the placements of at most {MAX_FITTED} replicas predict the other half",
    }
    return [cases.row(rules[is_more]) for is_more, cases in found.items() if cases.ratios]


class _Cases:
    def __init__(self) -> None:
        self.names: list[str] = []
        self.ratios: list[float] = []
        self.inside: list[bool] = []
        self.seeds: list[int] = []

    def row(self, rule: str) -> Row:
        error, seed = np.abs(np.array(self.ratios) - 1), np.array(self.seeds)
        by_seed = tuple(float(error[seed == s].mean()) for s in sorted(set(self.seeds)))
        return row_of("Pollux", rule, 0.08, self.names, self.ratios, self.inside, by_seed=by_seed)


def _placement(line: dict[str, str]) -> str:
    return line["placement"] or f"{line['num_replicas']} on {line['num_nodes']} nodes"


def _steps(lines: list[dict[str, str]]) -> Steps:
    """Return the steps of the lines. Replicas without a placement count as spread evenly."""
    replicas = [int(line["num_replicas"]) for line in lines]
    nodes = [int(line["num_nodes"]) for line in lines]
    most = [
        max(map(int, line["placement"])) if line["placement"] else math.ceil(r / n)
        for line, r, n in zip(lines, replicas, nodes, strict=True)
    ]
    columns = ([float(line[k]) for line in lines] for k in ("local_bsz", "step_time_s"))
    batch, seconds = columns
    return Steps(*(np.array(c, dtype=float) for c in (batch, nodes, replicas, most, seconds)))

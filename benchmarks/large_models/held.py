"""Time, memory and bias of large models in one table, with SimuMax's own predictions of its runs.

    python -m benchmarks.large_models.held [--measured DIR] [--rows]

SimuMax's 15 runs on B200 have measured steps and peaks. llm-foundry's settings are those of torchtitan: FSDP of every
layer, mixed precision in bf16. Their peaks are not published, but they ran, so the last column counts those that fit with at least 95 %. Bias is the mean
log of predicted / measured, as a factor. `--rows` prints each of SimuMax's runs.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.large_models.rows import read
from chronograd.hardware import catalog
from chronograd.large.memory import memory_of, probability_of_fit
from chronograd.large.step import step_of
from chronograd.units import percent
from chronograd.words import signed_percent
from chronograd_lab.common.large_runs import TimedRun, timed

GIB = 2.0**30
SURE = 0.95


@dataclass(frozen=True)
class Held:
    """A measured run with predictions. Pairs are predicted and measured; `fit` is the probability that the run fits."""

    name: str
    step_s: tuple[float, float]
    peak_bytes: tuple[float, float] | None
    fit: float


def held(row: TimedRun, peak_bytes: float | None = None) -> Held:
    """Return a run with our predictions. `peak_bytes`: its measured peak, if published."""
    stages, room = memory_of(row.setting), catalog.device(row.device).usable_bytes
    peak = max(stage.allocated_bytes for stage in stages)
    return Held(
        row.name,
        (step_of(row.setting, row.software).step_s, row.measured_s),
        None if peak_bytes is None else (peak, peak_bytes),
        min(probability_of_fit(stage, room) for stage in stages),
    )


def errors(pairs: Sequence[tuple[float, float]]) -> str:
    """Return mean and largest absolute error, and bias, as cells of a table."""
    ratios = np.array([predicted / measured for predicted, measured in pairs])
    absolute = abs(ratios - 1)
    bias = math.expm1(float(np.log(ratios).mean()))
    return f"{percent(float(absolute.mean()))} | {percent(float(absolute.max()))} | {signed_percent(bias)}"


def line(title: str, rows: Sequence[Held]) -> str:
    """Return a line of the table."""
    peaks = [row.peak_bytes for row in rows if row.peak_bytes is not None]
    sure = sum(row.fit >= SURE for row in rows)
    memory = errors(peaks) if peaks else "– | – | –"
    return f"| {title} | {len(rows)} | {errors([row.step_s for row in rows])} | {memory} | {sure} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, default=Path(os.environ.get("CHRONOGRAD_MEASURED", "measured")))
    parser.add_argument("--rows", action="store_true", help="also print each of SimuMax's runs")
    arguments = parser.parse_args()
    table = {row["case"]: row for row in read(arguments.measured, "simumax_b200")}
    found = timed(arguments.measured / "large_models")
    ours = [
        held(row, GIB * float(table[row.name]["measured_max_allocated_gib"])) for row in found if row.file == "simumax"
    ]
    theirs = [_theirs(row, table[row.name]) for row in ours]
    sharded = [held(row) for row in found if row.file == "llm_foundry"]
    print("| predicted by | runs | time, mean | worst | bias | memory, mean | worst | bias | fit with 95 % |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    print(line("Chronograd, SimuMax's runs", ours))
    print(line("SimuMax, its own runs", theirs))
    print(line("Chronograd, FSDP as in torchtitan", sharded))
    for one in ours if arguments.rows else ():
        assert one.peak_bytes is not None
        step, peak = (predicted / measured - 1 for predicted, measured in (one.step_s, one.peak_bytes))
        print(f"{one.name}: time {signed_percent(step)}, memory {signed_percent(peak)}")


def _theirs(row: Held, published: dict[str, str]) -> Held:
    """Return a run with SimuMax's predictions."""
    assert row.peak_bytes is not None
    step_s, peak = float(published["simumax_step_ms"]) / 1e3, GIB * float(published["simumax_max_allocated_gib"])
    return Held(row.name, (step_s, row.step_s[1]), (peak, row.peak_bytes[1]), row.fit)


if __name__ == "__main__":
    main()

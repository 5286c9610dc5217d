"""Step times of large models, predicted and measured.

    python -m benchmarks.large_models.step [--measured DIR] [--rows FILE]

Files: vTrain (Megatron on A100), llm-foundry (MPT under FSDP on A100), SimuMax (B200), Korthikanti et al. (A100), and
Megatron-Bridge (H100, fp8). The first table predicts every row from the catalogue. The second one scales the predictions of
a file and device by four rows, which a seed chooses, and scores the other rows; figures are means over ten seeds. The last line
states the regret on vTrain's groups with four layouts or more. It is the additional time of the layout with the shortest
prediction, compared with the best measured one.
"""

from __future__ import annotations

import argparse
import math
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.large_models.scale import Scale
from chronograd.large.step import StepTime, step_of
from chronograd.record import normal_quantile
from chronograd_lab.common.large_runs import TimedRun, timed

CALIBRATING_ROWS, SEEDS, LEAST_LAYOUTS = 4, 10, 4
_Z = normal_quantile(0.9)  # of an 80 % interval


@dataclass(frozen=True)
class Scored:
    """A measured step and its prediction."""

    row: TimedRun
    step: StepTime

    @property
    def log_error(self) -> float:
        return math.log(self.step.step_s / self.row.measured_s)


def score(rows: Sequence[Scored]) -> str:
    """Return mean, median and 90th percentile of the absolute error, bias, number of rows, and coverage of the 80 % interval."""
    logs = np.array([one.log_error for one in rows])
    sigmas = np.array([one.step.sigma_log for one in rows])
    absolute = 100 * np.abs(np.expm1(logs))
    covered = 100 * np.mean(np.abs(logs) <= _Z * sigmas)
    bias = 100 * math.expm1(float(np.mean(logs)))
    middle, most = np.quantile(absolute, (0.5, 0.9))
    return f"{absolute.mean():7.1f} {middle:7.1f} {most:7.1f} {bias:+7.1f} {covered:9.0f} {len(logs):6d}"


def calibrated(rows: Sequence[Scored], seed: int) -> list[Scored]:
    """Return the rows that a seed does not choose, after scaling by the chosen ones."""
    order = np.random.default_rng(seed).permutation(len(rows))
    chosen, others = ([rows[i] for i in part] for part in (order[:CALIBRATING_ROWS], order[CALIBRATING_ROWS:]))
    scale = Scale.of([one.step for one in chosen], [one.row.measured_s for one in chosen])
    return [Scored(one.row, scale.applied(one.step)) for one in others]


def regrets(rows: Sequence[Scored]) -> list[float]:
    """Return the regret of each group of layouts. Of equal predictions, the first row of the file counts."""
    groups: dict[str, list[Scored]] = defaultdict(list)
    for one in rows:
        groups[one.row.group].append(one)
    found = []
    for group in groups.values():
        if len(group) >= LEAST_LAYOUTS:
            chosen = min(group, key=lambda one: one.step.step_s)
            found.append(chosen.row.measured_s / min(one.row.measured_s for one in group) - 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, default=Path(os.environ.get("CHRONOGRAD_MEASURED", "measured")))
    parser.add_argument("--rows", help="also print the rows of a file, such as simumax")
    arguments = parser.parse_args()
    scored = [Scored(row, step_of(row.setting, row.software)) for row in timed(arguments.measured / "large_models")]
    files: dict[str, list[Scored]] = defaultdict(list)
    for one in scored:
        files[f"{one.row.file}, {one.row.device}"].append(one)
    print(f"{'from the catalogue':28} mean %  median     p90    bias  in 80 %   rows")
    for name, rows in files.items():
        print(f"{name:28} {score(rows)}")
    print(f"\nafter {CALIBRATING_ROWS} rows of the device")
    for name, rows in files.items():
        if len(rows) > CALIBRATING_ROWS:
            print(f"{name:28} {score([one for seed in range(SEEDS) for one in calibrated(rows, seed)])}")
    found = 100 * np.array(regrets([one for one in scored if one.row.file == "vtrain"]))
    if len(found):
        print(
            f"\nregret on vTrain: mean {found.mean():.1f} %, p90 {np.quantile(found, 0.9):.1f} %, {len(found)} groups"
        )
    for one in scored:
        if one.row.file == arguments.rows:
            ratio = one.step.step_s / one.row.measured_s
            print(
                f"{one.row.name}: {one.row.measured_s:.4g} s measured, {one.step.step_s:.4g} s predicted, {ratio:.2f}"
            )


if __name__ == "__main__":
    main()

"""Makes fit/published_curves.json: what published runs tell of others with a schedule of their kind.

    python -m benchmarks.convergence --measured DIR [--write]

Without --write it says how the file would change. How well it forecasts is what `chronograd study run loss-curves` tells.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.fit import published_curves
from chronograd.fit.convergence import converged_at, from_curve, median_of_three
from chronograd.fit.learning_curves import LearningCurve
from chronograd.fit.loss import MIN_POINTS
from chronograd.fit.published_curves import Published
from chronograd.study.published_runs import PublishedCurve, cifar_resnets, dawnbench

FRACTIONS = (0.25, 0.5, 0.75)  # of the way to convergence
POINTS_PER_PHASE = 32


def table(measured: Path) -> dict[str, Any]:
    curves = [*dawnbench(measured), *cifar_resnets(measured)]
    falling = [one for one in curves if one.curve.schedule.kind != "constant"]
    ratios: dict[str, list[float]] = {}
    for one in curves:
        if one.curve.schedule.kind == "constant":
            ratios.setdefault(one.group, []).extend(ratios_of(one.curve))
    return {
        "source": "DAWNBench, and ResNets on CIFAR-10 at a constant rate (alexunxus/DLSP_hw4_p4) for the ratios",
        "runs": [run(one) for one in falling],
        "ratios": {group: values for group, values in sorted(ratios.items()) if values},
    }


def run(one: PublishedCurve) -> dict[str, Any]:
    """Thinned to POINTS_PER_PHASE points between drops."""
    curve, schedule = one.curve, one.curve.schedule
    mine = schedule.progress(curve.steps)
    wanted = np.unique(
        np.concatenate([mine[:1], np.arange(1, 1 + POINTS_PER_PHASE * np.ceil(mine[-1])) / POINTS_PER_PHASE])
    )
    steps = np.unique([curve.steps[np.argmin(np.abs(mine - at))] for at in wanted])
    errors = np.interp(steps, curve.steps, median_of_three(curve.values))
    return {
        "name": curve.name, "team": one.group, "kind": schedule.kind, "drops": list(schedule.drops),
        "planned": round(schedule.planned or 0.0, 3), "converged": round(converged_at(curve.steps, curve.values), 3),
        "steps": [round(float(k), 2) for k in steps], "errors": [round(float(e), 4) for e in errors],
    }  # fmt: skip


def ratios_of(curve: LearningCurve) -> list[float]:
    """True over forecast epoch of convergence, without any correction."""
    converged, found = converged_at(curve.steps, curve.values), []
    for fraction in FRACTIONS:
        early = curve.first(int((curve.steps <= fraction * converged).sum()))
        if len(early.steps) >= MIN_POINTS:
            forecast = from_curve(early, Published((), {})).step
            found.append(round(converged / max(forecast, float(early.steps[-1])), 3))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    text = json.dumps(table(given.measured), separators=(",", ":")).replace('{"name"', '\n{"name"') + "\n"
    if given.write:
        published_curves.FILE.write_text(text)
    is_same = published_curves.FILE.exists() and published_curves.FILE.read_text() == text
    print(f"{published_curves.FILE.name}: {len(text):,} bytes, {'as it is' if is_same else 'differs'}")


if __name__ == "__main__":
    main()

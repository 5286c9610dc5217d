"""Forecasts of public training logs, cut at 30, 50 and 70 % of their steps: final value, and first step of a target.

    python -m benchmarks.forecasts [--json benchmarks/results/forecasts.json]

The logs are in benchmarks/sources/logs, with the repository of each in `sources.csv`. Each log is written up to its cut and read
like the log of a user. A schedule and a planned end are stated where the authors stated them; otherwise the end of the log is the
planned end. The target is 95 % of the way from the first value to the best. A target that is forecast as never reached counts as
reached at the end.

The repositories of each field, in the order of their names, go to halves A and B in turn. Constants may be chosen on half A only.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from chronograd.forecast.forecast_answer import read
from chronograd.forecast.forecasting import forecast
from chronograd.forecast.loss import fit_loss
from chronograd.forecast.loss_answer import with_schedule

LOGS = Path(__file__).parent / "sources" / "logs"
CUTS = (0.3, 0.5, 0.7)
WAY = 0.95  # of the way from the first value to the best


@dataclass(frozen=True)
class Case:
    """One log at one cut. Values are as the log has them; steps of None mean never.

    Attributes:
        spread: the divisor of errors of the final value: the value itself, or the range of returns.
        reached: the step of the target; None if it was reached before the cut.
    """

    log: str
    field: str
    half: str
    cut: float
    final: float
    spread: float
    ours: float
    low: float
    high: float
    last: float
    power: float
    reached: float | None
    ours_step: float | None
    low_step: float | None
    high_step: float | None
    power_step: float | None
    until: float
    end: float
    unlike: str | None
    seconds: float


def cases(names: Sequence[str] = ()) -> Iterator[Case]:
    with (LOGS / "sources.csv").open(newline="", encoding="utf-8") as file:
        sources = [row for row in csv.DictReader(file) if not names or row["name"] in names]
    for source in sources:
        for cut in CUTS:
            yield case(source, cut)


def case(source: dict[str, str], cut: float) -> Case:
    lines = (LOGS / f"{source['name']}.csv").read_text().splitlines()
    column = lines[0].split(",")[1]
    whole = read(LOGS / f"{source['name']}.csv", column, None)
    values, end = np.asarray(whole.shown(whole.values)), float(whole.steps[-1])
    count = int((whole.steps <= cut * end).sum())
    best = float(values.min() if whole.metric == "loss" else values.max())
    target = float(values[0] + WAY * (best - values[0]))
    there = np.flatnonzero(values <= target if whole.metric == "loss" else values >= target)
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "log.csv"
        part.write_text("\n".join(lines[: 1 + count]) + "\n")
        curve = read(part, column, None)
    curve = with_schedule(curve, source["schedule"] or None, (), float(source["planned"] or end))
    started = time.process_time()
    made = forecast(curve, target=target, at=[end])
    seconds = time.process_time() - started
    at, reached = made.expected(end), made.reached
    assert reached is not None
    power = fit_loss(curve.steps, curve.values, "power", draws=0)
    seen = float(whole.steps[there[0]])
    return Case(
        source["name"], source["field"], source["half"], cut,
        final=float(values[-1]),
        spread=float(np.ptp(values)) if whole.metric == "return" else abs(float(values[-1])),
        ours=at.value, low=at.low, high=at.high,
        last=float(curve.shown(curve.values[-1])), power=float(curve.shown(power.at(end))),
        reached=seen if seen > curve.steps[-1] else None,
        ours_step=reached.step, low_step=reached.low, high_step=reached.high,
        power_step=power.steps_to(float(curve.shown(target))),
        until=float(curve.steps[-1]), end=end, unlike=made.unlike, seconds=seconds,
    )  # fmt: skip


def scores(some: Sequence[Case]) -> dict[str, float]:
    """Return errors, bias and coverage of these cases, as fractions.

    The error of a target is that of its step. The last value never reaches a target, so it counts as reached at the end.
    """
    found: dict[str, float] = {"n": len(some)}
    for name in ("ours", "last", "power"):
        off = np.array([(getattr(one, name) - one.final) / one.spread for one in some])
        found |= {
            f"{name}_mean": np.abs(off).mean(),
            f"{name}_median": np.median(np.abs(off)),
            f"{name}_bias": off.mean(),
        }
    found["inside"] = float(np.mean([one.low <= one.final <= one.high for one in some]))
    found["width"] = float(np.median([(one.high - one.low) / one.spread for one in some]))
    ahead = [one for one in some if one.reached is not None]
    found["targets"] = len(ahead)
    if ahead:
        true = np.array([one.reached for one in ahead], dtype=float)
        for name in ("ours", "last", "power"):
            steps = [getattr(one, f"{name}_step", None) for one in ahead]
            told = [min(max(step or one.end, one.until), one.end) for step, one in zip(steps, ahead, strict=True)]
            off = np.array(told) / true - 1
            found |= {
                f"{name}_step_mean": np.abs(off).mean(), f"{name}_step_median": np.median(np.abs(off)),
                f"{name}_step_bias": off.mean(),
            }  # fmt: skip
        found["step_inside"] = float(
            np.mean(
                [(one.low_step or np.inf) <= one.reached <= (one.high_step or np.inf) for one in ahead if one.reached]
            )
        )
    return {name: round(float(value), 4) for name, value in found.items()}


def groups(some: Sequence[Case]) -> dict[str, list[Case]]:
    found = {"all": list(some)}
    for half in ("A", "B"):
        found[f"half {half}"] = [one for one in some if one.half == half]
        for cut in CUTS:
            found[f"half {half}, {cut:.0%}"] = [one for one in some if (one.half, one.cut) == (half, cut)]
    for cut in CUTS:
        found[f"{cut:.0%}"] = [one for one in some if one.cut == cut]
    for field in dict.fromkeys(one.field for one in some):
        found[field] = [one for one in some if one.field == field]
    return {name: part for name, part in found.items() if part}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--logs", nargs="+", default=(), metavar="NAME")
    given = parser.parse_args(argv)
    found = list(cases(given.logs))
    table = {name: scores(part) for name, part in groups(found).items()}
    columns = ("n", "ours_mean", "last_mean", "power_mean", "ours_bias", "inside", "targets", "ours_step_mean", "last_step_mean",
               "power_step_mean", "ours_step_bias", "step_inside")  # fmt: skip
    print(f"{'':14}" + "".join(f"{name:>16}" for name in columns))
    for name, row in table.items():
        print(f"{name:14}" + "".join(f"{row.get(column, float('nan')):16.3f}" for column in columns))
    if given.json:
        text = json.dumps({"scores": table, "cases": [asdict(one) for one in found]}, indent=1)
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()

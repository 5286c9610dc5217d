"""The gate of `compare --fail-if` on real runs: how often it fails equal runs, and whether it detects a planted change.

    python -m benchmarks.gate --json benchmarks/results/gate.json
    python -m benchmarks.gate --simulate [--write]

A small job is measured repeatedly, in turn with a version that is a fifth slower. Each round runs A, A and B once, in random
order. Gates are then made as CI would make them: the runs of each side come from `k` rounds, drawn many times. Equal runs
compare A with A, and a gate that fails there is a false alarm. The true change is the median over all rounds. One job computes,
and its runs differ much on a shared machine. The other mostly waits, as if for a separate device, and its runs differ little.

--simulate measures nothing. It draws runs with a known spread, and prints how often the interval contains the true change, how
often equal runs fail, and how often changes are detected. It repeats this for rounds of `compare jobs`, whose two runs share a
part of their spread. With --write the tables go into docs/decisions/gate.md.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from chronograd.compare.gate import judge, read_condition
from chronograd.job import Job, from_dict
from chronograd.launch import jobs
from chronograd.measure import environment
from chronograd.measure.result import Timing
from chronograd.record import Quantity, Record

# Options of the network: the original, and the version with a fifth more work.
JOBS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "waiting": ({"depth": 2, "wait_s": 0.030}, {"depth": 2, "wait_s": 0.036}),
    "computing": ({"depth": 20}, {"depth": 24}),
}
PIXELS = 16 * 16
SIZES = (1, 2, 3, 5, 8)
LIMITS = (0, 5)
DRAWS = 500


class Wait(nn.Module):
    """Layer that sleeps."""

    def __init__(self, wait_s: float) -> None:
        super().__init__()
        self.wait_s = wait_s

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        time.sleep(self.wait_s)
        return seen


def layers(num_classes: int, depth: int, wait_s: float = 0.0, width: int = 128) -> nn.Module:
    """Return equal layers, so that the time follows from their number, and a pause."""
    blocks = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, width), *blocks, Wait(wait_s), nn.Linear(width, num_classes))


def make_job(options: dict[str, Any]) -> Job:
    return from_dict(
        {
            "network": {"name": "benchmarks.gate:layers", "options": options},
            "data": {"name": "synthetic", "shape": [1, 16, 16], "classes": 10, "samples": 1024},
            "training": {"recipe": "sgd-momentum", "batch": 64, "learning_rate": 0.01},
            "cluster": {"device": "local", "threads": 1},
        }
    )


def measured(name: str, rounds: int, steps: int, folder: Path) -> Iterator[tuple[str, Record]]:
    """Yield A, A and B once in each round, in random order."""
    as_it_is, slower = JOBS[name]
    chance = random.Random(name)
    for number in range(rounds):
        for side in chance.sample(["A1", "A2", "B"], 3):
            job = make_job(slower if side == "B" else as_it_is)
            yield side, jobs.measure(job, Timing(num_steps=steps), out=folder / f"{name}-{number}-{side}").record()


def verdicts(sides: Sequence[Sequence[Record]], size: int, limit: float, are_equal: bool) -> dict[str, float]:
    """Return the shares of the verdicts over DRAWS gates. For equal runs each round draws which run is the baseline."""
    condition = read_condition(f"step_time > {limit}%")
    chance = random.Random(size)
    found: Counter[str] = Counter()
    for _ in range(DRAWS):
        rounds = chance.sample(list(zip(*sides, strict=True)), size)
        drawn = [chance.sample(pair, 2) if are_equal else pair for pair in rounds]
        found[judge(condition, [a for a, _ in drawn], [b for _, b in drawn]).verdict] += 1
    return {name: found[name] / DRAWS for name in ("fails", "passes", "cannot tell")}


def spreads(records: Sequence[Record]) -> dict[str, float]:
    """Return the deviation between runs and of steps within a run, as shares of the step time."""
    values = [record.value("step_time_s") for record in records]
    within = [(record["step_time_s"].std or 0.0) / record.value("step_time_s") for record in records]
    return {"between_runs": float(np.std(np.log(values), ddof=1)), "of_steps": float(np.median(within))}


def judged(kept: dict[str, list[Record]]) -> dict[str, Any]:
    """Return the gate's verdicts on the runs of one job."""
    times = {side: [record.value("step_time_s") for record in records] for side, records in kept.items()}
    change = float(np.median(np.asarray(times["B"]) / np.sqrt(np.multiply(times["A1"], times["A2"]))) - 1)
    gates = [
        {
            "runs": size,
            "limit_percent": limit,
            "equal": verdicts((kept["A1"], kept["A2"]), size, limit, are_equal=True),
            "planted": verdicts((kept["A1"], kept["B"]), size, limit, are_equal=False),
        }
        for size in SIZES
        for limit in LIMITS
        if size <= len(kept["A1"])
    ]
    return {
        "planted_change": change,
        "spread": spreads(kept["A1"] + kept["A2"]),
        "gates": gates,
        "step_time_s": times,
    }


def tell(name: str, found: dict[str, Any]) -> Iterator[str]:
    spread = found["spread"]
    yield (
        f"{name}: planted {100 * found['planted_change']:+.1f} %; deviation between runs "
        f"{100 * spread['between_runs']:.1f} %, of steps {100 * spread['of_steps']:.1f} %"
    )
    for row in found["gates"]:
        equal, planted = (
            {key: f"{100 * share:.0f} %" for key, share in row[side].items()} for side in ("equal", "planted")
        )
        yield (
            f"  {row['runs']} of each, step_time > {row['limit_percent']}%: equal runs fail {equal['fails']} (cannot tell "
            f"{equal['cannot tell']}), planted fail {planted['fails']} (cannot tell {planted['cannot tell']})"
        )


PAGE = Path(__file__).parents[1] / "docs" / "decisions" / "gate.md"
BEGIN, END = "<!-- python -m benchmarks.gate --simulate --write -->\n", "<!-- end -->"
# Deviation of the log of a run's mean between runs, and of steps within a run.
SETTINGS = ((0.05, 0.03), (0.10, 0.01), (0.01, 0.03))
SIMULATED_SIZES = (1, 2, 3)
CHANGES = (0.1, 0.2, 0.5)
SIMULATED = 400


def simulated(size: int, between: float, of_steps: float, change: float) -> tuple[float, float, float]:
    """Return shares of SIMULATED gates on log-normal runs: interval contains the true change; fails at a limit of 0 %; of 5
    %.
    """
    chance = np.random.default_rng(0)
    conditions = [read_condition(f"step_time > {limit}%") for limit in LIMITS]
    found = np.zeros(3)
    for _ in range(SIMULATED):
        sides = [[_run(0.1 * factor * float(np.exp(between * chance.standard_normal())), of_steps) for _ in range(size)]
                 for factor in (1.0, 1.0 + change)]  # fmt: skip
        outcomes = [judge(condition, sides[0], sides[1]) for condition in conditions]
        found += (outcomes[0].low <= change <= outcomes[0].high, *(one.verdict == "fails" for one in outcomes))
    inside, at_0, at_5 = found / SIMULATED
    return inside, at_0, at_5


def _run(step_time_s: float, of_steps: float) -> Record:
    made = Record(kind="measured", title="simulated")
    made.put("step_time_s", Quantity(value=step_time_s, unit="s", std=of_steps * step_time_s, n=30))
    return made


def simulation() -> str:
    """Return a table with a row for each number of runs and setting."""
    heads = ["runs of each", "between runs", "steps", "95 % holds", "equal fail, > 0 %", "equal fail, > 5 %"]
    heads += [f"+{100 * change:.0f} % fails, > 5 %" for change in CHANGES]
    lines = [f"| {' | '.join(heads)} |", f"|{' ---: |' * len(heads)}"]
    for size in SIMULATED_SIZES:
        for between, of_steps in SETTINGS:
            shares = [*simulated(size, between, of_steps, 0.0)]
            shares += [simulated(size, between, of_steps, change)[2] for change in CHANGES]
            row = [
                str(size),
                f"{100 * between:.0f} %",
                f"{100 * of_steps:.0f} %",
                *(f"{100 * x:.1f} %" for x in shares),
            ]
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


ROUNDS_BEGIN, ROUNDS_END = "<!-- rounds -->\n", "<!-- end of rounds -->"
ROUNDS = (3, 5, 8)
# Deviation of the log of a step time that both runs of a round share, and that of each run.
SHARED = ((0.0, 0.05), (0.2, 0.05), (0.2, 0.02))


def simulated_rounds(
    rounds: int, shared: float, own: float, change: float, is_paired: bool
) -> tuple[float, float, float]:
    """Return the shares of `simulated` for rounds."""
    chance = np.random.default_rng(0)
    conditions = [read_condition(f"step_time > {limit}%") for limit in LIMITS]
    found = np.zeros(3)
    for _ in range(SIMULATED):
        logs = shared * chance.standard_normal((rounds, 1)) + own * chance.standard_normal((rounds, 2))
        a, b = ([_run(0.1 * factor * float(np.exp(log)), 0.03) for log in column] for factor, column in
                zip((1.0, 1.0 + change), logs.T, strict=True))  # fmt: skip
        outcomes = [judge(condition, a, b, is_paired=is_paired) for condition in conditions]
        found += (outcomes[0].low <= change <= outcomes[0].high, *(one.verdict == "fails" for one in outcomes))
    inside, at_0, at_5 = found / SIMULATED
    return inside, at_0, at_5


def simulation_of_rounds() -> str:
    """Return a table with a row for each number of rounds and setting, by pairs and by the spread between runs."""
    heads = ["rounds", "shared", "of a run", "judged by", "95 % holds", "equal fail, > 0 %", "equal fail, > 5 %"]
    heads += [f"+{100 * change:.0f} % fails, > 5 %" for change in CHANGES]
    lines = [f"| {' | '.join(heads)} |", f"|{' ---: |' * len(heads)}"]
    for rounds in ROUNDS:
        for shared, own in SHARED:
            for is_paired in (True, False):
                shares = [*simulated_rounds(rounds, shared, own, 0.0, is_paired)]
                shares += [simulated_rounds(rounds, shared, own, change, is_paired)[2] for change in CHANGES]
                row = [str(rounds), f"{100 * shared:.0f} %", f"{100 * own:.0f} %", "pairs" if is_paired else "runs"]
                lines.append(f"| {' | '.join([*row, *(f'{100 * x:.1f} %' for x in shares)])} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--simulate", action="store_true", help="draw runs instead of measuring them")
    parser.add_argument(
        "--write", action="store_true", help="also write the table of --simulate into docs/decisions/gate.md"
    )
    arguments = parser.parse_args(argv)
    if arguments.simulate:
        for begin, end, table in ((BEGIN, END, simulation()), (ROUNDS_BEGIN, ROUNDS_END, simulation_of_rounds())):
            print(table)
            if arguments.write:
                before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
                PAGE.write_text(before + begin + table + end + rest.partition(end)[2], encoding="utf-8")
        return
    result: dict[str, Any] = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "rounds": arguments.rounds,
        "steps": arguments.steps,
        "environment": {key: environment.environment()[key] for key in ("processor", "cores", "versions")},
        "jobs": {},
    }
    for name in JOBS:
        kept: dict[str, list[Record]] = {"A1": [], "A2": [], "B": []}
        with tempfile.TemporaryDirectory() as folder:
            for side, record in measured(name, arguments.rounds, arguments.steps, Path(folder)):
                kept[side].append(record)
        result["jobs"][name] = judged(kept)
        print("\n".join(tell(name, result["jobs"][name])), flush=True)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

"""Two ranks on loopback, predicted and measured: step time and exposed communication.

    python -m benchmarks.ranks --json benchmarks/results/ranks.json

The machine and its link are calibrated first, then each network is timed with two processes of one thread, several runs each. A
prediction counts as right within 10 % of the measured mean, or within the 80 % interval of the steps if that is wider. Larger
worlds share the two cores: they are reported, but do not count.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.calibrate.machine import calibrate_link, calibrate_once
from chronograd.data.trace_job import trace_job
from chronograd.job import Job, from_dict
from chronograd.launch import jobs
from chronograd.measure import environment
from chronograd.measure.result import Timing
from chronograd.predict.prediction import predict

# Network, global batch and shape of an image; small and large gradients, little and much work.
CASES = (
    ("resnet20", 64, (3, 32, 32)),
    ("small-cnn", 64, (3, 32, 32)),
    ("resnet18-cifar", 16, (3, 32, 32)),
    ("lenet5", 256, (1, 28, 28)),
)
AIM = 0.10
QUANTITIES = ("step_time_s", "communication_exposed_s")


def make_job(network: str, batch: int, shape: Sequence[int], world: int) -> Job:
    return from_dict(
        {
            "network": {"name": network},
            "data": {"name": "synthetic", "shape": list(shape), "classes": 10, "samples": 4 * batch},
            "training": {"recipe": "sgd-momentum", "batch": batch, "learning_rate": 0.01},
            "cluster": {"device": "local", "count": world, "threads": 1},
            "backend": "ddp" if world > 1 else "single",
        }
    )


def judged(predicted: float, runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return whether a prediction is within AIM of the mean of runs, or within their spread.

    The spread is from the lowest 10th to the highest 90th percentile of steps among the runs.
    """
    value = float(np.mean([run["value"] for run in runs]))
    low, high = min(run["low"] for run in runs), max(run["high"] for run in runs)
    error = predicted / value - 1 if value else None
    is_near = error is not None and abs(error) <= AIM
    return {
        "predicted": predicted,
        "measured": value,
        "low": low,
        "high": high,
        "error": error,
        "is_within_10_percent": is_near,
        "is_within_spread": low <= predicted <= high,
        "is_right": is_near or low <= predicted <= high,
    }


def case(network: str, batch: int, shape: Sequence[int], world: int, rounds: int, folder: Path) -> dict[str, Any]:
    job = make_job(network, batch, shape, world)
    predicted = predict(trace_job(job), job)
    runs = [
        jobs.measure(job, Timing(num_steps=30, seconds=20.0), out=folder / f"{network}-{world}-{i}").record()
        for i in range(rounds)
    ]
    found: dict[str, Any] = {"network": network, "batch": batch, "world": world, "rounds": rounds}
    for name in QUANTITIES:
        own = [{k: getattr(run[name], k) or 0.0 for k in ("value", "low", "high")} for run in runs]
        found[name] = judged(predicted.value(name), own)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--worlds", default="1,2,4")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    calibrate_once()
    calibrate_link()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for network, batch, shape in CASES:
            for world in map(int, arguments.worlds.split(",")):
                row = case(network, batch, shape, world, arguments.rounds, Path(folder))
                rows.append(row)
                words = []
                for name in QUANTITIES:
                    q = row[name]
                    error = "" if q["error"] is None else f" ({100 * q['error']:+.0f} %)"
                    verdict = "" if world != 2 else " right" if q["is_right"] else " wrong"
                    words.append(
                        f"{name} {1000 * q['predicted']:.1f} ms, measured {1000 * q['measured']:.1f} "
                        f"[{1000 * q['low']:.1f}, {1000 * q['high']:.1f}]{error}{verdict}"
                    )
                print(f"{network} × {world}: {'; '.join(words)}", flush=True)
    judged_rows = [row[name] for row in rows if row["world"] == 2 for name in QUANTITIES]
    print(f"{sum(q['is_right'] for q in judged_rows)} of {len(judged_rows)} right with two ranks")
    if arguments.json is not None:
        own = environment.environment()
        result = {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "rows": rows,
            "environment": {k: own[k] for k in ("processor", "cores", "versions")},
        }
        arguments.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

"""Steps to a target by batch size, and the measured gradient noise scale compared with the one that those steps imply.

    python -m benchmarks.batch_size --json benchmarks/results/batch_size.json

A perceptron and LeNet-5 train on Fashion-MNIST with plain SGD at a constant rate. Each batch size is trained at a grid of
learning rates with several seeds, because the theory assumes the best rate for each batch. A run ends when its test loss
reaches the target. S(B) = S_min + E_min/B is fitted to the steps at the best rate of each batch. The runs at that rate measure
the noise scale.

The test loss is evaluated on a geometric grid of steps. Between two evaluations the logarithm of the steps is interpolated.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from chronograd.data import datasets
from chronograd.data.datasets import Dataset
from chronograd.fit.batch_size import BatchRun, fewest_steps, fit_batches
from chronograd.fit.noise_scale import NoiseLog
from chronograd.job import Job, from_dict
from chronograd.record import Quantity
from chronograd.rundir import StepLine
from chronograd.train.loop import evaluate, seed_everything
from chronograd.train.noise_scale import GradientNoise
from chronograd.train.rank_context import RankContext
from chronograd.train.step import TrainingStep

# Network and target test loss: an early target, a later one, and another network. The results file keeps workloads that a run
# does not measure.
PERCEPTRON = "benchmarks.batch_size:perceptron"
WORKLOADS = ((PERCEPTRON, 0.6), (PERCEPTRON, 0.5), ("lenet5", 0.7))
BATCHES = (8, 16, 32, 64, 128, 256, 512)
# Multiples of the theoretical rate of a batch, RATE / (1 + GUESS/B).
FACTORS = (1.0, 0.5, 2.0, 0.7, 1.4)
RATE = 0.4
GUESS = 64
NUM_SEEDS = 3
NOISE_EVERY = 2
FIRST_LOOK = 16
GROWTH = 1.08
# A run that exceeds GIVE_UP times the steps of its batch's best rate ends, and its rate is not tried again.
GIVE_UP = 1.5
MAX_SAMPLES = 300_000


@dataclass(frozen=True)
class Trained:
    """One run. `steps` is None if it did not reach the target within its step limit."""

    batch: int
    learning_rate: float
    seed: int
    steps: float | None
    seconds: float
    noise_scale: Quantity


def perceptron(num_classes: int = 10, in_channels: int = 1, image_size: int = 28) -> nn.Module:
    """Return a network with one hidden layer of 64 units."""
    inputs = in_channels * image_size**2
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, num_classes))


def make_job(network: str, batch: int, rate: float, seed: int, test_samples: int) -> Job:
    return from_dict(
        {
            "network": {"name": network},
            "data": {"name": "fashion-mnist", "test_samples": test_samples},
            "training": {
                "recipe": "sgd",
                "batch": batch,
                "learning_rate": rate,
                "seed": seed,
                "epochs": math.ceil(MAX_SAMPLES / 60_000),
                "noise_scale_every": NOISE_EVERY,
            },
            "cluster": {"device": "cpu", "threads": 1},
        }
    )


def train(job: Job, dataset: Dataset, target_loss: float, most_steps: float) -> Trained:
    """Train until the target loss or `most_steps`."""
    training, start = job.training, time.perf_counter()
    place = RankContext(0, 1, torch.device("cpu"), 1)
    step = TrainingStep(job, dataset, place)
    seed_everything(training.seed)
    step.noise = GradientNoise(step)
    lines: list[StepLine] = []
    looks = [(0, evaluate(step, dataset, place)[0])]
    next_look = FIRST_LOOK
    reached = None
    for index in range(int(most_steps)):
        lines.append(StepLine(step=index + 1, **step.run(index)))
        if index + 1 < next_look:
            continue
        looks.append((index + 1, evaluate(step, dataset, place)[0]))
        next_look = math.ceil(next_look * GROWTH)
        if not math.isfinite(looks[-1][1]):
            break
        if looks[-1][1] <= target_loss:
            (s0, l0), (s1, l1) = looks[-2:]
            share = (l0 - target_loss) / (l0 - l1)
            reached = max(s0, 1) * (s1 / max(s0, 1)) ** share
            break
    noise = NoiseLog.of_lines([lines], len(dataset.train_labels)).quantity()
    return Trained(training.batch, training.learning_rate, training.seed, reached, time.perf_counter() - start, noise)


def sweep(
    network: str, target_loss: float, batches: Sequence[int], num_seeds: int, dataset: Dataset, test_samples: int
) -> list[Trained]:
    """Return all runs; for each batch the rate that theory expects comes first."""
    runs = []
    for batch in batches:
        best = MAX_SAMPLES / batch / GIVE_UP
        for factor in FACTORS:
            rate, own = round(factor * RATE / (1 + GUESS / batch), 4), list[Trained]()
            for seed in range(num_seeds):
                own.append(
                    train(make_job(network, batch, rate, seed, test_samples), dataset, target_loss, GIVE_UP * best)
                )
                told = "not reached" if own[-1].steps is None else f"{own[-1].steps:.0f} steps"
                print(f"batch {batch}, rate {rate}, seed {seed}: {told}, {own[-1].seconds:.1f} s", flush=True)
                if own[-1].steps is None:
                    break
            best = min(best, float(np.mean([math.inf if r.steps is None else r.steps for r in own])))
            runs += own
    return runs


def compared(runs: Sequence[Trained]) -> dict[str, Any]:
    """Fit S(B), and return a row for each batch with the noise scale at its best rate, averaged over seeds."""
    points = [
        BatchRun(f"{r.batch}/{r.learning_rate}/{r.seed}", r.batch, r.learning_rate, r.steps, 60_000, r.noise_scale)
        for r in runs
    ]
    best = fewest_steps(points)
    fitted = fit_batches(list(best), [steps for steps, _ in best.values()])
    rows = []
    for (batch, (steps, rate)), error in zip(best.items(), fitted.errors, strict=True):
        own = [r.noise_scale.value for r in runs if (r.batch, r.learning_rate) == (batch, rate)]
        known = [value for value in own if value is not None]
        rows.append({
            "batch": batch, "learning_rate": rate, "steps": steps, "fitted_steps": steps * (1 + float(error)),
            "samples": steps * batch, "measured_noise_scale": float(np.mean(known)) if known else None,
        })  # fmt: skip
    low, high = fitted.noise_scale_interval()
    measured = [row["measured_noise_scale"] for row in rows if row["measured_noise_scale"] is not None]
    middle = float(np.median(measured)) if measured else None
    scale = fitted.model.noise_scale
    return {
        "min_steps": fitted.model.min_steps,
        "min_samples": fitted.model.min_samples,
        "fitted_noise_scale": scale if math.isfinite(scale) else None,
        "fitted_noise_scale_low": low,
        "fitted_noise_scale_high": high if math.isfinite(high) else None,
        "measured_noise_scale": middle,
        "measured_over_fitted": middle / scale if middle is not None else None,
        "rows": rows,
    }


def table(found: dict[str, Any]) -> str:
    """Return the table as docs/convergence.md shows it."""
    lines = [
        "| batch | learning rate | steps | steps, S(B) | samples | noise scale measured |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in found["rows"]:
        measured = row["measured_noise_scale"]
        lines.append(
            f"| {row['batch']} | {row['learning_rate']:g} | {row['steps']:,.0f} | {row['fitted_steps']:,.0f} "
            f"| {row['samples']:,.0f} | {'–' if measured is None else f'{measured:.0f}'} |"
        )
    return "\n".join(lines)


def verdict(found: dict[str, Any]) -> str:
    def known(value: float | None) -> str:
        return "–" if value is None else f"{value:.0f}"

    names = ("fitted_noise_scale", "fitted_noise_scale_low", "fitted_noise_scale_high", "measured_noise_scale")
    fitted, low, high, measured = (known(found[name]) for name in names)
    ratio = found["measured_over_fitted"]
    return (
        f"The fit has S_min of {found['min_steps']:.0f} steps and a noise scale of {fitted} ({low} … {high}). "
        f"The median of the measured noise scale is {measured}"
        + ("." if ratio is None else f": {ratio:.2f} times that of the fit.")
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--workloads", type=int, nargs="+", default=list(range(len(WORKLOADS))), help="By number, from 0."
    )
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS)
    parser.add_argument("--test-samples", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    dataset = datasets.load(make_job(PERCEPTRON, 16, RATE, 0, arguments.test_samples).data)
    for network, target_loss in [WORKLOADS[number] for number in arguments.workloads]:
        name = network.rpartition(":")[2]
        print(f"{name}, test loss {target_loss}", flush=True)
        runs = sweep(network, target_loss, arguments.batches, arguments.seeds, dataset, arguments.test_samples)
        found = compared(runs)
        print(table(found), verdict(found), "", sep="\n\n", flush=True)
        if arguments.json:
            save(arguments.json, {
                "network": name, "data": "fashion-mnist", "target_test_loss": target_loss,
                "created": datetime.now(UTC).isoformat(timespec="seconds"), "seeds": arguments.seeds, **found,
                "runs": [{**asdict(r), "noise_scale": r.noise_scale.model_dump(exclude_defaults=True)} for r in runs],
            })  # fmt: skip


def save(path: Path, found: dict[str, Any]) -> None:
    """Write one workload, replacing its earlier results."""
    before = json.loads(path.read_text())["workloads"] if path.exists() else []
    key = ("network", "target_test_loss")
    kept = [w for w in before if any(w[name] != found[name] for name in key)]
    path.write_text(json.dumps({"workloads": [*kept, found]}, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()

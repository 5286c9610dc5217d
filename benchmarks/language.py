"""Small language models on real text: past runs for forecasts of new ones, and how good these forecasts are.

    python -m benchmarks.language --train [--runs FROM TO]
    python -m benchmarks.language --write
    python -m benchmarks.language --seeds [--json FILE]

--train trains the runs of the grid that benchmarks/results/language_runs.json lacks. --write creates
forecast/language_curves.json from them and prints the errors of forecasts of each run from the others. --seeds trains
examples/language.yaml with three seeds, and forecasts each from a third and a half of its run.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import pydoc_data
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.convergence import RESULTS, trained
from chronograd.data import datasets
from chronograd.forecast import language
from chronograd.forecast.forecasting import forecast
from chronograd.forecast.learning_curves import BITS_PER_BYTE, LearningCurve
from chronograd.forecast.loss import fit_loss
from chronograd.forecast.schedule import NAMES, schedule_of
from chronograd.job import NOVEL, TEXT_PREFIX, Job, from_dict, load
from chronograd.record import INTERVAL
from chronograd.rundir.steps import Epoch

EXAMPLE = Path(__file__).parents[1] / "examples" / "language.yaml"
SEEDS = RESULTS / "language.json"
NUM_SEEDS = 3
RUNS = RESULTS / "language_runs.json"
# A novel, and the reference of Python's syntax that every installation of Python has.
TEXTS = {"novel": NOVEL, "reference": f"{TEXT_PREFIX}{Path(pydoc_data.__path__[0]) / 'topics.py'}"}
TINY: dict[str, tuple[Any, ...]] = {
    "text": ("novel", "reference"),
    "tokenizer": ("bytes", "bytes", "pairs"),
    "size": ((32, 2), (48, 2), (64, 2), (48, 3)),
    "schedule": ("cosine", "cosine", "one_cycle", "wsd", "constant"),
    "learning_rate": (1e-3, 2e-3, 4e-3, 8e-3),
    "epochs": (8, 12, 16),
    "epoch_samples": (320, 512, 640),
    "batch": (8, 16),
    "length": (32,),
}
SMALL = {
    **TINY,
    "size": ((96, 3), (96, 3), (128, 4)),
    "learning_rate": (1e-3, 2e-3, 4e-3),
    "epochs": (9, 12),
    "epoch_samples": (640, 800),
    "batch": (16,),
    "length": (64,),
}
TEST_TOKENS = 16_384  # at most
# Rows as long as those of examples/language.yaml, whose settings no run has.
LONG = {**SMALL, "epoch_samples": (320, 480), "length": (128,)}
PARTS = ((42, TINY), (10, SMALL), (8, LONG))  # number of runs of each
NUM_RUNS = sum(count for count, _ in PARTS)


def grid() -> Iterator[tuple[str, Job]]:
    """Yield jobs by name, each with random choices that are the same in every call."""
    chance = random.Random(0)
    for number, choices in enumerate(choices for count, choices in PARTS for _ in range(count)):
        own = {name: chance.choice(values) if len(values) > 1 else values[0] for name, values in choices.items()}
        width, layers = own["size"]
        data = {
            "name": TEXTS[own["text"]],
            "shape": [own["length"]],
            "epoch_samples": own["epoch_samples"],
            "test_samples": min(256, TEST_TOKENS // own["length"]),
        }
        if own["tokenizer"] == "pairs":
            data |= {"tokenizer": "pairs", "classes": 512}
        training = {
            "recipe": "adamw",
            "checkpoint_every": own["epochs"],
            "seed": number,
            **{name: own[name] for name in ("schedule", "learning_rate", "epochs", "batch")},
        }
        name = ", ".join(f"{key} {value}" for key, value in own.items())
        network = {"name": "small-llama", "options": {"width": width, "layers": layers}}
        cluster = {"threads": 1}  # more would wait for each other on a machine that does other work
        yield name, from_dict({"network": network, "data": data, "training": training, "cluster": cluster})


def train(first: int, last: int) -> None:
    """Add the bits per byte after each epoch of the runs that RUNS lacks."""
    for name, job in list(grid())[first:last]:
        known = json.loads(RUNS.read_text()) if RUNS.exists() else {}
        if name in known:
            continue
        with tempfile.TemporaryDirectory() as folder:
            ends = trained(job, Path(folder)).read_steps(0).of(Epoch)
        size = datasets.card(job.data).bytes_per_token
        assert size is not None
        bits = [float(f"{(end.test_loss or 0.0) / size / math.log(2):.5g}") for end in ends]
        known = json.loads(RUNS.read_text()) if RUNS.exists() else {}
        RUNS.write_text(json.dumps({**known, name: bits}).replace('], "', '],\n"') + "\n")
        print(name, bits, flush=True)


def table() -> dict[str, Any]:
    """Return the runs as data of forecast/language_curves.json."""
    runs = []
    for name, bits in json.loads(RUNS.read_text()).items():
        own = dict(part.split(" ", 1) for part in name.replace("(", "").split(", ") if " " in part)
        text = f"{own['text']}, {own['tokenizer']}"
        runs.append({"name": name, "text": text, "kind": NAMES[own["schedule"]], "bits": bits})
    return {"source": f"benchmarks/results/{RUNS.name}", "runs": runs}


SEEN = (1 / 3, 0.5, 0.75)


def score(kinds: Sequence[str] = ("run", "text")) -> dict[str, dict[str, float]]:
    """Return errors of forecasts of the last value of each run, and the coverage of later values, without the run or its text.

    The errors are of bits, as shares: those of the language curves, of a power law of the run alone, and of its last value.
    """
    runs, rows = language.known_runs(), {}
    for what, share in itertools.product(kinds, SEEN):
        found = []
        for run in runs:
            count = int(share * len(run.steps) + 1e-9)
            if count >= language.MIN_POINTS:
                found.append([*_errors(run, count, _rules_without(run.name if what == "run" else run.group))])
        off, power, last, inside, points, width = np.array(found).T
        rows[f"{what} left out, from {share:.0%}"] = {
            "runs": len(found), "median_error": float(np.median(abs(off))), "bias": float(off.mean()),
            "power_law": float(np.median(abs(power))), "last_value": float(np.median(abs(last))),
            "coverage": float(inside.sum() / points.sum()), "width": float(np.median(width)),
        }  # fmt: skip
    return rows


@functools.cache
def _rules_without(name: str) -> language.Rules:
    """Return the rules without a run or the runs of a group."""
    return language.rules(tuple(run for run in language.known_runs() if name not in (run.name, run.group)))


def _errors(run: language.LanguageRun, count: int, rules: language.Rules) -> Iterator[float]:
    early, later = run.bits[:count], run.bits[count:]
    curve = language.LanguageCurve(run.schedule, run.steps[:count], early, rules)
    middle, paths = curve.middle(run.steps[count:]), curve.paths(run.steps[count:])
    low, high = np.quantile(paths, INTERVAL, axis=0)
    sums = run.schedule.at_full_rate(run.steps)
    power = fit_loss(sums[:count], early, "power", draws=0).at(float(sums[-1]))
    yield from (math.exp(middle[-1]) / later[-1] - 1, power / later[-1] - 1, early[-1] / later[-1] - 1)
    yield from (float(((low <= np.log(later)) & (np.log(later) <= high)).sum()), len(later), float(high[-1] - low[-1]))


def train_seeds() -> None:
    """Train examples/language.yaml with the seeds that SEEDS lacks, and store loss and bits per byte after each epoch."""
    for seed in range(NUM_SEEDS):
        known = json.loads(SEEDS.read_text()) if SEEDS.exists() else {}
        if str(seed) in known.get("seeds", {}):
            continue
        job = load(EXAMPLE, [f"training.seed={seed}", "cluster.threads=1"])
        with tempfile.TemporaryDirectory() as folder:
            ends = trained(job, Path(folder)).read_steps(0).of(Epoch)
        columns = ("epoch", "step", "seconds", "train_loss", "test_loss", "bits_per_byte")
        run = {name: [getattr(end, name) for end in ends] for name in columns}
        seeds = {**known.get("seeds", {}), str(seed): run}
        about = {"job": EXAMPLE.name, "digest": datasets.card(job.data).digest, "torch": torch.__version__}
        SEEDS.write_text(json.dumps({**about, "seeds": dict(sorted(seeds.items()))}, indent=1) + "\n")


def forecasts() -> list[dict[str, float]]:
    """Return forecasts of the last bits per byte of each seed, from a third and a half of its run."""
    rows = []
    for seed, run in json.loads(SEEDS.read_text())["seeds"].items():
        epochs, bits = np.array(run["epoch"], float), np.array(run["bits_per_byte"])
        schedule = schedule_of(load(EXAMPLE))
        curve = LearningCurve(f"seed {seed}", epochs, bits, "loss", "epoch", schedule, column=BITS_PER_BYTE)
        for share in (1 / 3, 0.5):
            made = forecast(curve, share + 1e-9)
            at = made.expected(float(epochs[-1]))
            rows.append({
                "seed": int(seed), "share": round(share, 3), "last": float(bits[-1]), "forecast": at.value, "low": at.low,
                "high": at.high, "error": at.value / float(bits[-1]) - 1, "inside": made.num_inside,
                "later": len(made.held_out),
            })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--runs", nargs=2, type=int, default=(0, NUM_RUNS))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--seeds", action="store_true")
    given = parser.parse_args()
    if given.write:
        language.FILE.write_text(json.dumps(table(), separators=(",", ":")).replace('{"name"', '\n{"name"') + "\n")
        for name, row in score().items():
            print(name, {key: round(value, 3) for key, value in row.items()})
    if given.seeds:
        train_seeds()
        for row in forecasts():
            print(" ".join(f"{name} {value:.4g}" for name, value in row.items()))
    if given.train:
        train(*given.runs)


if __name__ == "__main__":
    main()

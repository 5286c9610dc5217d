"""Training: samples per second of Chronograd's loop compared with a hand-written one, Lightning, Accelerate and Keras 3.

    python -m benchmarks.training [--steps N --rounds R --network NAME --batch B --threads T --json FILE]

All train the same network from the same weights, in fp32 on the CPU, on the same tensors in the same order, by SGD with
Nesterov momentum and weight decay. Before the clock starts the losses of their first steps are compared. Then, in every round,
every contender trains the same steps once, in an order that rotates. A ratio is paired within a round.

The clock runs from the end of a contender's warm-up steps to the end of its last step. It excludes imports, building, the first
batches, evaluation and checkpoints. Ours is one epoch of `chronograd.train.loop.train`, timed by the training clock in its log,
which it writes to a file as always. The hand-written loop, Lightning and Accelerate get images that are normalised once
beforehand; ours stores integers and normalises in every step.

Lightning runs in its `barebones` mode. Lightning and Accelerate load full batches by index, which is faster for them than
collating single samples. Keras wraps the same torch module (`TorchModuleWrapper`), so its layers are equal, and it gets arrays
in the right order. Its weight decay is decoupled, while the others add an L2 gradient: the work is the same, and losses differ
a little from the second step on. The output names contenders that are not installed.

The process keeps freed memory (glibc). Otherwise some runs return large activations to the system and fault them in again and
other runs do not, depending on the heap, which changes a step by a tenth.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import importlib.util
import json
import logging
import math
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

from chronograd import job as jobs
from chronograd.data import augment, datasets
from chronograd.data.datasets import Dataset
from chronograd.errors import RunError
from chronograd.measure import environment
from chronograd.models import registry
from chronograd.rundir import RunDir
from chronograd.train.loop import train
from chronograd.train.order import epoch_order
from chronograd.train.rank_context import RankContext
from chronograd.train.step import TrainingStep

# Network, batch and timed steps per round: about two seconds each on two cores. Small-cnn shows overhead.
WORKLOADS = (("resnet20", 64, 8), ("small-cnn", 64, 24))
WARMUP = 3  # steps before the clock starts
ROUNDS = 12
CHECKED = 3
AIM = 0.99
OURS, BY_HAND = "chronograd", "hand-written"
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 5e-4


# -- workloads -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workload:
    """One network and the tensors of one epoch. N samples, C channels, H rows, W columns.

    Attributes:
        job: its epoch has exactly the warm-up and timed steps.
        num_steps: number of warm-up and timed steps.
    """

    job: jobs.Job
    dataset: Dataset
    num_steps: int
    threads: int

    @property
    def batch(self) -> int:
        return self.job.training.batch

    @cached_property
    def order_N(self) -> Tensor:
        """Return the permutation of our loop's first epoch."""
        return torch.from_numpy(epoch_order(self.job.training.seed, 0, len(self.labels_N)))

    @cached_property
    def images_NCHW(self) -> Tensor:
        """Return the images as float32, normalised once."""
        data = self.dataset
        raw = data.train.batch(np.arange(len(self.labels_N)))
        return augment.normalise(raw, torch.tensor(data.scale_C), torch.tensor(data.shift_C))

    @property
    def labels_N(self) -> Tensor:
        return self.dataset.train_labels

    def network(self) -> nn.Module:
        """Return the network with the weights of the seed, in training mode."""
        torch.manual_seed(self.job.training.seed)
        card = self.dataset.card
        name, options = self.job.network.name, self.job.network.options
        return registry.build(name, options, input_shape=card.shape, num_classes=card.num_classes).train()

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            network.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY
        )

    def loader(self) -> DataLoader[Any]:
        """Return a loader of full batches by index, in our order."""
        batches = BatchSampler(self.order_N.tolist(), self.batch, drop_last=True)
        whole = WholeBatches(self.images_NCHW, self.labels_N)
        return DataLoader(whole, batch_sampler=batches, collate_fn=lambda batch: batch)


class WholeBatches(TensorDataset):
    """Dataset that returns all samples of a batch at once, so the loader collates nothing."""

    def __getitems__(self, samples: list[int]) -> tuple[Tensor, ...]:
        chosen = torch.tensor(samples)
        return tuple(tensor.index_select(0, chosen) for tensor in self.tensors)


def workload(network: str, batch: int, timed: int, threads: int, data: str) -> Workload:
    """Return a network and one epoch: the warm-up and `timed` steps. Data `auto` is CIFAR-10, or random if it is not
    installed.
    """
    num_steps = WARMUP + timed
    training = {
        "recipe": "sgd",
        "epochs": 1,
        "batch": batch,
        "learning_rate": LEARNING_RATE,
        "momentum": MOMENTUM,
        "nesterov": True,
        "weight_decay": WEIGHT_DECAY,
    }
    samples = {"samples": batch * num_steps, "test_samples": 64}
    kinds: dict[str, dict[str, Any]] = {
        "cifar10": {"name": "cifar10"},
        "synthetic": {"name": "synthetic", "shape": [3, 32, 32], "classes": 10},
    }
    for name in ("cifar10", "synthetic") if data == "auto" else (data,):
        job = jobs.from_dict(
            {"network": {"name": network}, "data": {**kinds[name], **samples}, "training": training,
             "cluster": {"device": "cpu", "threads": threads}}
        )  # fmt: skip
        try:
            return Workload(job, datasets.load(job.data), num_steps, threads)
        except RunError:
            if name == "synthetic" or data != "auto":
                raise
    raise AssertionError("synthetic data is always available")


# -- contenders: each returns the clock at the end of every step, and adds its losses to a list if given one ----------

Losses = list[float] | None
Contender = Callable[[Workload, Losses], list[float]]


def with_chronograd(work: Workload, losses: Losses) -> list[float]:
    """Train with our loop and its log on disk; evaluation and checkpoint come after the last step."""
    place = RankContext(0, 1, torch.device("cpu"), work.threads)
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir.create(work.job, out=Path(folder) / "run")
        step = TrainingStep(work.job, work.dataset, place)
        with run.step_writer() as lines:
            train(step, work.dataset, place, run, lines)
        log = run.read_steps().steps
    if losses is not None:
        losses += [line.needed("loss") for line in log]
    return [line.needed("seconds") for line in log]


def by_hand(work: Workload, losses: Losses) -> list[float]:
    """Train with typical plain PyTorch code; the loss is summed without reading it in between."""
    network = work.network()
    optimizer = work.optimizer(network)
    images_NCHW, labels_N = work.images_NCHW, work.labels_N
    loss_sum = torch.zeros(())
    ends = []
    for chosen in torch.split(work.order_N, work.batch):
        logits_NK = network(images_NCHW.index_select(0, chosen))
        loss = functional.cross_entropy(logits_NK, labels_N.index_select(0, chosen))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss_sum += loss.detach()
        if losses is not None:
            losses.append(loss.item())
        ends.append(time.perf_counter())
    assert math.isfinite(loss_sum.item()), f"the loss of {work.job.network.name} is not finite"
    return ends


def with_lightning(work: Workload, losses: Losses) -> list[float]:
    """Train with Lightning's `Trainer` in its mode for raw speed, automatic optimisation."""
    lightning: Any = importlib.import_module("lightning")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    ends = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = work.network()

        def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
            images_NCHW, labels_N = batch
            return functional.cross_entropy(self.network(images_NCHW), labels_N)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return work.optimizer(self.network)

    class Clock(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
            if losses is not None:
                losses.append(outputs["loss"].item())
            ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu", devices=1, max_epochs=1, barebones=True, callbacks=[Clock()], default_root_dir=folder
        )
        trainer.fit(Module(), work.loader())
    return ends


def with_accelerate(work: Workload, losses: Losses) -> list[float]:
    """Train with the hand-written loop, prepared by an `Accelerator`."""
    accelerate: Any = importlib.import_module("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="no")
    network = work.network()
    network, optimizer, loader = accelerator.prepare(network, work.optimizer(network), work.loader())
    loss_sum = torch.zeros(())
    ends = []
    for images_NCHW, labels_N in loader:
        loss = functional.cross_entropy(network(images_NCHW), labels_N)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        loss_sum += loss.detach()
        if losses is not None:
            losses.append(loss.item())
        ends.append(time.perf_counter())
    return ends


def with_keras(work: Workload, losses: Losses) -> list[float]:
    """Train with Keras' `fit` over the wrapped torch module; its log holds the mean loss since the first step."""
    os.environ["KERAS_BACKEND"] = "torch"
    keras: Any = importlib.import_module("keras")
    if keras.backend.backend() != "torch":
        raise RunError(
            f"keras runs on {keras.backend.backend()} in this process", "start again with KERAS_BACKEND=torch"
        )
    card = work.dataset.card
    ends: list[float] = []
    means: list[float] = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, index: int, logs: Any = None) -> None:
            if losses is not None:
                means.append(float(logs["loss"]))
            ends.append(time.perf_counter())

    wrapped = keras.layers.TorchModuleWrapper(work.network(), output_shape=(None, card.num_classes))
    model = keras.Sequential([keras.Input(card.shape), wrapped])
    model.compile(
        optimizer=keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    images_NCHW, labels_N = (t.index_select(0, work.order_N) for t in (work.images_NCHW, work.labels_N))
    model.fit(images_NCHW, labels_N, batch_size=work.batch, shuffle=False, verbose=0, callbacks=[Clock()])
    if losses is not None:
        sums = [mean * (i + 1) for i, mean in enumerate(means)]
        losses += [after - before for before, after in zip([0.0, *sums], sums, strict=False)]
    return ends


CONTENDERS: dict[str, Contender] = {
    OURS: with_chronograd,
    BY_HAND: by_hand,
    "lightning": with_lightning,
    "accelerate": with_accelerate,
    "keras": with_keras,
}
# Largest difference of a first loss from that of the hand-written loop. Keras: see the weight decay above.
TOLERANCES = {OURS: 1e-4, "lightning": 1e-4, "accelerate": 1e-4, "keras": 1e-3}


def installed() -> tuple[dict[str, Contender], list[str]]:
    """Return the installed contenders, and the names of the missing ones."""
    missing = [n for n in CONTENDERS if n not in (OURS, BY_HAND) and importlib.util.find_spec(n) is None]
    return {name: run for name, run in CONTENDERS.items() if name not in missing}, missing


# -- comparing -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratio:
    """Geometric mean over rounds of a ratio that is paired within each, and its 95 % interval."""

    value: float
    low: float
    high: float
    n: int

    @classmethod
    def paired(cls, ours: Sequence[float], other: Sequence[float]) -> Ratio:
        """Return the ratio by Student's t on the logarithms of `ours` / `other` in each round; one round has no interval.

        >>> Ratio.paired([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
        Ratio(value=2.0, low=2.0, high=2.0, n=3)
        """
        logs = [math.log(a / b) for a, b in zip(ours, other, strict=True)]
        mean, count = statistics.fmean(logs), len(logs)
        if count == 1:
            return cls(math.exp(mean), 0.0, math.inf, 1)
        half = float(stats.t.ppf(0.975, count - 1)) * statistics.stdev(logs) / math.sqrt(count)
        return cls(math.exp(mean), math.exp(mean - half), math.exp(mean + half), count)

    def to_json(self) -> dict[str, float | int | None]:
        high = self.high if math.isfinite(self.high) else None
        return {"value": self.value, "low": self.low, "high": high, "n": self.n}

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class Comparison:
    """Samples per second of every contender in every round."""

    work: Workload
    rates: dict[str, list[float]] = field(default_factory=dict)
    losses: dict[str, list[float]] = field(default_factory=dict)

    def ratios(self) -> dict[str, Ratio]:
        """Return our rate over each other's."""
        return {name: Ratio.paired(self.rates[OURS], rates) for name, rates in self.rates.items() if name != OURS}

    def to_json(self) -> dict[str, Any]:
        job = self.work.job
        return {
            "network": job.network.name,
            "data": job.data.name,
            "batch": job.training.batch,
            "timed_steps": self.work.num_steps - WARMUP,
            "samples_per_s": self.rates,
            "median_samples_per_s": {name: statistics.median(rates) for name, rates in self.rates.items()},
            "ratio": {name: ratio.to_json() for name, ratio in self.ratios().items()},
            "first_losses": self.losses,
            "verdict": verdict(self.ratios()),
        }


def first_losses(work: Workload, contenders: Mapping[str, Contender]) -> dict[str, list[float]]:
    """Return the first losses of each. Raises RunError if one differs from the hand-written loop by more than its tolerance."""
    found: dict[str, list[float]] = {}
    for name, run in contenders.items():
        losses: list[float] = []
        run(work, losses)
        if len(losses) != work.num_steps:
            raise RunError(f"{name} trained {len(losses)} steps instead of {work.num_steps}", "see its with_ function")
        found[name] = losses[:CHECKED]
    for name, losses in found.items():
        apart = max(abs(a - b) for a, b in zip(losses, found[BY_HAND], strict=True))
        if name != BY_HAND and not apart <= TOLERANCES[name]:
            raise RunError(
                f"{name} differs from the hand-written loop: losses {losses} and {found[BY_HAND]}",
                f"they may differ by {TOLERANCES[name]:g}; compare weights, order and optimizer",
            )
    return found


def in_turn(names: Sequence[str], round_: int) -> list[str]:
    """Return the order of a round: rotated by one each time, and reversed every second time, so that neighbours also change.

    >>> in_turn(["a", "b", "c"], 0), in_turn(["a", "b", "c"], 1), in_turn(["a", "b", "c"], 2)
    (['a', 'b', 'c'], ['a', 'c', 'b'], ['c', 'a', 'b'])
    """
    start = round_ % len(names)
    turned = [*names[start:], *names[:start]]
    return turned[::-1] if round_ % 2 else turned


def compare(work: Workload, contenders: Mapping[str, Contender], rounds: int, say: Callable[[str], None]) -> Comparison:
    """Compare the losses first, then return `rounds` of timed runs."""
    keep_freed_memory()
    with quiet():
        torch.set_num_threads(work.threads)
        found = Comparison(work, {name: [] for name in contenders}, first_losses(work, contenders))
        timed = (work.num_steps - WARMUP) * work.batch
        for round_ in range(rounds):
            for name in in_turn(list(contenders), round_):
                torch.set_num_threads(work.threads)
                gc.collect()
                ends = contenders[name](work, None)
                found.rates[name].append(timed / (ends[-1] - ends[WARMUP - 1]))
            latest = ", ".join(f"{name} {rates[-1]:,.0f}" for name, rates in found.rates.items())
            say(f"{work.job.network.name}, round {round_ + 1} of {rounds}: {latest} samples/s")
    return found


def keep_freed_memory() -> bool:
    """Make glibc's malloc take all memory from its heap and never trim it. Returns False for other C libraries."""
    trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return False
    return bool(mallopt(trim_threshold, 2**31 - 1) and mallopt(mmap_max, 0))


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the frameworks' advice about workers and loggers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def verdict(ratios: Mapping[str, Ratio]) -> str:
    """Return whether the aim is met, and how ours compares with each framework: level if the interval includes 1."""
    by_hand_ratio = ratios[BY_HAND]
    met = (
        "met" if by_hand_ratio.low >= AIM else "not significantly different" if by_hand_ratio.high >= AIM else "missed"
    )
    parts = [f"{by_hand_ratio} of the hand-written loop: aim of {AIM:g} {met}"]
    others = {name: ratio for name, ratio in ratios.items() if name != BY_HAND}
    ahead = [name for name, ratio in others.items() if ratio.low > 1]
    behind = [name for name, ratio in others.items() if ratio.high < 1]
    level = [name for name in others if name not in (*ahead, *behind)]
    for word, names in (("ahead of", ahead), ("level with", level), ("behind", behind)):
        parts += [f"{word} {', '.join(names)}"] if names else []
    return "; ".join(parts)


def table(found: Comparison) -> str:
    """Return a Markdown table."""
    lines = ["| contender | samples/s, median | ours / it, 95 % interval |", "| --- | ---: | ---: |"]
    ratios = found.ratios()
    for name, rates in found.rates.items():
        lines.append(f"| {name} | {statistics.median(rates):,.1f} | {ratios.get(name, '')} |")
    return "\n".join(lines)


# -- the command -----------------------------------------------------------------------------------------


def where(threads: int, packages: Sequence[str]) -> dict[str, Any]:
    """Return the conditions that are saved with every result."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": environment.processor_name(),
        "cores": environment.cores(),
        "threads": threads,
        "versions": {"python": sys.version.split()[0], **{name: version(name) for name in packages}},
    }


def run(arguments: argparse.Namespace, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Run every workload in turn."""
    contenders, missing = installed()
    packages = ["chronograd", "torch", "numpy", *(n for n in contenders if n not in (OURS, BY_HAND))]
    result = {**where(arguments.threads, packages), "warmup_steps": WARMUP, "not_installed": missing, "workloads": []}
    if missing:
        say(f"not installed and left out: {', '.join(missing)}; the extra `bench` has them")
    for network, batch, timed in chosen_workloads(arguments):
        work = workload(network, batch, timed, arguments.threads, arguments.data)
        found = compare(work, contenders, arguments.rounds, say)
        result["workloads"].append(found.to_json())
        lengths = f"batch {batch}, {timed} steps in {arguments.rounds} rounds, threads: {arguments.threads}"
        say(f"\n{network} on {work.job.data.name}, {lengths}\n")
        say(f"{table(found)}\n\n{network}: {verdict(found.ratios())}\n")
    return result


def chosen_workloads(arguments: argparse.Namespace) -> list[tuple[str, int, int]]:
    """Return the default workloads, or the requested network, batch and steps."""
    rows = list(WORKLOADS)
    if arguments.network:
        rows = [row for row in WORKLOADS if row[0] == arguments.network] or [(arguments.network, 64, 16)]
    return [(network, arguments.batch or batch, arguments.steps or timed) for network, batch, timed in rows]


def at_least(least: int) -> Callable[[str], int]:
    """Return a parser of integers with a lower limit."""

    def parse(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return int(text)

    return parse


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=at_least(1), help="steps timed per round; by default about two seconds of them")
    parser.add_argument("--rounds", type=at_least(1), default=ROUNDS)
    parser.add_argument("--network", help="only this one")
    parser.add_argument("--batch", type=at_least(1), help="64 by default")
    parser.add_argument("--threads", type=at_least(1), default=min(2, environment.cores()))
    parser.add_argument("--data", choices=("auto", "cifar10", "synthetic"), default="auto")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file to save the measurements of each round")
    arguments = parser.parse_args(argv)
    result = run(arguments, lambda line: print(line, flush=True))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Input: augmented images per second of Chronograd compared with torchvision in a DataLoader, and the input's share of a step.

    python -m benchmarks.input [--rounds R --seconds S --copies M --shares NETWORK --json FILE]

Both pad CIFAR-10 images in memory by 4, crop, flip, normalise and cut out a square of 16. Ours is
`chronograd.train.inputs.ImageInput` on whole batches in the training process, including its random draws. The other is
RandomCrop, RandomHorizontalFlip, ToTensor, Normalize and the Cutout of its authors, image by image, in a DataLoader with worker
processes, as in their training script. With M copies its worker augments a sample M times.

Rates are paired within each round. The DataLoader's clock starts after its prefetched batches, and stops while
workers are still busy, so it measures a steady stream. Nothing else runs meanwhile: in training the workers would share the
cores with the network. The share of a step comes from `chronograd.measure.steps`: seconds of the part `input` over those of the
whole step, with the same augmentation, the network and the update.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from benchmarks.training import Ratio, at_least, keep_freed_memory, where
from chronograd import job as jobs
from chronograd.data import augment, datasets
from chronograd.data.datasets import Dataset
from chronograd.errors import RunError
from chronograd.job import Augmentation
from chronograd.measure import environment
from chronograd.measure.result import Timing
from chronograd.measure.steps import time_steps
from chronograd.rundir import Line, StepLine
from chronograd.train.inputs import ImageInput
from chronograd.train.order import SampleOrder
from chronograd.train.rank_context import RankContext
from chronograd.train.step import TrainingStep

# Endless batches of a pipeline: float32 of shape (N, C, H, W), with copies (M * N, C, H, W) or (N, M, C, H, W).
Batches = Generator[Tensor, None, None]
PADDING, SIDE = 4, 16
# Copies M and samples per batch: the settings of cutout and of batch augmentation.
SETTINGS = ((1, 128), (32, 64))
AIM_RATIO, AIM_SHARE = 20.0, 0.02
ROUNDS = 8
SECONDS = 1.0
PREFETCH = 2  # batches that each worker reads ahead: the default of a DataLoader
# Networks to time at batch 128, and the number of steps.
SHARES = (("resnet20", 12), ("resnet44", 8))
SHARE_BATCH, SHARE_WARMUP = 128, 2
# Largest difference of the two pipelines' pixel mean and deviation, in units of the deviation, over CHECKED images.
TOLERANCE = 0.05
CHECKED = 4096


def job_of(network: str, copies: int, batch: int, threads: int, data: dict[str, Any]) -> jobs.Job:
    """Return a job with the compared augmentation."""
    augmentation = {"crop": PADDING, "flip": True, "cutout": SIDE, "copies": copies}
    return jobs.from_dict(
        {
            "network": {"name": network},
            "data": data,
            "training": {"recipe": "cifar-augmented", "batch": batch, "augmentation": augmentation},
            "cluster": {"device": "cpu", "threads": threads},
        }
    )


def images(kind: str) -> tuple[dict[str, Any], Dataset]:
    """Return the fields that name the data, and CIFAR-10, or random images of its shape if it is not installed."""
    cifar10: dict[str, Any] = {"name": "cifar10"}
    drawn: dict[str, Any] = {"name": "synthetic", "shape": [3, 32, 32], "classes": 10, "samples": 10_000}
    for data in (cifar10, drawn) if kind == "auto" else (cifar10 if kind == "cifar10" else drawn,):
        try:
            return data, datasets.load(jobs.Data(**data))
        except RunError:
            if kind != "auto" or data is drawn:
                raise
    raise AssertionError("synthetic data is always available")


# -- ours ------------------------------------------------------------------------------------------------


def our_batches(dataset: Dataset, augmentation: Augmentation, batch: int) -> Batches:
    """Yield the network's input for each step: float32 of shape (M * N, C, H, W)."""
    device = torch.device("cpu")
    train_input = ImageInput(dataset.train, dataset, device, augmentation=augmentation)
    order = SampleOrder(0, len(dataset.train_labels), batch)
    step = 0
    while True:
        raw = train_input.gather(order.samples(step))
        draws = torch.from_numpy(augment.draw(augmentation, 0, step, batch))
        yield train_input.prepare(raw, draws)
        step += 1


# -- theirs ----------------------------------------------------------------------------------------------


class Cutout:
    """A square of zeros at a random place of a normalised image, as in the code of its authors.

    Source: T. DeVries and G. Taylor, github.com/uoguelph-mlrg/Cutout, util/cutout.py, with one hole.
    """

    def __init__(self, side: int) -> None:
        self.side = side

    def __call__(self, image_CHW: Tensor) -> Tensor:
        height, width = image_CHW.shape[1:]
        mask_HW = np.ones((height, width), np.float32)
        row, column = np.random.randint(height), np.random.randint(width)
        top, bottom = np.clip(row - self.side // 2, 0, height), np.clip(row + self.side // 2, 0, height)
        left, right = np.clip(column - self.side // 2, 0, width), np.clip(column + self.side // 2, 0, width)
        mask_HW[top:bottom, left:right] = 0.0
        return image_CHW * torch.from_numpy(mask_HW).expand_as(image_CHW)


def transforms(dataset: Dataset) -> Callable[[Any], Tensor]:
    """Return the transforms from a Pillow image to the network's input, with the mean and deviation of our input."""
    from torchvision import transforms as vision

    deviation_C = [1 / (255 * scale) for scale in dataset.scale_C]
    mean_C = [shift * deviation for shift, deviation in zip(dataset.shift_C, deviation_C, strict=True)]
    chain: Callable[[Any], Tensor] = vision.Compose(
        [
            vision.RandomCrop(32, padding=PADDING),
            vision.RandomHorizontalFlip(),
            vision.ToTensor(),
            vision.Normalize(mean_C, deviation_C),
            Cutout(SIDE),
        ]
    )
    return chain


class Augmented(TorchDataset[Tensor]):
    """Images in sequence like torchvision's CIFAR10: from an array, through Pillow, through the transforms.

    With M copies an item has shape (M, C, H, W), and each copy is augmented independently.
    """

    def __init__(self, dataset: Dataset, copies: int) -> None:
        raw_NCHW = dataset.train.batch(np.arange(len(dataset.train)))
        self.pixels_NHWC = raw_NCHW.permute(0, 2, 3, 1).contiguous().numpy()
        self.transform = transforms(dataset)
        self.copies = copies

    def __len__(self) -> int:
        return len(self.pixels_NHWC)

    def __getitem__(self, index: int) -> Tensor:
        from PIL import Image

        image = Image.fromarray(self.pixels_NHWC[index])
        if self.copies == 1:
            return self.transform(image)
        return torch.stack([self.transform(image) for _ in range(self.copies)])


def their_batches(augmented: Augmented, batch: int, workers: int) -> Batches:
    """Yield shuffled batches from worker processes, epoch after epoch."""
    loader = DataLoader(
        augmented,
        batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        prefetch_factor=PREFETCH if workers else None,
    )
    while True:
        yield from loader


# -- comparing -------------------------------------------------------------------------------------------


def images_per_s(batches: Batches, skipped: int, seconds: float) -> float:
    """Return images over time, from the end of the `skipped`-th batch for `seconds` and the rest of the current batch."""
    with closing(batches):
        for _ in range(skipped):
            next(batches)
        num_images, start, elapsed = 0, time.perf_counter(), 0.0
        while elapsed < seconds:
            num_images += next(batches).shape[:-3].numel()
            elapsed = time.perf_counter() - start
        return num_images / elapsed


def check_alike(dataset: Dataset) -> dict[str, float]:
    """Return mean and deviation of both pipelines' pixels. Raises RunError if their distributions differ."""
    ours = our_batches(dataset, Augmentation(crop=PADDING, flip=True, cutout=SIDE), 128)
    theirs = their_batches(Augmented(dataset, 1), 128, 0)
    (mean, deviation), (other_mean, other_deviation) = _moments(ours), _moments(theirs)
    if max(abs(mean - other_mean), abs(deviation - other_deviation)) > TOLERANCE * other_deviation:
        raise RunError(
            f"the pipelines differ: mean {mean:.4f} and {other_mean:.4f}, deviation {deviation:.4f} and "
            f"{other_deviation:.4f}",
            "compare normalisation and augmentation",
        )
    return {"mean": mean, "their_mean": other_mean, "deviation": deviation, "their_deviation": other_deviation}


def _moments(batches: Batches) -> tuple[float, float]:
    """Return mean and deviation of the pixels of CHECKED images."""
    taken: list[Tensor] = []
    while sum(len(seen_NCHW) for seen_NCHW in taken) < CHECKED:
        taken.append(next(batches))
    pixels = torch.cat(taken)
    return pixels.mean().item(), pixels.std().item()


def compare(
    dataset: Dataset, copies: int, batch: int, arguments: argparse.Namespace, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run both pipelines in turn, with a different first one in each round."""
    augmentation = Augmentation(crop=PADDING, flip=True, cutout=SIDE, copies=copies)
    augmented = Augmented(dataset, copies)
    ahead = PREFETCH * max(1, arguments.workers)

    def ours() -> float:
        return images_per_s(our_batches(dataset, augmentation, batch), 3, arguments.seconds)

    def theirs() -> float:
        return images_per_s(their_batches(augmented, batch, arguments.workers), ahead, arguments.seconds)

    rates: dict[str, list[float]] = {"chronograd": [], "torchvision": []}
    for round_ in range(arguments.rounds):
        turns = [("chronograd", ours), ("torchvision", theirs)]
        for name, measure in turns[:: -1 if round_ % 2 else 1]:
            rates[name].append(measure())
        say(
            f"M = {copies}, round {round_ + 1}: "
            + ", ".join(f"{n} {r[-1]:,.0f}" for n, r in rates.items())
            + " images/s"
        )
    ratio = Ratio.paired(rates["chronograd"], rates["torchvision"])
    return {
        "copies": copies,
        "batch": batch,
        "images_per_s": rates,
        "median_images_per_s": {name: statistics.median(values) for name, values in rates.items()},
        "ratio": ratio.to_json(),
        "verdict": verdict(ratio),
    }


def verdict(ratio: Ratio) -> str:
    """Return whether the rate meets the aim."""
    met = "met" if ratio.low >= AIM_RATIO else "not significantly different" if ratio.high >= AIM_RATIO else "missed"
    return f"{ratio.value:.1f} ({ratio.low:.1f} to {ratio.high:.1f}), aim of {AIM_RATIO:g} {met}"


# -- share of a step -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Share:
    """Input time over step time: median, 10th and 90th percentile of n steps."""

    value: float
    low: float
    high: float
    n: int
    step_time_s: float
    input_s: float

    @classmethod
    def of_lines(cls, lines: Sequence[Line]) -> Share:
        """Return the share from the lines of `time_steps`; input includes loading, moving and preparing images."""
        steps = [line for line in lines if isinstance(line, StepLine)]
        inputs = [step.needed("input_s") + step.needed("transfer_s") for step in steps]
        wholes = [step.needed("step_time_s") for step in steps]
        low, middle, high = np.quantile([a / b for a, b in zip(inputs, wholes, strict=True)], [0.1, 0.5, 0.9])
        return cls(
            float(middle), float(low), float(high), len(steps), statistics.median(wholes), statistics.median(inputs)
        )


def share(network: str, num_steps: int, data: dict[str, Any], dataset: Dataset, threads: int) -> Share:
    """Return the share for the steps of a network at batch 128 with the augmentation above, one copy."""
    job = job_of(network, 1, SHARE_BATCH, threads, data)
    step = TrainingStep(job, dataset, RankContext(0, 1, torch.device("cpu"), threads))
    lines: list[Line] = []
    time_steps(step, Timing(SHARE_WARMUP, num_steps, seconds=600.0), lines.append)
    return Share.of_lines(lines)


# -- the command -----------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Return the rates for every number of copies, then the shares."""
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    data, dataset = images(arguments.data)
    about = where(arguments.threads, ["chronograd", "torch", "torchvision", "pillow", "numpy"])
    pixels = check_alike(dataset)
    rates = [
        compare(dataset, copies, batch, arguments, say) for copies, batch in SETTINGS if copies in arguments.copies
    ]
    say(f"\n{data['name']}, threads: {arguments.threads}, workers: {arguments.workers}, {arguments.rounds} rounds\n")
    say(table(rates))
    shares = {}
    for network, num_steps in SHARES:
        if network not in arguments.shares:
            continue
        found = share(network, num_steps, data, dataset, arguments.threads)
        shares[network] = {"batch": SHARE_BATCH, **vars(found)}
        met = "met" if found.value <= AIM_SHARE else "missed"
        say(
            f"{network}, batch {SHARE_BATCH}: input is {100 * found.value:.2f} % ({100 * found.low:.2f} to "
            f"{100 * found.high:.2f}) of a step of {found.step_time_s:.3f} s, {found.n} steps; "
            f"aim of {100 * AIM_SHARE:g} % {met}"
        )
    return {
        **about,
        "data": data["name"],
        "workers": arguments.workers,
        "pixels": pixels,
        "rates": rates,
        "shares": shares,
    }


def table(rates: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table."""
    lines = ["| M | batch | chronograd, images/s | torchvision, images/s | ratio, 95 % interval |"]
    lines.append("| ---: | ---: | ---: | ---: | --- |")
    for row in rates:
        medians = row["median_images_per_s"]
        lines.append(
            f"| {row['copies']} | {row['batch']} | {medians['chronograd']:,.0f} | {medians['torchvision']:,.0f} | "
            f"{row['verdict']} |"
        )
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least(1), default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each pipeline in each round")
    parser.add_argument("--threads", type=at_least(1), default=min(2, environment.cores()))
    parser.add_argument("--workers", type=at_least(0), default=2, help="of the DataLoader")
    copies, networks = [m for m, _ in SETTINGS], [network for network, _ in SHARES]
    parser.add_argument("--copies", nargs="*", type=int, choices=copies, default=copies, help="M; both by default")
    parser.add_argument("--shares", nargs="*", choices=networks, default=networks, help="networks; both by default")
    parser.add_argument("--data", choices=("auto", "cifar10", "synthetic"), default="auto")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file to save the measurements of each round")
    arguments = parser.parse_args(argv)
    result = run(arguments, lambda line: print(line, flush=True))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

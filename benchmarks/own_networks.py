"""Networks written for this page alone, none of a library: predicted from this machine's calibration, timed by a plain loop.

    python -m benchmarks.own_networks --out own.json [--rounds 3] [--threads 1 2] [--only gpt lstm]
    python -m benchmarks.own_networks --out own.json --score [--predict]

The loop is the usual one of PyTorch, without this product: forward, loss, backward, SGD with momentum, on one batch that stays
in memory. Each round times all networks, each in a new process, in wall time and in CPU time. A network's time is the
median over rounds. The prediction leaves out the input, which the loop does not have.

Each time is scaled by the speed of the machine, probed before and after it, to the speed during calibration: on a virtual machine,
speed changes by half within minutes. `as timed` are errors without this.

A run of this product keeps the memory that it frees (`chronograd.keep_freed_memory`), and its predictions assume this. So each
network is timed with and without (`plain`): by default, glibc returns large tensors to the system, which then clears their pages
again for the next step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from chronograd.calibrate import pace
from chronograd.count.tracing import trace
from chronograd.inputs import Input
from chronograd.job import from_dict
from chronograd.measure.memory import keep_freed_memory
from chronograd.predict.prediction import predict
from chronograd.predict.setting import setting_of

SECONDS = 0.6
WAYS = ("kept", "plain")  # whether glibc keeps freed memory
RECURRENT = ("lstm", "gru", "bilstm", "rnn")


@dataclass(frozen=True)
class Case:
    """A network that returns its loss. `inputs`: shape of one sample, or (shape, number of classes) of whole numbers."""

    network: Callable[[], nn.Module]
    inputs: tuple[Any, ...]
    batch: int


def _conv(i: int, o: int, k: int = 3, groups: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(i, o, k, padding=k // 2, groups=groups, bias=False), nn.BatchNorm2d(o), nn.ReLU())


class UNet(nn.Module):
    """Segmentation of two classes, with transposed convolutions on the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([_conv(3, 16), _conv(16, 32), _conv(32, 64)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)])
        self.back = nn.ModuleList([_conv(64, 32), _conv(32, 16)])
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        a = self.down[0](x)
        b = self.down[1](F.max_pool2d(a, 2))
        x = self.down[2](F.max_pool2d(b, 2))
        x = self.back[0](torch.cat([self.up[0](x), b], 1))
        x = self.back[1](torch.cat([self.up[1](x), a], 1))
        return F.cross_entropy(self.head(x), mask)


class Block(nn.Module):
    """A transformer block before normalisation."""

    def __init__(self, width: int, heads: int, is_causal: bool) -> None:
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, c))
        perceptron: Tensor = self.mlp(self.norm2(x))
        return x + perceptron


class GPT(nn.Module):
    def __init__(self, vocabulary: int = 2000, width: int = 192, length: int = 128) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.Sequential(*[Block(width, 6, True) for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.head(self.norm(self.blocks(self.tokens(x) + self.places)))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


class ViT(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.places = nn.Parameter(torch.zeros(64, width))
        self.blocks = nn.Sequential(*[Block(width, 4, False) for _ in range(5)])
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.blocks(self.patches(x).flatten(2).transpose(1, 2) + self.places)
        return F.cross_entropy(self.head(x.mean(1)), y)


class Mixer(nn.Module):
    def __init__(self, width: int = 128, patches: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)

        def mlp(n: int, hidden: int) -> nn.Module:
            return nn.Sequential(nn.Linear(n, hidden), nn.GELU(), nn.Linear(hidden, n))

        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(8)])
        self.over_patches = nn.ModuleList([mlp(patches, 64) for _ in range(4)])
        self.over_channels = nn.ModuleList([mlp(width, 512) for _ in range(4)])
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for i in range(4):
            x = x + self.over_patches[i](self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + self.over_channels[i](self.norms[2 * i + 1](x))
        return F.cross_entropy(self.head(x.mean(1)), y)


class Depthwise(nn.Module):
    """Inverted residuals with 5 × 5 depthwise convolutions."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.ModuleList(
            nn.Sequential(
                _conv(width, 4 * width, 1), _conv(4 * width, 4 * width, 5, 4 * width), _conv(4 * width, width, 1)
            )
            for _ in range(4)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return F.cross_entropy(self.head(x.mean((2, 3))), y)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(3, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 4, 2, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1)
        )
        self.decode = nn.Sequential(
            nn.ReLU(), nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.mse_loss(self.decode(self.encode(x)), x)


class Video(nn.Module):
    """Three-dimensional convolutions over short clips."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv3d(3, 16, 3, padding=1), nn.BatchNorm3d(16), nn.ReLU(), nn.MaxPool3d(2),
            nn.Conv3d(16, 32, 3, padding=1), nn.BatchNorm3d(32), nn.ReLU(), nn.MaxPool3d(2),
            nn.Conv3d(32, 64, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.layers(x).mean((2, 3, 4))), y)


class TwoInputs(nn.Module):
    """A picture and a row of a table, in one classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.picture = nn.Sequential(_conv(3, 24), nn.MaxPool2d(2), _conv(24, 48), nn.MaxPool2d(2), _conv(48, 64))
        self.table = nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 64))
        self.head = nn.Linear(128, 5)

    def forward(self, image: Tensor, row: Tensor, y: Tensor) -> Tensor:
        both = torch.cat([self.picture(image).mean((2, 3)), self.table(row)], 1)
        return F.cross_entropy(self.head(both), y)


class MLP(nn.Module):
    """A regression on a table at a small batch."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [64, 512, 512, 256, 1]
        layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(sizes[:-1])]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-2], 1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.smooth_l1_loss(self.layers(x), y)


class TextConv(nn.Module):
    """Convolutions of three widths over words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5000, 96)
        self.convs = nn.ModuleList([nn.Conv1d(96, 96, k) for k in (3, 4, 5)])
        self.head = nn.Linear(288, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.words(x).transpose(1, 2)
        return F.cross_entropy(self.head(torch.cat([F.relu(c(x)).amax(2) for c in self.convs], 1)), y)


class Recurrent(nn.Module):
    """A label for each word of a sentence."""

    def __init__(self, kind: Callable[..., nn.Module], width: int, hidden: int, **options: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(3000, width)
        self.layer = kind(width, hidden, batch_first=True, **options)
        self.head = nn.Linear(hidden * (2 if options.get("bidirectional") else 1), 20)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        states: Tensor = self.layer(self.words(x))[0]
        return F.cross_entropy(self.head(states).flatten(0, 1), y.flatten())


_IMAGE, _LABEL = (3, 64, 64), ((), 4)
CASES = {
    "unet": Case(UNet, (_IMAGE, ((64, 64), 2)), 8),
    "gpt": Case(GPT, (((128,), 2000), ((128,), 2000)), 4),
    "vit": Case(ViT, (_IMAGE, _LABEL), 8),
    "mixer": Case(Mixer, (_IMAGE, _LABEL), 8),
    "depthwise": Case(Depthwise, (_IMAGE, _LABEL), 8),
    "autoencoder": Case(Autoencoder, (_IMAGE,), 16),
    "video": Case(Video, ((3, 8, 32, 32), _LABEL), 4),
    "two-inputs": Case(TwoInputs, ((3, 48, 48), (40,), _LABEL), 16),
    "mlp": Case(MLP, ((64,), (1,)), 32),
    "text-conv": Case(TextConv, (((60,), 5000), _LABEL), 32),
    "lstm": Case(lambda: Recurrent(nn.LSTM, 64, 128), (((50,), 3000), ((50,), 20)), 16),
    "gru": Case(lambda: Recurrent(nn.GRU, 96, 192, num_layers=2), (((40,), 3000), ((40,), 20)), 32),
    "bilstm": Case(lambda: Recurrent(nn.LSTM, 128, 96, bidirectional=True), (((30,), 3000), ((30,), 20)), 8),
    "rnn": Case(lambda: Recurrent(nn.RNN, 64, 256), (((64,), 3000), ((64,), 20)), 8),
}
MODES = ("training", "inference")


def tensors(case: Case, batch: int) -> list[Tensor]:
    def of(given: Any) -> Tensor:
        if given and isinstance(given[0], tuple):
            return torch.randint(given[1], (batch, *given[0]))
        return torch.randn(batch, *given)

    return [of(given) for given in case.inputs]


def timed(name: str, mode: str, threads: int, way: str) -> dict[str, float]:
    """Return the median wall and CPU seconds of a step, in this process."""
    if way == "kept":
        keep_freed_memory()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    case = CASES[name]
    network, batch = case.network(), tensors(case, case.batch)
    network.train(mode == "training")
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        if mode == "inference":
            with torch.inference_mode():
                network(*batch).item()
            return
        optimizer.zero_grad()
        network(*batch).backward()
        optimizer.step()

    for _ in range(3):
        step()
    laps = pace.Laps()
    times: list[tuple[float, float]] = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times) < 5:
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    walls, cpus = zip(*times, strict=True)
    return {"wall_s": statistics.median(walls), "cpu_s": statistics.median(cpus), "pace_s": laps.lap()}


def predicted(name: str, mode: str, threads: int) -> dict[str, Any]:
    """Return the predicted seconds of a step without its input, with the interval of 80 %."""
    case = CASES[name]
    given = [
        Input(of[0], "int64") if of and isinstance(of[0], tuple) else Input(tuple(of), "float32") for of in case.inputs
    ]
    job = from_dict(
        {
            "mode": mode,
            "network": {"name": "lenet5"},
            "data": {"name": "synthetic", "shape": [1, 28, 28], "classes": 10, "samples": 2 * case.batch},
            "training": {"batch": case.batch, "precision": "fp32", "recipe": "sgd", "momentum": 0.9},
            "cluster": {"device": "local", "threads": threads},
        }
    )
    record = predict(trace(case.network(), given, mode=mode), job)
    step = record["step_time_s"]
    value = step.value or 0.0
    low, high = step.low or value, step.high or value
    parts = [record[name].value for name in ("input_s", "transfer_s") if name in record.quantities]
    share = 1 - sum(part or 0.0 for part in parts) / value
    notes = [text for text in record.notes if "of the time" in text]
    setting = setting_of(job)
    return {
        "seconds": value * share,
        "low": low * share,
        "high": high * share,
        "pace_s": setting.calibration.provenance["pace_s"] * setting.alone,
        "notes": notes,
    }


def measure(path: Path, rounds: int, threads: list[int], only: list[str]) -> None:
    saved: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"timed": {}}
    command = [sys.executable, "-m", "benchmarks.own_networks", "--time"]
    for _ in range(rounds):
        for count, name, mode in itertools.product(threads, only, MODES):
            row = {}
            for way in WAYS:
                words = [*command, name, mode, str(count), way]
                row[way] = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)
            saved["timed"].setdefault(f"{name}, {mode}, {count}", []).append(row)
        path.write_text(json.dumps(saved, indent=1))


def again(path: Path) -> None:
    """Predict every timed case from the calibration of this machine."""
    saved = json.loads(path.read_text())
    saved["predicted"] = {}
    for key in saved["timed"]:
        name, mode, count = key.split(", ")
        saved["predicted"][key] = predicted(name, mode, int(count))
    path.write_text(json.dumps(saved, indent=1))


def score(path: Path) -> None:
    saved = json.loads(path.read_text())
    console = Console(width=130)
    heads = ("predicted, ms", "wall, ms", "CPU per thread, ms", "rounds", "plain, ms", "wall", "CPU", "inside")
    table = Table("network, mode, threads", *heads)
    rows: dict[str, list[tuple[float, ...]]] = {}
    for key, timings in saved["timed"].items():
        name, mode, count = key.split(", ")
        guess = saved["predicted"][key]

        def at_pace(way: str, clock: str, timings: Any = timings, guess: Any = guess) -> list[float]:
            return [t[way][clock] * guess["pace_s"] / t[way]["pace_s"] for t in timings]

        walls = at_pace("kept", "wall_s")
        wall, plain = statistics.median(walls), statistics.median(at_pace("plain", "wall_s"))
        cpu = statistics.median(at_pace("kept", "cpu_s")) / int(count)
        as_timed = statistics.median(t["kept"]["wall_s"] for t in timings)
        errors = [guess["seconds"] / s - 1 for s in (wall, cpu, as_timed, plain)]
        is_inside = guess["low"] <= wall <= guess["high"]
        numbers = [f"{1e3 * s:.2f}" for s in (guess["seconds"], wall, cpu)]
        spread = f"{100 * (max(walls) / min(walls) - 1):.0f} %"
        percents = [f"{100 * e:+.0f} %" for e in errors[:2]]
        table.add_row(key, *numbers, spread, f"{1e3 * plain:.2f}", *percents, "yes" if is_inside else "")
        kind = "recurrent" if name in RECURRENT else "other"
        for group in (f"{kind}, {mode}, {count} threads", kind):
            rows.setdefault(group, []).append((*errors, is_inside))
    console.print(table)
    sums = Table("mean error (bias) of", "cases", "wall", "CPU", "as timed", "plain", "inside 80 %")
    for kind, of in sorted(rows.items()):
        *by_clock, inside = (np.array(column, dtype=float) for column in zip(*of, strict=True))
        cells = [f"{100 * np.abs(e).mean():.1f} % ({100 * np.expm1(np.log1p(e).mean()):+.1f})" for e in by_clock]
        sums.add_row(kind, str(len(of)), *cells, f"{100 * inside.mean():.0f} %")
    console.print(sums)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("own_networks.json"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--score", action="store_true", help="only print the results in --out")
    parser.add_argument("--predict", action="store_true", help="predict again from the calibration of this machine")
    parser.add_argument("--time", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.time:
        name, mode, count, way = given.time
        print(json.dumps(timed(name, mode, int(count), way)))
        return
    if not given.score:
        measure(given.out, given.rounds, given.threads, given.only)
    if given.predict or not given.score:
        again(given.out)
    score(given.out)


if __name__ == "__main__":
    main()

"""Figures of docs/concepts: one function each, from formulas, counted networks, published figures and a study.

    python -m benchmarks.concepts
    python -m benchmarks.concepts inception staleness

This module times and trains nothing. Model results are drawn as predicted, and figures from papers as reference.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.figure import Bar, Bars, Figure, Lines, Mark, Picture, PictureRow, Pictures, Series, png_base64
from chronograd.hardware import catalog
from chronograd.predict import collectives, paleo
from chronograd.predict.speed import SpeedModel
from chronograd.reinforce.agent import epsilon_ladder
from chronograd.reinforce.replay import ProportionalReplay, Transitions
from chronograd.reinforce.replay.prioritised import importance_weights
from chronograd.report import plots
from chronograd.simulate.simulations import panel
from chronograd.simulate.staleness import of_pushes
from chronograd_lab.common.results import Results
from chronograd_lab.studies.gorila_and_apex import study as gorila_and_apex

FOLDER = Path(__file__).parent.parent / "docs" / "concepts"
LINK = "ethernet-25g"
GRADIENT_BYTES = 4 * 25_557_032  # ResNet-50 in fp32
OPTIMUS_RESNET50 = (1.02, 2.78, 4.92, 0.0, 0.02)  # Optimus, EuroSys 2018: synchronous

FIGURES: dict[str, Callable[[], Figure]] = {}


def figure(make: Callable[[], Figure]) -> Callable[[], Figure]:
    """Register a function as the figure of a page, by its name."""
    FIGURES[make.__name__.replace("_", "-")] = make
    return make


def line(label: str, x: Sequence[float], y: Sequence[float], color: str = "", joined: bool = True) -> Series:
    """Return the line of a model; `joined` marks its points."""
    return Series(label, "measured" if joined else "predicted", list(x), list(y), color=color, is_joined=joined)


# -- actors and learners ---------------------------------------------------------------------------


@figure
def prioritised_replay() -> Figure:
    """Draw formulas as lines and samples of our replay as points."""
    priorities, numbers = np.array([4.0, 2.0, 1.0, 1.0]), [1, 2, 3, 4]
    powers = {alpha: priorities**alpha / (priorities**alpha).sum() for alpha in (0.0, 0.6, 1.0)}
    colors = {0.0: "grey", 0.6: "teal", 1.0: "orange"}
    chances = [
        line(f"α = {alpha:g}", numbers, chance.tolist(), colors[alpha], joined=False)
        for alpha, chance in powers.items()
    ]
    drawn = Series("drawn, α = 1", "measured", numbers, draws_of(priorities).tolist(), color="orange")
    weights = [
        line(f"β = {beta:g}", numbers, importance_weights(powers[1.0], beta).tolist(), color, joined=False)
        for beta, color in ((0.4, "teal"), (1.0, "orange"))
    ]
    return Figure(
        [
            Lines("transition", "probability", [*chances, drawn], from_zero=True, x_ticks=numbers),
            Lines("transition", "weight", weights, from_zero=True, x_ticks=numbers),
        ]
    )


def draws_of(priorities: np.ndarray, draws: int = 8000) -> np.ndarray:
    """Return how often ProportionalReplay drew each item, as shares; draws of size one, α = 1."""
    count = len(priorities)
    replay = ProportionalReplay(count, alpha=1.0)
    fields = np.arange(count, dtype=np.float32)
    replay.add(Transitions(fields, np.zeros(count, np.int64), fields, fields, fields), priorities)
    random = np.random.default_rng(0)
    found = np.concatenate([replay.sample(1, random).indices for _ in range(draws)])
    shares: np.ndarray = np.bincount(found, minlength=count) / draws
    return shares


# -- several devices -------------------------------------------------------------------------------


@figure
def all_reduce() -> Figure:
    link, ranks = catalog.link(LINK), 16
    sizes = np.logspace(3, 9, 25)
    algorithms = {
        "reduce to one": (collectives.reduce_to_one, "vermilion"), "tree": (collectives.tree, "brown"),
        "recursive doubling": (collectives.recursive_doubling, "purple"), "ring": (collectives.ring, "teal"),
        "halving and doubling": (collectives.halving_doubling, "accent"),
    }  # fmt: skip
    series = []
    for name, (time_s, color) in algorithms.items():
        times = [1e3 * float(time_s(s, ranks, link.latency_s, link.bandwidth_bytes_per_s)) for s in sizes]
        series.append(line(name, (sizes / 1e6).tolist(), times, color, joined=False))
    marks = [Mark("x", GRADIENT_BYTES / 1e6, "ResNet-50")]
    return Figure([Lines("gradients of a rank, MB", "time, ms", series, marks, log_x=True, log_y=True)])


@figure
def strong_and_weak_scaling() -> Figure:
    """Draw both scalings for a device with 300 samples/s, a ring, and 5 ms per step that do not shrink."""
    link, workers = catalog.link(LINK), [1, 2, 4, 8, 16, 32, 64]

    def step_s(batch: float, n: int) -> float:
        exchange_s = collectives.ring(GRADIENT_BYTES, n, link.latency_s, link.bandwidth_bytes_per_s)
        return 0.005 + batch / 300 + float(exchange_s)

    def speed_up(batch: Callable[[int], float], n: int) -> float:
        return n * batch(n) / step_s(batch(n), n) / (batch(1) / step_s(batch(1), 1))

    ways = {"weak: 64 each": (lambda n: 64.0, "teal"), "strong: 64 in all": (lambda n: 64.0 / n, "vermilion")}
    lines = {name: ([speed_up(batch, n) for n in workers], color) for name, (batch, color) in ways.items()}
    ideal = Series("ideal", "reference", workers, workers)
    times = [line(name, workers, values, color) for name, (values, color) in lines.items()]
    shares = [
        line(name, workers, [100 * v / n for v, n in zip(values, workers, strict=True)], color)
        for name, (values, color) in lines.items()
    ]
    return Figure(
        [
            Lines("devices", "times the throughput of one", [*times, ideal], log_x=True, log_y=True, x_ticks=workers),
            Lines("devices", "efficiency, %", shares, log_x=True, from_zero=True, x_ticks=workers),
        ]
    )


@figure
def parameter_servers_and_staleness() -> Figure:
    return Figure([panel(of_pushes(((1.0, 2.0, 3.0, 4.0), (2.5, 5.0))), 2)])


@figure
def optimus_models() -> Figure:
    epochs = np.arange(0, 41)
    losses = {b0: 1 / (b0 * epochs + 0.4) + 0.1 for b0 in (0.1, 0.3, 0.9)}
    curves = [
        line(f"β0 = {b0}", epochs.tolist(), values.tolist(), color, joined=False)
        for (b0, values), color in zip(losses.items(), ("teal", "purple", "vermilion"), strict=True)
    ]
    workers, model = list(range(1, 21)), SpeedModel("synchronous", OPTIMUS_RESNET50, 128)
    speeds = [
        line(f"{p} servers", workers, [1e3 * float(model.steps_per_s(w, p)) for w in workers], color)
        for p, color in ((2, "rose"), (4, "accent"))
    ]
    return Figure(
        [
            Lines("epoch", "loss", [*curves, Series("β2", "reference", [0, 40], [0.1, 0.1])], from_zero=True),
            Lines("workers", "steps per 1,000 s", speeds, from_zero=True, x_ticks=[1, 4, 7, 10, 15, 20]),
        ]
    )


# -- counting and peaks ----------------------------------------------------------------------------


def _shares(network: str) -> dict[str, dict[str, float]]:
    from chronograd.count.cached import cached_trace
    from chronograd.count.layers import layers

    rows = [row for row in layers(cached_trace(network)) if row.macs]
    sums: dict[str, dict[str, float]] = {}
    for row in rows:
        kind = "fully connected" if row.kind == "gemm" else "convolution"
        for what, amount in (("MACs", row.macs), ("parameters", row.params)):
            sums.setdefault(what, {}).setdefault(kind, 0.0)
            sums[what][kind] += amount
    return {what: {kind: 100 * v / sum(by.values()) for kind, v in by.items()} for what, by in sums.items()}


@figure
def macs_and_flops() -> Figure:
    bars = [
        Bar(f"{network}: {what}", "measured", shares)
        for network in ("alexnet", "vgg19", "resnet50")
        for what, shares in _shares(network).items()
    ]
    colors = {"convolution": "teal", "fully connected": "orange"}
    return Figure([Bars("share, %", "network", bars, colors)])


@figure
def percent_of_peak() -> Figure:
    from chronograd.count.cached import cached_trace

    platform = paleo.platform_of(catalog.device("k80"), 1.25e9, 1.0, 1.0)
    peak, memory = platform.peak_flops_per_s, platform.bandwidth_bytes_per_s
    names = {"vgg16": "teal", "resnet50-v1": "purple", "googlenet": "vermilion"}
    series = []
    for name, color in names.items():
        points = []
        for layer in paleo.layers(cached_trace(name)):
            flops, moved = (float(v.sum()) for v in (layer.forward.flops, layer.forward.moved_bytes))
            points.append((flops / moved, flops / layer.forward.seconds(1, platform) / 1e12))
        x, y = zip(*sorted(points), strict=True)
        series.append(Series(name, "predicted", x, y, color=color, is_scatter=True))
    intensity = np.logspace(-1, 3, 30)
    roof = np.minimum(peak, memory * intensity) / 1e12
    series.append(Series("roof", "reference", intensity.tolist(), roof.tolist()))
    marks = [Mark("y", 0.62 * peak / 1e12, "62 % of peak")]
    return Figure([Lines("FLOPs per byte", "TFLOP/s", series, marks, log_x=True, log_y=True)])


def whole_and_sum_us(kernel_us: float, launch_us: float = 5.0, wait_us: float = 10.0, count: int = 50) -> tuple[float, float]:  # fmt: skip
    """Return two times in µs for `count` equal layers: launched together with one wait, and with a wait after each layer.

    The device starts a layer when it is launched and the previous one has finished. A wait adds the time to notice the end.

    >>> whole_and_sum_us(100, count=2), whole_and_sum_us(1, count=2)
    ((215.0, 230.0), (21.0, 32.0))
    """
    done = 0.0
    for layer in range(1, count + 1):
        done = max(layer * launch_us, done) + kernel_us
    return done + wait_us, count * (launch_us + kernel_us + wait_us)


@figure
def layer_timings() -> Figure:
    kernels = np.logspace(0, 3.3, 24)
    pairs = [whole_and_sum_us(float(k)) for k in kernels]
    x = kernels.tolist()
    whole = line("whole pass", x, [a / 1e3 for a, _ in pairs], "teal", joined=False)
    summed = line("sum of layers", x, [b / 1e3 for _, b in pairs], "vermilion", joined=False)
    ratio = line("sum over whole", x, [b / a for a, b in pairs], "accent", joined=False)
    return Figure(
        [
            Lines("a layer on the device, µs", "50 layers, ms", [whole, summed], log_x=True, log_y=True),
            Lines("a layer on the device, µs", "sum over whole pass", [ratio], log_x=True, from_zero=True),
        ]
    )


# -- architectures ---------------------------------------------------------------------------------


@figure
def inception() -> Figure:
    side, depth = 32, 256

    def macs(kernel: int, inputs: int, outputs: int) -> float:
        return side * side * kernel * kernel * inputs * outputs / 1e6

    naive = {"1×1": macs(1, depth, 128), "3×3": macs(3, depth, 192), "5×5": macs(5, depth, 96)}
    reduced = {
        "1×1": macs(1, depth, 128), "3×3": macs(3, 64, 192), "5×5": macs(5, 64, 96),
        "reductions": 2 * macs(1, depth, 64), "after pooling": macs(1, depth, 64),
    }  # fmt: skip
    bars = [
        Bar(name, "measured", parts, note=f"{sum(parts.values()):,.1f} M")
        for name, parts in (("naive", naive), ("with reductions", reduced))
    ]
    colors = {"1×1": "blue", "3×3": "teal", "5×5": "orange", "reductions": "vermilion", "after pooling": "purple"}
    return Figure([Bars("MACs, millions", "module", bars, colors)])


@figure
def receptive_fields() -> Figure:
    stacked = list(range(1, 7))
    colors = {3: "teal", 5: "vermilion", 7: "purple"}
    fields = [line(f"{f}×{f}", stacked, [n * f - n + 1 for n in stacked], color) for f, color in colors.items()]
    sides = [3, 5, 7, 9, 11, 13]
    one = line("one filter", sides, [s * s for s in sides], "brown")
    three = line("stacked 3×3", sides, [9 * (s - 1) // 2 for s in sides], "teal")
    return Figure(
        [
            Lines("filters on each other", "side of what is seen", fields, from_zero=True, x_ticks=stacked),
            Lines("side of what is seen", "weights / channels²", [one, three], from_zero=True, x_ticks=sides),
        ]
    )


# -- recipes ---------------------------------------------------------------------------------------


def _flower() -> Path:
    """Return the path of scikit-learn's photo without importing scikit-learn, which takes seconds."""
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "datasets" / "images" / "flower.jpg"


@figure
def cutout_and_dropout() -> Figure:
    import torch
    from PIL import Image

    from chronograd.data import augment
    from chronograd.job import Augmentation
    from chronograd_lab.studies.cutout.study import hidden_share

    side, hole, count = 32, 16, 5
    photo = torch.from_numpy(np.array(Image.open(_flower()))).permute(2, 0, 1)[None, :, 13:413, 110:510]
    small = torch.nn.functional.interpolate(photo.float(), size=(side, side), mode="area")
    images = small.repeat(count, 1, 1, 1)
    ones, zeros = torch.ones(3), torch.zeros(3)

    def pictures(augmentation: Augmentation) -> list[Picture]:
        draws = torch.from_numpy(augment.draw(augmentation, 3, 0, count))
        seen = augment.augment(images, augmentation, draws, ones, zeros, torch.Generator().manual_seed(0))
        pixels = seen.clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy()
        return [Picture("", png_base64(p)) for p in pixels]

    plain = Augmentation(crop=0, flip=False, cutout=0)
    dropped = round(hidden_share(side, hole), 4)
    rows = [
        PictureRow("as it is", pictures(plain)[:1]),
        PictureRow("cutout of 16", pictures(plain.model_copy(update={"cutout": hole}))),
        PictureRow("as many pixels", pictures(plain.model_copy(update={"pixel_dropout": dropped}))),
    ]
    return Figure([Pictures(rows)])


@figure
def batch_augmentation() -> Figure:
    copies = [1, 2, 4, 8, 16, 32]
    colors = {0.0: "teal", 0.3: "accent", 0.6: "purple", 0.9: "vermilion"}
    series = [
        line(f"correlation {rho:g}", copies, [rho + (1 - rho) / m for m in copies], color)
        for rho, color in colors.items()
    ]
    return Figure(
        [Lines("copies M", "variance over that of M = 1", series, log_x=True, from_zero=True, x_ticks=copies)]
    )


@figure
def label_noise() -> Figure:
    """Draw the effect of replacing a share of labels with uniform draws from all classes."""
    replaced = np.linspace(0, 1, 21)
    panels = []
    for classes in (10, 1000):
        right, other = 100 * (1 - replaced + replaced / classes), 100 * replaced / classes
        panels.append(
            Lines(
                "labels replaced, %",
                "labels of a class's images, %",
                [
                    line("the right class", (100 * replaced).tolist(), right.tolist(), "teal", joined=False),
                    line("each other class", (100 * replaced).tolist(), other.tolist(), "vermilion", joined=False),
                ],
                from_zero=True,
                title=f"{classes:,} classes",
            )
        )
    return Figure(panels)


@figure
def resampling() -> Figure:
    from chronograd.data.labels import zipf_counts
    from chronograd.train.order import class_shares

    classes = 1000
    counts = np.asarray(zipf_counts(10_000_000, classes, 1.0), dtype=np.int64)
    shares = {
        "natural": (class_shares(counts, "natural"), "vermilion"),
        "square root": (class_shares(counts, "square_root"), "purple"),
        "uniform": (class_shares(counts, "uniform"), "teal"),
    }
    ranks = list(range(1, classes + 1))
    series = [
        line(name, ranks, [100 * share / int(counts.sum()) for share in of_class], color, joined=False)
        for name, (of_class, color) in shares.items()
    ]
    return Figure([Lines("rank of the class", "share of an epoch, %", series, log_x=True, log_y=True)])


@figure
def weakly_and_semi_supervised() -> Figure:
    """Draw the ImageNet top-1 of released models: the README of the authors' repository (Yalniz et al. 2019)."""
    names = ["ResNet-18", "ResNet-50", "ResNeXt-50 32×4", "ResNeXt-101 32×4", "ResNeXt-101 32×8", "ResNeXt-101 32×16"]
    x = list(range(len(names)))
    series = [
        line("semi-supervised", x, [72.8, 79.3, 80.3, 81.0, 81.7, 81.9], "teal"),
        line("semi-weakly supervised", x, [73.4, 81.2, 82.2, 83.4, 84.3, 84.8], "vermilion"),
    ]
    return Figure([Lines("student", "ImageNet top-1, %", series, x_ticks=x, x_names=names)])


CLASSES = 20
UNLABELLED = 60_000
SEPARATION = 3.0


def selection(per_class: Sequence[int], candidates: Sequence[int]) -> tuple[list[float], dict[int, float]]:
    """Return for a simulated teacher the share of right labels for each K at the largest P, and the smallest class for each P.

    The smallest class is taken at the largest K. Unlabelled images have classes by Zipf's law. A score is a normal number,
    larger by SEPARATION for the image's own class. So an easy image has a high score, and a hard one may score higher for
    another class.
    """
    random = np.random.default_rng(0)
    weights = 1 / np.arange(1, CLASSES + 1)
    truth = random.choice(CLASSES, UNLABELLED, p=weights / weights.sum())
    scores = random.normal(size=(UNLABELLED, CLASSES))
    scores[np.arange(UNLABELLED), truth] += SEPARATION
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    place = (-scores).argsort(axis=1).argsort(axis=1)
    ranked = {
        p: [sorted(np.flatnonzero(place[:, c] < p), key=lambda i: -scores[i, c]) for c in range(CLASSES)]
        for p in candidates
    }
    right = []
    for k in per_class:
        labels = [truth[i] == c for c, images in enumerate(ranked[max(candidates)]) for i in images[:k]]
        right.append(100 * float(np.mean(labels)))
    most = max(per_class)
    return right, {p: float(min(len(images[:most]) for images in ranked[p])) for p in candidates}


@figure
def teacher_and_student() -> Figure:
    per_class, candidates = [100, 200, 400, 800, 1600, 3200], [1, 2, 3, 5]
    right, smallest = selection(per_class, candidates)
    return Figure(
        [
            Lines("images kept per class, K", "labels that are right, %", [line("right", per_class, right, "teal")],
                  log_x=True, x_ticks=per_class),
            Lines("classes per image, P", "images of the smallest class",
                  [line("smallest", candidates, [smallest[p] for p in candidates], "purple"),
                   Series("K", "reference", [1, 5], [max(per_class)] * 2)],
                  from_zero=True, x_ticks=candidates),
        ]
    )  # fmt: skip


@figure
def fine_tuning_or_frozen() -> Figure:
    """Draw the GFLOPs of ResNet-50 per image, summed over epochs."""
    from chronograd.count.cached import cached_trace

    trace = cached_trace("resnet50")
    forward, backward = (trace.flops(1, phase) / 1e9 for phase in ("forward", "backward"))
    head = 3 * 2 * 2048 * 1000 / 1e9
    epochs = [1, 3, 10, 30, 100, 300]
    ways = {
        "fine-tuned": ([e * (forward + backward) for e in epochs], "vermilion"),
        "frozen, drawn anew": ([e * (forward + head) for e in epochs], "purple"),
        "frozen, features kept": ([forward + e * head for e in epochs], "teal"),
    }
    series = [line(name, epochs, values, color) for name, (values, color) in ways.items()]
    return Figure([Lines("epochs", "GFLOPs per image", series, log_x=True, log_y=True, x_ticks=epochs)])


# -- agents ----------------------------------------------------------------------------------------


@figure
def episodic_and_continuing_tasks() -> Figure:
    steps = np.unique(np.round(np.logspace(0, 4, 81)))
    discounts = {0.9: "vermilion", 0.99: "teal", 0.999: "accent"}
    series = [
        line(f"γ = {g}", steps.tolist(), ((1 - g**steps) / (1 - g)).tolist(), color, joined=False)
        for g, color in discounts.items()
    ]
    endless = Series("no discount", "reference", steps.tolist(), steps.tolist())
    return Figure([Lines("steps of the episode", "return", [*series, endless], log_x=True, log_y=True)])


@figure
def exploration_and_exploitation() -> Figure:
    pulls = np.unique(np.round(np.logspace(0, 3, 40))).astype(int)
    colors = {"ε = 0": "vermilion", "ε = 0.01": "purple", "ε = 0.1": "orange", "ε = 1/√t": "teal"}
    paid = mean_payouts()
    payouts = [
        line(name, pulls.tolist(), paid[name][pulls - 1].tolist(), color, joined=False)
        for name, color in colors.items()
    ]
    million = np.linspace(0, 2e6, 41)
    falling = line(
        "deep Q-learning",
        (million / 1e6).tolist(),
        np.maximum(0.1, 1 - 0.9 * million / 1e6).tolist(),
        "accent",
        joined=False,
    )
    ladder = [
        Series("actors of Ape-X" if i == 0 else "", "reference", [0, 2], [epsilon, epsilon])
        for i, epsilon in enumerate(epsilon_ladder(8))
    ]
    return Figure(
        [
            Lines("pulls", "mean payout", payouts, log_x=True),
            Lines("million steps", "ε", [falling, *ladder], log_y=True),
        ]
    )


def mean_payouts(bandits: int = 1000, pulls: int = 1000) -> dict[str, np.ndarray]:
    """Return the mean payout so far by ε, averaged over bandits.

    Each bandit has ten levers with mean payouts drawn from N(0, 1); a lever pays its mean plus N(0, 1).
    """
    schedules: dict[str, Callable[[int], float]] = {
        "ε = 0": lambda t: 0.0, "ε = 0.01": lambda t: 0.01, "ε = 0.1": lambda t: 0.1, "ε = 1/√t": lambda t: t**-0.5
    }  # fmt: skip
    each = np.arange(bandits)
    made = {}
    for name, epsilon in schedules.items():
        random = np.random.RandomState(0)
        worth = random.standard_normal((bandits, 10))
        values, counts = np.zeros((bandits, 10)), np.zeros((bandits, 10))
        paid = np.zeros(pulls)
        for t in range(1, pulls + 1):
            tries = random.random_sample(bandits) < epsilon(t)
            chosen = np.where(tries, random.randint(0, 10, bandits), values.argmax(axis=1))
            got = worth[each, chosen] + random.standard_normal(bandits)
            counts[each, chosen] += 1
            values[each, chosen] += (got - values[each, chosen]) / counts[each, chosen]
            paid[t - 1] = got.mean()
        made[name] = np.cumsum(paid) / np.arange(1, pulls + 1)
    return made


@figure
def q_learning_and_deep_q_learning() -> Figure:
    bins = [2, 4, 8, 16, 32, 64, 100]
    sizes = [
        line("a table", bins, [2.0 * b**4 for b in bins], "orange"),
        Series("a network of 64, 64", "reference", [2, 100], [5 * 64 + 65 * 64 + 65 * 2] * 2),
    ]
    return Figure([Lines("bins of each number", "values, parameters", sizes, log_x=True, log_y=True, x_ticks=bins)])


@figure
def dqn_line_by_line() -> Figure:
    """Draw line 13 of the 2013 and the 2015 algorithm."""
    errors = np.linspace(-3, 3, 61)
    losses: dict[str, tuple[Any, Any, str]] = {
        "2013: squared": (errors**2 / 2, errors, "orange"),
        "2015: cut at 1": (np.where(abs(errors) < 1, errors**2 / 2, abs(errors) - 0.5), errors.clip(-1, 1), "teal"),
    }
    panels = [
        [line(name, errors.tolist(), own.tolist(), color, joined=False) for name, own, color in curves]
        for curves in (
            [(name, loss, color) for name, (loss, _, color) in losses.items()],
            [(name, gradient, color) for name, (_, gradient, color) in losses.items()],
        )
    ]
    return Figure([Lines("error y − Q", "loss", panels[0]), Lines("error y − Q", "gradient", panels[1])])


@figure
def why_a_target_network() -> Figure:
    updates = list(range(301))
    every = {0: "vermilion", 10: "purple", 100: "teal"}
    series = [
        line("no copy" if c == 0 else f"a copy every {c}", updates, chased(c, len(updates)), color, joined=False)
        for c, color in every.items()
    ]
    return Figure([Lines("updates", "value that should be 0", series, log_y=True)])


def chased(copy_every: int, count: int, discount: float = 0.99, rate: float = 0.1) -> list[float]:
    """Return the learned value w where the next state's value is 2w: Tsitsiklis and Van Roy 1997. Without reward w should be 0.

    Each update moves w towards its target γ · 2w', where w' is w itself or a copy of it made every `copy_every` updates.
    """
    w = copied = 1.0
    values = []
    for update in range(count):
        values.append(w)
        if copy_every == 0 or update % copy_every == 0:
            copied = w
        w += rate * (discount * 2 * copied - w)
    return values


@figure
def why_replay() -> Figure:
    sweeps, points = 60, 200
    orders = {"in their order": (False, "vermilion"), "drawn at random": (True, "teal")}
    series = [
        line(name, list(range(1, sweeps + 1)), learned_errors(is_shuffled, sweeps, points), color, joined=False)
        for name, (is_shuffled, color) in orders.items()
    ]
    return Figure([Lines("sweeps over all samples", "root mean square error", series, from_zero=True)])


def learned_errors(is_shuffled: bool, sweeps: int, points: int) -> list[float]:
    """Return the error over a full sine wave after each sweep of gradient descent, one sample at a time, in order or shuffled.

    The network has 32 hidden tanh units. Start, rate and number of updates are the same in both cases.
    """
    random = np.random.RandomState(0)
    x = np.linspace(-1, 1, points)
    y = np.sin(3 * np.pi * x)
    inner, bias, outer = (
        4 * random.standard_normal(32),
        2 * random.standard_normal(32),
        0.1 * random.standard_normal(32),
    )
    errors = []
    for _ in range(sweeps):
        order = random.randint(0, points, points) if is_shuffled else np.arange(points)
        for i in order:
            hidden = np.tanh(inner * x[i] + bias)
            error = hidden @ outer - y[i]
            back = error * outer * (1 - hidden**2)
            outer = outer - 0.03 * error * hidden
            inner, bias = inner - 0.03 * back * x[i], bias - 0.03 * back
        errors.append(float(np.sqrt(np.mean((np.tanh(np.outer(x, inner) + bias) @ outer - y) ** 2))))
    return errors


@figure
def gorila_and_ape_x() -> Figure:
    """Draw a point for each run of the study."""
    rows = Results.load(FOLDER.parent / "studies" / gorila_and_apex.STUDY.name / "results.json").rows["runs"]
    agents = (gorila_and_apex.GORILA, gorila_and_apex.APEX)
    panels = []
    for label, name, times in (
        ("age of a gradient, updates", "staleness", 1.0),
        ("kB an update", "agents_bytes_per_update", 1e-3),
        ("draws of the highest tenth, %", "agents_draws_of_top_tenth", 1e2),
    ):
        series = []
        for place, agent in enumerate(agents):
            # Gradients of a single learner have no staleness: each is applied to the parameters that produced it.
            values = [times * (row[name] or 0.0) for row in rows if row["agent"] == agent]
            color = gorila_and_apex.COLORS[agent]
            series.append(Series(agent, "measured", [place] * len(values), values, color=color))
        panels.append(Lines("", label, series, from_zero=True, x_ticks=[0, 1], x_names=agents))
    return Figure(panels)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *FIGURES], metavar="NAME", help="all by default")
    for name in parser.parse_args(argv).names or FIGURES:
        path = FOLDER / f"{name}.svg"
        plots.save(FIGURES[name](), path)
        print(path.relative_to(FOLDER.parent.parent))


if __name__ == "__main__":
    main()

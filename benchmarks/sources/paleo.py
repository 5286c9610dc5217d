"""PALEO's published cases: the figures of its released code for its networks and platforms, and measured training.

Figures of the code: GEMM only, no cuDNN heuristics. Qi, Sparks, Talwalkar, ICLR 2017. Measured: Krizhevsky 2014,
arXiv:1404.5997, table 1 (90 epochs of AlexNet on K20s); Iandola et al. 2016, FireCaffe (speed-up of NiN on K20Xs).
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.sources import Row, row_of
from chronograd.count.network import trace_network
from chronograd.predict.collectives import tree
from chronograd.predict.paleo import Cost, PaleoLayer, PaleoNetwork, Platform, layers, step_parts_s, update_s
from chronograd.trace import Trace
from chronograd.units import GIB

# Name, our figure, the code's figure.
Case = tuple[str, float, float]
IMAGENET_TRAIN = 1_281_167
# At most half a unit of the third digit.
THREE_DIGITS = 0.005
# GFLOPS and GB/s, and Gbit/s, of the released code's platforms.
DEVICES = {"titan-x": (6144, 336.5), "k20": (3520, 208), "k20x": (3935, 250), "k40": (4290, 288), "k80": (5600, 480)}
LINKS = {"ethernet": 10, "ethernet-20": 20, "infiniband": 70, "pcie2": 64, "pcie3": 128}


def rows(folder: Path) -> list[Row]:
    """Return the rows of PALEO's cases. Ignores `folder`: the cases are formulas and need no table."""
    reproduced, measured = list(cases()), list(comparisons())
    return [
        row_of("PALEO", "formulas, against its released code", THREE_DIGITS, *_ratios(reproduced)),
        row_of("PALEO", "formulas, against the measurements in its paper", None, *_ratios(measured)),
    ]


def _ratios(found: list[Case]) -> tuple[list[str], list[float]]:
    return [name for name, _, _ in found], [ours / theirs for _, ours, theirs in found]


def datasheet(device: str, link: str = "ethernet", ppp: float = 1.0, ppp_comm: float = 1.0) -> Platform:
    """Return a platform of the released code."""
    gflops, gb_per_s = DEVICES[device]
    return Platform(gflops * 1e9, gb_per_s * GIB, LINKS[link] / 8 * 1e9, ppp, ppp_comm)


def _ms(network: PaleoNetwork, batch: int, workers: int, platform: Platform, scheme: str = "tree") -> dict[str, float]:
    parts = step_parts_s(network, batch, workers, platform, scheme)
    return {name: 1e3 * float(seconds) for name, seconds in parts.items()}


def _step_ms(*arguments: object) -> float:
    return sum(_ms(*arguments).values())  # type: ignore[arg-type]


def cases() -> Iterator[Case]:
    """Yield every figure of the code that we know."""
    yield from _nin()
    yield from _inception()
    yield from _alexnet()
    yield from _full_pass()
    for n, ours, hours in zip((1, 2, 4, 8), _hybrid_ms(), (103.5, 53.3, 27.3, 15.4), strict=True):
        code_ms = {1: 413.6, 2: 425.6, 4: 436.5, 8: 493.3}[n]
        yield f"hybrid AlexNet, K20 x {n}, ms", ours, code_ms
        yield f"hybrid AlexNet, K20 x {n}, hours of 90 epochs", _hours(ours, n), hours


def comparisons() -> Iterator[Case]:
    """Yield PALEO's figures against measured training, as in its paper."""
    for n, ours, hours in zip((1, 2, 4, 8), _hybrid_ms(), (98.05, 50.24, 26.20, 15.68), strict=True):
        yield f"AlexNet, K20 x {n}, hours of 90 epochs", _hours(ours, n), hours
    for (n, batch), measured in {(32, 256): 13.0, (32, 1024): 23.0, (128, 1024): 39.0}.items():
        yield f"NiN, K20X x {n}, batch {batch}, speed-up", _nin_speed_up(n, batch), measured


@functools.cache
def _nin_on_k20x() -> tuple[PaleoNetwork, Platform]:
    network = PaleoNetwork.of(trace_network("nin", {"ceil_mode": False}))
    return network, datasheet("k20x", "infiniband", 0.21, 0.56)


def _nin_speed_up(n: int, batch: int) -> float:
    """Return the speed-up over an epoch on one device with batch 256."""
    network, platform = _nin_on_k20x()
    return _step_ms(network, 256, 1, platform) / 256 / (_step_ms(network, -(-batch // n), n, platform) / batch)


def _nin() -> Iterator[Case]:
    network, platform = _nin_on_k20x()
    yield "NiN, parameters", network.param_bytes / 4, 7_595_176
    alone = _ms(network, 256, 1, platform)
    for name, code_ms in {"forward": 668.0, "backward": 1253.5, "update": 0.34}.items():
        yield f"NiN, {name}, ms", alone[name], code_ms
    yield "NiN, step, ms", sum(alone.values()), 1921.8
    for n, code_ms in {32: 62.0, 128: 86.8}.items():
        yield f"NiN, tree over {n}, ms", _ms(network, 8, n, platform)["communication"], code_ms
    for (n, batch), speed_up in {(32, 256): 15.5, (32, 1024): 25.3, (128, 1024): 51.7}.items():
        yield f"NiN, {n} workers, batch {batch}, speed-up", _nin_speed_up(n, batch), speed_up


def _inception() -> Iterator[Case]:
    network = PaleoNetwork.of(trace_network("inception-v3-slim"))
    platform = datasheet("k40", "ethernet", 0.62, 0.72)
    yield "Inception v3, parameters", network.param_bytes / 4, 23_734_312
    alone = _step_ms(network, 256, 1, platform)
    yield "Inception v3, computation, ms", alone, 3959.6
    yield "Inception v3, tree over 100, ms", _ms(network, 256, 100, platform)["communication"], 1476.8
    for n, speed_up in {2: 1.90, 4: 3.61, 8: 6.90, 16: 13.19, 50: 37.89, 100: 72.83}.items():
        yield f"Inception v3, weak, {n}, speed-up", n * alone / _step_ms(network, 256, n, platform), speed_up


def _alexnet() -> Iterator[Case]:
    network = PaleoNetwork.of(trace_network("alexnet-v2"))
    platform = datasheet("k80", "ethernet-20", 0.62)
    yield "AlexNet v2, parameter bytes", network.param_bytes, 201_215_648
    alone = _step_ms(network, 2048, 1, platform)
    yield "AlexNet v2, computation, ms", alone, 3365.3
    for n, code_ms in {2: 160.97, 8: 482.9}.items():
        yield f"AlexNet v2, tree over {n}, ms", _ms(network, 2048, n, platform)["communication"], code_ms
    strong = {
        "tree": {2: 1.82, 4: 2.89, 8: 3.71, 16: 3.93, 32: 3.69, 128: 2.91},
        "butterfly": {8: 5.06, 32: 6.59},
    }
    for scheme, figures in strong.items():
        for n, speed_up in figures.items():
            ours = alone / _step_ms(network, -(-2048 // n), n, platform, scheme)
            yield f"AlexNet v2, strong, {scheme}, {n}, speed-up", ours, speed_up
    for scheme, n, speed_up in (("tree", 8, 7.00), ("tree", 128, 95.9), ("one_to_all", 128, 18.1)):
        ours = n * alone / _step_ms(network, 2048, n, platform, scheme)
        yield f"AlexNet v2, weak, {scheme}, {n}, speed-up", ours, speed_up
    small = _step_ms(network, 256, 1, platform)
    for n, speed_up in {2: 1.13, 4: 0.98}.items():
        yield (
            f"AlexNet v2, batch 256, strong, {n}, speed-up",
            small / _step_ms(network, 256 // n, n, platform),
            speed_up,
        )


def _full_pass() -> Iterator[Case]:
    figures = {
        ("alexnet-v2", 128): {1.0: (33.16, 89.08), 0.62: (53.49, 143.68)},
        ("vgg16-slim", 64): {1.0: (345.8, 785.2), 0.62: (557.8, 1266.5)},
    }
    for (name, batch), by_ppp in figures.items():
        network = PaleoNetwork.of(trace_network(name))
        for ppp, (forward, backward) in by_ppp.items():
            ours = _ms(network, batch, 1, datasheet("titan-x", "ethernet", ppp))
            yield f"{name}, Titan X, PPP {ppp}, forward, ms", ours["forward"], forward
            yield f"{name}, Titan X, PPP {ppp}, backward, ms", ours["backward"], backward


def _hybrid_ms() -> list[float]:
    """Return times for 1, 2, 4 and 8 K20s: data-parallel convolutions, split fc6 and fc7, batch 128 a worker."""
    trace = trace_network("alexnet-v2", {"fourth_width": 256})
    platform = datasheet("k20", "pcie2", 0.46, 0.75)
    return [1e3 * _hybrid_step_s(trace, 128, n, platform, divided(trace)) for n in (1, 2, 4, 8)]


def divided(trace: Trace) -> list[str]:
    """Return fc6, its dropout, fc7 and its dropout: all of the head except the last layer."""
    return [layer.module for layer in layers(trace)][-5:-1]


def _hours(step_ms: float, workers: int) -> float:
    return 90 * IMAGENET_TRAIN / (128 * workers) * step_ms / 3.6e6


def split(layer: PaleoLayer, num_workers: int) -> PaleoLayer:
    """Return a layer on one of n devices that each compute an n-th of its output from its full input."""

    def share(cost: Cost, passes: int) -> Cost:
        whole = passes * layer.input_bytes if layer.has_weights else 0
        return Cost(cost.flops / num_workers, (cost.moved_bytes - whole) / num_workers + whole)

    return replace(layer, forward=share(layer.forward, 1), backward=share(layer.backward, 2))


def _hybrid_step_s(
    trace: Trace, batch_per_worker: int, num_workers: int, platform: Platform, divided_modules: Collection[str]
) -> float:
    """Return the seconds of a step with data-parallel convolutions and the layers `divided_modules` split over the workers.

    Every worker's batch goes through the split layers in turn, so they run n times. A split layer with weights needs its full
    input. The first one fetches it from the worker whose turn it is. The others, and the layer after them, gather it from all
    workers. All other gradients are exchanged over a tree.

    Args:
        divided_modules: module paths of the split layers, in the order of the network.
    Source: Krizhevsky 2014, arXiv:1404.5997, as PALEO's released code simulates it.
    """
    n, found = num_workers, layers(trace)
    if n == 1:
        return float(sum(step_parts_s(PaleoNetwork.of(trace), batch_per_worker, 1, platform).values()))
    link = platform.link_bytes_per_s / 1e9 * GIB  # for moving activations PALEO counts a GB as 2^30 bytes
    inside = [i for i, layer in enumerate(found) if layer.module in divided_modules]
    parts = [split(found[i], n) for i in inside]
    first, *others = [_at(layer.input_bytes, batch_per_worker) for layer in parts if layer.has_weights]
    after = _at(found[inside[-1] + 1].input_bytes, batch_per_worker)
    # Workers are in groups of four. In PALEO a device's share of the last gathering also crosses the link.
    slowest = max(_gathering(worker, n) for worker in range(n))
    fetched_s = (first + slowest * sum(others) / n) / (link * platform.ppp_comm)
    gathered_s = (_gathering(0, n) + 1) * after / n / (link * platform.ppp_comm)
    # Time saved by pipelining: PALEO counts the elements of the first input as bytes here.
    saved_s = (n - 1) * first / 4 / link
    total = 0.0
    for passing in ("forward", "backward"):
        turn_s = fetched_s + sum(getattr(layer, passing).seconds(batch_per_worker, platform) for layer in parts)
        rest = [getattr(layer, passing) for i, layer in enumerate(found) if i not in inside]
        total += (turn_s - saved_s) * n + saved_s + gathered_s
        total += sum(cost.seconds(batch_per_worker, platform) for cost in rest)
    parameters = trace.parameters()
    shared = sum(t.numel_at(1) for name, t in parameters.items() if name.rpartition(".")[0] not in divided_modules)
    sync_s = tree(4 * shared, n, 0.0, platform.link_bytes_per_s * platform.ppp_comm)
    return float(total + sync_s + update_s(4 * trace.params, platform))


def _gathering(worker: int, num_workers: int) -> float:
    """Return the parts that a worker gets from the others, each weighted by how much slower its link is.

    Every part from the other group of four halves the bandwidth once more, also for the parts that follow.

    >>> _gathering(0, 4), _gathering(0, 8), _gathering(7, 8)
    (3.0, 33.0, 78.0)
    """
    slowdown, total = 1.0, 0.0
    for other in range(num_workers):
        if other != worker:
            slowdown *= 2 if other // 4 != worker // 4 else 1
            total += slowdown
    return total


def _at(amount: np.ndarray, batch: int) -> float:
    return float(amount[0] + amount[1] * batch)

"""One process of a calibration: times blocks, large products and copies; prints JSON.

    python -m chronograd.calibrate.worker DEVICE THREADS PRECISION SECONDS_PER_BLOCK nchw|nhwc [BLOCK...]

For a job of several ranks, several of these processes run at once, because ranks slow each other down. Each prints `ready` and
waits for a line on its standard input before it starts. With names, it times only these blocks.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

from chronograd.calibrate.blocks import TINY, TimedBlock, blocks, many_layers
from chronograd.calibrate.pace import PASSES, Laps
from chronograd.calibrate.workers import read, say
from chronograd.data.augment import normalise
from chronograd.eager import eager
from chronograd.measure.memory import keep_freed_memory
from chronograd.measure.steps import clock
from chronograd.train.rank_command import exit_with_parent

GPU_FACTOR = 16
# Timings of each block.
TIMES = ("inference_s", "forward_s", "backward_s")
# Written between repeats to evict caches: twice the last-level cache of most processors.
SCRATCH_BYTES = 2**26
# Blocks are timed in rounds with half a minute between them, so that a temporary slowdown of the machine does not affect one block only.
ROUNDS = 2
# Warm-up and minimum repeats of a block per round when time is short; maximum repeats.
_WARM_UP, _MIN_REPEATS, _MAX_REPEATS = 1, 3, 200
# With less time a block runs only once, without a warm-up run and with warm caches: the fit still works, but its times mean little.
MIN_SECONDS = 0.01


@cache
def _scratch(device: torch.device, is_warm: bool = False) -> torch.Tensor:
    """Return the tensor written between repeats, or an empty one for warm caches. All blocks share it, because the pages of a new
    one are mapped one at a time.
    """
    return torch.zeros(0 if is_warm else SCRATCH_BYTES // 4, device=device)


def _arithmetic(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return autocast for half precisions. For TF32, set torch's switch."""
    if precision in ("bf16", "fp16"):
        return torch.autocast(device.type, torch.bfloat16 if precision == "bf16" else torch.float16)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    return nullcontext()


def time_block(
    block: TimedBlock, device: torch.device, precision: str, seconds: float, layout: str = "nchw", is_warm: bool = False
) -> dict[str, Any]:
    """Return median seconds of a block: forward and backward with the sum of its output as loss, and forward in inference.

    Caches are cold at the start of each run, as they are after the other layers of a network and the update. Timing blocks with
    hot caches makes them a third too fast. With `is_warm`, caches keep what they hold, as in the loop of a small network.
    """
    torch.manual_seed(0)
    model = block.make().to(device)
    batch = block.batch * (GPU_FACTOR if device.type == "cuda" else 1)
    x = torch.randn(batch, *block.input_shape, device=device)
    if layout == "nhwc" and x.dim() == 4:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    x.requires_grad_()
    scratch = _scratch(device, is_warm or seconds < MIN_SECONDS)
    forward: list[float] = []
    backward: list[float] = []
    warm_up, least = _repeats(seconds)
    now, end = clock(device), time.perf_counter() + seconds
    while len(forward) < least or (time.perf_counter() < end and len(forward) < _MAX_REPEATS):
        for p in (x, *model.parameters()):
            p.grad = None
        scratch.add_(1)
        t0 = now()
        with _arithmetic(device, precision):
            loss = model(x).sum()
        t1 = now()
        loss.backward()
        backward.append(now() - t1)
        forward.append(t1 - t0)
        del loss
    return {
        "inference_s": _time_inference(model, x.detach(), precision, seconds, is_warm),
        "block": block.name,
        "batch": batch,
        "forward_s": statistics.median(forward[warm_up:]),
        "backward_s": statistics.median(backward[warm_up:]),
    }


def _repeats(seconds: float) -> tuple[int, int]:
    """Return the number of warm-up runs, and the minimum number of runs including these."""
    return (_WARM_UP, _WARM_UP + _MIN_REPEATS) if seconds >= MIN_SECONDS else (0, 1)


def rounds_in(seconds: float) -> int:
    """Return the number of rounds through all blocks, for a total of `seconds` per block."""
    return ROUNDS if seconds >= MIN_SECONDS else 1


def time_blocks(
    device: torch.device, precision: str, seconds: float, layout: str, laps: Laps | None, names: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Time every block for `seconds` in total, over `ROUNDS` rounds through all blocks. Return the median of each time.

    Args:
        names: of the blocks, if not all.
        laps: tracks the speed of a CPU; each round of a block is scaled to its median speed.
    """
    rounds = rounds_in(seconds)
    chosen = [block for block in blocks() if block.name in names or not names]
    timed: dict[str, list[tuple[dict[str, Any], float]]] = {block.name: [] for block in chosen}
    for _ in range(rounds):
        for block in chosen:
            row = time_block(block, device, precision, seconds / rounds, layout)
            timed[block.name].append((row, laps.lap() if laps else 1.0))
            say("progress", block.name)
    pace_s = laps.median_s if laps else 1.0
    return [
        rows[0][0] | {name: statistics.median(row[name] * pace_s / own_s for row, own_s in rows) for name in TIMES}
        for rows in timed.values()
    ]


def _time_inference(model: torch.nn.Module, x: torch.Tensor, precision: str, seconds: float, is_warm: bool) -> float:
    """Return median seconds of a forward pass in evaluation mode, without gradients, in half of the block's time."""
    warm_up, least = _repeats(seconds)
    scratch = _scratch(x.device, is_warm or seconds < MIN_SECONDS)
    model.eval()
    found: list[float] = []
    now, end = clock(x.device), time.perf_counter() + seconds / 2
    with torch.inference_mode(), _arithmetic(x.device, precision):
        while len(found) < least or (time.perf_counter() < end and len(found) < _MAX_REPEATS):
            scratch.add_(1)
            t0 = now()
            model(x)
            found.append(now() - t0)
    return statistics.median(found[warm_up:])


def _best(run: Callable[[], Any], device: torch.device, seconds: float = 1.0) -> float:
    """Return the minimum seconds of one run, over about `seconds`."""
    run()
    now, best, end = clock(device), float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        t0 = now()
        run()
        best = min(best, now() - t0)
    return best


def peaks(device: torch.device, precision: str, seconds: float = 1.0) -> dict[str, float]:
    """Return the measured FLOP/s of a large square product and bytes per second of a large copy, each over `seconds`."""
    n, size = (8192, 2**28) if device.type == "cuda" else (1024, 2**24)
    a, b = torch.randn(n, n, device=device), torch.randn(n, n, device=device)
    source = torch.randn(size, device=device)
    target = torch.empty_like(source)
    with _arithmetic(device, precision):
        product_s = _best(lambda: torch.mm(a, b), device, seconds)
    copy_s = _best(lambda: target.copy_(source), device, seconds)
    return {"flops_per_s": 2 * n**3 / product_s, "bytes_per_s": 2 * 4 * size / copy_s}


def time_updates(device: torch.device, repeats: int = 15) -> list[dict[str, Any]]:
    """Return seconds of a step of SGD with momentum on many small parameters, on a hundred megabytes of large ones, and on some
    that stay in the cache.

    As in training, a backward pass creates new gradients, which each step frees at its end, and the caches hold the data of
    that pass. This matters: on a core of an EPYC an update takes 10 µs per parameter after a pass without data. After one of 32
    images with batch norm it takes 14 to 16 µs, and in the training of a ResNet-20 18 to 20 µs.
    """
    small = many_layers()
    large = nn.Sequential(*(nn.Linear(1414, 1414, bias=False) for _ in range(12)))
    cached = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(6)))
    rows = []
    for network, inputs in (
        (small, torch.randn(32, 32, 4, 4)),
        (large, torch.zeros(1, 1414)),
        (cached, torch.zeros(1, 256)),
    ):
        network, inputs = network.to(device), inputs.to(device)
        optimizer = eager(torch.optim.SGD)(network.parameters(), lr=0.0, momentum=0.9, weight_decay=1e-4)

        def make_gradients(network: nn.Module = network, inputs: torch.Tensor = inputs) -> None:
            network(inputs).sum().backward()

        def update(optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        sizes = [p.numel() for p in network.parameters()]
        seconds = _median(update, device, repeats, make_gradients, is_warm=network is cached)
        rows.append({"count": len(sizes), "size": sum(sizes) / len(sizes), "seconds": seconds})
    return rows


def time_gather(device: torch.device, repeats: int = 25) -> dict[str, float]:
    """Return seconds to select a small batch from a data set in memory by index and normalise it, by mode: mostly call
    overhead.

    As in a training loop, a pass of a network precedes it: forward, and in training also backward.
    """
    images, labels = torch.zeros(1024, 1, 8, 8, dtype=torch.uint8), torch.zeros(1024, dtype=torch.int64)
    scale_C, shift_C = torch.ones(1, device=device), torch.zeros(1, device=device)
    network, inputs = many_layers().to(device), torch.randn(32, 32, 4, 4, device=device)
    order = np.random.default_rng(0).permutation(1024)

    def gather() -> None:
        mine = order[:32].copy()
        normalise(images[torch.from_numpy(mine)].to(device), scale_C, shift_C).contiguous()
        labels[torch.from_numpy(mine)].to(device)

    before = {"inference": lambda: network(inputs), "training": lambda: network(inputs).sum().backward()}
    return {mode: _median(gather, device, repeats, run) for mode, run in before.items()}


def _median(
    run: Callable[[], Any],
    device: torch.device,
    repeats: int,
    before: Callable[[], Any] = lambda: None,
    is_warm: bool = False,
) -> float:
    """Return median seconds of a call, with its data outside of the caches unless `is_warm`. `before` runs outside the clock."""
    scratch = _scratch(device, is_warm)
    now, seconds = clock(device), []
    for _ in range(repeats):
        before()
        scratch.add_(1)
        t0 = now()
        run()
        seconds.append(now() - t0)
    return statistics.median(seconds[2:])


def main(argv: list[str]) -> None:
    place, threads, precision, seconds, layout, *names = argv
    say("ready")
    read()
    exit_with_parent()
    device = torch.device(place)
    torch.set_num_threads(int(threads))
    if place == "cpu":
        keep_freed_memory()  # as ranks do
    is_quick = float(seconds) < MIN_SECONDS
    if names:
        laps = Laps(1 if is_quick else PASSES) if place == "cpu" else None
        say("result", {"blocks": time_blocks(device, precision, float(seconds), layout, laps, names)})
        return
    result: dict[str, Any] = {"peaks": peaks(device, precision, 0.05 if is_quick else 1.0)}
    laps = Laps(1 if is_quick else PASSES) if place == "cpu" else None
    updates, gather = time_updates(device, 4 if is_quick else 15), time_gather(device, 4 if is_quick else 25)
    tiny = next(block for block in blocks() if block.name == TINY)
    warm = time_block(tiny, device, precision, float(seconds), layout, is_warm=True)
    own_s = laps.lap() if laps else 1.0
    result["blocks"] = time_blocks(device, precision, float(seconds), layout, laps)
    scale = laps.median_s / own_s if laps else 1.0
    result["updates"] = [row | {"seconds": row["seconds"] * scale} for row in updates]
    result["gather_s"] = {mode: seconds * scale for mode, seconds in gather.items()}
    result["warm_tiny"] = {name: warm[name] * scale for name in TIMES}
    if laps:
        result |= {"pace_s": laps.median_s, "pace_sigma_log": laps.sigma_log}
    say("result", result)


if __name__ == "__main__":
    main(sys.argv[1:])

"""One process of `calibrate links`: python -m chronograd.calibrate.links_worker RANK WORLD MEETING SECONDS COLLECTIVES SIZES
REST.

REST is a pause in seconds before each repeat.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from chronograd.calibrate.workers import read, say
from chronograd.measure.steps import clock
from chronograd.train.communicator import without_exchange
from chronograd.train.rank_command import exit_with_parent


class Stack(NamedTuple):
    """Numbers and bytes of a network's exchanged tensors. All gradients fit one bucket."""

    layers: int
    gradients: int
    gradient_bytes: int
    buffers: int
    buffer_bytes: int


# Many small layers with hardly any computation, to measure the cost per tensor.
STACK = Stack(32, 4 * 32, 4 * (64 + 8 + 8 + 8) * 32, 3 * 32, (4 * (8 + 8) + 8) * 32)
# Few layers that compute for some milliseconds between exchanges, like a real network, to measure the cost per meeting.
WORKING = Stack(12, 3 * 12, 4 * (9 * 16 * 16 + 16 + 16) * 12, 3 * 12, (4 * (16 + 16) + 8) * 12)
NO_WAIT = "nothing_waited_for"
_MIN_REPEATS, _MAX_REPEATS, _MAX_RESTED, _WARMUP = 8, 200, 30, 3


def calls(message: torch.Tensor, world: int) -> dict[str, Callable[[], Any]]:
    """Return each collective on a message of S bytes; see `chronograd.calibrate.links.Timed.bytes`.

    `nothing` computes instead, after the ranks waited for each other; `nothing_waited_for` computes without that wait.
    """
    part = message[: len(message) // world].clone()
    block = torch.nn.Conv2d(64, 64, 3, padding=1, device=message.device)
    images = torch.ones(16, 64, 32, 32, device=message.device)

    def compute() -> None:
        block.zero_grad()
        block(images).sum().backward()

    return {
        "all_reduce": lambda: dist.all_reduce(message),
        "all_gather": lambda: dist.all_gather_into_tensor(message, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, message),
        "broadcast": lambda: dist.broadcast(message, src=0),
        "nothing": compute,
        NO_WAIT: compute,
    }


def module_calls(device: torch.device) -> dict[str, Callable[[], Any]]:
    """Return steps of small layers and of computing layers, each with the exchange of DistributedDataParallel and without."""
    found: dict[str, Callable[[], Any]] = {}
    for name, make in (("module", stack), ("working", working)):
        module, inputs = make(device)

        def step(module: DistributedDataParallel = module, inputs: torch.Tensor = inputs) -> None:
            module.zero_grad()
            module(inputs).sum().backward()

        def step_without_exchange(module: DistributedDataParallel = module, step: Callable[[], None] = step) -> None:
            with without_exchange(module):
                step()

        found |= {name: step, f"{name}_apart": step_without_exchange}
    return found


def stack(device: torch.device) -> tuple[DistributedDataParallel, torch.Tensor]:
    """Return many small layers with buffers and exchanged gradients, and their input."""
    layers: list[torch.nn.Module] = []
    for _ in range(STACK.layers):
        layers += [torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)]
    return _parallel(layers, device), torch.ones(4, 8, device=device)


def working(device: torch.device) -> tuple[DistributedDataParallel, torch.Tensor]:
    """Return convolutions with exchanged gradients, and images for some milliseconds of work."""
    layers: list[torch.nn.Module] = []
    for _ in range(WORKING.layers):
        layers += [torch.nn.Conv2d(16, 16, 3, padding=1, bias=False), torch.nn.BatchNorm2d(16)]
    return _parallel(layers, device), torch.ones(32, 16, 16, 16, device=device)


def _parallel(layers: list[torch.nn.Module], device: torch.device) -> DistributedDataParallel:
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(torch.nn.Sequential(*layers).to(device), device_ids=ids)


def time_collective(
    call: Callable[[], Any], seconds: float, device: torch.device, rest_s: float = 0.0, waits: bool = True
) -> list[float]:
    """Return seconds of each repeat on this rank, after a barrier if `waits`. All ranks run the same number of repeats."""

    now = clock(device)

    def once() -> float:
        time.sleep(rest_s)
        if waits:
            dist.barrier()
        start = now()
        call()
        return now() - start

    first = [once() for _ in range(_WARMUP)]
    wanted = torch.tensor(seconds / max(min(first), 1e-6), device=device)
    dist.broadcast(wanted, src=0)
    most = _MAX_RESTED if rest_s else _MAX_REPEATS
    return [once() for _ in range(int(min(max(float(wanted), _MIN_REPEATS), most)))]


def main(argv: list[str]) -> None:
    rank, world, meeting = int(argv[0]), int(argv[1]), argv[2]
    seconds, names, sizes = float(argv[3]), argv[4].split(","), [int(size) for size in argv[5].split(",")]
    rest_s = float(argv[6])
    torch.set_num_threads(1)
    local_rank, ranks_here = (int(os.environ.get(n, d)) for n, d in (("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", world)))
    device = torch.device("cuda", local_rank) if torch.cuda.device_count() >= ranks_here else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    say("ready")
    read()
    exit_with_parent()
    library = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(library, init_method=meeting, rank=rank, world_size=world, timeout=timedelta(minutes=5))
    rows = []
    for size in sizes:
        message = torch.ones(size // 4, device=device)
        known = calls(message, world) | (module_calls(device) if "module" in names else {})
        for name, call in known.items():
            if name in names:
                found = time_collective(call, seconds, device, rest_s, waits=name != NO_WAIT)
                rows.append({"collective": name, "bytes": size, "seconds": found})
                say("progress", name)
    dist.destroy_process_group()
    say("result", {"rows": rows})


if __name__ == "__main__":
    main(sys.argv[1:])

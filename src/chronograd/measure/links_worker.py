"""One process of `calibrate links`: python -m chronograd.measure.links_worker RANK WORLD STORE SECONDS COLLECTIVES SIZES."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_MIN_REPEATS, _MAX_REPEATS, _WARMUP = 8, 200, 3


def calls(message: torch.Tensor, world: int) -> dict[str, Callable[[], Any]]:
    """Each collective on a message of S bytes; see `chronograd.measure.links.Timed.bytes`. `nothing` computes instead."""
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
    }


def time_collective(call: Callable[[], Any], seconds: float, device: torch.device) -> list[float]:
    """Seconds of each repeat on this rank, from a barrier on; all ranks run equally many."""

    def once() -> float:
        dist.barrier()
        start = _now(device)
        call()
        return _now(device) - start

    first = [once() for _ in range(_WARMUP)]
    wanted = torch.tensor(seconds / max(min(first), 1e-6), device=device)
    dist.broadcast(wanted, src=0)
    return [once() for _ in range(int(min(max(float(wanted), _MIN_REPEATS), _MAX_REPEATS)))]


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def main(argv: list[str]) -> None:
    rank, world, store = int(argv[0]), int(argv[1]), argv[2]
    seconds, names, sizes = float(argv[3]), argv[4].split(","), [int(size) for size in argv[5].split(",")]
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if torch.cuda.device_count() >= world else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    print("ready", flush=True)
    sys.stdin.readline()
    library = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        library, init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(minutes=5)
    )
    rows = []
    for size in sizes:
        message = torch.ones(size // 4, device=device)
        for name, call in calls(message, world).items():
            if name in names:
                rows.append({"collective": name, "bytes": size, "seconds": time_collective(call, seconds, device)})
                print(f"progress {name}", flush=True)
    dist.destroy_process_group()
    print("result " + json.dumps({"rows": rows}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

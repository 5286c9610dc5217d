"""One of two ranks that run small training loops with a planted cause of lost time.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=... python planted_rank.py

Each line of standard input is a JSON object with `out`, a new run directory, and the planted causes; the answer is
`done` or the error. The processes stay alive, so a run takes no longer than its steps.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

import chronograd

RANK = int(os.environ.get("RANK", "0"))
STEPS, WARMUP = 24, 5


class Images(Dataset[Any]):
    """Random images. The first image of a batch takes `delay_s`, because shorter sleeps are inaccurate."""

    def __init__(self, count: int, batch: int, delay_s: float) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(64, 3, 24, 24, generator=generator)
        self.count, self.batch, self.delay_s, self.got = count, batch, delay_s, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.delay_s and self.got % self.batch == 0:
            time.sleep(self.delay_s)
        self.got += 1
        return self.images[index % 64], index % 10


class Overlapping(Sampler[int]):
    """A rank's share of the samples plus a part of the other ranks' shares."""

    def __init__(self, count: int, overlap: float) -> None:
        self.own = int(count / 2 * (1 + overlap))

    def __len__(self) -> int:
        return self.own

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.own))


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10),
    )  # fmt: skip


def slow_hook(delay_s: float) -> Any:
    """Delay each all-reduce like a slow link."""

    def hook(state: Any, bucket: Any) -> Any:
        averaged = allreduce_hook(state, bucket)

        def later(future: Any) -> torch.Tensor:
            time.sleep(delay_s)
            value: torch.Tensor = future.value()
            return value

        return averaged.then(later)

    hook.__annotations__.clear()  # torch expects classes there, but finds their names
    return hook


def run(told: dict[str, Any]) -> None:
    world, seed, batch = told.get("world", 2), told.get("seed", 0), told.get("batch", 32)
    os.environ |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if told.get("gpus"):
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    threads = told.get("threads", 1)
    torch.set_num_threads(threads)
    inner = network(seed)
    model: nn.Module = inner
    if world > 1:
        model = DistributedDataParallel(inner)
        if told.get("link_s"):
            model.register_comm_hook(None, slow_hook(told["link_s"]))
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.01, momentum=0.9)
    steps = told.get("steps", STEPS)
    data = Images(batch * world * steps, batch, told.get("input_s", 0.0))
    sampler: Any = None
    if world > 1:
        sampler = DistributedSampler(data, shuffle=False)
        if "overlap" in told:
            sampler = Overlapping(len(data), told["overlap"])
    loader = DataLoader(data, batch_size=batch, sampler=sampler)
    slow_s = told.get("worker_s", 0.0) if world > 1 and told.get("worker") == RANK else 0.0
    loss_of = nn.CrossEntropyLoss()
    rng = random.Random(seed)
    with chronograd.record(told["out"], batch=batch * world, warmup=WARMUP) as rec:
        time.sleep(told.get("start_s", 0.0))
        for number, (x, y) in enumerate(loader):
            if number == steps:
                break
            with rec.step():
                if told.get("parts", True):
                    with rec.part("forward"):
                        loss = loss_of(model(x), y)
                        time.sleep(slow_s * rng.uniform(0.8, 1.2))
                    with rec.part("backward"):
                        loss.backward()
                    with rec.part("update"):
                        optimizer.step()
                        optimizer.zero_grad()
                else:
                    loss_of(model(x), y).backward()
                    time.sleep(slow_s * rng.uniform(0.8, 1.2))
                    optimizer.step()
                    optimizer.zero_grad()


def main() -> None:
    dist.init_process_group("gloo", rank=RANK, world_size=2)
    print("ready", flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        try:
            if told.get("world", 2) > RANK:
                run(told)
            torch.set_num_threads(1)
            dist.barrier()
            print("done", flush=True)
        except Exception:
            print(json.dumps(traceback.format_exc()), flush=True)
            return


if __name__ == "__main__":
    main()

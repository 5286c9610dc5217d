"""One rank of `benchmarks.distribution`: NAME OUT NETWORK BATCH WARMUP STEPS, under torchrun."""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from benchmarks.distribution import BARE, LIGHTNING, OURS
from chronograd import job as jobs
from chronograd.data import datasets
from chronograd.job import Job
from chronograd.models import registry
from chronograd.train.order import rank_slice

SHAPE = (3, 32, 32)
CLASSES = 10


def make_job(network: str, batch: int, steps: int) -> Job:
    return jobs.from_dict(
        {
            "network": {"name": network},
            "data": {"name": "synthetic", "shape": list(SHAPE), "classes": CLASSES, "samples": batch * steps},
            "training": {"recipe": "sgd-momentum", "batch": batch, "epochs": 1, "learning_rate": 0.01},
            "cluster": {"device": "cpu", "count": 2, "threads": 1},
            "backend": "ddp",
        }
    )


def with_chronograd(job: Job, warmup: int, steps: int) -> float:
    """Return the seconds of the timed steps with our step and loop."""
    from chronograd.train.communicator import communicator_of
    from chronograd.train.rank_context import rank_context_from_environment
    from chronograd.train.step import TrainingStep

    place = rank_context_from_environment(job, communicator_of)
    with place.exchange.process_group(place):
        step = TrainingStep(job, datasets.load(job.data), place)
        for index in range(warmup):
            step.run(index)
        dist.barrier()
        start = time.perf_counter()
        for index in range(warmup, warmup + steps):
            step.run(index)
        dist.barrier()
        return time.perf_counter() - start


def tensors(job: Job) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same images and labels as float tensors, normalised once, as in a typical script."""
    from chronograd.train.inputs import ImageInput, in_chunks

    data = datasets.load(job.data)
    import numpy as np

    seen = ImageInput(data.train, data, torch.device("cpu"))
    images = torch.cat([x for _, x in in_chunks(seen, np.arange(len(data.train_labels)), torch.device("cpu"))])
    return images, data.train_labels


def network_of(job: Job) -> torch.nn.Module:
    torch.manual_seed(0)
    return registry.build(job.network.name, {}, input_shape=SHAPE, num_classes=CLASSES)


def by_hand(job: Job, warmup: int, steps: int) -> float:
    """Return the seconds of the timed steps of a bare script: DistributedDataParallel, a permutation, slices of tensors."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    images, labels = tensors(job)
    model = torch.nn.parallel.DistributedDataParallel(network_of(job))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=job.training.momentum, weight_decay=job.training.weight_decay
    )
    batch = job.training.batch
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    part = rank_slice(batch, rank, world)

    def step(index: int) -> None:
        mine = order[index * batch : (index + 1) * batch][part]
        optimizer.zero_grad()
        functional.cross_entropy(model(images[mine]), labels[mine]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    for index in range(warmup):
        step(index)
    dist.barrier()
    start = time.perf_counter()
    for index in range(warmup, warmup + steps):
        step(index)
    dist.barrier()
    seconds = time.perf_counter() - start
    dist.destroy_process_group()
    return seconds


def with_lightning(job: Job, warmup: int, steps: int) -> float:
    """Return the seconds of the timed steps of Lightning's Trainer with its DDP strategy, callbacks and logging off."""
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    images, labels = tensors(job)
    batch = job.training.batch // 2
    times: list[float] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network_of(job)

        def training_step(self, given: list[torch.Tensor], index: int) -> torch.Tensor:
            return functional.cross_entropy(self.network(given[0]), given[1])

        def on_train_batch_start(self, given: Any, index: int) -> None:
            if index == warmup:
                dist.barrier()
                times.append(time.perf_counter())

        def on_train_end(self) -> None:
            dist.barrier()
            times.append(time.perf_counter())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(
                self.parameters(), lr=0.01, momentum=job.training.momentum, weight_decay=job.training.weight_decay
            )

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch, shuffle=True)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_steps=warmup + steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), loader)
    return times[1] - times[0]


def main() -> None:
    name, out, network, batch, warmup, steps = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    job = make_job(network, int(batch), int(warmup) + int(steps))
    run = {OURS: with_chronograd, BARE: by_hand, LIGHTNING: with_lightning}[name]
    seconds = run(job, int(warmup), int(steps))
    import os

    if os.environ["RANK"] == "0":
        Path(out).write_text(json.dumps({"seconds": seconds, "samples_per_s": int(steps) * int(batch) / seconds}))


if __name__ == "__main__":
    main()

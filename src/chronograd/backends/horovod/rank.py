"""One rank of Horovod: `python -m chronograd.backends.horovod.rank RUN_DIR train|measure`, started by horovodrun or SLURM.

Horovod is imported in its own environment only.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from chronograd.backends.horovod import rendezvous
from chronograd.errors import RunError
from chronograd.job import GradientExchange, Job
from chronograd.train import worker
from chronograd.train.rank_context import Communicator, RankContext
from chronograd.train.watchdog import GRADIENTS, WATCHDOG

# Variables of a rank, and horovodrun's names for them.
NAMES = {
    "RANK": "HOROVOD_RANK",
    "WORLD_SIZE": "HOROVOD_SIZE",
    "LOCAL_RANK": "HOROVOD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "HOROVOD_LOCAL_SIZE",
}


def communicator_of(job: Job, world_size: int) -> Communicator:
    return HorovodCommunicator(job.communication) if world_size > 1 else Communicator()


class HorovodCommunicator(Communicator):
    """horovod.torch with its DistributedOptimizer, on the CPU. The ranks meet by HOROVOD_RANK, HOROVOD_SIZE and others."""

    is_repeatable = False  # Horovod refuses a third backward without a step

    def __init__(self, communication: GradientExchange) -> None:
        import horovod.torch as hvd

        self._hvd = hvd
        self._communication = communication
        self._is_apart = False

    @contextmanager
    def process_group(self, place: RankContext) -> Iterator[None]:
        with WATCHDOG.waiting("rendezvous"):
            self._hvd.init()
        yield
        self._hvd.shutdown()

    def parallel(self, network: nn.Module, optimizer: Optimizer, place: RankContext) -> tuple[nn.Module, Optimizer]:
        """Wrap the optimizer and share the weights of rank 0. A new optimizer has no state yet, and every rank reads
        that of a checkpoint. So hvd.broadcast_optimizer_state is left out, which would take a step to create one.
        """
        hvd = self._hvd
        with WATCHDOG.waiting("broadcast of weights"):
            hvd.broadcast_parameters(network.state_dict(), root_rank=0)
        WATCHDOG.set_collectives({"backward": GRADIENTS})
        is_fp16 = self._communication.compression == "fp16"
        averaging = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=network.named_parameters(),
            compression=hvd.Compression.fp16 if is_fp16 else hvd.Compression.none,
        )
        averaging.step = _step_of(averaging)
        averaging.zero_grad = lambda set_to_none=True: Optimizer.zero_grad(averaging, set_to_none)
        return network, averaging

    def wait_for_gradients(self, optimizer: Any) -> None:
        if not self._is_apart:
            start_s = time.perf_counter()
            optimizer.synchronize()
            self.waited_s = time.perf_counter() - start_s

    def no_sync(self, model: nn.Module, optimizer: Any) -> AbstractContextManager[None] | None:
        return self._apart(optimizer)

    @contextmanager
    def _apart(self, optimizer: Any) -> Iterator[None]:
        """Keep Horovod from sending gradients: it sends at the last of a number of backward passes, and here one more
        is always to come.

        Contexts may be nested, like parts of a batch in a step without averaging.
        """
        before = self._is_apart
        self._is_apart = True
        optimizer.set_backward_passes_per_step(2)
        try:
            yield
        finally:
            self._is_apart = before
            optimizer.set_backward_passes_per_step(2 if before else 1)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        with WATCHDOG.waiting("sum"):
            self._hvd.allreduce_(values, op=self._hvd.Sum, name="sum")
        return values

    def broadcast_from_rank0(self, values: torch.Tensor) -> torch.Tensor:
        with WATCHDOG.waiting("broadcast"):
            self._hvd.broadcast_(values, root_rank=0, name="of_first")
        return values

    def wait(self, place: RankContext) -> None:
        with WATCHDOG.waiting("barrier"):
            self._hvd.barrier()


def _step_of(optimizer: Any) -> Any:
    """Return the optimizer's step without another round of averages, because `settle` has already waited for them."""
    step = optimizer.step

    def step_only(closure: Any = None) -> Any:
        with optimizer.skip_synchronize():
            return step(closure)

    return step_only


def main() -> int:
    """Run one rank. Return its exit status."""
    if NAMES["RANK"] in os.environ:
        os.environ.update({ours: os.environ[theirs] for ours, theirs in NAMES.items()})
        return worker.main(communicator_of=communicator_of)
    try:
        if missing := [name for name in rendezvous.NEEDED if name not in os.environ]:
            raise RunError(f"a rank of Horovod was started without {missing[0]}", "leave the launcher to the backend")
        with rendezvous.met():
            return worker.main(communicator_of=communicator_of)
    except RunError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_status


if __name__ == "__main__":
    sys.exit(main())

"""Timing a network in this process on inputs without a data set: random values, or the user's example."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from chronograd.count.calls import Call, Called, as_taken
from chronograd.count.failures import HINT_OF_LOSS, explained
from chronograd.count.losses import loss_of
from chronograd.count.network import call_of
from chronograd.errors import InputError
from chronograd.job import Job
from chronograd.measure.result import Timing
from chronograd.measure.user_loop import LoopRecorder
from chronograd.models import registry
from chronograd.models.layout import laid_out, lay_out
from chronograd.rundir import RunDir
from chronograd.train.optimizer import make_optimizer
from chronograd.train.rank_context import rank_context_from_environment
from chronograd.train.step import DTYPES, autocast, compiled, set_matrix_arithmetic


def measure(job: Job, timing: Timing, flops_per_step: float | None, out: str | os.PathLike[str] | None) -> RunDir:
    """Time steps of one process, each on the same batch; the loss is the one that `count` counts. Returns the run directory.

    Args:
        out: the run directory, which must not hold a run yet; a new one in `runs` by default.
    Raises: InputError for several ranks; otherwise as `chronograd.launch.jobs.measure`.
    """
    if job.cluster.count != 1 or job.backend != "single":
        raise InputError(
            f"your own inputs are timed in one process, not with backend {job.backend} and {job.cluster.count} ranks",
            "write backend=single cluster.count=1, or run your training loop inside chronograd.record()",
        )
    training, is_training = job.training, job.mode == "training"
    with _threads_kept():
        device = rank_context_from_environment(job).device
        set_matrix_arithmetic(training.precision, device)
        torch.manual_seed(training.seed)
        called, inputs = _built(job, device)
        loss_of_outputs = _loss(called, inputs, training.loss)
        called.train(is_training)
        optimizer = make_optimizer(called, training) if is_training else None
        for group in optimizer.param_groups if optimizer is not None else ():
            group["lr"] = 0.0  # on random values weights may diverge, which ends a step or changes its time
        model = compiled(called, training.compile)
        recorder = LoopRecorder(
            out,
            job=job,
            title=f"{job.network.name}, inputs of its own",
            device=device,
            warmup=timing.warmup,
            flops_per_step=flops_per_step,
            what_if=False,
            quiet=True,
        )
        with recorder, explained(called.network, called.call, job.network.name, _hint(called.call, training.batch)):
            ends_at = float("inf")
            for step in range(timing.warmup + timing.num_steps):
                if step == timing.warmup:
                    ends_at = time.monotonic() + timing.seconds
                elif time.monotonic() > ends_at:
                    break
                with recorder.step():
                    with recorder.part("forward"), torch.set_grad_enabled(is_training), autocast(training, device):
                        outputs = model(*inputs)
                        loss = loss_of_outputs(outputs) if is_training else None
                    if loss is not None and optimizer is not None:
                        with recorder.part("backward"):
                            loss.backward()  # type: ignore[no-untyped-call]
                        with recorder.part("update"):
                            optimizer.step()
                            optimizer.zero_grad(set_to_none=True)
    return recorder.run


def _hint(call: Call, batch: int) -> str:
    """Return advice for a network that fails at another batch than that of its example."""
    is_other = call.batch not in (None, batch)
    return f"the example inputs have {call.batch} samples: write --batch {call.batch}" if is_other else ""


def _loss(called: Called, inputs: list[torch.Tensor], name: str) -> Callable[[Any], torch.Tensor]:
    """Return the loss as a function of the outputs alone."""
    _, function = loss_of(name)
    rest = iter(inputs)
    taken = as_taken(*called.call.filled(lambda _: next(rest)))

    def of_outputs(outputs: Any) -> torch.Tensor:
        with explained(called.network, called.call, f"the loss {name}", HINT_OF_LOSS):
            return function(outputs, taken)

    return of_outputs


def _built(job: Job, device: torch.device) -> tuple[Called, list[torch.Tensor]]:
    """Return the network of a job and a batch of its inputs, on a device, with the job's types and layout."""
    training = job.training
    network = registry.build(job.network.name, dict(job.network.options), num_classes=job.data.classes)
    called = Called(network, call_of(network, job.network.inputs, job.network.name))
    called.call.check_batch(training.batch)
    held = DTYPES[training.param_dtype]
    inputs = [
        value.to(device, held if training.is_pure and value.is_floating_point() else value.dtype)
        for value in called.values(training.batch).tensors
    ]
    called.to(device, held) if training.is_pure else called.to(device)
    if training.channels_last:
        lay_out(called)
        inputs = [laid_out(value) for value in inputs]
    return called, inputs


@contextmanager
def _threads_kept() -> Iterator[None]:
    """Restore the thread count of this process afterwards."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)

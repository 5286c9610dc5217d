"""What torch.nn.DataParallel takes of the host in a step: replicas tensor by tensor, and forward of all in threads of one process.

    python -m benchmarks.data_parallel --json benchmarks/results/data_parallel.json

DataParallel makes no replicas without GPUs. Its work on the host is the same whatever the device is: here `replicate` of
PyTorch runs as it is on small networks, but for the copies between devices, which are replaced by the same flattening
and taking apart; backward adds up gradients in the same way. Forward of all replicas runs in threads, as `parallel_apply` has
them, on samples so small that calling operators is nearly all of it; the lock of the interpreter lets one at a time. Both are divided
by tensors × replicas and operators × replicas. Seconds are of the processor, so that other processes on the machine do not count:
threads that share an interpreter take turns, so that what all take is what passes. chronograd/predict/scaling.py has the constants.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn.parallel import replicate
from torch.utils._python_dispatch import TorchDispatchMode

from chronograd.measure import environment
from chronograd.models.registry import build

# Small ones, whose computing is little beside calling it.
NETWORKS = ("resnet20", "resnet56")
REPLICAS = (2, 4)
ROUNDS = 25


class _Coalesced(torch.autograd.Function):
    """Broadcast of torch.nn.parallel without its copies: one flat tensor a replica, taken apart; backward adds them up."""

    @staticmethod
    def forward(context: Any, num_replicas: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        context.num_tensors = len(tensors)
        flat = _flatten_dense_tensors(tensors)  # type: ignore[no-untyped-call]
        parts: list[torch.Tensor] = []
        for _ in range(num_replicas):
            parts += _unflatten_dense_tensors(flat.clone(), tensors)  # type: ignore[no-untyped-call]
        return tuple(parts)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        apart = [gradients[i : i + context.num_tensors] for i in range(0, len(gradients), context.num_tensors)]
        flat = [_flatten_dense_tensors(own) for own in apart]  # type: ignore[no-untyped-call]
        for one in flat[1:]:
            flat[0].add_(one)
        return (None, *_unflatten_dense_tensors(flat[0], apart[0]))  # type: ignore[no-untyped-call]


def _broadcast(
    tensors: Sequence[torch.Tensor], devices: Sequence[Any], detach: bool = False
) -> list[list[torch.Tensor]]:
    if not tensors:
        return []
    copies = _Coalesced.apply(len(devices), *tensors)
    return [list(copies[i : i + len(tensors)]) for i in range(0, len(copies), len(tensors))]


def _least_s(act: Callable[[], None]) -> float:
    act()
    seconds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        act()
        seconds.append(time.process_time() - start)
    return min(seconds)  # others on the machine only ever add


def replicate_s(network: nn.Module, num_replicas: int) -> float:
    """Replicas of a network and the way back of their gradients, without a copy."""

    def act() -> None:
        with (
            patch("torch.nn.parallel.replicate._broadcast_coalesced_reshape", _broadcast),
            patch("torch.nn.parallel.replicate._get_device_index", lambda device, optional: device),
        ):
            replicas = replicate(network, list(range(num_replicas)))
        used = [
            tensor
            for replica in replicas
            for module in replica.modules()
            for tensor in vars(module)["_former_parameters"].values()
        ]
        torch.autograd.grad(used, list(network.parameters()), [tensor.detach() for tensor in used])

    return _least_s(act)


def forward_s(network: nn.Module, num_replicas: int) -> float:
    """Forward of all replicas in threads, each with two tiny samples."""
    sample = torch.ones(2, 3, 8, 8)
    if num_replicas == 1:
        return _least_s(lambda: network(sample))

    def act() -> None:
        threads = [Thread(target=network, args=(sample,)) for _ in range(num_replicas)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return _least_s(act)


class _Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operators that are called, but for views."""

    num = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num += not func.is_view
        return func(*args, **(kwargs or {}))


def measured(name: str) -> list[dict[str, Any]]:
    network = build(name)
    num_tensors = len(list(network.parameters())) + len(list(network.buffers()))
    with _Count() as count:  # type: ignore[no-untyped-call]
        network(torch.ones(2, 3, 8, 8))
    rows = []
    for replicas in (1, *REPLICAS):
        row: dict[str, Any] = {"network": name, "replicas": replicas, "tensors": num_tensors, "operators": count.num}
        if replicas > 1:
            row["replicate_s"] = replicate_s(network, replicas)
            row["replicate_tensor_s"] = row["replicate_s"] / num_tensors / replicas
        row["forward_s"] = forward_s(network, replicas)
        row["forward_operator_s"] = row["forward_s"] / count.num / replicas
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for name in NETWORKS for row in measured(name)]
    for row in rows:
        print({name: f"{value:.3g}" if isinstance(value, float) else value for name, value in row.items()})
    several = [row for row in rows if row["replicas"] > 1]
    found = {
        "processor": environment.processor_name(),
        "torch": torch.__version__,
        "date": datetime.now(UTC).date().isoformat(),
        "replicate_tensor_s": min(row["replicate_tensor_s"] for row in several),
        "forward_operator_s": min(row["forward_operator_s"] for row in several),
        "rows": rows,
    }
    print({name: value for name, value in found.items() if name != "rows"})
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Host time of torch.nn.DataParallel in a step: replicating each tensor, and all forward passes in threads of one process.

    python -m benchmarks.data_parallel --json benchmarks/results/data_parallel.json

DataParallel makes no replicas without GPUs, but its host work is the same on any device. This benchmark runs PyTorch's
`replicate` on small networks and replaces only the copies between devices, with the same flattening and splitting. The backward
pass adds up gradients in the same way. All replicas run forward in threads like `parallel_apply`. Samples are so small that
calling operators takes nearly all the time, and the interpreter lock admits one thread at a time. The two times are divided by
tensors × replicas and by operators × replicas. Seconds are CPU time, so other processes do not count. Threads that share an
interpreter take turns, so their total CPU time equals the elapsed time. chronograd/predict/scaling.py has the constants.
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

# Small networks, where computing takes little time compared with calling operators.
NETWORKS = ("resnet20", "resnet56")
REPLICAS = (2, 4)
ROUNDS = 25


class _Coalesced(torch.autograd.Function):
    """Broadcast of torch.nn.parallel without copies: splits one flat tensor per replica; the backward pass adds gradients
    up.
    """

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
    return min(seconds)  # other processes can only add time


def replicate_s(network: nn.Module, num_replicas: int) -> float:
    """Return the seconds to replicate a network and to add up its gradients, without copies."""

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
    """Return the seconds of all replicas' forward passes in threads, each with two tiny samples."""
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
    """Counter of called operators, except views."""

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

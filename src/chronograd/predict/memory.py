"""Peak memory of a pass: what is alive at once, from the lifetimes in a trace.

Left out: the allocator's rounding and fragmentation, kernels' workspace, the framework's own context.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chronograd.trace import Trace

# Tensors of the size of the parameters that an optimizer keeps: the momentum of SGD, both moments of Adam.
OPTIMIZER_STATES = {"sgd": 0, "sgd-momentum": 1, "adamw": 2}


@dataclass(frozen=True)
class Memory:
    """Bytes at the moment of the peak, by role. Activations include their gradients and the input."""

    parameters: int
    buffers: int
    gradients: int
    optimizer_state: int
    activations: int

    @property
    def total(self) -> int:
        return self.parameters + self.buffers + self.gradients + self.optimizer_state + self.activations


def optimizer_kind(optimizer: str, momentum: float) -> str:
    """Key of OPTIMIZER_STATES for a training configuration.

    >>> optimizer_kind("sgd", 0.9)
    'sgd-momentum'
    """
    return "sgd-momentum" if optimizer == "sgd" and momentum > 0 else optimizer


def peak_memory(trace: Trace, batch: int, optimizer: str = "sgd-momentum") -> Memory:
    """Memory at the peak of a step with `batch` samples on one device.

    Args:
        batch: samples in this step.
        optimizer: key of OPTIMIZER_STATES; nothing is kept in inference.

    The peak is either inside the pass, or in the update, when all gradients exist and no activation does.
    """
    is_training = trace.mode == "training"
    trained = {n: t for n, t in trace.parameters().items() if n not in set(trace.frozen)}
    trained_bytes = sum(trace.storages[t.storage].bytes.at(batch) for t in trained.values()) if is_training else 0
    state = OPTIMIZER_STATES[optimizer] * trained_bytes
    live = trace.live_bytes(batch)
    moment = int(np.argmax(live))
    by_role = dict.fromkeys(("parameter", "buffer", "gradient", "activation", "input"), 0)
    for s in trace.storages:
        if max(s.birth, 0) <= moment and (s.death is None or s.death >= moment):
            by_role[s.role] += s.bytes.at(batch)
    inside = Memory(
        by_role["parameter"],
        by_role["buffer"],
        by_role["gradient"],
        state,
        by_role["activation"] + by_role["input"],
    )
    update = Memory(by_role["parameter"], by_role["buffer"], trained_bytes, state, 0)
    return max(inside, update, key=lambda m: m.total)

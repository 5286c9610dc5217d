"""How long a rank waits for the others: from its own last gradient to the end of its backward. On the CPU.

The rank that waits least is the slowest; what all ranks wait is the cost of the link that backward did not hide.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch


class GradientClock:
    """Notes when the last gradient of this rank is ready, and when backward returns."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._last_s = self._waited_s = 0.0
        self._in_backward = self._has_waited = False
        trained: list[Any] = [p for p in parameters if p.requires_grad]
        self._handles = [p.register_post_accumulate_grad_hook(self._note) for p in trained]

    def take_s(self) -> float | None:
        """Seconds waited in backwards since this was last asked; None without a backward."""
        waited_s = self._waited_s if self._has_waited else None
        self._waited_s, self._has_waited = 0.0, False
        return waited_s

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _note(self, parameter: torch.Tensor) -> None:
        self._last_s = time.perf_counter()
        if not self._in_backward:
            self._in_backward = True
            _at_end_of_backward(self._go_last)

    def _go_last(self) -> None:
        """Averages are waited for in callbacks such as this; one that is queued now comes after all of them."""
        _at_end_of_backward(self._end)

    def _end(self) -> None:
        self._waited_s += time.perf_counter() - self._last_s
        self._in_backward, self._has_waited = False, True


def _at_end_of_backward(call: Any) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(call)

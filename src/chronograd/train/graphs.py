"""A network whose passes are CUDA graphs: recorded at the first batch, then launched as a whole, without the host's time per operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

WARM_UP = 3  # passes before recording, which load kernels and allocate workspaces


class GraphedNetwork(nn.Module):
    """A network on an NVIDIA GPU that records its forward and backward pass at the first batch, and replays them.

    Without gradients, it records the forward pass alone. Batches of another shape run operator by operator. Recording does not
    change parameters or statistics of norms. Outputs and gradients share the memory of the recording: use them before the next
    pass.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self._replay: Callable[[Tensor], Any] | None = None
        self._shape: torch.Size | None = None

    def forward(self, seen: Tensor) -> Any:
        if self._replay is None:
            self._shape = seen.shape
            self._replay = self._recorded(seen)
        return self._replay(seen) if seen.shape == self._shape else self.network(seen)

    def _recorded(self, seen: Tensor) -> Callable[[Tensor], Any]:
        before = [buffer.clone() for buffer in self.network.buffers()]
        dtype = torch.get_autocast_dtype("cuda")
        # A cast that is cached outside of a graph would not be repeated by it.
        with torch.autocast("cuda", dtype, enabled=torch.is_autocast_enabled("cuda"), cache_enabled=False):
            replay = (
                _recorded_passes(self.network, seen)
                if torch.is_grad_enabled()
                else _recorded_forward(self.network, seen)
            )
        for buffer, value in zip(self.network.buffers(), before, strict=True):
            buffer.copy_(value)
        return replay


def _recorded_passes(network: nn.Module, seen: Tensor) -> Callable[[Tensor], Any]:
    """Return the forward pass whose backward pass is a graph, too. The network itself stays as it was."""
    plain = network.forward
    torch.cuda.make_graphed_callables(network, (seen.detach().clone(),), num_warmup_iters=WARM_UP)
    replay: Callable[[Tensor], Any] = network.forward
    network.forward = plain
    return replay


def _recorded_forward(network: nn.Module, seen: Tensor) -> Callable[[Tensor], Any]:
    own = seen.clone()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            network(own)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = network(own)

    def replay(given: Tensor) -> Any:
        own.copy_(given)
        graph.replay()
        return outputs

    return replay

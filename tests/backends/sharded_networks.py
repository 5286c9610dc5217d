"""A small decoder one of whose ranks is killed once; use `sharded_networks:killed` with this folder on the path."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from torch import nn

from chronograd.models.transformer import Llama
from chronograd.train import shards


def killed(at: str = "", mark: str = "", num_classes: int = 20) -> nn.Module:
    """Return the decoder. With `at`, rank 1 kills itself unless the file `mark` exists.

    Args:
        at: `step`, in its seventh forward pass, or `checkpoint`, when half of its part of the second one is written.
    """
    network = Llama(layers=2, width=32, heads=4, ffn=48, vocab=num_classes, sequence=12)
    if os.environ.get("RANK") != "1" or not at or Path(mark).exists():
        return network
    if at == "step":
        network.register_forward_pre_hook(_At(7, mark).count)
    else:
        save, moment = shards.save_parts, _At(2, mark)

        def save_half(tensors: Any, path: Path, rank: int) -> None:
            save(tensors, path, rank)
            os.truncate(path, path.stat().st_size // 2)
            moment.count()
            save(tensors, path, rank)

        shards.save_parts = save_half
    return network


class _At:
    """A kill of this process at one of several calls."""

    def __init__(self, call: int, mark: str) -> None:
        self.left, self.mark = call, mark

    def count(self, *_: object) -> None:
        self.left -= 1
        if self.left == 0:
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)

"""Networks for training tests; use `package.module:function` with this folder on the path."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from chronograd.train import checkpoint_folder, inputs, loop


def plain(num_classes: int = 10, in_channels: int = 1) -> nn.Module:
    """Return one convolution and one linear layer for 8x8 images, without batch norm or dropout."""
    return nn.Sequential(
        nn.Conv2d(in_channels, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(128, num_classes)
    )


def random(num_classes: int = 10, sleep_s: float = 0.0, hold: str = "", hold_at: int = 12) -> nn.Module:
    """Return a network with batch norm and dropout: a resumed run differs if any state is missing.

    Args:
        hold: a file; while it exists, processes wait at the start of their step `hold_at`. A process that waits has
            written the file HOLD-PID.
    """
    return nn.Sequential(
        _Sleep(sleep_s, hold, hold_at), nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3),
        nn.Linear(288, num_classes),
    )  # fmt: skip


def raising(num_classes: int = 10) -> nn.Module:
    """Return a network that raises in the third step of rank 1."""
    return nn.Sequential(_RaiseOnRank1(), nn.Flatten(), nn.Linear(64, num_classes))


def killed_once(num_classes: int = 10) -> nn.Module:
    """Return a network whose rank 1 kills itself in its tenth step of the first start."""
    return nn.Sequential(_KillOnce(), nn.Flatten(), nn.Linear(64, num_classes))


def failing(num_classes: int = 10, how: str = "kill", rank: int = 1, times: int = 1, marks: str = "") -> nn.Module:
    """Return a network whose rank is killed or hangs in its tenth step, its second evaluation or its second checkpoint.

    Args:
        how: `kill`; `stop` (by SIGSTOP, in forward); or an endless loop in `input`, `evaluation` or `checkpoint`.
        times: number of faults; each creates a file in the folder `marks`.
    """
    if os.environ.get("RANK") == str(rank):
        fault = _Fault(how, times, Path(marks))
        if how == "input":
            inputs.ImageInput.gather = fault.before(inputs.ImageInput.gather, 10)  # type: ignore[method-assign]
        elif how == "evaluation":
            loop.evaluate = fault.before(loop.evaluate, 2)
        elif how == "checkpoint":
            checkpoint_folder.write = fault.before(checkpoint_folder.write, 2)
        else:
            network = random(num_classes)
            step = fault.before(lambda: None, 10)
            network.register_forward_pre_hook(lambda module, images: step() if module.training else None)
            return network
    return random(num_classes)


class _Fault:
    def __init__(self, how: str, times: int, marks: Path) -> None:
        self.how, self.times, self.marks = how, times, marks

    def before(self, function: Callable[..., Any], call: int) -> Callable[..., Any]:
        """Return the function with the fault in one of its calls, counted from 1."""
        calls = itertools.count(1)

        def faulty(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == call:
                self.happen()
            return function(*args, **kwargs)

        return faulty

    def happen(self) -> None:
        before = len(list(self.marks.iterdir()))
        if before >= self.times:
            return
        (self.marks / str(before)).touch()
        if self.how in ("kill", "stop"):
            os.kill(os.getpid(), signal.SIGKILL if self.how == "kill" else signal.SIGSTOP)
        while True:
            pass


class _Sleep(nn.Module):
    def __init__(self, seconds: float, hold: str, hold_at: int) -> None:
        super().__init__()
        self.seconds, self.hold, self.hold_at, self.calls = seconds, hold, hold_at, 0

    def forward(self, images_NCHW: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(self.seconds)
            self.calls += 1
            if self.calls == self.hold_at and os.path.exists(self.hold):
                open(f"{self.hold}-{os.getpid()}", "w").close()
                while os.path.exists(self.hold):
                    time.sleep(0.01)
        return images_NCHW


class _RaiseOnRank1(nn.Module):
    calls = 0

    def forward(self, images_NCHW: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 3 and os.environ.get("RANK") == "1":
            raise ValueError("no good on rank 1")
        return images_NCHW


class _KillOnce(nn.Module):
    calls = 0

    def forward(self, images_NCHW: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        is_first_start = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
        if self.training and self.calls == 10 and os.environ.get("RANK") == "1" and is_first_start:
            os.kill(os.getpid(), signal.SIGKILL)
        return images_NCHW

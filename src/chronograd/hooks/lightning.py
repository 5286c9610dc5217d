"""Recording of a Lightning Trainer.

trainer = lightning.Trainer(callbacks=[RecordCallback("runs/mine")])
"""

from __future__ import annotations

from typing import Any

from chronograd.errors import MissingExtraError
from chronograd.hooks.events import LoopEvents

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    raise MissingExtraError("lightning", "hooks", "recording a Lightning Trainer") from None


class RecordCallback(Callback):
    """Records `fit`: each optimizer step with its parts; the clock excludes validation.

    Arguments and errors as of `chronograd.record`; device, ranks and batch are the trainer's. With accumulation, a step
    includes all its batches. With manual optimization, parts are distinguished if the module calls `manual_backward`.
    """

    def __init__(self, path: Any = None, **options: Any) -> None:
        self.events = LoopEvents(path, **options)
        self._num_updates = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        size = getattr(trainer.train_dataloader, "batch_size", None)
        batch = None if size is None else size * trainer.accumulate_grad_batches * trainer.world_size
        device = str(trainer.strategy.root_device)
        self.events.begin(device=device, rank=trainer.global_rank, world_size=trainer.world_size, batch=batch)

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if not self.events.is_in_step:
            self._num_updates = trainer.global_step
        self.events.begin_step()
        self.events.part("forward")

    def on_before_backward(self, *_: Any) -> None:
        self.events.part("backward")

    def on_after_backward(self, *_: Any) -> None:
        self.events.part(None)

    def on_before_optimizer_step(self, *_: Any) -> None:
        self.events.part("update")

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self.events.part(None)
        if trainer.global_step != self._num_updates:
            self.events.end_step()

    def on_validation_start(self, *_: Any) -> None:
        self.events.pause()

    def on_validation_end(self, *_: Any) -> None:
        self.events.go_on()

    def on_train_end(self, *_: Any) -> None:
        self.events.end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.events.end(exception)

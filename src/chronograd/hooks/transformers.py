"""Recording of Hugging Face's Trainer.

trainer = transformers.Trainer(..., callbacks=[RecordTrainerCallback("runs/mine")])
"""

from __future__ import annotations

from typing import Any

from chronograd.errors import MissingExtraError
from chronograd.hooks.events import LoopEvents

try:
    from transformers import TrainerCallback
except ImportError:
    raise MissingExtraError("transformers", "hooks", "recording Hugging Face's Trainer") from None


class RecordTrainerCallback(TrainerCallback):
    """Records `train`: each optimizer step with its update; the clock excludes logging, evaluation and saving.

    Arguments and errors as of `chronograd.record`; device, ranks and batch are the trainer's. A trainer that raises does not
    call back: its steps are in the run directory, but there is no record.
    """

    def __init__(self, path: Any = None, **options: Any) -> None:
        self.events = LoopEvents(path, **options)
        self._awaited: set[str] = set()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        self.events.begin(device=str(args.device), rank=args.process_index, world_size=args.world_size, batch=batch)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.events.begin_step()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.events.part("update")

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.events.part(None)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.events.end_step()
        self._await(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._await(control)

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._came("log")

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._came("evaluate")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._came("save")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.events.end()

    def _await(self, control: Any) -> None:
        """Wait for the trainer's announced activities: it announces them, and calls back after each."""
        self._awaited = {name for name in ("log", "evaluate", "save") if getattr(control, f"should_{name}")}
        if self._awaited:
            self.events.pause()

    def _came(self, name: str) -> None:
        self._awaited.discard(name)
        if not self._awaited:
            self.events.go_on()

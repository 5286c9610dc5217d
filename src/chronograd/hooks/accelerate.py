"""Recording of a loop with Hugging Face's Accelerate.

with record(accelerator, "runs/mine", batch=64):
    for x, y in loader:
        loss = loss_of(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from chronograd.errors import InputError, MissingExtraError
from chronograd.hooks.events import LoopEvents
from chronograd.measure.user_loop import LoopRecorder

try:
    from accelerate import Accelerator
except ImportError:
    raise MissingExtraError("accelerate", "hooks", "recording a loop of Accelerate") from None


@contextmanager
def record(accelerator: Accelerator, path: Any = None, **options: Any) -> Iterator[LoopRecorder]:
    """Record a loop in a context: a step lasts from the first forward pass of a prepared network to the update of its
    gradients.

    The calls of `accelerator.backward` and of the prepared optimizer give its parts. Enter it after `prepare`. Arguments as of
    `chronograd.record`; device and ranks are the accelerator's. Evaluation goes into `with rec.pause():`.

    Raises: InputError if no network or optimizer was prepared, and the errors of `chronograd.record`.
    """
    networks, optimizers = accelerator._models, accelerator._optimizers
    if not networks or not optimizers:
        raise InputError("the accelerator has prepared no network and optimizer", "call accelerator.prepare before")
    events = LoopEvents(path, **options)

    def before_forward(*_: Any) -> None:
        if torch.is_grad_enabled():
            events.begin_step()
            events.part("forward")

    def after(call: Callable[[], Any], part: str) -> Any:
        events.part(part)
        result = call()
        events.part(None)
        return result

    def around_step(step: Callable[..., Any]) -> Callable[..., Any]:
        def updated(*arguments: Any, **named: Any) -> Any:
            result = after(lambda: step(*arguments, **named), "update")
            if accelerator.sync_gradients:
                events.end_step()
            return result

        return updated

    backward = accelerator.backward
    found = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
    events.begin(device=str(accelerator.device), **found)
    with ExitStack() as stack:
        for network in networks:
            stack.callback(network.register_forward_pre_hook(before_forward).remove)
        for optimizer in optimizers:
            _replaced(stack, optimizer, "step", around_step(optimizer.step))
        _replaced(stack, accelerator, "backward", lambda *a, **k: after(lambda: backward(*a, **k), "backward"))
        try:
            yield events.recorder
        except BaseException as error:
            events.end(error)
            raise
        events.end()


def _replaced(stack: ExitStack, owner: Any, name: str, call: Callable[..., Any]) -> None:
    """Replace an attribute until the stack is left."""
    own = vars(owner).get(name)
    setattr(owner, name, call)
    stack.callback(lambda: delattr(owner, name) if own is None else setattr(owner, name, own))

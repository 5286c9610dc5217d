"""A loop recorded by events, for trainers with callbacks; the counterpart of the blocks of `chronograd.record`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from chronograd.measure.user_loop import LoopRecorder


class LoopEvents:
    """Begins and ends a recording, its steps, their parts, and pauses. Repeated begins and ends count once.

    `recorder` is the recording, once it has begun. Arguments and errors as of `chronograd.record`.
    """

    recorder: LoopRecorder

    def __init__(self, path: Any = None, **options: Any) -> None:
        self._path, self._options = path, options
        self._is_recording = False
        self._open: dict[str, AbstractContextManager[None]] = {}

    @property
    def is_in_step(self) -> bool:
        return "step" in self._open

    def begin(self, **found: Any) -> None:
        """Begin the recording. Facts from the trainer, such as its device, apply unless the user has stated them."""
        if self._is_recording:
            return
        known = {name: value for name, value in found.items() if value is not None}
        self.recorder = LoopRecorder(self._path, **(known | self._options)).__enter__()
        self._is_recording = True

    def begin_step(self) -> None:
        if self._is_recording and not self.is_in_step:
            self._end("pause")
            self._begin("step", self.recorder.step())

    def end_step(self) -> None:
        self._end("part")
        self._end("step")

    def part(self, name: str | None) -> None:
        """Begin a part of the step; None ends the previous part."""
        self._end("part")
        if name is not None and self.is_in_step:
            self._begin("part", self.recorder.part(name))

    def pause(self) -> None:
        """Stop the clock until `go_on`, or the next step; between steps only."""
        if self._is_recording and not self._open:
            self._begin("pause", self.recorder.pause())

    def go_on(self) -> None:
        self._end("pause")

    def end(self, error: BaseException | None = None) -> None:
        """End the loop. A step that raised is not written."""
        if not self._is_recording:
            return
        self._is_recording = False
        told = (None, None, None) if error is None else (type(error), error, error.__traceback__)
        for name in ("part", "step", "pause"):
            if name in self._open:
                self._open.pop(name).__exit__(*told)
        self.recorder.__exit__(*told)

    def _begin(self, name: str, context: AbstractContextManager[None]) -> None:
        context.__enter__()
        self._open[name] = context

    def _end(self, name: str) -> None:
        if name in self._open:
            self._open.pop(name).__exit__(None, None, None)

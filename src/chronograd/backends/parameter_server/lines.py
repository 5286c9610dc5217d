"""Steps files of an asynchronous run: one per learner, written by the driver."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from chronograd.backends.parameter_server.actors import Update
from chronograd.rundir import RunDir, StepWriter


class LearnerLines(StepWriter):
    """The steps file of learner 0, which has the run's events too, and those of the others.

    A line of an update goes to the file of its learner, with what the learner told of it.
    """

    def __init__(self, run: RunDir, num_learners: int) -> None:
        super().__init__(run.steps_path(0))
        self._others = [run.step_writer(learner) for learner in range(1, num_learners)]
        self.untold: dict[int, Update] = {}
        # One that was killed early has not written to all of them.
        self.attempt = max(writer.attempt for writer in (self, *self._others))
        for learner, writer in enumerate((self, *self._others)):
            writer.attempt = self.attempt
            self.write_for(learner, event="attempt", step=0)

    def write(self, **values: Any) -> None:
        update = None if "event" in values else self.untold.pop(values["step"], None)
        if update is None:
            super().write(**values)
        else:
            self.write_update(update, **values)

    def write_update(self, update: Update, **values: Any) -> None:
        told = asdict(update)
        told["step"] = told.pop("number")
        self.write_for(update.learner, **{**told, **values})

    def write_for(self, learner: int, /, **values: Any) -> None:
        """One line into the file of a learner."""
        if learner == 0:
            super().write(**values)
        else:
            self._others[learner - 1].write(**values)

    def sync(self) -> None:
        super().sync()
        for other in self._others:
            other.sync()

    def close(self) -> None:
        super().close()
        for other in self._others:
            other.close()

"""The driver of asynchronous SGD: `python -m chronograd.backends.parameter_server.run RUN_DIR train|measure`.

It starts servers and learners on Ray, gives the minibatches of the global order to the next idle learners, and follows
the updates. Learners meet only at the end of an epoch. There the network is evaluated, with the parameters of the
servers and the buffers of the learner that made the last update.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from chronograd.backends.parameter_server import record as results
from chronograd.backends.parameter_server.group import ParameterServerGroup, running_group
from chronograd.backends.ray_session import take_along
from chronograd.data import datasets
from chronograd.data.datasets import Dataset
from chronograd.errors import JobError
from chronograd.job import Job
from chronograd.rundir import Line, RunDir, StepLine, StepWriter
from chronograd.rundir.steps import Attempt
from chronograd.train.loop import train
from chronograd.train.rank_command import Measuring, run_rank
from chronograd.train.rank_context import RankContext, rank_context_from_environment
from chronograd.train.result import trained_params
from chronograd.train.step import TrainingStep

OF_UPDATE = ("learner", "staleness", "pull_s", "compute_s", "push_s", "time_s")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the driver. Return its exit status."""
    return run_rank(argv, _train, _measure, at_end=take_along)


def _train(run: RunDir, job: Job) -> None:
    place = rank_context_from_environment(job)
    with LearnerLines(run, job.cluster.count) as lines:
        dataset = datasets.load(job.data, job.training.seed)
        step = AsynchronousStep(job, dataset, place, run.given_weights)
        with running_group(run, job, place, step) as group:
            lines.write_each(group.starts)
            step.group = group
            progress = train(step, dataset, place, run, lines)
            lines.write_each(group.memory(progress.step))
    run.save_record(results.of_training(run, job, dataset, progress.stopped, trained_params(step.network)))


def _measure(run: RunDir, job: Job, asked: Measuring) -> None:
    """Time updates after a warm-up of every learner. All times are on the clock of server 0."""
    if asked.with_epochs:
        raise JobError("backend parameter_server times updates, not epochs without input", "leave out --epochs")
    timing, place = asked.timing, rank_context_from_environment(job)
    with LearnerLines(run, job.cluster.count) as lines:
        dataset = datasets.load(job.data, job.training.seed)
        step = TrainingStep(job, dataset, place, run.given_weights)
        with running_group(run, job, place, step) as group:
            lines.write_each(group.starts)
            group.load(step, 0)
            updates = group.updates(itertools.count())
            for _ in range(timing.warmup * job.cluster.count):
                before = next(updates)
            before_s = before.needed("time_s")
            end_s = before_s + timing.seconds
            for update in itertools.islice(updates, timing.num_steps):
                now_s = update.needed("time_s")
                lines.write(replace(update, mode="asynchronous", step_time_s=now_s - before_s))
                before_s = now_s
                if now_s > end_s:
                    break
            lines.write_each(group.memory(0))
    run.save_record(results.of_measurement(run, job, timing, asked.flops_per_step))


class LearnerLines(StepWriter):
    """The steps files of the learners; learner 0's also has the run's events. Each update goes to its learner's file."""

    def __init__(self, run: RunDir, num_learners: int) -> None:
        super().__init__(run.steps_path(0))
        self._of_learner: list[StepWriter] = [self, *map(run.step_writer, range(1, num_learners))]
        # A learner that was killed early has not written to all of them.
        attempt = max(writer.attempt for writer in self._of_learner)
        for writer in self._of_learner:
            writer.attempt = attempt
        self.write_each([Attempt()] * num_learners)

    def write(self, line: Line) -> None:
        if isinstance(line, StepLine) and line.learner:
            self._of_learner[line.learner].write(line)
        else:
            super().write(line)

    def write_each(self, lines: Sequence[Line]) -> None:
        """Write one line into the file of each learner."""
        for writer, line in zip(self._of_learner, lines, strict=True):
            writer.write(line)

    def sync(self) -> None:
        super().sync()
        for other in self._of_learner[1:]:
            other.sync()

    def close(self) -> None:
        super().close()
        for other in self._of_learner[1:]:
            other.close()


class AsynchronousStep(TrainingStep):
    """The network on the driver. One step is an update by a learner.

    At the start of a run and after each epoch it has the servers' parameters, optimizer state and buffers.
    """

    group: ParameterServerGroup

    def __init__(self, job: Job, dataset: Dataset, place: RankContext, initial_weights: Path | None) -> None:
        super().__init__(job, dataset, place, initial_weights)
        self._is_loaded = False
        self._updates: Iterator[StepLine] = iter(())

    def run(self, index: int) -> dict[str, Any]:
        """Wait for update `index`, counted from 0. Its parts are those that its learner reports."""
        if index % self.steps_per_epoch == 0:
            if not self._is_loaded:
                self.group.load(self, index)
                self._is_loaded = True
            self._updates = self.group.updates(range(index, index + self.steps_per_epoch))
        update = next(self._updates)
        self.loss = torch.tensor(update.loss)
        if (index + 1) % self.steps_per_epoch == 0:
            self.group.fetch(self, update.learner or 0)
        return {name: update.needed(name) for name in OF_UPDATE}

    @property
    def rank_samples(self) -> int:
        return self.training.batch


if __name__ == "__main__":
    sys.exit(main())

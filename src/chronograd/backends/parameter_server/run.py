"""The driver of asynchronous SGD: `python -m chronograd.backends.parameter_server.run RUN_DIR train|measure`.

It starts servers and learners on Ray, hands out the minibatches of the global order, each to the learner that is next to
be idle, and follows the updates. Learners meet only at the end of an epoch, where the network is evaluated, with the
parameters of the servers and the buffers of the learner that made the last update.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from chronograd.backends.parameter_server import record as results
from chronograd.backends.parameter_server.actors import Update, shards, trained_parameters
from chronograd.backends.parameter_server.group import Group, ray_session, take_along
from chronograd.backends.parameter_server.lines import LearnerLines
from chronograd.data import datasets
from chronograd.data.datasets import Dataset
from chronograd.errors import JobError
from chronograd.job import Job
from chronograd.rundir import RunDir
from chronograd.train.loop import train
from chronograd.train.rank_command import Measuring, run_rank
from chronograd.train.rank_context import RankContext, rank_context_from_environment
from chronograd.train.step import TrainingStep


def main(argv: Sequence[str] | None = None) -> int:
    """Run the driver. Returns its exit status."""
    return run_rank(argv, _train, _measure, at_end=take_along)


def _train(run: RunDir, job: Job) -> None:
    place = rank_context_from_environment(job)
    with LearnerLines(run, job.cluster.count) as lines:
        dataset = datasets.load(job.data, job.training.seed)
        step = AsynchronousStep(job, dataset, place, _weights(run), lines)
        parts = shards(trained_parameters(step.optimizer), job.communication.servers)
        with ray_session(job, place, parts, run), Group(job, place, step, parts, _weights(run)) as group:
            group.write_starts(lines)
            step.group = group
            progress = train(step, dataset, place, run, lines)
            group.write_memory(lines, progress.step)
    trained = sum(p.numel() for p in step.network.parameters() if p.requires_grad)
    whole = sum(p.numel() for p in step.network.parameters())
    run.save_record(results.of_training(run, job, dataset, progress.stopped, trained, whole))


def _measure(run: RunDir, job: Job, asked: Measuring) -> None:
    """Time updates after some of every learner for warm-up. The clock is that of server 0 throughout."""
    if asked.with_epochs:
        raise JobError("backend parameter_server times updates, not epochs without input", "leave out --epochs")
    timing, place = asked.timing, rank_context_from_environment(job)
    with LearnerLines(run, job.cluster.count) as lines:
        dataset = datasets.load(job.data, job.training.seed)
        step = TrainingStep(job, dataset, place, _weights(run))
        parts = shards(trained_parameters(step.optimizer), job.communication.servers)
        with ray_session(job, place, parts, run), Group(job, place, step, parts, _weights(run)) as group:
            group.write_starts(lines)
            group.load(step, 0)
            updates = group.updates(itertools.count())
            for _ in range(timing.warmup * job.cluster.count):
                before = next(updates)
            end_s = before.time_s + timing.seconds
            for update in itertools.islice(updates, timing.num_steps):
                lines.write_update(update, mode="asynchronous", step_time_s=update.time_s - before.time_s)
                before = update
                if update.time_s > end_s:
                    break
            group.write_memory(lines, 0)
    run.save_record(results.of_measurement(run, job, timing, asked.flops_per_step))


def _weights(run: RunDir) -> Path | None:
    return run.initial_weights if run.initial_weights.exists() else None


class AsynchronousStep(TrainingStep):
    """The network on the driver. A step of it is one update that a learner makes.

    Its parameters, optimizer state and buffers are those of the servers at the start of a run and after each epoch.
    """

    group: Group

    def __init__(
        self, job: Job, dataset: Dataset, place: RankContext, initial_weights: Path | None, lines: LearnerLines
    ) -> None:
        super().__init__(job, dataset, place, initial_weights)
        self._lines = lines
        self._is_loaded = False
        self._updates: Iterator[Update] = iter(())

    def run(self, index: int) -> dict[str, float]:
        """Wait for update `index`, counted from 0. Its parts are those that its learner tells."""
        if index % self.steps_per_epoch == 0:
            if not self._is_loaded:
                self.group.load(self, index)
                self._is_loaded = True
            self._updates = self.group.updates(range(index, index + self.steps_per_epoch))
        update = next(self._updates)
        self._lines.untold[index + 1] = update
        self.loss = torch.tensor(update.loss)
        if (index + 1) % self.steps_per_epoch == 0:
            self.group.fetch(self, update.learner)
        return {}

    @property
    def rank_samples(self) -> int:
        return self.training.batch


if __name__ == "__main__":
    sys.exit(main())

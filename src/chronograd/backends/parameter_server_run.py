"""The driver of asynchronous SGD: `python -m chronograd.backends.parameter_server_run RUN_DIR train|measure`.

It starts servers and learners on Ray, hands out the minibatches of the global order, each to the learner that is next to
be idle, and follows the updates. Learners meet only at the end of an epoch, where the network is evaluated, with the
parameters of the servers and the buffers of the learner that made the last update.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from chronograd.backends import parameter_server_record as results
from chronograd.backends.parameter_server_actors import Update, shards, trained_parameters
from chronograd.backends.parameter_server_group import Group, hold_on, ray_session
from chronograd.data import datasets
from chronograd.data.datasets import Dataset
from chronograd.errors import ChronogradError, JobError
from chronograd.job import Job
from chronograd.measure.steps import Timing
from chronograd.rundir import RunDir, StepWriter
from chronograd.train.loop import train
from chronograd.train.place import Place, place_from_environment
from chronograd.train.step import TrainingStep


def main(argv: Sequence[str] | None = None) -> int:
    """Run the driver. Returns its exit status; errors of the user's input are one message, no traceback."""
    arguments = _parser().parse_args(argv)
    hold_on()
    try:
        run = RunDir.open(arguments.run)
        job = run.job()
        if job.task != "classification":
            raise JobError(f"task {job.task} is not trained yet; classification is")
        if arguments.epochs:
            raise JobError("backend parameter_server times updates, not epochs without input", "leave out --epochs")
        place = place_from_environment(job)
        if arguments.verb == "train":
            _train(run, job, place)
        else:
            timing = Timing(arguments.warmup, arguments.steps, arguments.seconds)
            _measure(run, job, place, timing, arguments.flops_per_step)
    except ChronogradError as error:
        print(f"Error: {error}", file=sys.stderr, flush=True)
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    return 0


def _train(run: RunDir, job: Job, place: Place) -> None:
    with LearnerLines(run, job.cluster.count) as lines:
        dataset = datasets.load(job.data, job.training.seed)
        step = AsynchronousStep(job, dataset, place, _weights(run), lines)
        parts = shards(trained_parameters(step.optimizer), job.communication.servers)
        with ray_session(job, place, parts), Group(job, place, step, parts, _weights(run)) as group:
            group.write_starts(lines)
            step.group = group
            progress = train(step, dataset, place, run, lines)
            group.write_memory(lines, progress.step)
    trained = sum(p.numel() for p in step.network.parameters() if p.requires_grad)
    whole = sum(p.numel() for p in step.network.parameters())
    run.save_record(results.of_training(run, job, dataset, progress.stopped, trained, whole))


def _measure(run: RunDir, job: Job, place: Place, timing: Timing, flops_per_step: float | None) -> None:
    """Time updates after `timing.warmup` of every learner. The clock is that of server 0 throughout."""
    with LearnerLines(run, job.cluster.count) as lines:
        dataset = datasets.load(job.data, job.training.seed)
        step = TrainingStep(job, dataset, place, _weights(run))
        parts = shards(trained_parameters(step.optimizer), job.communication.servers)
        with ray_session(job, place, parts), Group(job, place, step, parts, _weights(run)) as group:
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
    run.save_record(results.of_measurement(run, job, timing, flops_per_step))


def _weights(run: RunDir) -> Path | None:
    return run.initial_weights if run.initial_weights.exists() else None


class LearnerLines(StepWriter):
    """The steps file of learner 0, which has the run's events too, and those of the others.

    A line of an update goes to the file of its learner, with what the learner told of it.
    """

    def __init__(self, run: RunDir, num_learners: int) -> None:
        super().__init__(run.steps_path(0))
        self._others = [run.step_writer(learner) for learner in range(1, num_learners)]
        self.untold: dict[int, Update] = {}

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


class AsynchronousStep(TrainingStep):
    """The network on the driver. A step of it is one update that a learner makes.

    Its parameters, optimizer state and buffers are those of the servers at the start of a run and after each epoch.
    """

    group: Group

    def __init__(
        self, job: Job, dataset: Dataset, place: Place, initial_weights: Path | None, lines: LearnerLines
    ) -> None:
        super().__init__(job, dataset, place, initial_weights)
        self._lines = lines
        self._is_loaded = False
        self._updates: Iterator[Update] = iter(())

    def run(self, index: int) -> None:
        """Wait for update `index`, counted from 0."""
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

    @property
    def rank_samples(self) -> int:
        return self.training.batch


def _parser() -> argparse.ArgumentParser:
    """As that of chronograd.train.worker."""
    parser = argparse.ArgumentParser(
        prog="python -m chronograd.backends.parameter_server_run", description="Train or measure by asynchronous SGD."
    )
    parser.add_argument("run", help="run directory with a job.yaml")
    parser.add_argument("verb", choices=("train", "measure"))
    parser.add_argument(
        "--warmup", type=int, default=Timing.warmup, help="updates of each learner before the clock starts"
    )
    parser.add_argument("--steps", type=int, default=Timing.num_steps, help="updates to time, at most")
    parser.add_argument("--seconds", type=float, default=Timing.seconds, help="seconds to time, at most")
    parser.add_argument("--flops-per-step", type=float, help="matrix FLOPs of one learner's minibatch")
    parser.add_argument("--epochs", action="store_true", help="refused: updates are timed")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""The process that runs a reinforcement learning job: `python -m chronograd.reinforce.worker RUN_DIR train`, with one agent.

As in every other run, an epoch is `reinforcement.steps_per_epoch` steps, then an evaluation, then a checkpoint. Each epoch
starts a new episode with its own random numbers, so a run resumed from a checkpoint takes the same steps as an uninterrupted
one.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from chronograd.errors import FileFormatError, InputError, MissingExtraError
from chronograd.figure import save_gif
from chronograd.job import Job
from chronograd.measure import process
from chronograd.measure.memory import PeakMemory
from chronograd.record import INTERVAL
from chronograd.reinforce import environments, result
from chronograd.reinforce.agent import Agent, Evaluation, FinishedEpisode, Moment, episode_pictures, evaluate
from chronograd.reinforce.build import agent_of
from chronograd.reinforce.clock import Clock
from chronograd.reinforce.dqn import DQN
from chronograd.reinforce.environments import Environment
from chronograd.reinforce.networks import dead_relus
from chronograd.rundir import EPISODE, RunDir, StepLine, StepWriter, steps
from chronograd.train import checkpoint_folder, order
from chronograd.train.checkpoint_folder import Progress
from chronograd.train.rank_command import run_rank
from chronograd.train.rank_context import RankContext, rank_context_from_environment

# Step lines: a hundred an epoch, each covering at most this number of steps.
LINES_PER_EPOCH, MAX_STEPS_OF_LINE = 100, 1_000
# The saved episode keeps every k-th picture, with k chosen so that it has at most MAX_PICTURES.
MAX_PICTURES = 100
PICTURE_WIDTH = 240
SECONDS_EACH = 0.05


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent. Return the exit status."""
    return run_rank(argv, _train)


def _train(run: RunDir, job: Job) -> None:
    place = rank_context_from_environment(job)
    with run.step_writer(place.rank) as lines:
        lines.write(steps.Attempt())
        memory = PeakMemory(place.device)
        lines.write(place.start_line())
        training = Learning(run, job, place, lines)
        lines.write(steps.WorkLine(params=training.agent.num_params(), steps_per_epoch=training.settings.steps_per_epoch,
                               rank_batch=job.training.batch))  # fmt: skip
        training.resume()
        lines.write(process.ready(training.progress.step))
        training.run_epochs()
        save_episode(run, job, training.agent, lines)
        lines.write(
            steps.MemoryLine(step=training.progress.step, memory_peak_bytes=memory.peak_bytes(), source=memory.source)
        )
        lines.write(process.end(training.progress.step))
        lines.sync()
        run.save_record(result.training_record(run, job, training.space, training.progress.stopped))


@dataclass
class Learning:
    """An agent, its environments and the progress of the run. `blind`: the dead ReLU layers that notes have already reported."""

    run: RunDir
    job: Job
    place: RankContext
    lines: StepWriter
    progress: Progress = field(default_factory=Progress)
    blind: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        assert self.job.reinforcement is not None
        self.settings = self.job.reinforcement
        self.environment = environments.make(self.job)
        self.space = environments.space(self.environment)
        self.agent: Agent = agent_of(self.job, self.space, self.place.device)
        self.scored = [
            environments.make(self.job, is_evaluation=True) for _ in range(self.settings.evaluation_episodes)
        ]
        self.clock = Clock()
        self.clock.time_parts(self.agent, self.environment)

    def resume(self) -> None:
        """Resume from the newest valid checkpoint, if one exists."""
        newest, state, notes = checkpoint_folder.newest_sound(self.run.checkpoints)
        if newest is None:
            return
        now = {"threads": self.place.threads, "device": self.place.device.type}
        try:
            self.progress = Progress.read(state["progress"])
            notes += checkpoint_folder.differences(state["place"], now)
            self.agent.restore(newest)
            self.agent.steps, self.agent.episodes, self.agent.updates = (
                int(state["agent"][name]) for name in ("steps", "episodes", "updates")
            )
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise FileFormatError(f"checkpoint {newest} does not fit this job: {error}") from None
        if extended := self.progress.go_on(self.job.training.epochs):
            notes.append(extended)
        for note in notes:
            self.lines.write(steps.NoteLine(step=self.progress.step, text=note))

    def run_epochs(self) -> None:
        """Train until the job's last epoch or its target return, updating `progress`."""
        while not self.progress.stopped:
            loss, seconds = self._epoch()
            self.progress.epoch += 1
            self.progress.step = self.agent.steps
            self.progress.training_time_s += seconds
            is_last = self.progress.epoch >= self.job.training.epochs or not math.isfinite(loss or 0.0)
            evaluation = Evaluation()
            if is_last or self.progress.epoch % self.job.training.evaluate_every == 0:
                evaluation = evaluated(self.agent, self.scored, self.job, self.lines, self.progress.step, self.blind)
            self.progress.stopped = why_stop(self.job, self.progress.epoch, loss, evaluation.returns)
            self.lines.write(line_of_epoch(self.progress, loss, seconds, evaluation))
            if self.progress.stopped or self.progress.epoch % self.job.training.checkpoint_every == 0:
                self.lines.sync()
                self._save()

    def _save(self) -> None:
        counts = {name: getattr(self.agent, name) for name in ("steps", "episodes", "updates")}
        place = {"threads": self.place.threads, "device": self.place.device.type}
        state = {"seed": self.job.training.seed, "place": place, "agent": counts}
        checkpoint_folder.write(self.run.checkpoints, self.progress, self.agent.save(), state)

    def _epoch(self) -> tuple[float | None, float]:
        """Run the steps of one epoch. Return the mean loss of its updates (None without updates) and the seconds."""
        seed = order.random_seed(self.job.training.seed, self.progress.epoch, 0) % 2**31
        log = _Log(self.lines, self.progress, self.job.training.batch, self.agent, self.clock)
        num_steps = self.settings.steps_per_epoch
        every = min(MAX_STEPS_OF_LINE, max(1, num_steps // LINES_PER_EPOCH))
        begin = self.agent.steps
        for moment in self.agent.live(self.environment, num_steps, seed):
            log.add(moment)
            done = self.agent.steps - begin
            if done % every == 0 or done == num_steps:
                log.write(self.agent.steps)
        return log.mean_loss(), log.seconds


def save_episode(run: RunDir, job: Job, agent: Agent, lines: StepWriter) -> None:
    """Save the first evaluation episode as pictures; if the renderer is not installed, write a note that names it."""
    assert job.reinforcement is not None
    try:
        environment = environments.make(job, is_evaluation=True, with_pictures=True)
        pictures = episode_pictures(agent, environment, job.reinforcement, job.training.seed)
        every = -(-len(pictures) // MAX_PICTURES)
        save_gif(run.path / EPISODE, pictures[::every], SECONDS_EACH, PICTURE_WIDTH)
    except (MissingExtraError, InputError) as error:
        lines.write(steps.NoteLine(step=agent.steps, text=f"{EPISODE} was not saved: {error.message}"))


def evaluated(
    agent: Agent, scored: list[Environment], job: Job, lines: StepWriter, step: int, blind: set[str]
) -> Evaluation:
    """Play the evaluation episodes. Write a note about dead ReLU layers that are not in `blind` yet."""
    assert job.reinforcement is not None
    largest = 0.0

    def watch(values_NA: np.ndarray) -> None:
        nonlocal largest
        largest = float(np.maximum(largest, np.abs(values_NA).max()))  # keeps NaN

    with dead_relus(agent.network) if isinstance(agent, DQN) else nullcontext(set[str]()) as dead:
        returns = evaluate(agent, scored, job.reinforcement, job.training.seed, watch)
    if dead - blind:
        blind |= dead
        text = (
            f"the network is blind: after {step:,} steps every ReLU of {', '.join(sorted(dead))} was 0 in a whole evaluation; "
            "a lower training.learning_rate may help"
        )
        lines.write(steps.NoteLine(step=step, text=text))
    return Evaluation(returns, largest)


def why_stop(job: Job, epoch: int, loss: float | None, returns: list[float]) -> str:
    """Return the reason why training stops after this epoch; empty if it continues."""
    target = job.reinforcement.target_return if job.reinforcement is not None else None
    if loss is not None and not math.isfinite(loss):
        return f"the loss of epoch {epoch} is not finite; a lower training.learning_rate may help"
    if target is not None and returns and float(np.mean(returns)) >= target:
        return "the target return was reached"
    return checkpoint_folder.ALL_EPOCHS if epoch >= job.training.epochs else ""


def line_of_epoch(progress: Progress, loss: float | None, seconds: float, evaluation: Evaluation) -> steps.Epoch:
    line = steps.Epoch(
        step=progress.step,
        epoch=progress.epoch,
        seconds=progress.training_time_s,
        epoch_time_s=seconds,
        train_loss=loss,
        test_loss=None,
        test_accuracy=None,
    )
    if loss is None:
        line.updates = 0
    if returns := evaluation.returns:
        line.largest_value = evaluation.largest_value
        line.mean_return, line.episodes = float(np.mean(returns)), len(returns)
        line.return_low, line.return_high = (float(q) for q in np.quantile(returns, INTERVAL))
        line.return_std = float(np.std(returns, ddof=1)) if len(returns) > 1 else None
    return line


class _Log:
    """Writer of one line per group of steps and one per episode. The clock stops while it writes."""

    def __init__(self, lines: StepWriter, progress: Progress, batch: int, agent: Agent, clock: Clock) -> None:
        self.seconds = 0.0
        self._lines, self._progress, self._batch, self._agent, self._clock = lines, progress, batch, agent, clock
        self._sum, self._count = 0.0, 0
        self._clear()
        clock.read()

    def _clear(self) -> None:
        self._losses: list[torch.Tensor | float] = []
        self._episodes: list[tuple[int, FinishedEpisode]] = []
        self._steps, self._updates = 0, self._agent.updates
        self._began = time.perf_counter()

    def add(self, moment: Moment) -> None:
        loss, episode = moment
        self._steps += 1
        if loss is not None:
            self._losses.append(loss)
        if episode is not None:
            self._episodes.append((self._agent.steps, episode))

    def write(self, step: int) -> None:
        loss = _mean(self._losses)
        seconds = time.perf_counter() - self._began
        self.seconds += seconds
        self._sum, self._count = self._sum + (loss or 0.0) * len(self._losses), self._count + len(self._losses)
        parts: dict[str, Any] = {part: spent_s / self._steps for part, spent_s in self._clock.read().items()}
        self._lines.write(
            StepLine(
                step=step,
                epoch=self._progress.epoch + 1,
                seconds=self._progress.training_time_s + self.seconds,
                step_time_s=seconds / self._steps,
                loss=loss,
                samples=len(self._losses) * self._batch,
                num_steps=self._steps,
                updates=self._agent.updates - self._updates,
                **parts,
            )
        )
        for at, episode in self._episodes:
            self._lines.write(
                steps.EpisodeLine(step=at, total=episode.total, length=episode.length, epsilon=episode.epsilon)
            )
        self._clear()

    def mean_loss(self) -> float | None:
        return self._sum / self._count if self._count else None


def _mean(losses: list[torch.Tensor | float]) -> float | None:
    """Return the mean of all losses, read together because each read on CUDA waits for the device."""
    tensors = [one for one in losses if isinstance(one, torch.Tensor)]
    if tensors:
        return float(torch.stack(tensors).mean())
    return sum(map(float, losses)) / len(losses) if losses else None


if __name__ == "__main__":
    sys.exit(main())

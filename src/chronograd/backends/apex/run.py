"""The driver of a job of Ape-X or Gorila: `python -m chronograd.backends.apex.run RUN_DIR train`.

It starts all parts on Ray and hands out the work. An epoch is `reinforcement.steps_per_epoch` steps, summed over all actors. At
its end all parts are idle while the network is evaluated, and a checkpoint is written. The replay is not part of it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from chronograd.backends.apex.group import ApexGroup
from chronograd.backends.apex.keepers import ApexLayout
from chronograd.backends.gorila.group import GorilaGroup
from chronograd.backends.parameter_server.record import staleness_rows
from chronograd.backends.ray_session import cpu_s, ray_session, take_along
from chronograd.job import Job
from chronograd.measure import environment as machine
from chronograd.measure import process
from chronograd.record import Quantity, Record
from chronograd.reinforce import environments, result
from chronograd.reinforce.agent import Evaluation, epsilon_at, epsilon_ladder
from chronograd.reinforce.balance import BalanceSetting
from chronograd.reinforce.dqn import DQN
from chronograd.reinforce.systems import Report, SystemsView, timeline
from chronograd.reinforce.worker import evaluated, line_of_epoch, save_episode, why_stop
from chronograd.rundir import RunDir, StepLine, steps
from chronograd.train import checkpoint_folder
from chronograd.train.checkpoint_folder import Progress
from chronograd.train.rank_command import run_rank
from chronograd.train.rank_context import rank_context_from_environment, threads_per_rank
from chronograd.words import how_many

# Seconds between two lines of steps, and between two checkpoints within an epoch.
LINE_S, CHECKPOINT_S = 1.0, 60.0
# Length of the timeline at the start of a run, in its record.
TIMELINE_S = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the driver. Return its exit status."""
    return run_rank(argv, _train, at_end=take_along)


def layout_of(job: Job) -> ApexLayout:
    """Return the layout of a job. In a bundle the learner acts itself, so there are no separate actors and shards."""
    settings = job.reinforcement
    assert settings is not None
    is_bundled = settings.algorithm == "gorila" and settings.bundled
    return ApexLayout(
        num_actors=0 if is_bundled else settings.actors,
        learners=settings.learners,
        environments=settings.environments_per_actor,
        block=settings.send_every,
        refresh_every=settings.refresh_every,
        shards=0 if is_bundled else settings.replay_shards,
        is_paced=settings.paced,
    )


def _train(run: RunDir, job: Job) -> None:
    settings, place, layout = job.reinforcement, rank_context_from_environment(job), layout_of(job)
    assert settings is not None
    num_parts = layout.num_actors + layout.learners + layout.shards
    num_gpus = int(place.device.type == "cuda")
    with run.step_writer() as lines:
        lines.write(steps.Attempt())
        start = place.start_line()
        start.pid = os.getpid()
        lines.write(start)
        with ray_session(run.path, how_many(num_parts, "parts"), num_cpus=num_parts, num_gpus=num_gpus):
            group = (
                GorilaGroup(job, layout, settings.bundled, checkpoints=run.checkpoints)
                if settings.algorithm == "gorila"
                else ApexGroup(
                    job, layout, run.checkpoints, device=place.device.type, threads=threads_per_rank(job.cluster, 1)
                )
            )
            with group:
                _Run(run, job, group, lines).go_on()


class _Run:
    """A working group, and the progress of the run."""

    def __init__(self, run: RunDir, job: Job, group: ApexGroup, lines: steps.StepWriter) -> None:
        assert job.reinforcement is not None
        self._run, self._job, self._group, self._lines, self._settings = run, job, group, lines, job.reinforcement
        self._space = environments.space_of(job)
        self._agent = DQN(job, self._space, None, torch.device("cpu"))
        self._scored = [environments.make(job, is_evaluation=True) for _ in range(self._settings.evaluation_episodes)]
        self._view = SystemsView(machine.cores(), job.training.batch)
        self._staleness: list[int] = []  # of each gradient that was applied
        self._untold: list[Report] = []  # of the last epoch, done after its last step
        self._dropped: dict[str, int] = {}
        self._num_deaths = self._written_off = 0  # reported so far
        self._blind: set[str] = set()  # layers, reported so far
        self._cpu_s = cpu_s()
        self._paused_at: tuple[float, float] | None = None  # the time, and processor seconds of this process
        self._pause_cpu_s = 0.0
        self.progress = Progress()
        newest, state, notes = checkpoint_folder.newest_sound(run.checkpoints)
        if newest is not None:
            self.progress = Progress.read(state["progress"])
            if extended := self.progress.go_on(job.training.epochs):
                notes.append(extended)
        work = steps.WorkLine(
            params=group.num_params, steps_per_epoch=self._settings.steps_per_epoch, rank_batch=job.training.batch
        )
        lines.write(work)
        for note in notes:
            lines.write(steps.NoteLine(step=self.progress.step, text=note))
        self._before = self.progress.step  # progress before this attempt

    def go_on(self) -> None:
        """Continue to the job's epochs or target return, then write the record."""
        self._lines.write(process.ready(self.progress.step))
        while not self.progress.stopped:
            self._epoch()
        self._agent.network.load_state_dict(self._group.parameters())
        self._agent.steps = self.progress.step
        save_episode(self._run, self._job, self._agent, self._lines)
        self._lines.write(process.end(self.progress.step))
        self._lines.sync()
        self._run.save_record(self._record())

    def _epoch(self) -> None:
        until = (self.progress.epoch + 1) * self._settings.steps_per_epoch - self._before
        self._end_pause()
        began = line_s = told_s = saved_s = time.monotonic()
        reports, self._untold = self._untold, []
        losses: list[float] = []
        for report in self._group.run(until):
            self._take(report, losses)
            reports.append(report)
            self._tell_losses()
            now = time.monotonic()
            if now - line_s > LINE_S:
                if self._write_line(reports, now - told_s, now - began):
                    told_s, reports = now, []
                line_s = now
                self._view.add(self._group.shard_reports())
            if now - saved_s > CHECKPOINT_S:
                self._group.save(self._progress_after(now - began))
                saved_s = now
        seconds = time.monotonic() - began
        if not self._write_line(reports, time.monotonic() - told_s, seconds):
            self._untold = reports
        self._view.add(self._group.shard_reports())
        self._paused_at = time.monotonic(), time.process_time()
        self.progress = self._progress_after(seconds)
        self._group.save(self.progress)  # so that nothing is lost if the learner dies during the evaluation
        self.progress = replace(self.progress, epoch=self.progress.epoch + 1)
        loss = float(np.mean(losses)) if losses else None
        evaluation = self._evaluated()
        self.progress.stopped = why_stop(self._job, self.progress.epoch, loss, evaluation.returns)
        self._lines.write(line_of_epoch(self.progress, loss, seconds, evaluation))
        self._lines.sync()
        self._group.save(self.progress)
        self._group.wait_for_checkpoint()
        self._tell_losses()

    def _end_pause(self) -> None:
        """End the pause: the parts get work again, or none is left."""
        if self._paused_at is not None:
            begin_s, begin_cpu_s = self._paused_at
            self._view.pause(begin_s, time.monotonic())
            self._pause_cpu_s += time.process_time() - begin_cpu_s
            self._paused_at = None

    def _progress_after(self, seconds: float) -> Progress:
        """Return the progress within an epoch, after some seconds of it."""
        at, spent_s = self._before + self._group.ledger.steps, self.progress.training_time_s + seconds
        return replace(self.progress, step=at, training_time_s=spent_s)

    def _tell_losses(self) -> None:
        """Write notes on parts that died and updates that were left out since the last call."""
        ledger, at = self._group.ledger, self._before + self._group.ledger.steps
        told = [death.text for death in ledger.deaths[self._num_deaths :]]
        self._num_deaths = len(ledger.deaths)
        if count := ledger.written_off - self._written_off:
            told.append(f"{count:,} updates were left out: all steps of the epoch were made, and the replay was empty")
        self._written_off = ledger.written_off
        for text in told:
            self._lines.write(steps.NoteLine(step=at, text=text))

    def _take(self, report: Report, losses: list[float]) -> None:
        self._view.add([report])
        if "loss" in report.more:
            losses.append(report.more["loss"])
        at = self._before + self._group.ledger.steps
        epsilon = self._epsilon(report.number, at)
        for total, length in report.episodes:
            self._lines.write(steps.EpisodeLine(step=at, total=total, length=length, epsilon=epsilon))
        for line in report.lines:
            if line["dropped"]:
                self._dropped[line["dropped"]] = self._dropped.get(line["dropped"], 0) + 1
            else:
                self._staleness.append(line["staleness"])

    def _epsilon(self, number: int, step: int) -> float:
        """Return the ε of an actor."""
        if self._settings.algorithm == "apex":
            return epsilon_ladder(self._settings.actors)[number]
        return epsilon_at(self._settings, step, 0)

    def _write_line(self, reports: Sequence[Report], seconds: float, since: float) -> bool:
        """Write one line for all work since the last one. Lines are about steps: return False if nobody acted."""
        acted = sum(int(r.more.get("steps", r.amount if r.role == "actor" else 0)) for r in reports)
        learned = [r for r in reports if r.role == "learner" and "loss" in r.more]
        if not acted:
            return False
        updates = sum(r.amount for r in learned)
        loss = (
            float(np.average([r.more["loss"] for r in learned], weights=[r.amount for r in learned]))
            if learned
            else None
        )
        self._lines.write(
            StepLine(
                step=self._before + self._group.ledger.steps,
                epoch=self.progress.epoch + 1,
                seconds=self.progress.training_time_s + since,
                step_time_s=seconds / acted,
                loss=loss,
                samples=updates * self._job.training.batch,
                num_steps=acted,
                updates=updates,
            )
        )
        return True

    def _evaluated(self) -> Evaluation:
        is_last = self.progress.epoch >= self._job.training.epochs
        if not is_last and self.progress.epoch % self._job.training.evaluate_every:
            return Evaluation()
        self._agent.network.load_state_dict(self._group.parameters())
        return evaluated(self._agent, self._scored, self._job, self._lines, self.progress.step, self._blind)

    def _record(self) -> Record:
        self._end_pause()
        parts_s = sum(part.cpu_s for part in self._view.parts.values())
        self._view.others_cpu_s = max(0.0, cpu_s() - self._cpu_s - self._pause_cpu_s - parts_s)
        record = result.training_record(self._run, self._job, self._space, self.progress.stopped)
        done = self._group.ledger.updates  # of all attempts; lines of steps lack the updates after the last step
        per_s = Quantity(
            value=done / self.progress.training_time_s,
            unit="update/s",
            source=f"{how_many(done, 'updates')} over the training time",
        )
        record.put("updates_per_s", per_s)
        for name, value in self._view.rates_of_its_parts().items():
            unit = (
                "1/s" if "per_s" in name else "s" if name.endswith("_s") else "B" if name.startswith("bytes") else "1"
            )
            record.put(
                f"agents_{name}", Quantity(value=value, unit=unit, source="reports of actors, replay and learners")
            )
        record.tables.agents = self._view.rows()  # type: ignore[attr-defined]
        record.tables.timeline = timeline(self._view.spans, TIMELINE_S)
        if self._view.of("actor") and self._view.of("learner"):  # in a bundle, nothing waits
            record.tables.verdict = [self._verdict()]  # type: ignore[attr-defined]
        if staleness := self._staleness:
            source = "updates by others between pull and update, counted by server 0"
            record.put("staleness", Quantity.of_samples(staleness, "update", source))
            record.tables.staleness = staleness_rows(staleness)
            dropped = ", ".join(f"{n:,} {why}" for why, n in sorted(self._dropped.items())) or "none"
            record.notes.append(f"gradients dropped: {dropped}; applied: {len(staleness):,}")
        return record

    def _verdict(self) -> dict[str, Any]:
        """Return the verdict, with the figures that `balance` needs."""
        rates, layout = self._view.rates(), layout_of(self._job)
        setting = BalanceSetting(
            batch=self._job.training.batch,
            draws=max(rates["drawn_per_s"], 1e-9) / max(rates["added_per_s"], 1e-9),
            num_actors=layout.num_actors,
            learners=layout.learners,
            shards=layout.shards,
            cores=machine.cores(),
        )
        return {
            **asdict(self._view.verdict()),
            "components": asdict(self._view.components()),
            "setting": asdict(setting),
        }


if __name__ == "__main__":
    sys.exit(main())

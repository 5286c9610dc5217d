"""The record of an agent's run, made from its steps file. Needs no torch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from chronograd.errors import RunError
from chronograd.job import Job
from chronograd.measure import result as measured
from chronograd.record import Curve, Quantity, Record
from chronograd.reinforce.environments import MAX_STEPS, Space
from chronograd.rundir import RunDir, StepLine, StepLog
from chronograd.rundir.steps import EpisodeLine, Epoch, NoteLine, WorkLine
from chronograd.train.interruptions import interruptions
from chronograd.train.result import header, settled, wall_time
from chronograd.words import how_many

CLOCK = "training clock: acting, environment, replay and learning; without evaluation and checkpoints"
PARTS = ("act_s", "environment_s", "replay_s", "learn_s")


def training_record(run: RunDir, job: Job, space: Space, stopped: str) -> Record:
    """Return the returns, frames and times of a run that has written its steps.

    Raises: RunError if the run did not finish an epoch.
    """
    assert job.reinforcement is not None
    log = run.read_steps()
    epochs = log.of(Epoch)
    if not epochs:
        raise RunError(f"{run.path} is damaged: it finished no epoch", "resume it, or train it again")
    record = header(run, job, log, f"{job.reinforcement.algorithm} on {job.data.name.partition(':')[2]}")
    record.provenance.method, record.provenance.stopped = CLOCK, stopped
    record.provenance.attempts = log.attempts
    record.notes = [event.text for event in log.of(NoteLine)]
    if not space.has_limit:
        record.notes.append(
            f"the environment has no step limit: an evaluation episode ends after {MAX_STEPS:,} steps, and its return up to then counts"
        )
    frames = space.frames_per_step
    record.curves = {"training": _curve(epochs, frames), "loss": _losses(log.steps), "episodes": _episodes(log, frames)}
    for name, quantity in {**_returns(epochs, job, frames), **_speed(log, epochs[-1], frames)}.items():
        record.put(name, quantity)
    work = log.last(WorkLine)
    record.put("trained_params", Quantity(value=None if work is None else work.params, unit="count", source="of the network, or values of the table"))  # fmt: skip
    record.quantities |= measured.memory_quantities({0: log})
    record.put("wall_time_s", wall_time(log))
    if log.attempts > 1:
        interrupted = interruptions(log)
        record.notes.append(interrupted.note)
        for name, quantity in interrupted.quantities().items():
            record.put(name, quantity)
    return record


def _returns(epochs: Sequence[Epoch], job: Job, frames: int) -> dict[str, Quantity]:
    assert job.reinforcement is not None
    scored = [epoch for epoch in epochs if epoch.mean_return is not None]
    best, last = max(scored, key=lambda e: e.mean_return or 0.0), scored[-1]
    target = job.reinforcement.target_return
    reached = next((e for e in scored if target is not None and (e.mean_return or 0.0) >= target), None)
    epsilon = job.reinforcement.evaluation_epsilon
    how = f"{how_many(last.episodes, 'episodes')} with fixed seeds, ε = {epsilon:g}, after epoch "
    why_not = (
        "the job sets no reinforcement.target_return"
        if target is None
        else f"the best mean return was {best.mean_return:.4g}, below {target:g}"
    )
    source = "" if target is None else f"until the mean return of an evaluation was {target:g} or more"
    return {
        "mean_return": Quantity(
            value=last.mean_return,
            unit="",
            low=last.return_low,
            high=last.return_high,
            std=last.return_std,
            n=last.episodes,
            source=how + str(last.epoch),
        ),
        "best_return": Quantity(value=best.mean_return, unit="", n=best.episodes, source=how + str(best.epoch)),
        "time_to_return_s": Quantity(value=reached.seconds, unit="s", source=f"training time {source}")
        if reached is not None
        else Quantity.missing("s", why_not),
        "frames_to_return": Quantity(value=reached.step * frames, unit="count", source=f"frames {source}")
        if reached is not None
        else Quantity.missing("count", why_not),
    }


def _speed(log: StepLog, last: Epoch, frames: int) -> dict[str, Quantity]:
    lines = settled(log.steps)
    # After a resume within an epoch, the line of that epoch counts only the time since then; the clock counts all of it.
    clock = [0.0, *(epoch.seconds for epoch in log.of(Epoch))]
    quantities = {
        "training_time_s": Quantity(value=last.seconds, unit="s", source=CLOCK),
        "epoch_time_s": Quantity.of_samples([after - before for before, after in itertools.pairwise(clock)], "s", CLOCK),
        "epochs": Quantity(value=last.epoch, unit="count", source="epochs trained"),
        "frames": Quantity(value=last.step * frames, unit="count", source=f"{frames} per step" if frames > 1 else "one per step"),
        "throughput_frames_per_s": Quantity(value=last.step * frames / last.seconds, unit="frame/s", source="all frames over the training time"),
        "step_time_s": Quantity.of_samples([line.needed("step_time_s") for line in lines], "s", "one action and its share of an update, averaged over each line of steps"),
    }  # fmt: skip
    updates = sum(line.updates or 0 for line in log.steps)
    quantities["updates_per_s"] = Quantity(
        value=updates / last.seconds, unit="update/s", source=f"{how_many(updates, 'updates')} over the training time"
    )
    for name in PARTS:
        if any(getattr(line, name) is not None for line in lines):
            values = [getattr(line, name) or 0.0 for line in lines]
            quantities[name] = Quantity.of_samples(values, "s", "per step, host clock around the calls")
    return quantities


def _curve(epochs: Sequence[Epoch], frames: int) -> Curve:
    units = {
        "epoch": "count",
        "step": "count",
        "frames": "count",
        "seconds": "s",
        "train_loss": "",
        "mean_return": "",
        "return_low": "",
        "return_high": "",
        "largest_value": "",
    }
    columns = {n: [epoch.step * frames if n == "frames" else getattr(epoch, n) for epoch in epochs] for n in units}
    return Curve(columns=columns, units=units, source=f"evaluation after epochs; {CLOCK}")


def _losses(lines: Sequence[StepLine]) -> Curve:
    known = [line for line in lines if line.loss is not None]
    columns: dict[str, list[float | None]] = {"step": [float(x.step) for x in known], "loss": [x.loss for x in known]}
    return Curve(
        columns=columns, units={"step": "count", "loss": ""}, source="mean over the updates of each line of steps"
    )


def _episodes(log: StepLog, frames: int) -> Curve:
    episodes = log.of(EpisodeLine)
    columns: dict[str, list[float | None]] = {
        "frames": [float(one.step * frames) for one in episodes],
        "total": [one.total for one in episodes],
        "length": [float(one.length) for one in episodes],
        "epsilon": [one.epsilon for one in episodes],
    }
    units = {"frames": "count", "total": "", "length": "count", "epsilon": "1"}
    return Curve(columns=columns, units=units, source="training episodes in the order they ended")

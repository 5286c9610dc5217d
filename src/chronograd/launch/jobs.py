"""Training and measuring a job: it is checked first, then run by real processes in a new run directory."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chronograd import job as jobs
from chronograd.backends import meeting, registry
from chronograd.data import catalogue, datasets, detection
from chronograd.errors import ChronogradError, DiskFullError, InputError, JobError, RunError
from chronograd.job import INPUTS, SHARDED, Augmentation, Job, Training
from chronograd.launch import hosts
from chronograd.launch.hosts import Host
from chronograd.launch.processes import KilledError, tail
from chronograd.launch.silence import Silence
from chronograd.measure import environment
from chronograd.measure.result import Timing
from chronograd.models import pretrained
from chronograd.rundir import DEFAULT_PARENT, Line, RunDir, StepFollower
from chronograd.rundir.steps import Epoch
from chronograd.train import checkpoint_folder
from chronograd.train.rank_context import check_machine
from chronograd.train.schedule import learning_rate
from chronograd.train.watchdog import LINK_DOWN, TIME_OUT
from chronograd.words import how_many

OnLine = Callable[[Line], None]
OnPoll = Callable[[RunDir], None]
PathLike = str | os.PathLike[str]
# Backends whose ranks also run text, and networks without training them.
PLAIN_BACKENDS = ("single", "ddp")
TEXT_BACKENDS = (*PLAIN_BACKENDS, *SHARDED)
# Inference needs 200 batches, so that one in a hundred is slower than the 99th percentile.
STEPS_TIMED, BATCHES_TIMED = 30, 200
LAUNCHERS = ("local", "torchrun", "horovodrun", "hosts")


def train(
    job: Job,
    *,
    out: PathLike | None = None,
    parent: PathLike = DEFAULT_PARENT,
    initial_weights: PathLike | None = None,
    launcher: str | None = None,
    on_line: OnLine = lambda line: None,
) -> RunDir:
    """Train a job to its epochs or target accuracy. Returns its run directory, with a record.

    Args:
        out: the run directory; by default a new one in `parent`.
        initial_weights: a safetensors file to start from, instead of random weights from the seed.
        launcher: `local`, `torchrun` or `horovodrun`, or `hosts:` with hosts as `chronograd.launch.hosts` reads them; by
            default the backend's.
        on_line: called for each line that rank 0 writes: one per step, one per epoch, and other events.
    Raises: InputError before anything is written, RunError if a rank fails.
    """
    check_trained(job)
    return resume(create(job, out, parent, initial_weights, launcher), launcher=launcher, on_line=on_line)


def check_trained(job: Job) -> None:
    """Refuse to train a job in inference, before anything is written."""
    if job.mode == "inference":
        raise JobError("mode is inference: nothing is trained", "measure it, or write mode=training")


def create(
    job: Job,
    out: PathLike | None = None,
    parent: PathLike = DEFAULT_PARENT,
    initial_weights: PathLike | None = None,
    launcher: str | None = None,
) -> RunDir:
    """Create the run directory of a job that can run here, without running it; see `train`."""
    job = jobs.scaled(job)
    check(job, launcher)
    if initial_weights is not None and job.task != "reinforcement":
        from chronograd.train.check import check_initial_weights  # imports torch

        check_initial_weights(job, datasets.card(job.data), Path(initial_weights))
    return new_run(job, out, parent, initial_weights)


def new_run(job: Job, out: PathLike | None, parent: PathLike, initial_weights: PathLike | None) -> RunDir:
    """Create the run directory of a job that was checked."""
    if initial_weights is not None and not Path(initial_weights).is_file():
        raise InputError(f"no file of initial weights at {initial_weights}")
    run = RunDir.create(job, environment.environment(), out, parent)
    if initial_weights is not None:
        shutil.copyfile(initial_weights, run.initial_weights)
    return run


def resume(
    run: RunDir,
    job: Job | None = None,
    *,
    launcher: str | None = None,
    on_line: OnLine = lambda line: None,
    on_poll: OnPoll = lambda run: None,
) -> RunDir:
    """Train a run from its newest intact checkpoint, or from its start; a finished run stays unchanged.

    With the same threads, eager on the CPU, one or two ranks end with the same weights as an uninterrupted run. Three or more
    ranks match to rounding, because DDP sums in another order once it has rebuilt its buckets. `on_line` is as for `train`;
    `on_poll` is called with the run about ten times a second while ranks run, and at the end.
    Raises JobError if `job` is given and differs from the run's job.
    """
    own = run.job()
    check_trained(own)
    if job is not None and jobs.resolved(job := jobs.scaled(job)) != jobs.resolved(own):
        different = sorted(_differences(jobs.resolved(own), jobs.resolved(job)))
        raise JobError(
            f"{run.path} was started with another job; these fields differ: {', '.join(different)}",
            "resume without naming a job, or train the new job in a new directory",
        )
    if run.is_finished:
        return run
    check(own, launcher)
    try:
        _launch(own, run, ["train"], launcher, on_line, on_poll)
    except RunError as error:
        go_on = f"go on with `chronograd train --resume {run.path}`"
        if isinstance(error, DiskFullError):
            raise DiskFullError(error.message, f"free some space there, then {go_on}") from None
        raise RunError(error.message, error.hint or f"remove the cause, then {go_on}") from None
    return run


def extend(run: RunDir, overrides: Sequence[str], launcher: str | None = None) -> str:
    """Give a finished run more epochs, which `resume` then trains. Returns one sentence about its learning rate, or nothing.

    Args:
        overrides: `training.epochs=N`. If N equals the run's epochs, nothing changes.
    Raises: JobError for any other field, for fewer epochs, or if the run cannot be continued; then nothing is written.
    """
    own = run.job()
    check_trained(own)
    job = jobs.changed(own, overrides)
    before, after = own.training.epochs, job.training.epochs
    different = sorted(_differences(jobs.resolved(own), jobs.resolved(job)))
    if not different:
        return ""
    if different != ["training.epochs"] or after < before:
        what = f"training.epochs={after}" if different == ["training.epochs"] else ", ".join(different)
        raise JobError(
            f"a resumed run can only get more training.epochs than its {before}; this would change: {what}",
            f"write training.epochs={before + 1} or more, or train the new job in a new directory",
        )
    if not run.is_finished:
        raise JobError(
            f"{run.path} is not finished, so it cannot get more epochs yet",
            f"finish it first with `chronograd train --resume {run.path}`",
        )
    if (stopped := run.record().provenance.stopped) != checkpoint_folder.ALL_EPOCHS:
        why = stopped or "it was measured, not trained"
        raise JobError(f"{run.path} would not train on with more epochs: {why}", "train a new run with another job")
    if not checkpoint_folder.list_checkpoints(run.checkpoints):
        raise JobError(f"{run.path} has no checkpoint to go on from", "train a new run with more epochs")
    check(job, launcher)
    last = run.read_steps(0).last(Epoch)
    run.replace_job(job)
    return "" if last is None or job.task == "reinforcement" else _schedule_note(job.training, last)


def _schedule_note(training: Training, last: Epoch) -> str:
    """Describe the learning rate after the last epoch so far; nothing if the length of the run does not change it."""
    if training.schedule == "constant" and not training.warmup:
        return ""
    before, epochs = last.epoch, training.epochs
    ended = learning_rate(training, last.step - 1, last.step)
    now = learning_rate(training, last.step, last.step // before * epochs)
    return (
        f"the schedule {training.schedule} ended at a learning rate of {ended:.2g} after epoch {before}; it now spans {epochs} "
        f"epochs and goes on at {now:.2g}, so the result differs from a run that had {how_many(epochs, 'epochs')} from its start"
    )


def measure(
    job: Job,
    timing: Timing | None = None,
    *,
    flops_per_step: float | None = None,
    with_epochs: bool = False,
    out: PathLike | None = None,
    parent: PathLike = DEFAULT_PARENT,
    launcher: str | None = None,
    on_line: OnLine = lambda line: None,
) -> RunDir:
    """Time the steps of a job, after a warm-up. Returns its run directory, with a record.

    Args:
        timing: how long to time steps; by default `usual_steps` of them.
        flops_per_step: matrix FLOPs of one step of one rank, for the achieved rate; counted by default.
        with_epochs: also time a second epoch after a warm-up epoch, and one without loading data.
    Other arguments, and errors, as for `train`.
    """
    if job.task == "reinforcement":
        raise JobError("a reinforcement learning job cannot be measured", "train it: its record has frames per second")
    timing = timing or Timing(num_steps=usual_steps(job))
    if with_epochs and job.mode == "inference":
        raise JobError("epochs are of training, and mode is inference", "time batches: leave --epochs out")
    if job.data.name == INPUTS and not with_epochs:
        from chronograd.launch import own_inputs

        flops = _flops_per_step(job) if flops_per_step is None else flops_per_step
        return own_inputs.measure(job, timing, flops, out)
    run = create(job, out, parent, launcher=launcher)
    arguments = ["measure", f"--steps={timing.num_steps}", f"--warmup={timing.warmup}", f"--seconds={timing.seconds}"]
    if flops_per_step is None:
        flops_per_step = _flops_per_step(run.job())
    if flops_per_step is not None:
        arguments.append(f"--flops-per-step={flops_per_step}")
    if with_epochs:
        arguments.append("--epochs")
    _launch(run.job(), run, arguments, launcher, on_line)
    return run


def usual_steps(job: Job) -> int:
    """Return the default number of steps to time: 30, or 200 batches in inference."""
    return BATCHES_TIMED if job.mode == "inference" else STEPS_TIMED


def _flops_per_step(job: Job) -> float | None:
    """Return the matrix FLOPs of one step of one rank; None if the network cannot be counted, or only its last layer is
    trained.
    """
    if job.training.trainable == "head":
        return None
    from chronograd.data.trace_job import trace_job  # imports torch

    try:
        return float(trace_job(job).flops(job.images_per_rank))
    except ChronogradError:
        return None


def check(job: Job, launcher: str | None = None) -> None:
    """Refuse a job that cannot run here, before anything is written; fetch its data if it is not on disk.

    Other hosts check their devices themselves. Raises InputError, RunError, MissingExtraError.
    """
    plan = registry.find(job.backend).plan(job, Path(), [])
    if on_hosts := _hosts_of(launcher):
        hosts.blocks(plan.world_size, on_hosts)
    else:
        check_machine(job, job.cluster.count, [gpu["name"] for gpu in environment.gpus()])
        if job.network.weights not in (None, *pretrained.LIBRARIES):
            from chronograd.models.weights import check_stored  # imports torch

            check_stored(job.network.weights)
    check_anywhere(job)
    if job.task != "reinforcement":
        datasets.fetch(job.data)


def check_has_files(job: Job) -> None:
    """Raise InputError for a data set that has only a size, for planning: no rank could read it."""
    if job.data.name in catalogue.sets():
        raise catalogue.without_data(job.data.name)


def check_anywhere(job: Job) -> None:
    """Refuse a job that no machine could run. Builds the network without memory and runs it once on shapes."""
    if job.task == "reinforcement":
        from chronograd.reinforce.check import check_agent  # imports torch

        check_agent(job)
        return
    of, able = ("of text", TEXT_BACKENDS) if job.is_text else ("in inference", PLAIN_BACKENDS)
    if (job.is_text or job.mode == "inference") and job.backend not in able:
        raise JobError(f"backend {job.backend} runs no job {of}", f"write backend={' or '.join(able)}")
    if job.is_text and not job.training.augmentation.is_none:
        raise JobError("training.augmentation is of images, and the job of text", "leave augmentation out")
    if job.is_text and (job.training.trainable == "head" or job.data.resampling != "natural"):
        raise JobError("a job of text trains the whole network on every sample alike",
                       "leave training.trainable and data.resampling out")  # fmt: skip
    if job.task == "detection":
        _check_detection(job)
    elif job.training.augmentation.expand != Augmentation().expand:
        raise JobError(
            "training.augmentation.expand is of pictures with boxes", "leave it out, or write task=detection"
        )
    if job.training.zero_stage and job.backend != "fsdp":
        raise JobError(
            f"training.zero_stage is {job.training.zero_stage}, which backend {job.backend} does not run",
            "write backend=fsdp for stage 2 or 3, or training.zero_stage=0",
        )
    if job.data.name == INPUTS:
        raise datasets.no_samples()
    card = datasets.card(job.data)
    datasets.check_task(job, card)
    jobs.steps_per_epoch(card.train_size, job.training.batch)
    if job.task == "detection":
        detection.check_classes(job.data)
    from chronograd.train.check import check_network  # imports torch

    check_network(job, card)


def _check_detection(job: Job) -> None:
    """Refuse options that do not apply to training a detector, instead of ignoring them."""
    training = job.training
    refused = {
        f"backend is {job.backend}": (job.backend != "single", "write backend=single"),
        "training.augmentation is given": (
            training.augmentation != Augmentation(expand=training.augmentation.expand),
            "leave out all but expand: detectors are trained with the SSD paper's own",
        ),
        "training.trainable is head": (training.trainable == "head", "leave it out"),
        f"training.label_smoothing is {training.label_smoothing:g}": (training.label_smoothing > 0, "write 0"),
    }
    for what, (is_refused, hint) in refused.items():
        if is_refused:
            raise JobError(f"{what}, which a job of detection cannot have", hint)


def _launch(
    job: Job,
    run: RunDir,
    arguments: Sequence[str],
    launcher: str | None,
    on_line: OnLine,
    on_poll: OnPoll = lambda run: None,
) -> None:
    backend = registry.find(job.backend)
    plan = backend.plan(job, run.path, arguments)
    on_hosts = _hosts_of(launcher)
    name = "hosts" if on_hosts else launcher or plan.launcher
    if name not in LAUNCHERS:
        raise JobError(f"unknown launcher {name!r}", f"use {' or '.join(LAUNCHERS)}")
    if (name == "horovodrun") != (plan.launcher == "horovodrun"):
        raise JobError(f"launcher {name} cannot start ranks of backend {job.backend}", f"use {plan.launcher}")
    backend.prepare(job, run)
    follower, silence = StepFollower(run.steps_path(0)), Silence(run, plan.world_size)

    def watch() -> None:
        silence.look()
        for line in follower.new_lines():
            on_line(line)
        on_poll(run)

    before = run.attempts()
    try:
        if on_hosts:
            hosts.launch(plan, run, on_hosts, watch)
        else:
            importlib.import_module(f"chronograd.launch.{name}").launch(plan, run, watch)
    except RunError as error:
        first = _first_failure(run, before, name, error)
        if isinstance(first, DiskFullError):
            raise first from None
        restarts = plan.max_restarts
        again = f"after {restarts} restart{'s' * (restarts > 1)} from the newest checkpoint: " if restarts else ""
        raise RunError(again + first.message, first.hint) from None
    if not run.is_finished:
        raise RunError(f"all ranks ended well, yet {run.path} has no record", f"look at {run.output_path(0)}")


def _hosts_of(launcher: str | None) -> list[Host]:
    """Return the hosts that a launcher such as `hosts:node1,node2` names; none for other launchers."""
    name, _, text = (launcher or "").partition(":")
    return hosts.parse(text) if name == "hosts" else []


def _first_failure(run: RunDir, before: Mapping[int, int], launcher: str, told: RunError) -> RunError:
    """Return the error that made the other ranks fail, as the ranks logged it; if none did, the launcher's error.

    `before` has the number of earlier starts of each rank. A killed rank logs no error and makes the others fail. A rank that
    hung was killed for that.
    """
    first = run.first_error(before)
    if first is None or (isinstance(told, KilledError) and not first[1].startswith(TIME_OUT)):
        return told
    if isinstance(told, DiskFullError):
        # The rank's own error names the file, and the free space before it tidied up.
        kind, _, said = first[1].partition("\n")[0].partition(": ")
        return DiskFullError(f"rank {first[0]}: {said}", told.hint) if kind == DiskFullError.__name__ else told
    rank, text = first
    if text.startswith(LINK_DOWN):
        return RunError(text, meeting.HINT)
    own, shared = run.output_path(rank), run.output_path(launcher)
    mark = f"[{rank}]<" if launcher == "horovodrun" else f"[rank{rank}]" if run.ranks()[1:] else ""
    printed = tail(own) if own.exists() else tail(shared, mark)
    return RunError(f"rank {rank} failed with {text}; the end of its output:\n{printed}")


def _differences(a: dict[str, Any], b: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the names of fields that differ."""
    found = []
    for key in sorted({*a, *b}):
        left, right = a.get(key), b.get(key)
        if isinstance(left, dict) and isinstance(right, dict):
            found += _differences(left, right, f"{prefix}{key}.")
        elif left != right:
            found.append(f"{prefix}{key}")
    return found

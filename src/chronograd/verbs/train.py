"""`train JOB`: training to the epochs or the target accuracy, with a curve and checkpoints."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from chronograd.errors import InputError, JobError
from chronograd.verbs.jobs import JobRequest, launcher_of, run_answer
from chronograd.verbs.kinds import complete_jobs
from chronograd.verbs.request import Spelling
from chronograd.verbs.screen import is_shown, say

if TYPE_CHECKING:
    from chronograd.answer import Answer
    from chronograd.job import Job
    from chronograd.rundir import RunDir

OnPoll = Callable[["RunDir"], None]


@dataclass(frozen=True, kw_only=True)
class Train(JobRequest):
    """Train a job to its epochs or target accuracy; resumes.

    It writes a run directory with a checkpoint per epoch. After an interruption, even by kill -9, --resume produces
    bit-identical weights (same number of ranks and threads, on the CPU).
    """

    verb = "train"
    examples = (
        "chronograd train job.yaml",
        "chronograd train job.yaml training.epochs=20 --out runs/mine",
        "chronograd train --resume runs/mine",
        "chronograd train --resume runs/mine training.epochs=40",
    )

    job: Annotated[Any, Spelling(metavar="JOB|NETWORK", is_argument=True, complete=complete_jobs)] = None
    overrides: Annotated[tuple[str, ...], Spelling(metavar="[FIELD=VALUE]...", is_argument=True)] = ()
    out: Annotated[str | None, click.Path()] = None
    """Run directory; a new one in runs/ by default."""
    resume: Annotated[str | None, click.Path()] = None
    """Continue the run in this directory, without JOB. training.epochs=N extends it."""
    initial_weights: Annotated[str | None, click.Path(exists=True, dir_okay=False)] = None
    """A safetensors file with the initial weights."""
    launcher: Literal["local", "torchrun", "horovodrun"] | None = None
    """Launcher of the ranks."""
    hosts: str | None = None
    """Hosts of the ranks, in blocks: names for ssh, or namespaces such as netns:h1,netns:h2."""
    seeds: Annotated[int | None, click.IntRange(2)] = None
    """Number of seeds to train with; the record has mean and deviation."""
    tensorboard: bool = False
    """Also save TensorBoard events during the run."""

    def answer(self) -> Answer:
        from chronograd.watch.events import has_events, write_events

        if self.job is None and self.resume is None:
            raise InputError("nothing to train", "name a JOB, or a run to --resume")
        of_new = {"--out": self.out, "--initial-weights": self.initial_weights, "--seeds": self.seeds}
        given = [name for name, value in of_new.items() if value is not None]
        if self.resume is not None and given:
            raise InputError(
                f"--resume continues an existing run, but {given[0]} applies to a new one", f"leave {given[0]} out"
            )
        if self.tensorboard:
            importlib.import_module(
                "chronograd.watch.tensorboard"
            )  # an extra: report now if it is missing, not after training
        tensorboard = self.tensorboard or (self.resume is not None and has_events(self.resume))
        how: dict[str, Any] = {"launcher": launcher_of(self.launcher, self.hosts)}
        is_more = self.resume is not None and isinstance(self.job, str) and "=" in self.job
        job = None if self.job is None or is_more else self._stated()
        with _shown(tensorboard) as on_poll:
            if self.resume is None:
                assert job is not None
                run = self._begun(job, on_poll=on_poll, **how)
            else:
                more = (self.job, *self.overrides) if is_more else ()
                run = _resumed(self.resume, job, more, on_poll=on_poll, **how)
        if tensorboard:
            for path in write_events(run):
                say(f"tensorboard: {path}")
        return run_answer(run)

    def _stated(self) -> Job:
        asked = self.asked()
        for note in asked.notes:
            say(f"note: {note}")
        job: Job = asked.job
        return job

    def _begun(self, job: Job, **how: Any) -> RunDir:
        """Train a new run, or one for each seed."""
        from chronograd.launch import jobs, repeats

        jobs.check_trained(job)
        if self.seeds is not None:
            return repeats.train_over_seeds(job, self.seeds, out=self.out, initial_weights=self.initial_weights, **how)
        run = jobs.create(job, self.out, initial_weights=self.initial_weights, launcher=how["launcher"])
        say(f"run: {run.path}")
        return jobs.resume(run, job, **how)


def _resumed(path: str | os.PathLike[str], job: Job | None, more: Sequence[str], **how: Any) -> RunDir:
    """Continue a run. `more`: overrides of its job, which extend it. Raises JobError."""
    from chronograd.launch import jobs, repeats
    from chronograd.rundir import RunDir

    run = RunDir.open(path)
    if repeats.seeds_of(run) is not None:
        if more:
            raise JobError(f"{path} has several seeds and cannot be extended", "train a new run with more epochs")
        return repeats.resume_over_seeds(run, **how)
    if more and (note := jobs.extend(run, more, how["launcher"])):
        say(f"note: {note}")
    say(f"run: {run.path}")
    return jobs.resume(run, job, **how)


@contextmanager
def _shown(with_events: bool) -> Iterator[OnPoll]:
    """Show the running run: its ranks on a terminal, else one plain line per epoch; and write its events."""
    with ExitStack() as stack:
        followers: list[OnPoll] = []
        if is_shown():
            from chronograd.watch.terminal import Screen, console

            followers.append(stack.enter_context(Screen(console())))
        if with_events:
            from chronograd.watch.tensorboard import LiveEvents

            followers.append(stack.enter_context(closing(LiveEvents())))

        def on_poll(run: RunDir) -> None:
            for follower in followers:
                follower(run)

        yield on_poll


REQUESTS = (Train,)

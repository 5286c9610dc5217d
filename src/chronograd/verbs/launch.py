"""`launch PLATFORM JOB`: a job's file for a platform; `launch slurm`, `launch ray`: training on a cluster; `launch status`,
`launch collect`, `launch resume`: the runs there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from chronograd.errors import InputError, did_you_mean, printable
from chronograd.verbs.jobs import run_answer
from chronograd.verbs.kinds import CLOCK, PAIR, complete_jobs
from chronograd.verbs.request import Request, Spelling
from chronograd.verbs.screen import say

if TYPE_CHECKING:
    from chronograd.answer import Answer
    from chronograd.clouds.planned import Planned
    from chronograd.clouds.rendering import PlatformFile
    from chronograd.job import Job
    from chronograd.launch.answer import LaunchedRun, SlurmScript
    from chronograd.launch.slurm.script import Options
    from chronograd.record import Record
    from chronograd.rundir import RunDir

PLACE = click.Path(path_type=Path)


@dataclass(frozen=True, kw_only=True)
class Launch(Request):
    """Write a job's file for a platform, or train the job on a cluster.

    PLATFORM is sagemaker, vertex, azureml, watsonx, skypilot, kubernetes or pytorchjob (`chronograd platforms`). Instances are
    chosen from cluster.device, cluster.count and cluster.per_node, or taken from --plan, which also names PLATFORM.

    `launch slurm` and `launch ray` train on a cluster. `launch status`, `launch collect` and `launch resume` are for runs on
    SLURM.
    """

    verb = "launch"
    examples = (
        "chronograd launch kubernetes job.yaml --image lab/chronograd:0.1 --dry-run",
        "chronograd launch job.yaml --plan plan.json --image lab/chronograd:0.1 --out rendered",
        "chronograd launch skypilot job.yaml --image lab/chronograd:0.1 --out rendered --submit",
        "chronograd launch slurm job.yaml --time 01:00:00 --wait",
        "chronograd launch ray job.yaml --address 10.0.0.5:6379 --sweep training.batch=32,64",
        "chronograd launch status runs/mine",
    )
    is_verbatim = True

    words: Annotated[
        tuple[Any, ...], Spelling(metavar="PLATFORM JOB [FIELD=VALUE]...", is_argument=True, complete=complete_jobs)
    ] = ()
    dry_run: bool = False
    """Print the file; write nothing."""
    out: Annotated[Path | None, PLACE] = None
    """Folder of the file."""
    submit: bool = False
    """Send the file of --out with the platform's own program."""
    plan: Annotated[Path | None, PLACE, Spelling(metavar="FILE")] = None
    """Use the choice that `plan --platforms --save FILE` made."""
    time: Annotated[int | None, CLOCK, Spelling(metavar="HH:MM:SS")] = None
    """Time limit of the job; in Python seconds."""
    max_cost: float | None = None
    """Dollars; the job ends when they are spent."""
    spot: bool = False
    """Cheaper machines that may be interrupted."""
    restarts: int | None = None
    """Number of times that the platform restarts a failed job."""
    disk: int | None = None
    """GB of a node's disk; 100 by default."""
    image: str | None = None
    """Container image with this package; for watsonx a software specification."""
    name: str | None = None
    """Name of the job; data and network by default."""
    instance: Annotated[str | None, Spelling(metavar="TYPE")] = None
    """Instance type; by default the largest that the job's devices fill."""
    output: Annotated[str | None, Spelling(metavar="ADDRESS")] = None
    """Final place of the run directory, such as s3://BUCKET/PATH."""
    checkpoints: Annotated[str | None, Spelling(metavar="ADDRESS")] = None
    """Place of the run directory during the run; it must survive interruptions."""
    role: str | None = None
    """Role or service account of the job."""
    project: Annotated[str | None, Spelling(metavar="ID")] = None
    """Project, space, experiment or namespace."""
    code: Annotated[str | None, Spelling(metavar="ID")] = None
    """Your stored code: watsonx' model definition."""
    framework_version: Annotated[str | None, Spelling(metavar="VERSION")] = None
    """Version of PyTorch or TensorFlow in the image."""
    data: Annotated[tuple[tuple[str, str], ...], PAIR, Spelling(metavar="NAME=ADDRESS")] = ()
    """Data on the platform; `data` for data.name, `weights` for network.weights. The data set itself is data.name=NAME."""
    env: Annotated[tuple[tuple[str, str], ...], PAIR, Spelling(metavar="NAME=VALUE")] = ()
    """A variable of the ranks."""
    secret: Annotated[tuple[tuple[str, str], ...], PAIR, Spelling(metavar="NAME=REFERENCE")] = ()
    """A variable from a secret of the platform."""
    tag: Annotated[tuple[tuple[str, str], ...], PAIR, Spelling(metavar="KEY=VALUE")] = ()
    """A tag or label."""

    def answer(self) -> Answer[PlatformFile]:
        from chronograd import ask
        from chronograd.clouds import planned, registry, rendering
        from chronograd.clouds.submission import OPTIONS

        plan = None if self.plan is None else planned.read(self.plan)
        platform, what, *overrides = self._words(plan)
        if (self.submit and self.dry_run) or (not self.dry_run and self.out is None):
            raise InputError(
                "it is not clear what to do with the file",
                "--dry-run prints it, --out FOLDER writes it, and --out FOLDER --submit also sends it",
            )
        if self.submit:
            rendering.check_sendable(platform)
        job = ask.job_of(what, overrides)
        given = {word: getattr(self, option) for word, option in OPTIONS.items()}
        options = {word: dict(value) if isinstance(value, tuple) else value for word, value in given.items()}
        if plan is not None:
            job = ask.job_of(what, [*plan.fields(job), *overrides])
            own = plan.options(registry.platform(platform).catalogue)
            options |= {"spot": self.spot or own["spot"], "instance": self.instance or own.get("instance")}
        made = rendering.rendered(platform, job, options)
        return rendering.deliver(made, None if self.dry_run else self.out, self.submit, [plan.line()] if plan else [])

    def _words(self, plan: Planned | None) -> list[Any]:
        """Return the platform, the job and its overrides. Raises InputError."""
        from chronograd.clouds import registry

        words = list(self.words)
        if words and words[0] not in registry.names():
            if plan is None:
                raise InputError(
                    f"unknown platform {str(words[0])!r}{did_you_mean(str(words[0]), registry.names())}",
                    "write `chronograd launch PLATFORM JOB`, `chronograd launch slurm JOB` or `chronograd launch ray JOB`",
                )
            words.insert(0, plan.chosen.platform)
        if len(words) < 2:
            raise InputError("there is no job to launch", f"write `chronograd launch {(*words, 'PLATFORM')[0]} JOB`")
        return words

    def summary(self, answer: Answer[PlatformFile]) -> Sequence[str]:
        made = answer.result
        return [made.text.removesuffix("\n") if made.file is None else f"saved {made.file}"]

    def after(self, answer: Answer[PlatformFile], as_json: bool) -> None:
        for line in () if as_json else answer.result.lines:
            click.echo(printable(line), err=True)


# -- on a cluster ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Training(Request):
    """Shared options of training on a cluster."""

    job: Annotated[Any, Spelling(metavar="JOB", is_argument=True, complete=complete_jobs)]
    overrides: Annotated[tuple[str, ...], Spelling(metavar="[FIELD=VALUE]...", is_argument=True)] = ()
    data: Annotated[str | None, Spelling(metavar="NAME")] = None
    """Data set (`chronograd data --list`), or a folder with one folder of pictures per class."""
    sweep: Annotated[tuple[str, ...], Spelling(metavar="FIELD=A,B,...")] = ()
    """One run per value; several make a grid."""
    out: Annotated[Path | None, PLACE] = None
    """Run directory; for a sweep the folder of the runs."""

    def job_of(self) -> Job:
        """Return the job with its changes."""
        from chronograd import ask

        return ask.job_of(self.job, [*ask.as_overrides({"data": self.data}), *self.overrides])


@dataclass(frozen=True, kw_only=True)
class _Slurm(Request):
    """Shared options of a submission to SLURM."""

    time: Annotated[str | None, Spelling(metavar="HH:MM:SS")] = None
    """Time limit of one allocation."""
    partition: str | None = None
    """Partition of the cluster."""
    account: str | None = None
    """Account to charge."""
    interface: str | None = None
    """Network interface of gloo and NCCL, such as ib0."""
    python: str | None = None
    """Python on the compute nodes; this one by default."""
    sbatch: Annotated[tuple[str, ...], Spelling(metavar="OPTION")] = ()
    """Any option of sbatch: --sbatch=--mem=8G."""
    wait: bool = False
    """Wait until all runs have ended, then print the records."""

    def options(self, cpus_per_task: int | None = None) -> Options:
        from chronograd.launch.slurm.script import Options

        return Options(self.time, self.partition, self.account, cpus_per_task, self.interface, self.python, self.sbatch)


@dataclass(frozen=True, kw_only=True)
class LaunchSlurm(_Training, _Slurm):
    """Train a job on SLURM.

    The job states how many devices, and how many of them a node has (cluster.count, cluster.per_node). Each run gets a run
    directory, which all nodes must see, with the script that was submitted.
    """

    verb = "launch slurm"
    examples = (
        "chronograd launch slurm job.yaml --dry-run backend=ddp cluster.count=2",
        "chronograd launch slurm job.yaml --time 01:00:00 --wait",
        "chronograd launch slurm job.yaml --sweep training.learning_rate=0.05,0.1,0.2",
    )
    is_verbatim = True

    dry_run: bool = False
    """Print the script; write nothing."""
    cpus_per_task: Annotated[int | None, click.IntRange(1)] = None
    """Cores of a rank; by default cluster.threads, else the cores that decoding needs."""

    def answer(self) -> Answer[SlurmScript | list[LaunchedRun] | list[Record]]:
        from chronograd.launch import answer

        job, options = self.job_of(), self.options(self.cpus_per_task)
        if self.dry_run:
            return answer.script(job, self.sweep, options, self.out)
        return _done(answer.submit(job, self.sweep, options, self.out, say), self.wait)

    def summary(self, answer: Answer) -> Sequence[str] | None:
        return [answer.result.script.removesuffix("\n")] if self.dry_run else None


@dataclass(frozen=True, kw_only=True)
class LaunchRay(_Training):
    """Train the runs of a sweep on an existing Ray cluster, and wait for all.

    If you repeat the command, it skips finished runs and resumes the others.
    """

    verb = "launch ray"
    examples = ("chronograd launch ray job.yaml --address 10.0.0.5:6379 --sweep training.batch=32,64",)

    address: str
    """Address of the Ray cluster, such as 10.0.0.5:6379."""

    def answer(self) -> Answer[list[Record]]:
        from chronograd.launch import answer

        return _records(
            answer.sweep_on_ray(
                self.job_of(), self.sweep, self.out, self.address, lambda *words: say(" ".join(filter(None, words)))
            )
        )


# -- runs on SLURM -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Runs(Request):
    """Shared arguments of verbs on launched runs."""

    runs: Annotated[tuple[str, ...], Spelling(metavar="RUN...", is_argument=True)]
    wait: bool = False
    """Wait until all runs have ended."""

    def opened(self) -> list[RunDir]:
        from chronograd.rundir import RunDir

        return [RunDir.open(path) for path in self.runs]


@dataclass(frozen=True, kw_only=True)
class LaunchStatus(_Runs):
    """Show the progress of runs on SLURM."""

    verb = "launch status"

    def answer(self) -> Answer[list[LaunchedRun]]:
        from chronograd.launch import answer, slurm

        runs = self.opened()
        for run in runs if self.wait else ():
            slurm.wait(run)
        return answer.states(runs)


@dataclass(frozen=True, kw_only=True)
class LaunchCollect(_Runs):
    """Show the records of runs on SLURM, or why a run has none."""

    verb = "launch collect"

    def answer(self) -> Answer[list[Record]]:
        from chronograd.launch import slurm

        return _records([(slurm.wait if self.wait else slurm.collect)(run) for run in self.opened()])


@dataclass(frozen=True, kw_only=True)
class LaunchResume(_Runs, _Slurm):
    """Submit runs to SLURM again; each continues from its checkpoint, with its options or new ones."""

    verb = "launch resume"
    examples = ("chronograd launch resume runs/mine --time 02:00:00",)

    def answer(self) -> Answer[list[LaunchedRun] | list[Record]]:
        from chronograd.launch import slurm

        runs = self.opened()
        for run in runs:
            slurm.submit(run, self.options())
        return _done(runs, self.wait)


def _done(runs: Sequence[RunDir], wait: bool) -> Answer[list[LaunchedRun] | list[Record]]:
    """Return the states of launched runs; with `wait` their records, when the runs have ended."""
    from chronograd.launch import answer, slurm

    states = answer.states(runs)
    if not wait:
        return states
    for line in (states.sections[0].takeaway, *states.sections[0].lines):
        say(line)
    return _records([slurm.wait(run) for run in runs])


def _records(runs: Sequence[RunDir]) -> Answer[list[Record]]:
    """Return the records of finished runs, by the paths of their directories."""
    from chronograd.answer import join, under

    for run in runs:
        say(f"run: {run.path}")
    answers = [run_answer(run) for run in runs]
    if len(runs) > 1:
        answers = [replace(own, sections=under(path, own.sections)) for own in answers for path in own.records]
    joined = join("Launched runs", answers)
    return replace(joined, result=list(joined.records.values()))


REQUESTS = (Launch, LaunchSlurm, LaunchRay, LaunchStatus, LaunchCollect, LaunchResume)
OLD = {"--on slurm": "slurm", "--on ray": "ray", "--status": "status", "--collect": "collect", "--resume": "resume"}

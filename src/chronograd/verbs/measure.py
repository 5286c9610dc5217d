"""`measure JOB`: timed steps of a job; `measure layers|scaling|batches`: its layers, many ranks, or several batches."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import click

from chronograd.errors import InputError
from chronograd.verbs.jobs import JobRequest, launcher_of, run_answer
from chronograd.verbs.kinds import ABOVE_0, COUNTS, complete_devices
from chronograd.verbs.request import Spelling
from chronograd.verbs.screen import say, waiting

if TYPE_CHECKING:
    from chronograd.answer import Answer
    from chronograd.job import Job
    from chronograd.measure.result import Timing


@dataclass(frozen=True, kw_only=True)
class _Timing(JobRequest):
    """Options on the length of a measurement."""

    steps: Annotated[int | None, click.IntRange(1), Spelling(aliases=("num_steps",))] = None
    """Steps to time; default 30, or 200 batches in inference."""
    warmup: Annotated[int, click.IntRange(1)] = 5
    """Warm-up steps before timing."""
    seconds: Annotated[float, ABOVE_0] = 60.0
    """Maximum time."""
    out: Annotated[str | None, click.Path()] = None
    """Run directory; a new one in runs/ by default."""

    def timing(self, job: Job) -> Timing:
        from chronograd.launch.jobs import usual_steps
        from chronograd.measure.result import Timing

        return Timing(self.warmup, self.steps or usual_steps(job), self.seconds)


@dataclass(frozen=True, kw_only=True)
class Measure(_Timing):
    """Time a job's steps on one process or many.

    After a warm-up, each step is timed in parts: input, transfer, forward, backward, exposed communication, update. The result
    is a run directory.

    `measure scaling` times growing numbers of ranks, `measure batches` epochs by batch, and `measure layers` each layer.
    """

    verb = "measure"
    examples = (
        "chronograd measure job.yaml",
        "chronograd measure job.yaml backend=ddp cluster.count=2 --steps 50",
        "chronograd measure scaling job.yaml backend=ddp --world 1,2,4 --scaling strong,weak",
        "chronograd measure job.yaml backend=ddp cluster.count=2 --hosts node1,node2",
        "chronograd measure resnet18 --inference --batch 8",
        "chronograd measure batches job.yaml --batches 32,128,512",
        "chronograd measure layers torchvision:googlenet --batch 8 --precision fp32",
    )

    epochs: bool = False
    """Also time whole epochs: one after a warm-up epoch, and one without loading data."""
    launcher: str | None = None
    """Launcher of the ranks: local, torchrun, horovodrun; the backend's own by default."""
    hosts: str | None = None
    """Hosts of the ranks, in blocks: names for ssh, or namespaces such as netns:h1,netns:h2."""

    def answer(self) -> Answer:
        from chronograd.launch import jobs

        job = self.asked().job
        launcher = launcher_of(self.launcher, self.hosts)
        with waiting("timing steps"):
            run = jobs.measure(job, self.timing(job), out=self.out, with_epochs=self.epochs, launcher=launcher)
        return run_answer(run)

    def after(self, answer: Answer, as_json: bool) -> None:
        if not as_json:
            click.echo(f"run: {next(iter(answer.records))}")


@dataclass(frozen=True, kw_only=True)
class MeasureScaling(_Timing):
    """Time a job's steps on growing numbers of ranks: one run each, and a table with the prediction."""

    verb = "measure scaling"
    examples = ("chronograd measure scaling job.yaml backend=ddp --world 1,2,4 --scaling strong,weak",)

    world: Annotated[tuple[int, ...], COUNTS] = (1, 2)
    """Numbers of ranks, such as 1,2,4."""
    scaling: str = "strong"
    """strong (same global batch), weak (same batch per rank), or strong,weak."""

    def answer(self) -> Answer:
        from chronograd.bench.scaling import measure_scaling
        from chronograd.compare.ranks import throughput_section
        from chronograd.data.datasets import card
        from chronograd.data.trace_job import trace_job
        from chronograd.measure import environment
        from chronograd.rundir import RunDir

        job = self.asked().job
        if job.mode == "inference":
            raise InputError(
                "scaling applies to training; in inference each device works independently", "leave --inference out"
            )
        with waiting("counting the work of the network"):
            trace = trace_job(job)
        whole = RunDir.create(job, environment.environment(), self.out)
        say(f"timing steps on {', '.join(map(str, self.world))} ranks")
        scalings: list[Any] = self.scaling.split(",")
        record = measure_scaling(job, list(self.world), scalings, folder=whole.path, trace=trace,
                                 samples=card(job.data).train_size, timing=self.timing(job), say=say)  # fmt: skip
        whole.save_record(record)
        rows = [point.model_dump() for point in record.tables.scaling]
        sections = [
            throughput_section(
                f"{name} scaling: {record.title}", [r for r in rows if r["scaling"] == name], with_communication=True
            )
            for name in dict.fromkeys(row["scaling"] for row in rows)
        ]
        return replace(run_answer(whole), title=record.title, sections=sections, notes=list(record.notes))

    def after(self, answer: Answer, as_json: bool) -> None:
        if not as_json:
            click.echo(f"run: {next(iter(answer.records))}")


@dataclass(frozen=True, kw_only=True)
class MeasureBatches(_Timing):
    """Time whole epochs at growing batches, until memory is full."""

    verb = "measure batches"
    examples = ("chronograd measure batches job.yaml --batches 32,128,512",)

    batches: Annotated[tuple[int, ...], COUNTS]
    """Batch sizes, such as 32,128,512."""
    epochs: Annotated[bool, Spelling(hidden=True)] = False
    launcher: str | None = None
    """Launcher of the ranks: local, torchrun, horovodrun; the backend's own by default."""
    hosts: str | None = None
    """Hosts of the ranks, in blocks: names for ssh, or namespaces such as netns:h1,netns:h2."""

    def answer(self) -> Answer:
        from chronograd.bench.batches import measure_batches

        launcher = launcher_of(self.launcher, self.hosts)
        job = self.asked().job
        return measure_batches(job, list(self.batches), self.out, launcher, self.timing(job))


@dataclass(frozen=True, kw_only=True)
class MeasureLayers(JobRequest):
    """Time each layer of the network in inference: with and without synchronisation, and its matrix product alone."""

    verb = "measure layers"
    examples = ("chronograd measure layers torchvision:googlenet --batch 8 --precision fp32",)

    warmup: Annotated[int, click.IntRange(1)] = 5
    """Warm-up passes before timing."""
    repeats: Annotated[int, click.IntRange(1)] = 20
    """Timed passes of each kind."""
    on: Annotated[str | None, Spelling(metavar="DEVICE", complete=complete_devices)] = None
    """Device to predict for; by default the device of this machine, if it is known."""

    def answer(self) -> Answer:
        from chronograd.ask import is_batch_stated
        from chronograd.bench.layers import layers_answer, measure_layers
        from chronograd.job import changed

        job = self.asked().job
        is_named = isinstance(self.job, str | os.PathLike)
        if self.batch is None and is_named and not is_batch_stated(job, os.fspath(self.job), self.overrides):
            job = changed(job, ["training.batch=1"])
        with waiting("timing layers") as stage:
            times = measure_layers(job, repeats=self.repeats, warmup=self.warmup, on=self.on, say=stage)
        return layers_answer(times)


REQUESTS = (Measure, MeasureScaling, MeasureBatches, MeasureLayers)
OLD = {"--layers": "layers", "--world": "scaling", "--batches": "batches"}

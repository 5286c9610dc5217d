"""Shared parts of verbs on a job: JOB [FIELD=VALUE...], short forms of its fields, and the network's trace."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from chronograd.errors import InputError
from chronograd.verbs.kinds import COUNTS, complete_jobs
from chronograd.verbs.large import check_answers, only_batch
from chronograd.verbs.request import FILE, Request, Spelling

if TYPE_CHECKING:
    from chronograd.answer import Answer
    from chronograd.rundir import RunDir


@dataclass(frozen=True, kw_only=True)
class JobRequest(Request):
    """A question about a job: a job file, a network by name, or from Python a `Job`."""

    job: Annotated[Any, Spelling(metavar="JOB|NETWORK", is_argument=True, complete=complete_jobs)]
    overrides: Annotated[tuple[str, ...], Spelling(metavar="[FIELD=VALUE]...", is_argument=True)] = ()
    data: Annotated[str | None, Spelling(metavar="NAME")] = None
    """Data set (`chronograd data --list`), or a folder with one folder of pictures per class."""
    precision: str | None = None
    """fp32, tf32, bf16 or fp16."""
    mode: Annotated[Literal["training", "inference"] | None, Spelling(("--inference",), flag_value="inference")] = None
    """Run the network forward only: mode=inference."""
    batch: Annotated[tuple[int, ...] | None, COUNTS, Spelling(metavar="N")] = None
    """Samples of a step over all devices."""
    inputs: Annotated[Any, Spelling(metavar="FILE.py:NAME")] = None
    """An object with the network's arguments, or a function without arguments that returns it."""
    input: Annotated[tuple[Any, ...], Spelling(metavar="C,H,W", aliases=("input_shape",))] = ()
    """Shape of one sample; or NAME:SHAPE:DTYPE for each tensor, such as tokens:128:int64, or step::int64 for one number."""
    loss: Annotated[Any, Spelling(metavar="NAME|FILE.py:NAME")] = None
    """Loss of a network on its own inputs: cross_entropy, mse, sum, or a function (outputs, inputs) of one number."""
    classes: Annotated[int | None, click.IntRange(2), Spelling(aliases=("num_classes",))] = None
    """Number of classes."""
    save_job: Annotated[Path | None, FILE] = None
    """Save the job (.yaml)."""
    print_config: bool = False
    """Print the resolved job and stop without starting anything."""

    def short(self) -> dict[str, Any]:
        """Return the job fields that have a short form, with the names of `ask.SHORT`. Raises InputError."""
        fields = {"data": self.data, "precision": self.precision, "mode": self.mode, "classes": self.classes, "loss": self.loss,
                  "batch": self.batch[0] if self.batch else None}  # fmt: skip
        return {**fields, **fields_of_inputs(self.input, self.inputs)}

    def asked(self, *, takes_batches: bool = False, **how: Any) -> Any:
        """Return the job and the fields that the user stated, as `ask.Asked`; save or print the job if an option asks for it.

        Args:
            takes_batches: whether the verb answers for each of several batches.
            how: of `ask.ask`: `target`, `can_download`.
        Raises: as `ask.ask`; Exit after `print_config`.
        """
        from chronograd import ask, job

        check_answers(getattr(self, "verb", ""), self.job, self.overrides)
        if self.batch and not takes_batches:
            only_batch(self.batch)
        if isinstance(self.job, job.Job):
            changes = [*ask.as_overrides(self.short()), *self.overrides]
            own = job.changed(self.job, changes) if changes else self.job
            fields = {
                f"{part}.{field}" for part in ("data", "training") for field in getattr(own, part).model_fields_set
            }
            asked = ask.Asked(own, frozenset(fields))
            ask.check_ordinary(own)
        elif not isinstance(self.job, str | os.PathLike):
            own = _job_of(self._given, self.batch[0] if self.batch else 32, self.precision or "fp32", self.overrides)
            asked = ask.Asked(own, frozenset())
        else:
            asked = ask.ask(os.fspath(self.job), self.overrides, self.short(), is_counted=self.is_counted, **how)
        self.show_job(asked.job)
        return asked

    def show_job(self, own: Any) -> None:
        """Save or print a job if an option asks for it. Raises Exit after `print_config`."""
        from chronograd import job

        if self.save_job is not None:
            from chronograd.files import as_asked, write_aside

            with as_asked(self.save_job):
                write_aside(self.save_job, job.to_yaml(own, is_whole=False))
            click.echo(f"saved the job to {self.save_job}", err=True)
        if self.print_config:
            from chronograd.errors import printable

            click.echo(printable(job.to_yaml(own)), nl=False)
            raise click.exceptions.Exit(0)

    @property
    def is_counted(self) -> bool:
        """Return whether the network was counted before."""
        return False

    @property
    def _given(self) -> Any:
        """Return the trace that a Python caller passed; None for a named network."""
        return None


@dataclass(frozen=True, kw_only=True)
class CountedRequest(JobRequest):
    """A question about a job with a counted network; in Python also about a `Trace` or a module."""

    trace: Annotated[Any, Spelling(metavar="FILE")] = None
    """A saved trace; needs no torch."""

    @property
    def is_counted(self) -> bool:
        return self.trace is not None

    @property
    def is_bare(self) -> bool:
        """Return whether a Python caller passed a trace or a module instead of a job: it has neither data nor recipe."""
        from chronograd.job import Job

        return not isinstance(self.job, Job | str | os.PathLike)

    def traced(self, job: Any) -> Any:
        """Return the trace of a job's network: the given one, or a new one."""
        from chronograd.data.trace_job import trace_job

        return trace_job(job, self._trace_file()) if self._given is None else self._given

    def traced_layouts(self, job: Any) -> Any:
        """Return the traces of a job's network in each memory layout, or only the given one."""
        from chronograd.data.trace_job import trace_layouts

        return trace_layouts(job, self._trace_file()) if self._given is None else [self._given]

    @functools.cached_property
    def _given(self) -> Any:
        """Return the trace that a Python caller passed, or that of a passed module; None on the command line."""
        from chronograd.job import Job
        from chronograd.trace import Trace

        for given in (self.trace, self.job):
            if isinstance(given, Trace):
                return given
        if isinstance(self.job, Job | str | os.PathLike):
            return None
        how = {"mode": self.mode or "training", "loss": self.loss or "cross_entropy"}
        return trace_module(self.job, self.input, self.inputs, **how)

    def _trace_file(self) -> Path | None:
        return None if self.trace is None else Path(self.trace)


def _job_of(trace: Any, batch: int, precision: str, overrides: Sequence[str]) -> Any:
    """Return a job for a network without one: synthetic samples of its shape."""
    from chronograd import job as jobs

    data: dict[str, Any] = {"name": jobs.INPUTS}
    if trace.takes_images or trace.takes_tokens:
        data = {"name": "synthetic", "shape": list(trace.sample_shape), "classes": 2, "samples": max(batch, 1)}
    network, training = {"name": trace.network or "network"}, {"batch": batch, "precision": precision}
    job = jobs.from_dict({"mode": trace.mode, "network": network, "data": data, "training": training})
    return jobs.changed(job, list(overrides)) if overrides else job


def trace_module(module: Any, texts: Sequence[Any], example: Any, **settings: Any) -> Any:
    """Return the trace of a module that a Python caller passed, on `input=` or on the example `inputs=`. Raises InputError."""
    from chronograd.count.calls import Call
    from chronograd.count.network import call_of
    from chronograd.count.tracing import trace

    if example is not None and not isinstance(example, str):
        return trace(module, Call.of_example(example, module), **settings)
    given = fields_of_inputs(texts, example)
    if not given:
        hint = "give input_shape=(3, 224, 224), input=('3x64x64', 'step::int64'), or inputs= with an example"
        raise InputError(f"{type(module).__name__} does not state its inputs", hint)
    shapes = given.get("inputs") or ["x".join(map(str, given["input"]))]
    return trace(module, call_of(module, shapes), **settings)


def fields_of_inputs(texts: Sequence[Any], example: Any) -> dict[str, Any]:
    """Return the job fields of --input and --inputs: `input`, the shape of one sample, or `inputs`, words. Raises InputError."""
    from chronograd import inputs as words

    if texts and all(isinstance(text, int) for text in texts):  # a shape passed from Python
        return {"input": tuple(texts)}
    if texts and example is not None:
        raise InputError(
            "--input and --inputs are both given", "leave --input out: --inputs has everything that the network takes"
        )
    if example is not None:
        if not isinstance(example, str) or not words.is_reference(example):
            raise InputError(f"--inputs {example!r} names no function", "write FILE.py:example_inputs")
        return {"inputs": [example]}
    words.check(texts)
    parsed = [words.Input.parse(text) for text in texts]
    if len(parsed) == 1 and parsed[0].is_plain and parsed[0].shape:
        return {"input": parsed[0].shape}
    return {"inputs": [str(one) for one in parsed]} if parsed else {}


def launcher_of(name: str | None, hosts: str | None) -> str | None:
    """Return the launcher of `--launcher` or `--hosts`; None for the backend's own. Raises InputError."""
    if hosts is not None and name is not None:
        raise InputError("--hosts starts ranks itself", "leave --launcher out")
    return name if hosts is None else f"hosts:{hosts}"


def run_answer(run: RunDir) -> Answer:
    """Return the record of a finished run, by the path of its directory."""
    from chronograd.quantities import record_answer

    record = run.record()
    data = {"run": str(run.path), **record.model_dump(mode="json")}
    return dataclasses.replace(record_answer(record), data=data, records={str(run.path): record})

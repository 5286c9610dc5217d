"""The trace of a job: its network at the shape and classes of its data."""

from __future__ import annotations

from pathlib import Path

from chronograd.count.settings import TraceSettings
from chronograd.data.datasets import TASKS, card, check_task
from chronograd.errors import InputError
from chronograd.job import INPUTS, Job
from chronograd.trace import CONV_KINDS, Trace
from chronograd.words import how_many


def trace_job(job: Job, saved: Path | None = None, mode: str | None = None) -> Trace:
    """Count a job's network at its data's shape. If the network is the path of a saved trace, read that.

    Reading a trace needs no torch.

    Args:
        saved: a trace to read instead; it must be of the job's network.
        mode: `training` or `inference`, instead of the job's.

    Raises: as `trace_network` and `card`; InputError for tasks that cannot be counted from a job yet, and for a saved
    trace of another job.
    """
    if (path := _path_of(job, saved)) is not None:
        trace = _read(job, path, mode or job.mode)
        if trace.channels_last != job.training.channels_last:
            raise _not_of_the_job(
                path,
                f"training.channels_last={trace.channels_last}",
                f"training.channels_last={job.training.channels_last}",
            )
        if (held := _param_dtype(trace)) != job.training.param_dtype:
            raise _not_of_the_job(
                path, f"training.param_dtype={held}", f"training.param_dtype={job.training.param_dtype}"
            )
        return trace
    if job.task not in TASKS:
        raise InputError(f"a {job.task} job cannot be counted yet", "count its network: chronograd count NETWORK")
    from chronograd.count.cached import cached_trace

    data = card(job.data)
    check_task(job, data)
    settings = TraceSettings(
        mode=mode or job.mode, channels_last=job.training.channels_last, param_dtype=job.training.param_dtype
    )
    if job.network.inputs or job.data.name == INPUTS:
        settings |= {"inputs": job.network.inputs, "num_classes": job.data.classes, "loss": job.training.loss}
    else:
        settings |= {"input_shape": data.shape, "num_classes": data.num_classes}
        if job.is_text:
            settings["input_dtype"] = "int64"
    return cached_trace(job.network.name, dict(job.network.options), **settings)


def trace_layouts(job: Job, saved: Path | None = None) -> list[Trace]:
    """Return a trace for each memory layout that the job leaves open; a saved trace has one. Raises as `trace_job`."""
    if "channels_last" in job.training.model_fields_set:
        return [trace_job(job, saved)]
    if (path := _path_of(job, saved)) is not None:
        return [_read(job, path, job.mode)]
    first = trace_job(job)
    if not first.select(kinds=CONV_KINDS):
        return [first]
    last = job.model_copy(update={"training": job.training.model_copy(update={"channels_last": True})})
    return [first, trace_job(last)]


def _param_dtype(trace: Trace) -> str:
    """Return the data type of the parameters as a job states it: bf16 if all parameters have it."""
    dtypes = {tensor.dtype for tensor in trace.parameters().values()}
    return "bf16" if dtypes == {"bfloat16"} else "fp32"


def _path_of(job: Job, saved: Path | None) -> Path | None:
    """Return the path of the saved trace; None if the network is to be counted."""
    return saved or (Path(job.network.name) if _is_path(job) else None)


def _is_path(job: Job) -> bool:
    return job.network.name.endswith((".json", ".json.gz"))


def _read(job: Job, path: Path, mode: str) -> Trace:
    """Read a saved trace of a job's network in a mode, in any layout."""
    trace = Trace.load(path)
    if not _is_path(job) and trace.network != job.network.name:
        raise _not_of_the_job(path, f"network {trace.network}", job.network.name)
    if trace.mode != mode:
        raise _not_of_the_job(path, trace.mode, f"mode={mode}", f" mode={mode}")
    if mode == "training" and "loss" in job.training.model_fields_set and trace.loss != job.training.loss:
        raise _not_of_the_job(path, f"the loss {trace.loss}", f"training.loss={job.training.loss}")
    _check_data(job, trace, path)
    return trace


def _check_data(job: Job, trace: Trace, path: Path) -> None:
    """Check a saved trace against the samples and classes of a job."""
    if job.task not in TASKS or job.data.name == INPUTS:
        return
    data = card(job.data)
    check_task(job, data)
    if trace.input_shapes and trace.sample_shape != data.shape:
        raise _not_of_the_job(path, f"samples of shape {trace.sample_shape}", f"{data.shape} ({job.data.name})")
    dimensions = 3 if job.is_text else 2
    classes = [trace.tensors[i].shape[-1].const for i in trace.outputs if len(trace.tensors[i].shape) == dimensions]
    if classes and classes[0] != data.num_classes:
        raise _not_of_the_job(path, f"{how_many(classes[0], 'classes')}", f"{data.num_classes} ({job.data.name})")


def _not_of_the_job(path: Path, of_trace: str, of_job: str, option: str = "") -> InputError:
    return InputError(
        f"the trace {path} is of {of_trace}; the job has {of_job}",
        f"count the job itself: chronograd count JOB{option} --out FILE",
    )

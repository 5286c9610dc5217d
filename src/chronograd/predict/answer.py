"""The answer of `predict` for a job on one or several devices: its quantities, or its layers under the roofline."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from chronograd.answer import Answer
from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.job import Job, changed, check_backend, from_dict, parse_on, placed, with_ranks
from chronograd.predict.carrying import Shown, way_of
from chronograd.predict.layers import roofline_section
from chronograd.predict.prediction import USUAL_MODEL, StepModel, in_mode, predict, predict_step, tokens_of_sample
from chronograd.predict.setting import setting_of
from chronograd.quantities import record_answer
from chronograd.record import Record
from chronograd.trace import Trace
from chronograd.units import seconds


def predict_jobs(
    trace: Trace,
    jobs: Sequence[Job],
    model: StepModel = USUAL_MODEL,
    *,
    samples: int | None = None,
    shown: Callable[[Job], Shown | None] = lambda job: None,
    with_layers: bool = False,
    has_epochs: bool = True,
    assumptions: Callable[[Job], Sequence[str]] = lambda job: (),
) -> Answer:
    """Return a predicted record of each job.

    Args:
        samples, has_epochs: see `predict`. shown: a measured correction for the network of each job; see `shown_of`.
        assumptions: notes on the values of each job that the user did not state; its record has them first.
        with_layers: show how close each layer comes to the limits of the device, instead of every quantity.
    """
    records = [predict(trace, job, model, samples=samples, shown=shown(job), has_epochs=has_epochs) for job in jobs]
    for record, job in zip(records, jobs, strict=True):
        record.notes[:0] = assumptions(job)
    answer = record_answer(*records)
    if not with_layers:
        return answer
    layers = [
        replace(section, title=f"{r.title}. {section.title}") for r in records for section in [roofline_section(r)]
    ]
    return replace(answer, sections=layers)


def on_devices(job: Job, places: Sequence[str], overrides: Sequence[str] = ()) -> list[Job]:
    """Return the job on each of several places, such as `8xV100`, or the job itself if there is no place.

    Raises as `placed`, and NotFoundError for an unknown device.
    """
    if not places:
        check_backend(job)
    jobs = [placed(job, place, overrides) for place in places] or [job]
    for one in jobs:
        catalog.device(one.cluster.device)
    return jobs


def shown_of(
    trace: Trace, measured: Record | Callable[[Job], Shown] | None, traced: Callable[[Job], Trace] | None = None
) -> Callable[[Job], Shown | None]:
    """Return the correction for the network of each job from a measurement on another device, or None.

    Args:
        measured: a measurement of the same network on another device: a record, or the result of `of_figure`.

    Arguments and errors are those of `shown_by`.
    """
    if measured is None:
        return lambda job: None
    if isinstance(measured, Record):
        shown, own = shown_by(trace, measured, traced), _job_of(measured)

        def of_record(job: Job) -> Shown:
            if job.network.options != own.network.options:  # another network, with other prediction errors
                raise InputError(
                    f"the record is of {own.network.name} with network.options {own.network.options}, and the job has "
                    f"{job.network.options}",
                    "give a record of the same network",
                )
            return shown

        return of_record
    return measured


def of_figure(trace: Trace, text: str, least_s: Callable[[Job], float] = lambda job: 0.0) -> Callable[[Job], Shown]:
    """Return the correction that a figure such as `rtx3090=1234/s` gives for a job: `shown_by` for that job and device.

    A rate counts samples (or tokens, `tokens/s`); a time is that of one step. For several devices, such as `8xv100=78ms`, it
    covers them all. The figure counts as one of the network alone, because the job's input pipeline is that of another machine.

    Args:
        least_s: the shortest possible step of a job, in seconds.
    Raises: InputError for text that is not a figure or for an impossible figure; else as `setting_of`.
    """
    place, _, figure = text.partition("=")
    count, device = parse_on(place)
    match = _FIGURE.fullmatch(figure.strip().replace(",", ""))
    if match is None or not 0 < (value := float(match[1])) < math.inf:
        raise InputError(
            f"cannot read --measured-on {text!r}",
            "write DEVICE=FIGURE, such as rtx3090=1234/s or 8xv100=78ms, or a record",
        )
    catalog.device(device)

    def shown(job: Job) -> Shown:
        place = [f"cluster.count={count or 1}", f"cluster.device={device}", "cluster.input_samples_per_s=null"]
        there = in_mode(with_ranks(changed(job, place)), trace.mode)
        images = there.training.images_per_step
        step_s = value * _STEP_UNITS[match[2]] if match[2] in _STEP_UNITS else images / value
        if match[2].startswith("token"):
            step_s *= _tokens(trace)
        least = least_s(there)
        if step_s < least:
            raise InputError(
                f"--measured-on {text!r} is a step of {seconds(step_s)} at batch {there.training.batch:,}, but its FLOPs and bytes "
                f"need at least {seconds(least)} at the peaks of {count or 1} × {device} in {there.training.precision}: at most "
                f"{images / least:,.0f} samples/s are possible",
                "look up the figure, and its batch, precision and number of devices",
            )
        return _shown(step_s, trace, there)

    return shown


# Rates end in /s. Times are those of a step.
_FIGURE = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*((?:images?|imgs?|samples?|tokens?)?/s(?:ec)?|ms|us|µs|s)")
_STEP_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}


def _tokens(trace: Trace) -> int:
    tokens = tokens_of_sample(trace)
    if tokens is None:
        raise InputError(f"{trace.network} takes no tokens", "write samples/s")
    return tokens


def _shown(measured_s: float, trace: Trace, job: Job) -> Shown:
    setting = setting_of(job)
    step = predict_step(trace, setting)
    return Shown(measured_s / step.seconds, step.sigma_log, way_of(job, setting.device))


def shown_by(trace: Trace, record: Record, traced: Callable[[Job], Trace] | None = None) -> Shown:
    """Return the correction that a measured record gives for its network: the measured step compared with its prediction.

    Args:
        trace: the trace of the job to predict.
        traced: returns the trace of the record's own job, which may have another input, number of classes, layout or mode.
            Without it the record must match the trace.
    Raises: InputError unless the record is a measured step of the trace's network; as `traced`.
    """
    measured = record.quantities.get("step_time_s")
    if record.kind != "measured" or measured is None or measured.value is None:
        raise InputError(
            f"{record.title} is not a measured step", "give the record.json of `chronograd measure` or `train`"
        )
    job = _job_of(record)
    if job.network.name != trace.network:
        raise InputError(
            f"the record is of {job.network.name}, and the job's network is {trace.network}",
            "give a record of the same network",
        )
    own = trace if traced is None else traced(job)
    for what, of_record, of_trace in (
        ("mode", job.mode, own.mode),
        ("samples of shape", job.data.shape or own.sample_shape, own.sample_shape),
        ("channels_last", job.training.channels_last, own.channels_last),
    ):
        if of_record != of_trace:
            raise InputError(
                f"the record is of {what} {of_record}, and the trace of {what} {of_trace}",
                "leave the saved trace out, so that the record's own job is counted, or give a record of the same job",
            )
    return _shown(measured.value, own, job)


def _job_of(record: Record) -> Job:
    return from_dict(record.job.model_dump(), record.title)

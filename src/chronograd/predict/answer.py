"""What `predict` says of one job, on one device or several: its quantities, or its layers under the roofline."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from chronograd.answer import Answer
from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.job import Job, changed, check_backend, from_dict, parse_on, with_ranks
from chronograd.predict.carrying import Shown, way_of
from chronograd.predict.layers import roofline_section
from chronograd.predict.prediction import in_mode, predict, predict_step, tokens_of_sample
from chronograd.predict.setting import setting_of
from chronograd.quantities import record_answer
from chronograd.record import Record
from chronograd.trace import Trace


def predict_jobs(
    trace: Trace,
    jobs: Sequence[Job],
    *,
    samples: int | None = None,
    algorithm: str | None = None,
    ppp: tuple[float, float] | None = None,
    depth: int | None = None,
    with_layers: bool = False,
    measured: Record | Callable[[Job], Shown] | None = None,
    paced: Callable[[Job, float], tuple[Job, str] | None] = lambda job, step_s: None,
) -> Answer:
    """A predicted record of each job.

    Args:
        samples, algorithm, ppp, depth: see `predict`.
        with_layers: say how close each layer comes to what the device can do, instead of every quantity.
        measured: of the same network on another device, a record or what `of_figure` returns; what it showed there is
            carried over.
        paced: of a job and its step time, the job with an input that it has to wait for, and a note; None where it has not.
    """
    shown = shown_of(trace, measured)

    def predicted(job: Job) -> Record:
        return predict(trace, job, samples=samples, algorithm=algorithm, ppp=ppp, depth=depth, shown=shown(job))

    records = [predicted(job) for job in jobs]
    for index, (job, record) in enumerate(zip(jobs, records, strict=True)):
        slower = paced(job, record.value("step_time_s"))
        if slower is not None:
            records[index] = predicted(slower[0])
            records[index].notes.append(slower[1])
    answer = record_answer(*records)
    if not with_layers:
        return answer
    layers = [
        replace(section, title=f"{r.title}. {section.title}") for r in records for section in [roofline_section(r)]
    ]
    return replace(answer, sections=layers)


def on_devices(job: Job, places: Sequence[str]) -> list[Job]:
    """The job on each of several places, such as `8xV100`; as it is where there is none.

    A job of one rank is one of `ddp` on several devices. Raises JobError where the job itself says both.
    """
    if not places:
        check_backend(job)
        return [job]
    settings = [parse_on(place) for place in places]
    return [with_ranks(changed(job, [f"cluster.count={count}", f"cluster.device={name}"])) for count, name in settings]


def shown_of(trace: Trace, measured: Record | Callable[[Job], Shown] | None) -> Callable[[Job], Shown | None]:
    """What the network of each job showed elsewhere, or nothing. Raises as `shown_by`."""
    if measured is None:
        return lambda job: None
    if isinstance(measured, Record):
        shown = shown_by(trace, measured)
        return lambda job: shown
    return measured


def of_figure(trace: Trace, text: str) -> Callable[[Job], Shown]:
    """What a figure such as `rtx3090=1234/s` tells of a job: as `shown_by`, of the same job on that device.

    A rate is of samples (or tokens, `tokens/s`), a time of one step; of several devices, such as `8xv100=78ms`, of all together.
    Raises InputError for what is no figure, and as `setting_of`.
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
        there = with_ranks(changed(job, [f"cluster.count={count}", f"cluster.device={device}"]))
        there = in_mode(there, trace.mode)
        step_s = value * _STEP_UNITS[match[2]] if match[2] in _STEP_UNITS else there.training.images_per_step / value
        if (match[2] or "").startswith("token"):
            step_s *= _tokens(trace)
        return _shown(step_s, trace, there)

    return shown


# Rates end in /s; times are of a step.
_FIGURE = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*((?:images?|samples?|img|tokens?)?/s|ms|us|µs|s)")
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


def shown_by(trace: Trace, record: Record) -> Shown:
    """What a measured record shows of its network: the step beside what is predicted of it there.

    Raises: InputError unless the record is a measured step of the trace's network.
    """
    measured = record.quantities.get("step_time_s")
    if record.kind != "measured" or measured is None or measured.value is None:
        raise InputError(
            f"{record.title} is no measured step", "give the record.json of `chronograd measure` or `train`"
        )
    job = from_dict(record.job.model_dump(), record.title)
    if job.network.name != trace.network:
        raise InputError(
            f"the record is of {job.network.name}, and the job's network is {trace.network}",
            "give a record of the same network",
        )
    return _shown(measured.value, trace, in_mode(job, trace.mode))

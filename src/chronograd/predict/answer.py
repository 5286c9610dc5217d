"""What `predict` says of one job, on one device or several: its quantities, or its layers under the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chronograd.answer import Answer
from chronograd.errors import InputError
from chronograd.job import Job, changed, check_backend, from_dict, parse_on, with_ranks
from chronograd.predict.layers import roofline_section
from chronograd.predict.prediction import predict, predict_step, setting_of
from chronograd.predict.relatives import CARRIED_EXPONENT
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
    measured: Record | None = None,
) -> Answer:
    """A predicted record of each job.

    Args:
        samples, algorithm, ppp, depth: see `predict`.
        with_layers: say how close each layer comes to what the device can do, instead of every quantity.
        measured: of the same network on another device; what it showed there is carried over.
    """
    factor = None if measured is None else carried_factor(trace, measured)
    records = [
        predict(trace, job, samples=samples, algorithm=algorithm, ppp=ppp, depth=depth, factor=factor) for job in jobs
    ]
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


def carried_factor(trace: Trace, record: Record) -> float:
    """By how much to correct this network's time on any device: (measured / predicted on the record's)^0.8.

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
    predicted = predict_step(trace, setting_of(job)).seconds
    return float((measured.value / predicted) ** CARRIED_EXPONENT)

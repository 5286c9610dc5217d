"""What a network showed on one device, carried to another: `predict --measured-on RECORD`."""

from __future__ import annotations

from chronograd.errors import InputError
from chronograd.job import from_dict
from chronograd.predict.prediction import predict_step, setting_of
from chronograd.predict.relatives import CARRIED_EXPONENT
from chronograd.record import Record
from chronograd.trace import Trace


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

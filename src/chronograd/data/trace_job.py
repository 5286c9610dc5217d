"""The trace of a job: its network at the shape and classes of its data."""

from __future__ import annotations

from chronograd.data.datasets import card
from chronograd.errors import InputError
from chronograd.job import Job
from chronograd.trace import Trace


def trace_job(job: Job) -> Trace:
    """Count a job's network at its data's shape; a network that is the path of a saved trace is read.

    Reading a trace needs no torch. Raises what `trace_network` and `card` raise, and InputError for tasks that
    cannot be counted from a job yet.
    """
    if job.network.name.endswith((".json", ".json.gz")):
        return Trace.load(job.network.name)
    if job.task != "classification":
        raise InputError(f"a {job.task} job cannot be counted yet", "count its network: chronograd count NETWORK")
    from chronograd.count.network import trace_network

    data = card(job.data)
    return trace_network(
        job.network.name,
        dict(job.network.options),
        input_shape=data.shape,
        num_classes=data.num_classes,
        channels_last=job.training.channels_last,
    )

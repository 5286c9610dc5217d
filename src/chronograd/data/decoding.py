"""What a host has to decode while a job trains, for planning."""

from __future__ import annotations

from chronograd.data.datasets import card
from chronograd.job import Job
from chronograd.plan.renting import PHOTOGRAPHS, Decoding

# Sets of smaller images are kept in memory.
LEAST_SIDE = 64


def decoding_of(job: Job, per_vcpu: float | None = None) -> Decoding | None:
    """Photographs that lie in files are decoded, unless the job says what its input delivers. Raises as `card`.

    Args:
        per_vcpu: images/s of a virtual CPU, whatever the data; 0 for no decoding.
    """
    if per_vcpu is not None:
        return Decoding(per_vcpu, per_vcpu, per_vcpu) if per_vcpu else None
    shape, data = card(job.data).shape, job.data
    is_photograph = len(shape) == 3 and shape[0] == 3 and min(shape[1:]) > LEAST_SIDE
    is_in_files = data.name != "synthetic" and data.loading != "resident" and job.cluster.input_samples_per_s is None
    return PHOTOGRAPHS if is_photograph and is_in_files else None

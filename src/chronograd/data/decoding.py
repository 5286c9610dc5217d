"""Decoding: the work of a host that decodes photographs while a job trains, for planning and predicting."""

from __future__ import annotations

import math

from chronograd.data.datasets import card
from chronograd.hardware import catalog, market
from chronograd.hardware.catalog import Price
from chronograd.job import Job, changed
from chronograd.plan.renting import PHOTOGRAPHS, Decoding
from chronograd.predict.scaling import topology_of

# Sets of smaller images stay in memory.
MIN_SIDE = 64


def decoding_of(job: Job, per_vcpu: float | None = None) -> Decoding | None:
    """Return the decoding of a job whose photographs lie in files, unless the job states the speed of its input. Raises
    as `card`.

    Args:
        per_vcpu: images/s of a virtual CPU, for any data; 0 for no decoding.
    """
    if per_vcpu is not None:
        return Decoding(per_vcpu, per_vcpu, per_vcpu) if per_vcpu else None
    shape, data = card(job.data).shape, job.data
    is_photograph = len(shape) == 3 and shape[0] == 3 and min(shape[1:]) > MIN_SIDE
    is_in_files = data.name != "synthetic" and data.loading != "resident" and job.cluster.input_samples_per_s is None
    return PHOTOGRAPHS if is_photograph and is_in_files else None


def paced_by_input(job: Job, step_s: float) -> tuple[Job, str] | None:
    """Return the job limited by its decoding, and a note, if a step has to wait for its input; else None.

    The host is that of the priced instance. The result is None if the number of its virtual CPUs is unknown.

    Args:
        step_s: seconds of a step without decoding.
    """
    decoding, cluster, device = decoding_of(job), job.cluster, catalog.device(job.cluster.device)
    price = market.price_of(device, count=cluster.count) if device.kind == "gpu" else None
    if job.mode != "training" or decoding is None or price is None or not (price.vcpus and price.includes_host):
        return None
    topology = topology_of(device, cluster.count, cluster.per_node, cluster.link, cluster.intra_link)
    vcpus = price.vcpus * math.ceil(cluster.count / price.count - 1e-9) / int(topology.num_nodes)
    rate = decoding.per_vcpu * vcpus
    needed = job.images_per_rank * int(topology.on_node) / step_s
    if needed <= rate:
        return None
    note = (
        f"limited by its input: {vcpus:g} virtual CPUs of {price.vendor} {price.instance} decode {rate:,.0f} images/s "
        f"({decoding.low:g} to {decoding.high:g} each), and the devices of a node train {needed:,.0f}; "
        "cluster.input_samples_per_s states another rate"
    )
    return changed(job, [f"cluster.input_samples_per_s={rate:g}"]), note


def counted_input(job: Job, step_s: float) -> tuple[Job, str] | None:
    """Return as `paced_by_input`; if a GPU's host decodes at an unknown speed, return the job itself and the reason."""
    paced = paced_by_input(job, step_s)
    if paced is not None or job.mode != "training" or decoding_of(job) is None:
        return paced
    device = catalog.device(job.cluster.device)
    if device.kind != "gpu" or not (
        why := _unknown_host(market.price_of(device, count=job.cluster.count), device.name)
    ):
        return None
    return (
        job,
        f"decoding on the host is not included: {why}; cluster.input_samples_per_s states what the input delivers",
    )


def _unknown_host(price: Price | None, device: str) -> str:
    """Return why the number of virtual CPUs of a device's host is unknown; an empty text if it is known."""
    if price is None:
        return f"no price of {device} is known, so the virtual CPUs of its host are unknown"
    if not price.includes_host:
        return f"{price.vendor} {price.instance} is priced without its host"
    return "" if price.vcpus else f"the price table has no virtual CPUs of {price.vendor} {price.instance}"

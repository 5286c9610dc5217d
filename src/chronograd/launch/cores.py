"""CPU cores that a node needs so that its GPUs do not wait for decoded images.

cores of a node = images per second that its GPUs train / images per second that one core decodes
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from chronograd.data import catalogue
from chronograd.data.decoding import decoding_of
from chronograd.data.trace_job import trace_job
from chronograd.errors import ChronogradError
from chronograd.hardware import catalog, market
from chronograd.hardware.catalog import Device
from chronograd.job import Job, changed
from chronograd.plan.renting import Decoding
from chronograd.predict.prediction import predict_step
from chronograd.predict.setting import setting_of
from chronograd.words import how_many


@dataclass(frozen=True)
class Need:
    """CPU cores that decode the images of one node.

    Attributes:
        images_per_s: that the GPUs of a node train.
        decoding: images/s that one core decodes.
        ranks: of a node.
        most: virtual CPUs of the largest machine of the price table with these GPUs; None where it has none.
    """

    images_per_s: float
    decoding: Decoding
    ranks: int
    most: int | None = None

    @property
    def node(self) -> int:
        """Cores of a node."""
        return math.ceil(self.images_per_s / self.decoding.per_vcpu)

    @property
    def rank(self) -> int:
        """Cores of a rank, no more than the machines have."""
        needed = -(-self.node // self.ranks)
        return needed if self.most is None else max(1, min(needed, self.most // self.ranks))

    def words(self, cores: int | None, where: str) -> str:
        """The assumption in words. Args: cores: of a node, None if unknown. where: what has them."""
        decoding = self.decoding
        text = (
            f"Assumed: the GPUs of a node train {self.images_per_s:,.0f} images/s, and a CPU core decodes {decoding.per_vcpu:g} "
            f"({decoding.low:g} to {decoding.high:g}), so a node needs {how_many(self.node, 'cores')}."
        )
        if cores is None:
            return text
        slow = (
            f", so decoding limits the speed to {cores * decoding.per_vcpu:,.0f} images/s" if cores < self.node else ""
        )
        return f"{text} {where} {cores:,}{slow}."


def need_of(job: Job) -> tuple[Need | None, str]:
    """The cores that decode for the GPUs of a node, and if unknown why. Neither where nothing is decoded, or no GPU trains.

    A folder of another machine is not read: ImageNet's size is known without it, that of other folders is not.
    """
    name, threads = job.cluster.device, job.cluster.threads
    if name in ("local", "cpu") or threads is not None or job.mode != "training" or job.task != "classification":
        return None, ""
    device = catalog.device(name)
    if device.kind != "gpu":
        return None, ""
    layout = job.data.name.partition(":")[0]
    as_listed = [f"data.name={layout}"] if layout in catalogue.sets() else []
    known = changed(job, ["training.trainable=all", *as_listed])  # a step of the head alone is not predicted
    try:
        if (decoding := decoding_of(known)) is None:
            return None, ""
        setting = setting_of(known)
        step_s = predict_step(trace_job(known), setting).seconds
    except ChronogradError as error:
        return None, f"The CPU cores that decode the images are unknown: {error.message}."
    on_node = int(setting.topology.on_node)
    ranks = 1 if job.backend == "data_parallel" else on_node
    return Need(job.images_per_rank * on_node / step_s, decoding, ranks, _most_cores(device, on_node)), ""


def _most_cores(device: Device, on_node: int) -> int | None:
    """Virtual CPUs of the largest machine beside so many devices; None where no price states any."""
    each = [price.vcpus / price.count for price in market.offers(device) if price.vcpus and price.includes_host]
    return math.floor(max(each) * on_node) if each else None

"""The CPU cores that a node needs so that its GPUs do not wait for decoded images.

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
    """The CPU cores that decode the images of one node.

    Attributes:
        images_per_s: training throughput of the GPUs of a node.
        decoding: images/s that one core decodes.
        ranks: number of ranks on a node.
        most: virtual CPUs of the largest machine in the price table with these GPUs; None if the table has none.
    """

    images_per_s: float
    decoding: Decoding
    ranks: int
    most: int | None = None

    @property
    def node(self) -> int:
        """Return the cores of a node."""
        return math.ceil(self.images_per_s / self.decoding.per_vcpu)

    @property
    def rank(self) -> int:
        """Return the cores of a rank, limited to those of the machines."""
        needed = -(-self.node // self.ranks)
        return needed if self.most is None else max(1, min(needed, self.most // self.ranks))

    def words(self, cores: int | None, where: str) -> str:
        """Return the assumption as text. Args: cores: of a node, None if unknown. where: the place that has them."""
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
    """Return the cores that decode for the GPUs of a node, or the reason if unknown. Both are empty without decoding or GPUs.

    A folder on another machine is not read. So only ImageNet's size is known there, not that of other folders.
    """
    name, threads = job.cluster.device, job.cluster.threads
    if name in ("local", "cpu") or threads is not None or job.mode != "training" or job.task != "classification":
        return None, ""
    device = catalog.device(name)
    if device.kind != "gpu":
        return None, ""
    layout = job.data.name.partition(":")[0]
    as_listed = [f"data.name={layout}"] if layout in catalogue.sets() else []
    known = changed(
        job, ["training.trainable=all", *as_listed]
    )  # the model cannot predict a step that trains only the head
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
    """Return the virtual CPUs of the largest machine with this number of devices; None if no price states them."""
    each = [price.vcpus / price.count for price in market.offers(device) if price.vcpus and price.includes_host]
    return math.floor(max(each) * on_node) if each else None

"""Offers for settings, and the decoding speed of their hosts.

    dollars per hour = instances · price of an instance
    billed hours     = start-up + training, at least the vendor's minimum, in its steps (chronograd.hardware.billing)
    step             = max(step on the devices, samples of the machine / (images/s per virtual CPU · virtual CPUs))

Vendors rent out and bill whole instances.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chronograd.hardware import billing, market
from chronograd.hardware.catalog import Device, Price
from chronograd.hardware.market import Kind
from chronograd.job import Job
from chronograd.plan.places import Places
from chronograd.record import Z80

KINDS: tuple[Kind, ...] = ("on-demand", "spot")
# Assumed if the price table has no number: the usual size of marketplace pods.
VCPUS_PER_DEVICE = 8.0
ANY_NUMBER = 1e6
# The vendor of a price that the job states.
OWN = "the job"


@dataclass(frozen=True)
class Decoding:
    """Images per second that a virtual CPU of the host decodes, crops and resizes: low, middle and high of an 80 % interval."""

    low: float
    per_vcpu: float
    high: float

    @property
    def sigma_log(self) -> float:
        return math.log(self.high / self.low) / (2 * Z80)


# Photographs of ImageNet's size through Pillow and torchvision's random crop to 224 pixels. `python -m
# benchmarks.decoding` measured 139, 151 and 146; decoding alone 323 to 376. It ran on both virtual CPUs of an Intel Xeon in a
# cloud, and counted processor time because other programs ran (Pillow of 2026, 2026-11-22). Published for decoding alone with
# Pillow, one thread: 360 (Neoverse N1) to 726 (Zen 5) images/s (imread-benchmark, arXiv 2605.08731). The interval is our
# judgement: from old cores with two threads each to the fastest.
PHOTOGRAPHS = Decoding(80.0, 140.0, 250.0)


# Assumed standard deviation of log(start-up time).
STARTUP_SIGMA = 0.5


def billed(hours: Any, columns: Mapping[str, Any]) -> Any:
    """Return the hours billed for hours of rent: at least the vendor's minimum, in whole steps. Numbers or arrays.

    Args:
        columns: `minimum_h` and `billing_h`, as in `rent`.
    """
    step = np.maximum(columns["billing_h"], 1e-9)
    return np.ceil(np.maximum(hours, columns["minimum_h"]) / step - 1e-9) * step


# Assumed storage bandwidth of a node. Llama 3's cluster sustained 2 TB/s for 16,000 GPUs in nodes of eight (arXiv:2407.21783,
# section 3.3.1).
STORAGE_BYTES_PER_S = 1e9


@dataclass(frozen=True)
class Spot:
    """Interruptions of spot instances: rate per node and hour, and their cost in lost work since a checkpoint and a restart.

    Interruptions are random with a constant rate, and one on any node stops all nodes. The defaults are assumed, because
    vendors publish no reliable rates.

    Attributes:
        checkpoint_s: time between checkpoints.
        restart_s: time until training continues: a new machine and the start.
        checkpoint_bytes: size of a checkpoint, if the time to write and read it matters; training waits for both.
        node_bytes_per_s: storage bandwidth of a node. All nodes write and read their part of a checkpoint together.
    """

    per_hour: float = 0.05
    checkpoint_s: float = 600.0
    restart_s: float = 300.0
    checkpoint_bytes: float = 0.0
    node_bytes_per_s: float = STORAGE_BYTES_PER_S

    def write_s(self, nodes: Any) -> Any:
        """Return the time to write a checkpoint, or to read it."""
        return self.checkpoint_bytes / (self.node_bytes_per_s * nodes)

    def slow_down(self, nodes: Any) -> Any:
        """Return the expected wall time divided by the time without interruptions.

        exp(λ (restart + read)) · (exp(λ (checkpoint + write)) - 1) / (λ checkpoint), with λ interruptions of all nodes per
        second; a restart may be interrupted too. Source: Daly 2006, eq. 20.

        >>> round(float(Spot(per_hour=1, checkpoint_s=1200, restart_s=300).slow_down(2)), 3)
        1.679
        """
        rate = np.maximum(np.asarray(self.per_hour * nodes / 3600, dtype=float), 1e-300)
        write_s = self.write_s(nodes)
        with np.errstate(over="ignore"):
            lost = np.exp(rate * (self.restart_s + write_s))
            return lost * np.expm1(rate * (self.checkpoint_s + write_s)) / (rate * self.checkpoint_s)


USUAL_SPOT = Spot()


@dataclass(frozen=True)
class RentalTerms:
    """Terms of renting.

    Attributes:
        kinds: kinds of prices.
        decoding: decoding speed of the host; None if training decodes nothing.
        places: clouds to rent from; None for every vendor.
        spot: interruptions of spot instances.
    """

    kinds: Sequence[Kind] = KINDS
    decoding: Decoding | None = None
    places: Places | None = None
    spot: Spot = USUAL_SPOT


ANY_TERMS, ON_DEMAND = RentalTerms(), RentalTerms(("on-demand",))


@dataclass(frozen=True, eq=False)
class Rented:
    """Settings by offer: one row for each setting and each offer of its device, and one row without a price if there is none.

    Attributes:
        columns: those of the settings, with the input in `step_time_s`, `throughput_samples_per_s` and `sigma_log`. Also
            `setting` (row there), `offer` (index into offers, -1 without) and `kind` (index into KINDS, -1 without). Price:
            `price_usd_per_hour` (of whole instances, NaN without), `machines`, `moving_usd` (of data and checkpoints),
            `sigma_price`, `is_outlier`. Time: `is_input_bound`, `own_step_s` (without the input), `startup_h`, `minimum_h`
            (minimum billed), `billing_h` (billing step).
        without_host: names of devices with prices that all exclude the host.
    """

    columns: dict[str, np.ndarray]
    offers: list[Price]
    without_host: list[str]


def rent(
    table: Mapping[str, np.ndarray],
    devices: Sequence[Device],
    job: Job,
    terms: RentalTerms = ANY_TERMS,
) -> Rented:
    """Return the settings of `settings.evaluate` with their offers.

    Offers include the host. Settings with more devices than one machine use several machines if these are as large as the
    device's usual node; the network between smaller machines is unknown. Clouds rent whole and fully used nodes.
    """
    places = terms.places
    offers: list[Price] = []
    low: list[bool] = []
    rows, numbers, without_host = [], [], []
    for index, device in enumerate(devices):
        own = np.flatnonzero(table["device"] == index)
        known = places.offers(device) if places else _offers(job, device)
        whole = [offer for offer in known if offer.includes_host and offer.kind in terms.kinds]
        if known and not any(offer.includes_host for offer in known):
            without_host.append(device.name)
        for offer in whole:
            is_large = offer.most_devices >= device.node.devices_per_node
            able = own if is_large else own[table["count"][own] <= offer.most_devices + 1e-9]
            if places:
                able = able[table["count"][able] % offer.count == 0]
            rows.append(able)
            numbers.append(np.full(len(able), len(offers)))
            offers.append(offer)
            low.append(offer.vendor != OWN and billing.is_low(offer, market.offers(device)))
        if not whole:
            rows.append(own)
            numbers.append(np.full(len(own), -1))
    setting, number = np.concatenate(rows), np.concatenate(numbers)
    columns = {name: column[setting] for name, column in table.items()} | {"setting": setting, "offer": number}
    moving = np.array([places.moving_usd(offer) if places else 0.0 for offer in offers] + [0.0])
    columns["moving_usd"] = moving[number]
    columns["is_outlier"] = np.array([*low, False])[number]
    return Rented(_priced(columns, offers, terms.decoding), offers, without_host)


def _offers(job: Job, device: Device) -> list[Price]:
    """Return the offers of a device. A price in the job is an on-demand price for any number of devices on their usual nodes."""
    listed = market.offers(device) if device.kind == "gpu" else []
    price = job.cluster.price_usd_per_hour
    if price is None:
        return listed
    own = Price(vendor=OWN, instance=device.name, device=device.name, count=1, price_usd_per_hour=price, kind="on-demand",
                includes_host=True, date=market.today().isoformat(), tag="assumed", source="cluster.price_usd_per_hour",
                up_to=ANY_NUMBER)  # fmt: skip
    return [own, *(offer for offer in listed if offer.kind == "spot")]


def _terms(vendor: str) -> tuple[float, float, float]:
    """Return start-up, minimum billed time and billing step in seconds: zeros for the job's own machine."""
    if vendor == OWN:
        return 0.0, 0.0, 0.0
    terms = billing.billing_of(vendor)
    return billing.STARTUP_S, terms.minimum_s, terms.step_s


def _priced(
    columns: dict[str, np.ndarray], offers: Sequence[Price], decoding: Decoding | None
) -> dict[str, np.ndarray]:
    """Return columns of price, machines and input. The last entry of each list of offers is for rows without an offer."""
    number, count = columns["offer"], columns["count"]
    nan = math.nan
    each = np.array([offer.count for offer in offers] + [1.0])[number]
    most = np.array([offer.most_devices for offer in offers] + [ANY_NUMBER])[number]
    price = np.array([offer.price_usd_per_hour for offer in offers] + [nan])[number]
    vcpus = np.array([offer.vcpus or VCPUS_PER_DEVICE * offer.count for offer in offers] + [nan])[number]
    instances = np.ceil(count / each - 1e-9)
    columns["kind"] = np.array([KINDS.index(offer.kind) for offer in offers] + [-1])[number]
    columns["price_usd_per_hour"] = instances * price
    columns["machines"] = np.ceil(count / most - 1e-9)
    columns["sigma_price"] = np.array([market.sigma_log(offer) for offer in offers] + [0.0])[number]
    terms = [_terms(vendor) for vendor in (*(offer.vendor for offer in offers), OWN)]
    for name, values in zip(("startup_h", "minimum_h", "billing_h"), np.array(terms).T / 3600, strict=True):
        columns[name] = values[number]
    columns["is_input_bound"] = np.full(len(number), False)
    columns["own_step_s"] = columns["step_time_s"]
    if decoding is not None:
        on_machine = np.minimum(count, most) * columns["batch_per_rank"]
        of_machine = vcpus * np.minimum(instances, np.round(most / each))
        with np.errstate(invalid="ignore"):
            input_s = on_machine / (decoding.per_vcpu * of_machine)
            columns["is_input_bound"] = input_s > columns["step_time_s"]
        bound = columns["is_input_bound"]
        columns["step_time_s"] = np.where(bound, input_s, columns["step_time_s"])
        columns["sigma_log"] = np.where(bound, decoding.sigma_log, columns["sigma_log"])
        columns["throughput_samples_per_s"] = count * columns["batch_per_rank"] / columns["step_time_s"]
    return columns

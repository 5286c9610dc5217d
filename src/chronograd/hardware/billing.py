"""Billing: the cost of a run on rented machines, and whether a price is credible.

billed seconds = start-up + run, at least the vendor's minimum, rounded up to its step
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Sequence
from importlib import resources

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from chronograd.hardware import market
from chronograd.hardware.catalog import Price
from chronograd.hardware.instances import Date, Tag
from chronograd.units import dollars

# Time from renting to the first step: boot, drivers, container image. Assumed; clouds publish no figure.
STARTUP_S = 300.0
# A price below a third or above three times the median of its peers is flagged. In the table of 2026-11, on-demand
# prices of one device with its host lie within a factor of 2.6 of the median of other vendors, hyperscalers and
# marketplaces together. With a factor of 2, a third of all vendors of an H100 would be flagged. A median needs three
# peers.
FAR = 3.0
MIN_PEERS = 3
# Factor for a spot price without three spot peers, compared with on-demand prices: usual discounts are 60 to 70 %.
SPOT_FAR = 5.0


class Billing(BaseModel):
    """The billing rules of a vendor. `minimum_s`: minimum bill; `step_s`: time is rounded up to multiples of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    minimum_s: float = Field(gt=0)
    step_s: float = Field(gt=0)
    source: str
    date: Date
    tag: Tag


# For an unknown vendor, assume started hours: the longest usual step.
UNKNOWN = Billing(minimum_s=3600, step_s=3600, source="assumed: started hours", date="", tag="assumed")


@functools.cache
def _vendors() -> dict[str, Billing]:
    text = (resources.files("chronograd.hardware") / "billing.toml").read_text(encoding="utf-8")
    return {vendor: Billing.model_validate(row) for vendor, row in tomllib.loads(text).items()}


def billing_of(vendor: str) -> Billing:
    """Return how a vendor bills time; started hours for an unknown vendor.

    >>> billing_of("AWS").minimum_s, billing_of("Nowhere").step_s
    (60.0, 3600.0)
    """
    return _vendors().get(vendor.lower(), UNKNOWN)


def peers_median(offer: Price, offers: Sequence[Price] | None = None) -> float | None:
    """Return the median price of one device for an hour among the peers of an offer; None with fewer than three.

    Peers are offers of other vendors for the same device and kind, with or without a host like this offer. Each vendor
    counts with its lowest price.

    Args:
        offers: of the device; by default all known ones.
    """
    least: dict[str, float] = {}
    for one in market.offers(offer.device) if offers is None else offers:
        is_peer = (one.kind, one.includes_host) == (offer.kind, offer.includes_host) and one.vendor != offer.vendor
        if is_peer:
            least[one.vendor] = min(one.usd_per_device_hour, least.get(one.vendor, math.inf))
    return float(np.median(list(least.values()))) if len(least) >= MIN_PEERS else None


def _compared_with(offer: Price, offers: Sequence[Price] | None) -> tuple[float, float, str]:
    """Return the median to compare a price with, 0 for none; the factor of a far price; and the name of the median."""
    known = market.offers(offer.device) if offers is None else offers
    median = peers_median(offer, known)
    on_demand = [one.usd_per_device_hour for one in known if one.kind == "on-demand" and one.includes_host]
    if median is None and offer.kind == "spot" and offer.includes_host and len(on_demand) >= MIN_PEERS:
        return float(np.median(on_demand)), SPOT_FAR, "on-demand median"
    return median or 0.0, FAR, f"{offer.kind} median of other vendors"


def is_low(offer: Price, offers: Sequence[Price] | None = None) -> bool:
    """Return whether a price is too far below its peers to be relied on; `price_note` states it in words."""
    median, far, _ = _compared_with(offer, offers)
    return offer.usd_per_device_hour * far < median


def price_note(offer: Price, offers: Sequence[Price] | None = None) -> str:
    """Return a sentence for a price far from the median of its peers; else "".

    A spot price without three peers is compared with the on-demand prices of all vendors. It is flagged below a fifth
    of their median.
    """
    own, (median, far, what) = offer.usd_per_device_hour, _compared_with(offer, offers)
    if not median:
        return ""
    if own * far < median:
        return f"{dollars(own)} is below 1/{far:g} of the {what}, {dollars(median)}: check it before you rely on it."
    if offer.kind == "on-demand" and own > far * median:
        return f"{dollars(own)} is above {far:g} times the {what}, {dollars(median)}."
    return ""

"""What a run on rented machines is billed, and whether a price is credible.

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

# From renting to the first step: boot, drivers, container image. Assumed; clouds give no figure.
STARTUP_S = 300.0
# A price below a third or above three times the median of its peers is flagged. In the table of 2026-11 on-demand prices of one device
# with its host are within a factor of 2.6 of the median of other vendors, hyperscalers and marketplaces together: with 2, a third of
# all vendors of an H100 would be flagged. A median needs three peers.
FAR, MIN_PEERS = 3.0, 3
# Of a spot price without three spot peers, against on-demand prices: usual discounts are 60 to 70 %.
SPOT_FAR = 5.0


class Billing(BaseModel):
    """How a vendor bills time. `minimum_s`: billed at least; `step_s`: time is rounded up to multiples of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    minimum_s: float = Field(gt=0)
    step_s: float = Field(gt=0)
    source: str
    date: Date
    tag: Tag


# Where nothing is known of a vendor, started hours: the longest step that is usual.
UNKNOWN = Billing(minimum_s=3600, step_s=3600, source="assumed: started hours", date="", tag="assumed")


@functools.cache
def _vendors() -> dict[str, Billing]:
    text = (resources.files("chronograd.hardware") / "billing.toml").read_text(encoding="utf-8")
    return {vendor: Billing.model_validate(row) for vendor, row in tomllib.loads(text).items()}


def billing_of(vendor: str) -> Billing:
    """Return how a vendor bills time; started hours for one that is not known.

    >>> billing_of("AWS").minimum_s, billing_of("Nowhere").step_s
    (60.0, 3600.0)
    """
    return _vendors().get(vendor.lower(), UNKNOWN)


def peers_median(offer: Price, offers: Sequence[Price] | None = None) -> float | None:
    """Return the median price of one device for an hour among the peers of an offer; None with fewer than three.

    Peers are offers of the same device and kind, with a host or without as this one, of other vendors: one value for each vendor, its
    least.

    Args:
        offers: of the device; by default all that are known.
    """
    least: dict[str, float] = {}
    for one in market.offers(offer.device) if offers is None else offers:
        is_peer = (one.kind, one.includes_host) == (offer.kind, offer.includes_host) and one.vendor != offer.vendor
        if is_peer:
            least[one.vendor] = min(one.usd_per_device_hour, least.get(one.vendor, math.inf))
    return float(np.median(list(least.values()))) if len(least) >= MIN_PEERS else None


def _compared_with(offer: Price, offers: Sequence[Price] | None) -> tuple[float, float, str]:
    """Return the median that a price is compared with, 0 for none; the factor that is far from it; and its name."""
    known = market.offers(offer.device) if offers is None else offers
    median = peers_median(offer, known)
    on_demand = [one.usd_per_device_hour for one in known if one.kind == "on-demand" and one.includes_host]
    if median is None and offer.kind == "spot" and offer.includes_host and len(on_demand) >= MIN_PEERS:
        return float(np.median(on_demand)), SPOT_FAR, "on-demand median"
    return median or 0.0, FAR, f"{offer.kind} median of other vendors"


def is_low(offer: Price, offers: Sequence[Price] | None = None) -> bool:
    """Return whether a price is too far below its peers to be counted on; `price_note` states it in words."""
    median, far, _ = _compared_with(offer, offers)
    return offer.usd_per_device_hour * far < median


def price_note(offer: Price, offers: Sequence[Price] | None = None) -> str:
    """Return a sentence for a price far from the median of its peers; else "".

    A spot price without three peers is compared with the on-demand prices of all vendors: below a fifth of their median it is flagged.
    """
    own, (median, far, what) = offer.usd_per_device_hour, _compared_with(offer, offers)
    if not median:
        return ""
    if own * far < median:
        return f"{dollars(own)} is below 1/{far:g} of the {what}, {dollars(median)}: check it before you count on it."
    if offer.kind == "on-demand" and own > far * median:
        return f"{dollars(own)} is above {far:g} times the {what}, {dollars(median)}."
    return ""

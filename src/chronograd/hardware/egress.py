"""The cost of taking data out of a cloud: `egress.toml`, whose figures state their source."""

from __future__ import annotations

import functools
import math
import tomllib
from importlib import resources

from pydantic import BaseModel, ConfigDict

from chronograd.hardware.instances import Date, Tag

GB = 2**30


class Tier(BaseModel):
    """A price per gigabyte up to a monthly amount; the last tier has no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    up_to_gb: float | None = None
    usd_per_gb: float


class Egress(BaseModel):
    """Prices of data that leaves a cloud, by tiers of the month's total.

    Attributes:
        between_regions_usd_per_gb: None if unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tiers: tuple[Tier, ...]
    between_regions_usd_per_gb: float | None = None
    source: str
    date: Date
    tag: Tag

    def usd(self, leaving_bytes: float) -> float:
        """Return the dollars for `leaving_bytes` to another cloud, if nothing else leaves in that month.

        >>> round(of("aws").usd(1124 * 2**30), 2)
        92.16
        """
        dollars, below = 0.0, 0.0
        for tier in self.tiers:
            end = math.inf if tier.up_to_gb is None else tier.up_to_gb
            dollars += tier.usd_per_gb * max(0.0, min(leaving_bytes / GB, end) - below)
            below = end
        return dollars


@functools.cache
def _clouds() -> dict[str, Egress]:
    text = (resources.files("chronograd.hardware") / "egress.toml").read_text(encoding="utf-8")
    return {name: Egress.model_validate(row) for name, row in tomllib.loads(text).items()}


def of(cloud: str) -> Egress:
    """Return the prices of a cloud, one of `instances.clouds`."""
    return _clouds()[cloud]

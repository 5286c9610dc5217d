"""Processors that issue operators to a GPU, and the time that they need: `hosts.toml`, whose figures state their source."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources

from pydantic import BaseModel, ConfigDict

from chronograd.errors import NotFoundError
from chronograd.hardware.catalog import Device
from chronograd.hardware.instances import Tag


class HostProcessor(BaseModel):
    """A host, with the usual software of its year. `hosts.toml` explains the figures."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    processor: str
    year: int
    score: int
    inference_us: float
    training_us: float
    sigma_log: float
    source: str
    tag: Tag

    def launch_s(self, mode: str | None) -> float:
        """Return the seconds in which it issues an operator; without a mode, the mean of both."""
        us = {"inference": self.inference_us, "training": self.training_us}
        return 1e-6 * us.get(mode or "", (self.inference_us + self.training_us) / 2)


@functools.cache
def hosts() -> dict[str, HostProcessor]:
    """Return every host by name."""
    text = (resources.files("chronograd.hardware") / "hosts.toml").read_text(encoding="utf-8")
    return {name: HostProcessor.model_validate(row) for name, row in tomllib.loads(text).items()}


def host(name: str) -> HostProcessor:
    """Return a host by name. Raises NotFoundError.

    >>> round(1e6 * host("epyc-7742").launch_s("inference"))
    36
    """
    if name.lower() not in hosts():
        raise NotFoundError("host", name, hosts())
    return hosts()[name.lower()]


def host_of(device: Device) -> HostProcessor:
    """Return the usual host of a device; if its file names none, the newest server of its year, at least that of 2018."""
    if device.node.host is not None:
        return host(device.node.host)
    servers = [h for name, h in hosts().items() if "desktop" not in name and h.year <= max(device.year or 0, 2018)]
    return max(servers, key=lambda h: h.year)

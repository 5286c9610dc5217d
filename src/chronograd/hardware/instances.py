"""Instance types of platforms, as dated files: the only place that states the devices and the host of each.

    instance_types/PLATFORM.toml

Prices name an instance of a vendor and take the rest from these files; `plan --platforms` chooses among them, `launch`
renders them.
"""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Tag = Literal["verified", "recalled", "computed", "assumed", "measured"]
Date = Annotated[str, Field(pattern=r"^(\d{4}(-\d{2}){0,2})?$")]


class Instance(BaseModel):
    """One type of machine.

    Attributes:
        device: name in the catalogue of devices; `cpu` for machines without accelerators.
        count: its devices; 0 for `cpu`.
        machine, accelerator: the platform's names of the machine and its device, if the name here combines both.
        priced_as: name in the table of prices. Several types share one if the price is that of a device with its host.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    device: str
    count: int = 0
    vcpus: int | None = None
    memory_gib: float | None = None
    machine: str = ""
    accelerator: str = ""
    priced_as: str = ""
    tag: Tag | None = None
    source: str | None = None


class InstanceCatalogue(BaseModel):
    """The instance types of a platform. `source`, `date` and `tag` apply to every instance without its own.

    Attributes:
        vendor: the cloud that owns the machines; empty if they may belong to anyone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    vendor: str = ""
    source: str
    date: Date
    tag: Tag
    note: str = ""
    instance: tuple[Instance, ...]

    def named(self, name: str) -> Instance | None:
        return next((one for one in self.instance if one.name == name), None)


@functools.cache
def catalogue(platform: str) -> InstanceCatalogue:
    """Return the instance types of a platform."""
    path = resources.files("chronograd.hardware") / "instance_types" / f"{platform}.toml"
    return InstanceCatalogue.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))


@functools.cache
def clouds() -> dict[str, str]:
    """Return the platform of each vendor, by the vendor in lower case.

    >>> clouds()
    {'aws': 'sagemaker', 'azure': 'azureml', 'gcp': 'vertex', 'ibm': 'watsonx'}
    """
    files = (resources.files("chronograd.hardware") / "instance_types").iterdir()
    names = sorted(path.name.removesuffix(".toml") for path in files if path.name.endswith(".toml"))
    return dict(sorted((catalogue(name).vendor.lower(), name) for name in names if catalogue(name).vendor))


def priced(vendor: str, name: str) -> Instance | None:
    """Return the instance of a price; if several share it, the first, which has one device."""
    platform = clouds().get(vendor.lower())
    known = catalogue(platform).instance if platform else ()
    return next((one for one in known if one.priced_as == name), None)

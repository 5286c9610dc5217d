"""Instance types that platforms rent, as dated files: the one place that says which devices and which host each has.

    instance_types/PLATFORM.toml

Prices name an instance of a vendor and leave the rest to these files; `plan --platforms` chooses among them, `launch` renders them.
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
        count: devices in it, 0 of `cpu`.
        machine, accelerator: what the platform calls the machine and its device, where the name here is made of both.
        priced_as: name in the table of prices. Several types share one where the price is that of a device with its host.
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
    """What a platform rents. `source`, `date` and `tag` hold for every instance that has none of its own.

    Attributes:
        vendor: the cloud whose machines these are; empty where they may be anybody's.
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
    """The instance types of a platform."""
    path = resources.files("chronograd.hardware") / "instance_types" / f"{platform}.toml"
    return InstanceCatalogue.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))


@functools.cache
def clouds() -> dict[str, str]:
    """The platform of each vendor, by the vendor in small letters.

    >>> clouds()
    {'aws': 'sagemaker', 'azure': 'azureml', 'gcp': 'vertex', 'ibm': 'watsonx'}
    """
    files = (resources.files("chronograd.hardware") / "instance_types").iterdir()
    names = sorted(path.name.removesuffix(".toml") for path in files if path.name.endswith(".toml"))
    return dict(sorted((catalogue(name).vendor.lower(), name) for name in names if catalogue(name).vendor))


def priced(vendor: str, name: str) -> Instance | None:
    """The instance that a price names; of several that share a price the first, which has one device."""
    platform = clouds().get(vendor.lower())
    known = catalogue(platform).instance if platform else ()
    return next((one for one in known if one.priced_as == name), None)

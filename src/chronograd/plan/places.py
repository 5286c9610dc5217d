"""Places to rent: instance types of clouds by node and region, and the cost of moving data there and checkpoints back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from chronograd.errors import InputError, NotFoundError
from chronograd.hardware import catalog, egress, market
from chronograd.hardware.catalog import Device, Price
from chronograd.hardware.instances import catalogue, clouds
from chronograd.hardware.market import Kind


@dataclass(frozen=True)
class Places:
    """Clouds to choose among, and the data to move.

    Attributes:
        names: names of clouds, such as `aws`.
        data_in: the cloud that stores the data; None if not stated, and then moving costs nothing.
        region: the region that stores the data; "" for the region of the machines.
        data_bytes: size of the data set.
        back_bytes: size of the checkpoints that are copied back to the data.
    """

    names: tuple[str, ...]
    data_in: str | None = None
    region: str = ""
    data_bytes: float = 0.0
    back_bytes: float = 0.0

    def __post_init__(self) -> None:
        for name in (*self.names, *([self.data_in] if self.data_in is not None else [])):
            if name not in clouds():
                raise NotFoundError("cloud", name, clouds())

    def offers(self, device: Device) -> list[Price]:
        """Return the instances of these clouds that have a device, one offer per valid price, by kind and region."""
        prices = market.offers(device)
        return [
            price.model_copy(update={"instance": one.name, "count": one.count, "up_to": None, "vcpus": one.vcpus,
                                     "price_usd_per_hour": float(price.usd_per_hour(one.count))})
            for name in self.names
            for one in catalogue(clouds()[name]).instance
            for price in prices
            if one.device == device.name and one.priced_as and price.includes_host
            and (price.vendor.lower(), price.instance) == (name, one.priced_as)
        ]  # fmt: skip

    def moving_usd(self, offer: Price) -> float:
        """Return the dollars to move the data to the machines of an offer, and the checkpoints back."""
        rented, home = offer.vendor.lower(), self.data_in
        if home is None:
            return 0.0
        if rented != home:
            return egress.of(home).usd(self.data_bytes) + egress.of(rented).usd(self.back_bytes)
        if not self.region or not offer.region or self.region == offer.region:
            return 0.0
        rate = egress.of(home).between_regions_usd_per_gb or 0.0
        return rate * (self.data_bytes + self.back_bytes) / egress.GB

    def of_devices(self, devices: Sequence[Device]) -> list[Device]:
        """Return the devices that these clouds rent at a known price. Raises InputError if there is none."""
        rented = [device for device in devices if self.offers(device)]
        if rented:
            return rented
        what = f" with {' or '.join(device.name for device in devices)}" if len(devices) < 4 else ""
        raise InputError(
            f"no price of an instance{what} is known at {', '.join(self.names)}",
            "name other clouds or devices, or add prices: chronograd devices --prices --update FILE",
        )

    def without_price(self) -> dict[str, dict[Kind, list[str]]]:
        """Return the GPU instance types of each cloud without a known price, on demand and as spot."""
        types = {name: [one for one in catalogue(clouds()[name]).instance if one.count] for name in self.names}
        devices = {one.device for own in types.values() for one in own}
        priced = {(o.vendor.lower(), o.instance, o.kind) for name in devices for o in self.offers(catalog.device(name))}
        return {
            name: {kind: [one.name for one in own if (name, one.name, kind) not in priced] for kind in get_args(Kind)}
            for name, own in types.items()
        }

    def as_data(self) -> dict[str, Any]:
        """Return what is moved, from where, and the traffic prices."""
        prices = {
            name: egress.of(name).model_dump(mode="json") for name in dict.fromkeys((*self.names, self.data_in)) if name
        }
        return {"data_in": self.data_in, "region": self.region or None, "data_bytes": self.data_bytes,
                "back_bytes": self.back_bytes, "egress": prices}  # fmt: skip

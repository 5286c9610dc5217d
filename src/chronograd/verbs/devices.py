"""`devices`: devices, links and prices of the catalogue, with the source of every figure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from chronograd.errors import InputError
from chronograd.verbs.kinds import complete_devices
from chronograd.verbs.request import FILE, Request, Spelling

if TYPE_CHECKING:
    from chronograd.answer import Answer
    from chronograd.hardware.catalog import Device, Link, Price


@dataclass(frozen=True, kw_only=True)
class Devices(Request):
    """List devices, links and prices, or show one with its sources.

    NAME is a device (or a link, with --links) of the catalogue, `local`, or a device file. Peaks are dense, 1 FMA = 2 FLOPs.
    Prices are for whole instances, and only the latest of each is used. A file of newer prices has the columns vendor,
    instance, device, count, price_usd_per_hour, kind, includes_host, date, tag, source, vcpus, up_to.
    """

    verb = "devices"

    name: Annotated[str | None, Spelling(metavar="[NAME]", is_argument=True, complete=complete_devices)] = None
    links: bool = False
    """Show links instead of devices."""
    prices: bool = False
    """Show prices instead of devices."""
    update: Annotated[Path | None, FILE] = None
    """With --prices: a CSV file of newer prices to save in the data folder."""

    def answer(self) -> Answer[Device | Link | list[Device] | list[Link] | list[Price]]:
        from chronograd.hardware import answer

        if self.links and self.prices:
            raise InputError("--links and --prices are two lists", "give one of them")
        if self.update is not None:
            if not self.prices or self.name is not None:
                raise InputError("--update applies to all prices", "write --prices --update FILE, without a NAME")
            return answer.updated(self.update)
        if self.prices:
            return answer.prices(self.name)
        if self.links:
            return answer.links() if self.name is None else answer.link(self.name)
        return answer.devices() if self.name is None else answer.device(self.name)


REQUESTS = (Devices,)

"""Current prices: the latest of each instance, by the instance as rented, and how uncertain they become with age.

The user's prices, `prices.csv` in the data folder, are merged with those of the catalogue by `update_prices`.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Literal

from chronograd.errors import FileFormatError, near_names
from chronograd.files import write_aside
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device, Price

Kind = Literal["on-demand", "spot"]
OLD_YEARS = 1.0
# A price without a date may be this old.
UNDATED_YEARS = 5.0
# Standard deviation of log(price today / listed price) after a year. It grows with the root of the age, like a random
# walk. Of the instances in the table with two dates, AWS p4d, p4de and p5 fell by 0.40, 0.40 and 0.58 in 1.9 years:
# 0.34 per root of a year.
SIGMA_PER_ROOT_YEAR = 0.34


def today() -> date:
    """Return the date from which the age of prices is counted."""
    return date.today()


def age_years(price: Price) -> float | None:
    """Return the age of a price in years, from the middle of the month or year of its date; None without a date."""
    if not price.date:
        return None
    year, month, day = (*(int(part) for part in price.date.split("-")), 0, 0)[:3]
    held = date(year, month or 7, day or (15 if month else 1))
    return max(0.0, (today() - held).days / 365.25)


def sigma_log(price: Price) -> float:
    """Return the standard deviation of log(price today / listed price)."""
    age = age_years(price)
    return SIGMA_PER_ROOT_YEAR * math.sqrt(UNDATED_YEARS if age is None else age)


def is_old(price: Price) -> bool:
    """Return whether a price is older than a year, or of unknown age."""
    age = age_years(price)
    return age is None or age > OLD_YEARS


def offers(device: str | Device, kind: Kind | None = None) -> list[Price]:
    """Return the offers of a device: the latest price of each vendor's instance in each region. Raises as `catalog.prices`."""
    latest: dict[tuple[str, str, str, str], Price] = {}
    for row in catalog.prices(device):
        if kind in (None, row.kind):
            latest.setdefault((row.vendor, row.instance, row.kind, row.region), row)
    return list(latest.values())


def price_of(device: str | Device, kind: Kind = "on-demand", vendor: str | None = None, count: int = 1) -> Price | None:
    """Return the price to use if the user states none, or None if the table has none.

    Only the latest price of each instance counts. Prices with the host come before those without, and machines that
    hold all `count` devices, or a whole node of them, before several smaller ones. Among the rest, the lowest price for whole
    instances wins. If
    a vendor sells machines of several sizes at one price per device, they count as one that is sold in steps of the
    smallest. A K80 board then costs two GPUs and not the eight of a p2.8xlarge. State `date` and `source` with every
    cost, and whether the host is included.

    >>> [price_of("h100-nvl", vendor="azure", count=n).instance for n in (1, 2)]
    ['NC40ads H100 v5', 'NC80adis H100 v5']
    >>> float(price_of("k80").usd_per_hour(1))
    1.8
    """
    wanted = [row for row in offers(device, kind) if vendor is None or row.vendor.lower() == vendor.lower()]
    wanted = [row.model_copy(update={"up_to": _sold_up_to(row, wanted)}) for row in wanted]

    def order(row: Price) -> tuple[bool, bool, float]:
        of_machine = min(count, catalog.device(row.device).node.devices_per_node)
        return not row.includes_host, row.most_devices < of_machine, float(row.usd_per_hour(count))

    return min(wanted, key=order, default=None)


def _sold_up_to(row: Price, offers: Sequence[Price]) -> float | None:
    """Return the devices of the largest machine at a row's price per device; None if that is the row itself."""
    same = ("vendor", "kind", "region", "includes_host", "date")
    most = max(
        one.most_devices
        for one in offers
        if all(getattr(one, name) == getattr(row, name) for name in same)
        and math.isclose(one.usd_per_device_hour, row.usd_per_device_hour, rel_tol=1e-6)
    )
    return most if most > row.count else row.up_to


def update_prices(path: Path) -> tuple[Sequence[Price], Path]:
    """Merge a price table into the user's; a row with the same instance, kind, region and date replaces the old one.

    Returns: the new rows, and the file that now has them.

    Raises: FileFormatError as `read_prices`, and for an empty table, an unknown device, a row without a date or from
    the future.
    """
    rows = catalog.read_prices(path)
    if not rows:
        raise FileFormatError(f"{path} has no prices", f"its first line names the columns: {', '.join(_COLUMNS)}")
    known = {d.name for d in catalog.devices()}
    for number, row in enumerate(rows, 2):
        where = f"{path.name}, line {number}"
        if row.device not in known:
            near = " or ".join(near_names(row.device, known))
            raise FileFormatError(
                f"{where}: unknown device {row.device!r}{f'; did you mean {near}?' if near else ''}",
                "`chronograd devices` lists names; your own device file in the data folder adds one",
            )
        if not row.date or row.date > today().isoformat()[: len(row.date)]:
            raise FileFormatError(f"{where}: date is {row.date!r}", "write the day or month of the price")
    own = catalog.user_prices_path()
    before = catalog.read_prices(own) if own.exists() else []
    merged = {(row.vendor, row.instance, row.device, row.kind, row.region, row.date): row for row in (*before, *rows)}
    text = io.StringIO()
    table = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(row.model_dump(mode="json") for row in merged.values())
    own.parent.mkdir(parents=True, exist_ok=True)
    write_aside(own, text.getvalue())
    return rows, own


_COLUMNS = tuple(Price.model_fields)

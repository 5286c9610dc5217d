"""Which prices hold: the latest of each instance, by the instance as rented, and how sure one is of them as they age.

The user's own prices, `prices.csv` in the data folder, are merged with those of the catalogue by `update_prices`.
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
# A price without a date may be of any time since GPUs are rented.
UNDATED_YEARS = 5.0
# Of log(price today / listed price) after a year, growing with the root of its age as a random walk does. Of the instances in the
# table with two dates, AWS p4d, p4de and p5 fell by 0.40, 0.40 and 0.58 in 1.9 years: 0.34 a root of a year.
SIGMA_PER_ROOT_YEAR = 0.34


def today() -> date:
    """The day that prices are held against."""
    return date.today()


def age_years(price: Price) -> float | None:
    """Years since a price held, from the middle of the month or year that its date names; None without a date."""
    if not price.date:
        return None
    year, month, day = (*(int(part) for part in price.date.split("-")), 0, 0)[:3]
    held = date(year, month or 7, day or (15 if month else 1))
    return max(0.0, (today() - held).days / 365.25)


def sigma_log(price: Price) -> float:
    """Standard deviation of log(price today / listed price)."""
    age = age_years(price)
    return SIGMA_PER_ROOT_YEAR * math.sqrt(UNDATED_YEARS if age is None else age)


def is_old(price: Price) -> bool:
    """Whether a price is older than a year, or of unknown age."""
    age = age_years(price)
    return age is None or age > OLD_YEARS


def offers(device: str | Device, kind: Kind | None = None) -> list[Price]:
    """What a device can be rented as: of each vendor's instance, in each region, its latest price. Raises as `catalog.prices`."""
    latest: dict[tuple[str, str, str, str], Price] = {}
    for row in catalog.prices(device):
        if kind in (None, row.kind):
            latest.setdefault((row.vendor, row.instance, row.kind, row.region), row)
    return list(latest.values())


def price_of(device: str | Device, kind: Kind = "on-demand", vendor: str | None = None, count: int = 1) -> Price | None:
    """The price to count with when the user states none, or None if the table has none.

    The rule: of each instance only its latest price holds. Those that include the host come before those that do not, machines
    that hold all `count` devices before several smaller ones; of the rest it is the least for whole instances. A vendor's machines of
    several sizes at one price per device count as one that is sold in steps of the smallest, so a K80 board costs two GPUs and not
    the eight of a p2.8xlarge. State `date` and `source` with every cost, and whether the host is included.

    >>> [price_of("h100-nvl", vendor="azure", count=n).instance for n in (1, 2)]
    ['NC40ads H100 v5', 'NC80adis H100 v5']
    >>> float(price_of("k80").usd_per_hour(1))
    1.8
    """
    wanted = [row for row in offers(device, kind) if vendor is None or row.vendor.lower() == vendor.lower()]
    wanted = [row.model_copy(update={"up_to": _sold_up_to(row, wanted)}) for row in wanted]

    def order(row: Price) -> tuple[bool, bool, float]:
        return not row.includes_host, row.most_devices < count, float(row.usd_per_hour(count))

    return min(wanted, key=order, default=None)


def _sold_up_to(row: Price, offers: Sequence[Price]) -> float | None:
    """The devices of the largest machine that a vendor sells at a row's price per device; None where it is the row's own."""
    same = ("vendor", "kind", "region", "includes_host", "date")
    most = max(
        one.most_devices
        for one in offers
        if all(getattr(one, name) == getattr(row, name) for name in same)
        and math.isclose(one.usd_per_device_hour, row.usd_per_device_hour, rel_tol=1e-6)
    )
    return most if most > row.count else row.up_to


def update_prices(path: Path) -> tuple[Sequence[Price], Path]:
    """Merge a price table into the user's own; a row of the same instance, kind, region and date takes the place of the one there.

    Returns: the rows that were read, and the file that now has them.
    Raises: FileFormatError as `read_prices`, and for an empty table, an unknown device, a row without a date or of the future.
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
                "`chronograd devices` lists names; a device file of your own in the data folder adds one",
            )
        if not row.date or row.date > today().isoformat()[: len(row.date)]:
            raise FileFormatError(f"{where}: date is {row.date!r}", "write the day or month when the price held")
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

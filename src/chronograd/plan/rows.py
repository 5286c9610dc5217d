"""One setting of a plan, as data for programs and as words and cells for readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from chronograd.hardware import market
from chronograd.hardware.catalog import Price
from chronograd.plan.search import Search
from chronograd.plan.ways import Way
from chronograd.predict.memory import may_not_fit
from chronograd.units import dollars

Row = dict[str, Any]


def setting_row(search: Search, columns: Mapping[str, np.ndarray], offers: Sequence[Price], i: int) -> Row:
    """What a row of `renting.rent` stands for: the setting, what it is rented as, and the date and source of the price."""
    way = search.ways[columns["way"][i]]
    number = int(columns["offer"][i])
    device = search.devices[columns["device"][i]]
    return {
        "device": device.name,
        "count": int(columns["count"][i]),
        "batch_per_device": int(columns["batch_per_rank"][i]),
        **vars(way),
        "algorithm": search.algorithms[columns["algorithm"][i]],
        **_offer(offers[number] if number >= 0 else None, float(columns["price_usd_per_hour"][i])),
        "machines": int(columns["machines"][i]),
        "step_time_s": float(columns["step_time_s"][i]),
        "throughput_samples_per_s": float(columns["throughput_samples_per_s"][i]),
        "is_input_bound": bool(columns["is_input_bound"][i]),
        "memory_bytes": float(columns["memory_bytes"][i]),
        "may_not_fit": may_not_fit(device, search.job.mode, int(columns["memory_bytes"][i])) or None,
    }


def warnings(row: Row, rough: Sequence[str]) -> list[str]:
    """Return the warnings that come before the figures of a setting: rough times, and memory that may not suffice.

    Args:
        rough: see `Search.rough`.
    """
    lines = [f"{text[0].upper()}{text[1:]}." for text in rough]
    return [*lines, f"{devices(row)} {row['may_not_fit']}."] if row["may_not_fit"] else lines


def _offer(offer: Price | None, usd_per_hour: float) -> Row:
    if offer is None:
        return dict.fromkeys(("vendor", "instance", "region", "prices", "usd_per_hour", "price"))
    return {
        "vendor": offer.vendor,
        "instance": offer.instance,
        "region": offer.region or None,
        "prices": offer.kind,
        "usd_per_hour": usd_per_hour,
        "price": {
            "usd_per_hour_of_instance": offer.price_usd_per_hour,
            "devices_of_instance": offer.count,
            "vcpus_of_instance": offer.vcpus,
            "includes_host": offer.includes_host,
            "date": offer.date,
            "is_older_than_a_year": market.is_old(offer),
            "sigma_log": market.sigma_log(offer),
            "tag": offer.tag,
            "source": offer.source,
        },
    }


def devices(row: Row) -> str:
    """
    >>> devices({"count": 8, "device": "a100-40"})
    '8 × a100-40'
    """
    return f"{row['count']} × {row['device']}"


def hourly(row: Row) -> str:
    """The price per hour, with the number of GPUs that it is for if the setting leaves some of them idle.

    >>> row = {"count": 4, "machines": 1, "usd_per_hour": 11.56, "price": {"devices_of_instance": 8}}
    >>> hourly(row), hourly({**row, "count": 8})
    ('$11.56 an hour for all 8 GPUs', '$11.56 an hour')
    """
    rented = row["machines"] * row["price"]["devices_of_instance"]
    return f"{dollars(row['usd_per_hour'])} an hour{f' for all {rented:g} GPUs' if rented > row['count'] else ''}"


def way(row: Row) -> Way:
    """How its steps are run."""
    return Way(*(row[field.name] for field in fields(Way)))


def vendor(row: Row) -> str:
    """Whose offer it is, shortly; a spot price says so."""
    return "" if row["vendor"] is None else f"{row['vendor']}{' spot' if row['prices'] == 'spot' else ''}"


def price_month(row: Row) -> str:
    """The month in which a price held; † where that is more than a year ago."""
    if row["price"] is None:
        return "–"
    return f"{row['price']['date'][:7] or 'unknown'}{'†' if row['price']['is_older_than_a_year'] else ''}"


def cells(row: Row) -> tuple[str, str, str]:
    """What is rented, when its price held, and how it is run: the first columns of a table of settings."""
    return f"{devices(row)} {vendor(row)}".rstrip(), price_month(row), f"{way(row).short}, {row['batch_per_device']}"


CELLS = ("rent", "price of", "run in, batch")


def notes(rows: Sequence[Row]) -> list[str]:
    """What the signs in these columns mean, where they are used."""
    told = ["Batch is that of one device; NHWC: channels-last." if any(row["channels_last"] for row in rows) else
            "Batch is that of one device."]  # fmt: skip
    if any(row["price"] and row["price"]["is_older_than_a_year"] for row in rows):
        told.append("†: a price of more than a year ago; its interval is wider.")
    return told

"""Published throughputs with their sources; only `judge` reads them.

`python -m benchmarks.published` writes `published.csv` in this folder. `sources.toml` lists for each source the measurement,
its author and date, and the calibration that was fitted to it.
"""

from __future__ import annotations

import csv
import functools
import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("published.csv")
SOURCES = FILE.with_name("sources.toml")
COLUMNS = (
    *("source", "network", "image_size", "device", "devices", "precision", "batch_per_device"),
    *("samples_per_s", "params_m"),
)
# Batches of a device within this factor count as alike: throughput has levelled off, or rises little.
ALIKE_BATCH = 2.0
# A network of the same name with a different number of parameters is another network; tables round to 10,000.
_PARAMS_TOLERANCE, _PARAMS_ROUNDING_M = 0.01, 0.006
_HALF = ("fp16", "bf16")


@dataclass(frozen=True)
class PublishedSource:
    """The source of figures.

    Attributes:
        mode: `training` or `inference`. `channels_last`: None if not stated.
        software: the software that ran. `fitted`: the table of the calibration that was fitted to these figures; empty if none
            was.
    """

    name: str
    title: str
    address: str
    date: str
    licence: str
    software: str
    mode: str
    channels_last: bool | None = None
    is_compiled: bool = False
    fitted: str = ""
    note: str = ""


@dataclass(frozen=True)
class PublishedRow:
    """One published figure: samples per second of all `devices` together."""

    source: PublishedSource
    network: str
    image_size: int
    device: str
    devices: int
    precision: str
    batch_per_device: int
    samples_per_s: float
    params_m: float | None


@dataclass(frozen=True)
class JudgedSetting:
    """The setting of a figure. `params`: parameters of the network, to distinguish it from others of that name."""

    network: str
    params: int
    image_size: int
    mode: str
    device: str
    devices: int
    precision: str
    batch_per_device: int
    channels_last: bool
    is_compiled: bool


def bare(network: str) -> str:
    """Return a network's name without library, weights and spelling, for a search of the sources.

    >>> bare("torchvision:resnet50"), bare("timm:resnet50.a1_in1k"), bare("ResNet-50")
    ('resnet50', 'resnet50', 'resnet50')
    """
    return re.sub(r"[^a-z0-9]", "", network.rpartition(":")[2].partition(".")[0].lower())


def of_network(setting: JudgedSetting, rows: Sequence[PublishedRow] | None = None) -> list[PublishedRow]:
    """Return figures of that network at that image size, in that mode, on the device or its variants; the nearest setting
    first.
    """
    known = published() if rows is None else rows
    name, line = bare(setting.network), setting.device.partition("-")[0]
    chosen = [
        row
        for row in known
        if bare(row.network) == name
        and row.image_size == setting.image_size
        and row.source.mode == setting.mode
        and row.device.partition("-")[0] == line
        and _has_params(row, setting.params)
    ]
    return sorted(chosen, key=lambda row: _distance(row, setting))


def is_alike(row: PublishedRow, setting: JudgedSetting) -> bool:
    """Return whether a figure has this setting: device, count, precision, layout, compiler and nearly the same batch."""
    return row.device == setting.device and is_sister(row, setting)


def is_sister(row: PublishedRow, setting: JudgedSetting) -> bool:
    """Return whether a figure has this setting except for the device, which may be another card of the line."""
    return (
        row.devices == setting.devices
        and (row.precision == setting.precision or {row.precision, setting.precision} <= set(_HALF))
        and row.source.channels_last in (None, setting.channels_last)
        and row.source.is_compiled == setting.is_compiled
        and abs(math.log(row.batch_per_device / setting.batch_per_device)) <= math.log(ALIKE_BATCH) + 1e-9
    )


def _distance(row: PublishedRow, setting: JudgedSetting) -> tuple[bool, bool, bool, bool, float]:
    return (
        row.device != setting.device,
        not (row.precision == setting.precision or {row.precision, setting.precision} <= set(_HALF)),
        row.devices != setting.devices,
        row.source.channels_last not in (None, setting.channels_last),
        abs(math.log(row.batch_per_device / setting.batch_per_device)),
    )


def _has_params(row: PublishedRow, params: int) -> bool:
    if row.params_m is None:
        return True
    return abs(params / 1e6 - row.params_m) <= _PARAMS_TOLERANCE * row.params_m + _PARAMS_ROUNDING_M


@functools.cache
def published() -> tuple[PublishedRow, ...]:
    """Return all published figures."""
    known = {name: PublishedSource(name, **table) for name, table in sources().items()}
    with FILE.open(newline="", encoding="utf-8") as stream:
        return tuple(
            PublishedRow(
                known[line["source"]],
                line["network"],
                int(line["image_size"]),
                line["device"],
                int(line["devices"]),
                line["precision"],
                int(line["batch_per_device"]),
                float(line["samples_per_s"]),
                float(line["params_m"]) if line["params_m"] else None,
            )
            for line in csv.DictReader(stream)
        )


def sources() -> dict[str, dict[str, Any]]:
    """Return the entries of the file of sources, by name."""
    return tomllib.loads(SOURCES.read_text(encoding="utf-8"))

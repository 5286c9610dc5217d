"""One setting of a plan, as data for programs and as text and table cells for readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar

import numpy as np

from chronograd.answer import IF_KNOWN, Column
from chronograd.hardware import market
from chronograd.hardware.catalog import Price
from chronograd.hardware.market import Kind
from chronograd.plan.goal import MAX_PROBABLE, Goal, PlanResult
from chronograd.plan.places import Places
from chronograd.plan.renting import Decoding, Spot
from chronograd.plan.search import Search
from chronograd.plan.ways import Way
from chronograd.predict.memory import may_not_fit
from chronograd.units import dollars


@dataclass(frozen=True)
class OfferedPrice:
    """The price of an instance, and its source; `sigma_log` is the standard deviation of its logarithm, assumed from its age."""

    usd_per_hour_of_instance: float
    devices_of_instance: float
    vcpus_of_instance: float | None
    includes_host: bool
    date: str
    is_older_than_a_year: bool
    sigma_log: float
    tag: str
    source: str


@dataclass(frozen=True, kw_only=True)
class OfferedDevices:
    """Devices with an offer to rent them; its fields are None without a price.

    Attributes:
        prices: on-demand or spot.
        usd_per_hour: price of all machines.
        price: price of one instance.
    """

    device: str
    count: int
    vendor: str | None
    instance: str | None
    region: str | None
    prices: str | None
    usd_per_hour: float | None
    price: OfferedPrice | None
    machines: int


@dataclass(frozen=True, kw_only=True)
class PlannedSetting(OfferedDevices):
    """A setting and its offer: how steps run, their speed and memory.

    Attributes:
        is_input_bound: whether decoding on the host limits the speed.
        may_not_fit: a warning, or None.
    """

    batch_per_device: int
    precision: str
    channels_last: bool
    compile: bool | str
    activation_checkpointing: str
    param_dtype: str
    algorithm: str
    step_time_s: float
    throughput_samples_per_s: float
    is_input_bound: bool
    memory_bytes: float
    may_not_fit: str | None


@dataclass(frozen=True, kw_only=True)
class PricedSetting(PlannedSetting):
    """A setting of a list, with the price of a million samples."""

    usd_per_million_samples: float | None


@dataclass(frozen=True, kw_only=True)
class RentedDevices(OfferedDevices):
    """Devices with a price; `startup_s` is the time until the machines train."""

    vendor: str
    instance: str
    prices: str
    usd_per_hour: float
    price: OfferedPrice
    startup_s: float


@dataclass(frozen=True, kw_only=True)
class RentedSetting(RentedDevices, PlannedSetting):
    """A setting with a price."""


@dataclass(frozen=True, kw_only=True)
class RentedRun(RentedDevices):
    """A whole run on rented devices: its time and cost with their 80 % intervals; `hours` include the start-up.

    Attributes:
        probability: probability of meeting the goal.
    """

    steps: float
    hours: float
    hours_interval: list[float]
    dollars: float
    dollars_interval: list[float]
    probability: float


@dataclass(frozen=True, kw_only=True)
class RunOption(RentedSetting, RentedRun):
    """A setting for a whole run.

    Attributes:
        cloud, platform: the cloud and its platform, with the cost of moving the data there; only for a choice among clouds.
    """

    cloud: str | None = field(default=None, metadata=IF_KNOWN)
    platform: str | None = field(default=None, metadata=IF_KNOWN)
    moving_usd: float | None = field(default=None, metadata=IF_KNOWN)


@dataclass(frozen=True)
class RunTime:
    """Time and cost of a run of some epochs, including start-up."""

    hours: float
    dollars: float


@dataclass(frozen=True, kw_only=True)
class EpochOption(RentedSetting):
    """A setting for an unknown number of epochs: time and cost of one epoch, and of runs of 30 and 300 epochs."""

    cloud: str | None = field(default=None, metadata=IF_KNOWN)
    platform: str | None = field(default=None, metadata=IF_KNOWN)
    moving_usd: float | None = field(default=None, metadata=IF_KNOWN)
    epoch_hours: float
    epoch_dollars: float
    epochs_30: RunTime
    epochs_300: RunTime


AnyOption = TypeVar("AnyOption", bound=RentedDevices)
AnyRun = TypeVar("AnyRun", bound=RentedRun)


@dataclass(frozen=True)
class PlanOptions(Generic[AnyOption]):
    """The options that meet the goal; None if none does."""

    fastest: AnyOption | None
    balanced: AnyOption | None
    cheapest: AnyOption | None


@dataclass(frozen=True)
class WayGain:
    """Speed of the choice as a multiple of another way to run the same devices."""

    times_as_fast: float
    than: str
    precision: str
    channels_last: bool
    compile: bool | str
    activation_checkpointing: str
    param_dtype: str


@dataclass(frozen=True)
class PlanChange(Generic[AnyOption]):
    """A limit that would change the choice: `what` at `value` (hours, dollars, or a multiple of the steps), and the choice
    then.
    """

    what: str
    value: float
    then: AnyOption | None


@dataclass(frozen=True)
class ListedRecipe:
    """A published recipe with its epochs and accuracy."""

    network: str
    recipe: str
    epochs: float
    accuracy: float
    source: str


@dataclass(frozen=True)
class PriceOutlier:
    """An offer that is never recommended because its price is far below that of similar offers."""

    device: str
    vendor: str
    instance: str
    prices: str
    usd_per_device_hour: float
    date: str
    source: str
    reason: str


@dataclass(frozen=True)
class PlannedEffort:
    """The training needed for a target: samples at a batch, and the probability of reaching it; None if unknown.

    Attributes:
        beyond: parts of the recipe that a job cannot state.
        largest_batch: batches up to this size need no extra epochs; None if `noise_scale` decides.
    """

    samples: float
    batch: int
    sigma_log: float
    probability_of_target: float | None
    target: float | None
    beyond: list[str]
    noise_scale: list[float] | None
    largest_batch: int | None
    source: str


@dataclass(frozen=True)
class UnknownEffort:
    """A target that is out of reach or has an unknown number of epochs; `source` states why, `neighbours` are known recipes."""

    samples: None
    target: float | None
    probability_of_target: float | None
    source: str
    neighbours: list[ListedRecipe] | None = field(default=None, metadata=IF_KNOWN)


@dataclass(frozen=True, kw_only=True)
class GoalPlan(Generic[AnyOption]):
    """The result of `plan` for a goal.

    Attributes:
        verdict: rent; run (no promise of accuracy); missed; or unknown, if the epochs are.
        front: the settings that no other beats in both time and cost.
        chosen: the recommended setting.
        likeliest: the setting most likely to meet the goal.
        gains: speedup over other ways to run the same devices.
        changes: limits that would change the choice.
        missing: the least deadline and budget that an option meets; None if the goal is met.
        places: the best option of each cloud, for a choice among clouds; `moving` lists the data to move.
    """

    verdict: str
    evaluated: int
    offers: int
    candidates: int
    front: list[AnyOption]
    front_size: int
    chosen: AnyOption | None
    options: PlanOptions[AnyOption]
    likeliest: AnyOption | None
    gains: list[WayGain]
    changes: list[PlanChange[AnyOption]]
    missing: dict[str, float | None] | None
    goal: Goal
    effort: PlannedEffort | UnknownEffort
    other_recipes: list[ListedRecipe]
    assumed: list[str]
    decoding: Decoding | None
    spot: Spot
    too_large_for_the_data: int
    outliers: list[PriceOutlier]
    places: list[AnyOption] | None = field(default=None, metadata=IF_KNOWN)
    not_planned: dict[str, dict[Kind, list[str]]] | None = field(default=None, metadata=IF_KNOWN)
    network: str | None = field(default=None, metadata=IF_KNOWN)
    dataset: str | None = field(default=None, metadata=IF_KNOWN)
    moving: Places | None = field(default=None, metadata=IF_KNOWN)


@dataclass(frozen=True, kw_only=True)
class LargeRun(RentedRun):
    """A training of a large model on rented devices.

    Attributes:
        layout: degrees by name; `layout_in_words` and `command` state the same.
        step_time_s: of the layout, without interruptions.
        tokens: of the training, with an 80 % interval.
        memory_bytes: of a device of the fullest pipeline stage, with the probability that it fits.
    """

    layout: dict[str, Any]
    layout_in_words: str
    command: str
    step_time_s: float
    tokens_per_s: float
    tokens: float
    tokens_interval: list[float]
    memory_bytes: float
    fit_probability: float


@dataclass(frozen=True)
class RunsOfCount:
    """The best run of a number of devices on demand, and on spot nodes; None without such an offer."""

    device: str
    count: int
    layout_in_words: str
    step_time_s: float
    tokens_per_s: float
    on_demand: LargeRun | None
    spot: LargeRun | None


@dataclass(frozen=True, kw_only=True)
class LargePlan:
    """The result of `plan` for the training of a large model.

    Attributes:
        verdict: rent, or missed if no run meets the goal.
        tokens_source: where the number of tokens comes from; None if the limits decide.
        front: the runs that no other beats in both time and cost, or in time and tokens if the limits decide.
        likeliest: the run most likely to meet the goal.
        by_count: the best runs of each number of devices; `refused` are those without a layout that fits.
        changes, missing: see `GoalPlan`.
    """

    verdict: str
    tokens_source: str | None
    goal: Goal
    spot: Spot
    chosen: LargeRun | None
    options: PlanOptions[LargeRun]
    likeliest: LargeRun | None
    front: list[LargeRun]
    front_size: int
    by_count: list[RunsOfCount]
    refused: dict[str, str]
    changes: list[PlanChange[LargeRun]]
    missing: dict[str, float | None] | None
    evaluated: int
    candidates: int
    outliers: list[PriceOutlier]
    assumed: list[str]


@dataclass(frozen=True, kw_only=True)
class FineTuningOption(RentedRun):
    """A published way to fine-tune, on its cheapest offer.

    Attributes:
        method: with its setting.
        final_accuracy: after all steps of the published run.
    """

    method: str
    final_accuracy: float
    memory_bytes: int


@dataclass(frozen=True)
class FineTuningPlan:
    """The result of `plan` for an accuracy of fine-tuning: ways that reach it, the cheapest first.

    Attributes:
        best_accuracy: of all published ways.
    """

    verdict: str
    target: float
    goal: Goal
    chosen: FineTuningOption | None
    options: list[FineTuningOption]
    best_accuracy: float
    source: str


@dataclass(frozen=True)
class NoPlan:
    """The result of `plan` for a target that is out of reach with any hardware."""

    verdict: str
    chosen: None
    goal: Goal
    effort: UnknownEffort


@dataclass(frozen=True)
class SettingList:
    """The result of `plan` without a goal: settings by the price of a sample."""

    settings: list[PricedSetting]
    evaluated: int
    fit: int
    too_large_for_the_data: int
    assumed: list[str]


def setting_row(search: Search, columns: Mapping[str, np.ndarray], offers: Sequence[Price], i: int) -> dict[str, Any]:
    """Return the fields of a `PlannedSetting` for a row of `renting.rent`: the setting, its offer, and the source of the price."""
    way = search.ways[columns["way"][i]]
    device = search.devices[columns["device"][i]]
    return {
        "device": device.name,
        "count": int(columns["count"][i]),
        "batch_per_device": int(columns["batch_per_rank"][i]),
        **vars(way),
        "algorithm": search.algorithms[columns["algorithm"][i]],
        **offer_fields(columns, offers, i),
        "step_time_s": float(columns["step_time_s"][i]),
        "throughput_samples_per_s": float(columns["throughput_samples_per_s"][i]),
        "is_input_bound": bool(columns["is_input_bound"][i]),
        "memory_bytes": float(columns["memory_bytes"][i]),
        "may_not_fit": may_not_fit(device, search.job.mode, int(columns["memory_bytes"][i])) or None,
    }


def warnings(row: PlannedSetting, rough: Sequence[str]) -> list[str]:
    """Return the warnings that come before the figures of a setting: rough times, and memory that may not suffice.

    Args:
        rough: see `Search.rough`.
    """
    lines = [f"{text[0].upper()}{text[1:]}." for text in rough]
    return [*lines, f"{devices(row)} {row.may_not_fit}."] if row.may_not_fit else lines


def offer_fields(columns: Mapping[str, np.ndarray], offers: Sequence[Price], i: int) -> dict[str, Any]:
    """Return the fields of `OfferedDevices` on the offer of a row of `renting.rent`."""
    number, machines = int(columns["offer"][i]), int(columns["machines"][i])
    if number < 0:
        fields = ("vendor", "instance", "region", "prices", "usd_per_hour", "price")
        return {**dict.fromkeys(fields), "machines": machines}
    offer = offers[number]
    return {
        "vendor": offer.vendor,
        "instance": offer.instance,
        "region": offer.region or None,
        "prices": offer.kind,
        "usd_per_hour": float(columns["price_usd_per_hour"][i]),
        "price": OfferedPrice(offer.price_usd_per_hour, offer.count, offer.vcpus, offer.includes_host, offer.date,
                              market.is_old(offer), market.sigma_log(offer), offer.tag, offer.source),
        "machines": machines,
    }  # fmt: skip


def run_fields(choices: PlanResult, i: int) -> dict[str, Any]:
    """Return the fields of a `RentedRun` on the time and cost of a row."""
    columns = choices.columns
    return {
        "startup_s": float(3600 * columns["startup_h"][i]),
        "steps": float(columns["steps"][i]),
        "hours": float(columns["hours"][i]),
        "hours_interval": list(choices.interval("hours", i)),
        "dollars": float(columns["dollars"][i]),
        "dollars_interval": list(choices.interval("dollars", i)),
        "probability": min(float(columns["probability"][i]), MAX_PROBABLE),
    }


def devices(row: OfferedDevices) -> str:
    """Return the number and name of the devices, such as `8 × a100-40`."""
    return f"{row.count} × {row.device}"


def hourly(row: RentedDevices) -> str:
    """Return the price per hour, with the number of GPUs that it is for if the setting leaves some of them idle."""
    rented = row.machines * row.price.devices_of_instance
    return f"{dollars(row.usd_per_hour)} an hour{f' for all {rented:g} GPUs' if rented > row.count else ''}"


def way(row: PlannedSetting) -> Way:
    """Return how its steps run."""
    return Way(*(getattr(row, one.name) for one in fields(Way)))


def vendor(row: OfferedDevices) -> str:
    """Return the short name of the vendor, with "spot" for a spot price."""
    return "" if row.vendor is None else f"{row.vendor}{' spot' if row.prices == 'spot' else ''}"


def price_month(row: OfferedDevices) -> str:
    """Return the month of the price, with † if it is more than a year old."""
    if row.price is None:
        return "–"
    return f"{row.price.date[:7] or 'unknown'}{'†' if row.price.is_older_than_a_year else ''}"


# The first columns of a table of settings: the offer, the month of its price, and how steps run.
COLUMNS = (
    Column("rent", lambda row: f"{devices(row)} {vendor(row)}".rstrip()),
    Column("price of", lambda row: price_month(row)),
    Column("run in, batch", lambda row: f"{way(row).short}, {row.batch_per_device}"),
)


def notes(rows: Sequence[PlannedSetting]) -> list[str]:
    """Return the meaning of the signs that these rows use."""
    lines = ["Batch: samples per device; NHWC: channels last." if any(row.channels_last for row in rows) else
            "Batch: samples per device."]  # fmt: skip
    if any(row.price and row.price.is_older_than_a_year for row in rows):
        lines.append("†: this price is more than a year old; its interval is wider.")
    return lines

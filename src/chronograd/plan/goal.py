"""Goals: which of many settings reaches a target in time and within budget, how likely, and what would change the choice.

    hours   = start-up + steps to the target · step time / 3600    steps by batch: (1 + noise scale / batch), predict.batch_size
    dollars = billed hours · price per hour of whole instances + moving data and checkpoints

The time of the steps is log-normal: the variances of log(step time), of log(epochs to the target) and of the unknown part of the
noise scale add up, and for dollars that of an ageing price. Start-up and the cost of moving are taken as certain. A setting keeps
deadline and budget if its steps end before the earlier of the two, averaged over the possible prices.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from chronograd.errors import InputError
from chronograd.hardware.catalog import Price
from chronograd.known import KnownResult
from chronograd.plan.renting import KINDS, STARTUP_SIGMA, USUAL_SPOT, Rented, Spot, billed
from chronograd.predict.batch_size import steps_factor
from chronograd.record import Z80, normal_probability, normal_quantile

# Nodes and weights by which a price that is not sure is averaged over (Gauss-Hermite).
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
# Of log(epochs to a target) between seeds of one job: 3 to 12 % in the studies of this project.
SEED_SIGMA = 0.1
# Some input of every plan is assumed, such as the start-up of a machine, so no answer claims a higher probability.
MAX_PROBABLE = 0.95
# Times the job's batch, where no noise scale was measured: published ones on CIFAR-10 and ImageNet lie in this range.
ASSUMED_NOISE = (2.0, 8.0, 32.0)


@dataclass(frozen=True)
class SamplesToTarget:
    """What the target takes.

    Attributes:
        samples: training samples until the target at batch `reference_batch`.
        sigma_log: standard deviation of log(samples).
        reached: probability that the target is reached at all; None where nothing says whether it is.
        noise_scale: of the gradient, in samples, with an 80 % interval.
        largest_batch: with which published runs reached the target in as many samples. Up to it a batch costs no samples;
            beyond it, the noise scale is not asked: the samples are between as many, and as many more as the batch is larger.
        target: the accuracy that is to be reached; None where it is not stated.
        others: more published recipes that reach it, those with less work first.
        beyond: parts of the recipe that a job cannot state. Without them a run may end lower: `reached` is an upper bound then.
        source: where the number comes from.
        note: what a reader has to know of it before trusting it; empty where there is nothing.
    """

    samples: float
    reference_batch: int
    sigma_log: float = SEED_SIGMA
    reached: float | None = 1.0
    noise_scale: tuple[float, float, float] = (math.nan, math.nan, math.nan)
    source: str = "told"
    largest_batch: int | None = None
    note: str = ""
    target: float | None = None
    others: Sequence[KnownResult] = ()
    beyond: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not (0 < self.samples < math.inf and self.reference_batch > 0 and 0 <= self.sigma_log < math.inf):
            raise InputError(
                f"{self.samples:g} samples at batch {self.reference_batch} to the target", "give epochs above 0"
            )
        if math.isnan(self.noise_scale[1]):
            assumed = tuple(times * self.reference_batch for times in ASSUMED_NOISE)
            object.__setattr__(self, "noise_scale", assumed)

    def steps(self, batch: Any) -> tuple[Any, Any]:
        """Steps to the target by global batch, and the standard deviation of their logarithm."""
        if self.largest_batch is not None:
            beyond = np.maximum(np.log(np.asarray(batch) / self.largest_batch), 0.0)
            sigma = np.hypot(self.sigma_log, beyond / (2 * Z80))
            return self.samples / np.asarray(batch) * np.exp(beyond / 2), sigma
        least, middle, most = (steps_factor(batch, self.reference_batch, scale) for scale in self.noise_scale)
        of_noise = np.abs(np.log(most / least)) / (2 * Z80)
        return self.samples / self.reference_batch * middle, np.hypot(self.sigma_log, of_noise)


@dataclass(frozen=True)
class Goal:
    """Attributes: budget_usd, deadline_s: None where there is none. confidence: the probability that is asked for."""

    budget_usd: float | None = None
    deadline_s: float | None = None
    confidence: float = 0.8

    def __post_init__(self) -> None:
        limits = (self.budget_usd, self.deadline_s)
        if any(limit is not None and not 0 < limit < math.inf for limit in limits):
            raise InputError(f"a goal of {limits}", "give a budget and a deadline above 0")
        if not 0 < self.confidence <= MAX_PROBABLE:
            raise InputError(
                f"a confidence of {self.confidence:g}",
                f"give one above 0 and at most {MAX_PROBABLE:g}: a plan rests on assumptions",
            )

    @property
    def is_for_speed(self) -> bool:
        """Return True where there is only a budget, so the fastest is asked for; else it is the cheapest."""
        return self.deadline_s is None and self.budget_usd is not None


@dataclass(frozen=True, eq=False)
class PlanResult:
    """Settings by offer with what they take: arrays of one row each.

    Attributes:
        columns: of `renting.rent`, and `steps`, `hours`, `dollars` (medians), `train_hours` (without start-up), `sigma_hours`,
            `sigma_dollars`, `probability` (of keeping the goal).
        offers: what `columns["offer"]` points into. without_host: devices of which no price includes the host.
        is_candidate: fits in memory, has a price that is no outlier, and is the fastest of what is rented with it.
        chosen: row of the choice; None if no setting keeps the goal with its confidence.
    """

    columns: Mapping[str, np.ndarray]
    offers: Sequence[Price]
    without_host: Sequence[str]
    is_candidate: np.ndarray
    goal: Goal
    effort: SamplesToTarget
    chosen: int | None = None

    def at(self, name: str, z: float) -> np.ndarray:
        """Hours or dollars of every row, `z` standard deviations of their logarithm above the median."""
        columns = self.columns
        of_hours = columns["sigma_hours"]
        if name == "hours":
            return np.asarray(columns["hours"] * np.exp(z * of_hours))
        whole = np.maximum(columns["sigma_dollars"], 1e-12)
        paid = billed(columns["hours"] * np.exp(z * of_hours**2 / whole), columns)
        price = columns["price_usd_per_hour"] * np.exp(z * columns["sigma_price"] ** 2 / whole)
        return np.asarray(columns["moving_usd"] + price * paid)

    def interval(self, name: str, row: int) -> tuple[float, float]:
        """The 80 % interval of `hours` or `dollars`."""
        return float(self.at(name, -Z80)[row]), float(self.at(name, Z80)[row])

    def quantile(self, name: str) -> np.ndarray:
        """Hours or dollars of each row that are enough with the confidence of the goal; infinite where the target is too
        unsure."""
        asked = self.goal.confidence / max(1.0 if self.effort.reached is None else self.effort.reached, 1e-12)
        if asked >= 1:
            return np.full(len(self.columns[name]), math.inf)
        return self.at(name, float(normal_quantile(asked)))

    def pareto_front(self) -> list[int]:
        """Rows than which none is both faster and cheaper, the fastest first."""
        rows = np.flatnonzero(self.is_candidate)
        order = rows[np.lexsort((self.columns["dollars"][rows], self.columns["hours"][rows]))]
        costs = self.columns["dollars"][order]
        before = np.concatenate([[math.inf], np.minimum.accumulate(costs)[:-1]])
        return [int(row) for row in order[costs < before * (1 - 1e-9)]]  # what differs by rounding only is the same

    def most_probable(self, among: np.ndarray | None = None) -> int | None:
        """The candidate, of some rows or all, that keeps the goal most probably; of equal ones the fastest, then the cheapest."""
        rows = np.flatnonzero(self.is_candidate if among is None else self.is_candidate & among)
        hours, dollars, probability = (self.columns[name][rows] for name in ("hours", "dollars", "probability"))
        return int(rows[np.lexsort((dollars, hours, -probability))[0]]) if len(rows) else None

    def keepers(self, among: np.ndarray | None = None) -> np.ndarray:
        """The candidates, of some rows or all, that keep the goal with its confidence."""
        is_kept = self.is_candidate & (self.columns["probability"] >= self.goal.confidence)
        return np.flatnonzero(is_kept if among is None else is_kept & among)

    def fastest(self, among: np.ndarray | None = None) -> int | None:
        """The keeper with the least hours. Others are as fast if each lies in the other's 80 % interval; the cheapest of them wins."""
        rows = self.keepers(among)
        if not len(rows):
            return None
        hours = self.columns["hours"][rows]
        first = int(np.argmin(hours))
        low, high = self.at("hours", -Z80)[rows], self.at("hours", Z80)[rows]
        return self._least(rows[(hours <= high[first]) & (low <= hours[first])], "dollars", "hours")

    def cheapest(self, among: np.ndarray | None = None) -> int | None:
        """The keeper with the least dollars."""
        return self._least(self.keepers(among), "dollars", "hours")

    def balanced(self, among: np.ndarray | None = None) -> int | None:
        """The keeper with the least product of hours and dollars, of those that cost no more than `fastest`, which ties may be."""
        rows, first = self.keepers(among), self.fastest(among)
        if first is not None:
            rows = rows[self.columns["dollars"][rows] <= self.columns["dollars"][first]]
        product = self.columns["hours"][rows] * self.columns["dollars"][rows]
        return int(rows[np.argmin(product)]) if len(rows) else None

    def _least(self, rows: np.ndarray, first: str, second: str) -> int | None:
        with np.errstate(divide="ignore"):
            alike = np.round(np.log(self.columns[first][rows]), 9)  # what differs by rounding only is the same
        return int(rows[np.lexsort((self.columns[second][rows], alike))[0]]) if len(rows) else None

    def best(self, among: np.ndarray | None = None) -> int | None:
        """Return the row to take, of some rows or all: the cheapest that keeps the goal, or with only a budget the fastest."""
        return self.fastest(among) if self.goal.is_for_speed else self.cheapest(among)

    @property
    def taken(self) -> int | None:
        """The chosen setting, else the one that most probably keeps the goal."""
        return self.most_probable() if self.chosen is None else self.chosen

    def of_rows(self, rows: np.ndarray) -> PlanResult:
        """Return the same with these rows only, the chosen one among them."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        chosen = None if self.chosen is None else int(np.flatnonzero(rows == self.chosen)[0])
        return replace(self, columns=columns, is_candidate=self.is_candidate[rows], chosen=chosen)

    def under(self, goal: Goal) -> PlanResult:
        """The same settings under another goal."""
        return _chosen(replace(self, goal=goal))


def choose(rented: Rented, effort: SamplesToTarget, goal: Goal, spot: Spot = USUAL_SPOT) -> PlanResult:
    """Choose one of the settings with their offers.

    With a deadline it is the cheapest that keeps the goal with its confidence, with only a budget the fastest, with neither the
    cheapest.

    Args:
        spot: interruptions.
    Left out: evaluation, storage and traffic between zones.
    """
    columns = dict(rented.columns)
    steps, sigma_steps = effort.steps(columns["count"] * columns["batch_per_rank"])
    slow = np.where(columns["kind"] == KINDS.index("spot"), spot.slow_down(columns["machines"]), 1.0)
    columns["steps"] = steps
    columns["train_hours"] = steps * columns["step_time_s"] * slow / 3600
    columns["hours"] = columns["startup_h"] + columns["train_hours"]
    columns["dollars"] = billed(columns["hours"], columns) * columns["price_usd_per_hour"] + columns["moving_usd"]
    of_start, of_training = (
        STARTUP_SIGMA * columns["startup_h"],
        np.hypot(columns["sigma_log"], sigma_steps) * columns["train_hours"],
    )
    columns["sigma_hours"] = (of_start + of_training) / columns["hours"]
    columns["sigma_dollars"] = np.hypot(columns["sigma_hours"], columns["sigma_price"])
    is_able = columns["fits"] & np.isfinite(columns["dollars"]) & ~columns["is_outlier"]
    is_candidate = _fastest_as_rented(columns, is_able)
    return _chosen(PlanResult(columns, rented.offers, rented.without_host, is_candidate, goal, effort))


def _fastest_as_rented(columns: Mapping[str, np.ndarray], is_able: np.ndarray) -> np.ndarray:
    """Of the settings of each offer and count the fastest, and of those that wait for the same input the one that could be faster.

    What is rented can be run any way: a slower one is not surer because its prediction is.
    """
    rows = np.flatnonzero(is_able)
    order = rows[np.lexsort([columns[name][rows] for name in ("own_step_s", "hours", "count", "offer")])]
    offers, counts = columns["offer"][order], columns["count"][order]
    is_first = np.append(True, (np.diff(offers) != 0) | (np.diff(counts) != 0))[: len(order)]
    is_fastest = np.zeros(len(is_able), dtype=bool)
    is_fastest[order[is_first]] = True
    return is_fastest


def _chosen(among: PlanResult) -> PlanResult:
    """The same with probabilities and choice by its goal."""
    columns = among.columns
    keeps = np.where(np.isfinite(columns["hours"]), _keeps(columns, among.goal), 0.0)
    reached = 1.0 if among.effort.reached is None else among.effort.reached
    told = replace(among, columns={**columns, "probability": reached * keeps})
    return replace(told, chosen=told.best())


def _keeps(columns: Mapping[str, np.ndarray], goal: Goal) -> np.ndarray:
    """Probability of keeping deadline and budget, if the target is reached: over the price, that of the hours."""
    keeps = np.zeros(len(columns["hours"]))
    deadline_h = math.inf if goal.deadline_s is None else goal.deadline_s / 3600
    for node, weight in zip(_NODES, _WEIGHTS, strict=True) if goal.budget_usd is not None else ((0.0, 1.0),):
        limit = np.full(len(keeps), deadline_h)
        with np.errstate(divide="ignore", invalid="ignore"):
            if goal.budget_usd is not None:
                price = columns["price_usd_per_hour"] * np.exp(node * columns["sigma_price"])
                paid = np.maximum(goal.budget_usd - columns["moving_usd"], 0.0) / price
                step = np.maximum(columns["billing_h"], 1e-9)
                whole = np.floor(paid / step + 1e-9) * step
                limit = np.minimum(limit, np.where(whole >= columns["minimum_h"], whole, 0.0))
            z = (np.log(limit) - np.log(columns["hours"])) / np.maximum(columns["sigma_hours"], 1e-12)
        keeps += weight * normal_probability(z)
    return keeps


@dataclass(frozen=True)
class Change:
    """What would change the choice: `what` at `value` (hours, dollars, or times as many steps), and the row taken then."""

    what: Literal["deadline", "budget", "steps"]
    value: float
    row: int | None


def changes(choices: PlanResult) -> list[Change]:
    """The tighter deadline and budget at which another setting is chosen, the looser deadline, and how many times as many
    steps the choice bears."""
    if choices.chosen is None:
        return []
    rows = np.flatnonzero(choices.is_candidate)  # nothing else is ever chosen, and they are few
    found = _changes(choices.of_rows(rows))
    return [one if one.row is None else replace(one, row=int(rows[one.row])) for one in found]


def _changes(choices: PlanResult) -> list[Change]:
    goal, row = choices.goal, choices.chosen
    found = []
    hours, dollars = (float(choices.quantile(name)[row]) for name in ("hours", "dollars"))
    tighter = choices.under(replace(goal, deadline_s=3600 * hours * (1 - 1e-9)))
    found.append(Change("deadline", hours, tighter.chosen))
    if goal.deadline_s is not None:
        looser = choices.under(replace(goal, deadline_s=None, budget_usd=None)).chosen
        if looser is not None and looser != row:
            found.append(Change("deadline", float(choices.quantile("hours")[looser]), looser))
    # A bill in whole steps is the same for a little less, so the budget is lowered by hundredths, down to a cent.
    most = max(0, math.ceil(math.log(dollars / 0.01) / -math.log(0.99)))

    def under_less(k: int) -> PlanResult:
        return choices.under(replace(goal, budget_usd=dollars * 0.99**k * (1 - 1e-9)))

    lowered = bisect.bisect_left(range(most + 1), True, key=lambda k: under_less(k).chosen != row)
    if lowered <= most:
        dollars, cheaper = dollars * 0.99**lowered, under_less(lowered)
        found.append(Change("budget", dollars, cheaper.chosen))
    limits = [limit / least for limit, least in (
        (None if goal.deadline_s is None else goal.deadline_s / 3600, hours), (goal.budget_usd, dollars),
    ) if limit is not None]  # fmt: skip
    if limits:
        found.append(Change("steps", min(limits), None))
    return found


def missing(choices: PlanResult) -> dict[str, float | None]:
    """Where no setting keeps the goal: the least deadline in hours within the budget, and the least budget in dollars within
    the deadline, with its confidence; None where no such setting is."""
    hours, dollars = (np.where(choices.is_candidate, choices.quantile(name), math.inf) for name in ("hours", "dollars"))
    goal = choices.goal
    within_budget = dollars <= (math.inf if goal.budget_usd is None else goal.budget_usd)
    in_time = hours <= (math.inf if goal.deadline_s is None else goal.deadline_s / 3600)
    least = {
        "deadline_h": hours[within_budget].min(initial=math.inf),
        "budget_usd": dollars[in_time].min(initial=math.inf),
    }
    return {name: float(value) if math.isfinite(value) else None for name, value in least.items()}

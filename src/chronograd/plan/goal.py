"""Goals: the setting that reaches a target in time and within budget, its probability, and limits that change the choice.

    hours   = start-up + steps to the target · step time / 3600    steps by batch: (1 + noise scale / batch), predict.batch_size
    dollars = billed hours · price per hour of whole instances + moving data and checkpoints

The time of the steps is log-normal. Its variance is the sum of three: of log(step time), of log(epochs to the target), and of
the unknown part of the noise scale. Dollars add the variance of an ageing price. Start-up and the cost of moving data have no
uncertainty. A setting meets deadline and budget if its steps end before both limits, averaged over the possible prices.
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

# Gauss-Hermite nodes and weights, to average over an uncertain price.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
# Deviation of log(epochs to a target) between seeds of one job: 3 to 12 % in the studies of this project.
SEED_SIGMA = 0.1
# Every plan assumes some input, such as the start-up time of a machine, so no answer claims a higher probability.
MAX_PROBABLE = 0.95
# Multiples of the job's batch, used if no noise scale was measured: published ones on CIFAR-10 and ImageNet lie in this range.
ASSUMED_NOISE = (2.0, 8.0, 32.0)


@dataclass(frozen=True)
class SamplesToTarget:
    """The training needed for a target.

    Attributes:
        samples: training samples to the target at batch `reference_batch`.
        sigma_log: standard deviation of log(samples).
        reached: probability that the target is reached at all; None if unknown.
        noise_scale: gradient noise scale in samples, with an 80 % interval.
        largest_batch: largest batch with which published runs reached the target without extra samples. Beyond it we ignore the
            noise scale: the samples stay the same at best, and grow in proportion to the batch at worst.
        target: the accuracy to reach; None if not stated.
        others: other published recipes that reach it, least work first.
        beyond: parts of the recipe that a job cannot state. A run without them may end lower, so `reached` is then an upper
            bound.
        source: source of the number of samples.
        note: a caveat for the reader, or "".
    """

    samples: float
    reference_batch: int
    sigma_log: float = SEED_SIGMA
    reached: float | None = 1.0
    noise_scale: tuple[float, float, float] = (math.nan, math.nan, math.nan)
    source: str = "stated"
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
        """Return the steps to the target at a global batch, and the standard deviation of their logarithm."""
        if self.largest_batch is not None:
            beyond = np.maximum(np.log(np.asarray(batch) / self.largest_batch), 0.0)
            sigma = np.hypot(self.sigma_log, beyond / (2 * Z80))
            return self.samples / np.asarray(batch) * np.exp(beyond / 2), sigma
        least, middle, most = (steps_factor(batch, self.reference_batch, scale) for scale in self.noise_scale)
        of_noise = np.abs(np.log(most / least)) / (2 * Z80)
        return self.samples / self.reference_batch * middle, np.hypot(self.sigma_log, of_noise)


@dataclass(frozen=True)
class Goal:
    """A goal.

    Attributes:
        budget_usd, deadline_s: None if not stated.
        confidence: required probability of meeting the goal.
    """

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
        """Return whether the goal has only a budget. We then look for the fastest option, else for the cheapest."""
        return self.deadline_s is None and self.budget_usd is not None


@dataclass(frozen=True, eq=False)
class PlanResult:
    """Settings by offer with their time and cost, as arrays with one row each.

    Attributes:
        columns: those of `renting.rent`, and `steps`, `hours`, `dollars` (medians), `train_hours` (without start-up),
            `sigma_hours`, `sigma_dollars`, `probability` (of meeting the goal).
        offers: the list that `columns["offer"]` indexes.
        without_host: devices for which no price includes the host.
        is_candidate: fits in memory, has a price that is no outlier, and is the fastest way to run its offer.
        chosen: row of the choice; None if no setting meets the goal with its confidence.
    """

    columns: Mapping[str, np.ndarray]
    offers: Sequence[Price]
    without_host: Sequence[str]
    is_candidate: np.ndarray
    goal: Goal
    effort: SamplesToTarget
    chosen: int | None = None

    def at(self, name: str, z: float) -> np.ndarray:
        """Return hours or dollars of every row, `z` standard deviations of their logarithm above the median."""
        columns = self.columns
        of_hours = columns["sigma_hours"]
        if name == "hours":
            return np.asarray(columns["hours"] * np.exp(z * of_hours))
        whole = np.maximum(columns["sigma_dollars"], 1e-12)
        paid = billed(columns["hours"] * np.exp(z * of_hours**2 / whole), columns)
        price = columns["price_usd_per_hour"] * np.exp(z * columns["sigma_price"] ** 2 / whole)
        return np.asarray(columns["moving_usd"] + price * paid)

    def interval(self, name: str, row: int) -> tuple[float, float]:
        """Return the 80 % interval of `hours` or `dollars`."""
        return float(self.at(name, -Z80)[row]), float(self.at(name, Z80)[row])

    def quantile(self, name: str) -> np.ndarray:
        """Return the hours or dollars that suffice with the goal's confidence, per row; infinite if reaching the target is too
        unlikely.
        """
        asked = self.goal.confidence / max(1.0 if self.effort.reached is None else self.effort.reached, 1e-12)
        if asked >= 1:
            return np.full(len(self.columns[name]), math.inf)
        return self.at(name, float(normal_quantile(asked)))

    def pareto_front(self) -> list[int]:
        """Return the rows that no other row beats in both time and cost, the fastest first."""
        rows = np.flatnonzero(self.is_candidate)
        order = rows[np.lexsort((self.columns["dollars"][rows], self.columns["hours"][rows]))]
        costs = self.columns["dollars"][order]
        before = np.concatenate([[math.inf], np.minimum.accumulate(costs)[:-1]])
        return [int(row) for row in order[costs < before * (1 - 1e-9)]]  # ignore differences from rounding

    def most_probable(self, among: np.ndarray | None = None) -> int | None:
        """Return the candidate most likely to meet the goal; on a tie the fastest, then the cheapest. `among` selects rows."""
        rows = np.flatnonzero(self.is_candidate if among is None else self.is_candidate & among)
        hours, dollars, probability = (self.columns[name][rows] for name in ("hours", "dollars", "probability"))
        return int(rows[np.lexsort((dollars, hours, -probability))[0]]) if len(rows) else None

    def _keepers(self, among: np.ndarray | None = None) -> np.ndarray:
        """Return the candidates that meet the goal with its confidence. `among` selects rows."""
        is_kept = self.is_candidate & (self.columns["probability"] >= self.goal.confidence)
        return np.flatnonzero(is_kept if among is None else is_kept & among)

    def fastest(self, among: np.ndarray | None = None) -> int | None:
        """Return the fastest option that meets the goal, or None.

        Options tie if each time lies in the other's 80 % interval; the cheapest of them wins.
        """
        rows = self._keepers(among)
        if not len(rows):
            return None
        hours = self.columns["hours"][rows]
        first = int(np.argmin(hours))
        low, high = self.at("hours", -Z80)[rows], self.at("hours", Z80)[rows]
        return self._least(rows[(hours <= high[first]) & (low <= hours[first])])

    def cheapest(self, among: np.ndarray | None = None) -> int | None:
        """Return the cheapest option that meets the goal, or None."""
        return self._least(self._keepers(among))

    def balanced(self) -> int | None:
        """Return the option with the least product of hours and dollars, among those that meet the goal and cost at most as
        much as `fastest`.
        """
        rows, first = self._keepers(), self.fastest()
        if first is not None:
            rows = rows[self.columns["dollars"][rows] <= self.columns["dollars"][first]]
        product = self.columns["hours"][rows] * self.columns["dollars"][rows]
        return int(rows[np.argmin(product)]) if len(rows) else None

    def _least(self, rows: np.ndarray) -> int | None:
        """Return the cheapest of some rows; on a tie the fastest."""
        with np.errstate(divide="ignore"):
            alike = np.round(np.log(self.columns["dollars"][rows]), 9)  # ignore differences from rounding
        return int(rows[np.lexsort((self.columns["hours"][rows], alike))[0]]) if len(rows) else None

    def best(self, among: np.ndarray | None = None) -> int | None:
        """Return the row to recommend: the cheapest that meets the goal, or the fastest if there is only a budget. `among`
        selects rows.
        """
        return self.fastest(among) if self.goal.is_for_speed else self.cheapest(among)

    @property
    def taken(self) -> int | None:
        """Return the chosen setting, else the one most likely to meet the goal."""
        return self.most_probable() if self.chosen is None else self.chosen

    def of_rows(self, rows: np.ndarray) -> PlanResult:
        """Return the result with these rows only; they must include the chosen one."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        chosen = None if self.chosen is None else int(np.flatnonzero(rows == self.chosen)[0])
        return replace(self, columns=columns, is_candidate=self.is_candidate[rows], chosen=chosen)

    def under(self, goal: Goal) -> PlanResult:
        """Return the same settings under another goal."""
        return _chosen(replace(self, goal=goal))


def choose(rented: Rented, effort: SamplesToTarget, goal: Goal, spot: Spot = USUAL_SPOT) -> PlanResult:
    """Choose one of the settings with their offers.

    With only a budget, choose the fastest setting that meets the goal with its confidence; else the cheapest. Leaves out:
    evaluation, storage and traffic between zones.

    Args:
        spot: interruptions of spot instances.
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
    """Return a mask of the fastest setting for each offer and count; if several wait for the same input, of the one with the
    fastest step.

    The same hardware can run every setting, so a slower one has no advantage even if its prediction is more certain.
    """
    rows = np.flatnonzero(is_able)
    order = rows[np.lexsort([columns[name][rows] for name in ("own_step_s", "hours", "count", "offer")])]
    offers, counts = columns["offer"][order], columns["count"][order]
    is_first = np.append(True, (np.diff(offers) != 0) | (np.diff(counts) != 0))[: len(order)]
    is_fastest = np.zeros(len(is_able), dtype=bool)
    is_fastest[order[is_first]] = True
    return is_fastest


def _chosen(among: PlanResult) -> PlanResult:
    """Return the result with probabilities and a choice for its goal."""
    columns = among.columns
    keeps = np.where(np.isfinite(columns["hours"]), _keeps(columns, among.goal), 0.0)
    reached = 1.0 if among.effort.reached is None else among.effort.reached
    updated = replace(among, columns={**columns, "probability": reached * keeps})
    return replace(updated, chosen=updated.best())


def hours_within(columns: Mapping[str, np.ndarray], goal: Goal, price: np.ndarray) -> np.ndarray:
    """Return the hours of rent that deadline and budget allow at a price per hour; infinite without limits."""
    limit = np.full(len(price), math.inf if goal.deadline_s is None else goal.deadline_s / 3600)
    if goal.budget_usd is None:
        return limit
    with np.errstate(divide="ignore", invalid="ignore"):
        paid = np.maximum(goal.budget_usd - columns["moving_usd"], 0.0) / price
        step = np.maximum(columns["billing_h"], 1e-9)
        whole = np.floor(paid / step + 1e-9) * step
        return np.asarray(np.minimum(limit, np.where(whole >= columns["minimum_h"], whole, 0.0)))


def _keeps(columns: Mapping[str, np.ndarray], goal: Goal) -> np.ndarray:
    """Return the probability of meeting deadline and budget if the target is reached, averaged over the price."""
    keeps = np.zeros(len(columns["hours"]))
    for node, weight in zip(_NODES, _WEIGHTS, strict=True) if goal.budget_usd is not None else ((0.0, 1.0),):
        limit = hours_within(columns, goal, columns["price_usd_per_hour"] * np.exp(node * columns["sigma_price"]))
        with np.errstate(divide="ignore", invalid="ignore"):
            z = (np.log(limit) - np.log(columns["hours"])) / np.maximum(columns["sigma_hours"], 1e-12)
        keeps += weight * normal_probability(z)
    return keeps


@dataclass(frozen=True)
class Change:
    """A change of the choice: `what` at `value` (hours, dollars, or a multiple of the steps), and the row chosen then."""

    what: Literal["deadline", "budget", "steps"]
    value: float
    row: int | None


def changes(choices: PlanResult) -> list[Change]:
    """Return the limits that would change the choice: a tighter deadline, a tighter budget, a looser deadline, and a multiple
    of the steps.
    """
    if choices.chosen is None:
        return []
    rows = np.flatnonzero(choices.is_candidate)  # only these few rows can be chosen
    listed = _changes(choices.of_rows(rows))
    return [one if one.row is None else replace(one, row=int(rows[one.row])) for one in listed]


def _changes(choices: PlanResult) -> list[Change]:
    goal, row = choices.goal, choices.chosen
    listed = []
    hours, dollars = (float(choices.quantile(name)[row]) for name in ("hours", "dollars"))
    tighter = choices.under(replace(goal, deadline_s=3600 * hours * (1 - 1e-9)))
    listed.append(Change("deadline", hours, tighter.chosen))
    if goal.deadline_s is not None:
        looser = choices.under(replace(goal, deadline_s=None, budget_usd=None)).chosen
        if looser is not None and looser != row:
            listed.append(Change("deadline", float(choices.quantile("hours")[looser]), looser))
    # Bills come in whole steps, so a slightly smaller budget changes nothing: lower it by 1 % at a time, down to one cent.
    most = max(0, math.ceil(math.log(dollars / 0.01) / -math.log(0.99)))

    def under_less(k: int) -> PlanResult:
        return choices.under(replace(goal, budget_usd=dollars * 0.99**k * (1 - 1e-9)))

    lowered = bisect.bisect_left(range(most + 1), True, key=lambda k: under_less(k).chosen != row)
    if lowered <= most:
        dollars, cheaper = dollars * 0.99**lowered, under_less(lowered)
        listed.append(Change("budget", dollars, cheaper.chosen))
    limits = [limit / least for limit, least in (
        (None if goal.deadline_s is None else goal.deadline_s / 3600, hours), (goal.budget_usd, dollars),
    ) if limit is not None]  # fmt: skip
    if limits:
        listed.append(Change("steps", min(limits), None))
    return listed


def missing(choices: PlanResult) -> dict[str, float | None]:
    """Return the least deadline (hours, within the budget) and the least budget (dollars, within the deadline) that an option
    meets.

    Each is None if no option meets the goal with its confidence.
    """
    hours, dollars = (np.where(choices.is_candidate, choices.quantile(name), math.inf) for name in ("hours", "dollars"))
    goal = choices.goal
    within_budget = dollars <= (math.inf if goal.budget_usd is None else goal.budget_usd)
    in_time = hours <= (math.inf if goal.deadline_s is None else goal.deadline_s / 3600)
    least = {
        "deadline_h": hours[within_budget].min(initial=math.inf),
        "budget_usd": dollars[in_time].min(initial=math.inf),
    }
    return {name: float(value) if math.isfinite(value) else None for name, value in least.items()}

"""Runs of a large model on rented devices: the fastest layout of each number of devices, with the offers to rent them.

    hours   = start-up + steps · step time, on spot nodes with interruptions and checkpoints (chronograd.plan.renting)
    dollars = billed hours · price per hour of whole instances

The global batch is the same for all numbers of devices, so they train the same model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device
from chronograd.large.layout_asking import AskedLayouts
from chronograd.large.search import LayoutOption, searched
from chronograd.large.states import checkpoint_bytes
from chronograd.large.step import step_of
from chronograd.large.tokens import TrainingTokens
from chronograd.plan.goal import Goal, PlanResult, SamplesToTarget, choose, hours_within
from chronograd.plan.renting import RentalTerms, Spot, billed, rent

# Reference for plans without a number of tokens. Time and tokens are in proportion, so its size does not matter.
_ANY_TOKENS = 1e9


@dataclass(frozen=True)
class CandidateRun:
    """The fastest layout of a number of devices that fits.

    Attributes:
        command: it predicts the layout. assumed: values that the user did not state, in words.
        sigma_log: standard deviation of the error of log(step time).
    """

    option: LayoutOption
    command: str
    assumed: tuple[str, ...]
    sigma_log: float
    notes: tuple[str, ...]

    @property
    def device(self) -> str:
        return self.option.setting.job.cluster.device

    @property
    def count(self) -> int:
        return self.option.setting.ranks

    @property
    def tokens_per_s(self) -> float:
        return self.option.setting.step_tokens / self.option.step_s


@dataclass(frozen=True, eq=False)
class LargeRuns:
    """Runs with their offers.

    Attributes:
        refused: numbers of devices without a layout that fits, with the reason.
        choices: rows of runs and offers; `choices.columns["setting"]` indexes `runs`.
        spot: interruptions of spot nodes, with the size of a checkpoint.
        tokens: of the training; None if the limits decide.
    """

    runs: Sequence[CandidateRun]
    refused: Mapping[str, str]
    choices: PlanResult
    spot: Spot
    tokens: TrainingTokens | None

    def run(self, row: int) -> CandidateRun:
        return self.runs[int(self.choices.columns["setting"][row])]


def timed_runs(asked: Sequence[AskedLayouts]) -> tuple[list[CandidateRun], dict[str, str]]:
    """Return the fastest layout on each place, and the places where none fits, with the reason.

    Raises: InputError if no layout fits anywhere.
    """
    runs, refused = [], {}
    for one in asked:
        try:
            option = searched(one.setting, one.fixed).best
        except InputError as error:
            refused[place_of(one)] = str(error).partition("\n")[0]
            continue
        step = step_of(option.setting)
        runs.append(CandidateRun(option, one.command(option.setting), one.assumed, step.sigma_log, tuple(step.notes)))
    if not runs:
        raise InputError("; ".join(f"{place}: {why}" for place, why in refused.items()), "give larger --counts")
    return runs, refused


def place_of(asked: AskedLayouts) -> str:
    """Return devices and their number, such as `8xh100`."""
    cluster = asked.setting.job.cluster
    return f"{cluster.count}x{cluster.device}"


def large_runs(
    asked: Sequence[AskedLayouts], tokens: TrainingTokens | None, goal: Goal, terms: RentalTerms
) -> LargeRuns:
    """Return the runs of a training on each place and offer, and the choice for a goal.

    Args:
        asked: of one model and one global batch.
        tokens: without them, a run lasts as long as budget and deadline allow, and the choice has the most tokens.
    Raises: InputError if no layout fits.
    """
    runs, refused = timed_runs(asked)
    first = runs[0].option.setting
    spot = replace(terms.spot, checkpoint_bytes=checkpoint_bytes(first))
    devices = [catalog.device(name) for name in dict.fromkeys(run.device for run in runs)]
    rented = rent(_columns(runs, devices), devices, first.job, terms)
    length = tokens or TrainingTokens(_ANY_TOKENS)
    effort = SamplesToTarget(
        length.tokens / first.sequence,
        first.training.batch,
        length.sigma_log,
        length.reached,
        source=length.source,
        largest_batch=first.training.batch,
    )
    choices = choose(rented, effort, goal if tokens else Goal(confidence=goal.confidence), spot)
    return LargeRuns(runs, refused, choices if tokens else _within(choices, goal), spot, tokens)


def _columns(runs: Sequence[CandidateRun], devices: Sequence[Device]) -> dict[str, np.ndarray]:
    """Return the columns of `settings.evaluate` that offers and goals need."""
    names = [device.name for device in devices]
    rows = [
        {
            "device": names.index(run.device),
            "count": run.count,
            "batch_per_rank": run.option.setting.training.batch / run.count,
            "step_time_s": run.option.step_s,
            "sigma_log": run.sigma_log,
            "fits": True,
        }
        for run in runs
    ]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _within(choices: PlanResult, goal: Goal) -> PlanResult:
    """Return runs that last as long as the limits allow. Their `tokens` follow; the choice has the most.

    The columns `hours` and `dollars` are then those of the rented time, and `sigma_tokens` is the deviation of log(tokens).
    """
    columns = dict(choices.columns)
    price = columns["price_usd_per_hour"]
    hours = hours_within(columns, goal, price)
    columns["sigma_tokens"] = np.hypot(columns["sigma_log"], columns["sigma_price"] * (goal.budget_usd is not None))
    share = np.maximum(hours - columns["startup_h"], 0.0) / columns["train_hours"]
    columns["tokens"], columns["steps"] = _ANY_TOKENS * share, columns["steps"] * share
    columns["hours"], columns["dollars"] = hours, billed(hours, columns) * price
    is_candidate = choices.is_candidate & (share > 0)
    rows = np.flatnonzero(is_candidate)
    order = np.lexsort((columns["hours"][rows], -columns["tokens"][rows]))
    chosen = int(rows[order[0]]) if len(rows) else None
    return replace(choices, columns=columns, is_candidate=is_candidate, goal=goal, chosen=chosen)

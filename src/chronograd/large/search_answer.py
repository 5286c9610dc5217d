"""The answer of `plan --layouts`: the chosen layout with its command, the front of time and memory, and the rule of thumb."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chronograd.answer import Answer, Column, Section, Table
from chronograd.figure import Figure, Lines, Series
from chronograd.hardware import catalog
from chronograd.large.layout_asking import AskedLayouts
from chronograd.large.layouts import Expressible
from chronograd.large.search import FIT, SLOWEST, LayoutOption, LayoutSearch, searched
from chronograd.units import GIB, chance, memory, percent, seconds, whole_percent
from chronograd.words import how_many, listed

_MOST_ROWS = 12


@dataclass(frozen=True)
class LayoutPlan:
    """The result of a search over layouts, with what was assumed and the command that predicts the chosen layout."""

    assumed: tuple[str, ...]
    command: str
    search: LayoutSearch


def plan_layouts(asked: AskedLayouts, expressible: Expressible | None = None) -> Answer[LayoutPlan]:
    """Return the layout with the shortest step that fits, among those that are expressible. Raises InputError if none does."""
    search = searched(asked.setting, asked.fixed, expressible)
    plan = LayoutPlan(asked.assumed, asked.command(search.best.setting), search)
    setting = asked.setting
    device = catalog.device(setting.job.cluster.device)
    size = f"{how_many(setting.training.batch, 'sequences')} of {how_many(setting.sequence, 'tokens')}"
    return Answer(
        f"Layout of {setting.job.network.name} on {setting.ranks} × {device.title}",
        f"{size} per step",
        sections=[_chosen(plan), _front(search), _others(search)],
        notes=[
            f"Layouts that do not fit with at least {whole_percent(FIT)}, and those that no other result needs, were not timed.",
            "Left out: ZeRO 2, other schedules, and unequal stages of interleaved layouts.",
        ],
        result=plan,
    )


def in_words(option: LayoutOption) -> str:
    """Return a layout in words, without degrees of 1."""
    one, layout = option.setting, option.setting.layout
    degrees = {"data": one.data, "tensor": layout.tensor, "pipeline": layout.pipeline, "chunks": layout.chunks,
               "context": layout.context, "expert": layout.expert}  # fmt: skip
    found = [f"{name} {value}" for name, value in degrees.items() if value > 1]
    found += ["without sequence parallelism"] if not layout.sequence else []
    found += [f"ZeRO {one.training.zero_stage}"] if one.training.zero_stage else []
    recompute = one.options.recompute
    found += [f"{recompute} recomputation"] if recompute != "none" else []
    return ", ".join([*found, f"micro-batch {one.micro_batch}"])


def _chosen(plan: LayoutPlan) -> Section:
    best, search = plan.search.best, plan.search
    fits = f"{memory(best.used_bytes)} per device, which fits with {chance(best.fit)}"
    lines = [f"Assumed, because you did not state it: {'; '.join(plan.assumed)}."] if plan.assumed else []
    lines += [
        f"Its prediction: {plan.command}",
        f"{search.legal:,} layouts are legal, {search.fitting:,} fit, and {search.timed:,} were timed.",
    ]
    return Section("Chosen layout", f"{in_words(best)}: {seconds(best.step_s)} per step and {fits}.", lines=lines)


def _columns() -> list[Column]:
    def of(name: str) -> Any:
        return lambda option: option.degrees[name]

    names = ("data", "tensor", "pipeline", "chunks", "context", "expert")
    return [
        Column("step", "step_s", "s"),
        Column("memory", "used_bytes", "B"),
        *(Column(name, of(name), format="d") for name in names),
        Column("micro-batch", of("micro_batch"), format="d"),
        Column("ZeRO", of("zero_stage"), format="d"),
        Column("recompute", of("recompute")),
        Column("sequence", lambda option: "yes" if option.degrees["sequence"] else "no"),
    ]


def _front(search: LayoutSearch) -> Section:
    least = search.front[-1]
    series = Series(
        "front",
        "predicted",
        [one.used_bytes / GIB for one in search.front],
        [one.step_s for one in search.front],
        is_joined=True,
    )
    return Section(
        "Front of time and memory",
        f"{how_many(len(search.front), 'layouts')} up to {SLOWEST:g} times the shortest step, each with the least memory for its "
        f"time; the smallest one needs {memory(least.used_bytes)} and {seconds(least.step_s)}.",
        table=Table.of(search.front, _columns(), drop=("sequence", "expert", "chunks", "context"), most=_MOST_ROWS),
        figure=Figure([Lines("GiB", "s", [series])]),
    )


def _others(search: LayoutSearch) -> Section:
    best, others = search.best, {"rule of thumb": search.rule, "runner-up": search.runner_up}
    rows = [(name, option) for name, option in others.items() if option is not None]
    gain = search.rule.step_s / best.step_s - 1
    sure = [
        f"than the {name} with {chance(best.better_than(option))}"
        for name, option in rows
        if option.degrees != best.degrees
    ]
    columns = (
        Column("layout", lambda row: row[0]),
        Column("step", lambda row: row[1].step_s, "s"),
        Column("memory", lambda row: row[1].used_bytes, "B"),
        Column("the chosen one is faster with", lambda row: chance(best.better_than(row[1])), format=str),
        Column("degrees", lambda row: in_words(row[1])),
    )
    takeaway = (
        f"The rule of thumb takes {percent(gain)} longer: the most data parallelism that fits, then the largest micro-batch."
        if gain > 0
        else "The rule of thumb chooses the same layout, or one as fast: the most data parallelism that fits, then the largest micro-batch."
    )
    lines = [f"The chosen layout is faster {listed(sure)}."] if sure else []
    return Section("Alternatives", takeaway, lines=lines, table=Table.of(rows, columns, drop=("memory",)))

"""The answers of `compare`: two records next to each other, or a regression gate on the change between runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chronograd.answer import Answer, Column, Section, Table, as_json
from chronograd.compare import gate
from chronograd.record import STEP_PARTS, QuantityDifference, Record, subtract
from chronograd.units import quantity
from chronograd.words import quantity_name

# Names in a table of two records; other names are those of QUANTITIES.
_SHORT = {
    **STEP_PARTS,
    "communication_overlapped_s": "hidden communication",
    "straggler_wait_s": "waiting for the slowest rank",
    "input_stall_s": "waiting for input",
    "throughput_samples_per_s": "throughput",
    "achieved_flops_per_s": "achieved FLOP/s per rank",
    "mfu": "MFU",
    "ppp": "PALEO's percent of peak",
    "wall_time_s": "wall time",
}
HEADER = {"kind", "title", "created", "cluster", "backend", "versions"}


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`: two records, and all their quantities."""

    a: Record
    b: Record
    quantities: list[QuantityDifference]

    def as_data(self) -> dict[str, Any]:
        return {**vars(self), "a": _header(self.a), "b": _header(self.b)}


@dataclass(frozen=True)
class GateOutcome:
    """The result of `compare --fail-if`: the records of both sides, and the verdict on each condition.

    `undecided` is the number of inconclusive conditions.
    """

    a: list[Record]
    b: list[Record]
    conditions: list[gate.ConditionOutcome]
    notes: list[str]
    failed: bool
    undecided: int

    def as_data(self) -> dict[str, Any]:
        return {**vars(self), "a": list(map(_header, self.a)), "b": list(map(_header, self.b))}


def compare(a: Record, b: Record) -> Answer[Comparison]:
    """Compare the quantities of two records: difference, ratio, and whether their intervals overlap.

    The text names quantities that only one record has; the data has all of them, with the reason.
    """
    differences = subtract(a, b)
    shared = [d for d in differences if d.a.value is not None and d.b.value is not None]
    section = Section(
        title=f"A: {a.title} ({a.kind}, {a.created[:10]}); B: {b.title} ({b.kind}, {b.created[:10]})",
        takeaway=_takeaway(differences),
        table=Table.of(
            shared,
            _QUANTITY,
            ("intervals: whether the 80 % intervals of A and B overlap; a figure without one counts as its value",),
            drop=("B − A", "B / A"),  # A and B already show these; no other column shows whether intervals overlap
        ),
        lines=[*_stalls("A", a), *_stalls("B", b), *_only_in_one(differences)],
        data=[{"quantity": d.name, "a": d.a.value, "b": d.b.value, "ratio": d.ratio} for d in differences],
    )
    result = Comparison(a, b, differences)
    return Answer("Two records side by side", sections=[section], records={"A": a, "B": b}, result=result)


def judge(
    baseline: Sequence[Record],
    runs: Sequence[Record],
    conditions: Sequence[str],
    is_strict: bool = False,
    others: Sequence[Sequence[Record]] = (),
    is_paired: bool = False,
) -> Answer[GateOutcome]:
    """Apply a regression gate: check each condition, such as `step_time > 5%`, on the change of runs from a baseline.

    Args:
        baseline, runs: one or more records each; more runs make the intervals narrower.
        is_strict: whether an inconclusive condition fails as well.
        others: more runs of the same jobs, in groups, which show the spread between runs; see `joining.runs_beside`.
        is_paired: the runs at the same position of both sides belong to one round.
    Raises: InputError for a condition that cannot be read, or on a quantity that no record has.
    """
    known = sorted({name for record in (*baseline, *runs) for name in record.quantities})
    read = [gate.read_condition(text, known) for text in conditions]
    outcomes = [gate.judge(condition, baseline, runs, others, is_paired) for condition in read]
    failing = ("fails", "cannot tell") if is_strict else ("fails",)
    num_failed = sum(outcome.verdict in failing for outcome in outcomes)
    notes = [condition.warning for condition in read if condition.warning]
    notes += [f"A and B differ in {words}" for words in gate.differences_of_setting(baseline[0], runs[0])]
    notes += [
        note for name, side in (("A", baseline), ("B", runs)) for record in side for note in _stalls(name, record)
    ]
    section = Section(
        title="Regression gate",
        takeaway=_verdict(outcomes, num_failed),
        lines=[outcome.line() for outcome in outcomes],
        data=as_json(outcomes),
    )
    undecided = sum(outcome.verdict == "cannot tell" for outcome in outcomes)
    result = GateOutcome(list(baseline), list(runs), outcomes, notes, num_failed > 0, undecided)
    return Answer("Regression gate", sections=[section], notes=notes, exit_status=int(num_failed > 0), result=result)


def _verdict(outcomes: Sequence[gate.ConditionOutcome], num_failed: int) -> str:
    """State how many conditions fail, and how many are inconclusive."""
    undecided = sum(outcome.verdict == "cannot tell" for outcome in outcomes)
    told = f"{num_failed} of {len(outcomes)} conditions fail." if num_failed else "No condition fails."
    return f"{told} Inconclusive: {undecided} of {len(outcomes)}; these runs are too noisy." if undecided else told


def _stalls(name: str, record: Record) -> list[str]:
    """Return a sentence on the stalls of a record, which its step time leaves out, if there are any."""
    lost = record["stall_s"]
    return [] if not lost.value else [f"{name} stalled for {quantity(lost.value, 's')}, {lost.source}"]


def _takeaway(differences: Sequence[QuantityDifference]) -> str:
    """Return the ratio of the step times, and the number of quantities whose intervals do not overlap."""
    apart = [d for d in differences if d.intervals_overlap is False]
    told = [d for d in differences if d.intervals_overlap is not None]
    first = next((d for d in differences if d.name == "step_time_s" and d.ratio is not None), None)
    if first is None:
        first = next((d for d in differences if d.ratio is not None), None)
    if first is None or first.ratio is None:
        return "The two records have no quantity in common."
    ratio = f"{quantity_name(first.name)} of B is {first.ratio:.3g} times that of A"
    return f"{ratio[0].upper()}{ratio[1:]}; {len(apart)} of {len(told)} quantities differ beyond their intervals."


def _header(record: Record) -> dict[str, Any]:
    return record.model_dump(mode="json", include=HEADER)


def _only_in_one(differences: Sequence[QuantityDifference]) -> list[str]:
    """Return lines with the names of quantities that only one record has."""
    lines = []
    for name, has, lacks in (("A", "a", "b"), ("B", "b", "a")):
        names = [_name(d) for d in differences if getattr(d, has).value is not None and getattr(d, lacks).value is None]
        if names:
            lines.append(f"only in {name}: {', '.join(names)}")
    return lines


def _name(d: QuantityDifference) -> str:
    return _SHORT.get(d.name, quantity_name(d.name))


def _signed(value: float | None, unit: str) -> str:
    """Return a difference with its sign.

    >>> _signed(-2060.0, "sample/s"), _signed(0.01, "s"), _signed(0.0, "s")
    ('−2,060 samples/s', '+10 ms', '0 s')
    """
    if not value:
        return quantity(value, unit)
    return f"{'−' if value < 0 else '+'}{quantity(abs(value), unit)}"


_QUANTITY = (
    Column("quantity", _name),
    Column("A", lambda d: quantity(d.a.value, d.unit), format=str),
    Column("B", lambda d: quantity(d.b.value, d.unit), format=str),
    Column("B − A", lambda d: _signed(d.difference, d.unit), format=str),
    Column("B / A", "ratio", format=".3f"),
    Column(
        "intervals", lambda d: None if d.intervals_overlap is None else "overlap" if d.intervals_overlap else "apart"
    ),
)

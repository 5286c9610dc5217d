"""`chronograd compare A B`: two records side by side, or a gate on what changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chronograd.cli.common import json_option, print_json, print_table

if TYPE_CHECKING:
    from chronograd.record import Difference, Record


@click.command("compare")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--fail-if", "conditions", multiple=True, metavar="CONDITION",
              help="Exit status 1 if B changed like this against A, such as 'step_time > 5%'. May be given again.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Also exit with 1 where a condition is too noisy to tell.")
@json_option
@click.pass_context
def command(context: click.Context, a: str, b: str, conditions: tuple[str, ...], strict: bool, as_json: bool) -> None:
    """Lay two records side by side: run directories or record files, predicted or measured.

    With --fail-if it is a gate: A is the baseline, and each may be several runs, as a folder of them or with commas between.
    A condition fails only if the 95 % interval of the change lies beyond its limit. NAME > LIMIT and NAME < LIMIT take
    per cent of the baseline or a difference: 'step_time > 20 ms', 'throughput < -5%', 'test_accuracy < -1 point'.

    \b
    chronograd compare runs/a runs/b
    chronograd compare runs/main runs/change --fail-if "step_time > 5%" --fail-if "memory_peak > 10%"
    """
    if conditions:
        context.exit(_gate(a, b, conditions, strict, as_json))
    if strict:
        raise click.UsageError("--strict is of --fail-if.")
    _side_by_side(Path(a), Path(b), as_json)


def _gate(a: str, b: str, texts: tuple[str, ...], is_strict: bool, as_json: bool) -> int:
    """Judges every condition. Returns the exit status."""
    from chronograd.compare import gate

    baseline, runs = gate.load_runs(a), gate.load_runs(b)
    known = sorted({name for record in (*baseline, *runs) for name in record.quantities})
    conditions = [gate.read_condition(text, known) for text in texts]
    outcomes = [gate.judge(condition, baseline, runs) for condition in conditions]
    failing = ("fails", "cannot tell") if is_strict else ("fails",)
    is_failed = any(outcome.verdict in failing for outcome in outcomes)
    notes = [condition.warning for condition in conditions if condition.warning]
    notes += [f"A and B differ in {words}" for words in gate.differences_of_setting(baseline[0], runs[0])]
    if as_json:
        print_json(
            {
                "a": [_head(record) for record in baseline],
                "b": [_head(record) for record in runs],
                "conditions": [outcome.to_json() for outcome in outcomes],
                "notes": notes,
                "failed": is_failed,
            }
        )
        return int(is_failed)
    for note in notes:
        click.echo(f"note: {note}", err=True)
    for outcome in outcomes:
        click.echo(outcome.line())
    return int(is_failed)


def _side_by_side(a: Path, b: Path, as_json: bool) -> None:
    from chronograd.record import Record, subtract

    left, right = Record.load(a), Record.load(b)
    differences = subtract(left, right)
    if as_json:
        print_json({"a": _head(left), "b": _head(right), "quantities": [_entry(d) for d in differences]})
        return
    click.echo(f"A: {left.title} ({left.kind}, {left.created})\nB: {right.title} ({right.kind}, {right.created})\n")
    print_table(
        ("quantity", "A", "B", "B − A", "B / A", "intervals"),
        [_row(d) for d in differences],
        right=(1, 2, 3, 4),
        caption="intervals: whether the middle 80 % of A and of B overlap; a figure without one counts as its value",
    )
    for d in differences:
        for name, q in (("A", d.a), ("B", d.b)):
            if q.value is None:
                click.echo(f"{name} has no {d.name}: {q.reason or 'no reason was given'}")


def _head(record: Record) -> dict[str, Any]:
    return record.model_dump(mode="json", include={"kind", "title", "created", "cluster", "backend", "versions"})


def _entry(d: Difference) -> dict[str, Any]:
    return {
        "name": d.name,
        "unit": d.unit,
        "a": d.a.model_dump(mode="json"),
        "b": d.b.model_dump(mode="json"),
        "difference": _difference(d),
        "ratio": d.ratio,
        "intervals_overlap": d.is_within,
    }


def _difference(d: Difference) -> float | None:
    return None if d.a.value is None or d.b.value is None else d.b.value - d.a.value


def _row(d: Difference) -> list[str]:
    from chronograd.record import QUANTITIES
    from chronograd.units import quantity

    return [
        QUANTITIES.get(d.name, (d.name, ""))[0],
        quantity(d.a.value, d.unit),
        quantity(d.b.value, d.unit),
        quantity(_difference(d), d.unit),
        "–" if d.ratio is None else f"{d.ratio:.3f}",
        "–" if d.is_within is None else "overlap" if d.is_within else "apart",
    ]

"""`chronograd compare A B`: two records side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chronograd.cli.common import json_option, print_json, print_table

if TYPE_CHECKING:
    from chronograd.record import Difference, Record


@click.command("compare")
@click.argument("a", metavar="A", type=click.Path(path_type=Path))
@click.argument("b", metavar="B", type=click.Path(path_type=Path))
@json_option
def command(a: Path, b: Path, as_json: bool) -> None:
    """Lay two records side by side: run directories or record files, predicted or measured."""
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

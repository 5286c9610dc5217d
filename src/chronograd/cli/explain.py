"""`chronograd explain RUN...`: why it is not faster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from chronograd.explain.explanation import Explained, Explanation
    from chronograd.explain.wall_times import Account


@click.command(name="explain")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@common.json_option
def command(runs: tuple[Path, ...], as_json: bool) -> None:
    """Why is it not faster? Where each step goes, and the causes of lost time with their evidence.

    RUN is a run directory, ours or one around a loop of your own, a trace of torch.profiler (one file per rank), or a CSV
    file of wall times. Runs of one job on different numbers of ranks are laid side by side.

    \b
    chronograd explain runs/one runs/two
    chronograd explain trace.rank0.json trace.rank1.json
    chronograd explain docs/hpc-report.csv
    """
    from chronograd.explain import wall_times
    from chronograd.explain.explanation import explain

    tables = [path for path in runs if path.suffix == ".csv"]
    if tables and len(runs) > 1:
        raise click.UsageError("A table of wall times is explained by itself.")
    if tables:
        accounts = wall_times.explain(tables[0])
        common.print_json([account.data() for account in accounts]) if as_json else _print_accounts(accounts)
        return
    found = explain(runs)
    common.print_json(found.data()) if as_json else _print(found)


def _print(found: Explanation) -> None:
    from chronograd.explain.ranks import scaling_text
    from chronograd.units import seconds

    for one in found.runs:
        _print_split(one)
    if found.compared:
        common.print_table(
            ("run", "ranks", "time", "speed-up", "samples per second"),
            [
                [row.name, str(row.world), seconds(row.seconds), f"{row.speedup:.2f}",
                 "–" if row.throughput is None else f"{row.throughput:.2f} ×"]
                for row in found.compared
            ],
            right=(1, 2, 3, 4),
            caption="time: of the run from its first step on, or of a step where steps were sampled",
        )  # fmt: skip
        click.echo(f"{scaling_text(found.compared)}\n")
    _print_causes(found.runs[-1])


def _print_split(one: Explained) -> None:
    from chronograd.units import percent, quantity, seconds

    ranks = f"{one.run.world} rank{'s' * (one.run.world > 1)}"
    rows = []
    for name, q, share in one.split.rows():
        between = "" if q.low is None or q.high is None else f"{seconds(q.low)} … {seconds(q.high)}"
        told = f"{between}" if q.value is not None else q.reason
        rows.append([name, quantity(q.value, "s"), "–" if share is None else percent(share, 0), told])
    common.print_table(
        ("part of a step", "time", "share", "middle 80 % of steps"),
        rows,
        title=f"{one.run.name}: {one.run.kind} on {ranks}, {quantity(one.split.step_s.value, 's')} a step "
        f"({one.split.step_s.source})",
        right=(1, 2),
    )
    start = one.split.startup_s
    click.echo(f"start-up {quantity(start.value, 's')}" + (f": {start.reason}" if start.value is None else ""))
    for note in one.run.notes:
        click.echo(f"note: {note}")
    click.echo()


def _print_causes(one: Explained) -> None:
    from chronograd.units import percent

    if not one.causes:
        click.echo(f"No cause of lost time in {one.run.name} that costs a tenth of it or more.\n")
    for number, finding in enumerate(one.causes, start=1):
        cost = "" if finding.cost is None else f" ({percent(finding.cost, 0)} of the time)"
        click.secho(f"{number}. {finding.title}{cost}", bold=True)
        for sentence in finding.evidence:
            click.echo(f"   {sentence}")
        click.echo(f"   to disprove: {finding.experiment}\n")
    absent = [f for f in one.findings if f.verdict == "not found"]
    if absent:
        click.echo("Looked for and not found:")
        for finding in absent:
            shown = f" ({percent(finding.cost, 0)})" if finding.cost else ""
            click.echo(f"   {finding.cause}{shown}: {finding.evidence[0] if finding.evidence else finding.title}")
    unknown = [f for f in one.findings if f.verdict == "not measured"]
    if unknown:
        click.echo("Never measured:")
        for finding in unknown:
            click.echo(f"   {finding.cause}: {finding.title}")


def _print_accounts(accounts: list[Account]) -> None:
    for account in accounts:
        click.secho(account.title, bold=True)
        for name, sentences in account.sections():
            click.echo(f"  {name}:")
            for sentence in sentences:
                click.echo(f"   - {sentence}")
        click.echo()

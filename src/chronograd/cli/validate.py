"""`chronograd validate TABLE.csv --calibrate N --seed S`: fit on a few rows, predict the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chronograd.cli import common
from chronograd.cli.fit import stated_table, table_options

if TYPE_CHECKING:
    from chronograd.fit.tables import Table
    from chronograd.hardware.catalog import Device


@click.command(
    epilog="\b\nchronograd validate throughputs.csv --device rtx3090 --precision amp --phase inference --calibrate 25 --seed 0\n"
    "chronograd validate throughputs.csv --device rtx3090 --precision amp --phase inference --shipped --only resnet,vit\n"
    "chronograd validate new-card.csv --device l4 --precision amp --phase inference --shipped --measured-on rtx3090=old.csv"
)
@table_options
@click.option("--calibrate", type=click.IntRange(min=0), default=25,
              help="Rows to fit to, at least four; 0 for none: the prior alone.")  # fmt: skip
@click.option("--shipped", is_flag=True, help="Nothing is fitted: as `predict` would say it, with what is known of the "
              "device here.")  # fmt: skip
@click.option("--only", metavar="LIST", help="Rows of these networks alone: families such as resnet, or patterns such as "
              "vit_*.")  # fmt: skip
@click.option("--except", "without", metavar="LIST", help="Rows of all networks but these.")
@click.option("--measured-on", metavar="[DEVICE=]TABLE.csv", help="A table of the same networks on another device, or run "
              "otherwise; what each showed there is carried over. Goes with --shipped.")  # fmt: skip
@click.option("--seed", type=int, default=0, help="Chooses these rows, and nothing else does.")
@click.option("--rows", "limit", type=click.IntRange(min=1), help="Predict so many others, chosen by the seed; all by "
              "default.")  # fmt: skip
@common.answer_options
def command(calibrate: int, seed: int, limit: int | None, prior: str, shipped: bool, only: str | None, without: str | None,
            measured_on: str | None, as_json: bool, **stated: Any) -> None:  # fmt: skip
    """How well a table of throughputs is predicted from a few of its rows.

    Errors are of the predicted time, as shares of the measured one. Nothing that was fitted to a table of the same name
    is used, but with --shipped, which says so.
    """
    from chronograd.calibrate.answer import validate
    from chronograd.calibrate.scoring import chosen_rows
    from chronograd.calibrate.table_answer import described
    from chronograd.report.terminal import say

    if measured_on is not None and not shipped:
        raise click.UsageError("--measured-on carries what a table shows to what is shipped: add --shipped")
    table, device = stated_table(**stated)
    table = chosen_rows(table, only, without)
    options: dict[str, Any] = {"calibrate": calibrate, "prior": prior}
    if shipped:
        options = {"shipped": True, "measured_on": None if measured_on is None else _other(measured_on, table)}
    if not as_json:
        say(f"{table.name}: {described(table, device)}")
    with common.progress("tracing") as report:
        scored = validate(table, device, seed=seed, limit=limit, progress=report, **options)
    common.show(scored, as_json)


def _other(text: str, table: Table) -> tuple[Table, Device]:
    """Another table and its device; what neither its name nor the user says of it is as of the first."""
    from chronograd.fit.tables import read_table
    from chronograd.hardware import catalog

    device, _, path = text.rpartition("=")
    other = read_table(path).stated(device=device or None)
    alike = {
        field: getattr(table, field) for field in ("precision", "phase", "layout", "torch") if not getattr(other, field)
    }
    other = other.stated(**alike).matched()
    if other.device is None:
        raise click.UsageError(f"{path} does not say which device it was measured on: write DEVICE={path}")
    return other, catalog.device(other.device)

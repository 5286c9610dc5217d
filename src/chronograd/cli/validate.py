"""`chronograd validate TABLE.csv --calibrate N --seed S`: fit on a few rows, predict the rest."""

from __future__ import annotations

from typing import Any

import click

from chronograd.cli import common
from chronograd.cli.fit import stated_table, table_options


@click.command(
    epilog="\b\nchronograd validate throughputs.csv --device rtx3090 --precision amp --calibrate 25 --seed 0"
)
@table_options
@click.option("--calibrate", type=click.IntRange(min=0), default=25,
              help="Rows to fit to, at least ten; 0 for none: the prior alone.")  # fmt: skip
@click.option("--seed", type=int, default=0, help="Chooses these rows, and nothing else does.")
@click.option("--rows", "limit", type=click.IntRange(min=1), help="Predict so many others, chosen by the seed; all by "
              "default.")  # fmt: skip
@common.answer_options
def command(calibrate: int, seed: int, limit: int | None, prior: str, as_json: bool, **stated: Any) -> None:
    """How well a table of throughputs is predicted from a few of its rows.

    Errors are of the predicted time, as shares of the measured one. Nothing that was fitted to a table of the same name
    is used.
    """
    from chronograd.calibrate.answer import validate
    from chronograd.calibrate.table_answer import described
    from chronograd.report.terminal import say

    table, device = stated_table(**stated)
    if not as_json:
        say(f"{table.name}: {described(table, device)}")
    with common.progress("tracing") as report:
        scored = validate(table, device, calibrate=calibrate, seed=seed, prior=prior, limit=limit, progress=report)
    common.show(scored, as_json)

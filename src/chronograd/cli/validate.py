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
@click.option("--calibrate", type=click.IntRange(min=0), default=25, show_default=True,
              help="Rows to fit to, at least ten; 0 for none: the prior alone.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Chooses these rows, and nothing else does.")
@click.option("--rows", "limit", type=click.IntRange(min=1), help="Predict so many others, chosen by the seed; all by "
              "default.")  # fmt: skip
@common.json_option
def command(calibrate: int, seed: int, limit: int | None, prior: str, as_json: bool, **stated: Any) -> None:
    """How well a table of throughputs is predicted from a few of its rows.

    Errors are of the predicted time, as shares of the measured one. Nothing that was fitted to a table of the same name
    is used.
    """
    from chronograd.calibrate.table_answer import described
    from chronograd.calibrate.tables import validate
    from chronograd.units import percent

    table, device = stated_table(**stated)
    if not as_json:
        click.echo(f"{table.name}: {described(table, device)}")
    with common.progress("tracing") as report:
        found = validate(table, device, calibrate=calibrate, seed=seed, prior=prior, limit=limit, progress=report)
    if as_json:
        common.print_json(found)
        return
    click.echo(
        f"fitted to {calibrate} rows of seed {seed}, starting from {found['prior']}; {found['n']} others predicted"
    )
    names = ("mape", "median_ape", "p90_ape", "worst", "coverage80")
    header = ("mean error", "median", "90 % are below", "worst", "80 % interval covers")
    common.print_table(header, [[percent(found[n]) for n in names]], right=range(5))
    families = sorted(found["families"].items(), key=lambda kv: -kv[1]["n"])[:15]
    common.print_table(
        ("family", "rows", "mean error"), [(k, str(v["n"]), percent(v["mape"])) for k, v in families], right=(1, 2)
    )
    common.print_table(
        ("furthest off", "size", "predicted / measured", "time by operator"),
        [
            (
                w["model"],
                str(w["image_size"]),
                f"{w['predicted_over_measured']:.2f}",
                ", ".join(f"{k} {percent(v)}" for k, v in w["share_by_family"].items()),
            )
            for w in found["worst_rows"]
        ],
        right=(1, 2),
    )
    if found["left_out"]:
        click.echo(f"{len(found['left_out'])} rows could not be traced as the table has them")

"""`chronograd devices`: what the catalogue knows of devices, links and prices, with the source of every figure."""

from __future__ import annotations

from pathlib import Path

import click

from chronograd.cli.common import FILE, answer_options, show


@click.command()
@click.argument("name", required=False)
@click.option("--links", "of_links", is_flag=True, help="Links instead of devices.")
@click.option("--prices", "of_prices", is_flag=True, help="Prices instead of devices.")
@click.option(
    "--update", "newer", type=FILE, help="With --prices: a CSV file of newer prices, to be kept in the data folder."
)
@answer_options
def command(name: str | None, of_links: bool, of_prices: bool, newer: Path | None, as_json: bool) -> None:
    """List devices, links and prices, or show one with its sources.

    NAME is a device (or a link, with --links) of the catalogue, `local`, or a device file.
    Peaks are dense, 1 FMA = 2 FLOPs. Prices are those of whole instances; of each the latest holds. A file of newer ones has the
    columns vendor, instance, device, count, price_usd_per_hour, kind, includes_host, date, tag, source, vcpus, up_to.
    """
    from chronograd.hardware import answer

    if of_links and of_prices:
        raise click.UsageError("--links and --prices exclude each other")
    if newer is not None and (not of_prices or name is not None):
        raise click.UsageError("--update goes with --prices, without a NAME")
    if newer is not None:
        shown = answer.updated(newer)
    elif of_prices:
        shown = answer.prices(name)
    elif of_links:
        shown = answer.links() if name is None else answer.link(name)
    else:
        shown = answer.devices() if name is None else answer.device(name)
    show(shown, as_json)

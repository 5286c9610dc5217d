"""`chronograd devices`: what the catalogue knows of devices, links and prices, with the source of every figure."""

from __future__ import annotations

import click

from chronograd.cli.common import answer_options, show


@click.command()
@click.argument("name", required=False)
@click.option("--links", "of_links", is_flag=True, help="Links instead of devices.")
@click.option("--prices", "of_prices", is_flag=True, help="Prices instead of devices.")
@answer_options
def command(name: str | None, of_links: bool, of_prices: bool, as_json: bool) -> None:
    """List devices, links and prices, or show one with its sources.

    NAME is a device (or a link, with --links) of the catalogue, `local`, or a device file.
    Peaks are dense, 1 FMA = 2 FLOPs.
    """
    from chronograd.hardware import answer

    if of_links and of_prices:
        raise click.UsageError("--links and --prices exclude each other")
    if of_prices:
        shown = answer.prices(name)
    elif of_links:
        shown = answer.links() if name is None else answer.link(name)
    else:
        shown = answer.devices() if name is None else answer.device(name)
    show(shown, as_json)

"""`chronograd platforms`: what a job can be rendered for, and how the platforms compare."""

from __future__ import annotations

import click

from chronograd.cli.common import answer_options, show


@click.command(
    epilog="\b\nchronograd platforms --compare\nchronograd platforms --compare --full\nchronograd platforms --fields --json"
)
@click.option(
    "--compare", "what", flag_value="compare", help="What each offers, criterion by criterion; sources with --full."
)
@click.option("--fields", "what", flag_value="fields", help="Which field of each platform's file says the same thing.")
@answer_options
def command(what: str | None, as_json: bool) -> None:
    """List platforms that `chronograd launch PLATFORM JOB` writes files for.

    Each with its file, the instance types that are known here with their devices, and the options it cannot do without.
    """
    from chronograd.clouds import comparing, field_map, rendering

    shown = {"compare": comparing.compared, "fields": field_map.mapped}.get(what or "", rendering.platforms)
    show(shown(), as_json)

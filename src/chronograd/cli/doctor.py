"""`chronograd doctor`: five seconds before a run: what is in its way, what would slow it down, what to do."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from chronograd.doctor.finding import Finding

PLAIN_WIDTH = 120
TITLES = {
    "obstacle": "Obstacles",
    "warning": "Warnings",
    "fine": "Fine",
    "absent": "Not here, for jobs that ask for it",
}


@click.command(name="doctor")
@click.argument("job_file", metavar="[JOB]", required=False)
@click.argument("overrides", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option(
    "--hosts", default="", metavar="HOST,HOST", help="Hosts that are to work together: names for ssh, or netns:NAME."
)
@click.option("--out", default="runs", show_default=True, help="The run directory, or the folder of run directories.")
@common.json_option
def command(job_file: str | None, overrides: tuple[str, ...], hosts: str, out: str, as_json: bool) -> None:
    """Look at devices, cores, memory, storage, versions, backends and links, and measure what can be in seconds.

    With a JOB, all of it for that job. The exit status is 1 if a run cannot start.

    \b
    chronograd doctor
    chronograd doctor job.yaml cluster.count=2 --out /scratch/runs
    chronograd doctor job.yaml --hosts node1,node2
    """
    from chronograd.doctor import examine as doctor
    from chronograd.doctor import software as doctor_software

    started = time.monotonic()
    found = doctor.examine(common.read_job(job_file, overrides) if job_file else None, hosts, out)
    took_s, is_ready = time.monotonic() - started, doctor.can_start(found)
    if as_json:
        data = {
            "can_start": is_ready,
            "seconds": took_s,
            "findings": [one.as_data() for one in found],
            "backends": doctor_software.backends(),
            "launchers": doctor_software.launchers(),
        }
        common.print_json(data)
    else:
        _show(found)
        verdict = "A run can start" if is_ready else "A run cannot start as it is"
        click.echo(f"{verdict}; looked for {took_s:.1f} s.")
    if not is_ready:
        raise click.exceptions.Exit(1)


def _show(found: list[Finding]) -> None:
    """What is in the way first, with what to do; then a line for each that is fine."""
    width = min(shutil.get_terminal_size().columns, PLAIN_WIDTH) if sys.stdout.isatty() else PLAIN_WIDTH
    for state, title in TITLES.items():
        rows = [one for one in found if one.state == state]
        if not rows:
            continue
        click.secho(title, bold=True)
        group = ""
        for one in rows:
            head = "" if one.group == group else one.group
            group = one.group
            _row(head, one.seen if one.what == group else f"{one.what}: {one.seen}", width)
            if one.to_do:
                _row("", f"→ {one.to_do}", width, indent="  ")
        click.echo()


def _row(head: str, text: str, width: int, indent: str = "") -> None:
    room = max(40, width - 12)
    lines = textwrap.wrap(text, room, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    for i, line in enumerate(lines):
        click.echo(f"  {head if i == 0 else '':<9} {line}")

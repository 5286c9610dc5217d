"""`chronograd records`: list, filter and show what was predicted and measured."""

from __future__ import annotations

from pathlib import Path

import click

from chronograd.cli import common


@click.command(name="records")
@click.argument("record", metavar="[RECORD]", required=False)
@click.option("--in", "folder", default="runs", type=click.Path(), help="Where to look.")
@click.option("--job", "job_text", help="Only those whose network, data or backend has this in it.")
@click.option("--kind", type=click.Choice(["predicted", "measured", "unfinished", "damaged"]), help="Only these.")
@click.option("--device", help="Only those whose device, or what they ran on, has this in it.")
@click.option("--timeline", type=common.FILE, help="Save RECORD's steps for Perfetto.")
@click.option("--follow", is_flag=True, help="Show how the run RECORD goes on, wherever it was started, until it ends.")
@common.answer_options
def command(record: str | None, folder: str, job_text: str | None, kind: str | None, device: str | None,
            timeline: Path | None, follow: bool, as_json: bool) -> None:  # fmt: skip
    """List what was predicted and measured; with RECORD (a run directory or a record file), show that one.

    \b
    chronograd records --job resnet20 --kind measured
    chronograd records runs/20261121-083000-digits-resnet20-ab12
    chronograd records runs/mine --follow
    """
    from chronograd.rundir import RunDir, listing

    if record is None and (follow or timeline is not None):
        option = "--follow" if follow else "--timeline FILE"
        raise click.UsageError(f"{option} takes a run directory: chronograd records RUN {option}")
    if record is None:
        common.show(listing.listing(folder, job=job_text, kind=kind, device=device), as_json)
        return
    path = listing.one_run(record, folder)
    if follow:
        from chronograd.watch.terminal import follow as follow_run

        follow_run(RunDir.open(path), common.console(stderr=True))
    if timeline is not None:
        from chronograd.predict.timeline import timeline_of_run

        common.save_json(timeline, timeline_of_run(RunDir.open(path)))
        common.echo(f"{timeline}: open it in https://ui.perfetto.dev", err=True)
        return
    from chronograd.quantities import record_answer

    common.show(record_answer(listing.load(path)), as_json)

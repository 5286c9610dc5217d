"""`chronograd report RUN...`: one self-contained page, or a notebook, from runs."""

from __future__ import annotations

from pathlib import Path

import click

from chronograd.cli import common


@click.command("report")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--out", type=common.FILE, default=Path("report.html"),
              help="Where to write the page.")  # fmt: skip
@click.option("--notebook", "with_notebook", is_flag=True, help="Also write an executed notebook beside the page.")
@common.json_option
def command(runs: tuple[str, ...], out: Path, with_notebook: bool, as_json: bool) -> None:
    """Write a page about RUNs: run directories, record files or folders of them, predicted and measured.

    Answers that another verb saved with --save, such as a plan, a forecast or a regression gate, stand before them.

    TensorBoard events of RUNs that were cut off before all were written are made whole.
    """
    from chronograd.report.html import write_page
    from chronograd.report.runs import report
    from chronograd.rundir import RunDir, listing

    named = listing.runs(*runs)
    for _, run in named:
        if common.has_events(run):
            common.write_events(RunDir.open(run))
    page = report(named)
    written = write_page(page, out, with_notebook)
    if as_json:
        common.print_json(
            {
                "page": str(out),
                "notebook": str(written[1]) if with_notebook else None,
                "records": list(page.records),
                "sections": [{"title": s.title, "takeaway": s.takeaway} for s in page.sections],
            }
        )
        return
    from chronograd.report.terminal import say

    for section in page.sections:
        say(f"{section.title}: {section.takeaway}")
    for note in page.notes:
        say(f"note: {note}")
    for path in written:
        common.echo(f"wrote {path}")

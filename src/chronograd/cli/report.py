"""`chronograd report RUN...`: one self-contained page, or a notebook, from runs."""

from __future__ import annotations

from pathlib import Path

import click

from chronograd.cli.common import has_events, json_option, print_json, write_events


@click.command("report")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("report.html"), show_default=True,
              help="Where to write the page.")  # fmt: skip
@click.option("--notebook", "with_notebook", is_flag=True, help="Also write an executed notebook beside the page.")
@json_option
def command(runs: tuple[str, ...], out: Path, with_notebook: bool, as_json: bool) -> None:
    """Write a page about RUNs: run directories, record files or folders of them, predicted and measured.

    Answers that another verb saved with --save, such as a plan, a forecast or a gate, stand before them.

    TensorBoard events of RUNs that were cut off before all were written are made whole.
    """
    from chronograd import listing
    from chronograd.record import write_aside
    from chronograd.report.html import render_html
    from chronograd.report.runs import report
    from chronograd.rundir import RunDir

    named = listing.runs(*runs)
    for _, run in named:
        if has_events(run):
            write_events(RunDir.open(run))
    page = report(named)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_aside(out, render_html(page))
    notebook = out.with_suffix(".ipynb") if with_notebook else None
    if notebook is not None:
        from chronograd.report.notebook import write_notebook

        write_notebook(page, notebook)
    if as_json:
        print_json(
            {
                "page": str(out),
                "notebook": None if notebook is None else str(notebook),
                "records": list(page.records),
                "sections": [{"title": s.title, "takeaway": s.takeaway} for s in page.sections],
            }
        )
        return
    for section in page.sections:
        click.echo(f"{section.title}: {section.takeaway}")
    for path in (out, notebook):
        if path is not None:
            click.echo(f"wrote {path}")

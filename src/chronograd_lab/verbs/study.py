"""`chronograd study`: list the studies, run one, and make its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chronograd.cli import common
from chronograd.errors import InputError

if TYPE_CHECKING:
    from chronograd_lab.common.study import Study


@click.group()
def command() -> None:
    """Studies: a question each, answered from numbers."""


@command.command(name="list")
@common.answer_options
def list_(as_json: bool) -> None:
    """List the studies: name, question, sizes."""
    from chronograd.answer import Answer, Section, Table
    from chronograd_lab.studies import studies

    known = studies().values()
    rows = [[s.name, s.question, ", ".join(s.sizes)] for s in known]
    section = Section(
        title="Studies",
        takeaway=f"{len(rows)} studies; `chronograd study run NAME --size SIZE` runs one.",
        table=Table(("study", "question", "sizes"), rows),
    )
    data = [{"name": s.name, "question": s.question, "sizes": list(s.sizes)} for s in known]
    common.show(Answer("Studies", sections=[section], data=data), as_json)


@command.command()
@click.argument("name")
@click.argument("files", nargs=-1, metavar="", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--size",
    default="laptop",
    help="smoke: seconds; laptop: minutes; evening: hours, or minutes on a GPU; paper: as published.",
)
@click.option("--out", type=common.FOLDER, help="A folder; studies/NAME-SIZE by default.")
@click.option("--parallel", type=click.IntRange(1), help="Runs at a time; one per core by default.")
@click.option(
    "--set",
    "changes",
    metavar="KEY=VALUE",
    multiple=True,
    help="Change a field of every job that it trains, such as training.precision=bf16.",
)
@click.option("--notebook", is_flag=True, help="Also an executed notebook.")
@click.option("--report-only", is_flag=True, help="Make the report again from the results in the folder.")
@click.option(
    "--truth",
    metavar="FILE...",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Logs of runs to score predictions on, where the study makes such.",
)
@common.json_option
def run(name: str, files: tuple[Path, ...], size: str, out: Path | None, parallel: int | None, notebook: bool,
        report_only: bool, truth: tuple[Path, ...], changes: tuple[str, ...], as_json: bool) -> None:  # fmt: skip
    """Run a study, or go on with it, and write its report.

    The folder gets runs/, results.json, report.html, and README.md with its figures. A finished run is not run again.

    \b
    chronograd study run cutout --size smoke
    chronograd study run transfer --size laptop --out studies/transfer
    chronograd study run depth-and-device --size paper --truth history50_K80.json history50_V100.json
    """
    from chronograd.report.html import write_page  # an extra: better to miss it now than after the runs
    from chronograd.report.markdown import write_markdown
    from chronograd.report.terminal import say
    from chronograd_lab.common.results import Results
    from chronograd_lab.common.runner import StudyRunner
    from chronograd_lab.common.study import settings_of
    from chronograd_lab.studies import find

    study = find(name)
    settings = settings_of(study, size)
    _check_truth(study, truth, files, report_only)
    folder = out or Path("studies") / f"{name}-{size}"
    if report_only:
        results = Results.load(folder / "results.json")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        runner = StudyRunner(
            folder, name, size, lambda text: common.echo(text, err=True), parallel, (*truth, *files), changes
        )
        results = study.conduct(runner, settings)
        results.save(folder / "results.json")
    page = study.page(results) if report_only else study.page_or_plain(results)
    written = [*write_page(page, folder / "report.html", notebook), *write_markdown(page, folder)]
    if as_json:
        takeaways = {section.title: section.takeaway for section in page.sections}
        common.print_json({"folder": str(folder), "written": [str(p) for p in written], "takeaways": takeaways})
        return
    for section in page.sections:
        say(f"{section.title}: {section.takeaway}")
    common.echo(f"report     {folder / 'report.html'}")


def _check_truth(study: Study, truth: Sequence[Path], files: Sequence[Path], report_only: bool) -> None:
    """Check the files of --truth. `files` are further files after the first."""
    if files and not truth:
        raise click.UsageError(f"{files[0]} belongs to no option; files to score predictions on follow --truth")
    if truth and not study.truth:
        raise InputError(f"study {study.name} makes no predictions that --truth could score", "leave --truth out")
    if truth and report_only:
        raise InputError("--report-only makes the report of results that are there", "score --truth in a run")

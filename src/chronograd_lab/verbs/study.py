"""`study list` and `study run`: the studies, and the report of one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from chronograd.errors import InputError, printable
from chronograd.verbs.request import FOLDER, Request, Spelling
from chronograd.verbs.screen import say

if TYPE_CHECKING:
    from chronograd.answer import Answer
    from chronograd_lab.common.results import Results

HELP = "Studies: a question each, answered from numbers."
_LOG = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True, kw_only=True)
class ListStudies(Request):
    """List the studies: name, question, sizes."""

    verb = "study list"

    def answer(self) -> Answer:
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
        return Answer("Studies", sections=[section], data=data)


@dataclass(frozen=True, kw_only=True)
class RunStudy(Request):
    """Run a study, or go on with it, and write its report.

    The folder gets runs/, results.json, report.html, and README.md with its figures. A finished run is not run again.
    With the folder finished/, which is small, the study continues on another machine.
    """

    verb = "study run"
    examples = (
        "chronograd study run cutout --size smoke",
        "chronograd study run transfer --size laptop --out studies/transfer",
        "chronograd study run depth-and-device --size paper --truth history50_K80.json history50_V100.json",
    )

    name: Annotated[str, Spelling(is_argument=True)]
    files: Annotated[tuple[Path, ...], _LOG, Spelling(metavar="", is_argument=True)] = ()
    size: str = "laptop"
    """smoke: seconds; laptop: minutes; evening: hours, or minutes on a GPU; paper: as published."""
    out: Annotated[Path | None, FOLDER] = None
    """Folder to write; studies/NAME-SIZE by default."""
    parallel: Annotated[int | None, click.IntRange(1)] = None
    """Number of runs at a time; one per core by default."""
    threads: Annotated[int | None, click.IntRange(1)] = None
    """Threads of each run; by default, the runs share all cores."""
    changes: Annotated[tuple[str, ...], Spelling(("--set",), metavar="KEY=VALUE")] = ()
    """Change a field of every job that the study trains, such as training.precision=bf16."""
    notebook: bool = False
    """Also save an executed notebook."""
    report_only: bool = False
    """Only write the report again, from the results in the folder. Predictions that this version no longer makes are made again."""
    truth: Annotated[tuple[Path, ...], _LOG, Spelling(metavar="FILE...")] = ()
    """Logs of further runs, on which the study scores its predictions if it makes any."""

    def answer(self) -> Answer:
        from chronograd.report.html import write_page  # an extra: better to miss it now than after the runs
        from chronograd.report.markdown import write_markdown
        from chronograd_lab.common.runner import StudyRunner
        from chronograd_lab.common.study import settings_of
        from chronograd_lab.studies import find

        study = find(self.name)
        settings = settings_of(study, self.size)
        self._check_truth(bool(study.truth))
        folder = self.out or Path("studies") / f"{self.name}-{self.size}"
        if self.report_only:
            results = self._predicted_again(folder / "results.json")
        else:
            folder.mkdir(parents=True, exist_ok=True)
            logs = (*self.truth, *self.files)
            runner = StudyRunner(folder, self.name, self.size, say, self.parallel, logs, self.changes, self.threads)
            results = study.conduct(runner, settings)
            results.save(folder / "results.json")
        page = study.page(results) if self.report_only else study.page_or_plain(results)
        written = [*write_page(page, folder / "report.html", self.notebook), *write_markdown(page, folder)]
        takeaways = {section.title: section.takeaway for section in page.sections}
        data = {"folder": str(folder), "written": [str(path) for path in written], "takeaways": takeaways}
        return replace(page, data=data)

    def _predicted_again(self, path: Path) -> Results:
        """Return stored results; if their predictions are outdated, replace them in the file, too."""
        from chronograd_lab.common.results import Results
        from chronograd_lab.studies import find

        stored = Results.load(path)
        results = find(self.name).predicted_again(stored)
        if results is not stored:
            say(f"{path}: predictions of an earlier version are replaced by those of this one")
            results.save(path)
        return results

    def summary(self, answer: Answer) -> list[str]:
        return [f"{section.title}: {section.takeaway}" for section in answer.sections]

    def after(self, answer: Answer, as_json: bool) -> None:
        if not as_json:
            click.echo(printable(f"report     {Path(answer.data['folder']) / 'report.html'}"))  # a path is not wrapped

    def _check_truth(self, is_scored: bool) -> None:
        if self.files and not self.truth:
            raise InputError(f"{self.files[0]} belongs to no option", "files to score predictions on follow --truth")
        if self.truth and not is_scored:
            raise InputError(f"study {self.name} makes no predictions that --truth could score", "leave --truth out")
        if self.truth and self.report_only:
            raise InputError("--report-only makes the report of results that are there", "score --truth in a run")


REQUESTS = (ListStudies, RunStudy)

"""`report RUN...`: one self-contained page, or a notebook, from runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from chronograd.errors import InputError
from chronograd.verbs.request import FILE, Request, Spelling
from chronograd.verbs.screen import is_shown, say

if TYPE_CHECKING:
    from chronograd.answer import Answer


@dataclass(frozen=True, kw_only=True)
class ReportRuns(Request):
    """Save a page about RUNs: run directories, record files or folders of them, predicted and measured.

    Answers that another verb saved with --save, such as a plan, a forecast or a regression gate, come first. In Python, answers
    can be passed directly.

    If a RUN was interrupted before all its TensorBoard events were written, the missing ones are added.
    """

    verb = "report"

    runs: Annotated[tuple[Any, ...], Spelling(metavar="RUN...", is_argument=True)] = ()
    out: Annotated[Path | None, FILE] = None
    """Page to write; report.html by default, none in Python."""
    notebook: Annotated[Any, Spelling(flag_value=True)] = None
    """Also save an executed notebook next to the page; in Python its path."""

    def answer(self) -> Answer:
        from chronograd.answer import Answer, join
        from chronograd.report.html import write_page
        from chronograd.report.runs import report
        from chronograd.rundir import RunDir, listing
        from chronograd.watch.events import has_events, write_events

        given = [one for one in self.runs if isinstance(one, Answer)]
        named = listing.runs(*(one for one in self.runs if not isinstance(one, Answer)))
        if not given and not named:
            raise InputError("nothing to report", "give runs, or answers of other verbs")
        for _, run in named:
            if has_events(run):
                for path in write_events(RunDir.open(run)):
                    say(f"tensorboard: {path}")
        page = report(named) if named else None
        if given:
            page = join(given[0].title, [*given, *([page] if page else [])])
        assert page is not None
        out = self.out or (Path("report.html") if is_shown() else None)
        written = [] if out is None else write_page(page, out)
        notebook = out.with_suffix(".ipynb") if self.notebook is True and out is not None else self.notebook
        if notebook:
            from chronograd.report.notebook import write_notebook

            write_notebook(page, Path(os.fspath(notebook)))
            written.append(Path(notebook))
        sections = [{"title": s.title, "takeaway": s.takeaway} for s in page.sections]
        data = {
            "page": out and str(out),
            "notebook": str(notebook) if notebook else None,
            "records": list(page.records),
            "sections": sections,
        }
        return replace(page, data=data, exit_status=0)

    def summary(self, answer: Answer) -> Sequence[str]:
        lines = [f"{section.title}: {section.takeaway}" for section in answer.sections]
        files = [answer.data[name] for name in ("page", "notebook") if answer.data[name]]
        return [*lines, *(f"note: {note}" for note in answer.notes), *(f"saved {path}" for path in files)]


REQUESTS = (ReportRuns,)

"""`run JOB`: the whole loop for one job."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from chronograd.verbs.kinds import complete_jobs
from chronograd.verbs.plan import Plan
from chronograd.verbs.request import FILE, FOLDER, Request, Spelling
from chronograd.verbs.screen import progress, say

if TYPE_CHECKING:
    from chronograd.answer import Answer

# A training run that justifies a rented GPU, suggested as the next plan of a new user.
RENTED = Plan(job="resnet50", data="imagenet", to=0.75, budget=50.0)
NEXT = "chronograd plan resnet50 --data imagenet --to 75% --budget 50"


@dataclass(frozen=True, kw_only=True)
class RunLoop(Request):
    """Count, calibrate, predict, measure, train, forecast, plan and report one job.

    JOB is a job file. Without one, a CIFAR ResNet-20 trains on the digits included in scikit-learn.
    """

    verb = "run"
    is_verbatim = True

    job: Annotated[Any, Spelling(metavar="[JOB]", is_argument=True, complete=complete_jobs)] = None
    overrides: Annotated[tuple[str, ...], Spelling(metavar="[FIELD=VALUE]...", is_argument=True)] = ()
    print_config: bool = False
    """Print the resolved job and stop without starting anything."""
    schema: bool = False
    """Print the JSON Schema of job files and stop."""
    out: Annotated[Path, FILE] = Path("report.html")
    """Page to write."""
    runs: Annotated[Path, FOLDER] = Path("runs")
    """Folder for run directories."""
    notebook: Annotated[bool, Spelling(("--notebook/--no-notebook",))] = True
    """Also save an executed notebook next to the page."""

    def answer(self) -> Answer:
        import json

        from chronograd import ask
        from chronograd import job as jobs
        from chronograd.errors import printable

        if self.schema:
            click.echo(json.dumps(jobs.Job.model_json_schema(), indent=1))
            raise click.exceptions.Exit(0)
        job = jobs.from_dict(_default()) if self.job is None else ask.job_of(self.job, self.overrides)
        if self.print_config:
            click.echo(printable(jobs.to_yaml(job)), nl=False)
            raise click.exceptions.Exit(0)
        from chronograd.report.html import write_page  # an extra: report now if it is missing, not after training
        from chronograd.report.loop import page_of
        from chronograd.run import run_loop

        begin = time.monotonic()
        loop = run_loop(job, say, progress, self.runs, RENTED.answer)
        page = page_of(loop)
        written = write_page(page, self.out, self.notebook)
        data = {
            "report": [str(path) for path in written],
            "runs": {name: str(path) for name, path in loop.runs.items()},
            "records": {name: record.model_dump(mode="json") for name, record in page.records.items()},
            "takeaways": {section.title: section.takeaway for section in page.sections},
            "seconds": time.monotonic() - begin,
        }
        return replace(page, data=data)

    def summary(self, answer: Answer) -> Sequence[str]:
        lines = [
            f"report     {' and '.join(answer.data['report'])}, in {answer.data['seconds']:.0f} s",
            f"           open {self.out.absolute()}",
        ]
        activate = Path(sys.prefix) / "bin" / "activate"
        if activate.is_file() and os.environ.get("VIRTUAL_ENV") != sys.prefix:
            lines.append(f"next       source {os.path.relpath(activate)}")
        return [*lines, f"then       {NEXT}"]


def _default() -> dict[str, object]:
    return {
        "network": {"name": "resnet20"},
        "data": {"name": "digits"},
        "training": {"recipe": "sgd-one-cycle", "epochs": 12, "batch": 64, "target_accuracy": 0.97},
    }


REQUESTS = (RunLoop,)

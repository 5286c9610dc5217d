"""`job from FILE`, `job log FILE`: the job of a platform's file, and the run of a platform's log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from chronograd.verbs.request import FILE, Request, Spelling
from chronograd.verbs.screen import say
from chronograd.words import how_many

if TYPE_CHECKING:
    from chronograd.answer import Answer


@dataclass(frozen=True, kw_only=True)
class JobFrom(Request):
    """Print the job of FILE, as rendered by `chronograd launch` or edited afterwards.

    Fields of the file that do not belong to a job, and unknown ones, are printed to standard error.
    """

    verb = "job from"
    examples = (
        "chronograd launch sagemaker job.yaml --out rendered ...",
        "chronograd job from rendered/sagemaker.json --out digits.yaml",
    )
    is_verbatim = True

    file: Annotated[Path, FILE, Spelling(metavar="FILE", is_argument=True)]
    out: Annotated[Path | None, FILE] = None
    """Save the job file."""

    def answer(self) -> Answer:
        from chronograd import job as jobs
        from chronograd.answer import Answer, Section
        from chronograd.clouds import rendering
        from chronograd.files import as_asked, write_aside

        opened = rendering.opened(self.file)
        text = jobs.to_yaml(opened.asked.job, is_whole=False)
        if self.out is not None:
            with as_asked(self.out):
                write_aside(self.out, text)
        lines = list(opened.lines())
        section = Section("Job", f"{self.file} trains {opened.asked.job.network.name}.", lines=text.splitlines())
        return Answer(f"The job of {self.file}", sections=[section], data=opened.as_data(), notes=lines)

    def summary(self, answer: Answer) -> Sequence[str]:
        for line in [*([f"saved the job to {self.out}"] if self.out is not None else []), *answer.notes]:
            say(line)
        return [] if self.out is not None else answer.sections[0].lines


@dataclass(frozen=True, kw_only=True)
class JobLog(Request):
    """Make a run directory from the log of a job that `chronograd launch` rendered.

    FILE is text from `kubectl logs`, `sky logs`, Azure ML's std_log.txt or watsonx.ai, or JSON of CloudWatch Logs or Cloud
    Logging. If the job has ended, the run has a record, and `explain` and `compare` accept it like any other run.
    """

    verb = "job log"
    examples = (
        "aws logs filter-log-events --log-group-name /aws/sagemaker/TrainingJobs --log-stream-name-prefix digits/ > digits.json",
        "chronograd job log digits.json --out runs/digits",
    )
    is_verbatim = True

    file: Annotated[Path, FILE, Spelling(metavar="FILE", is_argument=True)]
    out: Annotated[Path, click.Path(path_type=Path)]
    """Run directory to create."""

    def answer(self) -> Answer:
        from chronograd.answer import Answer, Section
        from chronograd.clouds.collect import collect

        run = collect(self.file, self.out)
        steps = len(run.read_steps().steps)
        end = "" if run.is_finished else "; no record, because the log is incomplete"
        section = Section("Run", f"{run.path}: {how_many(steps, 'steps')}{end}")
        data = {"run": str(run.path), "is_finished": run.is_finished, "steps": steps}
        return Answer(f"The run of {self.file}", sections=[section], data=data)

    def summary(self, answer: Answer) -> Sequence[str]:
        return [answer.sections[0].takeaway]


HELP = "Read the job that a platform's file trains, or the run of its log."
REQUESTS = (JobFrom, JobLog)

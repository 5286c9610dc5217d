"""`doctor`: a check of a few seconds before a run: problems, causes of slowness, and how to fix them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from chronograd.verbs.kinds import complete_jobs
from chronograd.verbs.request import Request, Spelling
from chronograd.verbs.screen import say

if TYPE_CHECKING:
    from chronograd.answer import Answer
    from chronograd.doctor.answer import Examined
    from chronograd.job import Job


@dataclass(frozen=True, kw_only=True)
class Doctor(Request):
    """Check devices, cores, memory, storage, versions, backends and links, with measurements of a few seconds.

    With a JOB, or the job of a RUN, check all of it for that job and compare it with the predicted step. The exit status is 1
    if a run cannot start.
    """

    verb = "doctor"
    examples = (
        "chronograd doctor",
        "chronograd doctor job.yaml cluster.count=2 --out /scratch/runs",
        "chronograd doctor job.yaml --hosts node1,node2",
    )

    job: Annotated[str | None, Spelling(metavar="[JOB|RUN]", is_argument=True, complete=complete_jobs)] = None
    overrides: Annotated[tuple[str, ...], Spelling(metavar="[FIELD=VALUE]...", is_argument=True)] = ()
    hosts: Annotated[str | None, Spelling(metavar="HOST,HOST")] = None
    """Hosts that will work together: names for ssh, or netns:NAME."""
    out: str = "runs"
    """The run directory, or the folder of run directories."""
    all: bool = False
    """Also show backends and launchers that are not installed and not needed."""

    def answer(self) -> Answer[Examined]:
        from chronograd import ask
        from chronograd.doctor.answer import doctor
        from chronograd.job import changed
        from chronograd.rundir import RunDir, is_run_dir

        job: Job | None = None
        if self.job and is_run_dir(Path(self.job)):
            say(f"note: this checks the job of {self.job}; `chronograd explain {self.job}` shows where its time went")
            job = changed(RunDir.open(self.job).job(), self.overrides)  # not `ask`, because only the run names its code
        elif self.job:
            job = ask.job_of(self.job, self.overrides)
        return doctor(job, everything=self.all, hosts=self.hosts or "", out=self.out)


REQUESTS = (Doctor,)

"""`doctor`: seconds before a run, what is in its way, what would slow it down, what to do."""

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
    """Look at devices, cores, memory, storage, versions, backends and links, and measure what can be in seconds.

    With a JOB, or the job of a RUN, all of it for that job, weighed against its predicted step. The exit status is 1 if a run
    cannot start.
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
    """Hosts that are to work together: names for ssh, or netns:NAME."""
    out: str = "runs"
    """The run directory, or the folder of run directories."""
    all: bool = False
    """Also backends and launchers that are not here and not asked for."""

    def answer(self) -> Answer[Examined]:
        from chronograd import ask
        from chronograd.doctor.answer import doctor
        from chronograd.job import changed
        from chronograd.rundir import RunDir, is_run_dir

        job: Job | None = None
        if self.job and is_run_dir(Path(self.job)):
            say(f"note: this checks the job of {self.job}; `chronograd explain {self.job}` shows where its time went")
            job = changed(RunDir.open(self.job).job(), self.overrides)  # not `ask`: only the run names its code
        elif self.job:
            job = ask.job_of(self.job, self.overrides)
        return doctor(job, everything=self.all, hosts=self.hosts or "", out=self.out)


REQUESTS = (Doctor,)

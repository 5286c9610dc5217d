"""`chronograd doctor`: five seconds before a run: what is in its way, what would slow it down, what to do."""

from __future__ import annotations

from pathlib import Path

import click

from chronograd.cli import common


@click.command(name="doctor")
@click.argument("job_file", metavar="[JOB|RUN]", required=False)
@click.argument("overrides", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option("--hosts", default="", show_default=False, metavar="HOST,HOST",
              help="Hosts that are to work together: names for ssh, or netns:NAME.")  # fmt: skip
@click.option("--out", default="runs", help="The run directory, or the folder of run directories.")
@click.option(
    "--all", "everything", is_flag=True, help="Also backends and launchers that are not here and not asked for."
)
@common.answer_options
def command(job_file: str | None, overrides: tuple[str, ...], as_json: bool, everything: bool,
            **where: str) -> int:  # fmt: skip
    """Look at devices, cores, memory, storage, versions, backends and links, and measure what can be in seconds.

    With a JOB, or the job of a RUN, all of it for that job, weighed against its predicted step. The exit status is 1 if a run cannot start.

    \b
    chronograd doctor
    chronograd doctor job.yaml cluster.count=2 --out /scratch/runs
    chronograd doctor job.yaml --hosts node1,node2
    """
    from chronograd.doctor.answer import doctor
    from chronograd.job import Job, changed
    from chronograd.rundir import RunDir, is_run_dir

    if job_file and is_run_dir(Path(job_file)):
        common.echo(
            f"note: this checks the job of {job_file}; `chronograd explain {job_file}` shows where its time went",
            err=True,
        )
        # Not read_job, which would let code run that only the run names.
        job: Job | None = changed(RunDir.open(job_file).job(), overrides)
    else:
        job = common.read_job(job_file, overrides) if job_file else None
    return common.show(doctor(job, everything=everything, **where), as_json)

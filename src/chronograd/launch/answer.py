"""What `launch` does and says: jobs and sweeps on a cluster, and where each run is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from chronograd import job as jobs
from chronograd.answer import Answer, Section
from chronograd.job import Job
from chronograd.launch import ray, slurm
from chronograd.launch.slurm import array
from chronograd.launch.slurm.script import Options, render
from chronograd.rundir import RunDir


def script(job: Job, sweep: Sequence[str], options: Options, out: Path | None = None) -> str:
    """What would be submitted to SLURM for a job, or for each point of a sweep's grid; nothing is written.

    Raises: InputError as `slurm.check` and `array.grid`.
    """
    elements = [element for _, element in array.grid(job, sweep)] if sweep else [job]
    assumed = dict.fromkeys(slurm.check_for_dry_run(jobs.scaled(element)) for element in elements)
    path = out or Path("runs/NAME")
    text = array.render_array(elements, path, options) if sweep else render(jobs.scaled(job), path, options)
    shebang, _, rest = text.partition("\n")
    return "\n".join([shebang, *(f"# {' '.join(line.split())}" for line in assumed if line), rest])


def submit(job: Job, sweep: Sequence[str], options: Options, out: Path | None = None) -> list[RunDir]:
    """Submit a job to SLURM, or one for each point of a sweep's grid."""
    if sweep:
        return array.launch_array(array.grid(job, sweep), options, out)
    return [slurm.launch(job, options, out=out)]


def sweep_on_ray(
    job: Job, sweep: Sequence[str], out: Path | None, address: str, say: Callable[[str, str, str], None]
) -> list[RunDir]:
    """One run per point of the grid, in folders run-0, run-1, ... of `out`; waits for all.

    Args:
        say: called with a run's name, its state, and why.
    """
    elements = {f"run-{i}": element for i, (_, element) in enumerate(array.grid(job, sweep))}
    return list(ray.sweep(elements, out or Path("runs/ray"), address, say).values())


def states(runs: Sequence[RunDir]) -> Answer:
    """Where each launched run is: its job, its state with the reason, its step, how often it was started."""
    rows = [{"run": str(run.path), **asdict(slurm.state(run))} for run in runs]
    counted = Counter(str(row["state"]) for row in rows)
    lines = []
    for row in rows:
        reason = f" ({row['reason']})" if row["reason"] else ""
        starts = f", started {row['attempts']} times" if row["attempts"] > 1 else ""
        lines.append(f"{row['run']}  job {row['job_id']}  {row['state']}{reason}  step {row['step']}{starts}")
    section = Section(
        title="Launched",
        takeaway=f"{len(rows)} run{'s' * (len(rows) != 1)}: {', '.join(f'{n} {state}' for state, n in counted.items())}.",
        lines=lines,
        data=rows,
    )
    return Answer("Launched runs", sections=[section], data=rows)

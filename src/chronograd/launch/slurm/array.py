"""A sweep as one SLURM array: jobs of equal shape, each with a run directory."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from chronograd import files
from chronograd import job as jobs
from chronograd.errors import JobError, RunError
from chronograd.files import write_aside, write_json
from chronograd.job import Job
from chronograd.launch import slurm
from chronograd.launch.slurm import PathLike
from chronograd.launch.slurm import commands as slurm_commands
from chronograd.launch.slurm.script import Options, render
from chronograd.rundir import RunDir, new_path

Element = tuple[tuple[str, ...], Job]


def grid(job: Job, sweep: Sequence[str]) -> list[Element]:
    """Return the overrides and the job of each point of a grid. Raises JobError for a sweep that cannot be read.

    Args:
        sweep: fields and their values, such as `training.batch=32,64`; values are YAML.
    """
    axes = []
    for text in sweep:
        field, sign, values = text.partition("=")
        reason = ""
        try:
            parsed = files.parse_yaml(f"[{values}]") if sign and field else None
        except ValueError as error:
            parsed, reason = None, f": {error}"
        if not parsed:
            hint = "write FIELD=A,B,... such as training.batch=32,64"
            raise JobError(f"cannot read the sweep {text!r}{reason}", hint)
        axes.append([f"{field}={json.dumps(value)}" for value in parsed])
    return [(overrides, jobs.changed(job, overrides)) for overrides in itertools.product(*axes)]


def launch_array(elements: Sequence[Element], options: Options, out: PathLike | None = None) -> list[RunDir]:
    """Submit jobs of equal shape as one array, each with a run directory `run-N`. Raises as `launch`.

    Args:
        out: the folder of all; by default a new one in `runs`. Its `sweep.json` maps runs to points of the grid.
    """
    folder = Path(out) if out is not None else new_path("sweep")
    text = render_array([job for _, job in elements], folder, options)
    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder} is not empty", "name another with --out")
    try:
        runs = [slurm.create(job, options, folder / f"run-{i}") for i, (_, job) in enumerate(elements)]
        write_json(
            folder / "sweep.json", {run.path.name: words for run, (words, _) in zip(runs, elements, strict=True)}
        )
        write_aside(folder / slurm.SCRIPT, text)
        job_id = slurm_commands.sbatch(folder / slurm.SCRIPT)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    for i, run in enumerate(runs):
        slurm.note(run, f"{job_id}_{i}", options, {})
    return runs


def render_array(elements: Sequence[Job], folder: Path, options: Options) -> str:
    """Return the script of an array. Raises JobError if the jobs need different SLURM options."""
    found = {render(jobs.scaled(job), folder, options, len(elements)): None for job in elements}
    shapes = {tuple(_asked_for(text)) for text in found}
    if len(shapes) > 1:
        raise JobError(
            "the jobs of the sweep need different nodes, ranks, threads or backends",
            "sweep over fields of network, data or training; submit the others individually",
        )
    return next(iter(found))


def _asked_for(text: str) -> list[str]:
    """Return the lines of a script that are the same for jobs of equal shape."""
    return [line for line in text.splitlines() if not line.startswith(("#SBATCH --job-name=", "# "))]

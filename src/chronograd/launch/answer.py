"""The answers of `launch`: jobs and sweeps on a cluster, and the state of each run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from chronograd import job as jobs
from chronograd.answer import Answer, Section
from chronograd.job import Job
from chronograd.launch import ray, slurm
from chronograd.launch.cores import need_of
from chronograd.launch.slurm import array
from chronograd.launch.slurm.script import Options, render
from chronograd.rundir import RunDir
from chronograd.units import seconds


@dataclass(frozen=True)
class SlurmScript:
    """The script of a job, or of a sweep, for sbatch."""

    script: str


@dataclass(frozen=True)
class LaunchedRun:
    """A run directory, and the status of its job on SLURM.

    `queued_s` and `ran_s` are the seconds in the queue and of the slowest rank, over all attempts that ended; None before the
    first.
    """

    run: str
    status: slurm.Status
    queued_s: float | None
    ran_s: float | None

    @classmethod
    def of(cls, run: RunDir) -> LaunchedRun:
        ran_s = max((used["real_s"] for used in slurm.usage(run)), default=None)
        return cls(str(run.path), slurm.state(run), slurm.queued_s(run), ran_s)

    def as_data(self) -> dict[str, Any]:
        return {"run": self.run, **asdict(self.status), "queued_s": self.queued_s, "ran_s": self.ran_s}

    def line(self) -> str:
        own = self.status
        reason = f" ({own.reason})" if own.reason else ""
        starts = f", started {own.attempts} times" if own.attempts > 1 else ""
        times = {"queued": self.queued_s, "ran": self.ran_s}
        took = "".join(f"  {name} {seconds(time_s)}" for name, time_s in times.items() if time_s is not None)
        return f"{self.run}  job {own.job_id}  {own.state}{reason}  step {own.step}{starts}{took}"


def script(job: Job, sweep: Sequence[str], options: Options, out: Path | None = None) -> Answer[SlurmScript]:
    """Return the SLURM script for a job, or for each point of a sweep's grid. Writes nothing.

    Raises: InputError as `slurm.check` and `array.grid`.
    """
    elements = [element for _, element in array.grid(job, sweep)] if sweep else [job]
    checked = [slurm.check_for_dry_run(jobs.scaled(element)) for element in elements]
    options, cores = _with_cores(elements, options)
    assumed = dict.fromkeys([*checked, cores])
    path = out or Path("runs/NAME")
    text = array.render_array(elements, path, options) if sweep else render(jobs.scaled(job), path, options)
    shebang, _, rest = text.partition("\n")
    whole = "\n".join([shebang, *(f"# {' '.join(line.split())}" for line in assumed if line), rest])
    section = Section("Script", f"SLURM would run this in {path}.", lines=whole.splitlines())
    return Answer("SLURM script", sections=[section], result=SlurmScript(whole))


def submit(
    job: Job,
    sweep: Sequence[str],
    options: Options,
    out: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[RunDir]:
    """Submit a job to SLURM, or one for each point of a sweep's grid.

    Args:
        say: called with an assumption, before anything is submitted.
    """
    grid = array.grid(job, sweep) if sweep else []
    options, cores = _with_cores([element for _, element in grid] or [job], options)
    if cores:
        say(cores)
    return array.launch_array(grid, options, out) if sweep else [slurm.launch(job, options, out=out)]


def _with_cores(elements: Sequence[Job], options: Options) -> tuple[Options, str]:
    """Return the options with the CPU cores per rank for decoding, if the user gave no number; and that assumption as text."""
    if options.cpus_per_task is not None or any(element.cluster.threads for element in elements):
        return options, ""
    needs = [need_of(jobs.scaled(element)) for element in elements]
    if known := [need for need, _ in needs if need is not None]:
        most = max(known, key=lambda need: need.rank)
        words = most.words(most.rank * most.ranks, "The ranks of a node get")
        return replace(options, cpus_per_task=most.rank), words
    why = needs[0][1]
    return options, f"{why} Each rank gets 1 core; `--cpus-per-task` sets another number." if why else ""


def sweep_on_ray(
    job: Job, sweep: Sequence[str], out: Path | None, address: str, say: Callable[[str, str, str], None]
) -> list[RunDir]:
    """Train one run per point of the grid, in folders run-0, run-1, ... of `out`; wait for all.

    Args:
        say: called with a run's name, its state, and the reason.
    """
    elements = {f"run-{i}": element for i, (_, element) in enumerate(array.grid(job, sweep))}
    return list(ray.sweep(elements, out or Path("runs/ray"), address, say).values())


def states(runs: Sequence[RunDir]) -> Answer[list[LaunchedRun]]:
    """Return the state of each launched run: its job, its state with the reason, its step, the number of starts."""
    launched = [LaunchedRun.of(run) for run in runs]
    counted = Counter(one.status.state for one in launched)
    section = Section(
        title="Launched",
        takeaway=f"{len(runs)} run{'s' * (len(runs) != 1)}: {', '.join(f'{n} {state}' for state, n in counted.items())}.",
        lines=[one.line() for one in launched],
        data=[one.as_data() for one in launched],
    )
    return Answer("Launched runs", sections=[section], result=launched)

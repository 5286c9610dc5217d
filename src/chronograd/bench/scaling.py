"""Strong and weak scaling, measured: runs of one job on growing numbers of ranks, with predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from chronograd.compare.scaling import Ladder, Scaling, check_scaling, per_rank
from chronograd.data.decoding import counted_input
from chronograd.errors import InputError
from chronograd.job import Job, changed, resolved
from chronograd.launch import jobs
from chronograd.measure import environment
from chronograd.measure.result import Timing
from chronograd.predict.prediction import StepModel
from chronograd.record import Provenance, Record, RecordedCluster, ScalingRow
from chronograd.trace import Trace

FORMULA = "bandwidth utilisation = 2(n - 1)/n · gradient bytes / communication seconds / link bandwidth"


def measure_scaling(
    job: Job,
    worlds: Sequence[int],
    scalings: Sequence[Scaling],
    *,
    folder: Path,
    trace: Trace | None = None,
    samples: int | None = None,
    timing: Timing | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Record:
    """Measure a job at every number of ranks, and predict the same. Return a record with the table `scaling`.

    Every rank has the same number of threads: the job's, or an equal share of the cores in the largest world.

    Args:
        folder: for the run directories, one per job.
        trace: for the predictions; None for no predictions.

    Raises: InputError for no or wrong worlds and scalings.
    """
    check_scaling(worlds, scalings)
    threads = job.cluster.threads_per_rank(environment.cores(), max(worlds))
    job = changed(job, [f"cluster.threads={threads}"])
    ladder = Ladder(job, trace, samples)

    def measure(one: Job) -> Record:
        out = folder / f"{one.backend}-{one.cluster.count}x{per_rank(one)}"
        flops = None if trace is None else float(trace.flops(one.images_per_rank))
        return jobs.measure(one, timing, flops_per_step=flops, out=out).record()

    points: list[ScalingRow] = []
    notes: list[str] = []

    def paced(one: Job, step_s: float) -> tuple[Job, str] | None:
        found = counted_input(one, step_s)
        if found is not None:
            notes.append(f"predicted for {one.cluster.count} × {per_rank(one)} samples: {found[1]}")
        return found

    for scaling in scalings:
        points += ladder.measured(worlds, scaling, measure, say)
        if trace is not None:
            try:
                points += ladder.predicted(worlds, scaling, model=StepModel(paced=paced))
            except InputError as error:
                notes.append(f"not predicted: {error.message}")
    record = _record(job, worlds, threads, list(dict.fromkeys(notes)))
    record.tables.scaling = points
    return record


def _record(job: Job, worlds: Sequence[int], threads: int, notes: list[str]) -> Record:
    return Record(
        kind="measured",
        title=f"scaling of {job.network.name} on {job.data.name} with {job.backend}",
        job=resolved(job),
        cluster=RecordedCluster(device=job.cluster.device, worlds=list(worlds), threads=threads),
        backend=job.backend,
        versions=environment.environment().get("versions", {}),
        provenance=Provenance(formula=FORMULA, cores=environment.cores()),
        notes=notes,
    )

"""One job on growing numbers of ranks, measured and predicted: strong and weak scaling, computation and communication.

Strong scaling keeps the global batch, weak scaling the batch of a rank. Beside every point with several ranks runs
one rank alone with the same batch of a rank: what the ranks take longer is communication by difference, which is held
against the exposed communication that the ranks themselves measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from chronograd.errors import InputError, MissingExtraError, RunError
from chronograd.hardware import catalog
from chronograd.job import Job, changed, resolved, steps_per_epoch
from chronograd.launch import jobs
from chronograd.measure import environment
from chronograd.predict.prediction import predict, price_of, setting_of
from chronograd.record import Record
from chronograd.trace import Trace

Scaling = Literal["strong", "weak"]
SCALINGS: tuple[Scaling, ...] = ("strong", "weak")
# Backends whose single rank is that of `single`.
_SYNCHRONOUS = ("ddp", "horovod", "data_parallel")
FORMULA = "bandwidth utilisation = 2(n - 1)/n · gradient bytes / communication seconds / link bandwidth"


@dataclass(frozen=True)
class Point:
    """A job with n ranks, and what is known of its step. Times in seconds; None where it is not known.

    Attributes:
        kind: `measured`, `predicted`, or `missing` with a `reason`.
        batch: the global, that is effective, batch; `per_rank` that of a rank.
        training_time_s, cost_usd: of all epochs of the job at this step time, if its samples make a whole batch. Cost needs
            a price.
        speed_up: throughput over that of one rank of the same kind; `efficiency` over the number of ranks.
        iteration_growth: step time over that of one rank: what a learner waits longer. 1 is ideal in weak scaling.
        compute_s: a step of one rank alone with the same batch of a rank.
        communication_by_difference_s: step time less `compute_s`; `communication_exposed_s` as the ranks measured it.
        bandwidth_utilisation: see FORMULA; of the exposed communication.
    """

    scaling: str
    world: int
    kind: str
    batch: int
    per_rank: int
    step_time_s: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    throughput_samples_per_s: float | None = None
    training_time_s: float | None = None
    cost_usd: float | None = None
    speed_up: float | None = None
    efficiency: float | None = None
    iteration_growth: float | None = None
    compute_s: float | None = None
    communication_by_difference_s: float | None = None
    communication_exposed_s: float | None = None
    exposed_low_s: float | None = None
    exposed_high_s: float | None = None
    bandwidth_utilisation: float | None = None
    device: str = ""
    backend: str = ""
    reason: str = ""

    def row(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Ladder:
    """A job, and how its points are made: `trace` for what is predicted, `samples` for an epoch."""

    job: Job
    trace: Trace | None = None
    samples: int | None = None
    _steps: dict[tuple[str, int, int], Record] = field(default_factory=dict)

    def at(self, world: int, scaling: Scaling) -> Job:
        """The job with so many ranks. Raises JobError where a rank would have no sample."""
        batch = self.job.training.batch if scaling == "strong" else self.job.training.batch * world
        return self._with(world, batch)

    def alone(self, job: Job) -> Job:
        """One rank with the batch that a rank of the job has."""
        return self._with(1, -(-job.training.batch // job.cluster.count))

    def _with(self, world: int, batch: int) -> Job:
        backend = "single" if world == 1 and self.job.backend in _SYNCHRONOUS else self.job.backend
        return changed(self.job, [f"cluster.count={world}", f"training.batch={batch}", f"backend={backend}"])

    def predicted(self, worlds: Sequence[int], scaling: Scaling, algorithm: str | None = None) -> list[Point]:
        """Points from the trace. Raises InputError where a device or link is not known."""
        trace = self.trace
        assert trace is not None
        return self._points(worlds, scaling, "predicted", lambda job: predict(trace, job, algorithm=algorithm))

    def measured(
        self, worlds: Sequence[int], scaling: Scaling, measure: Callable[[Job], Record], say: Callable[[str], None]
    ) -> list[Point]:
        """Points from real runs. A number of ranks that cannot run here becomes a point that says why."""

        def known(job: Job) -> Record:
            key = job.backend, job.cluster.count, job.training.batch
            if key not in self._steps:
                self._steps[key] = measure(job)
                say(_said(job, self._steps[key]))
            return self._steps[key]

        return self._points(worlds, scaling, "measured", known)

    def _points(
        self, worlds: Sequence[int], scaling: Scaling, kind: str, record_of: Callable[[Job], Record]
    ) -> list[Point]:
        points: list[Point] = []
        for world in worlds:
            job = self.at(world, scaling)
            try:
                record, alone = record_of(job), record_of(self.alone(job))
            except (RunError, InputError, MissingExtraError) as error:
                per_rank = -(-job.training.batch // world)
                points.append(
                    Point(
                        scaling, world, "missing", job.training.batch, per_rank, backend=job.backend, reason=str(error)
                    )
                )
                continue
            first = points[0] if points and points[0].world == 1 else None
            points.append(self._point(job, scaling, kind, record, alone, first))
        return points

    def _point(self, job: Job, scaling: str, kind: str, record: Record, alone: Record, first: Point | None) -> Point:
        world, batch = job.cluster.count, job.training.batch
        step = record["step_time_s"]
        throughput = record["throughput_samples_per_s"].value
        own = step.value if world == 1 else None
        base_throughput = throughput if world == 1 else None if first is None else first.throughput_samples_per_s
        base_step = own if first is None else first.step_time_s
        speed_up = throughput / base_throughput if throughput and base_throughput else None
        exposed, compute_s = record["communication_exposed_s"], alone["step_time_s"].value
        total_s = self._training_time(job, step.value)
        return Point(
            scaling=scaling,
            world=world,
            kind=kind,
            batch=batch,
            per_rank=-(-batch // world),
            step_time_s=step.value,
            low=step.low,
            high=step.high,
            n=step.n,
            throughput_samples_per_s=throughput,
            training_time_s=total_s,
            cost_usd=self._cost(job, total_s),
            speed_up=speed_up,
            efficiency=None if speed_up is None else speed_up / world,
            iteration_growth=step.value / base_step if step.value and base_step else None,
            compute_s=compute_s,
            communication_by_difference_s=step.value - compute_s if step.value and compute_s else None,
            communication_exposed_s=exposed.value,
            exposed_low_s=exposed.low,
            exposed_high_s=exposed.high,
            bandwidth_utilisation=self._utilisation(job, exposed.value),
            device=record.cluster.get("ran_on") or record.cluster.get("title") or "",
            backend=record.backend,
            reason=step.reason,
        )

    def _training_time(self, job: Job, step_s: float | None) -> float | None:
        if self.samples is None or step_s is None or job.training.batch > self.samples:
            return None
        return job.training.epochs * steps_per_epoch(self.samples, job.training.batch) * step_s

    def _cost(self, job: Job, total_s: float | None) -> float | None:
        """By the price of the job or of its device in the table; a device of the user's own has none."""
        if total_s is None:
            return None
        try:
            price = price_of(job, catalog.device(job.cluster.device))
        except InputError:
            return None
        return None if price is None else price[0] * job.cluster.count * total_s / 3600

    def _utilisation(self, job: Job, communication_s: float | None) -> float | None:
        """See FORMULA. None without a trace, communication or a link."""
        world = job.cluster.count
        if self.trace is None or not communication_s or world == 1:
            return None
        try:
            link = setting_of(job).link
        except InputError:
            return None
        gradient_bytes = sum(s.bytes.const for s in self.trace.storages if s.role == "gradient")
        if link is None:
            return None
        return 2 * (world - 1) / world * gradient_bytes / communication_s / link.bandwidth_bytes_per_s


def measure_scaling(
    job: Job,
    worlds: Sequence[int],
    scalings: Sequence[Scaling],
    *,
    folder: Path,
    trace: Trace | None = None,
    samples: int | None = None,
    num_steps: int = 30,
    warmup: int = 5,
    seconds: float = 60.0,
    say: Callable[[str], None] = lambda line: None,
) -> Record:
    """Measure a job at every number of ranks, and predict the same. Returns a record with the table `scaling`.

    Every rank has the same number of threads: the job's, else the cores shared out over the largest world.

    Args:
        folder: where the run directories are made, one per job.
        trace: for what is predicted beside it; None for nothing.
    Raises: InputError for no or wrong worlds and scalings.
    """
    if not worlds or min(worlds) < 1 or not scalings or not set(scalings) <= set(SCALINGS):
        raise InputError(
            f"cannot scale {list(scalings)} to {list(worlds)}", "choose strong, weak or both, and worlds such as 1,2,4"
        )
    threads = job.cluster.threads or max(1, environment.cores() // max(worlds))
    job = changed(job, [f"cluster.threads={threads}"])
    ladder = Ladder(job, trace, samples)

    def measure(one: Job) -> Record:
        name = f"{one.backend}-{one.cluster.count}x{-(-one.training.batch // one.cluster.count)}"
        run = jobs.measure(one, num_steps=num_steps, warmup=warmup, seconds=seconds, out=folder / name)
        return run.record()

    points: list[Point] = []
    notes: list[str] = []
    for scaling in scalings:
        points += ladder.measured(worlds, scaling, measure, say)
        if trace is not None:
            try:
                points += ladder.predicted(worlds, scaling)
            except InputError as error:
                notes.append(f"not predicted: {error.message}")
    record = Record(
        kind="measured",
        title=f"scaling of {job.network.name} on {job.data.name} with {job.backend}",
        job=resolved(job),
        cluster={"device": job.cluster.device, "worlds": list(worlds), "threads": threads},
        backend=job.backend,
        versions=environment.environment().get("versions", {}),
        provenance={"formula": FORMULA, "cores": environment.cores()},
        notes=notes,
    )
    record.tables["scaling"] = [point.row() for point in points]
    return record


def points_of(record: Record) -> list[Point]:
    """The points of a record that `measure_scaling` made."""
    return [Point(**row) for row in record.tables["scaling"]]


def chosen(points: Sequence[Point], **wanted: Any) -> list[Point]:
    """The points that have the wanted values, such as scaling="weak", kind="measured"."""
    return [point for point in points if all(getattr(point, name) == value for name, value in wanted.items())]


def _said(job: Job, record: Record) -> str:
    from chronograd.units import seconds

    step = record["step_time_s"]
    shown = step.reason if step.value is None else f"{seconds(step.value)} a step"
    return f"{job.backend}, {job.cluster.count} × {-(-job.training.batch // job.cluster.count)} samples: {shown}"

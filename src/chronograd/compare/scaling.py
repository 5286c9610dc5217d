"""One job on growing numbers of ranks: speed-up and efficiency, computation and communication.

Strong scaling keeps the global batch, weak scaling the batch per rank. We compare every point with one rank alone at the same
batch per rank. The extra time of the ranks, without waiting for input, is the communication by difference. The ranks also
report their exposed communication, to check it. `chronograd.bench.scaling` runs the jobs to measure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from chronograd.answer import Answer
from chronograd.compare.ranks import throughput_section
from chronograd.errors import InputError, MissingExtraError, RunError
from chronograd.hardware import catalog
from chronograd.job import Job, changed, steps_per_epoch
from chronograd.predict.carrying import Corrected
from chronograd.predict.prediction import USUAL_MODEL, StepModel, predict, price_of
from chronograd.predict.setting import setting_of
from chronograd.record import Record, ScalingRow
from chronograd.trace import Trace
from chronograd.units import seconds
from chronograd.words import listed

Scaling = Literal["strong", "weak"]
SCALINGS: tuple[Scaling, ...] = ("strong", "weak")
# Backends that run as `single` with one rank.
_SYNCHRONOUS = ("ddp", "horovod", "data_parallel")


def speed_up(throughput: float | None, alone: float | None) -> float | None:
    """Return the throughput divided by that of one rank; None if either is unknown."""
    return throughput / alone if throughput and alone else None


def efficiency(times: float | None, world: int) -> float | None:
    """Return the speed-up divided by the number of ranks."""
    return None if times is None else times / world


@dataclass
class Ladder:
    """A job and the inputs of its points: `trace` for predictions, `samples` of an epoch."""

    job: Job
    trace: Trace | None = None
    samples: int | None = None
    _measured: dict[tuple[str, int, int], Record] = field(default_factory=dict)

    def at(self, world: int, scaling: Scaling) -> Job:
        """Return the job with `world` ranks. Raises JobError if a rank would have no sample."""
        batch = self.job.training.batch
        return self._with(world, batch if scaling == "strong" else per_rank(self.job) * world)

    def alone(self, job: Job) -> Job:
        """Return the job on one rank with the job's batch per rank."""
        return self._with(1, per_rank(job))

    def _with(self, world: int, batch: int) -> Job:
        backend = "single" if world == 1 and self.job.backend in _SYNCHRONOUS else self.job.backend
        return changed(self.job, [f"cluster.count={world}", f"training.batch={batch}", f"backend={backend}"])

    def predicted(
        self,
        worlds: Sequence[int],
        scaling: Scaling,
        factor: Callable[[Job], float | None] | None = None,
        model: StepModel = USUAL_MODEL,
    ) -> list[ScalingRow]:
        """Return points predicted from the trace, each compared with one rank, which need not be in `worlds`.

        Args:
            factor: correction of the whole step time of each job.
        Raises: InputError if a device or link is unknown.
        """
        trace = self.trace
        assert trace is not None

        def make(job: Job) -> Record:
            correction = factor(job) if factor else None
            return predict(trace, job, model, shown=None if correction is None else Corrected(correction))

        first = self._point(self.at(1, scaling), scaling, "predicted", make)
        return [self._point(self.at(world, scaling), scaling, "predicted", make, first) for world in worlds]

    def measured(
        self, worlds: Sequence[int], scaling: Scaling, measure: Callable[[Job], Record], say: Callable[[str], None]
    ) -> list[ScalingRow]:
        """Return points from real runs. If a number of ranks cannot run here, its point has the reason instead."""

        def known(job: Job) -> Record:
            key = job.backend, job.cluster.count, job.training.batch
            if key not in self._measured:
                self._measured[key] = measure(job)
                say(_line(job, self._measured[key]))
            return self._measured[key]

        points: list[ScalingRow] = []
        for world in worlds:
            job = self.at(world, scaling)
            first = points[0] if points and points[0].world == 1 else None
            try:
                points.append(self._point(job, scaling, "measured", known, first))
            except (RunError, InputError, MissingExtraError) as error:
                points.append(
                    ScalingRow(
                        scaling=scaling,
                        world=world,
                        kind="missing",
                        batch=job.training.batch,
                        per_rank=per_rank(job),
                        backend=job.backend,
                        reason=str(error),
                    )
                )
        return points

    def _point(
        self, job: Job, scaling: str, kind: str, record_of: Callable[[Job], Record], first: ScalingRow | None = None
    ) -> ScalingRow:
        """Return one point, compared with the point `first` of one rank; without it, a point of one rank is compared with
        itself.
        """
        record, alone = record_of(job), record_of(self.alone(job))
        world, batch = job.cluster.count, job.training.batch
        step, exposed = record["step_time_s"], record["communication_exposed_s"]
        throughput = record["throughput_samples_per_s"].value
        one_throughput, one_s = throughput if world == 1 else None, step.value if world == 1 else None
        if first is not None:
            one_throughput, one_s = first.throughput_samples_per_s, first.step_time_s
        times = speed_up(throughput, one_throughput)
        alone_s, stall_s = alone["step_time_s"].value, record["input_stall_s"].value
        compute_s = alone_s - (alone["input_stall_s"].value or 0.0) if alone_s else None
        rest_s = step.value - compute_s - (stall_s or 0.0) if step.value and compute_s else None
        total_s = self._training_time(job, step.value)
        return ScalingRow(
            scaling=scaling,
            world=world,
            kind=kind,
            batch=batch,
            per_rank=per_rank(job),
            step_time_s=step.value,
            low=step.low,
            high=step.high,
            n=step.n,
            throughput_samples_per_s=throughput,
            training_time_s=total_s,
            cost_usd=self._cost(job, total_s),
            speed_up=times,
            efficiency=efficiency(times, world),
            iteration_growth=step.value / one_s if step.value and one_s else None,
            compute_s=compute_s,
            input_stall_s=stall_s,
            communication_by_difference_s=rest_s,
            communication_exposed_s=exposed.value,
            exposed_low_s=exposed.low,
            exposed_high_s=exposed.high,
            bandwidth_utilisation=self._utilisation(job, exposed.value),
            device=record.device_name,
            backend=record.backend,
            reason=step.reason,
        )

    def _training_time(self, job: Job, step_s: float | None) -> float | None:
        if self.samples is None or step_s is None or job.training.batch > self.samples:
            return None
        return job.training.epochs * steps_per_epoch(self.samples, job.training.batch) * step_s

    def _cost(self, job: Job, total_s: float | None) -> float | None:
        """Return the cost at the price of the job or of its device in the price table; None for a custom device."""
        if total_s is None:
            return None
        try:
            price = price_of(job, catalog.device(job.cluster.device))
        except InputError:
            return None
        return None if price is None else price[0] * job.cluster.count * total_s / 3600

    def _utilisation(self, job: Job, communication_s: float | None) -> float | None:
        """Return the share of the link bandwidth in use; None without a trace, communication or a link."""
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


def per_rank(job: Job) -> int:
    """Return the samples of a rank per step."""
    return -(-job.training.batch // job.cluster.count)


def check_scaling(worlds: Sequence[int], scalings: Sequence[str]) -> None:
    """Raise InputError for missing or wrong numbers of ranks, and for an unknown kind of scaling."""
    if not worlds or min(worlds) < 1 or not scalings or not set(scalings) <= set(SCALINGS):
        raise InputError(
            f"cannot scale {list(scalings)} to {list(worlds)}",
            "choose strong or weak, and one or more numbers of ranks, such as 1,2,4",
        )


@dataclass(frozen=True)
class PredictedRanks:
    """A predicted number of devices; `speed_up` and `efficiency` are relative to one device."""

    count: int
    nodes: int
    batch_per_rank: int
    step_time_s: float | None
    throughput_samples_per_s: float
    communication_exposed_s: float | None
    usd_per_million_samples: float | None
    speed_up: float | None
    efficiency: float | None


@dataclass(frozen=True)
class PredictedScaling:
    """The result of `predict scaling` for one device; `mode` is strong or weak."""

    network: str
    device: str
    mode: str
    rows: list[PredictedRanks]
    notes: list[str] = field(default_factory=list)


def predict_scaling(
    trace: Trace,
    jobs: Sequence[Job],
    worlds: Sequence[int],
    scaling: Scaling,
    samples: int | None = None,
    model: StepModel = USUAL_MODEL,
) -> Answer[PredictedScaling | list[PredictedScaling]]:
    """Return the answer of `predict scaling`: each job on growing numbers of devices.

    Args:
        jobs: one for each device; strong scaling keeps its global batch, weak scaling its batch per rank.
        samples: training samples in an epoch, for the time and cost of the training.
    Raises: InputError for another scaling or no counts; JobError if a rank would have no sample.
    """
    check_scaling(worlds, [scaling])
    sections, tables, notes = [], [], list[str]()
    for job in jobs:
        ladder = Ladder(job, trace, samples)
        waits: dict[tuple[int, int], str] = {}
        points = ladder.predicted(worlds, scaling, model=_noting(model, waits))
        title = f"{scaling.capitalize()} scaling of {trace.network} on {job.cluster.device}"
        rows = [_predicted_row(ladder.at(point.world, scaling), point) for point in points]
        sections.append(throughput_section(title, [point.model_dump() for point in points], with_communication=True))
        keys = [(there.cluster.count, there.training.batch) for there in (ladder.at(n, scaling) for n in worlds)]
        limited = [
            f"{listed([str(key[0]) for key in keys if waits.get(key) == note])} × {job.cluster.device}: {note}"
            for note in dict.fromkeys(waits[key] for key in keys if key in waits)
        ]
        notes += limited
        tables.append(PredictedScaling(trace.network, job.cluster.device, scaling, rows, limited))
    if any("limited by its input" in note for note in notes):
        notes.append("computation is the whole step of one device, including the wait for its host")
    result = tables if len(tables) > 1 else tables[0]
    return Answer(f"{scaling} scaling", sections=sections, notes=notes, result=result)


def _noting(model: StepModel, waits: dict[tuple[int, int], str]) -> StepModel:
    """Return the model with an input speed that also stores its notes, by number of ranks and global batch."""
    pace = model.paced
    if pace is None:
        return model

    def paced(job: Job, step_s: float) -> tuple[Job, str] | None:
        limited = pace(job, step_s)
        if limited is not None:
            waits[job.cluster.count, job.training.batch] = limited[1]
        return limited

    return replace(model, paced=paced)


def _predicted_row(job: Job, point: ScalingRow) -> PredictedRanks:
    setting = setting_of(job)
    price = price_of(job, setting.device)
    assert point.throughput_samples_per_s is not None
    usd = None if price is None else price[0] * point.world / 3600 / point.throughput_samples_per_s * 1e6
    return PredictedRanks(
        count=point.world,
        nodes=setting.nodes,
        batch_per_rank=setting.batch_per_rank,
        step_time_s=point.step_time_s,
        throughput_samples_per_s=point.throughput_samples_per_s,
        communication_exposed_s=point.communication_exposed_s,
        usd_per_million_samples=usd,
        speed_up=point.speed_up,
        efficiency=point.efficiency,
    )


def _line(job: Job, record: Record) -> str:
    step = record["step_time_s"]
    shown = step.reason if step.value is None else f"{seconds(step.value)} a step"
    return f"{job.backend}, {job.cluster.count} × {per_rank(job)} samples: {shown}"

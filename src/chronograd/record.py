"""Record: the facts of a run. A prediction is a record of a run that has not happened yet.

A header states the job, the hardware, the versions, and the basis of the figures. Quantities have names; each has a value, a
unit, an interval, a count and a source. A missing value is null with a reason, never left out.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from chronograd import files
from chronograd.errors import FileFormatError

FORMAT = "chronograd-record"
VERSION = 1
INTERVAL = (0.1, 0.9)  # quantiles: `low` and `high` of every quantity, an 80 % interval
Z80 = 1.2816  # standard deviations from the middle to either bound of an 80 % interval of a normal distribution
# The normal distribution, as scipy.special has it; importing that takes longer than most answers.
_ERFC = np.vectorize(math.erfc, otypes=[float])
normal_quantile = np.vectorize(NormalDist().inv_cdf, otypes=[float])
ROUGH = "rough"  # first word of the note of a prediction without a basis for a part of the time
# A note with this first word lists assumptions, and is shown among the first lines.
ASSUMED = "Assumed"
CHOSEN = "Assumed: "  # first words of the note on values that the user did not state and that were chosen to fit
DOES_NOT_FIT = "does not fit"  # first words of the note of a prediction whose device has too little memory
WARMUP = 5  # first steps of every start, in which libraries set themselves up; step times exclude them

# The parts of a step, in order. Their sum is the step time.
STEP_PARTS = {
    "input_s": "input",
    "transfer_s": "transfer",
    "forward_s": "forward",
    "backward_s": "backward",
    "communication_exposed_s": "exposed communication",
    "update_s": "update",
}
# Parts that a rank measures itself. Exposed communication follows from steps with and without it, or from the rank's wait.
FORWARD_PARTS = ("input_s", "transfer_s", "forward_s")  # of inference
OWN_PARTS = tuple(name for name in STEP_PARTS if name != "communication_exposed_s")
# Every quantity of a record: its description, and its unit. Backends may add others.
QUANTITIES = {
    "step_time_s": ("step time", "s"),
    **{name: (f"{text} time per step", "s") for name, text in STEP_PARTS.items()},
    "communication_overlapped_s": ("communication hidden behind backward", "s"),
    "straggler_wait_s": ("waiting for the slowest rank, within exposed communication", "s"),
    "input_stall_s": ("waiting for the input pipeline, within input", "s"),
    "latency_s": ("latency of a batch", "s"),
    "latency_mean_s": ("latency, mean", "s"),
    "latency_p50_s": ("latency, median", "s"),
    "latency_p95_s": ("latency, 95th percentile", "s"),
    "latency_p99_s": ("latency, 99th percentile", "s"),
    "throughput_samples_per_s": ("throughput of all ranks", "sample/s"),
    "throughput_tokens_per_s": ("throughput of all ranks in tokens", "token/s"),
    "throughput_tokens_per_s_per_device": ("throughput of one device in tokens", "token/s"),
    "offered_requests_per_s": ("requests sent to a server", "request/s"),
    "throughput_requests_per_s": ("requests that a server answered", "request/s"),
    "failed_requests": ("requests without a good answer", "count"),
    "knee_requests_per_s": ("rate at which the mean latency is twice that of a lone request", "request/s"),
    "most_requests_per_s": ("most requests that a server can answer", "request/s"),
    "achieved_flops_per_s": ("achieved rate of matrix FLOPs per rank", "FLOP/s"),
    "mfu": ("model FLOPs utilisation (MFU)", "1"),
    "hfu": ("hardware FLOPs utilisation (HFU), with recomputation", "1"),
    "ppp": ("PALEO's percent of peak", "1"),
    "memory_peak_bytes": ("peak memory of one rank", "B"),
    "memory_resident_bytes": ("peak resident memory of one rank, beyond that at its start", "B"),
    "sent_bytes": ("bytes that a rank sends per step", "B"),
    "fit_probability": ("probability that the memory is enough", "probability"),
    "epoch_time_s": ("time per epoch", "s"),
    "epoch_compute_time_s": ("time per epoch without loading data", "s"),
    "training_time_s": ("training time", "s"),
    "wall_time_s": ("time from the first start to the record, all included", "s"),
    "stall_s": ("time lost while a rank was stopped or a link was silent", "s"),
    "redone_steps": ("steps done again after an interruption", "count"),
    "redone_s": ("time of the steps that were thrown away", "s"),
    "lost_s": ("wall time lost by interruptions, thrown away steps included", "s"),
    "cost_usd": ("cost of the run", "usd"),
    "cost_usd_per_hour": ("price of the cluster per hour", "usd"),
    "cost_usd_per_million_samples": ("cost of a million samples", "usd"),
    "cost_usd_per_million_tokens": ("cost of a million tokens", "usd"),
    "cost_usd_per_million_requests": ("cost of a million requests", "usd"),
    "test_accuracy": ("accuracy on the test split", "1"),
    "bits_per_byte": ("bits per byte", ""),
    "time_to_bits_per_byte_s": ("training time until the target of bits per byte", "s"),
    "mean_average_precision_area": ("mean average precision, area below the curve", "1"),
    "time_to_accuracy_s": ("training time until the target accuracy", "s"),
    "mean_return": ("mean return of evaluation episodes", ""),
    "best_return": ("best mean return of an evaluation", ""),
    "time_to_return_s": ("training time until the target return", "s"),
    "frames_to_return": ("frames until the target return", "count"),
    "frames": ("frames lived through in training", "count"),
    "throughput_frames_per_s": ("throughput in frames", "frame/s"),
    "updates_per_s": ("updates of the learner", "update/s"),
    "act_s": ("choosing an action, per step", "s"),
    "environment_s": ("the environment, per step", "s"),
    "replay_s": ("writing and sampling replay, per step", "s"),
    "learn_s": ("learning, per step", "s"),
    "epochs": ("epochs trained", "count"),
    "trained_params": ("parameters that were trained", "count"),
    "gradient_noise_scale": ("gradient noise scale tr(Σ)/|G|², the critical batch", "sample"),
    "staleness": ("updates by others between a learner's pull and its own update", "update"),
    "pull_s": ("a learner's wait for parameters, per update", "s"),
    "compute_s": ("a learner's gradient, per update", "s"),
    "push_s": ("a learner's wait for the servers to apply it, per update", "s"),
}


def normal_probability(z: Any) -> Any:
    """Return the probability that a standard normal variable is below z, a number or an array.

    >>> float(normal_probability(0.0)), round(float(normal_probability(Z80)), 3)
    (0.5, 0.9)
    """
    return 0.5 * _ERFC(-np.asarray(z) / math.sqrt(2))


class Quantity(BaseModel):
    """One figure. A missing one has `value` None and a `reason`.

    `low` and `high` bound the 80 % interval: of the timed steps if measured, of the uncertainty if predicted. `n` is the number
    of samples behind the value, `std` their standard deviation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    value: float | None
    unit: str
    low: float | None = None
    high: float | None = None
    n: int | None = None
    std: float | None = None
    source: str = ""
    reason: str = ""

    @classmethod
    def missing(cls, unit: str, reason: str) -> Quantity:
        return cls(value=None, unit=unit, reason=reason)

    @classmethod
    def of_samples(cls, samples: Sequence[float], unit: str, source: str) -> Quantity:
        """Return mean, 10th and 90th percentile, count and (for two or more) standard deviation of samples; or a missing
        quantity.

        The interval always contains the mean.

        >>> q = Quantity.of_samples([1.0, 2.0, 3.0], "s", "clock")
        >>> q.value, q.n
        (2.0, 3)
        """
        if len(samples) == 0:
            return cls.missing(unit, "no sample was taken")
        mean = float(np.mean(samples))
        low, high = np.quantile(samples, INTERVAL)
        low, high = min(low, mean), max(high, mean)  # a few long samples can move the mean beyond the 90th percentile
        std = float(np.std(samples, ddof=1)) if len(samples) > 1 else None
        return cls(value=mean, unit=unit, low=float(low), high=float(high), n=len(samples), std=std, source=source)


class Curve(BaseModel):
    """Columns of equal length against the first, such as epoch, seconds, loss, accuracy.

    `units` has one entry per column. A value that is not finite, as in a run that diverged, is None.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    columns: dict[str, list[float | None]]
    units: dict[str, str] = Field(default_factory=dict)
    source: str = ""

    @field_validator("columns")
    @classmethod
    def _finite(cls, columns: dict[str, list[float | None]]) -> dict[str, list[float | None]]:
        return {
            name: [v if v is not None and math.isfinite(v) else None for v in values]
            for name, values in columns.items()
        }


class RecordPart(BaseModel):
    """A part of a record: the fields that we read are typed, and all others stay.

    It is saved with its keys in their order, and those that were set later. Fields that nobody set are empty or None.
    """

    model_config = ConfigDict(extra="allow")
    _given: tuple[str, ...] = ()

    @model_validator(mode="wrap")
    @classmethod
    def _keep_order(cls, data: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        part = validate(data)
        if isinstance(data, dict):
            part._given = tuple(data)
        return part

    @model_serializer(mode="wrap")
    def _as_given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data = dump(self)
        names = [name for name in dict.fromkeys((*self._given, *data)) if name in data]
        return {name: data[name] for name in names if data[name] or name in self.model_fields_set}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordPart) and self.model_dump() == other.model_dump()

    def __bool__(self) -> bool:
        """Return whether anything was written."""
        return bool(self.model_fields_set)


Count = Annotated[int, Field(ge=1, le=10**9)]
Number = int | float
# Type of times, rates and work, which are never below 0.
Amount = Annotated[Number, Field(ge=0, le=1e30, allow_inf_nan=False)]
# The largest plausible value of a unit: 30,000 years, and more than any cluster computes.
MAX_OF_UNIT = {"s": 1e12, "sample/s": 1e15, "token/s": 1e15, "request/s": 1e15, "1": 1e6}
MAX_VALUE = 1e30
# Units of values that may be below 0: a return has no unit, a noise scale is an estimate.
_SIGNED = {"", "sample"}
# A difference of two measurements may be below 0.
_DIFFERENCES = ("communication_exposed_s", "communication_overlapped_s")
_ABOVE_0 = ("step_time_s", "throughput_samples_per_s")


class RecordedCluster(RecordPart):
    """The devices of a prediction, or the requested devices of a measurement.

    Attributes:
        device: its name in the catalogue; `title` in full. `ran_on`: the measured device, by its own name.
        count: of devices, one rank each. `worlds`: the counts of a record of scaling.
        link: the slowest link of an all-reduce. `threads`: of a rank.
    """

    device: str = ""
    title: str = ""
    count: Count | None = None
    worlds: list[Count] = []
    nodes: Count | None = None
    batch_per_rank: Count | None = None
    link: str | None = None
    per_node: Count | None = None
    all_reduce: str | None = None
    ran_on: str = ""
    threads: Number | None = None
    servers: Count | None = None


class Provenance(RecordPart):
    """The basis of a prediction, or the method of a measurement. Backends may add more.

    Attributes:
        sigma_log: standard deviation of the logarithm of times. `peak_flops_per_s`: the peak for utilisation.
        environment: of the machine, as in `environment.json` of the run; `run` is the run's name.
        attempts: starts of a training; `stopped` is why it ended.
    """

    predicted_from: str = ""
    calibration: dict[str, Any] = {}
    sigma_log: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] | None = None
    interval: str = ""
    peak_flops_per_s: Amount | None = None
    bandwidth_bytes_per_s: Amount | None = None
    precision: str = ""
    flops_per_step_per_rank: Amount | None = None
    gradient_bytes: Amount | None = None
    activation_checkpointing: str = ""
    zero_stage: int | None = None
    buckets: int | None = None
    step_sigma_log: Number | None = None
    left_out: str = ""
    date: str = ""
    environment: dict[str, Any] = {}
    run: str = ""
    method: str = ""
    stopped: str = ""
    attempts: int | None = None
    all_reduce: str | None = None
    processes: int | None = None
    formula: str = ""
    cores: int | None = None


class Named(RecordPart):
    """A network or a data set of a job."""

    name: str = ""


class TrainingHeader(RecordPart):
    """The fields of training that we read."""

    recipe: str = ""
    epochs: Number | None = None
    batch: Number | None = None
    target_accuracy: Number | None = None
    target_bits_per_byte: Number | None = None
    precision: str = ""
    seed: int | None = None


class AgentHeader(RecordPart):
    """The fields of an agent that we read."""

    algorithm: str = ""
    target_return: Number | None = None
    evaluation_epsilon: Number | None = None


class JobHeader(RecordPart):
    """The resolved job of a record, as data of `chronograd.job` in any version; empty for a loop without one."""

    task: str = ""
    mode: str = ""
    network: Named = Named()
    data: Named = Named()
    training: TrainingHeader = TrainingHeader()
    cluster: RecordedCluster = RecordedCluster()
    backend: str = ""
    reinforcement: AgentHeader = AgentHeader()


class Row(BaseModel):
    """A row of a table: the columns that we read are typed, and all others stay."""

    model_config = ConfigDict(frozen=True, extra="allow")


class OperatorKind(Row):
    """The part of a step of one kind of operator. `share` is that of the time; `flops` are those of matrix work."""

    kind: str
    operators: int = 0
    time_s: Amount
    flops: Amount = 0
    bytes: Amount = 0
    share: Amount = 0


class Layer(Row):
    """One module with its contents, or one operator; forward and backward of one step.

    Attributes:
        kind: class of the module, or kind of the operator.
        operators: launches.
        flops: matrix work and all other arithmetic.
        bytes: across the memory bus without fusion.
        bound: the longest at the peak rates: compute, memory, or launches.
        time_to_win_s: predicted time minus the ceiling; `share_of_ceiling` is their ratio.
    """

    name: str
    kind: str
    operators: int
    flops: Number
    bytes: Number
    ceiling_s: Number
    time_s: Number
    bound: str
    intensity_flops_per_byte: Number
    achieved_flops_per_s: Number
    share_of_ceiling: Number
    time_to_win_s: Number


class ScalingRow(Row):
    """A job with n ranks, and the known figures of its step. Times in seconds; None if unknown.

    Attributes:
        kind: `measured`, `predicted`, or `missing` with a `reason`.
        batch: the global, that is effective, batch; `per_rank` that of a rank.
        training_time_s, cost_usd: of all epochs of the job at this step time, if its samples make a whole batch. Cost needs a
            price.
        speed_up: throughput divided by that of one rank of the same kind; `efficiency`: divided by the number of ranks.
        iteration_growth: step time divided by that of one rank, the longer wait of a learner. 1 is ideal in weak scaling.
        compute_s: a step of a single rank with the same batch per rank, without waiting for input.
        input_stall_s: time that ranks wait for input, if known separately.
        communication_by_difference_s: step time minus both of these; `communication_exposed_s` as the ranks measured it.
        bandwidth_utilisation: see `compare.ranks.UTILISATION`; of the exposed communication.
    """

    scaling: str
    world: Count
    kind: Literal["measured", "predicted", "missing"]
    batch: Count
    per_rank: Count
    step_time_s: Amount | None = None
    low: Amount | None = None
    high: Amount | None = None
    n: int | None = None
    throughput_samples_per_s: Amount | None = None
    training_time_s: Amount | None = None
    cost_usd: Amount | None = None
    speed_up: Number | None = None
    efficiency: Number | None = None
    iteration_growth: Number | None = None
    compute_s: Number | None = None
    input_stall_s: Number | None = Field(None, exclude_if=lambda wait_s: wait_s is None)  # older records lack it
    communication_by_difference_s: Number | None = None
    communication_exposed_s: Number | None = None
    exposed_low_s: Number | None = None
    exposed_high_s: Number | None = None
    bandwidth_utilisation: Number | None = None
    device: str = ""
    backend: str = ""
    reason: str = ""


class AtWork(Row):
    """The time of a piece of work by an actor or a learner; seconds from the run's start."""

    role: str
    number: int
    start: Number
    end: Number


class Tables(RecordPart):
    """Rows for a report.

    Attributes:
        by_kind: operators of a step by kind. `layers`: under the roofline; `most_to_win` are those furthest above it.
        scaling: points on growing numbers of ranks.
        staleness: number of updates by staleness. `epochs`: times of an epoch by batch.
        timeline: of actors and learners, in the first seconds.
        step, stages, collectives: of a large model, seconds by part, memory of each pipeline stage, and exchanges.
    """

    by_kind: list[OperatorKind] = []
    layers: list[Layer] = []
    most_to_win: list[Layer] = []
    scaling: list[ScalingRow] = []
    staleness: list[dict[str, Any]] = []
    epochs: list[dict[str, Any]] = []
    timeline: list[AtWork] = []
    step: list[dict[str, Any]] = []
    stages: list[dict[str, Any]] = []
    collectives: list[dict[str, Any]] = []


class Record(BaseModel):
    """A header and named quantities, predicted or measured.

    Attributes:
        kind: predicted or measured.
        title: one line for a person.
        job: the resolved job.
        cluster: device name, count, links and further conditions of the figures.
        provenance: the basis of a prediction, or the method of a measurement.
        quantities: by name; see QUANTITIES for the usual ones.
        tables: rows for a report, such as time by kind of operator.
    """

    model_config = ConfigDict(extra="forbid")

    format: Literal["chronograd-record"] = "chronograd-record"
    version: Literal[1] = 1
    kind: Literal["predicted", "measured"]
    title: str
    created: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    job: JobHeader = Field(default_factory=JobHeader)
    cluster: RecordedCluster = Field(default_factory=RecordedCluster)
    backend: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    provenance: Provenance = Field(default_factory=Provenance)
    quantities: dict[str, Quantity] = Field(default_factory=dict)
    curves: dict[str, Curve] = Field(default_factory=dict)
    tables: Tables = Field(default_factory=Tables)
    notes: list[str] = Field(default_factory=list)

    @property
    def world(self) -> int:
        """Return the ranks, one for each device; 1 if the record does not state them."""
        return self.cluster.count or 1

    @property
    def device(self) -> str:
        """Return the name of the requested device."""
        return self.cluster.device or "unknown device"

    @property
    def device_name(self) -> str:
        """Return the measured device by its own name, or the title of the predicted device; empty if unknown."""
        return self.cluster.ran_on or self.cluster.title

    @property
    def global_batch(self) -> Number | None:
        """Return the samples of a step over all ranks, as in the job; None if it does not state them."""
        return self.job.training.batch

    def __getitem__(self, name: str) -> Quantity:
        """Return the quantity, or a missing one with a reason."""
        if name in self.quantities:
            return self.quantities[name]
        unit = QUANTITIES.get(name, ("", ""))[1]
        return Quantity.missing(unit, f"this record does not have {name}")

    def value(self, name: str) -> float:
        """Return the value of a quantity. Raises KeyError with its reason if it is missing."""
        quantity = self[name]
        if quantity.value is None:
            raise KeyError(f"{name}: {quantity.reason}")
        return quantity.value

    def put(self, name: str, quantity: Quantity) -> None:
        self.quantities[name] = quantity

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as JSON: aside, synced, renamed. Raises InputError if it cannot be written."""
        with files.as_asked(Path(path)):
            files.write_aside(Path(path), self.model_dump_json(indent=1))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Record:
        """Read a record file, or `record.json` of a run directory. Raises FileFormatError with the first error."""
        path = Path(path)
        if os.path.isdir(path):
            path = path / "record.json"
        try:
            record = cls.model_validate(files.read_json(path))
            for name, quantity in record.quantities.items():
                _check_figure(name, quantity)
            return record
        except FileNotFoundError:
            raise FileFormatError(f"no record at {path}", "`chronograd records` lists what there is") from None
        except OSError as error:
            raise FileFormatError(f"cannot read {path}: {error.strerror}") from None
        except ValidationError as error:
            raise FileFormatError(f"{path} is not a Chronograd record: {first_problem(error)}") from None
        except ValueError as error:
            raise FileFormatError(f"{path} is not a Chronograd record: {error}") from None


def _check_figure(name: str, quantity: Quantity) -> None:
    """Raise ValueError for an impossible figure: a time below 0, a rate of 0, an interval with swapped ends."""
    usual = QUANTITIES.get(name, ("", quantity.unit))[1]
    if quantity.unit != usual:
        raise ValueError(f"quantities.{name}.unit must be {usual!r}, got {quantity.unit!r:.80}")
    most = MAX_OF_UNIT.get(quantity.unit, MAX_VALUE)
    for part, value in (
        ("value", quantity.value),
        ("low", quantity.low),
        ("high", quantity.high),
        ("std", quantity.std),
    ):
        if value is not None and abs(value) > most:
            raise ValueError(f"quantities.{name}.{part} must be at most {most:g} {quantity.unit}, got {value:g}")
    value = quantity.value
    if value is not None and value < 0 and quantity.unit not in _SIGNED and name not in _DIFFERENCES:
        raise ValueError(f"quantities.{name}.value must not be below 0, got {value:g}")
    if value == 0 and name in _ABOVE_0:
        raise ValueError(f"quantities.{name}.value must be above 0, got 0")
    low, high = quantity.low, quantity.high
    if name not in _DIFFERENCES and low is not None and high is not None and low > high:
        raise ValueError(f"quantities.{name}: low is {low:g}, above high, {high:g}")


@dataclass
class QuantityDifference:
    """One quantity of two records side by side.

    `difference` is b - a, `ratio` is b / a and `error` is b / a - 1, None if either is missing. `intervals_overlap` states
    whether the two 80 % intervals do; a figure without one counts as its value.
    """

    name: str
    unit: str
    a: Quantity
    b: Quantity
    difference: float | None = field(init=False)
    ratio: float | None = field(init=False)
    intervals_overlap: bool | None = field(init=False)

    def __post_init__(self) -> None:
        a, b = self.a.value, self.b.value
        self.difference = None if a is None or b is None else b - a
        self.ratio = b / a if a and b is not None else None
        bounds = [_bounds(self.a), _bounds(self.b)]
        self.intervals_overlap = None
        if a is not None and b is not None:
            (a_low, a_high), (b_low, b_high) = bounds
            self.intervals_overlap = a_low <= b_high and b_low <= a_high

    @property
    def error(self) -> float | None:
        return None if self.ratio is None else self.ratio - 1


def subtract(a: Record, b: Record) -> list[QuantityDifference]:
    """Return every quantity of either record, in the order of QUANTITIES, then by name."""
    order = {name: i for i, name in enumerate(QUANTITIES)}
    names = sorted({*a.quantities, *b.quantities}, key=lambda n: (order.get(n, len(order)), n))
    return [QuantityDifference(n, (a[n].unit or b[n].unit), a[n], b[n]) for n in names]


def first_problem(error: ValidationError) -> str:
    """Return the first error of a file, and its place."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}"


def _bounds(q: Quantity) -> tuple[float, float]:
    value = math.nan if q.value is None else q.value
    return (value if q.low is None else q.low, value if q.high is None else q.high)

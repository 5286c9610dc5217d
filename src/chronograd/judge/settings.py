"""Settings near the setting of a figure: their predictions, those that explain the figure, and those that would beat it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chronograd.errors import ChronogradError
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device
from chronograd.job import Job, changed
from chronograd.plan.largest import with_fitting_batch
from chronograd.plan.settings import largest_batch
from chronograd.predict.prediction import predict
from chronograd.record import DOES_NOT_FIT, Quantity, Record
from chronograd.trace import Trace

# A function that returns the trace of a job's network in a mode: training or inference.
TraceOf = Callable[[Job, str], Trace]

# The largest batch of a device to try, the largest to assume, and the share of the best throughput that is enough.
MAX_BATCH = 2048
USUAL_BATCH = 256
ENOUGH = 0.98
# If the batch was assumed, the figure may be of a batch down to this fraction of it.
SMALLER_BATCH = 16
# Smaller predicted gains are not shown.
MIN_GAIN = 0.03
# This many changes of layout, precision, batch or card are as likely as one wrong assumption about the compiler. Assumed.
RARE = 3
# Micro-batches between two exchanges of gradients.
ACCUMULATION = 4
_HALF = ("bf16", "fp16")
PRECISION_NAMES = {"bf16": "bf16 (autocast)", "fp16": "fp16 (autocast)", "tf32": "TF32", "fp32": "fp32"}


@dataclass(frozen=True)
class Option:
    """A setting, described by its differences from the given one, and its prediction.

    `learnt`: ratio of published figures of a similar setting to its prediction, with their interval.
    """

    words: tuple[str, ...]
    changes: tuple[str, ...]
    record: Record
    learnt: Quantity | None = None

    def as_data(self) -> dict[str, Any]:
        return {"words": self.words, "changes": self.changes, "samples_per_s": self.rate}

    @property
    def rate(self) -> Quantity:
        """Return the samples per second of all devices."""
        q = self.record["throughput_samples_per_s"]
        if self.learnt is None:
            return q
        own = q.value or 0.0
        bounds = {name: own * (getattr(self.learnt, name) or 0.0) for name in ("value", "low", "high")}
        return q.model_copy(update=bounds)

    @property
    def samples_per_s(self) -> float:
        return self.rate.value or 0.0

    @property
    def fields(self) -> set[str]:
        """Return the fields of the job that it changes."""
        return {change.partition("=")[0] for change in self.changes}

    def holds(self, rate: float) -> bool:
        """Return whether a figure is in the 80 % interval."""
        q = self.rate
        return q.low is not None and q.high is not None and q.low <= rate <= q.high

    def order(self, rate: float) -> tuple[bool, int, float]:
        """Return a sort key: first the likeliest change, then the nearest prediction.

        Reports often omit the memory format or the precision, but rarely the compiler.
        """
        weight = sum(RARE if change.startswith("training.compile=") else 1 for change in self.changes)
        return not self.changes, weight, abs(math.log(rate / self.samples_per_s))


@dataclass(frozen=True)
class Near:
    """The settings near a job's, each predicted on demand. Settings that cannot be predicted or do not fit are left out.

    `learnt`: ratio of published figures of the job's setting to its prediction; it applies to the same precision and mode.
    """

    job: Job
    mode: str
    trace_of: TraceOf
    learnt: Quantity | None = None

    @property
    def device(self) -> Device:
        return catalog.device(self.job.cluster.device)

    def option(self, words: Sequence[str] = (), changes: Sequence[str] = (), mode: str = "") -> Option:
        """Return a setting. Raises as `changed` and `predict`."""
        job = changed(self.job, list(changes)) if changes else self.job
        is_alike = job.training.precision == self.job.training.precision and mode in ("", self.mode)
        record = predict(self.trace_of(job, mode or self.mode), job)
        return Option(tuple(words), tuple(changes), record, self.learnt if is_alike else None)

    def _options(self, candidates: Sequence[tuple[Sequence[str], Sequence[str]]], mode: str = "") -> Iterator[Option]:
        for words, changes in candidates:
            try:
                option = self.option(words, changes, mode)
            except ChronogradError:  # such as a precision that the device lacks, or a trace of another layout
                continue
            if not misfit_of(option.record):
                yield option

    def precisions(self) -> list[tuple[list[str], list[str]]]:
        """Return the device's other precisions. Of bf16 and fp16 it takes bf16 if available, for its range."""
        own, peaks = self.job.training.precision, self.device.peak_flops_per_s
        left_out = _HALF if own in _HALF else ("fp16",) if "bf16" in peaks else ()
        has = [name for name in PRECISION_NAMES if name in peaks and name not in (own, *left_out)]
        held = ["training.param_dtype=fp32"] if self.job.training.is_pure else []
        return [([PRECISION_NAMES[name]], [f"training.precision={name}", *held]) for name in has]

    def explanations(self, rate: float, with_batches: bool = False) -> list[Option]:
        """Return settings in which the figure is as expected, and closer than in its own; those with the smallest changes
        first.

        If one option's changes include another's, only the smaller one is returned.

        Args:
            with_batches: also try smaller batches.
        """
        layout = _toggled(self.job.training.channels_last, "channels_last", "channels last", "channels first")
        compiled = _toggled(bool(self.job.training.compile), "compile", "compiled", "not compiled")
        own = self.job.images_per_rank
        smaller = [2**k for k in range(11) if own <= SMALLER_BATCH * 2**k < SMALLER_BATCH * own] if with_batches else []
        cards = [
            ([card.name], [f"cluster.device={card.name}"]) for card in catalog.variants(self.job.cluster.device)[1:]
        ]
        options = [
            *self._options([*self.precisions(), layout, compiled, *cards]),
            *_nearest(rate, list(self._options([self._batch(size) for size in smaller]))),
            *self._options([([*a, *b], [*c, *d]) for a, c in self.precisions() for b, d in (layout, compiled)]),
        ]
        if self.mode == "training":
            options += self._options([(["the forward pass only"], [])], "inference")
        far = self.option().order(rate)[-1]
        options = [option for option in options if option.holds(rate) and option.order(rate)[-1] < far - MIN_GAIN]
        fitting = sorted(options, key=lambda option: option.order(rate))
        return [o for o in fitting if not any(set(other.words) < set(o.words) for other in fitting)]

    def gains(self) -> tuple[list[Option], Option | None]:
        """Return the three changes with the largest predicted gains, each alone, and all of them together."""
        base = self.option().samples_per_s
        groups = [self.precisions(), self._batches(), self._layouts(), self._compiler(), self._exchanges()]
        best = [option for group in groups for option in _best(list(self._options(group)))]
        worth = [option for option in best if option.samples_per_s > (1 + MIN_GAIN) * base]
        worth = sorted(worth, key=lambda option: -option.samples_per_s)[:3]
        together: list[Option] = []
        for option in worth:  # change each field once
            if not option.fields & {name for one in together for name in one.fields}:
                together.append(option)
        if len(together) < 2:
            return worth, None
        words = [word for option in together for word in option.words]
        return worth, next(self._options([(words, [change for one in together for change in one.changes])]), None)

    def _batches(self) -> list[tuple[list[str], list[str]]]:
        own = self.job.images_per_rank
        most = min(MAX_BATCH, fitting_batch(self.trace_of(self.job, self.mode), self.job))
        return [self._batch(2**k) for k in range(1, 12) if own < 2**k <= most]

    def _batch(self, size: int) -> tuple[list[str], list[str]]:
        """Return the change to `size` samples on each device."""
        count = self.job.cluster.count
        return [f"batch {size}{' per device' if count > 1 else ''}"], [f"training.batch={size * count}"]

    def _layouts(self) -> list[tuple[list[str], list[str]]]:
        is_best = self.job.training.channels_last or self.device.kind != "gpu"
        return [] if is_best else [(["channels last"], ["training.channels_last=true"])]

    def _compiler(self) -> list[tuple[list[str], list[str]]]:
        return [] if self.job.training.compile else [(["torch.compile"], ["training.compile=true"])]

    def _exchanges(self) -> list[tuple[list[str], list[str]]]:
        job = self.job
        if job.cluster.count == 1 or self.mode != "training":
            return []
        parts, batch = ACCUMULATION * job.training.accumulation, ACCUMULATION * job.training.batch
        several = ([f"accumulate {ACCUMULATION} batches before an exchange"],
                   [f"training.batch={batch}", f"training.accumulation={parts}"])  # fmt: skip
        half = (["gradients sent in fp16"], ["communication.compression=fp16"])
        return [several] if job.communication.compression == "fp16" else [half, several]


def misfit_of(record: Record) -> str:
    """Return the note that the device has too little memory; empty if it has enough."""
    return next((note for note in record.notes if note.startswith(DOES_NOT_FIT)), "")


def fitting_batch(trace: Trace, job: Job) -> int:
    """Return the largest batch of one device that is predicted to fit; 0 if none does."""
    return largest_batch(trace, job).batch


def with_usual_batch(trace: Trace, job: Job) -> Job:
    """Return a job with the batch to assume if none is stated: USUAL_BATCH on each device, or the largest power of two that fits."""
    return with_fitting_batch(trace, changed(job, [f"training.batch={USUAL_BATCH * job.cluster.count}"]))


def _toggled(is_on: bool, field: str, on: str, off: str) -> tuple[list[str], list[str]]:
    return [off if is_on else on], [f"training.{field}={str(not is_on).lower()}"]


def _nearest(rate: float, options: Sequence[Option]) -> list[Option]:
    """Return the option with the prediction closest to a figure, among settings that exclude each other."""
    return sorted(options, key=lambda option: option.order(rate))[:1]


def _best(options: Sequence[Option]) -> list[Option]:
    """Return the first option close to the best one, among settings that exclude each other."""
    if not options:
        return []
    most = max(option.samples_per_s for option in options)
    return [next(option for option in options if option.samples_per_s >= ENOUGH * most)]

"""Settings near the one that a figure is of: what each is predicted to give, what would explain a figure, what would beat it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chronograd.errors import ChronogradError
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device
from chronograd.job import Job, changed
from chronograd.plan.settings import largest_batch
from chronograd.predict.prediction import predict
from chronograd.record import Quantity, Record
from chronograd.trace import Trace

# The trace of a job's network in a mode: training or inference.
TraceOf = Callable[[Job, str], Trace]

# The largest batch of a device that is tried or assumed, and how much of the best is enough.
MAX_BATCH, USUAL_BATCH, ENOUGH = 2048, 256, 0.98
# Of the batch that was assumed a figure may be of a sixteenth.
SMALLER_BATCH = 16
# What is predicted to give less is not named.
MIN_GAIN = 0.03
# How many changes of layout, precision, batch or card are as likely as one that the network was compiled or not. Assumed.
RARE = 3
# Micro-batches between two exchanges of gradients.
ACCUMULATION = 4
_HALF = ("bf16", "fp16")
PRECISION_NAMES = {"bf16": "bf16 (autocast)", "fp16": "fp16 (autocast)", "tf32": "TF32", "fp32": "fp32"}


@dataclass(frozen=True)
class Option:
    """A setting, in words, by what differs from the one asked about, and what it is predicted to give.

    `learnt`: what published figures of a like setting are over its prediction, with their interval.
    """

    words: tuple[str, ...]
    changes: tuple[str, ...]
    record: Record
    learnt: Quantity | None = None

    def as_data(self) -> dict[str, Any]:
        return {"words": self.words, "changes": self.changes, "samples_per_s": self.rate}

    @property
    def rate(self) -> Quantity:
        """Samples per second of all devices."""
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
        """Fields of the job that it changes."""
        return {change.partition("=")[0] for change in self.changes}

    def holds(self, rate: float) -> bool:
        """Whether a figure is in the 80 % interval."""
        q = self.rate
        return q.low is not None and q.high is not None and q.low <= rate <= q.high

    def order(self, rate: float) -> tuple[bool, int, float]:
        """Sort key: first the likeliest change, then the nearest prediction.

        A memory format or a precision is easily left out of a report; that a network was compiled rarely is.
        """
        weight = sum(RARE if change.startswith("training.compile=") else 1 for change in self.changes)
        return not self.changes, weight, abs(math.log(rate / self.samples_per_s))


@dataclass(frozen=True)
class Near:
    """The settings near a job's, each predicted when it is asked for. What cannot be predicted is left out.

    `learnt`: what published figures of the job's setting are over its prediction; it holds for the same precision and mode.
    """

    job: Job
    mode: str
    trace_of: TraceOf
    learnt: Quantity | None = None

    @property
    def device(self) -> Device:
        return catalog.device(self.job.cluster.device)

    def option(self, words: Sequence[str] = (), changes: Sequence[str] = (), mode: str = "") -> Option:
        """A setting. Raises as `changed` and `predict`."""
        job = changed(self.job, list(changes)) if changes else self.job
        is_alike = job.training.precision == self.job.training.precision and mode in ("", self.mode)
        record = predict(self.trace_of(job, mode or self.mode), job)
        return Option(tuple(words), tuple(changes), record, self.learnt if is_alike else None)

    def _options(self, candidates: Sequence[tuple[Sequence[str], Sequence[str]]], mode: str = "") -> Iterator[Option]:
        for words, changes in candidates:
            try:
                yield self.option(words, changes, mode)
            except ChronogradError:  # such as a precision that the device lacks, or a trace of another layout
                continue

    def precisions(self) -> list[tuple[list[str], list[str]]]:
        """The device's other precisions, of the two halves the one with the range of fp32."""
        own, peaks = self.job.training.precision, self.device.peak_flops_per_s
        left_out = _HALF if own in _HALF else ("fp16",) if "bf16" in peaks else ()
        has = [name for name in PRECISION_NAMES if name in peaks and name not in (own, *left_out)]
        held = ["training.param_dtype=fp32"] if self.job.training.is_pure else []
        return [([PRECISION_NAMES[name]], [f"training.precision={name}", *held]) for name in has]

    def explanations(self, rate: float, with_batches: bool = False) -> list[Option]:
        """Settings in which a figure is as expected, and nearer than in its own, those that differ least first.

        If one option's changes include another's, only the smaller one is returned.

        Args:
            with_batches: try smaller batches, too.
        """
        layout = _toggled(self.job.training.channels_last, "channels_last", "channels last", "channels first")
        compiled = _toggled(bool(self.job.training.compile), "compile", "compiled", "not compiled")
        own = self.job.images_per_rank
        smaller = [2**k for k in range(11) if own <= SMALLER_BATCH * 2**k < SMALLER_BATCH * own] if with_batches else []
        options = [
            *self._options([*self.precisions(), layout, compiled, *self._cards()]),
            *_nearest(rate, list(self._options([self._batch(size) for size in smaller]))),
            *self._options([([*a, *b], [*c, *d]) for a, c in self.precisions() for b, d in (layout, compiled)]),
        ]
        if self.mode == "training":
            options += self._options([(["the forward pass alone"], [])], "inference")
        far = self.option().order(rate)[-1]
        options = [option for option in options if option.holds(rate) and option.order(rate)[-1] < far - MIN_GAIN]
        fitting = sorted(options, key=lambda option: option.order(rate))
        return [o for o in fitting if not any(set(other.words) < set(o.words) for other in fitting)]

    def gains(self) -> tuple[list[Option], Option | None]:
        """The three changes that are predicted to gain most, each by itself, and all of them together."""
        base = self.option().samples_per_s
        groups = [self.precisions(), self._batches(), self._layouts(), self._compiler(), self._exchanges()]
        best = [option for group in groups for option in _best(list(self._options(group)))]
        worth = [option for option in best if option.samples_per_s > (1 + MIN_GAIN) * base]
        worth = sorted(worth, key=lambda option: -option.samples_per_s)[:3]
        together: list[Option] = []
        for option in worth:  # a field can be changed once
            if not option.fields & {name for one in together for name in one.fields}:
                together.append(option)
        if len(together) < 2:
            return worth, None
        words = [word for option in together for word in option.words]
        return worth, next(self._options([(words, [change for one in together for change in one.changes])]), None)

    def _cards(self) -> list[tuple[list[str], list[str]]]:
        """The other cards that the device's name may mean."""
        others = catalog.variants(self.job.cluster.device)[1:]
        return [([card.name], [f"cluster.device={card.name}"]) for card in others]

    def _batches(self) -> list[tuple[list[str], list[str]]]:
        own = self.job.images_per_rank
        most = min(MAX_BATCH, fitting_batch(self.trace_of(self.job, self.mode), self.job))
        return [self._batch(2**k) for k in range(1, 12) if own < 2**k <= most]

    def _batch(self, size: int) -> tuple[list[str], list[str]]:
        """So many samples on each device."""
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


def fitting_batch(trace: Trace, job: Job) -> int:
    """The largest batch of one device that is predicted to fit; 0 if none does."""
    return largest_batch(trace, job).batch


def usual_batch(trace: Trace, job: Job) -> int:
    """What is assumed of a device's batch where it is not said: the largest power of two that fits, up to 256."""
    most = max(1, min(USUAL_BATCH, fitting_batch(trace, job)))
    return int(2 ** int(math.log2(most)))


def _toggled(is_on: bool, field: str, on: str, off: str) -> tuple[list[str], list[str]]:
    return [off if is_on else on], [f"training.{field}={str(not is_on).lower()}"]


def _nearest(rate: float, options: Sequence[Option]) -> list[Option]:
    """Of settings that exclude each other the one that is predicted nearest to a figure."""
    return sorted(options, key=lambda option: option.order(rate))[:1]


def _best(options: Sequence[Option]) -> list[Option]:
    """Of settings that exclude each other the first that comes near the best."""
    if not options:
        return []
    most = max(option.samples_per_s for option in options)
    return [next(option for option in options if option.samples_per_s >= ENOUGH * most)]

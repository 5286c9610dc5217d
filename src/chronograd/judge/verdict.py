"""The verdict on one throughput (impossible, suspicious, as expected or slow), and its evidence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from chronograd.answer import as_json
from chronograd.errors import ChronogradError, InputError
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device
from chronograd.job import Job, changed
from chronograd.judge import published
from chronograd.judge.claim import Claim
from chronograd.judge.limits import Limit, limit_of
from chronograd.judge.published import JudgedSetting, PublishedRow
from chronograd.judge.settings import Near, Option, TraceOf, misfit_of, with_usual_batch
from chronograd.predict.notes import only_layout
from chronograd.record import Z80, Quantity
from chronograd.trace import Trace

# A setting that does not fit has no verdict, because it cannot have run.
Verdict = Literal["impossible", "does not fit", "suspicious", "as expected", "slow"]

# Standard deviation of the log throughput between two set-ups of one kind: versions, clocks, coolers, loaders. Assumed.
OTHER_SETUP = 0.1
# The same for a figure of another card of the line, scaled by the ratio of the two predictions. Assumed.
OTHER_CARD = 0.15
# Difference of logarithms up to which two figures count as the same one, rounded.
SAME = 0.02
# Maximum number of published figures and explanations to show.
MAX_PUBLISHED, MAX_EXPLANATIONS = 5, 3


@dataclass(frozen=True)
class Stated:
    """The stated parts of a setting: batch, memory format and precision, and a device name that may mean several cards.

    Attributes:
        device: the user's name for the device if it may mean several cards; otherwise only the job's device is tried.
    """

    has_batch: bool = True
    has_layout: bool = True
    has_precision: bool = True
    device: str = ""


@dataclass(frozen=True)
class Judged:
    """The result of `judge` for one figure.

    Attributes:
        job: the setting, with an assumed batch if none was given.
        rate: samples per second of all devices. `most`: the maximum of the device.
        predicted: the model's prediction for the setting. `expected`: the prediction combined with published figures.
        rows: published figures of the network on the device or its variants, nearest first; `alike` those of the setting.
        carried: figures of this setting on other cards of the line, scaled by predictions to this one; empty if `alike` is not.
        is_batch_assumed: the batch was not given.
        assumed: changes to values that the user left open (memory format, precision, card), with which the figure is as
            expected.
        named: the user's name for the device, if it may mean several cards.
        is_circular: the calibration was fitted to one of `alike`.
        same_elsewhere: published figures of other settings with nearly this value, which may have been copied.
        explanations: settings in which the figure is as expected, if it is not in its own.
        gains: changes with the largest predicted gains; `together` all of them.
        network: its name; for a saved trace the name in it.
        only_layout: a sentence if the memory layout is open and a saved trace has only one.
    """

    claim: Claim
    job: Job
    mode: str
    device: Device
    verdict: Verdict
    rate: float
    limit: Limit
    most: float
    predicted: Option
    expected: Quantity
    rows: tuple[PublishedRow, ...]
    alike: tuple[PublishedRow, ...]
    is_circular: bool
    is_batch_assumed: bool
    tokens: int = 1
    carried: tuple[PublishedRow, ...] = ()
    assumed: tuple[str, ...] = ()
    named: str = ""
    same_elsewhere: tuple[PublishedRow, ...] = ()
    explanations: tuple[Option, ...] = ()
    gains: tuple[Option, ...] = ()
    together: Option | None = None
    network: str = ""
    only_layout: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        training, tokens_per_s = self.job.training, self.rate * self.tokens
        return {
            "verdict": self.verdict,
            "samples_per_s": self.rate,
            **({"tokens_per_s": tokens_per_s} if self.tokens > 1 else {}),
            "setting": {
                "network": self.network,
                "mode": self.mode,
                "device": self.device.name,
                "devices": self.job.cluster.count,
                "precision": training.precision,
                "param_dtype": training.param_dtype,
                "batch": training.batch,
                "is_batch_assumed": self.is_batch_assumed,
                "channels_last": training.channels_last,
                "is_layout_assumed": self.is_layout_assumed,
                "assumed": self.assumed,
                **({"only_layout": self.only_layout} if self.only_layout else {}),
                "compile": training.compile,
            },
            "share_of_expected": self.of_expected,
            "quantile": self.quantile,
            "expected_samples_per_s": self.expected,
            "predicted_samples_per_s": self.predicted.rate,
            "calibration": self.predicted.record.provenance.calibration,
            "is_circular": self.is_circular,
            "most_samples_per_s": self.most,
            "limit": self.limit,
            "published": [{**as_json(row), "is_alike": row in self.alike} for row in self.rows[:MAX_PUBLISHED]],
            "explanations": self.explanations[:MAX_EXPLANATIONS],
            "gains": self.gains,
            "together": self.together,
        }

    @property
    def is_layout_assumed(self) -> bool:
        """Return whether channels last was assumed."""
        return "training.channels_last=true" in self.assumed

    @property
    def of_expected(self) -> float:
        """Return the figure as a fraction of the expected one."""
        return self.rate / (self.expected.value or math.nan)

    @property
    def quantile(self) -> float:
        """Return the quantile of the figure in the expected distribution, 0 to 1."""
        low, high = self.expected.low or math.nan, self.expected.high or math.nan
        sigma = math.log(high / low) / (2 * Z80)
        return 0.5 * (1 + math.erf(math.log(self.of_expected) / sigma / math.sqrt(2)))


def judge(
    claim: Claim,
    job: Job,
    trace_of: TraceOf,
    *,
    mode: str = "training",
    stated: Stated = Stated(),
    rows: Sequence[PublishedRow] | None = None,
    with_advice: bool = True,
) -> Judged:
    """Judge a throughput of a job's setting.

    Args:
        stated: values that the user stated. If the figure is too high, or the setting does not fit, we also try other memory formats, precisions and cards
            that the user left open. We assume the first in which the figure is as expected.
        rows: published figures, instead of the whole table.
        with_advice: also look for explanations and gains, which takes a second or two.
    Raises: InputError for a time of a step without its batch; as `predict` for the rest.
    """
    named = stated.device
    one = replace(_judge(claim, job, trace_of, mode, stated.has_batch, rows, with_advice), named=named)
    if not stated.has_layout and one.network != job.network.name:
        one = replace(one, only_layout=tuple(only_layout(job, [trace_of(job, mode)])))
    if one.verdict not in ("suspicious", "impossible", "does not fit"):
        return one
    cards = catalog.variants(named)[1:] if named else []
    for changes in _left_open(one.job, stated, cards):
        try:
            other = _judge(claim, changed(one.job, list(changes)), trace_of, mode, True, rows, with_advice)
        except ChronogradError:  # such as a precision that the card lacks, or a given trace of another layout
            continue
        if other.verdict == "as expected":
            return replace(other, is_batch_assumed=one.is_batch_assumed, assumed=changes, named=named,
                           only_layout=one.only_layout)  # fmt: skip
    return one


def _left_open(job: Job, stated: Stated, others: Sequence[Device]) -> Iterator[tuple[str, ...]]:
    """Yield changes to values that the user left open, single ones first: memory format, card, then precision."""
    layouts = [] if stated.has_layout or job.training.channels_last else ["training.channels_last=true"]
    cards = [f"cluster.device={card.name}" for card in others]
    peaks = catalog.device(job.cluster.device).peak_flops_per_s
    precisions = (
        [] if stated.has_precision else [f"training.precision={name}" for name in ("tf32", "fp16") if name in peaks]
    )
    choices = list(itertools.product(["", *layouts], ["", *cards], ["", *precisions]))
    changes = [tuple(part for part in choice if part) for choice in choices]
    yield from sorted(filter(None, changes), key=len)


def _judge(
    claim: Claim,
    job: Job,
    trace_of: TraceOf,
    mode: str,
    has_batch: bool,
    rows: Sequence[PublishedRow] | None,
    with_advice: bool,
) -> Judged:
    """Return the verdict on one setting; arguments as for `judge`."""
    trace = trace_of(job, mode)
    if not has_batch:
        if claim.per in ("seconds per step", "steps per second"):
            raise InputError(f"{claim.text} needs the batch of a step", "give --batch")
        job = with_usual_batch(trace, job)
    near = Near(job, mode, trace_of)
    device, predicted = near.device, near.option()
    tokens = tokens_of(trace, claim)
    rate = claim.samples_per_s(job.training.images_per_step, job.cluster.count, tokens)
    limit = limit_of(trace, job.images_per_rank, device, job.training.precision)
    most = job.training.images_per_step / limit.least_s
    setting = setting_of(trace, job, device, mode)
    others = published.of_network(setting, rows)
    alike = [row for row in others if published.is_alike(row, setting)]
    carried = [] if alike else list(_carried(others, setting, near, predicted))
    expected = expected_of(predicted, alike) if alike else expected_of(predicted, carried, OTHER_CARD)
    verdict = verdict_of(rate, most, expected, [row.samples_per_s for row in alike or carried])
    if verdict != "impossible" and not alike and misfit_of(predicted.record):  # published figures show that it can run
        verdict = "does not fit"
    if alike or carried:
        bounds = {name: (getattr(expected, name) or 0.0) / predicted.samples_per_s for name in ("value", "low", "high")}
        near = replace(near, learnt=Quantity(unit="1", **bounds))
    wants_why = with_advice and verdict != "as expected"
    explanations = near.explanations(rate, with_batches=not has_batch) if wants_why else ()
    wants_gains = with_advice and verdict in ("as expected", "slow")
    gains, together = near.gains() if wants_gains else ((), None)
    fitted = predicted.record.provenance.calibration.get("table")
    return Judged(
        claim=claim,
        job=job,
        mode=mode,
        device=device,
        verdict=verdict,
        rate=rate,
        limit=limit,
        most=most,
        predicted=predicted,
        expected=expected,
        rows=tuple(others),
        alike=tuple(alike),
        carried=tuple(carried),
        is_circular=any(row.source.fitted == fitted for row in alike if row.source.fitted),
        is_batch_assumed=not has_batch,
        tokens=tokens,
        same_elsewhere=tuple(row for row in _same_elsewhere(setting, rate, rows) if row not in alike),
        explanations=tuple(explanations),
        gains=tuple(gains),
        together=together,
        network=trace.network,
    )


def _same_elsewhere(setting: JudgedSetting, rate: float, rows: Sequence[PublishedRow] | None) -> Iterator[PublishedRow]:
    """Yield published figures on the same devices, in training or inference, with nearly the same value."""
    for mode in ("training", "inference"):
        for row in published.of_network(replace(setting, mode=mode), rows):
            is_here = (row.device, row.devices) == (setting.device, setting.devices)
            if is_here and abs(math.log(row.samples_per_s / rate)) <= SAME:
                yield row


def _carried(
    rows: Sequence[PublishedRow], setting: JudgedSetting, near: Near, predicted: Option
) -> Iterator[PublishedRow]:
    """Yield the figures of this setting on other cards of the line, scaled by the ratio of the predictions for the two cards."""
    sisters = [row for row in rows if row.device != setting.device and published.is_sister(row, setting)]
    cards = {row.device for row in sisters if catalog.device(row.device).chip == near.device.chip}
    here = predicted.samples_per_s
    ratios = {card: here / near.option(changes=[f"cluster.device={card}"]).samples_per_s for card in cards}
    for row in sisters:
        if row.device in ratios:
            yield replace(row, samples_per_s=row.samples_per_s * ratios[row.device])


def tokens_of(trace: Trace, claim: Claim) -> int:
    """Return the tokens of a sample. Raises InputError if the figure counts tokens but samples have none."""
    shape = trace.input_shapes[0][1:]
    if len(shape) == 1:
        return int(shape[0].const)
    if claim.per == "tokens per second":
        raise InputError(f"{claim.text!r} counts tokens, but samples of {trace.network} are {len(shape)}-dimensional",
                         "give samples or images per second")  # fmt: skip
    return 1


def verdict_of(rate: float, most: float, expected: Quantity, alike: Sequence[float]) -> Verdict:
    """Return the verdict from the figure, the limit, the 80 % interval, and published figures of that setting.

    A figure between two published ones is as expected.
    """
    low = min([expected.low or 0.0, *alike])
    high = max([expected.high or math.inf, *alike])
    if rate > most:
        return "impossible"
    return "suspicious" if rate > high else "slow" if rate < low else "as expected"


def expected_of(predicted: Option, alike: Sequence[PublishedRow], least_spread: float = OTHER_SETUP) -> Quantity:
    """Combine a prediction with published figures of the setting: a mean of logarithms, weighted by inverse variance.

    The published figures count as one, with the spread between them or `least_spread`, because their set-ups have common
    errors.
    """
    own, sigma = predicted.samples_per_s, float(predicted.record.provenance.sigma_log or 0.0)
    if not alike:
        return predicted.rate
    logs = np.log([row.samples_per_s for row in alike])
    weights = np.array([sigma, max(least_spread, float(np.std(logs)))]) ** -2.0
    middle = float(np.average([math.log(own), float(np.mean(logs))], weights=weights))
    spread = Z80 * float(weights.sum()) ** -0.5
    low, value, high = (math.exp(middle + side * spread) for side in (-1, 0, 1))
    return Quantity(value=value, unit="sample/s", low=low, high=high, source=f"predicted, and {len(alike)} published")


def setting_of(trace: Trace, job: Job, device: Device, mode: str) -> JudgedSetting:
    """Return the setting by which published figures are compared."""
    training = job.training
    return JudgedSetting(
        trace.network,
        trace.params,
        int(trace.input_shapes[0][-1].const),
        mode,
        device.name,
        job.cluster.count,
        training.precision,
        job.images_per_rank,
        training.channels_last,
        bool(training.compile),
    )

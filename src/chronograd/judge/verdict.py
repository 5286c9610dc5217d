"""The verdict on one throughput: impossible, suspicious, as expected or slow, and what it rests on."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from chronograd.errors import ChronogradError, InputError
from chronograd.hardware.catalog import Device
from chronograd.job import Job, changed
from chronograd.judge import published
from chronograd.judge.claim import Claim
from chronograd.judge.limits import Limit, limit_of
from chronograd.judge.published import Row, Setting
from chronograd.judge.settings import Near, Option, TraceOf, usual_batch
from chronograd.record import Z80, Quantity
from chronograd.trace import Trace

Verdict = Literal["impossible", "suspicious", "as expected", "slow"]

# Standard deviation of the log throughput between two set-ups of one kind: versions, clocks, coolers, loaders. Assumed.
OTHER_SETUP = 0.1
# Of the logarithm: figures that are so near each other are the same one, rounded.
SAME = 0.02


@dataclass(frozen=True)
class Judged:
    """What is known of one figure.

    Attributes:
        job: the setting, with the batch that was assumed where none was given.
        rate: samples per second of all devices. `most`: what the device could do at most.
        predicted: the setting itself, as the model has it. `expected`: with what was published of it.
        rows: published figures of the network on the device or its variants, nearest first; `alike` those of the setting.
        is_batch_assumed, is_layout_assumed: the batch was not given; channels last was not, and fits where first does not.
        is_circular: the calibration was fitted to one of `alike`.
        same_elsewhere: published figures of other settings that are nearly this one: what may have been copied.
        explanations: settings in which the figure is as expected, where it is not in its own.
        gains: changes that are predicted to gain most; `together` all of them.
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
    rows: tuple[Row, ...]
    alike: tuple[Row, ...]
    is_circular: bool
    is_batch_assumed: bool
    tokens: int = 1
    is_layout_assumed: bool = False
    same_elsewhere: tuple[Row, ...] = ()
    explanations: tuple[Option, ...] = ()
    gains: tuple[Option, ...] = ()
    together: Option | None = None

    @property
    def of_expected(self) -> float:
        """The figure as a share of what is expected."""
        return self.rate / (self.expected.value or math.nan)

    @property
    def quantile(self) -> float:
        """Where the figure is in what is expected, 0 to 1: the share of the belief that lies below it."""
        low, high = self.expected.low or math.nan, self.expected.high or math.nan
        sigma = math.log(high / low) / (2 * Z80)
        return 0.5 * (1 + math.erf(math.log(self.of_expected) / sigma / math.sqrt(2)))


def judge(
    claim: Claim,
    job: Job,
    trace_of: TraceOf,
    *,
    mode: str = "training",
    is_batch_given: bool = True,
    is_layout_given: bool = True,
    rows: Sequence[Row] | None = None,
    with_advice: bool = True,
) -> Judged:
    """Judge a throughput of a job's setting.

    Args:
        is_batch_given: else the device's usual batch is assumed.
        is_layout_given: else channels last is assumed where a figure is too high for channels first, and as expected so.
        rows: published figures, in place of all there are.
        with_advice: also look for explanations and gains, which takes a second or two.
    Raises: InputError for a time of a step without its batch; as `predict` for the rest.
    """
    one = _judge(claim, job, trace_of, mode, is_batch_given, rows, with_advice)
    if is_layout_given or one.verdict != "suspicious" or job.training.channels_last:
        return one
    with contextlib.suppress(ChronogradError):  # a trace that was given is of one layout
        job = changed(one.job, ["training.channels_last=true"])
        other = _judge(claim, job, trace_of, mode, True, rows, with_advice)
        if other.verdict == "as expected":
            return replace(other, is_batch_assumed=one.is_batch_assumed, is_layout_assumed=True)
    return one


def _judge(
    claim: Claim,
    job: Job,
    trace_of: TraceOf,
    mode: str,
    is_batch_given: bool,
    rows: Sequence[Row] | None,
    with_advice: bool,
) -> Judged:
    """The verdict on one setting; arguments as of `judge`."""
    trace = trace_of(job, mode)
    if not is_batch_given:
        if claim.per in ("seconds per step", "steps per second"):
            raise InputError(f"{claim.text} says nothing without the batch of a step", "give --batch")
        job = changed(job, [f"training.batch={usual_batch(trace, job) * job.cluster.count}"])
    near = Near(job, mode, trace_of)
    device, predicted = near.device, near.option()
    tokens = tokens_of(trace, claim)
    rate = claim.samples_per_s(job.training.images_per_step, job.cluster.count, tokens)
    limit = limit_of(trace, job.images_per_rank, device, job.training.precision)
    most = job.training.images_per_step / limit.least_s
    setting = setting_of(trace, job, device, mode)
    others = published.of_network(setting, rows)
    alike = [row for row in others if published.is_alike(row, setting)]
    expected = expected_of(predicted, alike)
    verdict = verdict_of(rate, most, expected, [row.samples_per_s for row in alike])
    modes = (replace(setting, mode=one) for one in ("training", "inference"))
    same = tuple(
        row
        for row in (row for one in modes for row in published.of_network(one, rows))
        if (row.device, row.devices) == (device.name, job.cluster.count)
        and row not in alike
        and abs(math.log(row.samples_per_s / rate)) <= SAME
    )
    if alike:
        own = predicted.samples_per_s
        learnt = {name: (getattr(expected, name) or 0.0) / own for name in ("value", "low", "high")}
        near = replace(near, learnt=Quantity(unit="1", **learnt))
    explanations: Sequence[Option] = ()
    gains: Sequence[Option] = ()
    together = None
    if with_advice and verdict != "as expected":
        explanations = near.explanations(rate, with_batches=not is_batch_given)
    if with_advice and verdict in ("as expected", "slow"):
        gains, together = near.gains()
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
        is_circular=any(row.source.fitted == fitted for row in alike if row.source.fitted),
        is_batch_assumed=not is_batch_given,
        tokens=tokens,
        same_elsewhere=same,
        explanations=tuple(explanations),
        gains=tuple(gains),
        together=together,
    )


def tokens_of(trace: Trace, claim: Claim) -> int:
    """Tokens of a sample. Raises InputError where a figure counts tokens and samples are none."""
    shape = trace.input_shapes[0][1:]
    if len(shape) == 1:
        return int(shape[0].const)
    if claim.per == "tokens per second":
        raise InputError(f"{claim.text!r} counts tokens, and samples of {trace.network} are {len(shape)}-dimensional",
                         "give samples or images per second")  # fmt: skip
    return 1


def verdict_of(rate: float, most: float, expected: Quantity, alike: Sequence[float]) -> Verdict:
    """From the figure, the limit, the 80 % interval, and published figures of that setting, between which it is no surprise."""
    low = min([expected.low or 0.0, *alike])
    high = max([expected.high or math.inf, *alike])
    if rate > most:
        return "impossible"
    return "suspicious" if rate > high else "slow" if rate < low else "as expected"


def expected_of(predicted: Option, alike: Sequence[Row]) -> Quantity:
    """A prediction, and published figures of that setting: means of the logarithm, weighed by their variances.

    Published figures count as one, with the spread between them or `OTHER_SETUP`: they share what set-ups do not.
    """
    own, sigma = predicted.samples_per_s, float(predicted.record.provenance.sigma_log or 0.0)
    if not alike:
        return predicted.rate
    logs = np.log([row.samples_per_s for row in alike])
    weights = np.array([sigma, max(OTHER_SETUP, float(np.std(logs)))]) ** -2.0
    middle = float(np.average([math.log(own), float(np.mean(logs))], weights=weights))
    spread = Z80 * float(weights.sum()) ** -0.5
    low, value, high = (math.exp(middle + side * spread) for side in (-1, 0, 1))
    return Quantity(value=value, unit="sample/s", low=low, high=high, source=f"predicted, and {len(alike)} published")


def setting_of(trace: Trace, job: Job, device: Device, mode: str) -> Setting:
    """What published figures are compared by."""
    training = job.training
    return Setting(
        job.network.name,
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

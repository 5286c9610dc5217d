"""Quantities of a record from the steps files of a run: the same for every backend and for custom loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chronograd.errors import InputError
from chronograd.measure.memory import RESIDENT
from chronograd.record import FORWARD_PARTS, INTERVAL, OWN_PARTS, STEP_PARTS, WARMUP, Quantity
from chronograd.rundir import StepLine, StepLog
from chronograd.rundir.stalls import Stalls
from chronograd.rundir.steps import EpochTiming, MemoryLine, TrafficLine
from chronograd.words import how_many

NOT_MEASURED = {
    "communication_overlapped_s": "hidden behind backward; only the exposed part is timed, the rest needs a profiler",
    "mfu": "needs the FLOPs of a step and the peak of the device",
}


@dataclass(frozen=True)
class Timing:
    """Number of steps to time: after `warmup` steps, `num_steps` or the number that fits in `seconds`."""

    warmup: int = WARMUP
    num_steps: int = 30
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.warmup < 1 or self.num_steps < 1 or not self.seconds > 0:
            raise InputError(
                f"cannot time {how_many(self.num_steps, 'steps')} after {self.warmup} of warm-up in {self.seconds:g} s",
                "give numbers above 0",
            )


@dataclass(frozen=True)
class Method:
    """The timing method, in words for `source`."""

    step_time: str
    parts: str


def lines_of_ranks(logs: Mapping[int, StepLog]) -> dict[int, list[StepLine]]:
    """Return the steps of each rank's last attempt that every rank has."""
    by_rank = {rank: log.last_attempt() for rank, log in logs.items()}
    common = set.intersection(*({line.step for line in lines} for lines in by_rank.values())) if by_rank else set()
    return {rank: [line for line in lines if line.step in common] for rank, lines in by_rank.items()}


def step_quantities(
    ranks: Mapping[int, Sequence[StepLine]],
    batch: int | None,
    method: Method,
    stalls: Stalls = Stalls(),  # noqa: B008
) -> dict[str, Quantity]:
    """Return step time, its parts and the throughput.

    The step time is that of the slowest rank; the parts are those of that rank in that step.

    Args:
        ranks: lines of `chronograd.measure.steps.time_steps`, the same steps for every rank.
        batch: samples per step over all ranks; None if unknown.
        stalls: of these steps; steps with a stall do not count.
    """
    num_ranks, ranks = len(ranks), _without(stalls, ranks)
    suffix = (f"; slowest of {how_many(num_ranks, 'ranks')} in each step" if num_ranks > 1 else "") + stalls.without
    found = {"step_time_s": Quantity.of_samples(_step_times(ranks), "s", method.step_time + suffix)}
    found |= _part_quantities(ranks, method.parts + suffix)
    found["throughput_samples_per_s"] = _throughput(found["step_time_s"], batch)
    for name, reason in NOT_MEASURED.items():
        found[name] = Quantity.missing("s" if name.endswith("_s") else "1", reason)
    return found


def _without(stalls: Stalls, ranks: Mapping[int, Sequence[StepLine]]) -> dict[int, list[StepLine]]:
    return {rank: [line for line in lines if line.step not in stalls.steps] for rank, lines in ranks.items()}


def _step_times(ranks: Mapping[int, Sequence[StepLine]]) -> list[float]:
    """Return the time of each timed step, that of its slowest rank."""
    timed = [own for own in _in_step(ranks).values() if next(iter(own.values())).step_time_s is not None]
    return [max(line.needed("step_time_s") for line in own.values()) for own in timed]


# Fewer batches have no such percentile: of 20 batches, the 95th percentile is the second slowest.
MIN_COUNTS = {"latency_p50_s": (0.5, 3), "latency_p95_s": (0.95, 20), "latency_p99_s": (0.99, 100)}


def latency_quantities(
    ranks: Mapping[int, Sequence[StepLine]],
    batch: int,
    method: Method,
    stalls: Stalls = Stalls(),  # noqa: B008
) -> dict[str, Quantity]:
    """Return the latency of a batch with its percentiles, the parts of inference, and the throughput of batches in sequence.

    With several ranks, the slowest in each step counts. Intervals of percentiles come from order statistics. Arguments are
    those of `step_quantities`.
    """
    own, ranks = step_quantities(ranks, batch, method, stalls), _without(stalls, ranks)
    times = _step_times(ranks)
    latency = {"latency_s": own["step_time_s"]}
    for name, (share, least) in MIN_COUNTS.items():
        if len(times) < least:
            reason = f"{len(times)} batches were timed, and it takes {least}: --steps {least}"
            latency[name] = Quantity.missing("s", reason)
            continue
        latency[name] = percentile(times, share, own["step_time_s"].source)
    parts = ("step_time_s", *FORWARD_PARTS, "mfu")
    throughput = own["throughput_samples_per_s"].model_copy(update={"source": "batch over latency, one after another"})
    return {**latency, **{name: own[name] for name in parts}, "throughput_samples_per_s": throughput}


def percentile(times: Sequence[float] | npt.NDArray[np.float64], share: float, source: str) -> Quantity:
    """Return a quantile of times, at least one, in seconds; its interval comes from order statistics."""
    from scipy.stats import binom  # importing it takes a second, which every rank would pay

    ordered = np.sort(times)
    low, high = (int(binom.ppf(q, len(ordered), share)) for q in INTERVAL)
    return Quantity(
        value=float(np.quantile(ordered, share)),
        unit="s",
        low=float(ordered[max(low - 1, 0)]),
        high=float(ordered[min(high, len(ordered) - 1)]),
        n=len(ordered),
        source=source,
    )


def in_tokens(throughput: Quantity, tokens: int) -> Quantity:
    """Return a throughput in tokens for samples of `tokens` tokens."""
    bounds = {
        name: value if value is None else value * tokens
        for name in ("value", "low", "high", "std")
        for value in [getattr(throughput, name)]
    }
    return throughput.model_copy(update={**bounds, "unit": "token/s"})


def memory_quantities(logs: Mapping[int, StepLog]) -> dict[str, Quantity]:
    """Return the highest peak of the ranks: of tensors, as predicted, or of resident memory, which includes libraries."""
    peaks = [last for log in logs.values() if (last := log.last(MemoryLine)) is not None]
    if not peaks:
        return {"memory_peak_bytes": Quantity.missing("B", "no rank reported its memory")}
    most = max(last.memory_peak_bytes for last in peaks)
    quantity = Quantity(value=most, unit="B", n=len(peaks), source=peaks[-1].source)
    if not quantity.source.startswith(RESIDENT):
        return {"memory_peak_bytes": quantity}
    tensors = Quantity.missing(
        "B", "only resident memory was measured (memory_resident); `chronograd measure` counts the memory of tensors"
    )
    return {"memory_peak_bytes": tensors, "memory_resident_bytes": quantity}


def traffic_quantity(logs: Mapping[int, StepLog]) -> Quantity:
    """Return the largest number of bytes that a rank sends per step."""
    lines = [last for log in logs.values() if (last := log.last(TrafficLine)) is not None]
    if not lines:
        return Quantity.missing("B", "no rank counted its traffic")
    return Quantity(value=max(line.sent_bytes for line in lines), unit="B", n=len(lines), source=lines[-1].source)


def epoch_quantities(logs: Mapping[int, StepLog]) -> dict[str, Quantity]:
    """Return the timed epoch after one of warm-up, with and without loading data; empty if none was timed.

    The time of an epoch is that of its slowest rank.
    """
    timed = [timing for log in logs.values() for timing in log.of(EpochTiming)]
    if not timed:
        return {}
    sources = {
        "epoch_time_s": "the second epoch, with loading data",
        "epoch_compute_time_s": "a third epoch, in which one batch is reused",
    }
    return {
        name: Quantity(
            value=max(getattr(e, name) for e in timed),
            unit="s",
            n=1,
            source=f"{text}; {how_many(timed[0].num_steps, 'steps')}",
        )
        for name, text in sources.items()
    }


def achieved_flops(step_time: Quantity, flops_per_step: float | None, why_not: str = "") -> Quantity:
    """Return the rate of matrix FLOPs of one rank. `flops_per_step` is for one rank's share of the batch; None for a reason,
    `why_not`.
    """
    if flops_per_step is None:
        return Quantity.missing(
            "FLOP/s", why_not or "the FLOPs of a step were not given; `chronograd count` counts them"
        )
    return _over_time(flops_per_step, step_time, "FLOP/s", "matrix FLOPs of one rank's step over its time")


def _throughput(step_time: Quantity, batch: int | None) -> Quantity:
    if batch is None:
        return Quantity.missing("sample/s", "the batch was not given")
    return _over_time(batch, step_time, "sample/s", "global batch over step time")


def _over_time(amount: float, time: Quantity, unit: str, source: str) -> Quantity:
    if not time.value:
        return Quantity.missing(unit, time.reason or "the step time is zero")
    return Quantity(
        value=amount / time.value,
        unit=unit,
        low=amount / time.high if time.high else None,
        high=amount / time.low if time.low else None,
        n=time.n,
        source=source,
    )


def _part_quantities(ranks: Mapping[int, Sequence[StepLine]], source: str) -> dict[str, Quantity]:
    in_step = [_slowest(own) for own in _in_step(ranks, "parts").values()]
    alone = [line for _, line in in_step]
    if not any(getattr(line, name) is not None for line in alone for name in OWN_PARTS):
        reason = "no part of a step was marked" if alone else "no step was timed in parts"
        return {name: Quantity.missing("s", reason) for name in STEP_PARTS}
    after = {(rank, line.step): line for rank, lines in ranks.items() for line in lines if line.mode == "no_exchange"}
    paired = [(line, after[rank, line.step + 1]) for rank, line in in_step if (rank, line.step + 1) in after]
    are_waits_known = not paired and len(ranks) > 1 and all(line.exchange_wait_s is not None for line in alone)
    unmarked = Quantity.missing("s", "this part was not marked")
    found: dict[str, Quantity] = {}
    for name in OWN_PARTS:
        without = name in ("forward_s", "backward_s") and bool(paired)
        samples = (
            [other.needed(name) for _, other in paired]
            if without
            else [value for line in alone if (value := getattr(line, name)) is not None]
        )
        text = source + ("; in steps without exchange" if without else "")
        if name == "forward_s" and are_waits_known:
            # The broadcast's share is unknown; a prediction counts it as exposed communication.
            text += "; with the broadcast of buffers, if the network has any"
        found[name] = Quantity.of_samples(samples, "s", text) if samples else unmarked
    if are_waits_known:
        found |= _waits(ranks, alone, source)
    elif paired:
        found["communication_exposed_s"] = _exposed([_compute_s(a) - _compute_s(b) for a, b in paired])
    elif len(ranks) > 1:
        found["communication_exposed_s"] = Quantity.missing("s", "no step without exchange was timed next to these")
    else:
        found["communication_exposed_s"] = Quantity(value=0.0, unit="s", source="one rank: nothing is exchanged")
    return found


def _waits(ranks: Mapping[int, Sequence[StepLine]], alone: Sequence[StepLine], source: str) -> dict[str, Quantity]:
    """Return the share of the slowest link, and the mean wait for the slowest rank, if the wait of each rank is known."""
    in_step = [[line.needed("exchange_wait_s") for line in own.values()] for own in _in_step(ranks, "parts").values()]
    waits = [line.needed("exchange_wait_s") for line in alone]
    wait_source = "wait after a rank's own last gradient"
    found = {
        "communication_exposed_s": Quantity.of_samples(waits, "s", wait_source),
        "straggler_wait_s": Quantity.of_samples(
            [sum(own) / len(own) - min(own) for own in in_step],
            "s",
            f"{wait_source}, mean over ranks minus the minimum",
        ),
    }
    backward = [line.backward_s for line in alone]
    if None not in backward:
        own = [max(0.0, (whole or 0.0) - wait) for whole, wait in zip(backward, waits, strict=True)]
        found["backward_s"] = Quantity.of_samples(own, "s", f"{source}; minus the {wait_source}")
    return found


def _exposed(differences: Sequence[float]) -> Quantity:
    """Return the median, floored at zero; the bounds are the 10th and 90th percentile, floored too."""
    low, middle, high = (max(0.0, float(v)) for v in np.quantile(differences, [INTERVAL[0], 0.5, INTERVAL[1]]))
    source = (
        "forward and backward with exchange minus without, in neighbouring steps of one run: "
        "median difference, floored at 0; waiting for a slower rank included"
    )
    return Quantity(value=middle, unit="s", low=low, high=high, n=len(differences), source=source)


def _compute_s(line: StepLine) -> float:
    return line.needed("forward_s") + line.needed("backward_s")


def _slowest(ranks: Mapping[int, StepLine]) -> tuple[int, StepLine]:
    """Return the rank whose parts of one step take longest, and its line."""
    return max(ranks.items(), key=lambda one: sum(getattr(one[1], name) or 0.0 for name in OWN_PARTS))


def _in_step(ranks: Mapping[int, Sequence[StepLine]], mode: str | None = None) -> dict[int, dict[int, StepLine]]:
    """Return lines by step and rank, in order of steps."""
    steps: dict[int, dict[int, StepLine]] = {}
    for rank, lines in ranks.items():
        for line in lines:
            if mode is None or line.mode == mode:
                steps.setdefault(line.step, {})[rank] = line
    return dict(sorted(steps.items()))

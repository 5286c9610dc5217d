"""The time of a step by part: computation, input and exposed communication; and start-up before the first step.

With K steps on R ranks, in each step: a rank's own work is its time minus its wait. So, with the step of the slowest rank,

    input                 = mean over ranks of the time until a batch is available
    computation           = mean over ranks of own work - input
    exposed communication = the rest: the exchange that computation does not hide, and waiting for the slowest rank
    straggling            = max over ranks of own work - mean over ranks of own work, within exposed communication

The first three add up to the step time. Figures are means over steps, so they add up, too. Exposed communication means the same in
records. That of a measurement is taken from its record, which compares steps with and without exchange.

In traces of torch.profiler, steps of ranks begin at different times. There the step is the mean over ranks, and exposed
communication is the mean wait. A device's idle time and copies are separate parts, and computation is the rest. If some ranks are
missing, straggling is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chronograd.explain.evidence import Evidence
from chronograd.record import Quantity
from chronograd.words import how_many

# Starting Python, importing torch and warming up belong to every run. For a custom loop, this much is not counted: its CPU time
# or wait for a core plus reading libraries before recording began, and its first steps.
LARGEST_ALLOWANCE_S, READING_S, WARMUP_S = 10.0, 2.0, 2.0
# For a single step: 80 % of the steps of eight public traces with several steps are within this share of their mean.
ONE_STEP_SPREAD = 0.2
STRAGGLING = "straggling"  # within exposed communication


@dataclass(frozen=True)
class Split:
    """Seconds of a step by part, with an 80 % interval over steps; unknown parts state the reason. `straggling_s` is a part of
    `exposed_s`. `startup_s` is of the whole run.
    """

    step_s: Quantity
    computation_s: Quantity
    input_s: Quantity
    exposed_s: Quantity
    straggling_s: Quantity
    startup_s: Quantity
    copies_s: Quantity | None = None
    idle_s: Quantity | None = None

    def share(self, name: str) -> float | None:
        """Return the share of the step time, 0 to 1; None if unknown."""
        part = getattr(self, name)
        value, whole = None if part is None else part.value, self.step_s.value
        return None if value is None or not whole else min(1.0, max(0.0, value / whole))

    def rows(self) -> list[tuple[str, Quantity, float | None]]:
        """Return name, seconds and share of the step, in display order."""
        names = {
            "computation": "computation_s",
            "input": "input_s",
            "exposed communication": "exposed_s",
            STRAGGLING: "straggling_s",
            "exposed copies": "copies_s",
            "idle device": "idle_s",
        }
        parts = [(text, getattr(self, name), self.share(name)) for text, name in names.items()]
        return [part for part in parts if part[1] is not None]

    def shares(self) -> list[tuple[str, float]]:
        """Return the parts that add up to the step, with the larger ones first, each with its share of the step."""
        parts = [(name, share) for name, _, share in self.rows() if name != STRAGGLING and share]
        return sorted(parts, key=lambda part: part[1], reverse=True)


def split(run: Evidence) -> Split:
    """Split the steps of a run."""
    if run.kind == "profile":
        return _of_profile(run)
    ranks = list(run.ranks.values())
    steps_RK = np.stack([rank.step_s for rank in ranks])
    inputs_RK = np.stack([rank.input_s for rank in ranks])
    step_K = steps_RK.max(axis=0)
    source = f"{how_many(steps_RK.shape[1], 'steps')} of {len(ranks)} rank{'s' * (len(ranks) > 1)}"
    has_input = bool(np.isfinite(inputs_RK).all())
    input_K = inputs_RK.mean(axis=0) if has_input else np.zeros(len(step_K))
    input_q = (
        _of(input_K, source) if has_input else Quantity.missing("s", "input was not timed separately from computation")
    )
    if run.world == 1:
        nothing = Quantity(value=0.0, unit="s", source="one rank")
        return Split(_of(step_K, source), _of(step_K - input_K, source), input_q, nothing, nothing, startup(run))
    if not run.knows_waits:
        unknown = Quantity.missing("s", "no rank reported its wait for the others")
        rest = _of(step_K - input_K, f"{source}; includes communication and straggling")
        return Split(_of(step_K, source), rest, input_q, unknown, unknown, startup(run))
    own_K = np.mean([rank.own_s for rank in ranks], axis=0)
    exposed = _of(step_K - own_K, f"{source}; beyond the mean of the ranks' own work")
    computing_K, straggling_K = own_K - input_K, np.maximum(0.0, step_K - run.exposed_K - own_K)
    if run.exposed_s is not None and run.exposed_s.value is not None:
        exposed = run.exposed_s
        computing_K = np.maximum(0.0, step_K - input_K - run.exposed_s.value)
        straggling_K = np.minimum(straggling_K, run.exposed_s.value)
    return Split(
        _of(step_K, source),
        _of(computing_K, source),
        input_q,
        exposed,
        _of(straggling_K, f"{source}; the slowest rank minus the mean of all")
        if run.kind != "record"
        else Quantity.missing("s", "a record does not distinguish ranks"),
        startup(run),
    )


def _of_profile(run: Evidence) -> Split:
    """Split the steps of traces, by the known times of each rank even if others are missing."""
    ranks = list(run.ranks.values())
    step_K = np.mean([rank.step_s for rank in ranks], axis=0)
    input_K = np.mean([rank.input_s for rank in ranks], axis=0)
    source = f"{len(step_K)} step{'s' * (len(step_K) > 1)} of {len(ranks)} rank{'s' * (len(ranks) > 1)}"
    wait_K, exposed_K = np.mean([rank.wait_s for rank in ranks], axis=0), run.exposed_K
    is_whole = len(ranks) == run.world
    if run.world == 1 and not wait_K.any():
        exposed = straggling = Quantity(value=0.0, unit="s", source="one rank")
    elif is_whole:
        exposed = _of(wait_K, f"{source}; the wait of the ranks", ONE_STEP_SPREAD)
        straggling = _of(wait_K - exposed_K, f"{source}; the slowest rank minus the mean of all", ONE_STEP_SPREAD)
    else:
        exposed = _of(wait_K, f"{source}; includes straggling of missing ranks", ONE_STEP_SPREAD)
        straggling = Quantity.missing("s", f"{len(ranks)} of {run.world} ranks are available")
    has_device = all(rank.device is not None for rank in ranks)
    idle_K = np.mean([rank.launch_s for rank in ranks], axis=0) if has_device else np.zeros(len(step_K))
    copies_K = np.mean([rank.copies_s for rank in ranks], axis=0) if has_device else np.zeros(len(step_K))
    return Split(
        _of(step_K, source, ONE_STEP_SPREAD),
        _of(np.maximum(0.0, step_K - wait_K - input_K - idle_K - copies_K), source, ONE_STEP_SPREAD),
        _of(input_K, source, ONE_STEP_SPREAD),
        exposed,
        straggling,
        startup(run),
        _of(copies_K, source, ONE_STEP_SPREAD) if has_device else None,
        _of(idle_K, f"{source}; nothing runs on the device, and the host does not wait for a batch", ONE_STEP_SPREAD)
        if has_device
        else None,
    )


def startup(run: Evidence) -> Quantity:
    """Return the seconds before the first step.

    For a training of Chronograd, this is everything from the start of the process. For a custom loop, it is the time between
    the start of recording and the first step, plus the rest beyond the allowances above. A measurement is a sample of steps and
    has no start-up.
    """
    if run.kind not in ("training", "own loop"):
        return Quantity.missing("s", f"a {run.kind} is a sample of steps, not a whole run")
    found = []
    for rank in run.ranks.values():
        start, ready = rank.start.time, rank.ready.time
        if not np.isfinite([start, ready]).all():
            return Quantity.missing("s", "the run did not log its start")
        began, busy_s, warmup_s = rank.start.process_time, rank.start.busy_s, rank.warmup_excess_s
        before_s = 0.0 if began is None else max(0.0, start - began)
        if run.kind == "own loop":
            before_s -= LARGEST_ALLOWANCE_S if busy_s is None else min(LARGEST_ALLOWANCE_S, busy_s + READING_S)
            warmup_s -= WARMUP_S
        found.append(max(0.0, before_s) + max(0.0, ready - start) + max(0.0, warmup_s))
    source = (
        "from the start of the slowest process to its first step, plus the excess of its first steps over later ones"
    )
    return Quantity(value=max(found), unit="s", n=len(found), source=source)


def _of(samples: np.ndarray, source: str, one_spread: float = 0.0) -> Quantity:
    """Return the interval of several samples; for one sample, an interval with width `one_spread`."""
    quantity = Quantity.of_samples([float(x) for x in samples], "s", source)
    if len(samples) != 1 or not one_spread or quantity.value is None:
        return quantity
    low, high = quantity.value * (1 - one_spread), quantity.value * (1 + one_spread)
    return quantity.model_copy(update={"low": low, "high": high})

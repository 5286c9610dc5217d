"""Shares of a predicted time without any measurement: loops over time, classes never calibrated, operators of unknown work.

A trace holds a loop over recurrent cells unrolled, step by step. A compiler may fuse it, and its small operators run faster
than the launches that the prediction adds: measured unrolled, layers took 1/2.6 to 1/12 of the prediction (November 2026).
Loops have no model yet, so the interval covers this.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from chronograd.predict.calibration import CLASSES, DATASHEET_SIGMA, Calibration
from chronograd.predict.derived import derived
from chronograd.trace import Trace
from chronograd.units import percent
from chronograd.words import listed

# exp(1.2816 · 2) is 13: the 80 % interval of a purely recurrent network includes 1/12 of the predicted time.
RECURRENT_SIGMA = 2.0
# A weight read by at least this many products in one pass belongs to a loop over time. ALBERT's shared block runs 12 times.
_LOOPED = 16
# Smaller shares of the time are not mentioned.
_LEAST_RECURRENT, _LEAST_UNSEEN = 0.02, 0.1


@dataclass(frozen=True)
class Basis:
    """Shares of a predicted time that no measurement supports.

    Attributes:
        recurrent: share of unrolled loops over time, in the time of device and host, weighted by which of them decides.
        layers: the classes of their cells.
        unseen: share by class of operators that the calibration never measured, largest first; empty if it measured none.
        unknown: operators with an unknown amount of work.
    """

    recurrent: float
    layers: tuple[str, ...]
    unseen: dict[str, float]
    unknown: tuple[str, ...]

    def widened(self, sigma: float) -> float:
        """Return the total standard deviation of the log error, given that of the supported part."""
        mixed = (1 - self.recurrent) * sigma + self.recurrent * max(RECURRENT_SIGMA, sigma)
        return max(mixed, DATASHEET_SIGMA) if self.unknown else mixed

    def sentences(self) -> list[str]:
        """Return the sentences that a reader needs before the figures."""
        sentences = []
        if self.recurrent >= _LEAST_RECURRENT:
            what = listed(self.layers) if self.layers else "a loop that reuses its weights"
            sentences.append(
                f"{percent(self.recurrent, 0)} of the time is in a loop over time ({what}). It is counted step by step, which is "
                "too slow: in measurements, by up to a factor of 12"
            )
        total = sum(self.unseen.values())
        if total >= _LEAST_UNSEEN:
            sentences.append(
                f"{percent(total, 0)} of the time is in operators that were never measured on this device "
                f"({listed(list(self.unseen)[:3])}): their speed is assumed from its data sheet"
            )
        if self.unknown:
            sentences.append(f"the work of {listed(self.unknown)} is not known, so the true time is longer")
        return sentences


def basis(
    trace: Trace,
    times: np.ndarray,
    issues: np.ndarray,
    of_host: float,
    class_index: np.ndarray,
    calibration: Calibration,
) -> Basis:
    """Return the shares of a prediction that no measurement supports.

    Args:
        times: seconds of each operator. issues: host work of each operator. of_host: the host's share of the time, 0 to 1.
        class_index: into CLASSES.
    """
    is_recurrent, layers = derived(trace, "recurrent", lambda: _recurrent(trace))
    of_time, of_issues = (float(v[is_recurrent].sum() / max(v.sum(), 1e-30)) for v in (times, issues))
    recurrent = of_host * of_issues + (1 - of_host) * of_time
    unseen: dict[str, float] = {}
    if calibration.classes_seen and times.sum() > 0:
        by_class = np.bincount(class_index, times, len(CLASSES)) / times.sum()
        known = calibration.classes_seen | calibration.class_sigma.keys()
        of_family: Counter[str] = Counter()
        for name, share in zip(CLASSES, by_class, strict=True):
            if share and name not in known:
                of_family[name.partition(".")[0].replace("_", " ")] += share
        unseen = dict(of_family.most_common())
    unknown = tuple(dict.fromkeys(op.name for op in trace.operators if op.kind == "unknown"))
    return Basis(recurrent, layers, unseen, unknown)


def _recurrent(trace: Trace) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return a mask of the operators in unrolled loops over time, and the classes of their cells."""
    kinds = [str(op.attributes.get("recurrent", "")) for op in trace.operators]
    reads: Counter[int] = Counter()
    for op in trace.select("forward", ("gemm", "batched_gemm")):
        reads.update({s for i in op.inputs if trace.storages[s := trace.tensors[i].storage].role == "parameter"})
    looped = {storage for storage, count in reads.items() if count >= _LOOPED}
    modules = {
        (op.module, op.call)
        for op in trace.select("forward", ("gemm", "batched_gemm"))
        if any(trace.tensors[i].storage in looped for i in op.inputs)
    }
    mask = np.zeros(len(trace.operators), dtype=bool)
    for k, op in enumerate(trace.operators):
        is_of_backward = op.forward is not None and mask[op.forward]
        mask[k] = (
            bool(kinds[k])
            or is_of_backward
            or ((op.module, op.call) in modules and op.kind in ("gemm", "batched_gemm"))
        )
    return mask, tuple(dict.fromkeys(filter(None, kinds)))

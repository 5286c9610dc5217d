"""The shares of a predicted time that no measurement supports: recurrent layers, classes never calibrated, work that is not known.

A trace holds recurrent layers unrolled, operator by operator and step by step. Libraries run them as one operator, so the prediction,
which adds a launch for each, is too slow: of three timings (November 2026) an LSTM took 1/12 of it, another LSTM and a GRU on a CPU
1/5 and 1/2.6. Until recurrent layers have a model of their own, the interval holds all three.
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

# exp(1.2816 · 2) is 13: an 80 % interval of a network that is all recurrent holds a time of 1/12.
RECURRENT_SIGMA = 2.0
# A weight that so many products of one pass read is that of a loop over time. ALBERT's shared block is run 12 times.
_LOOPED = 16
# Shares of the time that are worth a sentence.
_LEAST_RECURRENT, _LEAST_UNSEEN = 0.02, 0.1


@dataclass(frozen=True)
class Basis:
    """Shares of a predicted time without a basis.

    Attributes:
        recurrent: of unrolled recurrent layers, in the device's time and in the host's, weighed by which of them decides.
        layers: the classes of these layers.
        unseen: of each class of operators that the calibration never measured, the largest first; empty where it measured none.
        unknown: operators whose work is not known.
    """

    recurrent: float
    layers: tuple[str, ...]
    unseen: dict[str, float]
    unknown: tuple[str, ...]

    def widened(self, sigma: float) -> float:
        """The standard deviation of the log error, given that of the rest."""
        mixed = (1 - self.recurrent) * sigma + self.recurrent * max(RECURRENT_SIGMA, sigma)
        return max(mixed, DATASHEET_SIGMA) if self.unknown else mixed

    def sentences(self) -> list[str]:
        """Return the sentences that a reader needs before the figures."""
        said = []
        if self.recurrent >= _LEAST_RECURRENT:
            what = listed(self.layers) if self.layers else "a loop that reuses its weights"
            said.append(
                f"{percent(self.recurrent, 0)} of the time is in recurrent layers ({what}), which are counted step by step and run "
                "as fused operators: the true time is probably shorter, by up to a factor of 12 where it was measured"
            )
        total = sum(self.unseen.values())
        if total >= _LEAST_UNSEEN:
            said.append(
                f"{percent(total, 0)} of the time is in operators that were never measured on this device "
                f"({listed(list(self.unseen)[:3])}): their speed is assumed from its data sheet"
            )
        if self.unknown:
            said.append(f"the work of {listed(self.unknown)} is not known, so the true time is longer")
        return said


def basis(
    trace: Trace,
    times: np.ndarray,
    issues: np.ndarray,
    of_host: float,
    class_index: np.ndarray,
    calibration: Calibration,
) -> Basis:
    """Return the shares of a prediction that have no basis.

    Args:
        times: seconds of each operator. issues: what the host does for each. of_host: how much the host decides, from 0 to 1.
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
    """Which operators are of unrolled recurrent layers, and the classes of these layers."""
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

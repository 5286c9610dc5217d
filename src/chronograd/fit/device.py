"""Calibrate a device from times: utilisations by operator class such that sums of operators match.

Each sample is some operators and the seconds they took together: a block run here, or a whole network from a
published table. Shares of peak, launch costs and cache speed-up are fitted in the log domain by robust least
squares, pulled towards a prior (a data sheet's assumption, or a relative's calibration), so that a class seen
rarely stays near it. The spread that is reported comes from samples left out of the fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from chronograd.errors import InputError
from chronograd.predict.calibration import CLASSES, Calibration, ClassRate, uses_vector_peak
from chronograd.predict.compute import Work

# Log errors beyond this count linearly, not squared.
_ROBUST_AT = 0.1
# Standard deviations of the prior, in log units.
_PRIOR_SD = {"compute": 0.7, "bandwidth": 0.7, "depth": 0.5, "width": 0.5, "launch_s": 1.0, "cache_speedup": 0.4}
# A layer that cannot be timed better than this is not predicted better either.
MIN_SIGMA = 0.03
_FOLDS = 5


@dataclass(frozen=True)
class Sample:
    """Operators, and the seconds that they took together."""

    work: Work
    seconds: float
    group: str = ""


class _Problem:
    """Samples as one array of operators, and the map from a vector of log parameters to a calibration."""

    def __init__(self, samples: Sequence[Sample], prior: Calibration) -> None:
        self.prior = prior
        self.work = Work.joined([s.work for s in samples])
        self.starts = np.cumsum([0, *(len(s.work.flops) for s in samples[:-1])])
        self.log_seconds = np.log([s.seconds for s in samples])
        self.launches = np.add.reduceat(self.work.is_launched.astype(float), self.starts)
        self.rates = prior.columns()
        present = np.unique(self.work.class_index[self.work.is_launched])
        self.slots: list[tuple[str, int]] = []
        for i in present:
            kind = CLASSES[i].partition(".")[0]
            self.slots += [("compute", int(i)), ("bandwidth", int(i))]
            if not uses_vector_peak(kind):
                self.slots += [(n, int(i)) for n in ("depth", "width") if self.rates[n][i] > 0]
        self.globals = ["cache_speedup"] + [n for n in ("launch_s", "host_launch_s") if getattr(prior, n) > 0]
        start = [np.log(self.rates[name][i]) for name, i in self.slots]
        start += [np.log(max(getattr(prior, name), 1e-12)) for name in self.globals]
        self.start = np.array(start)
        sds = [_PRIOR_SD[name] for name, _ in self.slots]
        sds += [_PRIOR_SD["cache_speedup" if n == "cache_speedup" else "launch_s"] for n in self.globals]
        self.sd = np.array(sds)

    def unpack(self, x: np.ndarray) -> tuple[Calibration, dict[str, np.ndarray]]:
        rates = {name: column.copy() for name, column in self.rates.items()}
        values = np.exp(x)
        for (name, i), value in zip(self.slots, values, strict=False):
            rates[name][i] = value
        found = dict(zip(self.globals, values[len(self.slots) :], strict=True))
        found["cache_speedup"] = max(1.0, found["cache_speedup"])
        return replace(self.prior, **found), rates

    def log_error(self, x: np.ndarray) -> np.ndarray:
        """log(predicted / measured) of each sample."""
        calibration, rates = self.unpack(x)
        device = np.add.reduceat(self.work.seconds(calibration, rates), self.starts)
        host = self.launches * calibration.host_launch_s
        return np.asarray(np.log(np.maximum(device, host)) - self.log_seconds)

    def residuals(self, x: np.ndarray) -> np.ndarray:
        error = self.log_error(x) / _ROBUST_AT
        # Soft L1 by hand, so that the prior stays quadratic.
        robust = np.sign(error) * np.sqrt(2 * (np.sqrt(1 + error**2) - 1))
        return np.concatenate([robust, (x - self.start) / self.sd])

    def solve(self) -> np.ndarray:
        return np.asarray(least_squares(self.residuals, self.start, method="trf", max_nfev=40).x)


def fit_calibration(samples: Sequence[Sample], prior: Calibration, *, origin: str = "fitted") -> Calibration:
    """A calibration that explains the samples, starting from and pulled towards `prior`.

    Its `sigma` is the root mean square of the log errors on groups left out in turn, at least MIN_SIGMA.

    Raises: InputError if there are fewer than ten samples or a time is not positive.
    """
    if len(samples) < 10:
        raise InputError(f"{len(samples)} samples are too few to calibrate a device", "give at least ten")
    if any(not s.seconds > 0 for s in samples):
        raise InputError("a sample's time is not positive", "leave failed measurements out")
    problem = _Problem(samples, prior)
    x = problem.solve()
    calibration, rates = problem.unpack(x)
    sigma = _held_out_sigma(samples, prior)
    seen = {CLASSES[i] for _, i in problem.slots}
    classes = {name: ClassRate(**{field: float(rates[field][i]) for field in rates}) for i, name in enumerate(CLASSES)}
    in_sample = float(np.sqrt(np.mean(problem.log_error(x) ** 2)))
    provenance = {
        **prior.provenance,
        "samples": len(samples),
        "error_in_sample": round(in_sample, 4),
        "error_left_out": round(sigma, 4),
        "classes_seen": sorted(seen),
    }
    return replace(calibration, origin=origin, classes=classes, sigma=max(sigma, MIN_SIGMA), provenance=provenance)


def _held_out_sigma(samples: Sequence[Sample], prior: Calibration) -> float:
    """Spread of the log error on samples that were left out; groups are left out whole."""
    groups = sorted({s.group for s in samples})
    fold_of = {group: i % _FOLDS for i, group in enumerate(groups)}
    errors: list[np.ndarray] = []
    for fold in range(_FOLDS):
        kept = [s for s in samples if fold_of[s.group] != fold]
        left_out = [s for s in samples if fold_of[s.group] == fold]
        if not kept or not left_out:
            continue
        problem = _Problem(kept, prior)
        calibration, rates = problem.unpack(problem.solve())
        for s in left_out:
            device = s.work.seconds(calibration, rates).sum()
            host = s.work.is_launched.sum() * calibration.host_launch_s
            errors.append(np.log(max(device, host) / s.seconds))
    # The middle of the distribution, not its tail: a few blocks missed by far would widen every interval.
    return float(np.quantile(np.abs(errors), 0.8) / 1.2816)

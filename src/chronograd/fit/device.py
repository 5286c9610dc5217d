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
from chronograd.predict.calibration import CLASSES, Z80, Calibration, ClassRate
from chronograd.predict.compute import Work

# Log errors beyond this count linearly, not squared.
_ROBUST_AT = 0.1
# Standard deviations of the prior, in log units.
_PRIOR_SD = {
    "compute": 0.7,
    "bandwidth": 0.7,
    "weights": 0.7,
    "depth": 0.7,
    "width": 0.7,
    "rows": 0.7,
    "launch_s": 1.0,
    "host_launch_s": 1.0,
    "cache_speedup": 0.4,
}
# A layer that cannot be timed better than this is not predicted better either.
MIN_SIGMA = 0.03
_FOLDS = 5
# How many left-out samples stand for a network, and how many such sums are drawn.
_BLOCKS_PER_NETWORK, _SUMS = 4, 2000


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
        self.sample_of = np.repeat(np.arange(len(samples)), [len(s.work.flops) for s in samples])
        self.log_seconds = np.log([s.seconds for s in samples])
        self.launches = np.add.reduceat(self.work.is_launched.astype(float), self.starts)
        self.rates = prior.columns()
        present = np.unique(self.work.class_index[self.work.is_launched])
        self.slots: list[tuple[str, int]] = []
        for i in present:
            self.slots += [(name, int(i)) for name in self.rates if self.rates[name][i] > 0]
        self.globals = ["cache_speedup"] + (["host_launch_s"] if prior.host_launch_s > 0 else [])
        start = [self.rates[name][i] for name, i in self.slots] + [getattr(prior, name) for name in self.globals]
        self.start = np.log(start)
        self.sd = np.array([_PRIOR_SD[name] for name in [*(name for name, _ in self.slots), *self.globals]])

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

    def log_error_jacobian(self, x: np.ndarray) -> np.ndarray:
        """Derivative of `log_error` by each log parameter, shape (num_samples, num_parameters)."""
        calibration, rates = self.unpack(x)
        terms = self.work.terms(calibration, rates)
        both = terms.compute**4 + terms.memory**4
        by_compute = terms.pass_s * np.divide(terms.compute**4, both, out=np.zeros_like(both), where=both > 0)
        by_memory = terms.pass_s - by_compute
        i = self.work.class_index

        def filling(name: str) -> np.ndarray:
            half = rates[name][i]
            return np.asarray(by_compute * half / (getattr(self.work, name) + half))

        by_operator = {
            "compute": -by_compute,
            "bandwidth": -by_memory,
            "weights": -terms.weights,
            "launch_s": terms.launch,
            **{name: filling(name) for name in ("depth", "width", "rows")},
        }
        num_samples, num_classes = len(self.log_seconds), len(CLASSES)
        cell = self.sample_of * num_classes + i
        device = np.add.reduceat(terms.launch + terms.pass_s + terms.weights, self.starts)
        host = self.launches * calibration.host_launch_s
        is_host = host > device
        scale = np.where(is_host, 0.0, 1.0 / device)[:, None]
        columns = {}
        for name, values in by_operator.items():
            table = np.bincount(cell, values, num_samples * num_classes).reshape(num_samples, num_classes)
            columns[name] = table * scale
        jacobian: list[np.ndarray] = [columns[name][:, k] for name, k in self.slots]
        speedup = calibration.cache_speedup
        cached = np.add.reduceat(-by_memory * speedup * terms.cached, self.starts) * scale[:, 0]
        jacobian.append(cached if speedup > 1 else np.zeros(num_samples))
        if "host_launch_s" in self.globals:
            jacobian.append(is_host.astype(float))
        return np.stack(jacobian, axis=1)

    def residuals(self, x: np.ndarray) -> np.ndarray:
        error = self.log_error(x) / _ROBUST_AT
        return np.concatenate([_soft_l1(error), (x - self.start) / self.sd])

    def jacobian(self, x: np.ndarray) -> np.ndarray:
        error = self.log_error(x) / _ROBUST_AT
        robust = _soft_l1(error)
        slope = np.divide(error, np.sqrt(1 + error**2) * robust, out=np.ones_like(error), where=np.abs(robust) > 1e-9)
        data = self.log_error_jacobian(x) * slope[:, None] / _ROBUST_AT
        return np.concatenate([data, np.diag(1 / self.sd)])

    def solve(self) -> np.ndarray:
        return np.asarray(least_squares(self.residuals, self.start, self.jacobian, method="lm", max_nfev=40).x)


def _soft_l1(error: np.ndarray) -> np.ndarray:
    """Residuals whose squares are the soft L1 of errors; by hand, so that the prior stays quadratic."""
    return np.asarray(np.sign(error) * np.sqrt(2 * (np.sqrt(1 + error**2) - 1)))


def fit_calibration(samples: Sequence[Sample], prior: Calibration, *, origin: str = "fitted") -> Calibration:
    """A calibration that explains the samples, starting from and pulled towards `prior`.

    Its `sigma` is the spread of the log error on samples left out in turn, at least MIN_SIGMA.

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
    """Spread of the log error of a network, from samples that were left out; groups are left out whole.

    A network is several blocks: the error is that of sums over a few left-out samples of equal weight, and its spread
    that of the middle 80 %, which is what intervals claim.
    """
    groups = sorted({s.group for s in samples})
    fold_of = {group: i % _FOLDS for i, group in enumerate(groups)}
    ratios: list[float] = []
    for fold in range(_FOLDS):
        kept = [s for s in samples if fold_of[s.group] != fold]
        left_out = [s for s in samples if fold_of[s.group] == fold]
        if not kept or not left_out:
            continue
        problem = _Problem(kept, prior)
        calibration, rates = problem.unpack(problem.solve())
        for s in left_out:
            ratios.append(s.work.total_seconds(calibration, rates) / s.seconds)
    sums = np.random.default_rng(0).choice(ratios, (_SUMS, _BLOCKS_PER_NETWORK)).mean(axis=1)
    return float(np.quantile(np.abs(np.log(sums)), 0.8) / Z80)

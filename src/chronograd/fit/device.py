"""Calibration of a device from times: utilisations by operator class such that the sums of operators match.

Each sample is a set of operators and their total seconds: a measured block, a kernel, or a whole network from a published
table. Shares of peak, launch costs and cache speed-up are fitted in the log domain by robust least squares. They are pulled
towards a prior (data sheet assumptions, or the calibration of a similar device), so a class with few samples stays near it. The
interval comes from samples left out of the fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from chronograd.errors import InputError
from chronograd.predict.calibration import CLASSES, MIN_HOST_SIGMA, PARTS, SIZES, Calibration, ClassRate
from chronograd.predict.compute import Terms, Work, smooth_max
from chronograd.record import Z80

# Larger log errors count linearly, not squared.
_ROBUST_AT = 0.1
# Standard deviations of a generic prior, in log units.
_PRIOR_SD = {
    "compute": 0.5,
    "bandwidth": 0.5,
    "weights": 0.7,
    "depth": 0.5,
    "width": 0.5,
    "rows": 0.7,
    "out_width": 0.7,
    "relayout": 0.5,
    "launch_s": 0.7,
    "host_launch_s": 0.7,
    "pass_s": 1.0,
    "cache_speedup": 0.3,
}
_RATES = ("compute", "bandwidth", "weights", *SIZES, "relayout", "launch_s")
# Whole networks do not show these by class.
_SHARED = ("rows", "out_width", "relayout", "launch_s")
# Measured layer times vary by this, so predictions are not better either.
MIN_SIGMA = 0.03
_FOLDS = 5
# Fewer than MIN_SAMPLES samples cannot move a prior. Fewer than _FEW say little about their own error, so the prior's error
# counts as that of _PRIOR_COUNTS more samples.
MIN_SAMPLES, _FEW, _PRIOR_COUNTS = 4, 10, 4
# Stop at a thousandth of a standard deviation: more steps gain nothing.
_TOLERANCE = 1e-4
# Number of left-out samples that stand for a network, and number of such sums to draw.
_BLOCKS_PER_NETWORK, _SUMS = 6, 2000


@dataclass(frozen=True)
class Sample:
    """Operators and their total seconds; samples of one `group` are left out together."""

    work: Work
    seconds: float
    group: str = ""


@dataclass(frozen=True)
class _Parameter:
    """One number to fit: a rate of the classes `members`, or a field of the calibration itself."""

    name: str
    members: tuple[int, ...] = ()


class _FitProblem:
    """Samples as one array of operators, and the map from a vector of log parameters to a calibration."""

    def __init__(
        self, samples: Sequence[Sample], prior: Calibration, *, by_class: bool, prior_sd: float | None = None
    ) -> None:
        self.prior = prior
        self.work = Work.joined([s.work for s in samples])
        self.starts = np.cumsum([0, *(len(s.work.flops) for s in samples[:-1])])
        self.sample_of = np.repeat(np.arange(len(samples)), [len(s.work.flops) for s in samples])
        self.log_seconds = np.log([s.seconds for s in samples])
        # A pass is a sample's forward or backward. Host time is hidden in each separately.
        self.pass_of = 2 * self.sample_of + self.work.class_index % 2
        self.issues = self._by_pass(self.work.issues)
        self.num_passes = (self.issues > 0).sum(axis=1)
        self.rates = prior.columns
        present = [int(i) for i in np.unique(self.work.class_index[self.work.launches > 0])]
        self.parameters: list[_Parameter] = []
        for name in _RATES:
            found = tuple(i for i in present if self.rates[name][i] > 0)
            groups = [(i,) for i in found] if by_class else [found] if name in _SHARED else _wholes(found)
            self.parameters += [_Parameter(name, group) for group in groups if group]
        self.parameters.append(_Parameter("cache_speedup"))
        if prior.host_launch_s > 0:
            self.parameters.append(_Parameter("host_launch_s"))
        if prior.pass_s > 0 and by_class:  # too small a part of a whole network to fit
            self.parameters.append(_Parameter("pass_s"))
        # A shared rate is scaled: classes keep their ratios.
        start = [1.0 if len(p.members) > 1 else self._value(p) for p in self.parameters]
        self.start = np.log(start)
        self.sd = np.array([prior_sd or _PRIOR_SD[p.name] for p in self.parameters])

    def _by_pass(self, values: np.ndarray) -> np.ndarray:
        return np.bincount(self.pass_of, values, 2 * len(self.log_seconds)).reshape(-1, 2)

    def _value(self, p: _Parameter) -> float:
        return float(self.rates[p.name][p.members[0]] if p.members else getattr(self.prior, p.name))

    def unpack(self, x: np.ndarray) -> tuple[Calibration, dict[str, np.ndarray]]:
        rates = {name: column.copy() for name, column in self.rates.items()}
        found: dict[str, float] = {}
        for p, value in zip(self.parameters, np.exp(x), strict=True):
            if len(p.members) > 1:
                rates[p.name] *= value
            elif p.members:
                rates[p.name][p.members[0]] = value
            else:
                found[p.name] = float(value)
        found["cache_speedup"] = max(1.0, found["cache_speedup"])
        return replace(self.prior, **found), rates  # type: ignore[arg-type]

    def log_error(self, x: np.ndarray) -> np.ndarray:
        """Return log(predicted / measured) of each sample."""
        calibration, rates = self.unpack(x)
        device = self._by_pass(self.work.seconds(calibration, rates))
        host = self.issues * calibration.host_launch_s
        whole = smooth_max(device, host).sum(axis=1) + self.num_passes * calibration.pass_s
        return np.asarray(np.log(whole) - self.log_seconds)

    def log_error_jacobian(self, x: np.ndarray) -> np.ndarray:
        """Return the derivative of `log_error` by each log parameter, shape (num_samples, num_parameters)."""
        calibration, rates = self.unpack(x)
        terms = self.work.terms(calibration, rates)
        num_samples, num_classes = len(self.log_seconds), len(CLASSES)
        cell = self.sample_of * num_classes + self.work.class_index
        device, host = self._by_pass(terms.seconds), self.issues * calibration.host_launch_s
        whole = smooth_max(device, host)
        # Derivatives of the log of a sample's time by the log of device time and of host time, in each pass.
        beginning = self.num_passes * calibration.pass_s
        total = (whole.sum(axis=1) + beginning)[:, None]
        slope = np.divide(device, whole, out=np.zeros_like(device), where=whole > 0) ** 3 / total
        host_slope = (np.divide(host, whole, out=np.zeros_like(host), where=whole > 0) ** 4 * whole / total).sum(axis=1)
        weight = slope.ravel()[self.pass_of]
        by_operator, by_memory = self._by_operator(terms, rates)
        tables = {
            name: np.bincount(cell, weight * values, num_samples * num_classes).reshape(num_samples, num_classes)
            for name, values in by_operator.items()
        }
        # A type conversion runs at the rate of elementwise work, whatever the operator.
        tables["bandwidth"][:, CLASSES.index("elementwise.forward")] -= np.add.reduceat(
            weight * terms.cast, self.starts
        )
        jacobian = np.zeros((num_samples, len(self.parameters)))
        for k, p in enumerate(self.parameters):
            if p.members:
                jacobian[:, k] = tables[p.name][:, list(p.members)].sum(axis=1)
            elif p.name == "host_launch_s":
                jacobian[:, k] = host_slope
            elif p.name == "pass_s":
                jacobian[:, k] = beginning / total[:, 0]
            elif calibration.cache_speedup > 1:
                cached = -by_memory * calibration.cache_speedup * terms.cached
                jacobian[:, k] = np.add.reduceat(weight * cached, self.starts)
        return jacobian

    def host_sigma(self, x: np.ndarray) -> float:
        """Return the standard deviation of the log of the host's time: that of the prior, narrowed by samples that show host
        time.
        """
        if self.prior.host_sigma == 0:
            return 0.0
        k = next((k for k, p in enumerate(self.parameters) if p.name == "host_launch_s"), None)
        shown = 0.0 if k is None else float((self.log_error_jacobian(x)[:, k] ** 2).sum())
        return float(max(MIN_HOST_SIGMA, (self.prior.host_sigma**-2 + shown / _ROBUST_AT**2) ** -0.5))

    def _by_operator(self, terms: Terms, rates: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the derivatives of each operator's seconds by the log of each of its rates, and its memory time."""
        both = terms.compute**4 + terms.memory**4
        by_compute = terms.pass_s * np.divide(terms.compute**4, both, out=np.zeros_like(both), where=both > 0)
        by_memory = terms.pass_s - by_compute

        def filling(name: str) -> np.ndarray:
            half = rates[name][self.work.class_index]
            return np.asarray(by_compute * half / (getattr(self.work, name) + half))

        found = {
            "compute": -by_compute,
            "bandwidth": -by_memory,
            "weights": -terms.weights,
            "relayout": terms.relayout,
            "launch_s": terms.launch,
            **{name: filling(name) for name in SIZES},
        }
        return found, by_memory

    def residuals(self, x: np.ndarray) -> np.ndarray:
        error = self.log_error(x) / _ROBUST_AT
        return np.concatenate([soft_l1(error), (x - self.start) / self.sd])

    def jacobian(self, x: np.ndarray) -> np.ndarray:
        error = self.log_error(x) / _ROBUST_AT
        robust = soft_l1(error)
        slope = np.divide(error, np.sqrt(1 + error**2) * robust, out=np.ones_like(error), where=np.abs(robust) > 1e-9)
        data = self.log_error_jacobian(x) * slope[:, None] / _ROBUST_AT
        return np.concatenate([data, np.diag(1 / self.sd)])

    def solve(self) -> np.ndarray:
        tolerance = {"ftol": _TOLERANCE, "xtol": _TOLERANCE}
        found = least_squares(self.residuals, self.start, self.jacobian, method="lm", max_nfev=40, **tolerance)
        return np.asarray(found.x)


def _wholes(classes: Sequence[int]) -> list[tuple[int, ...]]:
    """Return classes in groups, with the PARTS of a family together: whole networks do not show them separately."""
    groups: dict[str, tuple[int, ...]] = {}
    for i in classes:
        family, _, phase = CLASSES[i].partition(".")
        whole = f"{PARTS.get(family, family)}.{phase}"
        groups[whole] = (*groups.get(whole, ()), i)
    return list(groups.values())


def soft_l1(error: np.ndarray) -> np.ndarray:
    """Return residuals whose squares are the soft L1 of errors; written by hand so that the prior stays quadratic."""
    return np.asarray(np.sign(error) * np.sqrt(2 * (np.sqrt(1 + error**2) - 1)))


def fit_calibration(
    samples: Sequence[Sample],
    prior: Calibration,
    *,
    origin: str = "fitted",
    are_networks: bool = False,
    prior_sd: float | None = None,
) -> Calibration:
    """Fit a calibration that explains the samples, starting from and pulled towards `prior`.

    Args:
        are_networks: each sample is a whole network. Otherwise each is a part, and a network consists of several.
        prior_sd: allowed distance of rates from the prior, in log units; by default the distance allowed from round numbers.

    Its `sigma` makes the 80 % interval of a log-normal contain 80 % of the samples left out in turn. With n of them it uses the
    error of rank ⌈0.8 (n + 1)⌉, at least MIN_SIGMA.

    With fewer than ten samples, the prior's error on the device counts as that of four more, if it is larger; see `spread_of`.
    For a class without samples, the fit is as uncertain as for the others.

    Raises: InputError if there are fewer than four samples or a time is not positive.
    """
    if len(samples) < MIN_SAMPLES:
        hint = f"give at least {MIN_SAMPLES}"
        raise InputError(f"{len(samples)} samples are too few to calibrate a device", hint)
    if any(not s.seconds > 0 for s in samples):
        raise InputError("a sample's time is not positive", "leave failed measurements out")
    problem = _FitProblem(samples, prior, by_class=not are_networks, prior_sd=prior_sd)
    x = problem.solve()
    calibration, rates = problem.unpack(x)
    errors = _left_out_errors(samples, prior, not are_networks, prior_sd)
    if not are_networks and len(errors):
        draws = np.random.default_rng(0).choice(np.exp(errors), (_SUMS, _BLOCKS_PER_NETWORK))
        errors = np.log(draws.mean(axis=1))
    # The host's part of a prior's error has a separate spread.
    on_device = replace(prior, host_launch_s=0.0, graph_launch_s=None)
    of_prior = math.sqrt(np.mean([s.work.sigma_log(on_device) ** 2 for s in samples]))
    sigma = max(spread_of(errors, len(samples), of_prior), MIN_SIGMA)
    seen = {CLASSES[i] for p in problem.parameters for i in p.members}
    classes = {name: ClassRate(**{field: float(rates[field][i]) for field in rates}) for i, name in enumerate(CLASSES)}
    in_sample = float(np.sqrt(np.mean(problem.log_error(x) ** 2)))
    provenance = {
        **prior.provenance,
        "samples": len(samples),
        "error_in_sample": round(in_sample, 4),
        "error_left_out": round(sigma, 4),
        "classes_seen": sorted(seen),
    }
    return replace(
        calibration,
        origin=origin,
        classes=classes,
        sigma=sigma,
        class_sigma={name: max(spread, sigma) for name, spread in prior.class_sigma.items() if name not in seen},
        host_sigma=problem.host_sigma(x),
        provenance=provenance,
    )


def _left_out_errors(
    samples: Sequence[Sample], prior: Calibration, by_class: bool, prior_sd: float | None
) -> np.ndarray:
    """Return log(predicted / measured) of every sample from the fit without its fifth of the samples. A group is left out
    together.
    """
    fold_of = {group: i % _FOLDS for i, group in enumerate(dict.fromkeys(s.group for s in samples))}
    errors: list[float] = []
    for fold in range(_FOLDS):
        kept = [s for s in samples if fold_of[s.group] != fold]
        left_out = [s for s in samples if fold_of[s.group] == fold]
        if not kept or not left_out:
            continue
        problem = _FitProblem(kept, prior, by_class=by_class, prior_sd=prior_sd)
        calibration, rates = problem.unpack(problem.solve())
        errors += [math.log(s.work.total_seconds(calibration, rates) / s.seconds) for s in left_out]
    return np.array(errors)


def spread_of(errors: np.ndarray, num_samples: int, of_prior: float) -> float:
    """Return the standard deviation of the log error, from errors of left-out samples and of the prior.

    Repeating the same errors never makes it larger, so fewer rows never make an interval narrower.

    Args:
        errors: empty if all samples belong to one group, which does not show the error of another group.
    """
    if not len(errors):
        return of_prior
    own = _middle_80(errors) / Z80
    if num_samples >= _FEW:
        return own
    both = math.sqrt((_PRIOR_COUNTS * of_prior**2 + num_samples * own**2) / (_PRIOR_COUNTS + num_samples))
    return max(own, both)


def _middle_80(errors: np.ndarray) -> float:
    """Return the absolute error bound for 80 % of new cases, from n exchangeable ones: the error of rank ⌈0.8 (n + 1)⌉."""
    ordered = np.sort(np.abs(errors))
    return float(ordered[min(math.ceil(0.8 * (len(ordered) + 1)), len(ordered)) - 1])

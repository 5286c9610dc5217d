"""Calibration from times: known rates are found again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from chronograd.errors import InputError
from chronograd.fit.device import MIN_SIGMA, Sample, _Problem, fit_calibration
from chronograd.hardware import catalog
from chronograd.predict.calibration import CLASSES, ClassRate, from_datasheet
from chronograd.predict.compute import Work


def block(kind: str, flops: float, bytes_moved: float) -> Work:
    """One operator of a class."""
    one = np.ones(1)
    return Work(
        class_index=np.array([CLASSES.index(f"{kind}.forward")]),
        is_vector=np.array([kind not in ("gemm", "conv_3x3")]),
        is_launched=np.array([True]),
        flops=one * flops,
        sample_bytes=one * bytes_moved,
        weight_bytes=one * 0.0,
        depth=one * 1e9,
        width=one * 1e9,
        rows=one * 1e9,
    )


def samples(truth: object, noise: float = 0.0) -> list[Sample]:
    random = np.random.default_rng(0)
    found = []
    for kind in ("gemm", "conv_3x3", "elementwise", "batch_norm"):
        for scale in (1e6, 1e7, 1e8, 1e9, 1e10):
            for intensity in (0.1, 10.0, 1000.0):
                work = block(kind, scale, scale / intensity)
                seconds = float(work.seconds(truth).sum()) * float(np.exp(noise * random.standard_normal()))  # type: ignore[arg-type]
                found.append(Sample(work, seconds, f"{kind}-{scale}-{intensity}"))
    return found


def test_rates_are_found_again() -> None:
    prior = from_datasheet(catalog.device("cpu"))
    classes = {name: replace(rate, launch_s=12e-6) for name, rate in prior.classes.items()}
    classes["gemm.forward"] = ClassRate(compute=0.45, bandwidth=0.3, launch_s=12e-6)
    classes["conv_3x3.forward"] = ClassRate(compute=0.6, bandwidth=0.5, launch_s=12e-6)
    truth = replace(prior, classes=classes)
    known = samples(truth)
    fitted = fit_calibration(known, prior)
    errors = [np.log(float(s.work.seconds(fitted).sum()) / s.seconds) for s in known]
    assert np.sqrt(np.mean(np.square(errors))) < 0.03
    assert fitted.classes["gemm.forward"].launch_s == pytest.approx(12e-6, rel=0.1)
    assert fitted.sigma < 0.1


def test_noise_is_reported_as_spread() -> None:
    prior = from_datasheet(catalog.device("cpu"))
    fitted = fit_calibration(samples(prior, noise=0.2), prior)
    assert 0.1 < fitted.sigma < 0.4
    assert fitted.sigma >= MIN_SIGMA
    assert fitted.provenance["samples"] == 60


def test_too_few_samples_and_failed_ones_are_refused() -> None:
    prior = from_datasheet(catalog.device("cpu"))
    with pytest.raises(InputError, match="too few"):
        fit_calibration(samples(prior)[:9], prior)
    bad = samples(prior)
    with pytest.raises(InputError, match="not positive"):
        fit_calibration([replace(bad[0], seconds=0.0), *bad], prior)


def test_the_jacobian_is_the_derivative() -> None:
    prior = from_datasheet(catalog.device("v100"))
    problem = _Problem(samples(prior, noise=0.3), prior)
    x = problem.start + 0.1 * np.random.default_rng(1).standard_normal(len(problem.start))
    exact, step = problem.jacobian(x), 1e-6
    for j in range(len(x)):
        ahead, behind = x.copy(), x.copy()
        ahead[j] += step
        behind[j] -= step
        numeric = (problem.residuals(ahead) - problem.residuals(behind)) / (2 * step)
        assert exact[:, j] == pytest.approx(numeric, abs=1e-5)

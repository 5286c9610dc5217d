"""Calibration from times: known rates are found again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from chronograd.errors import InputError
from chronograd.fit.device import MIN_SIGMA, Sample, fit_calibration
from chronograd.hardware import catalog
from chronograd.predict.calibration import CLASSES, ClassRate, from_datasheet
from chronograd.predict.compute import Work


def block(kind: str, flops: float, bytes_moved: float, depth: float = 1e9) -> Work:
    """One operator of a class."""
    one = np.ones(1)
    return Work(
        class_index=np.array([CLASSES.index(f"{kind}.forward")]),
        is_vector=np.array([kind not in ("gemm", "conv_3x3")]),
        is_launched=np.array([True]),
        flops=one * flops,
        bytes_moved=one * bytes_moved,
        depth=one * depth,
        width=one * 1e9,
    )


def samples(truth: object, noise: float = 0.0) -> list[Sample]:
    random = np.random.default_rng(0)
    found = []
    for kind in ("gemm", "conv_3x3", "elementwise", "norm"):
        for scale in (1e6, 1e7, 1e8, 1e9, 1e10):
            for intensity in (0.1, 10.0, 1000.0):
                work = block(kind, scale, scale / intensity)
                seconds = float(work.seconds(truth).sum()) * float(np.exp(noise * random.standard_normal()))  # type: ignore[arg-type]
                found.append(Sample(work, seconds, f"{kind}-{scale}-{intensity}"))
    return found


def test_rates_are_found_again() -> None:
    prior = from_datasheet(catalog.device("cpu"))
    classes = {**prior.classes, "gemm.forward": ClassRate(0.45, 0.3), "conv_3x3.forward": ClassRate(0.6, 0.5)}
    truth = replace(prior, classes=classes, launch_s=12e-6)
    known = samples(truth)
    fitted = fit_calibration(known, prior)
    errors = [np.log(float(s.work.seconds(fitted).sum()) / s.seconds) for s in known]
    assert np.sqrt(np.mean(np.square(errors))) < 0.03
    assert fitted.launch_s == pytest.approx(12e-6, rel=0.1)
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

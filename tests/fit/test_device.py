"""Calibration from times: known rates are recovered."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from chronograd.errors import InputError
from chronograd.fit.device import MIN_SIGMA, Sample, _FitProblem, _middle_80, fit_calibration
from chronograd.hardware import catalog
from chronograd.predict.calibration import CLASSES, Calibration, ClassRate, from_datasheet
from chronograd.predict.compute import Work

KINDS = ("gemm", "conv_3x3", "elementwise", "batch_norm")


def block(kind: str, flops: float, bytes_moved: float, cast: float = 0.0) -> Work:
    """Return one operator of a class; `cast` is the share of its bytes that change dtype and layout."""
    one = np.ones(1)
    return Work(
        class_index=np.array([CLASSES.index(f"{kind}.forward")]),
        is_vector=np.array([kind not in ("gemm", "conv_3x3")]),
        launches=np.array([1]),
        issues=one,
        flops=one * flops,
        sample_bytes=one * bytes_moved,
        weight_bytes=one * 0.1 * cast * bytes_moved,
        cast_bytes=one * cast * bytes_moved,
        relayout_bytes=one * cast * bytes_moved * (kind == "conv_3x3"),
        depth=one * (100.0 if cast else 1e9),
        width=one * (100.0 if cast else 1e9),
        rows=one * (100.0 if cast else 1e9),
        out_width=one * (5.0 if cast else 1e9),
        is_unaligned=one < 0,
    )


def samples(truth: Calibration, noise: float = 0.0) -> list[Sample]:
    random = np.random.default_rng(0)
    found = []
    for kind in KINDS:
        for scale in (1e6, 1e7, 1e8, 1e9, 1e10):
            for intensity in (0.1, 10.0, 1000.0):
                work = block(kind, scale, scale / intensity)
                seconds = work.total_seconds(truth) * float(np.exp(noise * random.standard_normal()))
                found.append(Sample(work, seconds, f"{kind}-{scale}-{intensity}"))
    return found


def test_rates_are_recovered() -> None:
    prior = replace(
        from_datasheet(catalog.device("cpu")), pass_s=0.0
    )  # one operator cannot separate its launch from the start of a pass
    classes = {name: replace(rate, launch_s=12e-6) for name, rate in prior.classes.items()}
    classes["gemm.forward"] = ClassRate(compute=0.45, bandwidth=0.3, launch_s=12e-6)
    classes["conv_3x3.forward"] = ClassRate(compute=0.6, bandwidth=0.5, launch_s=12e-6)
    truth = replace(prior, classes=classes)
    known = samples(truth)
    fitted = fit_calibration(known, prior)
    errors = [np.log(s.work.total_seconds(fitted) / s.seconds) for s in known]
    assert np.sqrt(np.mean(np.square(errors))) < 0.03
    assert fitted.classes["gemm.forward"].launch_s == pytest.approx(12e-6, rel=0.1)
    assert fitted.sigma < 0.1


def test_cost_of_starting_a_pass_is_separate() -> None:
    """Blocks of 1 to 64 products separate both costs; from whole networks the fit returns the prior."""
    sheet = replace(from_datasheet(catalog.device("cpu")), pass_s=1e-4)
    classes = {**sheet.classes, "gemm.forward": replace(sheet.classes["gemm.forward"], launch_s=2e-5)}
    truth = replace(sheet, pass_s=4e-4, classes=classes)
    works = [Work.joined([block("gemm", flops, flops)] * n) for n in (1, 4, 16, 64) for flops in (1e3, 1e6, 1e8)]
    timed = [Sample(w, w.total_seconds(truth), str(i)) for i, w in enumerate(works)]
    # The start of a pass is independent of its number of operators.
    assert works[0].total_seconds(truth) - works[0].seconds(truth).sum() == pytest.approx(4e-4)
    assert works[9].total_seconds(truth) - works[9].seconds(truth).sum() == pytest.approx(4e-4)
    found = fit_calibration(timed, sheet)
    assert found.pass_s == pytest.approx(4e-4, rel=0.1)
    assert found.classes["gemm.forward"].launch_s == pytest.approx(2e-5, rel=0.15)
    assert fit_calibration(timed, sheet, are_networks=True).pass_s == sheet.pass_s


def test_noise_is_reported_as_spread() -> None:
    prior = from_datasheet(catalog.device("cpu"))
    fitted = fit_calibration(samples(prior, noise=0.2), prior)
    assert 0.2 / 6**0.5 < fitted.sigma < 0.4  # from sums of six parts, plus the fit's own error
    assert fitted.sigma >= MIN_SIGMA
    assert fitted.provenance["samples"] == 60


def test_few_samples_keep_the_priors_error() -> None:
    """The prior predicts the times exactly; its spread counts less with more samples."""
    prior = from_datasheet(catalog.device("cpu"))
    exact = samples(prior)
    sigmas = [fit_calibration(exact[:n], prior, are_networks=True).sigma for n in (4, 8, 60)]
    assert sigmas == sorted(sigmas, reverse=True)
    # Four own samples with error 0, and four pseudo-samples with the prior's error.
    assert sigmas[0] == pytest.approx(prior.sigma * 0.5**0.5, rel=0.02)
    together = [replace(s, group="one") for s in exact[:8]]
    assert fit_calibration(together, prior, are_networks=True).sigma == pytest.approx(prior.sigma)


def test_unknown_host_does_not_widen_the_device_spread() -> None:
    """Samples of one group keep the prior's spread of the device, although its host is the least certain part."""
    sheet = from_datasheet(catalog.device("v100"))
    prior = replace(sheet, sigma=0.1, class_sigma=dict.fromkeys(CLASSES, 0.1), host_sigma=0.4, host_launch_s=1e-2)
    own = [replace(s, group="one") for s in samples(prior)[:6]]
    assert fit_calibration(own, prior, are_networks=True).sigma <= 0.1


def test_spread_of_unseen_classes_is_at_least_that_of_seen_ones() -> None:
    prior = replace(from_datasheet(catalog.device("cpu")), class_sigma=dict.fromkeys(CLASSES, 0.05))
    noise = np.random.default_rng(1)
    noisy = [replace(s, seconds=s.seconds * math.exp(noise.normal(0, 0.3))) for s in samples(prior)]
    fitted = fit_calibration(noisy, prior, are_networks=True)
    assert fitted.sigma > 0.05
    assert set(fitted.class_sigma.values()) == {fitted.sigma}


def test_host_spread_depends_on_host_limited_samples() -> None:
    """Device times far below the host's, and far above it: only the first inform about the host."""
    sheet = from_datasheet(catalog.device("v100"))
    small = [block("elementwise", 1e3, 1e3 * (1 + i)) for i in range(10)]
    large = [block("elementwise", 1e3, 1e11 * (1 + i)) for i in range(10)]
    slow_host = replace(sheet, host_launch_s=2 * sheet.host_launch_s)
    for works, expected, sigma in (
        (small, slow_host.host_launch_s, 0.1),
        (large, sheet.host_launch_s, sheet.host_sigma),
    ):
        timed = [Sample(w, w.total_seconds(slow_host), str(i)) for i, w in enumerate(works)]
        fitted = fit_calibration(timed, sheet, are_networks=True)
        assert fitted.host_launch_s == pytest.approx(expected, rel=0.05)
        assert fitted.host_sigma == pytest.approx(sigma, rel=0.05)


def test_too_few_samples_and_failed_ones_are_refused() -> None:
    prior = from_datasheet(catalog.device("cpu"))
    with pytest.raises(InputError, match="too few"):
        fit_calibration(samples(prior)[:3], prior)
    bad = samples(prior)
    with pytest.raises(InputError, match="not positive"):
        fit_calibration([replace(bad[0], seconds=0.0), *bad], prior)


@pytest.mark.parametrize("by_class", [True, False], ids=["by class", "shared"])
def test_jacobian_matches_finite_differences(by_class: bool) -> None:
    """Central differences at a point where each term matters: casts, layout, cache, host and device."""
    sheet = from_datasheet(catalog.device("v100"), "fp16")
    classes = {**sheet.classes, "conv_3x3.forward": replace(sheet.classes["conv_3x3.forward"], out_width=2.0)}
    prior = replace(sheet, classes=classes, cache_bytes=1e6, cache_speedup=2.5, host_launch_s=5e-5, pass_s=2e-5)
    works = [
        block(kind, flops, flops / intensity, cast=0.3)
        for kind in KINDS
        for flops in (1e6, 1e8, 1e10)
        for intensity in (1.0, 1000.0)
    ]
    problem = _FitProblem(
        [Sample(Work.joined([a, b]), 1e-4) for a, b in itertools.pairwise(works)], prior, by_class=by_class
    )
    names = [p.name for p in problem.parameters]
    assert {"relayout", "rows", "depth", "out_width", "cache_speedup", "host_launch_s"} <= set(names)
    assert ("pass_s" in names) == by_class
    assert names.count("launch_s") == (len(KINDS) if by_class else 1)
    x = problem.start + 0.1 * np.random.default_rng(1).standard_normal(len(problem.start))
    exact, step = problem.jacobian(x), 1e-6
    for j, name in enumerate(names):
        ahead, behind = x.copy(), x.copy()
        ahead[j] += step
        behind[j] -= step
        numeric = (problem.residuals(ahead) - problem.residuals(behind)) / (2 * step)
        assert exact[:, j] == pytest.approx(numeric, abs=1e-5), name
        assert np.abs(exact[: len(problem.log_seconds), j]).max() > 1e-3, f"no sample tells of {name}"


def test_shared_rate_scales_all_classes_equally() -> None:
    """Whole networks cannot separate launch costs of classes, so these stay at the prior's ratios."""
    prior = from_datasheet(catalog.device("v100"), "fp16")
    classes = {n: replace(r, launch_s=r.launch_s * (1 + i % 3)) for i, (n, r) in enumerate(prior.classes.items())}
    prior = replace(prior, classes=classes, host_launch_s=0.0)
    slow = replace(prior, classes={n: replace(r, launch_s=3 * r.launch_s) for n, r in classes.items()})
    fitted = fit_calibration(samples(slow), prior, are_networks=True)
    ratios = [fitted.classes[f"{k}.forward"].launch_s / classes[f"{k}.forward"].launch_s for k in KINDS]
    assert ratios == pytest.approx([ratios[0]] * len(KINDS), rel=1e-9)
    assert ratios[0] == pytest.approx(3, rel=0.1)


def test_networks_fit_the_parts_of_a_family_together() -> None:
    """A table of networks does not show wide depthwise kernels separately, so it has one rate for both."""
    prior = replace(from_datasheet(catalog.device("cpu")), pass_s=0.0)

    def fitted(*kinds: str) -> Calibration:
        found = []
        for i, kind in enumerate(kinds * 4):
            work = block(kind, 1e9 * 2**i, 1e7)
            found.append(Sample(work, 3 * work.total_seconds(prior), str(i)))
        return fit_calibration(found, prior, are_networks=True)

    both, one = fitted("conv_depthwise", "conv_depthwise_kxk"), fitted("conv_depthwise", "conv_depthwise")
    expected = one.classes["conv_depthwise.forward"].compute
    assert expected < 0.5 * prior.classes["conv_depthwise.forward"].compute
    for part in ("conv_depthwise", "conv_depthwise_kxk"):
        assert both.classes[f"{part}.forward"].compute == pytest.approx(expected, rel=1e-3)
    assert both.classes_seen == {"conv_depthwise.forward", "conv_depthwise_kxk.forward"}


def test_tight_prior_keeps_rates_closer() -> None:
    """`prior_sd` is small if a related device taught the prior."""
    prior = from_datasheet(catalog.device("cpu"))
    truth = replace(prior, classes={n: replace(r, compute=r.compute / 3) for n, r in prior.classes.items()})
    known = samples(truth)[:12]

    def moved(sd: float) -> float:
        fitted = fit_calibration(known, prior, prior_sd=sd)
        return abs(float(np.log(fitted.classes["gemm.forward"].compute / prior.classes["gemm.forward"].compute)))

    assert moved(0.01) < moved(0.1) < moved(1.0)
    assert moved(1.0) == pytest.approx(np.log(3), rel=0.1)


def test_interval_is_a_rank_of_leave_one_out_errors() -> None:
    """⌈0.8 · (9 + 1)⌉ = the 8th smallest of nine; of four errors the largest."""
    assert _middle_80(np.array([1.0, -2, 3, -4, 5, -6, 7, -8, 9])) == 8
    assert _middle_80(np.array([1.0, -2, 3, -4])) == 4

"""Regression across runs: exact laws, excluded networks, interval coverage, and p-values."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from chronograd.errors import InputError, NotFoundError
from chronograd_lab.studies.depth_and_device import curve_regression as across
from chronograd_lab.studies.depth_and_device.curve_regression import (
    EPOCH_BY_EPOCH,
    RIDGE,
    Run,
    curve,
    describe,
    epochs_to,
    label_test,
    left_out,
    predict,
    regress,
    score,
    slope,
)

DEVICES = ("a", "b", "c")
FAMILIES = {"plain": 1.0, "wide": 3.0}


def runs_of(depths: list[int], devices: tuple[str, ...] = DEVICES, family: str = "plain") -> list[Run]:
    return [
        Run(f"{family}{depth}", {"depth": depth}, {"device": device, "family": family})
        for depth in depths
        for device in devices
    ]


class TestRegress:
    def test_one_feature_matches_the_ridge_formula(self) -> None:
        """Use x of variance 1 over n networks: the slope is the least-squares slope times n / (n + RIDGE)."""
        runs = runs_of([10, 20, 40, 80])
        y = np.array([[run.numbers["depth"] ** -0.5] for run in runs])
        x = np.log([10, 20, 40, 80])
        expected = math.exp(-0.5 * (x.mean() + (math.log(160) - x.mean()) * 4 / (4 + RIDGE)))
        model = regress(runs, y, ["depth"])
        new = Run("new", {"depth": 160})
        assert model.predict(new)[0] == pytest.approx(expected)
        distance = (math.log(160) - x.mean()) / x.std()
        assert model.leverage(new) == pytest.approx(1 / 4 + distance**2 / (4 + RIDGE))

    def test_family_laws_are_recovered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(across, "RIDGE", 1e-9)
        runs = [run for family in FAMILIES for run in runs_of([10, 20, 40], family=family)]
        y = np.array([[FAMILIES[run.labels["family"]] * run.numbers["depth"] ** 0.7, 2.0] for run in runs])
        told = regress(runs, y, ["depth", "family"]).predict(Run("new", {"depth": 30}, {"family": "wide"}))
        assert told == pytest.approx([3 * 30**0.7, 2.0])

    def test_networks_have_equal_weight(self) -> None:
        few = runs_of([10], ("a",)) + runs_of([20, 40])
        y = np.array([[run.numbers["depth"]] for run in few])
        assert regress(few, y, []).predict(few[0])[0] == pytest.approx((10 * 20 * 40) ** (1 / 3))

    def test_unknown_label_gets_the_mean_effect(self) -> None:
        runs = runs_of([10, 20, 40])
        y = np.array([[{"a": 1.0, "b": 4.0, "c": 2.0}[run.labels["device"]]] for run in runs])
        model = regress(runs, y, ["device"])
        assert model.predict(Run("new", {}, {"device": "d"}))[0] == pytest.approx(2.0)
        assert model.predict(Run("new", {}, {"device": "b"}))[0] > 3

    def test_coefficients_at_their_bound_are_not_logarithmic(self) -> None:
        runs = runs_of([10, 20, 40], ("a",))
        model = regress(runs, np.array([[0.0, 1.0], [0.0, 1.0], [3.0, 1.0]]), ["depth"])
        assert model.is_log.tolist() == [False, True]
        assert model.predict(Run("new", {"depth": 2}))[0] == 0  # the fitted line is below 0 here
        assert model.predict(Run("new", {"depth": 40}))[0] > 2

    def test_invalid_input(self) -> None:
        runs = runs_of([10, 20, 40], ("a",))
        with pytest.raises(InputError, match="number above 0 or a label params"):
            regress(runs, np.ones((3, 1)), ["params"])
        with pytest.raises(InputError, match="depth 0"):
            regress(runs, np.ones((3, 1)), ["depth"]).predict(Run("new", {}))
        with pytest.raises(InputError, match="finite values of at least 0"):
            regress(runs, -np.ones((3, 1)), ["depth"])


class TestLeftOut:
    def test_left_out_network_has_no_influence(self) -> None:
        runs = runs_of([10, 20, 40, 80])
        y = np.array([[run.numbers["depth"]] for run in runs], dtype=float)
        told, _ = left_out(runs, y, ["depth"])
        changed = np.where(np.array([run.network for run in runs])[:, None] == "plain40", 1e6, y)
        again, _ = left_out(runs, changed, ["depth"])
        is_it = np.array([run.network == "plain40" for run in runs])
        assert again[is_it] == pytest.approx(told[is_it])
        assert (np.abs(np.log(again[~is_it] / told[~is_it])) > 0.1).all()

    def test_two_networks_are_too_few(self) -> None:
        runs = runs_of([10, 20])
        with pytest.raises(InputError, match="2 networks"):
            left_out(runs, np.ones((6, 1)), [])

    def test_interval_coverage(self) -> None:
        """Networks scatter around a law by 10 %: about 80 % of 400 new ones are inside the 80 % interval."""
        random, hits, total = np.random.default_rng(1), 0, 400
        runs = runs_of([10, 14, 20, 28, 40, 56], ("a",))
        for _ in range(total):
            noise = np.exp(0.1 * random.standard_normal(7))
            y = np.array([[run.numbers["depth"] ** -0.3] for run in runs]) * noise[:6, None]
            new = Run("new", {"depth": 33})
            told = predict(runs, y, ["depth"], new, y)
            hits += int(told.low[0] <= 33**-0.3 * noise[6] <= told.high[0])
        assert 0.74 < hits / total < 0.9

    def test_disagreeing_regressions_widen_the_interval(self) -> None:
        runs = runs_of([10, 20, 40, 80], ("a",))
        y = np.array([[run.numbers["depth"] ** 0.5] for run in runs])
        new = Run("new", {"depth": 1000})
        alone = predict(runs, y, ["depth"], new, y)
        wide = predict(runs, y, ["depth"], new, y, rivals=[()])
        assert wide.values == pytest.approx(alone.values)
        assert wide.low[0] < float(np.exp(np.log(y).mean())) < alone.low[0] < wide.values[0] <= wide.high[0]


class TestCurves:
    @pytest.mark.parametrize("form", ["inverse", "exponential", EPOCH_BY_EPOCH])
    def test_curve_of_a_left_out_depth(self, form: str) -> None:
        """Use curves of this form with a rate that is a power of depth."""
        k = np.arange(1.0, 41.0)
        laws = {"inverse": lambda r: 1 / (r * k + 0.4) + 0.1, "exponential": lambda r: 2 * np.exp(-r * k) + 0.1}
        law = laws.get(form, laws["exponential"])
        runs = [Run(f"r{d}", {"depth": d}, {}, law(0.02 * d**0.5)) for d in (8, 14, 20, 32, 44)]
        truth = describe(EPOCH_BY_EPOCH, runs)
        described = describe(form, runs)
        errors = {}
        for features in ((), ("depth",)):
            told, _ = left_out(runs, described, features, lambda found: curve(form, found, 40))
            errors[features] = np.mean([score(*pair).mape for pair in zip(told, truth, strict=True)])
        assert errors[("depth",)] < 0.06
        assert errors[("depth",)] < errors[()] / 3

    def test_runs_are_cut_to_the_shortest(self) -> None:
        runs = [Run("a", {}, {}, np.ones(5)), Run("b", {}, {}, np.ones(3))]
        assert describe(EPOCH_BY_EPOCH, runs).shape == (2, 3)
        with pytest.raises(NotFoundError, match="form of a curve"):
            describe("parabola", runs)

    def test_score_values(self) -> None:
        found = score(np.array([2.0, 0.5, 0.2]), np.array([2.0, 1.0, 0.1]))
        assert found.mape == pytest.approx((0 + 0.5 + 1) / 3)
        assert found.error_of_largest == pytest.approx((0 + 0.5 + 0.1) / 3 / 2)
        assert found.factor == pytest.approx(4 ** (1 / 3))
        assert epochs_to(np.array([2.0, 0.5, 0.7]), 0.5) == 2
        assert epochs_to(np.array([2.0, 0.5]), 0.1) is None


class TestLabels:
    def test_p_value_covers_all_permutations(self) -> None:
        """Compare with plain enumeration."""
        random = np.random.default_rng(3)
        table = random.normal(size=(3, 3))
        runs = runs_of([10, 20, 40])
        found = label_test(runs, np.exp(table).ravel().tolist(), "device")

        def spread(rows: list[tuple[float, ...]]) -> float:
            means = np.mean([np.array(row) - np.mean(row) for row in rows], axis=0)
            return float((means**2).sum())

        orders = itertools.product(*(list(itertools.permutations(row)) for row in table.tolist()))
        seen = spread([tuple(row) for row in table.tolist()])
        expected = np.mean([spread(list(rows)) >= seen - 1e-12 for rows in orders])
        assert found.num_permutations == 6**3
        assert found.p_value == pytest.approx(expected)

    def test_effect_is_detected_with_its_size(self) -> None:
        runs = runs_of([10, 20, 40, 80, 160])
        effect = {"a": 1.0, "b": 1.0, "c": 1.2}
        random = np.random.default_rng(0)
        y = [run.numbers["depth"] * effect[run.labels["device"]] * math.exp(0.01 * random.normal()) for run in runs]
        found = label_test(runs, y, "device")
        assert found.p_value < 0.01
        assert found.spread == pytest.approx(0.2, abs=0.03)
        assert found.low < 0.2 < found.high
        assert found.noise == pytest.approx(0.01, rel=0.6)
        assert found.share > 0.9

    def test_no_effect_rarely_gives_a_small_p_value(self) -> None:
        runs, random = runs_of([10, 20, 40, 80, 160]), np.random.default_rng(5)
        ps = [label_test(runs, np.exp(random.normal(size=15)).tolist(), "device").p_value for _ in range(200)]
        assert np.mean(np.array(ps) <= 0.1) == pytest.approx(0.1, abs=0.06)
        assert np.mean(ps) == pytest.approx(0.5, abs=0.08)

    def test_many_networks_are_sampled_permutations(self, monkeypatch: pytest.MonkeyPatch) -> None:
        runs, random = runs_of([10, 20, 40, 80]), np.random.default_rng(2)
        y = np.exp(random.normal(size=12)).tolist()
        exact = label_test(runs, y, "device")
        monkeypatch.setattr(across, "MAX_PERMUTATIONS", 1000)
        drawn = label_test(runs, y, "device")
        assert (exact.num_permutations, drawn.num_permutations) == (6**4, 1000)
        assert drawn.p_value == pytest.approx(exact.p_value, abs=0.06)

    def test_every_network_needs_every_label(self) -> None:
        runs = runs_of([10, 20])
        with pytest.raises(InputError, match="5 runs of 2 networks and 3 labels of device"):
            label_test(runs[:-1], [1.0] * 5, "device")


def test_slope_has_the_least_squares_interval() -> None:
    """Compare with the textbook: t of 0.9 with 1 degree of freedom is 3.078."""
    x, y = [1.0, math.e, math.e**2], [1.0, math.e**1.3, math.e**2]
    found, low, high = slope(x, y)
    assert found == pytest.approx(1.0)
    rest = 0.1**2 + 0.2**2 + 0.1**2
    assert high - found == pytest.approx(3.0777 * math.sqrt(rest / 2), rel=1e-4)
    assert found - low == pytest.approx(high - found)
    with pytest.raises(InputError, match="2 points"):
        slope([1, 2], [1, 2])

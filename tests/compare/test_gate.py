"""The gate: closed forms for intervals, false alarms and power by simulation, and invalid conditions."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronograd.compare.gate import judge, read_condition
from chronograd.errors import InputError, NotFoundError
from chronograd.record import Quantity, Record


def record(step_time_s=0.1, std=None, **others):
    made = Record(kind="measured", title="t")
    made.put("step_time_s", Quantity(value=step_time_s, unit="s", std=std, n=30))
    for name, found in others.items():
        made.put(name, found)
    return made


def judged(text, baseline, runs):
    return judge(read_condition(text), baseline, runs)


# -- conditions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "is_above", "limit", "is_relative"),
    [
        ("step_time > 5%", "step_time_s", True, 0.05, True),
        ("step_time_s>=5 %", "step_time_s", True, 0.05, True),
        ("throughput < -5%", "throughput_samples_per_s", False, -0.05, True),
        ("throughput < −5%", "throughput_samples_per_s", False, -0.05, True),
        ("step_time > 20 ms", "step_time_s", True, 0.02, False),
        ("memory_peak > 1.5GiB", "memory_peak_bytes", True, 1.5 * 2**30, False),
        ("test_accuracy < -1 point", "test_accuracy", False, -0.01, False),
        ("achieved_flops < -1 TFLOP/s", "achieved_flops_per_s", False, -1e12, False),
    ],
)
def test_conditions(text, name, is_above, limit, is_relative):
    found = read_condition(text)
    assert (found.name, found.is_above, found.is_relative) == (name, is_above, is_relative)
    assert found.limit == pytest.approx(limit)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("step_time", InputError, "cannot read the condition"),
        ("step_time = 5%", InputError, "cannot read the condition"),
        ("step_time > 5", InputError, "write 5% or 5 s or 5 ms"),
        ("step_time > 5 GB", InputError, "unit 'GB'"),
        ("step_tim > 5%", NotFoundError, "did you mean step_time"),
        ("throughput < -100%", InputError, "can never hold"),
    ],
)
def test_invalid_conditions(text, error, message):
    with pytest.raises(error, match=message) as told:
        read_condition(text)
    assert told.value.exit_status == 2


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_a_condition_or_one_clear_error(text):
    """Any other error fails the test."""
    with contextlib.suppress(InputError):
        assert read_condition(text).limit is not None


def test_condition_for_an_improvement_is_reported():
    assert read_condition("step_time > 5%").warning == read_condition("throughput < -5%").warning == ""
    assert "'throughput < …'" in read_condition("throughput > 5%").warning
    assert "'step_time > …'" in read_condition("step_time < -5%").warning


def test_conditions_may_name_figures_of_the_records():
    assert read_condition("test_map > 1%", ["test_map"]).name == "test_map"


# -- one run of each, with an assumed spread ---------------------------------------------------------------

PAIR = 1.959964 * math.sqrt(2)  # half the 95 % interval of a difference, in standard deviations


def test_single_runs_are_assumed_to_differ_by_ten_percent():
    """Steps of 100 and 150 ms with little variation: log 1.5 ± 1.96 · √2 · 10 %."""
    outcome = judged("step_time > 5%", [record(0.1, std=0.003)], [record(0.15, std=0.0052)])
    assert outcome.change == pytest.approx(0.5)
    assert (outcome.low, outcome.high) == pytest.approx(
        (1.5 * math.exp(-PAIR * 0.1) - 1, 1.5 * math.exp(PAIR * 0.1) - 1)
    )
    assert outcome.verdict == "fails"
    assert outcome.seen == pytest.approx(
        1.05 * math.exp(PAIR * 0.1) - 1
    )  # +39 %: the smallest change that one run of each can detect
    assert outcome.is_assumed
    assert "assumed spread between runs: 10 %" in outcome.line()


def test_larger_step_variation_replaces_the_assumed_spread():
    """100 and 200 ms, steps 15 and 20 %: log 2 ± 1.96 · 25 %."""
    outcome = judged("step_time > 5%", [record(0.1, std=0.015)], [record(0.2, std=0.04)])
    half = 1.959964 * 0.25
    assert (outcome.low, outcome.high) == pytest.approx((2 * math.exp(-half) - 1, 2 * math.exp(half) - 1))
    assert "interval from the spread within each run" in outcome.line()


def test_step_variation_of_one_side_counts_for_that_side():
    """100 and 200 ms, steps 3 and 20 %: log 2 ± 1.96 · sqrt(0.1² + 0.2²); the output states both."""
    outcome = judged("step_time > 5%", [record(0.1, std=0.003)], [record(0.2, std=0.04)])
    half = 1.959964 * math.sqrt(0.1**2 + 0.2**2)
    assert (outcome.low, outcome.high) == pytest.approx((2 * math.exp(-half) - 1, 2 * math.exp(half) - 1))
    assert "assumed spread between runs: 10 %, or the spread within a run if that is larger" in outcome.line()


def test_absolute_difference():
    """The deviation of each run is 10 % of the larger value: 100 ± 1.96 · √2 · 20 ms."""
    sides = [record(0.1, std=0.003)], [record(0.2, std=0.004)]
    outcome = judged("step_time > 20 ms", *sides)
    assert (outcome.change, outcome.low) == pytest.approx((0.1, 0.1 - PAIR * 0.02))
    assert outcome.verdict == "fails"
    assert judged("step_time > 50 ms", *sides).verdict == "cannot tell"


@pytest.mark.parametrize(
    ("unit", "seconds"), [("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0)]
)
def test_units_of_time(unit, seconds):
    assert read_condition(f"step_time > 20 {unit}").limit == pytest.approx(20 * seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("unit", "size"),
    [("B", 1), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("KiB", 1024), ("MiB", 1024**2), ("GiB", 1024**3)],
)
def test_units_of_memory(unit, size):
    assert read_condition(f"memory_peak > 3 {unit}").limit == pytest.approx(3 * size, rel=1e-12)


def test_throughput_uses_the_spread_of_the_steps():
    sides = [
        [record(t, std=0.15 * t, throughput_samples_per_s=Quantity(value=1 / t, unit="sample/s"))] for t in (0.1, 0.2)
    ]
    down = judged("throughput < -5%", *sides)
    up = judged("step_time > 5%", *sides)
    assert (1 + down.low, 1 + down.high) == pytest.approx((1 / (1 + up.high), 1 / (1 + up.low)))
    assert down.verdict == up.verdict == "fails"


def test_inconclusive_pair_asks_for_repeats():
    outcome = judged("step_time > 5%", [record(0.1, std=0.02)], [record(0.108, std=0.0216)])
    assert outcome.verdict == "cannot tell"
    # Two means of n runs each: 2 · 20 % · √(2 / n) is 5 % as a logarithm.
    assert outcome.runs_needed == math.ceil(2 * (2 * 0.2 / math.log(1.05)) ** 2)
    assert "give at least 3 runs of each, taken in turn" in outcome.line()


def test_noisy_repeats_state_the_required_number_of_runs():
    sides = [record(t) for t in (0.1, 0.12, 0.09)], [record(t) for t in (0.11, 0.1, 0.125)]
    outcome = judged("step_time > 5%", *sides)
    assert outcome.verdict == "cannot tell"
    assert "too noisy to detect 5.0 %; that would need about" in outcome.line()


def test_other_runs_of_the_job_give_the_spread():
    """Five other runs with a deviation of 2 % (4 degrees of freedom, t = 2.776) let a pair detect 10 %."""
    others = [record(0.1 * math.exp(0.02 * z)) for z in (-1.2, -0.6, 0.0, 0.6, 1.2)]
    sides = [record(0.1, std=0.001)], [record(0.115, std=0.001)]
    deviation = 0.02 * math.sqrt((1.2**2 + 0.6**2) * 2 / 4)
    outcome = judge(read_condition("step_time > 5%"), *sides, [others])
    assert outcome.low == pytest.approx(1.15 * math.exp(-2.776445 * deviation * math.sqrt(2)) - 1)
    assert outcome.verdict == "fails"
    assert "5 other runs of the same job" in outcome.line()
    assert judged("step_time > 5%", *sides).verdict == "cannot tell"


def test_predictions_use_their_own_intervals():
    sides = [[record(t, std=0.001)] for t in (0.1, 0.115)]
    for side in sides:
        side[0].kind = "predicted"
    assert judged("step_time > 5%", *sides).verdict == "fails"


def test_figure_of_unknown_spread_never_fails():
    sides = [[record(mean_return=Quantity(value=v, unit="1"))] for v in (400.0, 100.0)]
    outcome = judged("mean_return < -5%", *sides)
    assert outcome.verdict == "cannot tell"
    assert "the spread between runs is unknown: give at least 3 runs of each" in outcome.line()
    assert outcome.as_data()["low"] is None
    assert outcome.as_data()["high"] is None


def test_memory_of_single_runs_is_compared_exactly():
    sides = [[record(memory_peak_bytes=Quantity(value=v, unit="B", n=1))] for v in (100e6, 111e6)]
    outcome = judged("memory_peak > 10%", *sides)
    assert (outcome.low, outcome.high, outcome.verdict) == (outcome.change, outcome.change, "fails")
    assert "spread unknown" in outcome.line()


def test_accuracy_has_the_noise_of_its_test_images():
    """0.90 and 0.88 of 10,000 images: 2 points ± 1.96 · √(0.09 + 0.1056) / 100."""
    sides = [[record(test_accuracy=Quantity(value=v, unit="1", n=10_000))] for v in (0.90, 0.88)]
    outcome = judged("test_accuracy < -1 point", *sides)
    half = 1.959964 * math.sqrt(0.09 + 0.1056) / 100
    assert (outcome.low, outcome.high) == pytest.approx((-0.02 - half, -0.02 + half))
    assert outcome.verdict == "fails"


# -- several runs: their own spread -------------------------------------------------------------------------


def test_several_runs_use_students_t():
    baseline = [record(t, std=0.09) for t in (0.1, 0.102, 0.098)]
    runs = [record(t, std=0.09) for t in (0.12, 0.123, 0.117)]
    outcome = judged("step_time > 5%", baseline, runs)
    logs = [np.log([r.value("step_time_s") for r in side]) for side in (baseline, runs)]
    deviation = math.sqrt((logs[0].var(ddof=1) + logs[1].var(ddof=1)) / 2)
    half = 2.776445 * deviation * math.sqrt(2 / 3)  # t of 4 degrees of freedom
    difference = logs[1].mean() - logs[0].mean()
    assert (outcome.low, outcome.high) == pytest.approx((math.expm1(difference - half), math.expm1(difference + half)))
    assert outcome.verdict == "fails"


def alarms(chance, gates, runs, run_noise, step_noise, change, limit):
    """Return the share of failing gates. Runs vary by `run_noise` and steps by `step_noise`, both log-normal."""
    failed = 0
    for _ in range(gates):
        sides = []
        for factor in (1.0, 1.0 + change):
            times = 0.1 * factor * np.exp(run_noise * chance.standard_normal(runs))
            sides.append([record(t, std=step_noise * t) for t in times])
        failed += judged(f"step_time > {limit}%", *sides).verdict == "fails"
    return failed / gates


@pytest.mark.parametrize("runs", [2, 3, 5])
def test_equal_runs_seldom_fail_at_any_spread(runs):
    """Gates without a margin fail at a rate of 2.5 % (t distribution), within the error of 2000 gates."""
    assert 0.015 < alarms(np.random.default_rng(runs), 2000, runs, 0.2, 0.01, 0.0, 0) < 0.035


@pytest.mark.parametrize(("run_noise", "step_noise"), [(0.05, 0.03), (0.10, 0.01), (0.01, 0.03), (0.2, 0.2)])
@pytest.mark.parametrize("limit", [0, 5])
def test_equal_pairs_seldom_fail(run_noise, step_noise, limit):
    assert alarms(np.random.default_rng(1), 1000, 1, run_noise, step_noise, 0.0, limit) < 0.05


@pytest.mark.parametrize(("runs", "noise", "change"), [(1, 0.02, 0.5), (3, 0.03, 0.2), (5, 0.05, 0.2)])
def test_large_change_is_detected(runs, noise, change):
    assert alarms(np.random.default_rng(2), 500, runs, noise, noise, change, 5) > 0.9


# -- rounds: the change of each pair ----------------------------------------------------------------------


def pairs(*times):
    return [[record(t) for t in side] for side in zip(*times, strict=True)]


def paired(text, baseline, runs):
    return judge(read_condition(text), baseline, runs, is_paired=True)


def test_common_slowdown_of_a_round_cancels():
    """The machine's time doubles each round; changes are 10, 12 and 14 %: t of 2 degrees of freedom is 4.303."""
    sides = pairs((0.1, 0.110), (0.2, 0.224), (0.4, 0.456))
    outcome = paired("step_time > 5%", *sides)
    changes = np.log([1.10, 1.12, 1.14])
    half = 4.302653 * changes.std(ddof=1) / math.sqrt(3)
    assert (outcome.low, outcome.high) == pytest.approx(
        (math.expm1(changes.mean() - half), math.expm1(changes.mean() + half))
    )
    assert outcome.verdict == "fails"  # from +7 to +17 %
    assert paired("step_time > 10%", *sides).verdict == "cannot tell"
    assert judged("step_time > 5%", *sides).high > 4  # without pairs: up to +400 %


def test_absolute_difference_of_pairs():
    outcome = paired("step_time > 5 ms", *pairs((0.1, 0.110), (0.2, 0.212), (0.3, 0.314)))
    assert (outcome.change, outcome.high - outcome.change) == pytest.approx((0.012, 4.302653 * 0.002 / math.sqrt(3)))
    assert not outcome.is_assumed


def test_two_rounds_or_odd_runs_are_no_pairs():
    for times in ([(0.1, 0.1)] * 2, [(0.1, 0.1)]):
        with pytest.raises(InputError, match="3 or more; you gave"):
            paired("step_time > 5%", *pairs(*times))
    with pytest.raises(InputError, match="you gave 4 and 3"):
        paired("step_time > 5%", [record() for _ in range(4)], [record() for _ in range(3)])


@pytest.mark.parametrize("rounds", [3, 5])
@pytest.mark.parametrize("shared", [0.0, 0.3])
def test_pairs_of_equal_jobs_seldom_fail(rounds, shared):
    """2.5 % of the gates fail (t distribution), within the error of 2000 gates."""
    chance = np.random.default_rng(rounds)
    failed = 0
    for _ in range(2000):
        drift = shared * chance.standard_normal((rounds, 1))
        times = 0.1 * np.exp(drift + 0.05 * chance.standard_normal((rounds, 2)))
        failed += paired("step_time > 0%", *pairs(*times)).verdict == "fails"
    assert 0.015 < failed / 2000 < 0.035


def test_missing_figure_is_an_error_and_never_a_pass():
    reason = Quantity.missing("1", "it was not evaluated")
    with pytest.raises(InputError, match=r"has no test_accuracy: it was not evaluated"):
        judged(
            "test_accuracy < -1%", [record(test_accuracy=Quantity(value=0.9, unit="1"))], [record(test_accuracy=reason)]
        )
    with pytest.raises(InputError, match="there is no percentage of 0"):
        judged(
            "cost > 1%",
            [record(cost_usd=Quantity(value=0, unit="usd"))],
            [record(cost_usd=Quantity(value=1, unit="usd"))],
        )

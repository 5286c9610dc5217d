"""Forecasts of convergence: from published runs, from the curve itself, and compared with real runs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chronograd.cli.main import main
from chronograd.errors import InputError
from chronograd.forecast.convergence import converged_at, forecast_convergence, levels_ahead, why_unlike, zero_line
from chronograd.forecast.forecasting import forecast
from chronograd.forecast.learning_curves import LearningCurve
from chronograd.forecast.learning_rates import schedule_of_rates
from chronograd.forecast.published_curves import PublishedCurves, PublishedRun, published, weighted_quantiles
from chronograd.forecast.schedule import Schedule, schedule_of
from chronograd.job import from_dict

NONE_KNOWN = PublishedCurves((), {})
STEPS = Schedule("multi_step", (40.0, 60.0), 80.0)


def curve(values: np.ndarray, schedule: Schedule = Schedule(), metric: str = "loss") -> LearningCurve:  # noqa: B008, RUF100
    steps = np.arange(1.0, len(values) + 1)
    return LearningCurve("c", steps, values, metric, "epoch", schedule, is_of_images=True)  # type: ignore[arg-type]


def in_steps(levels: tuple[float, ...], schedule: Schedule) -> np.ndarray:
    """Return a curve that falls to a level right after each drop and stays there."""
    k = np.arange(1.0, (schedule.planned or 0) + 1)
    return np.array(levels)[np.floor(schedule.progress(k) - 1e-9).astype(int).clip(0, len(levels) - 1)]


def run_like(schedule: Schedule, levels: tuple[float, ...], team: str, converged: float) -> PublishedRun:
    values = in_steps(levels, schedule)
    return PublishedRun(team, team, schedule, np.arange(1.0, len(values) + 1), values, converged)


class TestSchedule:
    def test_progress_and_its_inverse(self) -> None:
        steps = np.array([0.0, 20, 40, 50, 60, 80])
        assert STEPS.progress(steps).tolist() == [0, 0.5, 1, 1.5, 2, 3]
        assert [STEPS.step(p) for p in STEPS.progress(steps)] == steps.tolist()
        assert Schedule("annealed", (), 50.0).progress(np.array([25.0])).tolist() == [0.5]

    @pytest.mark.parametrize(
        ("kind", "drops", "planned", "message"),
        [
            ("constant", (3.0,), 9.0, "drops of the rate"),
            ("multi_step", (3.0, 2.0), 9.0, "rising"),
            ("multi_step", (0.0, 2.0), 9.0, "above 0"),
            ("multi_step", (), 9.0, "without a drop"),
            ("annealed", (), None, "without an end"),
        ],
    )
    def test_invalid_schedules(self, kind: str, drops: tuple[float, ...], planned: float | None, message: str) -> None:
        with pytest.raises(InputError, match=message):
            Schedule(kind, drops, planned)  # type: ignore[arg-type]


class TestFromOwnCurve:
    def test_exponential_error_is_exact(self) -> None:
        """Check that 2 % of the fall from the first value remains: exp(-b (T - 1)) = 0.02."""
        values = 0.5 * np.exp(-0.1 * np.arange(100)) + 0.2
        found = forecast_convergence(curve(values[:15], metric="accuracy"), NONE_KNOWN)
        assert found.step == pytest.approx(1 - np.log(0.02) / 0.1, rel=1e-3)
        assert converged_at(np.arange(1.0, 101), values) == np.ceil(1 - np.log(0.02) / 0.1)

    def test_training_loss_approaches_zero(self) -> None:
        values = np.exp(-0.1 * np.arange(12))
        found = forecast_convergence(curve(values), NONE_KNOWN)
        assert found.step == pytest.approx(1 - np.log(0.02) / 0.1, rel=0.02)

    def test_zero_line_uses_the_later_half(self) -> None:
        """Fit a kink of log(loss) half-way: only points after it count."""
        steps = np.arange(1.0, 41)
        logs = np.where(steps <= 20, -0.5 * steps, -10 - 0.1 * (steps - 20))
        logs[21:27] += 0.3
        slope, _ = zero_line(steps, np.exp(logs))
        assert slope == pytest.approx(np.polyfit(steps[20:], logs[20:], 1)[0])

    def test_correction_by_ratios_of_other_runs(self) -> None:
        values = np.exp(-0.1 * np.arange(12))
        plain = forecast_convergence(curve(values), NONE_KNOWN)
        found = forecast_convergence(
            curve(values), PublishedCurves((), {"others": (1.3, 1.3, 1.5, 1.5, 1.5, 1.5, 1.9)})
        )
        assert found.step == pytest.approx(1.5 * plain.step)
        assert found.low < found.step < found.high

    def test_converged_curve(self) -> None:
        values = 0.5 * np.exp(-0.4 * np.arange(60)) + 0.2
        found = forecast_convergence(curve(values, metric="accuracy"), NONE_KNOWN)
        assert found.step == found.low == found.high == 11


class TestFromPublishedRuns:
    KNOWN = PublishedCurves(
        (
            run_like(Schedule("multi_step", (10.0, 20.0), 30.0), (0.8, 0.4, 0.1), "a", 21.0),
            run_like(Schedule("multi_step", (50.0, 100.0, 150.0), 200.0), (0.8, 0.4, 0.1, 0.1), "b", 105.0),
            run_like(Schedule("annealed", (), 10.0), (0.8,), "c", 9.0),
        ),
        {},
    )

    def test_converges_after_the_same_drop(self) -> None:
        found = forecast_convergence(curve(np.full(30, 0.8), STEPS), self.KNOWN)
        assert found.source == "published"
        assert found.step == pytest.approx(62)  # a tenth of the way from the second drop to the end
        assert forecast_convergence(curve(np.full(30, 0.8), Schedule("annealed", (), 80.0)), self.KNOWN).step == 72

    def test_already_converged_runs_are_ignored(self) -> None:
        early = run_like(Schedule("multi_step", (10.0, 20.0), 30.0), (0.8, 0.1, 0.1), "d", 11.0)
        known = PublishedCurves((*self.KNOWN.runs, early, early, early), {})
        assert forecast_convergence(curve(np.full(30, 0.8), STEPS), known).low == pytest.approx(
            42
        )  # a tenth of the way after the first drop
        assert forecast_convergence(curve(np.full(50, 0.4), STEPS), known).low == pytest.approx(62)

    def test_unknown_schedule_uses_all_runs(self) -> None:
        found = forecast_convergence(curve(np.full(10, 0.8), Schedule(None, (), 100.0)), self.KNOWN)
        assert (found.low, found.step, found.high) == pytest.approx((52.5, 70, 90))

    def test_fewer_drops_converge_after_the_last(self) -> None:
        found = forecast_convergence(curve(np.full(30, 0.8), Schedule("multi_step", (40.0,), 80.0)), self.KNOWN)
        assert found.step == pytest.approx(44)

    def test_own_curve_is_used_after_the_last_drop(self) -> None:
        found = forecast_convergence(curve(in_steps((0.8, 0.4, 0.1), STEPS)[:70], STEPS), self.KNOWN)
        assert (found.source, found.step) == ("curve", 61)

    def test_levels_after_the_next_drop(self) -> None:
        values = in_steps((0.4, 0.2, 0.05), STEPS)
        found = forecast(curve(values[:30], STEPS), target=0.06, at=[35, 50, 70], known=self.KNOWN)
        assert [one.value for one in found.at if one.step in (35, 50, 70)] == pytest.approx([0.4, 0.2, 0.05])
        assert found.reached is not None
        assert 60 <= found.reached.step <= 62  # runs a and b fall within two epochs after their drops
        never = forecast(curve(values[:30], STEPS), target=0.04, known=self.KNOWN).reached
        assert never is not None
        assert never.step is None

    def test_similar_runs_get_more_weight(self) -> None:
        """Use one run that falls from 0.8 to 0.1 and one that stays near 0.5. Each dominates at its own level."""
        apart = run_like(Schedule("multi_step", (10.0, 20.0), 30.0), (0.5, 0.49, 0.48), "d", 2.0)
        known = PublishedCurves(self.KNOWN.runs[:1], {}, (apart,))
        far, near = (forecast(curve(np.full(30, level), STEPS, "accuracy"), known=known).at[-1] for level in (0.8, 0.5))
        assert 1 - far.value == pytest.approx(0.1, rel=0.05)
        assert 1 - near.value == pytest.approx(0.48, rel=0.05)
        for one in (far, near):  # no gain, or the gain of the other run, stays possible
            assert 1 - one.low >= 0.47
        assert known.without("d").small == ()

    def test_small_data_runs_are_not_used_for_convergence(self) -> None:
        small = run_like(Schedule("multi_step", (10.0, 20.0), 30.0), (0.5, 0.5, 0.5), "d", 2.0)
        both = PublishedCurves(self.KNOWN.runs, {}, (small,) * 9)
        asked = curve(np.full(30, 0.8), STEPS)
        assert forecast_convergence(asked, both) == forecast_convergence(asked, self.KNOWN)

    def test_constant_rate_has_no_levels_ahead(self) -> None:
        with pytest.raises(InputError, match="schedule is unknown"):
            levels_ahead(Schedule("constant", (), 9.0), 3.0, 0.5, np.array([5.0]), self.KNOWN)


def test_weighted_quantiles() -> None:
    values, weights = np.array([1.0, 2.0, 3.0]), np.array([8.0, 1.0, 1.0])
    assert weighted_quantiles(values, weights, (0.5, 0.85, 1.0)) == [1, 2, 3]


# ResNet-20 on digits with a one-cycle schedule of 12 epochs. It reached its target after 6 and is not a known run.
DEMONSTRATION = (1.268, 0.1924, 0.1761, 0.06246, 0.04147, 0.01647)


def test_training_loss_uses_other_losses() -> None:
    """Check that the forecast follows other losses. Without known losses, the forecast follows test errors: it stays at 0.17 and misses all three later epochs."""
    schedule = Schedule("annealed", (), 12.0)
    losses = curve(np.array(DEMONSTRATION), schedule)
    made = forecast(losses, 0.5)
    assert (made.num_inside, len(made.held_out)) == (3, 3)
    assert made.error is not None
    assert made.error < 0.05
    assert "training losses of" in made.basis
    assert forecast(losses, 0.5, known=replace(published(), losses=())).num_inside == 0


def test_loss_interval_coverage_for_unseen_networks() -> None:
    known, inside = published(), []
    for run in known.losses[::5]:
        losses = LearningCurve(run.name, run.steps, run.errors, "loss", "epoch", run.schedule, is_of_images=True)
        made = forecast(losses, 0.5, known=known.without(run.team), draws=20)
        inside += [made.num_inside / len(made.held_out)]
    assert 0.65 <= np.mean(inside) <= 0.9


# A language model at step 3,000 of 10,000 with a cosine schedule: irreducible loss 2.6 plus a power law.
LANGUAGE = Schedule("annealed", (), 10_000.0)


def language_model(until: float = 3000.0, noise: float = 0.01) -> LearningCurve:
    steps = np.arange(100.0, until + 1, 100.0)
    losses = 2.6 + 20 * LANGUAGE.at_full_rate(steps) ** -0.4
    losses *= np.exp(noise * np.random.default_rng(0).standard_normal(len(steps)))
    return LearningCurve("lm", steps, losses, "loss", "step", LANGUAGE, column="train/loss")


class TestUnlikeAnyKnownRun:
    def test_language_model_uses_its_own_curve(self) -> None:
        """Training losses of classifiers would predict 0.15 to 3.7 instead."""
        made = forecast(language_model(), target=2.5)
        end, true = made.at[-1], 2.6 + 20 * 5000**-0.4
        assert end.step == 10_000
        assert end.value == pytest.approx(true, rel=0.05)
        assert 0.75 * true < end.low < true < end.high < 1.2 * true
        assert made.model.family == "power"
        assert "other runs are not used: fewer than 5 %" in made.basis
        assert made.warnings == (
            "the learning rate will fall, and its effect is unknown; the lower bound allows for it",
        )
        assert made.reached is not None
        assert made.reached.step is None  # below the level that it can fall to
        assert made.as_data()["unlike_known_runs"]

    @pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
    def test_fine_tuned_language_model(self, share: float) -> None:
        """It starts as low as a classifier, but falls towards a level far above 0."""
        steps = np.arange(50.0, 5001.0, 50.0)
        losses = 0.45 + 3 * LANGUAGE.at_full_rate(steps) ** -0.35
        losses *= np.exp(0.01 * np.random.default_rng(0).standard_normal(len(steps)))
        curve = LearningCurve("tuned", steps, losses, "loss", "step", replace(LANGUAGE, planned=5000.0))
        made = forecast(curve, share, draws=20)
        assert made.unlike is not None
        assert "at earlier points they would have forecast" in made.basis
        assert made.at[-1].value == pytest.approx(losses[-1], rel=0.08)
        assert made.num_inside >= 0.75 * len(made.held_out)

    def test_step_at_target_loss(self) -> None:
        reached = forecast(language_model(noise=0.0), target=3.35, draws=20).reached
        assert reached is not None
        assert reached.step is not None
        at = 2.6 + 20 * LANGUAGE.at_full_rate(np.array([reached.step])) ** -0.4
        at *= np.exp(
            -0.05 * np.log(5.77 / 3.47) * (reached.step - 3000) / 10_000
        )  # possible gain from the falling learning rate
        assert at[0] == pytest.approx(3.35, rel=0.01)
        assert reached.low is not None
        assert reached.low <= reached.step

    def test_constant_rate_does_not_reach_zero_loss(self) -> None:
        steps = np.arange(100.0, 3001.0, 100.0)
        losses = (2.6 + 20 * steps**-0.4) * np.exp(0.02 * np.random.default_rng(1).standard_normal(30))
        curve = LearningCurve("lm", steps, losses, "loss", "step", Schedule("constant"))
        found = forecast(curve, target=2.0, draws=20).reached
        assert found is not None
        assert found.high is None
        assert (
            found.step is None or found.step > 10_000
        )  # a straight line of log(loss) would reach it after 9,000 steps

    def test_no_gain_before_the_last_point(self) -> None:
        """The gain of a falling rate is 0 before the last point, so the fitted curve alone gives earlier values."""
        steps = np.arange(1.0, 41)
        like = curve(2.3 * np.exp(-steps / 20), Schedule("annealed", (), 80.0))
        for run in (like, language_model()):
            made = forecast(run, draws=20)
            assert (made.unlike is None) == (run is like)
            early = float(run.steps[9])
            at, place = made.expected(early), float(made.place(np.array([early]))[0])
            if run is like:
                assert at.value == pytest.approx(made.model.at(place), rel=1e-12)
                assert (at.low, at.high) == pytest.approx(made.model.interval(place), rel=1e-12)
            else:
                assert made.own is not None
                fits = [math.log(model.at(place)) for model in made.own.models]
                assert math.log(at.value) == pytest.approx(np.mean(fits), rel=1e-12)
                assert math.exp(min(fits)) * 0.9 < at.low < at.value < at.high < math.exp(max(fits)) * 1.1

    def test_columns_without_cross_entropy(self) -> None:
        values = np.geomspace(1.5, 0.5, 20)
        for column, is_like in (("val_loss", True), ("perplexity", False), ("eval/mse_loss", False), ("", True)):
            made = LearningCurve(
                "c", np.arange(1.0, 21), values, "loss", "epoch", Schedule("annealed", (), 40.0), column=column
            )
            assert (why_unlike(made, published()) is None) == is_like, column

    @pytest.mark.parametrize(
        ("column", "metric", "schedule", "reason"),
        [
            ("metrics/mAP50(B)", "accuracy", Schedule("annealed", (), 40.0), "not the accuracy of a classifier"),
            ("ep_rew_mean", "return", Schedule("annealed", (), 40.0), "not the accuracy of a classifier"),
        ],
    )
    def test_other_kinds_of_runs(self, column: str, metric: str, schedule: Schedule, reason: str) -> None:
        """Forecast the mean of three exact families: the value lies between their forecasts, and the median path is close."""
        values = 0.5 + 0.4 / np.arange(1.0, 21)
        made = forecast(replace(curve(values, schedule, metric), column=column), target=0.47)
        assert made.unlike is not None
        assert reason in made.unlike
        assert {model.family for model in made.own.models} == {"inverse", "power", "exponential"}  # type: ignore[union-attr]
        end = made.expected(40.0)
        assert end.low < 1 - (0.5 + 0.4 / 40) < end.high
        assert end.value == pytest.approx(0.49, abs=0.005)
        assert made.reached is not None
        assert made.reached.seen == 14 or made.reached.step == made.reached.seen

    def test_errors_of_an_annealed_run_are_tried_on_earlier_points(self) -> None:
        """It falls as fast as known runs until a third of the way, and then stays far above them."""
        steps = np.arange(1.0, 31)
        plateau = curve(0.35 + 0.4 * np.exp(-steps / 4), Schedule("annealed", (), 40.0), "accuracy")
        drops = replace(plateau, schedule=Schedule("multi_step", (35.0,), 40.0))
        assert "less than the error now" in str(why_unlike(plateau, published()))
        assert "at earlier points" not in str(why_unlike(drops, published()))

    def test_accuracy_plateau_unlike_known_runs(self) -> None:
        """Reach 3 % on 1,000 classes after 75 % of the epochs; known errors fall below 0.7 by then."""
        steps = np.arange(1.0, 31)
        curve = LearningCurve(
            "c", steps, 0.995 - 0.025 * steps / 30, "accuracy", "epoch", Schedule("annealed", (), 40.0)
        )
        made = forecast(curve, draws=20)
        assert made.unlike
        assert made.at[-1].value < 0.15
        assert made.at[-1].low <= made.at[-1].value <= made.at[-1].high

    def test_known_errors_resemble_other_teams(self) -> None:
        known, num_unlike = published(), 0
        for run in (*known.runs, *known.small)[::4]:
            half = run.steps <= 0.5 * (run.schedule.planned or 0)
            curve = LearningCurve(run.name, run.steps[half], run.errors[half], "accuracy", "epoch", run.schedule)
            num_unlike += why_unlike(curve, known.without(run.team)) is not None
        assert num_unlike <= 2


class TestUnknownSchedule:
    """The planned end is stated, and the schedule is not: the rate may stay or fall."""

    OPEN = Schedule(None, (), 80.0)

    def known(self) -> PublishedCurves:
        """Return one known run that stays at 0.8 until half of its epochs, and then falls to 0.1."""
        steps = np.arange(1.0, 81)
        errors = np.where(steps <= 40, 0.8, 0.1)
        return PublishedCurves((PublishedRun("a", "a", Schedule("annealed", (), 80.0), steps, errors, 41.0),), {})

    def flat(self, **changes: Any) -> LearningCurve:
        return replace(curve(np.full(20, 0.8), self.OPEN, "accuracy"), **changes)

    def test_interval_covers_both_worlds(self) -> None:
        """A constant rate stays at 0.8, a fall of the rate leads to 0.1: 37 of 41 runs fall."""
        end = forecast(self.flat(), known=self.known()).expected(80.0)
        assert (1 - end.low, 1 - end.value, 1 - end.high) == pytest.approx((0.8, 0.1, 0.1), rel=0.02)
        stays = forecast(self.flat(schedule=Schedule("constant", (), 80.0)), known=self.known()).expected(80.0)
        assert (1 - stays.low, 1 - stays.high) == pytest.approx((0.8, 0.8), rel=0.02)

    def test_weights_of_the_worlds(self) -> None:
        made = forecast(self.flat(), known=self.known())
        paths, weights = made._paths(np.array([80.0]))
        assert weights.sum() == pytest.approx(1.0)
        stays = 4 / 41 + 37 / 41 * 0.11  # a constant rate, or a fall without a gain as on small data
        assert weights[np.exp(paths[:, 0]) > 0.4].sum() == pytest.approx(stays, abs=1e-9)
        unknown = forecast(self.flat(is_of_images=None), known=self.known())
        paths, weights = unknown._paths(np.array([80.0]))
        assert weights[np.exp(paths[:, 0]) < 0.4].sum() == pytest.approx(37 / 41 * 0.6 * 0.89, abs=1e-9)

    def test_fall_comes_when_known_runs_fell(self) -> None:
        reached = forecast(self.flat(), target=0.85, known=self.known()).reached
        assert reached is not None
        assert reached.step == pytest.approx(41, abs=1)
        assert reached.high is None

    def test_runs_at_a_constant_rate_so_far(self) -> None:
        """Most final values of public runs whose rate falls later lie in the interval; at most one would at a constant rate."""
        known, inside, constant = published(), [], []
        runs = [
            run
            for run in known.runs
            if run.schedule.drops and run.schedule.drops[0] >= 0.3 * (run.schedule.planned or 0)
        ]
        for run in runs[::4]:
            end, final = run.schedule.planned or 0.0, 1 - float(np.median(run.errors[-3:]))
            count = int((run.steps <= 0.3 * end).sum())
            for kind, held in ((None, inside), ("constant", constant)):
                schedule = Schedule(kind, (), end)  # type: ignore[arg-type]
                run_so_far = LearningCurve(run.name, run.steps, run.errors, "accuracy", "epoch", schedule)
                made = forecast(run_so_far, count / len(run.steps) + 1e-9, known=known.without(run.team), draws=20)
                at = made.expected(end)
                held.append(at.low <= final <= at.high)
        assert np.mean(inside) >= 0.75
        assert np.mean(constant) <= 0.25

    def test_answer_does_not_say_never(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """An accuracy that has stopped rising at 80 % may reach 95 % only by a fall of the rate."""
        file = tmp_path / "log.csv"
        accuracies = 0.8 - 0.5 * np.exp(-np.arange(1.0, 21) / 2)
        file.write_text(
            "epoch,val_acc\n" + "".join(f"{k},{value:.4f}\n" for k, value in enumerate(accuracies, start=1))
        )
        assert main(["forecast", str(file), "--to", "95%"]) == 0
        assert "Whether 95.0 % will be reached is unknown" in " ".join(capsys.readouterr().out.split())
        assert main(["forecast", str(file), "--to", "95%", "--planned", "40"]) == 0
        assert "the learning rate may stay or fall" in " ".join(capsys.readouterr().out.split())
        assert main(["forecast", str(file), "--to", "95%", "--schedule", "constant"]) == 0
        assert "not expected to be reached" in " ".join(capsys.readouterr().out.split())


class TestKindOfRun:
    """Known runs are image classifiers: other runs are not forecast from them."""

    def test_text_classifier_does_not_gain_as_image_classifiers(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A fine-tuned model at 84.9 %, flattening, with a linear rate: it stays below 88 %."""
        file = tmp_path / "trainer_state.json"
        steps = np.arange(1, 11)
        accuracies = 0.85 - 0.35 * np.exp(-steps / 2.0)
        log = [
            {
                "step": int(100 * k),
                "epoch": 0.1 * int(k),
                "eval_accuracy": float(accuracy),
                "learning_rate": 5e-5 * (1 - k / 20),
            }
            for k, accuracy in zip(steps, accuracies, strict=True)
        ]
        file.write_text(json.dumps({"log_history": log}))
        assert main(["forecast", str(file), "--to", "85.5%", "--json"]) == 0
        made = json.loads(capsys.readouterr().out)
        assert "image classifiers trained from scratch" in made["unlike_known_runs"]
        assert 0.845 < made["at"][-1]["value"] < 0.88

    def test_log_that_does_not_show_its_kind(self) -> None:
        """The middle lies between those of a classifier of images and of another run."""
        values = 0.5 * np.exp(-np.arange(1.0, 21) / 5) + 0.1
        run = curve(values, Schedule("annealed", (), 40.0), "accuracy")
        ends = [forecast(replace(run, is_of_images=kind), draws=20).at[-1] for kind in (True, None, False)]
        assert ends[0].value > ends[1].value > ends[2].value
        assert ends[1].low <= ends[2].value
        assert ends[1].high >= ends[0].value
        assert any(
            "nothing shows what this run trains" in note for note in forecast(replace(run, is_of_images=None)).warnings
        )


class TestRateThatStaysAndThenFalls:
    WSD = Schedule("wsd", (), 1000.0, 800.0)

    def test_scale_of_steps(self) -> None:
        """Half of the decay passes three quarters of its sum of rates."""
        assert self.WSD.at_full_rate(np.array([400.0, 800.0, 900.0, 1000.0])).tolist() == [400, 800, 875, 900]
        assert (self.WSD.next_fall(100.0), self.WSD.next_fall(900.0), self.WSD.next_fall(1000.0)) == (800, 900, None)
        assert Schedule("wsd", (), 100.0).falls_from == 80
        with pytest.raises(InputError, match="planned end"):
            Schedule("wsd", (), 100.0, 100.0)
        with pytest.raises(InputError, match="without an end"):
            Schedule("wsd")

    def test_decay_lowers_the_loss(self) -> None:
        """The middle follows the three curves until step 800, and gains 5 % of the fall so far at the end."""
        steps = np.arange(20.0, 601.0, 20.0)
        run = LearningCurve("lm", steps, 2.6 + 8 * steps**-0.4, "loss", "step", self.WSD)
        made = forecast(run)
        assert made.unlike == "no known run has such a schedule"
        assert made.own is not None
        places = self.WSD.at_full_rate(np.array([800.0, 1000.0]))
        plain = np.exp(made.own.middle(places))
        gain = math.exp(0.05 * math.log((2.6 + 8 * 600**-0.4) / run.values[0]))
        assert made.expected(800.0).value == pytest.approx(plain[0], rel=1e-9)
        assert made.expected(1000.0).value == pytest.approx(plain[1] * gain, rel=1e-3)
        assert made.expected(1000.0).low < 0.95 * plain[1]

    def test_rates_of_a_log_show_it(self) -> None:
        steps = np.arange(10.0, 901.0, 10.0)
        found = schedule_of_rates(steps, 0.1 * np.minimum(1, (1000 - steps) / 200), "step")
        assert found.schedule.kind == "wsd"
        assert (found.schedule.planned, found.schedule.stays) == pytest.approx((1000, 800), rel=0.01)
        assert found.text == "constant until step 800, linear until 1,000"

    def test_schedule_of_a_job_and_of_the_command(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        job = from_dict({"network": {"name": "small-cnn"}, "data": {"name": "digits"},
                         "training": {"schedule": "wsd", "milestones": [0.6], "epochs": 50}})  # fmt: skip
        assert schedule_of(job) == Schedule("wsd", (), 50.0, 30.0)
        file = tmp_path / "log.csv"
        file.write_text("step,loss\n" + "".join(f"{k},{2 + 3 / k}\n" for k in range(10, 200, 10)))
        words = ["forecast", str(file), "--schedule", "wsd", "--planned", "400", "--drops", "300"]
        assert main(words) == 0
        assert "wsd, falls after step 300 until step 400, as given" in " ".join(capsys.readouterr().out.split())


def test_packaged_published_runs() -> None:
    known = published()
    assert {run.schedule.kind for run in known.runs} == {"multi_step", "annealed"}
    assert {run.team for run in known.small} == {
        "ants and bees",
        "small CIFAR-10, resnet8",
        "small CIFAR-10, small-cnn",
    }
    for run in (*known.runs, *known.small):
        assert (np.diff(run.steps) > 0).all()
        assert run.steps[0] <= run.converged <= run.steps[-1] <= (run.schedule.planned or 0) + 1
        assert ((run.errors > 0) & (run.errors < 1)).all()
    team = known.runs[0].team
    assert team not in {run.team for run in known.without(team).runs}
    assert "depth 18" not in known.without("depth 18").ratios


def test_command_accepts_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "log.csv"
    file.write_text("epoch,loss\n" + "".join(f"{k},{0.9**k + 0.3}\n" for k in range(1, 21)))
    assert main(["fit", "loss", str(file), "--drops", "30,60", "--planned", "90", "--earlier", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schedule"] == {"kind": "multi_step", "drops": [30, 60], "planned": 90}
    assert found["converged"]["source"] == "published"
    assert 30 < found["converged"]["step"] < 90
    assert found["converged"]["remaining"] == found["converged"]["step"] - 20
    assert [one["until"] for one in found["earlier"]] == [6, 13]
    assert main(["fit", "loss", str(file)]) == 0
    assert "from its curve" in " ".join(capsys.readouterr().out.split())
    assert main(["fit", "loss", str(file), "--schedule", "annealed"]) == 2
    assert "--planned" in capsys.readouterr().err

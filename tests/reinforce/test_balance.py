"""The bottleneck among actors, replay and learners: consistent rates, the published 360 actors, and made-up reports."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from chronograd.errors import InputError
from chronograd.reinforce.balance import BalanceSetting, Components, balance, enough_actors, gain
from chronograd.reinforce.systems import SystemsView

# Horgan et al. 2018, section 4: 139 frames/s per actor, 4 frames per transition, 19 minibatches of 512 per second.
PUBLISHED = Components(actor_s=4 / 139, learner_s=1 / 19)


def test_published_balance() -> None:
    """360 actors produce 50K frames/s, or 12.5K transitions/s. The learner draws 9.7K/s: each 0.78 times."""
    setting = BalanceSetting(batch=512, draws=9.7 / 12.5, num_actors=360)
    found = balance(PUBLISHED, setting)
    actors_per_s = found.rates["actors"] * 512 / setting.draws
    assert actors_per_s * 4 == pytest.approx(50_000, rel=0.01)
    assert actors_per_s == pytest.approx(12_500, rel=0.01)
    assert found.rates["learner"] * 512 == pytest.approx(9_700, rel=0.01)
    assert found.rates["actors"] == pytest.approx(
        found.rates["learner"], rel=0.01
    )  # the most that the learner can process
    assert enough_actors(PUBLISHED, setting) == pytest.approx(360, abs=2)
    assert enough_actors(PUBLISHED, replace(setting, draws=1.0)) == 280


def test_lowest_rate_limits_all() -> None:
    parts = Components(actor_s=0.01, learner_s=0.1, add_s=1e-4, draw_s=0.01)
    setting = BalanceSetting(batch=100, draws=10.0, num_actors=1)
    one = balance(parts, setting)  # 10 transitions per minibatch, 0.1 s of one actor
    assert one.rates == pytest.approx({"actors": 10.0, "learner": 10.0, "replay": 1 / 0.011})
    assert balance(parts, replace(setting, num_actors=4)).bottleneck == "learner"
    with_cores = balance(parts, replace(setting, num_actors=4, cores=2))
    assert with_cores.rates["cores"] == pytest.approx(2 / (0.1 + 0.01 + 10 * (0.01 + 1e-4)))
    assert with_cores.bottleneck == "cores"
    waiting = replace(parts, actor_cpu_s=0.0, learner_cpu_s=0.0)
    assert balance(waiting, replace(setting, cores=2)).rates["cores"] > 100
    narrow = balance(replace(parts, transition_bytes=100, batch_bytes=1000), replace(setting, bytes_per_s=4000))
    assert narrow.rates["link"] == pytest.approx(2.0)
    assert narrow.bottleneck == "link"


def test_gain_of_a_second_learner() -> None:
    """A second learner doubles the rate up to the actors' limit if the learner is the bottleneck; otherwise it adds nothing."""
    parts = Components(actor_s=0.01, learner_s=0.1)
    setting = BalanceSetting(batch=100, draws=10.0, num_actors=8)
    assert gain(parts, setting) == pytest.approx(1.0)
    assert gain(parts, replace(setting, num_actors=1)) == 0.0
    assert gain(parts, replace(setting, num_actors=2)) == pytest.approx(1.0)


def test_invalid_times() -> None:
    with pytest.raises(InputError, match="an actor takes 0"):
        Components(actor_s=0.0, learner_s=1.0)
    with pytest.raises(InputError, match="a value below its minimum"):
        balance(PUBLISHED, BalanceSetting(batch=512, draws=0.0))


# -- reports -----------------------------------------------------------------------------------------------


@dataclass
class MadeUpReport:
    """Made-up report."""

    role: str
    number: int
    amount: int
    begin_s: float
    end_s: float
    cpu_s: float
    parts: dict[str, float]
    episodes: list[tuple[float, int]] = field(default_factory=list)
    more: dict[str, float] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)


def view_of(
    actor: dict[str, float], learner: dict[str, float], replay: dict[str, float], cpu_s: float = 1.0
) -> SystemsView:
    """Return ten seconds of two actors, a learner and a shard, from the seconds of each part."""
    view = SystemsView(cores=2, batch=64)
    shard = {"added": 1000.0, "drawn": 8000.0, "waited_s": 5.0, "size": 1000.0}
    view.add([
        MadeUpReport("learner", 0, 125, 0.0, 10.0, cpu_s, learner, more={"updates": 125.0, "priority_age_s": 0.5}),
        *(MadeUpReport("actor", n, 500, 0.0, 10.0, cpu_s, actor, more={"version": 100.0, "age_s": 0.2, "bytes": 1000.0}) for n in (0, 1)),
        MadeUpReport("replay", 0, 300, 0.0, 10.0, cpu_s, replay, more=shard),
    ])  # fmt: skip
    return view


IDLE_REPLAY = {"idle_s": 9.5, "add_s": 0.2, "draw_s": 0.3}
WORKING_ACTOR = {"idle_s": 0.5, "environment_s": 7.0, "act_s": 2.0, "send_s": 0.5}
IDLE_ACTOR = {"idle_s": 7.0, "environment_s": 2.0, "act_s": 0.5, "send_s": 0.5}
IDLE_LEARNER = {"idle_s": 8.0, "sample_s": 0.5, "learn_s": 1.5}
WORKING_LEARNER = {"idle_s": 0.5, "sample_s": 0.5, "learn_s": 9.0}


def test_rates_and_ages() -> None:
    rates = view_of(WORKING_ACTOR, IDLE_LEARNER, IDLE_REPLAY).rates()
    assert rates["steps_per_s"] == pytest.approx(100)
    assert rates["steps_per_s_of_actor"] == pytest.approx(50)
    assert (rates["added_per_s"], rates["drawn_per_s"], rates["batches_per_s"]) == pytest.approx((100, 800, 12.5))
    assert rates["parameter_age_updates"] == 25  # the learner was at 125 when the actors had 100
    assert (rates["parameter_age_s"], rates["priority_age_s"]) == pytest.approx((0.2, 0.5))
    assert rates["blocks_waiting"] == pytest.approx(0.5)  # Little's law: 5 s of waiting in 10 s
    assert (rates["actor_idle"], rates["learner_idle"], rates["replay_idle"]) == pytest.approx((0.05, 0.85, 0.95))
    assert rates["cores_busy"] == pytest.approx(4 / 20)
    assert rates["bytes_per_update"] == pytest.approx(16)


def test_components_are_times_per_unit() -> None:
    parts = view_of(WORKING_ACTOR, IDLE_LEARNER, IDLE_REPLAY).components()
    assert parts.actor_s == pytest.approx(9.5 / 500)
    assert parts.actor_cpu_s == pytest.approx(1.0 / 500)
    assert parts.learner_s == pytest.approx(2.0 / 125)
    assert (parts.add_s, parts.draw_s) == pytest.approx((0.2 / 1000, 0.3 / 125))


@pytest.mark.parametrize(
    ("actor", "learner", "replay", "cpu_s", "expected"),
    [
        (WORKING_ACTOR, IDLE_LEARNER, IDLE_REPLAY, 1.0, "environments"),
        ({"idle_s": 0.5, "environment_s": 1.5, "act_s": 8.0}, IDLE_LEARNER, IDLE_REPLAY, 1.0, "acting"),
        (IDLE_ACTOR, WORKING_LEARNER, IDLE_REPLAY, 1.0, "learner"),
        (IDLE_ACTOR, {"idle_s": 1.0, "sample_s": 7.0, "learn_s": 2.0}, {"idle_s": 0.5, "draw_s": 9.5}, 1.0, "replay"),
        ({"idle_s": 0.5, "environment_s": 2.0, "act_s": 0.5, "send_s": 7.0}, IDLE_LEARNER, IDLE_REPLAY, 1.0, "link"),
        (WORKING_ACTOR, WORKING_LEARNER, IDLE_REPLAY, 4.9, "cores"),
    ],
)  # fmt: skip
def test_bottleneck_is_reported(
    actor: dict[str, float], learner: dict[str, float], replay: dict[str, float], cpu_s: float, expected: str
) -> None:
    verdict = view_of(actor, learner, replay, cpu_s).verdict()
    assert verdict.bottleneck == expected
    assert len(verdict.evidence) == 3


def test_pause_belongs_to_no_part() -> None:
    """Work twice for ten seconds, with an evaluation of thirty seconds between."""
    view = SystemsView(cores=2, batch=64)

    def add_reports(begin_s: float, paused_s: float) -> None:
        actor = {"idle_s": 1.0 + paused_s, "environment_s": 9.0}
        view.add([
            MadeUpReport("actor", 0, 500, begin_s + 1.0, begin_s + 10.0, 1.0, actor, more={"version": 100.0, "age_s": 0.2}),
            MadeUpReport("replay", 0, 30, begin_s - paused_s, begin_s + 10.0, 1.0, {"idle_s": 8.0 + paused_s, "add_s": 2.0}),
        ])  # fmt: skip

    add_reports(0.0, 0.0)
    view.pause(10.0, 40.0)
    add_reports(40.0, 30.0)
    rates = view.rates()
    assert view.seconds == pytest.approx(20 - 1)
    assert rates["steps_per_s"] == pytest.approx(1000 / 19)
    assert rates["actor_idle"] == pytest.approx(0.1)
    assert rates["replay_idle"] == pytest.approx(0.8)
    assert rates["cores_busy"] == pytest.approx(4 / (2 * 19))


def test_rates_of_a_bundle() -> None:
    """A bundle acts 400 steps and learns 50 times: it has steps, minibatches and idle time, but no actor or shard
    rates.
    """
    view = SystemsView(cores=2, batch=64)
    view.add(
        [
            MadeUpReport(
                "learner",
                0,
                50,
                0.0,
                10.0,
                1.0,
                {"idle_s": 1.0},
                more={"updates": 50.0, "steps": 400.0, "bytes": 500.0},
            )
        ]
    )
    rates = view.rates_of_its_parts()
    assert rates.keys() == {"steps_per_s", "batches_per_s", "bytes_per_update", "learner_idle", "cores_busy"}
    assert (rates["steps_per_s"], rates["batches_per_s"]) == (40.0, 5.0)

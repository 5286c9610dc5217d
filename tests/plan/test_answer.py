"""What `plan` says, called from Python."""

from __future__ import annotations

import math

import pytest

from chronograd.count.network import trace_network
from chronograd.errors import InputError
from chronograd.figure import Bars, Lines
from chronograd.hardware import catalog
from chronograd.job import Job, from_dict
from chronograd.plan.answer import devices_of, list_settings, reach_goal
from chronograd.plan.effort import effort_of, of_epochs
from chronograd.plan.goal import Goal
from chronograd.plan.largest import Edge, Probe, Trial, find_edge, largest_batches

TRACE = trace_network("lenet5")
SAMPLES = 10**10  # of any batch here, many
DEVICES = [catalog.device("v100"), catalog.device("t4")]


def job(price: float | None = None) -> Job:
    cluster = {"device": "v100"} | ({} if price is None else {"price_usd_per_hour": price})
    return from_dict({"network": {"name": "lenet5"}, "data": {"name": "digits"}, "cluster": cluster})


def test_settings_name_the_cheapest_and_the_fastest_of_all_that_fit() -> None:
    answer = list_settings(TRACE, job(2.0), DEVICES, [1, 4], [32, 64], samples=SAMPLES)
    rows = answer.as_data()["settings"]
    cheapest = min(rows, key=lambda row: row["usd_per_million_samples"])
    fastest = max(rows, key=lambda row: row["throughput_samples_per_s"])
    for row in (cheapest, fastest):
        assert f"{row['count']} × {row['device']}, batch {row['batch_per_device']} each" in answer.sections[0].takeaway
    short = list_settings(TRACE, job(2.0), DEVICES, [1, 4], [32, 64], samples=SAMPLES, most=1)
    assert short.sections[0].takeaway == answer.sections[0].takeaway
    assert short.as_data() == {"settings": rows[:1], "evaluated": 8, "fit": 8, "too_large_for_the_data": 0}
    nothing = list_settings(TRACE, job(), DEVICES, [1], [10**9], samples=SAMPLES)
    assert nothing.sections[0].takeaway.startswith("No setting fits in memory")


def test_devices_without_a_name_are_gpus_of_the_precision() -> None:
    assert [device.name for device in devices_of(job(), ["T4"])] == ["t4"]
    assert {device.kind for device in devices_of(job(), [])} == {"gpu"}


def test_a_goal_says_what_to_take_first_and_shows_the_front() -> None:
    effort = of_epochs(10, 1000, 32)
    answer = reach_goal(TRACE, job(2.0), DEVICES, [1, 2], [32], samples=SAMPLES, effort=effort, goal=Goal(50.0, 3600.0))
    (section,) = answer.sections
    chosen = answer.as_data()["chosen"]
    name = f"{chosen['count']} × {chosen['device']}, batch {chosen['batch_per_device']} each, {chosen['prices']}"
    assert section.takeaway.startswith(f"Take {name}: the cheapest")
    assert section.figure is not None
    panel = section.figure.panels[0]
    assert isinstance(panel, Lines)
    pareto_front, taken = panel.series
    assert list(pareto_front.x) == [row["hours"] for row in section.rows()]
    assert (list(taken.x), list(taken.y)) == ([chosen["hours"]], [chosen["dollars"]])
    missed = reach_goal(TRACE, job(2.0), DEVICES, [1], [32], samples=SAMPLES, effort=effort, goal=Goal(deadline_s=1e-3))
    assert missed.sections[0].takeaway.startswith("Nothing fits with 80 %: the likeliest is ")
    assert "It would take a deadline of " in missed.sections[0].lines[0]


def test_an_effort_is_what_was_told_before_what_the_job_says() -> None:
    assert effort_of(job(), 1000, epochs=3).samples == 3000
    assert effort_of(job(), 1000).samples == job().training.epochs * 1000
    with pytest.raises(InputError, match="samples is not known"):
        effort_of(job(), 0)


def test_the_largest_batch_predicted() -> None:
    answer = largest_batches(TRACE, [job()], capacity_bytes=2 * 10**9)
    (section,) = answer.sections
    data = answer.as_data()
    assert section.takeaway.startswith(f"At most {data['largest_batch_per_device']:,} samples per device fit in 2 GB")
    assert section.figure is not None
    bars = section.figure.panels[0]
    assert isinstance(bars, Bars)
    for bar, row in zip(bars.bars, data["memory"], strict=True):
        assert sum(bar.segments.values()) == pytest.approx(row["total"] / 1e9, rel=1e-4)
    none = largest_batches(TRACE, [job()], capacity_bytes=1)
    assert none.sections[0].takeaway.startswith("Not even one sample fits in 1 B")


def test_the_largest_batch_tried() -> None:
    """On a machine that holds half of what is predicted, and whose process takes 100 MB."""
    asked: list[tuple[int, int]] = []

    def confirm(one: Job, predicted: int, limit: int) -> Edge:
        asked.append((predicted, limit))
        return find_edge(lambda batch: Probe(batch, batch <= predicted // 2, reason="out of memory"), predicted)

    answer = largest_batches(TRACE, [job()], 2 * 10**9, Trial(lambda one: 10**8, confirm))
    data = answer.as_data()
    predicted = data["largest_batch_per_device"]
    assert asked == [(predicted, 2 * 10**9)]
    assert (data["reserve_bytes"], data["reserve_is"]) == (10**8, "measured")
    ran = data["confirmed"]["largest_ran"]
    assert math.isclose(ran, predicted / 2, rel_tol=0.03)
    edge, *probes = answer.sections[0].lines
    assert f"the largest that ran is {ran}" in edge
    assert len(probes) == len(data["confirmed"]["probes"])

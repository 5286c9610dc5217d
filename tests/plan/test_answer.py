"""The answers of `plan`, called from Python."""

from __future__ import annotations

import math
import re
from datetime import date

import pytest

from chronograd import ask
from chronograd.count.network import trace_network
from chronograd.errors import InputError
from chronograd.figure import Bars, Lines
from chronograd.hardware import catalog, market
from chronograd.hardware.catalog import Price
from chronograd.job import Job, Training, from_dict
from chronograd.plan.answer import list_settings, reach_goal
from chronograd.plan.effort import OutOfReach, Unknown, effort_of, of_epochs
from chronograd.plan.goal import Goal, SamplesToTarget
from chronograd.plan.largest import Edge, Probe, Trial, find_edge, largest_batches
from chronograd.plan.open_answer import out_of_reach
from chronograd.plan.renting import Decoding, RentalTerms
from chronograd.plan.search import SearchSpace, devices_of
from chronograd.report.terminal import render_terminal

TRACE = trace_network("lenet5")
SAMPLES = 10**10  # many batches of any size
DEVICES = [catalog.device("v100"), catalog.device("t4")]


JOB_ON_IMAGENET = ask.job_of("resnet50", short={"data": "imagenet"})


def job(price: float | None = None) -> Job:
    cluster = {"device": "v100"} | ({} if price is None else {"price_usd_per_hour": price})
    return from_dict({"network": {"name": "lenet5"}, "data": {"name": "digits"}, "cluster": cluster})


def test_settings_name_cheapest_and_fastest() -> None:
    answer = list_settings(TRACE, job(2.0), SearchSpace(DEVICES, [1, 4], [32, 64], samples=SAMPLES))
    rows = answer.as_data()["settings"]
    cheapest = min(rows, key=lambda row: row["usd_per_million_samples"])
    fastest = max(rows, key=lambda row: row["throughput_samples_per_s"])
    for row in (cheapest, fastest):
        assert f"{row['count']} × {row['device']}, batch {row['batch_per_device']} each" in answer.sections[0].takeaway
    assert sorted((row["device"], row["count"]) for row in rows) == [("t4", 1), ("t4", 4), ("v100", 1), ("v100", 4)]
    short = list_settings(TRACE, job(2.0), SearchSpace(DEVICES, [1, 4], [32, 64], samples=SAMPLES), most=1)
    assert short.sections[0].takeaway == answer.sections[0].takeaway
    assert short.as_data() == {
        "settings": rows[:1],
        "evaluated": 32,
        "fit": 32,
        "too_large_for_the_data": 0,
        "assumed": answer.notes[-1:],
    }
    nothing = list_settings(TRACE, job(), SearchSpace(DEVICES, [1], [10**9], samples=SAMPLES))
    assert nothing.sections[0].takeaway.startswith("No setting fits in memory")


def test_default_devices_are_rented_gpus_with_the_precision() -> None:
    assert [device.name for device in devices_of(job(), ["T4"])] == ["t4"]
    rented = {device.name for device in devices_of(job(), [])}
    assert {"h100", "v100", "rtx4090", "k80-gk210"} <= rented
    assert not rented & {"cpu", "titan-xp", "p4"}  # the price of a P4 excludes the host
    assert "titan-xp" in {device.name for device in devices_of(job(2.0), [])}
    bf16 = job().model_copy(update={"training": Training(precision="bf16")})
    assert {device.name for device in devices_of(bf16, [])} == {
        d for d in rented if "bf16" in catalog.device(d).peak_flops_per_s
    }


def test_goal_recommends_first_and_shows_the_front() -> None:
    effort = of_epochs(10, 1000, 32)
    answer = reach_goal(
        TRACE, job(2.0), SearchSpace(DEVICES, [1, 2], [32], samples=SAMPLES), effort=effort, goal=Goal(50.0, 3600.0)
    )
    section, changing = answer.sections
    chosen = answer.as_data()["chosen"]
    assert section.takeaway.startswith(f"Rent {chosen['count']} × {chosen['device']} ")
    assert f"batch {chosen['batch_per_device']} each in {chosen['precision']}" in section.takeaway
    assert not any(line.startswith("The price is") for line in section.lines)  # it comes from the job
    assert changing.title == "What would change it"
    assert section.figure is not None
    panel = section.figure.panels[0]
    assert isinstance(panel, Lines)
    pareto_front, taken = panel.series
    assert list(pareto_front.x) == [row["hours"] for row in section.rows()]
    assert (list(taken.x), list(taken.y)) == ([chosen["hours"]], [chosen["dollars"]])
    missed = reach_goal(
        TRACE, job(2.0), SearchSpace(DEVICES, [1], [32], samples=SAMPLES), effort=effort, goal=Goal(deadline_s=1e-3)
    )
    assert missed.sections[0].takeaway.startswith(
        "No option meets the goal with 80 % probability; the most likely one is "
    )
    assert missed.sections[0].lines[0].startswith("A deadline of ")


def test_title_and_noise_scale() -> None:
    known = effort_of(JOB_ON_IMAGENET, SAMPLES, target=0.75)
    assert isinstance(known, SamplesToTarget)
    answer = reach_goal(
        TRACE, JOB_ON_IMAGENET, SearchSpace(DEVICES, [1], [32], samples=SAMPLES), effort=known, goal=Goal(1e9)
    ).sections[0]
    assert answer.title == "lenet5 on imagenet to 75 %: at most $1,000,000,000"
    assert "need no extra epochs" in " ".join(answer.lines)
    assert "noise scale" not in " ".join(answer.lines)
    assumed = of_epochs(10, 1000, 32)
    guessed = reach_goal(
        TRACE, job(), SearchSpace(DEVICES, [1], [32], samples=SAMPLES), effort=assumed, goal=Goal(1e9)
    ).sections[0]
    assert guessed.title == "lenet5 on digits: at most $1,000,000,000"
    assert "gradient noise scale 256 (64 … 1,024) samples" in guessed.lines[-1]


def test_goal_above_all_published_results_is_refused() -> None:
    for network, target in (("resnet50", 0.85), ("torchvision:resnet18", 0.999), ("lenet5", 0.999)):
        effort = effort_of(ask.job_of(network, short={"data": "imagenet"}), SAMPLES, target=target, has_epochs=False)
        assert isinstance(effort, OutOfReach)
        answer = out_of_reach(f"{network} on imagenet", effort, Goal())
        assert answer.sections[0].takeaway.startswith(f"No: {100 * target:.4g} % is out of reach")
        assert answer.as_data()["chosen"] is None


def test_no_recommendation_without_known_effort() -> None:
    asked = ask.ask("torchvision:googlenet", short={"data": "imagenet"}, target=0.69)
    assert not asked.has_epochs
    effort = effort_of(asked.job, 1_281_167, target=0.69, has_epochs=asked.has_epochs)
    assert isinstance(effort, Unknown)
    answer = reach_goal(
        TRACE, job(2.0), SearchSpace(DEVICES, [1, 2], [32], samples=1_281_167), effort=effort, goal=Goal(50.0)
    )
    section, data = answer.sections[0], answer.as_data()
    assert (data["verdict"], data["chosen"], data["effort"]["samples"]) == ("unknown", None, None)
    assert section.takeaway.startswith("Unknown: we know no published recipe for torchvision:googlenet")
    assert "Rent" not in section.takeaway + " ".join(section.lines)
    assert "--epochs-to-target" in section.lines[-1]
    row = data["front"][0]
    assert row["epochs_300"]["dollars"] == pytest.approx(10 * row["epochs_30"]["dollars"])
    assert "probability" not in row


def test_unknown_accuracy_is_not_promised() -> None:
    effort = effort_of(job(), 1437, target=0.97)
    assert isinstance(effort, SamplesToTarget)
    answer = reach_goal(TRACE, job(2.0), SearchSpace(DEVICES, [1], [32], samples=1437), effort=effort, goal=Goal(50.0))
    assert answer.as_data()["verdict"] == "run"
    assert answer.sections[0].takeaway.startswith("We cannot promise the accuracy")


def test_global_batch_is_preserved() -> None:
    answer = list_settings(TRACE, job(2.0), SearchSpace(DEVICES, [1, 2, 8], [32], samples=SAMPLES, global_batch=2048))
    assert {row["count"] * row["batch_per_device"] for row in answer.as_data()["settings"]} == {2048}
    with pytest.raises(InputError, match="cannot be divided evenly"):
        list_settings(TRACE, job(2.0), SearchSpace(DEVICES, [8], [32], samples=SAMPLES, global_batch=100))


def test_probability_is_at_most_95_per_cent() -> None:
    effort = of_epochs(1, 1000, 32)
    answer = reach_goal(
        TRACE, job(), SearchSpace(DEVICES, [1], [32], samples=SAMPLES), effort=effort, goal=Goal(1e9, 1e9)
    )
    assert max(row["probability"] for row in answer.as_data()["front"]) == 0.95
    assert "100 %" not in render_terminal(answer)


def test_advice_fits_eighty_columns_and_explains_price() -> None:
    answer = reach_goal(
        TRACE,
        job(),
        SearchSpace(devices_of(job(), []), [1, 2, 4, 8], [32, 64], samples=SAMPLES),
        effort=of_epochs(10, 10**6, 32),
        goal=Goal(50.0),
    )
    text = render_terminal(answer)
    table = [line for line in text.splitlines() if re.search(r"^\d+ × .*\$.* %", line)]
    assert 2 <= len(table) <= 8
    assert max(len(line) for line in table) <= 80
    assert sum("*" in line for line in table) == 1
    for row in answer.as_data()["front"]:
        assert row["price"]["includes_host"]
        assert row["price"]["date"]
        assert row["price"]["source"]
        assert row["usd_per_hour"] % row["price"]["usd_per_hour_of_instance"] == pytest.approx(0, abs=1e-9)


def test_input_limited_settings_list_the_faster_one() -> None:
    slow = Decoding(1.0, 1.0, 1.0)
    answer = list_settings(
        TRACE,
        job(2.0),
        SearchSpace(DEVICES[:1], [1], [32, 64, 128], samples=SAMPLES),
        RentalTerms(("on-demand",), slow),
    )
    (row,) = answer.as_data()["settings"]
    assert row["is_input_bound"]
    (own,) = list_settings(TRACE, job(2.0), SearchSpace(DEVICES[:1], [1], [32, 64, 128], samples=SAMPLES)).as_data()[
        "settings"
    ]
    assert row["batch_per_device"] == own["batch_per_device"] == 128


def test_assumed_cores_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Decoding(1.0, 1.0, 1.0)

    def lines(vcpus: float | None) -> str:
        one = Price(vendor="A", instance="x", device="v100", count=1, price_usd_per_hour=1, kind="spot", includes_host=True,
                    date="2026-11", tag="assumed", source="a test", vcpus=vcpus)  # fmt: skip
        monkeypatch.setattr(market, "offers", lambda device: [one])
        effort, goal = of_epochs(1, 1000, 32), Goal(1e6)
        answer = reach_goal(
            TRACE,
            job(),
            SearchSpace(DEVICES[:1], [1], [32], samples=SAMPLES),
            effort=effort,
            goal=goal,
            terms=RentalTerms(decoding=slow),
        )
        return " ".join(answer.sections[0].lines)

    assert "8 virtual CPUs a device" in lines(None)
    assert "virtual CPUs a device" not in lines(4)
    assert "Decoding on the host limits the speed to 4 images/s" in lines(4)


def test_old_price_is_marked_in_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def table_of(today: date) -> list[str]:
        monkeypatch.setattr(market, "today", lambda: today)
        answer = list_settings(TRACE, job(), SearchSpace(DEVICES, [1], [32], samples=SAMPLES))
        assert answer.sections[0].table is not None
        return [row[1] for row in answer.sections[0].table.rows]

    assert not any(cell.endswith("†") for cell in table_of(date(2024, 12, 1)))
    assert all(cell.endswith("†") for cell in table_of(date(2035, 1, 1)))


def test_excluded_options_are_reported() -> None:
    compiler, layout = list_settings(TRACE, job(), SearchSpace(DEVICES, [1], [32], samples=SAMPLES)).notes
    assert "torch.compile" in compiler
    assert layout.startswith("Memory layout NCHW only")
    both = [TRACE, trace_network("lenet5", channels_last=True)]
    (note,) = list_settings(both, job(), SearchSpace(DEVICES, [1], [32], samples=SAMPLES)).notes
    assert "torch.compile" in note
    p4 = [*DEVICES, catalog.device("p4")]
    assert "Not offered: p4" in list_settings(TRACE, job(), SearchSpace(p4, [1], [32], samples=SAMPLES)).notes[-1]


def test_given_effort_overrides_the_job() -> None:
    stated, own = effort_of(job(), 1000, epochs=3), effort_of(job(), 1000)
    assert isinstance(stated, SamplesToTarget)
    assert isinstance(own, SamplesToTarget)
    assert (stated.samples, own.samples) == (3000, job().training.epochs * 1000)
    with pytest.raises(InputError, match="samples is unknown"):
        effort_of(job(), 0)


def test_predicted_largest_batch() -> None:
    answer = largest_batches(TRACE, [job()], capacity_bytes=2 * 10**9)
    (section,) = answer.sections
    data = answer.as_data()
    start, most = data["start_at"], data["largest_batch_per_device"]
    assert section.takeaway.startswith(f"Start at {start:,} samples per device: at most {most:,} fit in 1.86 GiB")
    assert " GB" not in section.takeaway
    assert section.figure is not None
    bars = section.figure.panels[0]
    assert isinstance(bars, Bars)
    for bar, row in zip(bars.bars, data["memory"], strict=True):
        assert sum(bar.segments.values()) == pytest.approx(row["total"] / 2**30, rel=1e-4)
    none = largest_batches(TRACE, [job()], capacity_bytes=1)
    assert none.sections[0].takeaway.startswith("Not even one sample fits in 1 B")


def test_measured_largest_batch() -> None:
    """Use a machine with half of the predicted capacity and a process that takes 100 MB."""
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
    assert f"the largest batch that ran is {ran}" in edge
    assert len(probes) == len(data["confirmed"]["probes"])


def test_no_probability_for_an_unsupported_recipe() -> None:
    """MosaicML's 29 epochs blur and grow images. Without that, there is no evidence for 75 %."""
    effort = effort_of(ask.job_of("resnet50", short={"data": "imagenet"}, target=0.75), SAMPLES, target=0.75)
    assert isinstance(effort, SamplesToTarget)
    asked = JOB_ON_IMAGENET
    answer = reach_goal(TRACE, asked, SearchSpace(DEVICES, [1], [32], samples=SAMPLES), effort=effort, goal=Goal(1e9))
    section, data = answer.sections[0], answer.as_data()
    assert section.takeaway.endswith("with at least 80 % probability if the run reaches the published accuracy.")
    assert any(
        line.endswith("which a job cannot state: a run without them may end below 75 %.") for line in section.lines
    )
    assert (data["effort"]["probability_of_target"], data["effort"]["beyond"][1]) == (None, "blur pooling")
    without_limits = reach_goal(
        TRACE, asked, SearchSpace(DEVICES, [1], [32], samples=SAMPLES), effort=effort, goal=Goal()
    )
    table = without_limits.sections[0].table
    assert table is not None
    assert "chance" not in table.columns


def test_low_price_is_reported_with_its_median(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spot price without spot peers is compared with on-demand prices, so the note must name that median."""

    def row(vendor: str, usd: float, kind: str) -> Price:
        return Price(vendor=vendor, instance="x", device="v100", count=1, price_usd_per_hour=usd, kind=kind, includes_host=True,
                     date="2026-11-22", tag="assumed", source="a test")  # fmt: skip

    offers = [row("A", 0.1, "spot"), *(row(vendor, 3.0, "on-demand") for vendor in "BCD")]
    monkeypatch.setattr(market, "offers", lambda *_: offers)
    answer = reach_goal(TRACE, job(), SearchSpace([catalog.device("v100")], [1], [32], samples=SAMPLES), effort=of_epochs(10, 1000, 32),
                        goal=Goal(50.0))  # fmt: skip
    assert any("v100 at A (spot). $0.10 is below 1/5 of the on-demand median, $3.00" in note for note in answer.notes)

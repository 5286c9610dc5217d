"""Small networks: the smoke size for real, and what the page says of made-up numbers."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from chronograd.report.html import render_html
from chronograd.rundir import RunDir
from chronograd_lab.common.results import Results
from chronograd_lab.common.rows import Spread
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.studies import find
from chronograd_lab.studies.small_networks import (
    HEAD,
    SCRATCH,
    STUDY,
    TUNED,
    Found,
    Setting,
    accuracy_with_stored,
    cause_job,
    causes,
    common_cause,
    grid,
    one_wrong,
    right,
)

LAPTOP = STUDY.sizes["laptop"]
GOOD = right(LAPTOP)


def quiet(text: str) -> None:
    pass


@pytest.mark.slow
def test_smoke_size_end_to_end(tmp_path: Path) -> None:
    study = find("small-networks")
    lab = StudyRunner(tmp_path, "small-networks", "smoke", quiet)
    settings = study.sizes["smoke"]
    results = study.conduct(lab, settings)
    stages = [(row["network"], row["stage"]) for row in results.rows["runs"]]
    assert stages == [("small CNN", SCRATCH), ("ResNet-8", HEAD), ("ResNet-8", TUNED)]
    tried = [Setting.of(row) for row in results.rows["causes"]]
    assert sorted(tried, key=str) == sorted(causes(settings), key=str)
    by_setting = dict(zip(tried, results.rows["causes"], strict=True))
    good = right(settings)
    assert by_setting[good]["accuracy"] > by_setting[replace(good, is_pretrained=False)]["accuracy"]
    batch = replace(good, norm="batch")
    assert [s for s, row in by_setting.items() if row["mismatched"] is not None] == [batch]
    run = RunDir.open(lab.path(f"{batch.name}/seed-0"))
    assert accuracy_with_stored(run, str(run.path)) == pytest.approx(by_setting[batch]["accuracy"])
    _, head, tuned = results.rows["runs"]  # at a rate of 1e-5 little but the statistics changes
    assert tuned["restored"] == pytest.approx(head["accuracy"], abs=0.02)
    assert tuned["accuracy"] != tuned["restored"]
    results.save(tmp_path / "results.json")
    html = render_html(study.page(Results.load(tmp_path / "results.json")))
    assert html.count('<p class="kicker">') == 7 + 1  # and settings
    assert "their trunks are untrained" in html


# -- the design ----------------------------------------------------------------------------------------


def test_right_is_changed_in_one_thing_at_a_time() -> None:
    assert Setting("imagenet", "stored", 128, 1.0) == GOOD
    assert GOOD.wrongs(GOOD) == []
    tried = one_wrong(LAPTOP)
    assert [len(s.wrongs(GOOD)) for s in tried] == [1] * len(tried)
    assert len(tried) == 2 + 1 + 2 + 1 + 1  # ranges, statistics, sizes, rates, trunk


def test_every_setting_is_tried_once() -> None:
    tried = causes(LAPTOP)
    assert len(tried) == len(set(tried))
    assert len(grid(LAPTOP)) == 3 * 2 * 2
    # 3 ranges at 3 sizes; statistics, rate and trunk at 128; of the grid what the first do not have; two untrained trunks
    assert len(tried) == 9 + 3 + (12 - 3) + 2
    assert grid(LAPTOP)[-1] == Setting("raw", "batch", 32, 0.001)


def test_a_cause_becomes_a_job() -> None:
    job = cause_job(LAPTOP, Setting("raw", "batch", 32, 0.001), "weights.tar")
    assert (job.data.normalisation, job.data.image_size) == ("raw", 32)
    assert (job.training.trainable, job.training.frozen_norm) == ("head", "batch")
    assert (job.training.optimizer, job.training.learning_rate) == ("adadelta", 0.001)
    assert job.network.weights == "weights.tar"
    assert cause_job(LAPTOP, replace(GOOD, is_pretrained=False), "weights.tar").network.weights is None


# -- what the page says --------------------------------------------------------------------------------


def made_up(
    accuracy: dict[Setting, float], mismatched: float = 0.1, tuned: float = 0.1, restored: float = 0.2
) -> Results:
    """Results of the laptop size: settings that are not named have 0.4, of two seeds half a point apart."""
    found: list[dict[str, Any]] = []
    for setting in causes(LAPTOP):
        mean = accuracy.get(setting, 0.4)
        other = mismatched if setting.norm == "batch" and setting.is_pretrained else None
        found += [
            {**asdict(setting), "seed": seed, "accuracy": mean + shift, "mismatched": other}
            for seed, shift in enumerate((-0.0025, 0.0025))
        ]
    runs: list[dict[str, Any]] = []
    for network, own in LAPTOP["networks"].items():
        means = {HEAD: 0.2, TUNED: tuned} if own["has_trunk"] else {SCRATCH: 0.5}
        for stage, mean in means.items():
            runs += [
                {
                    "network": network, "stage": stage, "seed": seed, "accuracy": mean + 0.001 * seed,
                    "trained_params": 1000, "seconds": 9.0, "restored": restored if stage == TUNED and not seed else None,
                }
                for seed in range(3)
            ]  # fmt: skip
    data = [{"train_images": 2000, "test_images": 2000, "classes": 10}]
    return Results("small-networks", "laptop", LAPTOP, rows={"runs": runs, "causes": found, "data": data})


def takeaways(results: Results) -> dict[str, str]:
    return {section.title: section.takeaway for section in STUDY.page(results).sections}


def test_chance_has_the_error_of_so_many_test_images() -> None:
    found = Found.of(made_up({}))
    assert found.limit() == pytest.approx(0.1 + 2 * (0.1 * 0.9 / 2000) ** 0.5)
    assert found.is_chance(Spread(0.112, None, 1))
    assert not found.is_chance(Spread(0.115, None, 1))


def test_a_low_rate_that_is_enough_alone_is_said_to_be() -> None:
    slow = [s for s in causes(LAPTOP) if s.rate == 0.001]
    said = takeaways(made_up({GOOD: 0.7, **dict.fromkeys(slow, 0.1)}))
    assert (
        "The rate 0.001 costs most, 60.0 percentage points. Enough for chance alone: rate 0.001."
        in said["One thing wrong at a time"]
    )
    together = said["All together, on small images"]
    assert together.startswith(
        "6 of 12 settings end at chance: all of them have the rate 0.001, and every setting with it"
    )
    assert "the rate 0.001 40.0 %" in together
    assert "the batch statistics 10.0 %" in together
    assert "by itself: Adadelta left at its default rate" in said["The usual mistakes with Keras"]


def test_no_chance_anywhere_is_said() -> None:
    said = takeaways(made_up({GOOD: 0.7}, mismatched=0.3))
    assert "None alone is enough for chance." in said["One thing wrong at a time"]
    assert "No setting ends at chance." in said["All together, on small images"]
    assert said["The usual mistakes with Keras"].startswith("None of them is enough")
    assert "0 of 4 end at chance" in said["Statistics of batch norm"]


def test_common_cause() -> None:
    small = replace(GOOD, image_size=32)
    raw, slow = replace(small, normalisation="raw"), replace(small, rate=0.001)
    both = replace(raw, rate=0.001)
    assert (
        common_cause([slow, both], [raw], small)
        == "all of them have the rate 0.001, and every setting with it ends there"
    )
    assert common_cause([both], [raw, slow], small).startswith("all of them have the input 0 … 255, which some")
    assert common_cause([raw, slow], [small], small) == "they share no cause that the others lack"


def test_resolution_and_statistics_follow_the_numbers() -> None:
    small_raw = replace(GOOD, image_size=32, normalisation="raw")
    numbers = {GOOD: 0.7, replace(GOOD, image_size=32): 0.45, replace(GOOD, normalisation="raw"): 0.3, small_raw: 0.2}
    said = takeaways(made_up({**numbers, replace(small_raw, norm="batch"): 0.35}))
    assert "costs 25.0 percentage points at 32×32 and 40.0 at 128×128" in said["Input range and resolution"]
    assert "small images alone cost 25.0 percentage points: less than" in said["Input range and resolution"]
    assert "+15.0 percentage points with input 0 … 255; they undo part of" in said["Statistics of batch norm"]
    untrained = Setting("imagenet", "stored", 32, 1.0, is_pretrained=False)
    numbers |= {untrained: 0.1, replace(untrained, norm="batch"): 0.25}
    said = takeaways(made_up({**numbers, replace(small_raw, norm="batch"): 0.2}))
    assert "On an untrained trunk they take the head from 10.0 to 25.0 %" in said["Statistics of batch norm"]
    assert "do not make up for" in said["Statistics of batch norm"]


def test_unfreezing_is_laid_to_the_statistics_only_where_they_restore_it() -> None:
    pages = [takeaways(made_up({}, **given)) for given in ({"tuned": 0.1, "restored": 0.2}, {"tuned": 0.2})]
    assert "at chance ResNet-50" in pages[0]["The networks"]
    assert "none is at chance" in pages[1]["The networks"]
    fell, kept = (page["What unfreezing changes"] for page in pages)
    assert "With the batch-norm statistics of before it has 20.0 %, so they are what changed" in fell
    assert "statistics" not in kept
    less = takeaways(made_up({}, tuned=0.1, restored=0.12))["What unfreezing changes"]
    assert "so they are not all that changed" in less

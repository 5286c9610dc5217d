"""Small networks: a real run of the smoke size, and the claims of its page."""

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
from chronograd_lab.common.written import ClaimError
from chronograd_lab.studies.small_networks import study
from chronograd_lab.studies.small_networks.study import (
    HEAD,
    SCRATCH,
    STUDY,
    TUNED,
    Found,
    HeadSetup,
    accuracy_with_stored,
    cause_job,
    causes,
    grid,
    one_wrong,
    right,
)

PUBLISHED = Path(__file__).parents[3] / "docs" / "studies" / "small-networks" / "results.json"
LAPTOP = STUDY.sizes["laptop"]
GOOD = right(LAPTOP)


def quiet(text: str) -> None:
    pass


@pytest.mark.slow
def test_smoke_size_end_to_end(tmp_path: Path) -> None:
    lab = StudyRunner(tmp_path, "small-networks", "smoke", quiet)
    settings = STUDY.sizes["smoke"]
    results = STUDY.conduct(lab, settings)
    stages = [(row["network"], row["stage"]) for row in results.rows["runs"]]
    assert stages == [("small CNN", SCRATCH), ("ResNet-8", HEAD), ("ResNet-8", TUNED)]
    tried = [HeadSetup.of(row) for row in results.rows["causes"]]
    assert sorted(tried, key=str) == sorted(causes(settings), key=str)
    by_setting = dict(zip(tried, results.rows["causes"], strict=True))
    good = right(settings)
    assert by_setting[good]["accuracy"] > by_setting[replace(good, is_pretrained=False)]["accuracy"]
    batch = replace(good, norm="batch")
    assert [s for s, row in by_setting.items() if row["mismatched"] is not None] == [batch]
    run = RunDir.open(lab.path(f"{batch.name}/seed-0"))
    assert accuracy_with_stored(run, str(run.path)) == pytest.approx(by_setting[batch]["accuracy"])
    _, head, tuned = results.rows["runs"]  # at a rate of 1e-5, almost only the statistics change
    assert tuned["restored"] == pytest.approx(head["accuracy"], abs=0.02)
    assert tuned["accuracy"] != tuned["restored"]
    results.save(tmp_path / "results.json")
    html = render_html(STUDY.page(Results.load(tmp_path / "results.json")))
    assert html.count('<p class="kicker">') == 7 + 1  # plus settings


# -- the design ----------------------------------------------------------------------------------------


def test_settings_differ_from_good_in_one_thing() -> None:
    assert HeadSetup("imagenet", "stored", 128, 1.0) == GOOD
    assert GOOD.wrongs(GOOD) == []
    tried = one_wrong(LAPTOP)
    assert [len(s.wrongs(GOOD)) for s in tried] == [1] * len(tried)
    assert len(tried) == 2 + 1 + 2 + 1 + 1  # ranges, statistics, sizes, rates, trunk


def test_every_setting_is_tried_once() -> None:
    tried = causes(LAPTOP)
    assert len(tried) == len(set(tried))
    assert len(grid(LAPTOP)) == 3 * 2 * 2
    # 3 ranges at 3 sizes; statistics, rate and trunk at 128; the rest of the grid; two untrained trunks
    assert len(tried) == 9 + 3 + (12 - 3) + 2
    assert grid(LAPTOP)[-1] == HeadSetup("raw", "batch", 32, 0.001)


def test_cause_becomes_a_job() -> None:
    job = cause_job(LAPTOP, HeadSetup("raw", "batch", 32, 0.001), "weights.tar")
    assert (job.data.normalisation, job.data.image_size) == ("raw", 32)
    assert (job.training.trainable, job.training.frozen_norm) == ("head", "batch")
    assert (job.training.optimizer, job.training.learning_rate) == ("adadelta", 0.001)
    assert job.network.weights == "weights.tar"
    assert cause_job(LAPTOP, replace(GOOD, is_pretrained=False), "weights.tar").network.weights is None


# -- claims of the page ---------------------------------------------------------------------------------


def made_up(
    accuracy: dict[HeadSetup, float], mismatched: float = 0.1, tuned: float = 0.1, restored: float = 0.2
) -> Results:
    """Return laptop-size results: unnamed settings have 0.4, with two seeds that differ by 0.5 percentage points."""
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


def test_chance_limit_depends_on_test_images() -> None:
    found = Found.of(made_up({}))
    assert found.limit() == pytest.approx(0.1 + 2 * (0.1 * 0.9 / 2000) ** 0.5)
    assert found.is_chance(Spread(0.112, None, 1))
    assert not found.is_chance(Spread(0.115, None, 1))


def test_values_and_tables_of_made_up_results() -> None:
    slow = [setting for setting in causes(LAPTOP) if setting.rate == 0.001]
    results = made_up({GOOD: 0.7, **dict.fromkeys(slow, 0.1)}, tuned=0.1, restored=0.2)
    values = study.values(results)
    assert values["heads"]["imagenet_stored_128_1"].mean == pytest.approx(0.7)
    assert values["heads"]["imagenet_stored_128_1_untrained"].mean == pytest.approx(0.4)
    assert values["mismatched"]["raw_batch_32_1"].mean == pytest.approx(0.1)
    assert (values["small_at_chance"], values["small"]) == (6, 12)
    assert values["worst_alone"] == "imagenet, stored, 128, 0.001"
    assert values["worst"].mean == pytest.approx(0.1)
    assert values["networks"]["ResNet_50"]["end"].mean <= values["limit"] < values["networks"]["small_CNN"]["end"].mean
    assert values["networks"]["MobileNet"]["restored"] == pytest.approx(0.2)
    blocks = study.blocks(results)
    wrong, keras = blocks["One thing wrong at a time"].table, blocks["The usual mistakes with Keras"].table
    assert wrong is not None
    assert keras is not None
    assert {row[0]: row[3] for row in wrong.rows}["rate 0.001"] == "-60.0"
    assert keras.rows[0][2:] == ["10.00 ± 0.35 %", "-30.0"]
    assert keras.rows[3][2:] == ["10.00 ± 0.00 %", "-30.0"]


@pytest.mark.parametrize(
    ("setting", "accuracy", "sentence"),
    [
        (replace(GOOD, rate=0.001), 0.3, "A head on a frozen trunk ends at chance"),
        (replace(GOOD, normalisation="raw"), 0.1, "A head on a frozen trunk ends at chance"),
        (replace(GOOD, image_size=32), 0.215, "An input of 0 … 255 costs"),
        (replace(GOOD, image_size=32, normalisation="raw"), 0.38, "Batch statistics in training and test undo part"),
        (replace(GOOD, image_size=32, normalisation="unit", rate=0.001), 0.1, "4 of 12 settings end at chance"),
    ],
    ids=lambda value: value.name if isinstance(value, HeadSetup) else None,
)
def test_different_accuracies_contradict_a_sentence(setting: HeadSetup, accuracy: float, sentence: str) -> None:
    results = Results.load(PUBLISHED)
    for row in results.rows["causes"]:
        if HeadSetup.of(row) == setting:
            row["accuracy"] = accuracy + 0.001 * row["seed"]
    with pytest.raises(ClaimError, match=sentence):
        STUDY.page(results)


def test_statistics_are_blamed_only_if_accuracy_recovers() -> None:
    results = Results.load(PUBLISHED)
    for row in results.rows["runs"]:
        row["restored"] = None if row["restored"] is None else 0.25
    with pytest.raises(ClaimError, match="so the statistics are the cause"):
        STUDY.page(results)

"""What copies of samples cost and gain: the arithmetic on made-up curves, and the smallest size for real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chronograd.figure import Lines
from chronograd.report.html import render_html
from chronograd_lab.common.results import Results
from chronograd_lab.common.rows import Spread
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.studies import batch_augmentation as study
from chronograd_lab.studies.batch_augmentation import STUDY, Copies

SETTINGS = {**STUDY.sizes["laptop"], "copies": [1, 2, 4], "seeds": [3, 3, 3], "longer": 4, "epochs": 4, "target": 0.5}


def made_up(final: dict[str, float], apart: float = 0.01) -> Results:
    """Results in which accuracy rises evenly to `final` (seed 0; each other is `apart` above the one before), a step being a second."""
    final = {study.PLAIN: final["M=1"] - 0.05, **final}
    rows: list[dict[str, Any]] = []
    curves = {}
    for name, arm in study.arms(SETTINGS).items():
        for seed in range(arm.seeds):
            end = final[name] + apart * seed
            updates = [31.0 * arm.epochs * (i + 1) / 4 for i in range(4)]
            columns: dict[str, list[float | None]] = {
                "epoch": [arm.epochs * (i + 1) / 4 for i in range(4)],
                "step": [*updates],
                "seconds": [u * arm.copies for u in updates],
                "images": [u * arm.copies * 32 for u in updates],
                "test_accuracy": [end * (i + 1) / 4 for i in range(4)],
            }
            outcome = {"accuracy": end, "epochs": arm.epochs, "updates": updates[-1], "train_loss": 1.0}
            outcome |= {"images": columns["images"][-1], "seconds": columns["seconds"][-1]}
            reached = study.to_target(columns, SETTINGS["target"])
            rows.append({"arm": name, "copies": arm.copies, "seed": seed, **outcome, **reached})
            curves[f"{name}/seed-{seed}"] = columns
    png = study.pictures({**STUDY.sizes["smoke"]})
    return Results("batch-augmentation", "laptop", SETTINGS, {"runs": rows}, curves, png)


@pytest.mark.slow
def test_smoke_size_end_to_end(tmp_path: Path) -> None:
    settings = STUDY.sizes["smoke"]
    results = STUDY.conduct(StudyRunner(tmp_path, "batch-augmentation", "smoke", lambda text: None), settings)
    rows = {(row["arm"], row["seed"]): row for row in results.rows["runs"]}
    updates = settings["epochs"] * (settings["samples"] // settings["batch"])
    for copies, seeds in zip(settings["copies"], settings["seeds"], strict=True):
        for seed in range(seeds):
            row = rows[f"M={copies}", seed]
            assert (row["updates"], row["images"]) == (updates, updates * settings["batch"] * copies)
    longer = rows[study.longer_name(settings), 0]
    assert longer["images"] == rows[f"M={settings['longer']}", 0]["images"]
    assert longer["updates"] == settings["longer"] * updates
    results.save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json") == results
    page = STUDY.page(results)
    html = render_html(page)
    assert all(section.takeaway.split(".")[0] in html for section in page.sections[:1])
    assert len(page.sections) == 6


def test_the_arms_have_equal_updates_and_one_pair_has_equal_images() -> None:
    arms = study.arms(STUDY.sizes["laptop"])
    copies = STUDY.sizes["laptop"]["copies"]
    assert {arms[f"M={m}"].epochs for m in copies} == {STUDY.sizes["laptop"]["epochs"]}
    longer, beside = arms[study.longer_name(STUDY.sizes["laptop"])], arms[f"M={STUDY.sizes['laptop']['longer']}"]
    assert longer.copies == 1
    assert longer.epochs * longer.copies == beside.epochs * beside.copies
    assert longer.seeds == beside.seeds
    order = [(-arm.seeds, -arm.epochs * arm.copies) for arm in arms.values()]
    assert order == sorted(order)
    assert (arms[study.PLAIN].copies, arms[study.PLAIN].cutout) == (1, False)


@pytest.mark.parametrize("size", ["smoke", "laptop", "evening", "paper"])
def test_jobs_are_looked_at_equally_often(size: str) -> None:
    settings = STUDY.sizes[size]
    for name, arm in study.arms(settings).items():
        training = study.job(settings, arm).training
        assert training.epochs / training.evaluate_every == settings["epochs"] / settings["evaluate_every"]
        assert training.images_per_step == settings["batch"] * arm.copies
        assert training.target_accuracy is None
        assert training.augmentation.cutout == (0 if name == study.PLAIN else settings["cutout"])


def test_the_paper_size_is_the_published_setting() -> None:
    job = study.job(STUDY.sizes["paper"], Copies(32, 100, 1))
    assert (job.network.name, job.data.name, job.training.batch, job.training.epochs) == (
        "resnet44",
        "cifar10",
        64,
        100,
    )
    assert (job.training.augmentation.crop, job.training.augmentation.cutout) == (4, 16)
    assert (job.training.learning_rate, job.training.momentum, job.training.weight_decay) == (0.1, 0.9, 1e-4)


def test_the_target_is_reached_at_the_first_evaluation_that_has_it() -> None:
    columns: dict[str, list[float | None]] = {
        "epoch": [2, 4, 6],
        "step": [20, 40, 60],
        "images": [640, 1280, 1920],
        "seconds": [1.5, 3.0, 4.5],
        "test_accuracy": [0.3, 0.5, 0.4],
    }
    assert study.to_target(columns, 0.5) == {
        "epochs_to_target": 4,
        "updates_to_target": 40,
        "images_to_target": 1280,
        "seconds_to_target": 3.0,
    }
    assert set(study.to_target(columns, 0.51).values()) == {None}


def test_accuracy_at_a_time_is_that_of_the_last_evaluation_before_it() -> None:
    curves = {
        "M=2/seed-0": {"seconds": [1.0, 2.0, 3.0], "test_accuracy": [0.1, 0.2, 0.3]},
        "M=2/seed-1": {"seconds": [1.5, 3.0, 4.5], "test_accuracy": [0.2, 0.3, 0.4]},
        "M=4/seed-0": {"seconds": [1.0], "test_accuracy": [0.9]},
    }
    assert study.accuracy_at(curves, "M=2", "seconds", 2.5).mean == pytest.approx(
        (0.2 + 0.3) / 2
    )  # mean clock: 1.25, 2.5, 3.75
    assert study.accuracy_at(curves, "M=2", "seconds", 3.7).n == 2
    assert study.accuracy_at(curves, "M=2", "seconds", 1.0).mean == 0.0


def test_takeaway_at_equal_updates_follows_the_numbers() -> None:
    low, high = Spread(0.40, 0.001, 3), Spread(0.44, 0.001, 3)
    rising = study.updates_takeaway({"M=1": low, "M=2": Spread(0.42, 0.001, 3), "M=4": high})
    assert rising.startswith("Accuracy over M=1, 60.00 ± 0.10 % of error: M=2 +2.0 percentage points (")
    assert "M=4 +4.0 percentage points (+3.8 … +4.2" in rising
    close = study.updates_takeaway({"M=1": low, "M=2": Spread(0.4005, 0.001, 3), "M=4": Spread(0.42, None, 1)})
    assert close.startswith(
        "No value of M differs significantly from M=1, 60.00 ± 0.10 % of error. The highest accuracy among them is of M=4"
    )
    assert "+2.0 percentage points (too few seeds to judge)" in close
    falling = study.updates_takeaway({"M=1": high, "M=2": Spread(0.4395, 0.001, 3), "M=4": low})
    assert "M=4 −4.0 percentage points" in falling
    assert falling.endswith("No significant difference from it: M=2.")


def test_takeaways_at_equal_images_and_seconds_follow_the_numbers() -> None:
    a, b = Spread(0.40, 0.001, 3), Spread(0.44, 0.001, 3)
    assert "M=4 is worse than M=1 longer: −4.0 percentage points" in study.images_takeaway("M=4", "M=1 longer", a, b)
    assert "M=4 is better than M=1 longer: +4.0 percentage points" in study.images_takeaway("M=4", "M=1 longer", b, a)
    assert "M=4 does not differ significantly from M=1 longer" in study.images_takeaway(
        "M=4", "M=1 longer", a, Spread(0.44, None, 1)
    )
    assert "M=4 is behind" in study.seconds_takeaway(3.0, "M=4", a, b)
    assert "M=4 is ahead" in study.seconds_takeaway(3.0, "M=4", b, a)


LONGER = study.longer_name(SETTINGS)


def test_page_of_a_gain_says_so() -> None:
    """The ends: 0.40, 0.51, 0.60 and 0.55. Evaluations are at quarters, so 0.5 is reached at the last of each arm, but
    by M=1 never."""
    sections = {s.title: s for s in STUDY.page(made_up({"M=1": 0.40, "M=2": 0.51, "M=4": 0.60, LONGER: 0.55})).sections}
    updates = 31 * 4
    target = sections["To 50 %"]
    assert f"fewest epochs and updates M=2 (4.0 and {updates})" in target.takeaway
    assert f"Fewest images: M=2 ({updates * 32 * 2:,})" in target.takeaway
    assert f"Fewest seconds: M=2 ({updates * 2:.1f})" in target.takeaway
    assert target.takeaway.endswith("Not reached from every seed within 4 epochs: M=1.")
    assert target.table is not None
    cells = {row[0]: row for row in target.table.rows}
    assert cells["M=1"][-2:] == ["0 of 3", "41.00 ± 1.00 % after 124.0 s"]
    assert cells["M=4"][-2:] == ["3 of 3", ""]
    paper = sections["Beside the paper"]
    assert paper.takeaway == (
        "2 of the paper's 2 claims hold here; the gain of +20.00 percentage points is above the range of +0.5 to +1 recalled for it."
    )
    assert "Cutout changes accuracy by +5.0 percentage points" in sections["Crop and flip alone"].takeaway
    images = sections["At equal images and at equal seconds"]
    assert images.takeaway.startswith(f"At equal images M=4 is better than {LONGER}: +5.0 percentage points")


def test_a_point_stands_for_each_m_that_some_seed_brought_to_the_target() -> None:
    """Seeds of M=1 end at 0.49, 0.50 and 0.51: two of them reach 0.5. No seed of M=2 does."""
    page = STUDY.page(made_up({"M=1": 0.49, "M=2": 0.40, "M=4": 0.60, LONGER: 0.55}))
    target = next(s for s in page.sections if s.title == "To 50 %")
    assert target.figure is not None
    for panel in target.figure.panels:
        assert isinstance(panel, Lines)
        (series,) = panel.series
        assert [y is not None for y in series.y] == [True, False, True]
        assert list(series.notes) == ["2 of 3", "0 of 3", ""]
    assert "how many of the seeds reached the target" in target.caption


def test_page_of_a_loss_says_so() -> None:
    sections = {s.title: s for s in STUDY.page(made_up({"M=1": 0.48, "M=2": 0.45, "M=4": 0.44, LONGER: 0.47})).sections}
    assert "M=2 −3.0 percentage points" in sections["At equal updates"].takeaway
    assert "no arm reaches the target from every seed." in sections["To 50 %"].takeaway
    assert sections["Beside the paper"].takeaway.startswith("0 of the paper's 2 claims hold here")
    images = sections["At equal images and at equal seconds"].takeaway
    assert images.startswith(f"At equal images M=4 is worse than {LONGER}")


def test_fewer_updates_needs_one_of_the_two_to_arrive() -> None:
    assert study.fewer_updates([None], [None])[0] == "not known"
    assert study.fewer_updates([90.0, 100.0], [90.0, 80.0]) == ("yes", "85 against 95")
    assert study.fewer_updates([90.0], [90.0])[0] == "no"
    assert study.fewer_updates([90.0], [None])[0] == "no"


def test_copies_are_pictures_of_the_images_size_and_differ() -> None:
    found = study.pictures(STUDY.sizes["smoke"])
    assert list(found) == ["image", *(f"copy {i}" for i in range(1, 1 + study.PICTURE_COPIES))]
    assert len(set(found.values())) > 2

"""Costs and gains of batch augmentation: arithmetic on made-up curves, and a real run of the smallest size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chronograd.figure import Lines
from chronograd.report.html import render_html
from chronograd_lab.common.results import Results
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.studies.batch_augmentation import study
from chronograd_lab.studies.batch_augmentation.study import STUDY, Copies

SETTINGS = {**STUDY.sizes["laptop"], "copies": [1, 2, 4], "seeds": [3, 3, 3], "longer": 4, "epochs": 4, "target": 0.5}


def made_up(final: dict[str, float], apart: float = 0.01) -> Results:
    """Return results where accuracy rises evenly to `final`; each seed is `apart` above the previous one. A step takes a second."""
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
            outcome: dict[str, float | None] = {
                "accuracy": end,
                "epochs": arm.epochs,
                "updates": updates[-1],
                "train_loss": 1.0,
            }
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
    assert len(page.sections) == 8


def test_arms_have_equal_updates_and_a_pair_equal_images() -> None:
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
def test_jobs_are_evaluated_equally_often(size: str) -> None:
    settings = STUDY.sizes[size]
    for name, arm in study.arms(settings).items():
        training = study.job(settings, arm).training
        own = settings if arm.cutout else {**settings, **settings.get("plain", {})}
        assert training.epochs / training.evaluate_every == own["epochs"] / own["evaluate_every"]
        assert training.images_per_step == settings["batch"] * arm.copies
        assert training.target_accuracy is None
        assert training.augmentation.cutout == (0 if name == study.PLAIN else settings["cutout"])


def test_plain_arm_may_have_its_own_network() -> None:
    """Question 2.4.2 asks for ResNet-44 on the whole set; its runs come first, and copies keep the smaller network."""
    settings = STUDY.sizes["evening"]
    (first, plain), *others = study.arms(settings).items()
    job = study.job(settings, plain)
    assert (first, plain.copies, plain.epochs, plain.seeds) == (study.PLAIN, 1, 30, 2)
    assert (job.network.name, job.data.samples, job.training.batch) == ("resnet44", None, 64)
    for _, arm in others:
        own = study.job(settings, arm)
        assert (own.network.name, own.data.samples, own.training.augmentation.cutout) == ("resnet20", 10_000, 16)


def test_paper_size_matches_the_publication() -> None:
    job = study.job(STUDY.sizes["paper"], Copies(32, 100, 1))
    assert (job.network.name, job.data.name, job.training.batch, job.training.epochs) == (
        "resnet44",
        "cifar10",
        64,
        100,
    )
    assert (job.training.augmentation.crop, job.training.augmentation.cutout) == (4, 16)
    assert (job.training.learning_rate, job.training.momentum, job.training.weight_decay) == (0.1, 0.9, 1e-4)


def test_early_target_is_reached_by_all_before_the_rate_falls() -> None:
    """The rate falls after 1.62 of 4 epochs, so only the first evaluation counts: a quarter of the final accuracy."""
    results = made_up({"M=1": 0.70, "M=2": 0.74, "M=4": 0.9, study.longer_name(SETTINGS): 0.3})
    assert study.early_target(results) == 0.15  # 0.70 / 4 is below 0.20
    early = study.values(results)["early"]
    assert (early["M_1"]["epochs"].mean, early["many"]["epochs"].mean, early["runs"]) == (1, 1, 6)
    assert early["M_4"]["images"].mean == 4 * early["M_1"]["images"].mean == 4 * 31 * 32
    nothing = made_up({"M=1": 0.1, "M=2": 0.74, "M=4": 0.9, study.longer_name(SETTINGS): 0.3})
    assert study.early_target(nothing) is None
    assert study.blocks(nothing)["Before the learning rate falls"].table.rows[0] == ["M=1", "–", "–", "–", "–"]


def test_target_is_reached_at_first_sufficient_evaluation() -> None:
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


def test_accuracy_at_a_time_uses_the_previous_evaluation() -> None:
    curves = {
        "M=2/seed-0": {"seconds": [1.0, 2.0, 3.0], "test_accuracy": [0.1, 0.2, 0.3]},
        "M=2/seed-1": {"seconds": [1.5, 3.0, 4.5], "test_accuracy": [0.2, 0.3, 0.4]},
        "M=4/seed-0": {"seconds": [1.0], "test_accuracy": [0.9]},
    }
    assert study.accuracy_at(curves, "M=2", "seconds", 2.5).mean == pytest.approx(
        (0.2 + 0.3) / 2
    )  # mean times: 1.25, 2.5, 3.75
    assert study.accuracy_at(curves, "M=2", "seconds", 3.7).n == 2
    assert study.accuracy_at(curves, "M=2", "seconds", 1.0).mean == 0.0


LONGER = study.longer_name(SETTINGS)


def test_costs_to_the_target() -> None:
    """The arms end at 0.40, 0.51, 0.60 and 0.55. Each reaches 0.5 at its last quarter, except M=1, which never does."""
    results = made_up({"M=1": 0.40, "M=2": 0.51, "M=4": 0.60, LONGER: 0.55})
    updates = 31 * 4
    values = study.values(results)
    assert values["fewest"] == {
        "epochs": {"arm": "M=2", "value": 4.0},
        "updates": {"arm": "M=2", "value": updates},
        "images": {"arm": "M=2", "value": updates * 32 * 2},
        "seconds": {"arm": "M=2", "value": updates * 2},
    }
    assert (values["missed"], values["that_differ"], values["highest"], values["reached_sooner"]) == (
        "M=1",
        2,
        "M_4",
        "yes",
    )
    assert values["M_1"]["accuracy"].mean - values["plain"]["accuracy"].mean == pytest.approx(0.05)
    assert values["M_4"]["accuracy"].mean - values["longer"]["accuracy"].mean == pytest.approx(0.05)
    assert values["at_equal_seconds"]["seconds"] == updates * 4
    blocks = study.blocks(results)
    target, paper = blocks["To 50 %"].table, blocks["Compared with the paper"].table
    assert target is not None
    assert paper is not None
    cells = {row[0]: row for row in target.rows}
    assert cells["M=1"][-2:] == ["0 of 3", "41.00 ± 1.00 % after 124.0 s"]
    assert cells["M=4"][-2:] == ["3 of 3", ""]
    assert [row[2] for row in paper.rows] == ["yes", "yes", "no"]


def test_plot_has_a_point_for_each_m_that_reached_the_target() -> None:
    """All seeds of M=2, M=4 and of the longer arm reach 0.5 at their end. Those of M=1 stay below. Only M=4 reaches 0.55."""
    results = made_up({"M=1": 0.45, "M=2": 0.52, "M=4": 0.60, LONGER: 0.55})
    block = study.blocks(results)["Epochs and seconds by target"]
    assert block.figure is not None
    for panel, ends in zip(block.figure.panels, ((4.0, 4.0), (31 * 4 * 2, 31 * 4 * 4)), strict=True):
        assert isinstance(panel, Lines)
        by_label = {series.label: series for series in panel.series}
        assert list(by_label["to 50 %"].y) == [None, *ends]
        assert "to 55 %" not in by_label
    assert block.table is not None
    cells = {row[0]: row[1:] for row in block.table.rows}
    assert cells["50 %"] == ["–", "248.0", "496.0", "496.0", "M=2"]
    assert cells["55 %"][:3] == ["–", "–", "496.0"]
    assert study.values(results)["soonest"]["at_50"] == "M=2"


def test_plot_shows_the_falls_of_the_rate() -> None:
    """Rates of 4 epochs fall at 1.62, 2.44 and 3.28: after the same epochs with any M, and the seconds grow with M."""
    block = study.blocks(made_up({"M=1": 0.55, "M=2": 0.55, "M=4": 0.60, LONGER: 0.55}))["Epochs and seconds by target"]
    assert block.figure is not None
    epochs, seconds = (
        {s.label: list(s.y) for s in panel.series if s.role == "reference"}  # type: ignore[union-attr]
        for panel in block.figure.panels
    )
    assert list(epochs) == list(seconds) == [f"the rate falls to {rate}" for rate in ("0.01", "0.001", "0.0001")]
    for label, share in zip(epochs, (0.405, 0.61, 0.82), strict=True):
        assert epochs[label] == pytest.approx([4 * share] * 3)
        assert seconds[label] == pytest.approx([31 * 4 * m * share for m in (1, 2, 4)])


def test_stages_split_the_epochs_at_the_drops_of_the_rate() -> None:
    """Rates fall at 1.62, 2.44 and 3.28 of 4 epochs, so each of the four evaluations has another rate."""
    found = study.stages(made_up({"M=1": 0.40, "M=2": 0.51, "M=4": 0.60, LONGER: 0.55}))
    assert [stage["rate"] for stage in found] == pytest.approx([0.1, 0.01, 0.001, 0.0001])
    assert [(stage["epoch"], stage["last_epoch"]) for stage in found] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert found[0]["first"].mean == pytest.approx(1 - 0.36 / 4)


def test_no_cheapest_arm_if_none_reaches_the_target() -> None:
    results = made_up({"M=1": 0.48, "M=2": 0.45, "M=4": 0.44, LONGER: 0.47})
    values = study.values(results)
    assert (values["fewest"], values["missed"], values["reached_sooner"]) == ({}, "M=1, M=2, M=4", "not known")
    assert f"{values['M_2']['accuracy'] - values['M_1']['accuracy']:%}".startswith("−3.0 percentage points")
    paper = study.blocks(results)["Compared with the paper"].table
    assert paper is not None
    assert [row[2] for row in paper.rows] == ["no", "not known", "no"]


def test_fewer_updates_needs_one_arm_at_the_target() -> None:
    assert study.fewer_updates([None], [None])[0] == "not known"
    assert study.fewer_updates([90.0, 100.0], [90.0, 80.0]) == ("yes", "85 against 95")
    assert study.fewer_updates([90.0], [90.0])[0] == "no"
    assert study.fewer_updates([90.0], [None])[0] == "no"


def test_copies_have_the_image_size_and_differ() -> None:
    found = study.pictures(STUDY.sizes["smoke"])
    assert list(found) == ["image", *(f"copy {i}" for i in range(1, 1 + study.PICTURE_COPIES))]
    assert len(set(found.values())) > 2

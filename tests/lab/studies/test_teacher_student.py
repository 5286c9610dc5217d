"""Teacher and student: the arithmetic and the sentences on made-up results, and the smallest size for real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chronograd.answer import Section
from chronograd.data.labels import read_labels
from chronograd.report.html import render_html
from chronograd.train.methods.teacher import Selection, select
from chronograd_lab.common.results import Results
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.studies import teacher_student as study
from chronograd_lab.studies.teacher_student import ALONE, ECHO, PRETRAINED, SOFT, STUDY, TEACHER, TOGETHER, TUNED

SETTINGS = {
    **STUDY.sizes["laptop"],
    "K": 100,
    "P": 2,
    "K_tried": [10, 1000],
    "K_of_P_tried": 1000,
    "P_tried": [2],
    "noise_tried": [0.2, 0.4],
}
WEAK = ("weak labels, noise 20 %", "weak labels, noise 40 %")
# Arm and stage → accuracies by seed. The teacher's own set is K 100, P 2.
ACCURACY: dict[tuple[str, str], list[float]] = {
    (ALONE, ""): [0.50, 0.51],
    (TEACHER, ""): [0.58],
    ("K 100, P 2", PRETRAINED): [0.54, 0.55],
    ("K 100, P 2", TUNED): [0.56, 0.57],
    ("K 10, P 2", PRETRAINED): [0.40],
    ("K 10, P 2", TUNED): [0.48],
    ("K 1000, P 2", PRETRAINED): [0.45],
    ("K 1000, P 2", TUNED): [0.52],
    ("K 1000, P 1", PRETRAINED): [0.50],
    ("K 1000, P 1", TUNED): [0.55],
    (SOFT, PRETRAINED): [0.52],
    (TOGETHER, PRETRAINED): [0.44],
    (TOGETHER, TUNED): [0.47],
    (ECHO, TUNED): [0.555],
    (WEAK[0], PRETRAINED): [0.55],
    (WEAK[0], TUNED): [0.60],
    (WEAK[1], PRETRAINED): [0.48],
    (WEAK[1], TUNED): [0.50],
}
SETS: list[dict[str, Any]] = [
    {"set": "K 100, P 2", "labels": 300, "images": 290, "several": 10, "per_class": [100] * 3, "wrong": 0.15},
    {"set": "K 10, P 2", "labels": 30, "images": 30, "several": 0, "per_class": [10] * 3, "wrong": 0.05},
    {
        "set": "K 1000, P 2",
        "labels": 2900,
        "images": 2000,
        "several": 900,
        "per_class": [1000, 900, 1000],
        "wrong": 0.5,
    },
    {"set": "K 1000, P 1", "labels": 2000, "images": 2000, "several": 0, "per_class": [1000, 400, 600], "wrong": 0.35},
    {"set": SOFT, "labels": 2000, "images": 2000, "several": 0, "per_class": [1000, 400, 600], "wrong": 0.35},
    {"set": TOGETHER, "labels": 300, "images": 300, "several": 0, "per_class": [250, 10, 40], "wrong": 0.1},
    {"set": WEAK[0], "noise": 0.2, "labels": 2000, "images": 2000, "wrong": 0.18},
    {"set": WEAK[1], "noise": 0.4, "labels": 2000, "images": 2000, "wrong": 0.36},
]


def made_up(changed: dict[tuple[str, str], list[float]] | None = None, **settings: Any) -> Results:
    """Results with the accuracies above, some of them changed; students of the teacher agree with it more."""
    networks = []
    for (arm, stage), accuracies in {**ACCURACY, **(changed or {})}.items():
        is_taught = arm not in (ALONE, TEACHER, *WEAK)
        same = {"agreement": 0.8 if is_taught else 0.6, "repeated_mistakes": 0.5 if is_taught else 0.3}
        for seed, accuracy in enumerate(accuracies):
            networks.append({"arm": arm, "stage": stage, "seed": seed, "accuracy": accuracy, "updates": 600.0, **same})
    rows = {"networks": networks, "sets": SETS, "labelled": [{"images": 2000, "wrong": 0.12}], "pictures": []}
    return Results("teacher-student", "laptop", {**SETTINGS, **settings}, rows)


def section(results: Results, title: str) -> Section:
    return next(s for s in STUDY.page(results).sections if s.title == title)


@pytest.mark.slow
def test_smoke_size_end_to_end(tmp_path: Path) -> None:
    settings = STUDY.sizes["smoke"]
    results = STUDY.conduct(StudyRunner(tmp_path, "teacher-student", "smoke", lambda text: None), settings)
    rows = {(row["arm"], row["stage"]): row for row in results.rows["networks"]}
    sets = {row["set"]: row for row in results.rows["sets"]}
    assert rows[TEACHER, ""]["agreement"] == 1
    assert rows[TEACHER, ""]["accuracy"] != rows[ALONE, ""]["accuracy"]
    assert {stage for arm, stage in rows if arm == SOFT} == {PRETRAINED}
    assert all(row["accuracy"] > 0.5 for row in rows.values())
    one, two = sets["K 80, P 1"], sets["K 80, P 2"]
    assert (one["images"], one["several"]) == (one["labels"], 0)
    assert two["labels"] - two["images"] == two["several"] > 0  # with P = 2 an image comes once or twice
    assert max(two["per_class"]) == 80
    written = read_labels(tmp_path / "labels" / "K-80-P-2.npz", 1437, 10)
    assert np.bincount(written.labels, minlength=10).tolist() == two["per_class"]
    u_first = settings["unlabelled"]["skip"]
    positions = np.random.RandomState(0).permutation(1437)  # the fixed shuffle: D and U have no image in common
    assert set(written.samples_N) <= set(positions[u_first : u_first + 600])
    for name in (set(sets) - {SOFT}) & {arm for arm, _ in rows}:
        updates = settings["pretraining"]["updates"]
        assert rows[name, PRETRAINED]["updates"] == pytest.approx(updates, abs=sets[name]["labels"] / 40 / 2 + 1)
        assert rows[name, TUNED]["updates"] == settings["fine_tuning"]["epochs"] * 100 // 20
    assert len(results.pictures) == study.NUM_PICTURES
    results.save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json") == results
    page = STUDY.page(results)
    assert len(page.sections) == 7
    html = render_html(page)
    assert "Can an image have two classes?" in html
    assert html.count("is: ") >= study.NUM_PICTURES


# -- arithmetic --------------------------------------------------------------------------------------------


def test_what_is_in_a_selection() -> None:
    kept = select(np.array([7, 8, 9]), np.array([[0.6, 0.4, 0.0], [0.45, 0.5, 0.05], [0.1, 0.2, 0.7]]), 2, 2)
    # class 0: 7 (0.6), 8 (0.45); class 1: 8 (0.5), 7 (0.4); class 2: 9 (0.7), as 9's second class is 1
    truth = {7: 0, 8: 0, 9: 2}
    found = study.composition(kept, 3, np.array([truth[int(s)] for s in kept.sample]))
    assert found == {"labels": 5, "images": 3, "several": 2, "per_class": [2, 2, 1], "wrong": 2 / 5}
    assert study.composition(kept, 3, None)["wrong"] is None
    assert study.evenly_two(kept) == [(8, [(1, 0.5), (0, 0.45)]), (7, [(0, 0.6), (1, 0.4)])]


def test_of_three_classes_the_two_best_are_shown() -> None:
    kept = Selection(np.array([5, 5, 5, 6]), np.array([0, 1, 2, 2]), np.array([0.2, 0.5, 0.3, 0.9]))
    assert study.evenly_two(kept) == [(5, [(1, 0.5), (2, 0.3)])]


def test_agreement_is_counted_of_all_and_of_mistakes() -> None:
    own, teachers = np.array([0, 1, 2, 2]), np.array([0, 1, 1, 2])
    wrong = np.array([False, True, True, False])
    assert study.agreement(own, teachers, wrong) == {"agreement": 0.75, "repeated_mistakes": 0.5}
    assert study.agreement(own, teachers, np.zeros(4, bool))["repeated_mistakes"] is None


def test_pairs_of_k_and_p() -> None:
    assert study.tried(SETTINGS, "K") == [(10, 2), (100, 2), (1000, 2)]
    assert study.tried(SETTINGS, "P") == [(1000, 1), (1000, 2)]


@pytest.mark.parametrize("size", ["smoke", "laptop", "paper"])
def test_sizes_are_whole(size: str) -> None:
    """Every set has a whole batch, jobs are valid, and at the laptop's size updates are equal where sets are full."""
    settings = STUDY.sizes[size]
    assert (settings["K_of_P_tried"], 1) in study.tried(settings, "P")
    for part, network in (("supervised", "teacher"), ("fine_tuning", "student")):
        study.job(settings, settings[network], settings["labelled"], settings[part])
    if size == "laptop":
        batch, updates = settings["pretraining"]["batch"], settings["pretraining"]["updates"]
        for k, _ in study.tried(settings, "K"):
            epochs = study.epochs_for(updates, 10 * k, batch)
            assert epochs * (10 * k // batch) == updates


@pytest.mark.parametrize(("accuracy", "expected"), [(0.55, 0.3), (0.6, 0.2), (0.5, 0.4), (0.45, None), (0.65, None)])
def test_noise_that_does_as_much_harm(accuracy: float, expected: float | None) -> None:
    assert study.share_that_equals(accuracy, [(0.4, 0.5), (0.2, 0.6)]) == expected


# -- sentences ---------------------------------------------------------------------------------------------


def test_the_gain_over_d_alone_is_told_and_its_sign() -> None:
    seeds = {("K 100, P 2", TUNED): [0.56, 0.565, 0.57], (ALONE, ""): [0.5, 0.505, 0.51]}
    steps = section(made_up(seeds), "The four steps")
    assert "+6.0 percentage points (+4.9 … +7.1, p = 0.00012). It gains" in steps.takeaway
    assert "It gains, as published" in steps.takeaway
    assert (
        "−1.5 percentage points (too few seeds to judge)" in steps.takeaway
    )  # 56.5 % of the student, 58 % of the teacher
    assert steps.table is not None
    assert [row[3] for row in steps.table.rows] == ["76.4", "–", "–", "79.1 and 81.2"]
    unsure = section(made_up({**seeds, ("K 100, P 2", TUNED): [0.49, 0.515, 0.54]}), "The four steps")
    assert "not significant with 3 seeds). That it gains, as published (+2.7), is not certain" in unsure.takeaway
    # 1.96 · √(2 · 0.505 · 0.495 / 4,000) is more than the gain of a point, and less than one of three.
    assert (
        "is not certain: 4,000 test images cannot resolve less than 2.2 percentage points. Against" in unsure.takeaway
    )
    wide = section(made_up({**seeds, ("K 100, P 2", TUNED): [0.47, 0.535, 0.60]}), "The four steps")
    assert "not significant with 3 seeds). That it gains, as published (+2.7), is not certain. Against" in wide.takeaway
    worse = section(made_up({("K 100, P 2", TUNED): [0.45, 0.46]}), "The four steps")
    assert "It does not gain; published is a gain (+2.7)" in worse.takeaway


@pytest.mark.parametrize(
    ("small", "large", "said"),
    [
        (0.48, 0.52, "rises to 100 (+8.5 percentage points) and falls after it (−4.5 percentage points), as published"),
        (
            0.48,
            0.60,
            "is highest at the largest, 1,000 (12.0 percentage points above 10). The published accuracy rises, then falls",
        ),
        (
            0.60,
            0.52,
            "is highest at the smallest, 10 (8.0 percentage points above 1,000). The published accuracy rises, then falls",
        ),
        (0.565, 0.565, "is the same for all"),
    ],
)
def test_accuracy_against_k_is_told_as_it_is(small: float, large: float, said: str) -> None:
    found = section(
        made_up({("K 10, P 2", TUNED): [small], ("K 1000, P 2", TUNED): [large]}), "How many images per class"
    )
    assert said in found.takeaway
    assert "From K = 10 to 1,000 wrong labels go from 5.0 % of the set to 50.0 %" in found.takeaway
    # Deviation of 0.56 and 0.57 is 0.01 / √2; twice that of a difference is 2 · √2 · 0.01 / √2 = 2 points.
    assert "two runs differ by up to some 2.0 percentage points" in found.takeaway


def test_a_second_class_is_weighed_against_seeds() -> None:
    title = "How many classes per image"
    assert (
        "No P is better than P = 1. With P = 1 the smallest class has 400 of 1,000"
        in section(made_up(), title).takeaway
    )
    little = section(made_up({("K 1000, P 2", TUNED): [0.56]}), title)
    assert "P = 2 ends 1.0 percentage points above P = 1, no more than seeds may do." in little.takeaway
    much = section(made_up({("K 1000, P 2", TUNED): [0.58]}), title)
    assert "P = 2 ends 3.0 percentage points above P = 1, more than seeds may do." in much.takeaway
    from_one = made_up({("K 1000, P 2", TUNED): [0.58], ("K 100, P 2", TUNED): [0.56]})
    assert "no more than seeds may do" in section(from_one, title).takeaway


def test_what_is_kept_is_counted() -> None:
    kept = section(made_up(), "What is kept")
    assert "K 100, P 2 keeps 100 images of each" in kept.takeaway
    assert "10 of 290 (K 100, P 2) and 900 of 2,000 (K 1000, P 2) images are kept for two or more" in kept.takeaway
    assert kept.table is not None
    together = next(row for row in kept.table.rows if row[0] == TOGETHER)
    assert together[-2:] == ["10", "250"]


def test_the_worst_omission_is_named() -> None:
    assert (
        "Without balance: best of all classes together costs most: −9.5"
        in section(made_up(), "Each step left out").takeaway
    )
    unbalanced = section(made_up(is_balance_ablated=False), "Each step left out")
    assert "Without U: D alone costs most: −6.0 percentage points" in unbalanced.takeaway
    assert "wrong on 12.0 % of the images of D" in unbalanced.takeaway
    best = made_up({("K 100, P 2", TUNED): [0.65, 0.66]})
    assert "Nothing" not in section(best, "Each step left out").takeaway
    lowest = {("K 100, P 2", PRETRAINED): [0.45, 0.45], ("K 100, P 2", TUNED): [0.44, 0.45]}
    assert section(made_up(lowest), "Each step left out").takeaway.startswith("Nothing is worse when it is left out.")


def test_weak_labels_and_the_teacher_are_compared_at_equal_accuracy() -> None:
    title = "Weak labels or a teacher"
    # 56.5 % lies 3.5 of 10 points down from 18 % wrong to 36 % wrong.
    at = 0.18 + 0.18 * 0.35
    found = section(made_up(), title).takeaway
    assert f"the same with {100 * at:.1f} % wrong: mistakes at random cost less than the teacher's" in found
    worse = made_up({(WEAK[0], TUNED): [0.5], (WEAK[1], TUNED): [0.4]})
    assert "worse with any noise" in section(worse, title).takeaway
    better = made_up({(WEAK[0], TUNED): [0.7], (WEAK[1], TUNED): [0.6]})
    assert "better with any noise" in section(better, title).takeaway
    upside_down = made_up({(WEAK[0], TUNED): [0.5], (WEAK[1], TUNED): [0.6]})
    assert "better with some noise that was tried" in section(upside_down, title).takeaway


def test_repeated_mistakes_tell_a_distillation() -> None:
    title = "Why it is a distillation"
    found = section(made_up(), title).takeaway
    assert "on 80.0 % (classes) and 80.0 % (probabilities)" in found
    assert (
        "They repeat 50.0 % of the teacher's mistakes (classes); the network trained on D alone repeats 30.0 %: they learn the teacher"
        in found
    )
    results = made_up()
    for row in results.rows["networks"]:
        row["repeated_mistakes"] = 0.3
    assert "this does not show a distillation" in section(results, title).takeaway


def test_without_true_labels_of_u_nothing_is_said_of_wrong_ones() -> None:
    results = made_up(noise_tried=[])
    results.rows["sets"] = [{**row, "wrong": None} for row in results.rows["sets"] if "noise" not in row]
    page = STUDY.page(results)
    assert len(page.sections) == 6 + 1  # and what is missing
    per_class = page.sections[1]
    assert "wrong labels go" not in per_class.takeaway
    assert per_class.figure is not None
    assert len(per_class.figure.panels) == 1
    assert per_class.table is not None
    assert {row[4] for row in per_class.table.rows} == {"–"}
    render_html(page)

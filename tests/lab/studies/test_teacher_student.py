"""Teacher and student: arithmetic on made-up results, false claims, and a real run of the smallest size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chronograd.answer import Table
from chronograd.data.labels import read_labels
from chronograd.report.html import render_html
from chronograd.train.methods.teacher import Selection, select
from chronograd_lab.common.results import Results
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.written import ClaimError
from chronograd_lab.studies.teacher_student import study
from chronograd_lab.studies.teacher_student.study import ALONE, ECHO, PRETRAINED, SOFT, STUDY, TEACHER, TOGETHER, TUNED

PUBLISHED = Path(__file__).parents[3] / "docs" / "studies" / "teacher-student" / "results.json"
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
# Accuracies by seed for each arm and stage. The teacher's selection is K 100, P 2.
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
    """Return results with the accuracies above and some changes; students agree more with their teacher."""
    networks = []
    for (arm, stage), accuracies in {**ACCURACY, **(changed or {})}.items():
        is_taught = arm not in (ALONE, TEACHER, *WEAK)
        same = {"agreement": 0.8 if is_taught else 0.6, "repeated_mistakes": 0.5 if is_taught else 0.3}
        same |= {"seconds": 3.0, "user_s": 4.0, "system_s": 1.0}
        for seed, accuracy in enumerate(accuracies):
            networks.append({"arm": arm, "stage": stage, "seed": seed, "accuracy": accuracy, "updates": 600.0, **same})
    rows = {"networks": networks, "sets": SETS, "labelled": [{"images": 2000, "wrong": 0.12}], "pictures": []}
    return Results("teacher-student", "laptop", {**SETTINGS, **settings}, rows)


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
    assert two["labels"] - two["images"] == two["several"] > 0  # with P = 2, an image occurs once or twice
    assert max(two["per_class"]) == 80
    written = read_labels(tmp_path / "labels" / "K-80-P-2.npz", 1437, 10)
    assert np.bincount(written.labels, minlength=10).tolist() == two["per_class"]
    u_first = settings["unlabelled"]["skip"]
    positions = np.random.RandomState(0).permutation(1437)  # the fixed shuffle: D and U share no image
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
    assert html.count("is: ") >= study.NUM_PICTURES


# -- arithmetic --------------------------------------------------------------------------------------------


def test_composition_of_a_selection() -> None:
    kept = select(np.array([7, 8, 9]), np.array([[0.6, 0.4, 0.0], [0.45, 0.5, 0.05], [0.1, 0.2, 0.7]]), 2, 2)
    # class 0: 7 (0.6), 8 (0.45); class 1: 8 (0.5), 7 (0.4); class 2: 9 (0.7), as 9's second class is 1
    truth = {7: 0, 8: 0, 9: 2}
    found = study.composition(kept, 3, np.array([truth[int(s)] for s in kept.sample]))
    assert found == {"labels": 5, "images": 3, "several": 2, "per_class": [2, 2, 1], "wrong": 2 / 5}
    assert study.composition(kept, 3, None)["wrong"] is None
    assert study.evenly_two(kept) == [(8, [(1, 0.5), (0, 0.45)]), (7, [(0, 0.6), (1, 0.4)])]


def test_two_best_of_three_classes_are_shown() -> None:
    kept = Selection(np.array([5, 5, 5, 6]), np.array([0, 1, 2, 2]), np.array([0.2, 0.5, 0.3, 0.9]))
    assert study.evenly_two(kept) == [(5, [(1, 0.5), (2, 0.3)])]


def test_agreement_on_all_images_and_on_mistakes() -> None:
    own, teachers = np.array([0, 1, 2, 2]), np.array([0, 1, 1, 2])
    wrong = np.array([False, True, True, False])
    assert study.agreement(own, teachers, wrong) == {"agreement": 0.75, "repeated_mistakes": 0.5}
    assert study.agreement(own, teachers, np.zeros(4, bool))["repeated_mistakes"] is None


def test_pairs_of_k_and_p() -> None:
    assert study.tried(SETTINGS, "K") == [(10, 2), (100, 2), (1000, 2)]
    assert study.tried(SETTINGS, "P") == [(1000, 1), (1000, 2)]


@pytest.mark.parametrize("size", ["smoke", "laptop", "paper"])
def test_sizes_are_valid(size: str) -> None:
    """Every set has complete batches and jobs are valid. At laptop size, full sets have equal updates."""
    settings = STUDY.sizes[size]
    assert (settings["K_of_P_tried"], 1) in study.tried(settings, "P")
    for part, network in (("supervised", "teacher"), ("fine_tuning", "student")):
        study.job(settings, settings[network], settings["labelled"], settings[part])
    if size == "laptop":
        batch, updates = settings["pretraining"]["batch"], settings["pretraining"]["updates"]
        for k, _ in study.tried(settings, "K"):
            epochs = study.epochs_for(updates, 10 * k, batch)
            assert epochs * (10 * k // batch) == updates


# -- claims of the page ------------------------------------------------------------------------------------


def table_of(results: Results, title: str) -> Table:
    table = study.blocks(results)[title].table
    assert table is not None
    return table


def test_tables_and_values_of_made_up_results() -> None:
    results = made_up()
    steps = table_of(results, "The four steps")
    assert [row[1] for row in steps.rows] == ["50.50 ± 0.71 %", "58.00 %", "54.50 ± 0.71 %", "56.50 ± 0.71 %"]
    assert [row[3] for row in steps.rows] == ["76.4", "–", "–", "79.1 and 81.2"]
    values = study.values(results)
    assert {name: accuracy.mean for name, accuracy in values["by_set"].items()} == {
        "K_10_P_2": 0.48,
        "K_100_P_2": pytest.approx(0.565),
        "K_1000_P_2": 0.52,
        "K_1000_P_1": 0.55,
    }
    assert (values["sets"]["K_1000_P_1"]["smallest"], values["sets"]["K_1000_P_1"]["largest"]) == (400, 1000)
    assert {name: accuracy.mean for name, accuracy in values["weak"]["after"].items()} == {
        "noise_20": 0.60,
        "noise_40": 0.50,
    }
    assert {name: share.mean for name, share in values["agreement"].items()} == {
        "alone": pytest.approx(0.6),
        "classes": pytest.approx(0.8),
        "probabilities": pytest.approx(0.8),
    }
    assert {name: share.mean for name, share in values["repeated"].items()} == {
        "alone": pytest.approx(0.3),
        "classes": pytest.approx(0.5),
        "probabilities": pytest.approx(0.5),
    }
    assert values["cost"] == {"runs": 21, "training_s": 63.0, "processor_s": 105.0}
    together = next(row for row in table_of(results, "The selected images").rows if row[0] == TOGETHER)
    assert together[-2:] == ["10", "250"]
    left_out = table_of(made_up(is_balance_ablated=False), "Each step left out")
    assert [row[0] for row in left_out.rows][1:] == [
        "without fine-tuning",
        "without U: D alone",
        "fine-tuned on the teacher's labels of D",
    ]
    assert left_out.rows[2][3].startswith("−6.0 percentage points (")


@pytest.mark.parametrize(
    ("arm", "stage", "change", "sentence"),
    [
        ("K 2000, P 3", TUNED, -0.04, "The student gains over the same network"),
        (TEACHER, "", 0.01, "It reaches the accuracy of its teacher"),
        ("K 8000, P 3", TUNED, 0.06, "It is best to select 1,000 to 4,000 images per class"),
        ("K 4000, P 1", TUNED, 0.03, "Selecting an image for more than one class does not help"),
        ("weak labels, noise 25 %", TUNED, 0.03, "The teacher's labels are worth about as much"),
        (SOFT, PRETRAINED, -0.01, "Probabilities teach more than classes"),
        (TOGETHER, TUNED, 0.02, "Leaving out balance makes no significant difference"),
    ],
)
def test_different_accuracies_contradict_a_sentence(arm: str, stage: str, change: float, sentence: str) -> None:
    results = Results.load(PUBLISHED)
    for row in results.rows["networks"]:
        if (row["arm"], row["stage"]) == (arm, stage):
            row["accuracy"] += change
    with pytest.raises(ClaimError, match=sentence):
        STUDY.page(results)


def test_fewer_repeated_mistakes_contradict_distillation() -> None:
    results = Results.load(PUBLISHED)
    for row in results.rows["networks"]:
        row["repeated_mistakes"] = 0.3
    with pytest.raises(ClaimError, match="They also learn the teacher's mistakes"):
        STUDY.page(results)


def test_wrong_labels_need_true_labels_of_u() -> None:
    results = made_up(noise_tried=[])
    results.rows["sets"] = [{**row, "wrong": None} for row in results.rows["sets"] if "noise" not in row]
    blocks = study.blocks(results)
    assert len(blocks) == 6
    figure = blocks["How many images per class"].figure
    assert figure is not None
    assert len(figure.panels) == 1
    assert {row[4] for row in table_of(results, "How many images per class").rows} == {"–"}
    render_html(STUDY.plain(results))

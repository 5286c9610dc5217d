"""Small networks: a real run of the smoke size, and the claims of its page."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from chronograd.models.registry import build
from chronograd.report.html import render_html
from chronograd.rundir import RunDir
from chronograd_lab.common.results import Results
from chronograd_lab.common.rows import Spread, matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.written import ClaimError
from chronograd_lab.studies.small_networks import keras_input, study
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
    tried,
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
    of_causes = [HeadSetup.of(row) for row in results.rows["causes"]]
    assert sorted(of_causes, key=str) == sorted(causes(settings), key=str)
    assert [HeadSetup.of(row) for row in results.rows["efficientnet"]] == tried(settings)
    by_setting = dict(zip(of_causes, results.rows["causes"], strict=True))
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
    assert html.count('<p class="kicker">') == 9 + 1  # plus settings


# -- the design ----------------------------------------------------------------------------------------


def test_settings_differ_from_good_in_one_thing() -> None:
    assert HeadSetup("imagenet", "stored", 128, 1.0) == GOOD
    assert GOOD.wrongs(GOOD) == []
    wrong = one_wrong(LAPTOP)
    assert [len(s.wrongs(GOOD)) for s in wrong] == [1] * len(wrong)
    assert len(wrong) == 2 + 1 + 2 + 1 + 1  # ranges, statistics, sizes, rates, trunk


def test_every_setting_is_tried_once() -> None:
    all_causes = causes(LAPTOP)
    assert len(all_causes) == len(set(all_causes))
    assert len(grid(LAPTOP)) == 3 * 2 * 2
    # 3 ranges at 3 sizes; statistics, rate and trunk at 128; the rest of the grid; two untrained trunks
    assert len(all_causes) == 9 + 3 + (12 - 3) + 2
    assert grid(LAPTOP)[-1] == HeadSetup("raw", "batch", 32, 0.001)


def test_cause_becomes_a_job() -> None:
    job = cause_job(LAPTOP, HeadSetup("raw", "batch", 32, 0.001), "weights.tar")
    assert (job.data.normalisation, job.data.image_size) == ("raw", 32)
    assert (job.training.trainable, job.training.freeze_norm) == ("head", False)
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
                    "trained_params": 1000, "seconds": 9.0, "train_loss": 1.0, "restored": restored if stage == TUNED and not seed else None,
                }
                for seed in range(3)
            ]  # fmt: skip
    rows = {
        "runs": runs, "causes": found, "data": [{"train_images": 2000, "test_images": 2000, "classes": 10}],
        "efficientnet": [{**asdict(one), "accuracy": accuracy.get(one, 0.4)} for one in tried(LAPTOP)],
        "parameters": study.parameter_rows(),
    }  # fmt: skip
    return Results("small-networks", "laptop", LAPTOP, rows=rows)


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
    assert values["networks"]["MobileNet"]["end"].mean <= values["limit"] < values["networks"]["small_CNN"]["end"].mean
    assert values["networks"]["MobileNet"]["restored"] == pytest.approx(0.2)
    blocks = study.blocks(results)
    wrong, keras = blocks["One thing wrong at a time"].table, blocks["The usual mistakes with Keras"].table
    assert wrong is not None
    assert keras is not None
    assert {row[0]: row[3] for row in wrong.rows}["rate 0.001"] == "−60.0"
    assert keras.rows[0][2:] == ["10.00 ± 0.35 %", "−30.0"]
    assert keras.rows[3][2:] == ["10.00 ± 0.00 %", "−30.0"]
    assert keras.rows[1][2:] == ["40.00 %", "+0.0"]  # EfficientNet-Lite0, less its own setting without the mistake


def test_parameters_are_those_of_the_report() -> None:
    """The report prints what Keras counts: running statistics, the input layer and convolution biases are included."""
    rows = {row["network"]: row for row in study.parameter_rows()}
    assert {name: (row["total"], row["trained"]) for name, row in rows.items()} == {
        "small CNN": (1_626_442, 1_626_442), "EfficientNet-B0": (4_062_381, 12_810), "ResNet-50": (23_628_902, 41_190),
    }  # fmt: skip
    assert rows["ResNet-50"]["trained"] == 2048 * 20 + 20 + 20 * 10 + 10
    assert rows["EfficientNet-B0"]["trained"] == 1280 * 10 + 10
    table = study.blocks(made_up({}))["The report"].table
    assert table is not None
    assert [row[4:] for row in table.rows] == [["yes", "73.7 %"], ["yes", "10.0 %"], ["yes", "10.8 %"]]


def test_network_scales_its_input_as_keras_does() -> None:
    """A byte image and the same image in −1 … 1 give the same output; images of 0 … 1 are almost constant for the network."""
    network, plain = keras_input.efficientnet_lite0().eval(), keras_input.efficientnet_lite0().eval()
    plain.load_state_dict(network.state_dict())
    plain._forward_pre_hooks.clear()
    bytes_NCHW = torch.randint(0, 256, (2, 3, 32, 32)).float()
    with torch.no_grad():
        torch.testing.assert_close(network(bytes_NCHW), plain(bytes_NCHW / 127.5 - 1))
        twice = network(bytes_NCHW / 255)
        torch.testing.assert_close(twice, plain(torch.full_like(bytes_NCHW, -1.0)), atol=0.01, rtol=0.1)


def test_dropout_adds_no_parameters() -> None:
    """The network equals the small CNN in evaluation, and draws in training, after the pooling and before the last layer."""
    network, plain = keras_input.small_cnn_with_dropout(), build("small-cnn", num_classes=10)
    assert sum(p.numel() for p in network.parameters()) == study.REPORT["small CNN"]["total"]
    for ours, theirs in zip(network.parameters(), plain.parameters(), strict=True):
        theirs.data.copy_(ours.data)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(network.eval()(images), plain.eval()(images))
    network.train()
    assert not torch.equal(network(images), network(images))
    dropped = {number: one.p for number, one in enumerate(network) if isinstance(one, torch.nn.Dropout)}
    assert dropped == {5: 0.25, 9: 0.5}
    assert [type(network[number - 1]) for number in dropped] == [torch.nn.MaxPool2d, torch.nn.ReLU]


def test_networks_without_their_weights_are_declared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mobilenetV1X0.25_pretrain.tar").touch()
    monkeypatch.setenv("CHRONOGRAD_WEIGHTS", str(tmp_path))
    monkeypatch.setattr(
        "chronograd.models.pretrained.find_spec", lambda module: None
    )  # an installed package may have them
    starts, notes = study._starts(LAPTOP)
    assert list(starts) == [study.MOBILENET, "small CNN"]
    assert notes == [
        "EfficientNet-Lite0 with ImageNet weights was not run: its weights efficientnet-lite0-57934424.pth are not on this "
        "machine (`chronograd weights --list`)"
    ]
    results = made_up({})
    results.rows["efficientnet"].clear()
    assert "What makes a pretrained network work" not in study.blocks(results)


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


@pytest.mark.parametrize(
    ("wanted", "accuracy", "sentence"),
    [
        (
            {"normalisation": "unit", "image_size": 32, "rate": 1.0},
            0.3,
            "If images of 0 … 1 are given|We trained the related",
        ),
        (
            {"image_size": 32, "rate": 0.001, "normalisation": "raw"},
            0.3,
            "Two mistakes each lead to chance on EfficientNet",
        ),
        ({"image_size": 64}, 0.9, "Without them, the head reaches"),
    ],
)
def test_accuracies_of_efficientnet_contradict_a_sentence(
    wanted: dict[str, Any], accuracy: float, sentence: str
) -> None:
    results = Results.load(PUBLISHED)
    for row in matching(results.rows["efficientnet"], **wanted):
        row["accuracy"] = accuracy + 0.001 * row["seed"]
    with pytest.raises(ClaimError, match=sentence):
        STUDY.page(results)


def test_statistics_are_blamed_only_if_accuracy_recovers() -> None:
    results = Results.load(PUBLISHED)
    for row in results.rows["runs"]:
        row["restored"] = None if row["restored"] is None else 0.25
    with pytest.raises(ClaimError, match="statistics are the cause"):
        STUDY.page(results)

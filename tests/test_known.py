"""The table of published recipes: each row is available, agrees with its source, and the selection is right."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torchvision

from chronograd import ask, known
from chronograd.models import names

RESULTS = known._results()


def test_results_are_many_and_have_sources() -> None:
    assert len(RESULTS) >= 60
    assert len({network for one in RESULTS for network in one.networks}) >= 60
    for one in RESULTS:
        assert 0 < one.accuracy < 1
        assert one.epochs >= 1
        assert one.most_samples >= one.batch >= 1
        assert one.name
        assert one.tag in ("verified", "recalled")
        assert len(one.source) > 20
        assert one.date[:2] == "20"


def test_recipes_of_a_network_are_unique() -> None:
    many = Counter((one.name, one.data, network) for one in RESULTS for network in one.networks)
    assert max(many.values()) == 1


def test_torchvision_results_match_its_documentation() -> None:
    checked = [one for one in RESULTS if one.weights]
    assert len(checked) >= 50
    for one in checked:
        weights = torchvision.models.get_weight(one.weights)
        assert one.accuracy == pytest.approx(weights.meta["_metrics"]["ImageNet-1K"]["acc@1"] / 100)
        built = f"torchvision:{one.weights.partition('_Weights')[0].lower()}"
        assert built in one.networks


def test_every_result_names_existing_networks() -> None:
    for network in {network for one in RESULTS for network in one.networks}:
        names.check(network)


@pytest.mark.parametrize("data", ["imagenet", "cifar10", "cifar100"])
def test_job_of_a_result_reaches_it(data: str) -> None:
    for one in (one for one in RESULTS if one.data == data):
        for network in one.networks:
            job = ask.job_of(network, short={"data": data}, target=one.accuracy - 0.02)
            result = known.of_job(job)
            assert result is not None, (one.name, network)
            assert result.probability(one.accuracy - 0.02) >= 0.5
            assert result.cost <= one.cost


@pytest.mark.parametrize("target", [0.70, 0.755, 0.765, 0.772, 0.78, 0.784, 0.80, 0.83])
def test_least_work_to_reach_a_goal(target: float) -> None:
    """Work in epochs times pixels, computed here."""
    enough = [one for one in known.known("resnet50", "imagenet") if one.accuracy >= target]
    result = known.cheapest("resnet50", "imagenet", target)
    assert (result is None) == (not enough)
    if result is not None:
        work = [one.epochs * (one.image_size or 224) ** 2 for one in enough]
        assert result.epochs * (result.image_size or 224) ** 2 == min(work)


def test_default_recipe_fits_a_job() -> None:
    usual = known.usual("resnet50", "imagenet:/data")
    assert usual is not None
    assert (usual.name, usual.epochs, usual.beyond) == ("torchvision v1", 90, ())
    assert known.usual("resnet50", "cifar10") is None


def test_different_rule_of_the_source_is_reported() -> None:
    by_name = {one.name: one.optimizer for one in RESULTS}
    assert by_name["ResNet strikes back A2"] == "lamb"
    assert by_name["ConvNeXt"] == "adamw"
    assert by_name["torchvision v1"] == "sgd"
    for one in RESULTS:
        if one.optimizer != one.schedule.optimizer:
            assert one.optimizer.upper() in one.beyond


def test_batch_scales_the_learning_rate() -> None:
    one = known.known("torchvision:convnext_tiny", "imagenet")[0]
    fields = one.fields_at(one.batch // 4)
    assert fields["learning_rate"] == pytest.approx(one.schedule.learning_rate / 4)
    assert {**fields, "batch": 0, "learning_rate": 0} == {**one.fields, "batch": 0, "learning_rate": 0}


@pytest.mark.parametrize(
    ("network", "nearest"),
    [
        ("timm:resnet26", "torchvision:resnet34"),
        ("timm:convnext_nano", "torchvision:convnext_tiny"),
        ("torchvision:regnet_y_128gf", "torchvision:regnet_y_16gf"),
        ("timm:regnety_120", "torchvision:regnet_y_16gf"),
        ("torchvision:vit_h_14", "timm:deit3_large_patch16_224"),
        ("timm:swin_large_patch4_window7_224", "torchvision:swin_v2_b"),
        ("timm:efficientnet_b8", "torchvision:efficientnet_b7"),
        ("torchvision:densenet161", "torchvision:densenet169"),
    ],
)
def test_neighbours_are_of_the_family_by_nearest_size(network: str, nearest: str) -> None:
    found = known.neighbours(network, "imagenet")
    assert found[0].networks[0] == nearest
    assert all(network not in one.networks and one.data == "imagenet" for one in found)


def test_size_words_differ_by_a_factor_of_2() -> None:
    """A word is comparable with a number: base is 4 times tiny, as a depth of 71 is about 4 times one of 17."""
    tiny, base = (known._size(f"timm:convnext_{word}") for word in ("tiny", "base"))
    assert base - tiny == pytest.approx(math.log(4))
    deep, flat = (known._size(f"torchvision:resnet{depth}") for depth in (71, 17))
    assert deep - flat == pytest.approx(math.log(72 / 18))


def test_network_of_unknown_family_has_no_neighbours() -> None:
    assert known.neighbours("my_net.py:resnet_like", "imagenet") == []
    assert known.neighbours("torchvision:resnet18", "food101") == []
    assert known.family_of("timm:maxvit_tiny_tf_224") == "maxvit"
    assert known.family_of("torchvision:resnext50_32x4d") == "resnet"


def test_no_result_exceeds_the_best_known_one() -> None:
    for data in ("imagenet", "cifar10", "cifar100", "fashion-mnist", "mnist", "svhn"):
        plain, source = known.ceiling(f"{data}:/somewhere") or (math.nan, "")
        best, _ = known.ceiling(data, extra_data=True) or (math.nan, "")
        assert plain <= best < 1
        assert source.endswith("without extra data")
        assert max((one.accuracy for one in RESULTS if one.data == data), default=0.0) < plain
    assert known.ceiling("food101") is None

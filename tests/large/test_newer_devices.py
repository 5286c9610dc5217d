"""The same job on two nodes of each generation of modules, over the networks that the catalogue assumes."""

from __future__ import annotations

import pytest

from chronograd.hardware.catalog import device
from chronograd.large.asking import ask_large
from chronograd.large.prediction import LargePrediction

SHORT = {"fsdp": True, "sequence": 8192}
NAMED = "is the largest part of a step, over the usual network of"


def predicted(place: str, *changes: str) -> LargePrediction:
    return LargePrediction(ask_large("llama-3-8b", list(changes), SHORT, place).setting)


def two_nodes(name: str) -> LargePrediction:
    return predicted(f"{2 * device(name).node.devices_per_node}x{name}")


@pytest.mark.parametrize(
    ("newer", "older"),
    [("h100", "a100-80"), ("h200", "h100"), ("b200", "h200"), ("b300", "b200"), ("gb300", "gb200"), ("gb200", "h200"),
     ("mi300x", "mi250"), ("mi325x", "mi300x"), ("mi355x", "mi325x"), ("l4", "t4"), ("l40s", "a40")],
)  # fmt: skip
def test_two_nodes_of_a_newer_device_are_not_slower(newer: str, older: str) -> None:
    """16 B200 once trained Llama 3 8B at 5,048 tokens/s each, 8 of them at 17,550, and 16 H100 at 8,933."""
    now, before = (two_nodes(name).tokens_per_s for name in (newer, older))
    assert now >= before


def test_a_second_node_of_b200_costs_little() -> None:
    alone, both = (predicted(place).tokens_per_s for place in ("8xb200", "16xb200"))
    assert both > 1.8 * alone


def test_note_names_the_assumed_network_if_it_takes_most_time() -> None:
    slow = two_nodes("l40s").step
    waits = sum(one.exposed_s for one in slow.collectives if one.tier == "ethernet-100g")
    assert waits > max(slow.parts["forward"], slow.parts["backward"])
    (note,) = [note for note in slow.notes if NAMED in note]
    assert "l40s (ethernet-100g, 12.5 GB/s per node)" in note
    assert "cluster.link=NAME" in note


@pytest.mark.parametrize(
    ("place", "changes"), [("16xh100", ()), ("8xl40s", ()), ("16xl40s", ("cluster.link=ethernet-100g",))]
)
def test_no_note_on_a_fast_a_single_or_a_stated_network(place: str, changes: tuple[str, ...]) -> None:
    assert not [note for note in predicted(place, *changes).step.notes if NAMED in note]

"""A prediction names the network that it assumes between nodes, where this network decides the step time."""

from __future__ import annotations

import pytest
from tests.predict.test_cluster_prediction import TRACE, job

from chronograd.predict.prediction import predict

NAMED = "exchange between nodes is the largest part of a step"


def test_note_names_the_assumed_network() -> None:
    """AlexNet's 61 M parameters over 25 Gbit/s take longer than its forward and backward passes."""
    record = predict(TRACE, job(count=16))
    assert record.value("communication_exposed_s") > record.value("backward_s")
    (note,) = [note for note in record.notes if note.startswith(NAMED)]
    assert "v100 (ethernet-25g, 3.12 GB/s per node)" in note


@pytest.mark.parametrize(
    "cluster", [{"count": 8}, {"count": 16, "link": "ethernet-25g"}, {"count": 16, "device": "h100"}]
)
def test_one_node_a_stated_or_a_fast_network_has_no_note(cluster: dict[str, object]) -> None:
    record = predict(TRACE, job(**cluster))
    assert not [note for note in record.notes if note.startswith(NAMED)]

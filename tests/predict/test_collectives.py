"""Collectives in closed form, on one tier, on two, and on two groups of a node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chronograd.errors import InputError, NotFoundError
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Link
from chronograd.predict import collectives
from chronograd.predict.collectives import ALGORITHMS, ALIASES, ALL_REDUCES, Topology, all_reduce_s, bandwidths
from chronograd.predict.scaling import topology_of

# 10 and 1 GB/s, 1 and 10 µs.
NEAR = Link(name="near", title="", latency_s=1e-6, bandwidth_bytes_per_s=1e10)
FAR = Link(name="far", title="", latency_s=1e-5, bandwidth_bytes_per_s=1e9, per="node")
# 4 GB/s and 3 µs between two groups of four.
ACROSS = Link(name="across", title="", latency_s=3e-6, bandwidth_bytes_per_s=4e9)
QUADS = {"per_group": 4, "across": ACROSS}
S = 1e8


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8, 100])
def test_all_reduce_respects_the_bandwidth_bound(num_ranks: int) -> None:
    """t >= 2(n - 1)/n · S/B for any algorithm (nccl-tests PERFORMANCE.md)."""
    bound = 2 * (num_ranks - 1) / num_ranks * S / 1e9
    for algorithm in ALL_REDUCES.values():
        assert algorithm(S, num_ranks, 1e-6, 1e9) >= bound * (1 - 1e-12)
    assert collectives.ring(S, num_ranks, 0.0, 1e9) == pytest.approx(bound)


@pytest.mark.parametrize(
    ("algorithm", "expected_s"),
    [
        ("ring", 2 * 7 * 1e-6 + 2 * 7 / 8 * S / 1e10),
        ("tree", 2 * 3 * (1e-6 + S / 1e10)),
        ("halving_doubling", 2 * 3 * 1e-6 + 2 * 7 / 8 * S / 1e10),
        ("recursive_doubling", 3 * (1e-6 + S / 1e10)),
        ("reduce_to_one", 2 * 7 * (1e-6 + S / 1e10)),
        ("hierarchical", 2 * 7 * 1e-6 + 2 * 7 / 8 * S / 1e10),
    ],
)
def test_single_node_is_one_tier(algorithm: str, expected_s: float) -> None:
    assert all_reduce_s(algorithm, S, Topology(8, 8, NEAR, FAR)) == pytest.approx(expected_s, rel=1e-12)
    assert all_reduce_s(algorithm, S, Topology(1, 8, NEAR, FAR)) == 0.0


@pytest.mark.parametrize(
    ("algorithm", "expected_s"),
    [
        # 32 ranks, 8 a node, 4 nodes. The ring crosses a node's link once in each direction.
        ("ring", 2 * 31 * 1e-5 + 2 * 31 / 32 * S / 1e9),
        ("tree", 2 * 3 * (1e-6 + S / 1e10) + 2 * 2 * (1e-5 + S / 1e9)),
        # All eight ranks of a node send to another node simultaneously and share its link.
        ("halving_doubling", 6e-6 + 2 * 7 / 8 * S / 1e10 + 2 * 2 * 1e-5 + 2 * 3 / 4 * (S / 8) / (1e9 / 8)),
        ("recursive_doubling", 3 * (1e-6 + S / 1e10) + 2 * (1e-5 + S / (1e9 / 8))),
        # Seven ranks in the root's node and 24 in others, each sequentially over the root's link.
        ("reduce_to_one", 2 * 7 * (1e-6 + S / 1e10) + 2 * 24 * (1e-5 + S / 1e9)),
        # Reduce-scatter(S) in a node, all-reduce(S/8) between 4 nodes, all-gather(S) in a node.
        ("hierarchical", 2 * (7e-6 + 7 / 8 * S / 1e10) + 2 * 3 * 1e-5 + 2 * 3 / 4 * (S / 8) / (1e9 / 8)),
    ],
)
def test_two_tiers(algorithm: str, expected_s: float) -> None:
    assert all_reduce_s(algorithm, S, Topology(32, 8, NEAR, FAR)) == pytest.approx(expected_s, rel=1e-12)


@pytest.mark.parametrize(
    ("algorithm", "expected_s"),
    [
        # Eight ranks in two groups of four. The ring is as slow as the link that it crosses.
        ("ring", 2 * 7 * 3e-6 + 2 * 7 / 8 * S / 4e9),
        ("tree", 2 * 2 * (1e-6 + S / 1e10) + 2 * 1 * (3e-6 + S / 4e9)),
        ("halving_doubling", 2 * 2 * 1e-6 + 2 * 3 / 4 * S / 1e10 + 2 * 3e-6 + 2 * 1 / 2 * (S / 4) / 4e9),
        ("recursive_doubling", 2 * (1e-6 + S / 1e10) + 3e-6 + S / 4e9),
        # Three peers share the root's group, and four are across.
        ("reduce_to_one", 2 * 3 * (1e-6 + S / 1e10) + 2 * 4 * (3e-6 + S / 4e9)),
        ("hierarchical", 2 * (7 * 3e-6 + 7 / 8 * S / 4e9)),
    ],
)
def test_two_groups_of_a_node(algorithm: str, expected_s: float) -> None:
    assert all_reduce_s(algorithm, S, Topology(8, 8, NEAR, FAR, **QUADS)) == pytest.approx(expected_s, rel=1e-12)
    for alone in (2, 4):  # one group has only the near link
        whole = all_reduce_s(algorithm, S, Topology(alone, 8, NEAR, FAR))
        assert all_reduce_s(algorithm, S, Topology(alone, 8, NEAR, FAR, **QUADS)) == pytest.approx(whole, rel=1e-12)


def test_a_reduction_to_one_of_eight_k80s_by_hand() -> None:
    """ResNet-50's 94 MB over 15.75 GB/s to three peers of the root and over 8.65 GB/s to four."""
    size, alpha = 94e6, 5.7e-6
    topology = topology_of(catalog.device("k80-gk210"), 8)
    by_hand = 3 * 2 * (alpha + size / 15.75e9) + 4 * 2 * (alpha + size / 8.65e9)
    assert all_reduce_s("reduce_to_one", size, topology) == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize("groups", [{}, QUADS])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_equal_links_make_all_tiers_one(algorithm: str, groups: dict[str, Any]) -> None:
    """Groups that are joined by a link like the near one take the time of one group."""
    same = {**groups, "across": NEAR} if groups else {}
    flat = all_reduce_s(algorithm, S, Topology(8, 8, NEAR, FAR))
    assert all_reduce_s(algorithm, S, Topology(8, 8, NEAR, FAR, **same)) == pytest.approx(flat, rel=1e-12)


def test_link_per_device_is_not_shared() -> None:
    own = FAR.model_copy(update={"per": "device"})
    inside = 2 * (7e-6 + 7 / 8 * S / 1e10)
    expected = inside + 2 * 3 * 1e-5 + 2 * 3 / 4 * (S / 8) / 1e9
    assert all_reduce_s("hierarchical", S, Topology(32, 8, NEAR, own)) == pytest.approx(expected, rel=1e-12)


def test_one_device_per_node_is_one_tier() -> None:
    for algorithm, flat in ALL_REDUCES.items():
        across = all_reduce_s(algorithm, S, Topology(16, 1, NEAR, FAR))
        assert across == pytest.approx(flat(S, 16, FAR.latency_s, FAR.bandwidth_bytes_per_s), rel=1e-12)


def test_reduce_scatter_and_all_gather_form_a_ring() -> None:
    arguments = (S, 7, 1e-6, 1e9)
    halves = collectives.reduce_scatter(*arguments) + collectives.all_gather(*arguments)
    assert halves == pytest.approx(collectives.ring(*arguments))
    assert collectives.broadcast(*arguments) == pytest.approx(3 * (1e-6 + 0.1))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("groups", [{}, QUADS])
def test_arrays_match_scalars(algorithm: str, groups: dict[str, Any]) -> None:
    sizes, ranks = np.array([[1e3], [S]]), np.array([1, 2, 5, 8, 9, 64, 1000])
    table = all_reduce_s(algorithm, sizes, Topology(ranks, 8, NEAR, FAR, **groups))
    assert table.shape == (2, 7)
    one_by_one = [
        [all_reduce_s(algorithm, s, Topology(int(n), 8, NEAR, FAR, **groups)) for n in ranks] for s in sizes[:, 0]
    ]
    np.testing.assert_allclose(table, one_by_one, rtol=1e-12)
    assert isinstance(one_by_one[0][0], float)


def test_paleo_algorithm_names() -> None:
    topology = Topology(16, 8, NEAR, FAR)
    for alias, name in ALIASES.items():
        assert all_reduce_s(alias, S, topology) == all_reduce_s(name, S, topology)


def test_algorithm_and_bus_bandwidth() -> None:
    """The busbw of a ring without latency is the link bandwidth (nccl-tests PERFORMANCE.md)."""
    seconds = collectives.ring(S, 8, 0.0, 1e9)
    algorithm, bus = bandwidths("all_reduce", S, seconds, 8)
    assert bus == pytest.approx(1e9)
    assert algorithm == pytest.approx(1e9 / (2 * 7 / 8))


@pytest.mark.parametrize(
    ("collective", "factor"),
    [("all_reduce", 7 / 4), ("reduce_scatter", 7 / 8), ("all_gather", 7 / 8), ("all_to_all", 7 / 8), ("broadcast", 1), ("reduce", 1)],
)  # fmt: skip
def test_bus_bandwidth_of_every_collective(collective: str, factor: float) -> None:
    """Compare with the table of nccl-tests PERFORMANCE.md, for 8 ranks."""
    assert bandwidths(collective, 1e9, 1.0, 8) == pytest.approx((1e9, factor * 1e9))


def test_invalid_names_and_ranks() -> None:
    with pytest.raises(NotFoundError, match="halving_doubling"):
        all_reduce_s("halving_doublin", S, Topology(2, 8, NEAR, FAR))
    with pytest.raises(InputError, match="0 ranks"):
        collectives.tree(S, 0, 0.0, 1e9)
    with pytest.raises(NotFoundError):
        bandwidths("all_reduced", S, 1.0, 2)

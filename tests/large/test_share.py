"""Parameters of one rank: the same for memory and for time, with every tensor divided over the right ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.large.settings import plain_gpt, setting

from chronograd.configs.description import AttentionPart, ExpertsPart, FeedForwardPart, ProjectionPart
from chronograd.large.layouts import grids_of
from chronograd.large.setting import LargeSetting
from chronograd.large.share import shard_ranks, share_of, share_of_stage, trained
from chronograd.large.states import states_of
from chronograd.large.step import step_of
from chronograd.large.work import gradient_bytes, operators

D, KV, F = 4096, 1024, 14336  # of Llama 3 8B: width, keys and values, feed-forward size


def layer_of(one: LargeSetting) -> Any:
    return one.stages[0].layers[0]


def test_a_rank_has_its_share_of_each_tensor() -> None:
    """16 tensor-parallel ranks repeat the 8 key and value heads; all have the norms."""
    one = setting("llama-3-8b", ranks=16, batch=16, layout={"tensor": 16})
    assert share_of(one, layer_of(one)).plain == (2 * D * D + 3 * D * F) / 16 + 2 * D * KV / 8 + 2 * D


def test_a_rank_has_whole_biases_of_outputs_and_whole_positions() -> None:
    one = setting("gpt2", ranks=2, batch=2, layout={"tensor": 2}, length=1024)
    d, rows = 768, 50257
    layer = (12 * d * d + 3 * d + 4 * d) / 2 + d + d + 4 * d
    assert share_of(one, layer_of(one)).plain == layer
    assert share_of_stage(one, one.stages[0]).plain == 12 * layer + rows * d / 2 + 1024 * d + 2 * d


def test_only_tensors_with_an_entry_for_each_expert_are_spread() -> None:
    """Nemotron 3 projects into a latent space before its experts, on every rank."""
    one = setting("mixtral-8x7b", ranks=8, batch=8, layout={"tensor": 2, "expert": 4})
    parts = [ProjectionPart("experts.latent_in", outputs=64, kind="experts"), ExpertsPart("experts", 8, 2, 128)]
    share = share_of(one, parts)
    assert (share.plain, share.experts) == (64 * D + 8 * D, 3 * 8 * D * 128 / (2 * 4))


def test_time_and_memory_have_the_same_parameters() -> None:
    """The exchange of gradients has 4 bytes for each parameter whose gradient a rank stores, a tied head on its own stage as well."""
    layout = {"pipeline": 2, "tensor": 2}
    one = setting("gpt2-xl", ranks=8, batch=8, accumulation=4, layout=layout, length=1024)
    sizes = [4 * share_of_stage(one, stage).params for stage in one.stages]
    (found,) = (each for each in step_of(one).collectives if each.name == "all-reduce of gradients")
    assert found.bytes in sizes
    assert sizes == [states_of(one, stage).gradients for stage in one.stages]


@pytest.mark.parametrize(
    ("on", "matrices"),
    [
        ("query-value", [(D, D), (D, KV)]),
        ("attention", [(D, D), (D, KV), (D, KV), (D, D)]),
        ("all", [(D, D), (D, KV), (D, KV), (D, D), (D, F), (D, F), (F, D)]),
    ],
)
def test_adapters(on: str, matrices: list[tuple[int, int]]) -> None:
    one = setting("llama-3-8b", large={"adapter_rank": 16, "adapter_on": on})
    adapters = 32 * sum(16 * (i + o) for i, o in matrices)
    share = share_of_stage(one, one.stages[0])
    assert trained(one, share) == (adapters, 0)
    assert states_of(one, one.stages[0]).gradients == 4 * adapters


@pytest.mark.parametrize(("on", "outputs"), [("query-value", [D, KV]), ("attention", [D + 2 * KV, D])])
def test_work_of_adapters(on: str, outputs: list[int]) -> None:
    """Two products of LoRA per adapted matrix; queries, keys and values are one matrix if all have adapters."""
    one = setting("llama-3-8b", large={"adapter_rank": 16, "adapter_on": on})
    attention = next(part for part in layer_of(one) if isinstance(part, AttentionPart))
    forward = next(part for part in layer_of(one) if isinstance(part, FeedForwardPart))
    work = [each for each in operators(attention, one) if each.phase == "weights"]
    assert sum(each.flops for each in work) == sum(2 * 128 * 16 * (D + o) for o in outputs)
    assert not [each for each in operators(forward, one) if each.phase == "weights"]


def test_frozen_experts_have_no_adapters() -> None:
    """The matrices of all experts are one tensor, which LoRA leaves alone, in memory and in time."""
    one = setting("mixtral-8x7b", large={"adapter_rank": 16})
    d, kv = 4096, 1024
    assert share_of(one, layer_of(one)).adapters == 16 * ((d + d) + 2 * (d + kv) + (d + d))
    experts = next(part for part in layer_of(one) if part.name == "experts")
    assert not [each for each in operators(experts, one) if each.rows == 16 or each.depth == 16 or each.width == 16]


@pytest.mark.parametrize(
    ("layout", "training", "large", "expected"),
    [
        ({}, {}, {}, 4),
        ({}, {"param_dtype": "bf16"}, {}, 2),
        ({"tensor": 2}, {"param_dtype": "bf16"}, {}, 4),
        ({"pipeline": 2}, {"param_dtype": "bf16"}, {"gradient_dtype": "bf16"}, 2),
    ],
)
def test_bytes_of_a_gradient(
    layout: dict[str, int], training: dict[str, str], large: dict[str, str], expected: int
) -> None:
    """Megatron adds gradients up in fp32, also those of bf16 parameters; memory and exchange agree."""
    one = setting(plain_gpt(), ranks=2, batch=2, layout=layout, large=large, **training)
    assert gradient_bytes(one) == expected
    stage = one.stages[0]
    assert states_of(one, stage).gradients == expected * share_of_stage(one, stage).params


def test_experts_are_sharded_inside_the_shard_group() -> None:
    """64 ranks with groups of 16: 4 ranks of each group have the same one of 4 shares of the experts."""
    one = setting("mixtral-8x7b", ranks=64, batch=64, zero_stage=3, layout={"expert": 4, "shard_ranks": 16})
    assert shard_ranks(one) == (16, 4)
    grid = grids_of(setting("mixtral-8x7b", ranks=8, batch=8, zero_stage=3), {"expert": 4, "pipeline": 1})[0]
    ranks = [shard_ranks(grid.one(number)) for number in range(len(grid.degrees))]
    together = np.stack(np.broadcast_arrays(*shard_ranks(grid.of(np.arange(len(grid.degrees))))), axis=1)
    assert together.tolist() == [list(map(int, one)) for one in ranks]

"""Multiply-adds and cache of described transformers: closed forms, traces of the zoo, and properties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.configs.examples import packaged_data, packaged_model, per_family

from chronograd.configs.description import AttentionPart
from chronograd.configs.readers import describe
from chronograd.configs.work import SCORES, cached_numbers, macs_by_kind, pairs_of, params_by_kind
from chronograd.count.packaged import find
from chronograd.models import names

FAMILIES = per_family()
BERT_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}


@pytest.mark.parametrize(
    ("zoo", "name", "changes"),
    [
        ("gpt2-small", "gpt2", {}),
        ("llama-7b", "llama-2-7b", {}),
        ("opt-1.3b", "opt-6.7b", {"hidden_size": 2048, "num_hidden_layers": 24, "ffn_dim": 8192}),
        ("bert-large", "bert-base", BERT_LARGE),
        ("timm:vit_base_patch16_224", "vit-base", {}),
        ("timm:vit_large_patch16_224", "vit-large", {}),
    ],
)
def test_forward_work_equals_that_of_the_traced_network(zoo: str, name: str, changes: dict[str, Any]) -> None:
    """The traces count every operator of the same architecture, built by other code."""
    trace, sample = find(zoo, None, {}), names.known(zoo)
    assert trace is not None
    assert sample is not None
    model = packaged_model(name, **changes)
    length = sample.shape[0] if len(sample.shape) == 1 else model.length
    assert sum(macs_by_kind(model, length).values()) == trace.macs()


def test_work_of_llama_3_8b_by_hand() -> None:
    """A token takes the matrices of 32 layers and the head; a pair of positions takes 2 × 32 heads × 128."""
    found = macs_by_kind(packaged_model("llama-3-8b"), 8192)
    assert found["attention"] == 8192 * 32 * (4096 * 4096 * 2 + 2 * 4096 * 1024)
    assert found["feed-forward"] == 8192 * 32 * 3 * 4096 * 14_336
    assert found["head"] == 8192 * 4096 * 128_256
    assert found[SCORES] == 8192**2 * 32 * 2 * 4096
    causal = macs_by_kind(packaged_model("llama-3-8b"), 8192, causal=True)
    assert causal[SCORES] == 8192 * 8193 // 2 * 32 * 2 * 4096
    assert {k: v for k, v in causal.items() if k != SCORES} == {k: v for k, v in found.items() if k != SCORES}


def test_cache_of_known_models() -> None:
    """Grouped heads: 2 × 8 × 128 numbers in 32 layers; latent attention: 512 + 64 numbers in 61 layers (arXiv:2412.19437)."""
    assert cached_numbers(packaged_model("llama-3-8b"), 1) == 32 * 2 * 8 * 128
    assert cached_numbers(packaged_model("deepseek-v3"), 1000) == 1000 * 61 * (512 + 64)
    assert cached_numbers(packaged_model("bert-base"), 100) == 0
    # T5 stores keys and values of the decoder and of the encoder's output.
    assert cached_numbers(packaged_model("t5-base"), 10) == 10 * 12 * 2 * (2 * 768)
    # Half of Gemma 2's layers store at most 4096 positions.
    assert cached_numbers(packaged_model("gemma-2-9b"), 8192) == 21 * 2 * 8 * 256 * (8192 + 4096)


@given(length=st.integers(1, 60), window=st.none() | st.integers(1, 80))
def test_pairs_match_the_mask_written_out(length: int, window: int | None) -> None:
    part = AttentionPart("attention", 1, 1, 1, window=window)
    mask = [[j <= i and (window is None or i - j < window) for j in range(length)] for i in range(length)]
    assert pairs_of(part, length) == sum(map(sum, mask))


@pytest.mark.parametrize("family", FAMILIES)
def test_properties_of_every_family(family: str) -> None:
    model = describe(FAMILIES[family], family)
    total, active = params_by_kind(model), params_by_kind(model, active=True)
    assert all(active[kind] <= total[kind] for kind in total)
    assert (sum(active.values()) < sum(total.values())) == ("experts" in total)
    dense, causal = macs_by_kind(model, model.length), macs_by_kind(model, model.length, causal=True)
    assert all(0 < causal[kind] <= dense[kind] for kind in dense)
    assert all(isinstance(value, int) for value in (*dense.values(), *causal.values()))
    lengths = np.array([1.0, 7.0, float(model.length)])
    for is_causal in (False, True):
        for kind, values in macs_by_kind(model, lengths, causal=is_causal).items():
            numbers = [macs_by_kind(model, int(one), causal=is_causal)[kind] for one in lengths]
            assert np.array_equal(values, np.array(numbers, dtype=float)), kind
    assert np.array_equal(cached_numbers(model, lengths), [cached_numbers(model, int(one)) for one in lengths])


@pytest.mark.parametrize(
    "name", ["llama-3-8b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b", "qwen3-30b-a3b", "gpt-neox-20b"]
)
def test_short_sequences_take_two_flops_per_active_parameter(name: str) -> None:
    model = packaged_model(name)
    active = params_by_kind(model, active=True)
    flops = 2 * sum(macs_by_kind(model, 1).values())
    assert flops == pytest.approx(2 * (sum(active.values()) - active["embedding"]), rel=0.01)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "gpt-oss-20b", "qwen3-30b-a3b"])
def test_more_experts_add_only_the_work_of_the_router(name: str) -> None:
    data = packaged_data(name)
    key = next(key for key in ("num_local_experts", "n_routed_experts", "num_experts") if key in data)
    few, many = describe(data, name), describe(data, name, {key: 2 * data[key]})
    assert sum(params_by_kind(many).values()) > sum(params_by_kind(few).values())
    before, after = macs_by_kind(few, 100), macs_by_kind(many, 100)
    assert after.pop("router") == 2 * before.pop("router")
    assert after == before

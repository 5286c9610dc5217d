"""The work of single layers of large models, by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.large.settings import plain_gpt, setting

from chronograd.configs.description import (
    AttentionPart,
    FeedForwardPart,
    LatentAttentionPart,
    MambaPart,
    NormPart,
    Part,
    ScoringPart,
)
from chronograd.large.groups import key_value_numbers
from chronograd.large.rates import Rates
from chronograd.large.setting import LargeSetting
from chronograd.large.step import DEVICE_SIGMA, FITTED_SIGMA, step_of
from chronograd.large.work import operators
from chronograd.units import FLOPS_PER_MAC

TOKENS, BF16 = 128, 2
# 4 heads of 32 features with a state of 8 numbers, in 2 groups.
INNER, STATE, GROUPS = 4 * 32, 8, 2
MIXED = INNER + 2 * GROUPS * STATE


def test_mamba_moves_its_features_and_states() -> None:
    """The scan moves the inner features and the mixed ones, twice in backward; its norm passes over the inner ones."""
    part = MambaPart("mamba", 4, 32, GROUPS, STATE, kernel=4, bias=False, conv_bias=True)
    work = list(operators(part, setting(plain_gpt(), length=TOKENS)))
    scan = [one for one in work if one.family == "gemm" and one.rows == STATE]
    assert [one.sample_bytes for one in scan] == [factor * BF16 * TOKENS * (INNER + MIXED) for factor in (1, 2)]
    norm = [one for one in work if one.family == "layer_norm"]
    assert [one.sample_bytes for one in norm] == [factor * BF16 * TOKENS * INNER for factor in (2, 3)]
    convolution = [one for one in work if one.family == "elementwise"][:2]
    assert [one.sample_bytes for one in convolution] == [factor * BF16 * TOKENS * MIXED for factor in (2, 3)]


def test_replayed_graph_needs_no_host_work_per_operator() -> None:
    """A compiler's wrapper takes 0.3 of the time of eager code."""
    eager, compiled, replayed = (
        Rates.of(setting("llama-3-8b", length=4096, compile=how), 1.0).issue_s for how in (False, True, "cuda-graphs")
    )
    assert eager > 0
    assert compiled == pytest.approx(0.3 * eager)
    assert replayed == 0


LATENT = LatentAttentionPart("latent", 8, query_rank=24, kv_rank=48, plain_size=16, rotary_size=4, value_size=12)
GROUPED = AttentionPart("attention", 4, 2, 16, False, False)


@pytest.mark.parametrize(
    "part", [LATENT, GROUPED, FeedForwardPart("gated", 96, True, False)], ids=lambda part: part.name
)
def test_each_weight_of_a_matrix_is_multiplied_once_per_token(part: Part) -> None:
    """Backward multiplies it twice: for the gradients of the input and of the weight."""
    model = plain_gpt()
    weights = sum(math.prod(one.shape) for one in part.tensors(model.width) if len(one.shape) == 2)
    work = [one for one in operators(part, setting(model, length=TOKENS)) if one.family == "gemm" and not one.is_core]
    for phase in ("forward", "data", "weights"):
        assert sum(one.flops for one in work if one.phase == phase) == FLOPS_PER_MAC * TOKENS * weights


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize(("part", "numbers"), [(LATENT, 8 * (16 + 4) + 8 * 12), (GROUPED, 2 * 16 + 2 * 16)])
def test_keys_and_values_of_a_token_are_divided_among_ranks(part: ScoringPart, numbers: int, tensor: int) -> None:
    """A key of latent attention has its rotary part, too."""
    assert key_value_numbers(part, setting(plain_gpt(), ranks=tensor, layout={"tensor": tensor})) == numbers / tensor


def streamed(part: Part, model: str, **large: Any) -> list[float]:
    """Return the bytes that separate operators of a part move in forward and backward, before the residual."""
    of_model: LargeSetting = setting(model, length=TOKENS, large={"kernels": "eager", **large}, zero_stage=3)
    return [one.sample_bytes for one in operators(part, of_model) if one.family == "elementwise" and not one.is_core][
        :2
    ]


def test_separate_operators_move_their_bytes_per_number() -> None:
    """Counted in the code of Transformers: norm, rotary positions (heads of queries and keys), a gated unit, GPT-2's GELU."""
    llama, gpt2 = "llama-3.2-1b", "gpt2"
    norm = [bytes_ * TOKENS * 2048 for bytes_ in (34, 60)]
    assert streamed(NormPart("norm", False), llama) == norm
    assert streamed(GROUPED, llama) == [20 * TOKENS * (4 + 2) * 16] * 2
    gated = [bytes_ * TOKENS * 96 for bytes_ in (10, 18)]
    assert streamed(FeedForwardPart("gated", 96, True, False), llama) == gated
    gelu = [bytes_ * TOKENS * 96 for bytes_ in (76, 110)]
    assert streamed(FeedForwardPart("plain", 96, False, True), gpt2) == gelu


def test_adapter_moves_its_input_and_output() -> None:
    """LoRA casts its input twice, and scales and adds its output: 12 and 10 bytes per number, 18 and 4 in backward."""
    ahead, back = streamed(GROUPED, "llama-3.2-1b", adapter_rank=8, adapter_on="query-value")
    assert (ahead, back) == (TOKENS * (12 * 2048 + 10 * 4 * 16), TOKENS * (18 * 2048 + 4 * 4 * 16))


@pytest.mark.parametrize(
    ("device", "sigma"), [("a100-40", FITTED_SIGMA), ("a100-80", FITTED_SIGMA), ("h100", DEVICE_SIGMA)]
)
def test_chip_of_the_fitted_rates_is_the_surest(device: str, sigma: float) -> None:
    step = step_of(setting(plain_gpt(), device=device))
    assert step.shared_sigma_log == sigma < step.sigma_log
    assert FITTED_SIGMA < DEVICE_SIGMA

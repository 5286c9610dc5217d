"""The work of single layers of large models, by hand."""

from __future__ import annotations

import pytest
from tests.large.settings import plain_gpt, setting

from chronograd.configs.description import MambaPart
from chronograd.large.rates import Rates
from chronograd.large.work import operators

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


def test_replayed_graph_needs_no_host_work_per_operator() -> None:
    """A compiler's wrapper takes 0.3 of the time of eager code."""
    eager, compiled, replayed = (
        Rates.of(setting("llama-3-8b", length=4096, compile=how), 1.0).issue_s for how in (False, True, "cuda-graphs")
    )
    assert eager > 0
    assert compiled == pytest.approx(0.3 * eager)
    assert replayed == 0

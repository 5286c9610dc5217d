"""Fused and eager attention compute the same function."""

from __future__ import annotations

import pytest
import torch

from chronograd.errors import InputError
from chronograd.models import registry

TINY = {
    "gpt2-small": {"layers": 2, "width": 32, "heads": 2, "vocab": 50, "sequence": 16},
    "llama-7b": {"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "ffn": 64, "vocab": 50, "sequence": 16},
    "bert-large": {"layers": 2, "width": 32, "heads": 2, "ffn": 64, "vocab": 50, "sequence": 16},
    "opt-1.3b": {"layers": 2, "width": 32, "heads": 2, "ffn": 64, "vocab": 50, "sequence": 16},
}


@pytest.mark.parametrize("network", TINY)
def test_both_kinds_have_equal_outputs(network: str) -> None:
    torch.manual_seed(0)
    fused = registry.build(network, {**TINY[network], "attention": "fused"}).eval()
    eager = registry.build(network, {**TINY[network], "attention": "eager"}).eval()
    eager.load_state_dict(fused.state_dict())
    tokens = torch.randint(50, (3, 16))
    with torch.no_grad():
        torch.testing.assert_close(fused(tokens), eager(tokens), rtol=1e-4, atol=1e-5)


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(InputError, match="fused or eager"):
        registry.build("gpt2-small", {"attention": "flash"}, device="meta")

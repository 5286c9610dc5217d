"""Configurations for the tests: the packaged ones, and the measured collection of Hugging Face files if it is available."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from chronograd.configs.description import ModelDescription
from chronograd.configs.find import load, packaged
from chronograd.configs.readers import READERS, describe

MEASURED = os.environ.get("CHRONOGRAD_MEASURED")
FOLDER = Path(MEASURED or "/nowhere") / "large_models" / "configs"
needs_measured = pytest.mark.skipif(not MEASURED, reason="CHRONOGRAD_MEASURED names no folder of measured tables")
# Small files with keys that the packaged ones leave out: the decoders of BERT, biases, windows, dense layers among experts.
SPECIAL: dict[str, dict[str, Any]] = {
    "llama with biases": {"model_type": "llama", "vocab_size": 96, "hidden_size": 24, "num_hidden_layers": 2,
                          "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 40, "attention_bias": True,
                          "mlp_bias": True, "max_position_embeddings": 32, "head_dim": 8},
    "qwen3 late windows": {"model_type": "qwen3", "vocab_size": 96, "hidden_size": 24, "num_hidden_layers": 4,
                           "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 40, "head_dim": 8,
                           "max_position_embeddings": 32, "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1},
    "qwen3 dense among experts": {"model_type": "qwen3_moe", "vocab_size": 96, "hidden_size": 24, "num_hidden_layers": 6,
                                  "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 40, "head_dim": 8,
                                  "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2,
                                  "decoder_sparse_step": 2, "mlp_only_layers": [3], "max_position_embeddings": 32},
    "qwen2 shared experts": {"model_type": "qwen2_moe", "vocab_size": 96, "hidden_size": 24, "num_hidden_layers": 4,
                             "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 40,
                             "moe_intermediate_size": 16, "shared_expert_intermediate_size": 48, "num_experts": 4,
                             "num_experts_per_tok": 2, "decoder_sparse_step": 2, "max_position_embeddings": 32},
    "gpt2 narrow": {"model_type": "gpt2", "vocab_size": 96, "n_positions": 32, "n_embd": 24, "n_layer": 2, "n_head": 4,
                    "n_inner": 40},
    "bert with pooler": {"model_type": "bert", "vocab_size": 96, "hidden_size": 24, "num_hidden_layers": 2,
                         "num_attention_heads": 4, "intermediate_size": 40, "max_position_embeddings": 32,
                         "architectures": ["BertModel"]},
    "bert pretraining": {"model_type": "bert", "vocab_size": 96, "hidden_size": 24, "num_hidden_layers": 2,
                         "num_attention_heads": 4, "intermediate_size": 40, "max_position_embeddings": 32,
                         "architectures": ["BertForPreTraining"]},
    "t5 encoder": {"model_type": "t5", "vocab_size": 96, "d_model": 24, "num_layers": 2, "num_heads": 4, "d_kv": 8,
                   "d_ff": 40, "architectures": ["T5EncoderModel"]},
    "t5 unequal": {"model_type": "t5", "vocab_size": 96, "d_model": 24, "num_layers": 2, "num_decoder_layers": 3,
                   "num_heads": 4, "d_kv": 8, "d_ff": 40, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "vit pooler": {"model_type": "vit", "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
                   "intermediate_size": 40, "image_size": 32, "patch_size": 8, "architectures": ["ViTModel"]},
    "opt narrow embedding": {"model_type": "opt", "vocab_size": 96, "hidden_size": 24, "word_embed_proj_dim": 12,
                             "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 40, "max_position_embeddings": 32,
                             "do_layer_norm_before": False},
}  # fmt: skip


def packaged_data(name: str) -> dict[str, Any]:
    return load(packaged()[name])


def packaged_model(name: str, **changes: Any) -> ModelDescription:
    return describe(packaged_data(name), name, changes)


def per_family() -> dict[str, dict[str, Any]]:
    """Return one packaged configuration for each family, and the special ones."""
    found: dict[str, dict[str, Any]] = {}
    for name in packaged():
        found.setdefault(packaged_data(name)["model_type"], packaged_data(name))
    assert {*found} | {"mt5"} == {*READERS}
    return found | SPECIAL


def measured() -> dict[str, dict[str, Any]]:
    """Return the files of Hugging Face by name; none without the collection."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}

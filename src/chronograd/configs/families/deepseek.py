"""DeepSeek-V2 and V3, and Kimi K2: latent attention, dense first layers, then routed and shared experts.

DeepSeek-AI 2024, arXiv:2405.04434 and arXiv:2412.19437.
"""

from __future__ import annotations

from chronograd.configs.description import ExpertsPart, FeedForwardPart, LatentAttentionPart, ModelDescription, Part
from chronograd.configs.families.decoder import decoder, pre_norm
from chronograd.configs.keys import Keys


def read(keys: Keys) -> ModelDescription:
    width, layers, heads = keys.size("hidden_size"), keys.layers("num_hidden_layers"), keys.size("num_attention_heads")
    keys.skip("num_key_value_heads", "head_dim")  # latent attention has a key per query head, of the sizes below
    query_rank = keys.optional("q_lora_rank", 1536)
    attention = LatentAttentionPart(
        "attention", heads, query_rank, keys.size("kv_lora_rank"), keys.size("qk_nope_head_dim"),
        keys.size("qk_rope_head_dim"), keys.size("v_head_dim"), keys.flag("attention_bias"),
    )  # fmt: skip
    first = keys.size("first_k_dense_replace", least=0, most=layers)
    if keys.size("moe_layer_freq", 1) != 1:
        raise keys.fault(f"moe_layer_freq is {keys.data['moe_layer_freq']}, which is not counted", "set it to 1")
    dense = pre_norm(
        attention, FeedForwardPart("feed_forward", keys.size("intermediate_size"), bias=keys.flag("mlp_bias"))
    )
    sparse = pre_norm(attention, *_experts(keys))
    predictors = keys.size("num_nextn_predict_layers", 0, least=0, most=layers)
    notes = ["the layers that predict further tokens are not counted"] if predictors else []
    parts = [dense if place < first else sparse for place in range(layers)]
    return decoder(keys, width, parts, length=keys.size("max_position_embeddings"), notes=notes)


def _experts(keys: Keys) -> list[Part]:
    """Return the routed experts, and the shared ones as one feed-forward network."""
    experts, size = keys.size("n_routed_experts"), keys.size("moe_intermediate_size")
    parts: list[Part] = [ExpertsPart("experts", experts, keys.size("num_experts_per_tok", most=experts), size)]
    if shared := keys.size("n_shared_experts", 0, least=0):
        parts.append(FeedForwardPart("shared_experts", shared * size, kind="shared experts"))
    return parts

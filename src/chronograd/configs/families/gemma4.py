"""The text model of Gemma 4: other heads in layers with full attention, and experts next to a dense feed-forward network.

The smaller models, with inputs per layer and layers that share keys and values, are not counted.
"""

from __future__ import annotations

from chronograd.configs.description import AttentionPart, ExpertsPart, FeedForwardPart, ModelDescription, Part
from chronograd.configs.families.decoder import decoder, norm, pre_norm
from chronograd.configs.keys import Keys


def read(keys: Keys) -> ModelDescription:
    width, layers, (heads, kv_heads) = keys.size("hidden_size"), keys.layers("num_hidden_layers"), keys.heads()
    for name in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        if keys.size(name, 0, least=0):
            raise keys.fault(
                f"{name} is {keys.data[name]}, which is not counted", "set it to 0, or count another model"
            )
    keys.skip("vocab_size_per_layer_input", "use_double_wide_mlp")
    bias, window = keys.flag("attention_bias"), keys.optional(default=512)
    near = AttentionPart(
        "attention", heads, kv_heads, keys.size("head_dim", 256), bias, bias, window=window, head_norms=True
    )
    kv_heads = keys.size("num_global_key_value_heads", kv_heads)
    keys.share("num_attention_heads", heads, "num_global_key_value_heads", kv_heads)
    far = AttentionPart(
        "attention", heads, kv_heads, keys.size("global_head_dim", 512), bias, bias, head_norms=True,
        keys_are_values=keys.flag("attention_k_eq_v"),
    )  # fmt: skip
    usual = [
        "sliding_attention" if (place + 1) % 6 and place + 1 < layers else "full_attention" for place in range(layers)
    ]
    parts = [_layer(keys, near if kind == "sliding_attention" else far) for kind in keys.layer_types(layers, usual)]
    return decoder(keys, width, parts, length=keys.size("max_position_embeddings", 131_072), is_tied=True)


def _layer(keys: Keys, attention: AttentionPart) -> tuple[Part, ...]:
    before = pre_norm(attention, FeedForwardPart("feed_forward", keys.size("intermediate_size")))
    parts: tuple[Part, ...] = (*before, norm("attention_out"), norm("feed_forward_out"))
    experts = keys.size("num_experts", 0)
    active, size = keys.size("top_k_experts", 0, most=experts or 1), keys.size("moe_intermediate_size", 0)
    if not keys.flag("enable_moe_block"):
        return parts
    if not experts or not active or not size:
        raise keys.fault("enable_moe_block needs num_experts, top_k_experts and moe_intermediate_size", "add them")
    mixture = ExpertsPart("experts", experts, active, size, scales=True)
    return (*parts, norm("experts"), mixture, norm("experts_out"), norm("feed_forward_1_out"))

"""MPT: layer norms without biases, ALiBi, no biases, a tied embedding. MosaicML 2023, Press et al. 2021, arXiv:2108.12409."""

from __future__ import annotations

from chronograd.configs.description import AttentionPart, FeedForwardPart, ModelDescription
from chronograd.configs.families.decoder import decoder, pre_norm
from chronograd.configs.keys import Keys


def read(keys: Keys) -> ModelDescription:
    width, layers, heads = keys.size("d_model"), keys.layers("n_layers"), keys.size("n_heads")
    head_size = keys.share("d_model", width, "n_heads", heads)
    inside = keys.inner("attn_config")
    inside.word("attn_type", ("multihead_attention",), "multihead_attention")
    inside.is_off("qk_ln")
    has_alibi = inside.flag("alibi", True)
    inside.skip("alibi_bias_max", "attn_uses_sequence_id", "clip_qkv", "prefix_lm", "softmax_scale")
    inside.check_rest()
    if not keys.flag("no_bias", True):
        raise keys.fault("no_bias is false, which is not counted", "set it to true")
    keys.word("norm_type", ("low_precision_layernorm", "layernorm"), "low_precision_layernorm")
    keys.skip("embedding_fraction", "tokenizer_name")
    is_learned = keys.flag("learned_pos_emb", True) and not has_alibi
    attention = AttentionPart("attention", heads, heads, head_size)
    forward = FeedForwardPart("feed_forward", keys.size("expansion_ratio", 4, most=1000) * width, is_gated=False)
    length, positions = keys.size("max_seq_len", 2048), "learned" if is_learned else "ALiBi"
    return decoder(
        keys, width, [pre_norm(attention, forward)] * layers, length=length, positions=positions, is_tied=True
    )

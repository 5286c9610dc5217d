"""Nemotron-H and Nemotron 3: layers of state-space models, attention, feed-forward or experts. NVIDIA 2025, arXiv:2504.03624.

Each layer has one of these, after a norm. The state-space layers are those of Mamba 2 (arXiv:2405.21060).
"""

from __future__ import annotations

from chronograd.configs.description import (
    AttentionPart,
    ExpertsPart,
    FeedForwardPart,
    MambaPart,
    ModelDescription,
    Part,
    ProjectionPart,
)
from chronograd.configs.families.decoder import decoder, norm
from chronograd.configs.keys import MAX_LAYERS, Keys

KINDS = {
    "M": "mamba", "*": "attention", "-": "mlp", "E": "moe", "linear_attention": "mamba", "full_attention": "attention",
    **{name: name for name in ("mamba", "attention", "mlp", "moe")},
}  # fmt: skip


def read(keys: Keys) -> ModelDescription:
    width, (heads, kv_heads) = keys.size("hidden_size"), keys.heads()
    for name in ("attention_bias", "mamba_proj_bias"):
        keys.is_off(name)
    keys.skip("expand", "chunk_size", "residual_in_fp32", "rescale_prenorm_residual", "use_mamba_kernels", "time_step_rank",
              "moe_shared_expert_overlap", "mtp_hybrid_override_pattern", "mtp_layers_block_type", "mamba_hidden_act",
              "mamba_ssm_cache_dtype", *(f"time_step_{end}" for end in ("min", "max", "floor", "limit")))  # fmt: skip
    head_size = keys.size("head_dim", keys.size("attention_head_dim", 128))
    attention = AttentionPart("attention", heads, kv_heads, head_size, window=keys.optional())
    mamba = MambaPart(
        "mamba", keys.size("mamba_num_heads", 128), keys.size("mamba_head_dim", 64), keys.size("n_groups", 8),
        keys.size("ssm_state_size", 128), keys.size("conv_kernel", 4), keys.flag("use_bias"), keys.flag("use_conv_bias", True),
    )  # fmt: skip
    bias = keys.flag("mlp_bias")
    forward = FeedForwardPart("feed_forward", keys.size("intermediate_size", 21_504), is_gated=False, bias=bias)
    parts: dict[str, tuple[Part, ...]] = {"attention": (attention,), "mamba": (mamba,), "mlp": (forward,)}
    kinds = _layers(keys)
    if "moe" in kinds or keys.get("n_routed_experts") is not None:
        parts["moe"] = _experts(keys, bias)
    notes = ["state-space layers are counted as a recurrence, and their state, which has one size, is not in the cache"]
    if keys.size("num_nextn_predict_layers", 0, least=0):
        notes.append("the layers that predict further tokens are not counted")
    layers = [(norm("mixer"), *parts[kind]) for kind in kinds]
    return decoder(keys, width, layers, length=keys.size("max_position_embeddings"), positions="none", notes=notes)


def _layers(keys: Keys) -> list[str]:
    """Return the kind of each layer, from `layers_block_type` or the letters of `hybrid_override_pattern`."""
    pattern = keys.get("hybrid_override_pattern")
    given = keys.items("layers_block_type", str) or (list(pattern) if isinstance(pattern, str) else [])
    unknown = [word for word in given if word not in KINDS]
    if unknown or not 0 < len(given) <= MAX_LAYERS:
        raise keys.fault(
            f"layer {unknown[0]!r:.40} is not counted" if unknown else "hybrid_override_pattern is missing",
            f"name each layer: {', '.join(KINDS)}",
        )
    if keys.size("num_hidden_layers", len(given)) != len(given):
        raise keys.fault(
            f"num_hidden_layers {keys.data['num_hidden_layers']} differs from the {len(given)} layers of its pattern"
        )
    return [KINDS[word] for word in given]


def _experts(keys: Keys, bias: bool) -> tuple[Part, ...]:
    """Return the experts of a layer, which may work on a narrower vector, and the shared expert."""
    experts, latent = keys.size("n_routed_experts"), keys.size("moe_latent_size", 0) or None
    active, size = keys.size("num_experts_per_tok", most=experts), keys.size("moe_intermediate_size")
    keys.size("n_shared_experts", 1, most=1)
    shared = FeedForwardPart(
        "shared_experts",
        keys.size("moe_shared_expert_intermediate_size"),
        is_gated=False,
        bias=bias,
        kind="shared experts",
    )
    mixture = ExpertsPart("experts", experts, active, size, is_gated=False, inputs=latent)
    if latent is None:
        return (mixture, shared)
    into = ProjectionPart("experts.latent_in", outputs=latent, bias=bias, kind="experts")
    return (into, mixture, ProjectionPart("experts.latent_out", inputs=latent, bias=bias, kind="experts"), shared)

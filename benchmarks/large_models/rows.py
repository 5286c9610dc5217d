"""Settings of the rows of published runs of large models."""

from __future__ import annotations

import ast
import csv
import json
from pathlib import Path
from typing import Any

from chronograd import job as jobs
from chronograd.configs.description import (
    AttentionPart,
    ExpertsPart,
    FeedForwardPart,
    LatentAttentionPart,
    ModelDescription,
    NormPart,
    Part,
    ProjectionPart,
    TablePart,
    grouped,
)
from chronograd.configs.find import load, packaged
from chronograd.configs.readers import describe
from chronograd.large.setting import LargeSetting

Row = dict[str, str]
# Flags that change memory, for which a job has no field.
OTHER_OPTIONS = (
    "cross-entropy-loss-fusion",
    "microbatch-group-size-per-virtual-pipeline-stage",
    "defer-embedding-wgrad-compute",
    "optimizer",
    "num-distributed-optimizer-instances",
    "fp8-format",
    "recompute-modules",
    "fine-grained-activation-offloading",
)
OTHER_NETWORKS = (
    "use-megatron-fsdp",
    "use-custom-fsdp",
    "pipeline-model-parallel-layout",
    "mtp-num-layers",
    "hybrid-layer-pattern",
)


def read(measured: Path, name: str) -> list[Row]:
    with (measured / "large_models" / f"{name}.csv").open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def setting(model: ModelDescription, training: dict[str, Any], cluster: dict[str, Any], **large: Any) -> LargeSetting:
    """Return a setting with AdamW and bf16, on sequences of training["length"] tokens."""
    length = training.pop("length")
    return LargeSetting(
        model,
        jobs.from_dict(
            {
                "network": {"name": model.family},
                "data": {"name": jobs.TOKENS, "shape": [length], "classes": model.vocabulary},
                "training": {"recipe": "adamw", "precision": "bf16", **training},
                "cluster": cluster,
                "large": large,
            }
        ),
    )


def is_scored(row: Row) -> bool:
    """Return whether a row of Megatron is one of a GPT, BERT or mixture of experts whose number of ranks is known."""
    flags = json.loads(row["flags_json"])
    return (
        row["family"] in ("gpt", "moe", "mixtral", "bert")
        and bool(row["layers"] and row["dp"] and row["vocab_padded"] and row["mem_max_allocated_bytes"])
        and not row["copy_of"]
        and not any(name in flags for name in OTHER_NETWORKS)
    )


def has_other_options(row: Row) -> bool:
    """Return whether a row of Megatron has flags for which a job has no field."""
    return any(name in json.loads(row["flags_json"]) for name in OTHER_OPTIONS)


def of_megatron(row: Row, kernel: str) -> LargeSetting:
    """Return the setting of a row. `kernel` of attention: fused or plain."""
    flags, tensor, chunks = json.loads(row["flags_json"]), int(row["tp"]), int(row["virtual_stages"] or 1)
    data, batch = int(row["dp"]), int(row["global_batch"])
    layout: dict[str, Any] = {
        "tensor": tensor, "pipeline": int(row["pp"]), "context": int(row["cp"]), "expert": int(row["ep"]),
        "sequence": row["sp"] == "1", "chunks": chunks, "schedule": "interleaved" if chunks > 1 else "1f1b",
        "expert_tensor": int(row["etp"] or tensor),
    }  # fmt: skip
    ranks = data * layout["tensor"] * layout["pipeline"] * layout["context"]
    training = {
        "length": int(row["seq_length"]),
        "batch": batch,
        "accumulation": batch // int(row["micro_batch"]) // data,
        "zero_stage": int(row["dist_optimizer"]),
        "precision": "fp16" if row["precision"] == "fp16" else "bf16",
    }
    cluster = {"device": "h100" if row["device"] == "H100" else "a100-80", "count": ranks, "layout": layout}
    dropout = 0.0 if flags.get("hidden-dropout") == "0.0" else 0.1
    fusion = "fused" if flags.get("cross-entropy-fusion-impl") == "te" else "plain"
    return setting(
        _megatron(row, flags), training, cluster,
        attention=kernel, recompute=row["recompute"], dropout=dropout, loss=fusion, fp8=row["precision"] == "fp8",
    )  # fmt: skip


def _megatron(row: Row, flags: dict[str, Any]) -> ModelDescription:
    width, layers, ffn, vocabulary = (int(row[name]) for name in ("hidden", "layers", "ffn", "vocab_padded"))
    has_bias, norm_bias = "disable-bias-linear" not in flags, flags.get("normalization") != "RMSNorm"
    is_gated, experts = row["swiglu"] == "1", int(row["num_experts"] or 0)
    norms = NormPart("attention_norm", norm_bias), NormPart("feed_forward_norm", norm_bias)
    attention: Part = AttentionPart(
        "attention", int(row["heads"]), int(row["kv_heads"]), int(row["head_dim"]), has_bias, has_bias,
        head_norms="qk-layernorm" in flags,
    )  # fmt: skip
    if flags.get("multi-latent-attention"):
        names = ("q-lora-rank", "kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim")
        query, keys, plain, rotary, value = (int(flags[name]) for name in names)
        attention = LatentAttentionPart("attention", int(row["heads"]), query, keys, plain, rotary, value)
    dense = FeedForwardPart("feed_forward", ffn, is_gated, has_bias)
    mixture = ExpertsPart("experts", experts, int(row["moe_topk"] or 1), int(row["moe_ffn"] or ffn), is_gated, has_bias)
    shared = FeedForwardPart("shared", int(row["moe_shared_ffn"] or 0), is_gated, has_bias, "shared experts")
    frequency = flags.get("moe-layer-freq", "([1]*1000)" if experts else "([0]*1000)").strip("()")
    kinds = [kind for term in frequency.split("+") for kind in _repeated(term)][:layers]
    experts_of = (mixture, shared) if row["moe_shared_ffn"] else (mixture,)
    parts: list[tuple[Part, ...]] = [
        (norms[0], attention, norms[1], *(experts_of if kind else (dense,))) for kind in kinds
    ]
    first = [TablePart("embedding", vocabulary)]
    if flags.get("position-embedding-type", "learned_absolute") == "learned_absolute":
        first.append(TablePart("positions", int(flags.get("max-position-embeddings", row["seq_length"]))))
    head = ProjectionPart("head", outputs=vocabulary, is_tied=row["untied_embeddings"] != "1")
    last = (NormPart("last_norm", norm_bias), head)
    return ModelDescription(
        row["family"],
        width,
        vocabulary,
        int(row["seq_length"]),
        "learned",
        tuple(first),
        grouped("layers", parts),
        last,
    )


def _repeated(term: str) -> list[int]:
    """Return the list of `[1]*12`."""
    kinds, _, times = term.partition("*")
    return list(ast.literal_eval(kinds)) * int(times or 1)


def of_peft(row: Row) -> LargeSetting:
    """Return the setting of a row of text: an adapter on queries and values, in Transformers' operators."""
    name = "llama-3.2-3b"
    model = describe(load(packaged()[name]), name)
    dtype = "fp32" if row["use_amp"] == "1" else "bf16"
    training = {"length": int(row["max_seq_length"]), "batch": int(row["micro_batch"]), "param_dtype": dtype}
    on = "feed-forward" if "mlp" in row["run"] else "query-value"
    return setting(
        model, training, {"device": "l40s"}, kernels="eager", adapter_rank=int(row["rank"] or 1), adapter_on=on
    )

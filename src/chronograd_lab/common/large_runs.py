"""Published step times of large models, as settings. The README of the folder `large_models` explains the columns."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chronograd.configs.description import ModelDescription
from chronograd.configs.find import load, packaged
from chronograd.configs.readers import describe
from chronograd.job import from_dict
from chronograd.large.limits import check
from chronograd.large.setting import LargeSetting
from chronograd.large.software import Software

Columns = dict[str, str]
# Width, heads and layers in llm-foundry's public configurations, scripts/train/yamls/pretrain.
MPT = {
    "125m": (768, 12, 12), "350m": (1024, 16, 24), "760m": (1536, 12, 24), "1b": (2048, 16, 24), "3b": (2560, 20, 32),
    "7b": (4096, 32, 32), "13b": (5120, 40, 40), "30b": (7168, 56, 48), "70b": (8192, 64, 80),
}  # fmt: skip
BRIDGE = {
    "LLAMA3.1_405B": "llama-3.1-405b", "LLAMA3_70B": "llama-3-70b", "LLAMA3_8B": "llama-3-8b", "GPT OSS 120B": "gpt-oss-120b",
    "Qwen3_30B_a3B": "qwen3-30b-a3b", "Qwen3_235B_a22B": "qwen3-235b-a22b", "DeepSeekV3": "deepseek-v3",
    "Nemotron_3_Nano": "nemotron-3-nano-30b-a3b",
}  # fmt: skip
# SimuMax states that nothing overlaps.
NOTHING = Software(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
# Megatron of 2022 sends gradients after backward.
AFTER_BACKWARD = Software(gradients=0.0)
# vTrain's authors send gradients in buckets behind backward (Bang et al. 2024, arXiv:2312.12391). Their rows fit better if
# tensor-parallel exchange in backward is not hidden.
WAITING = Software(tensor_backward=0.0)
# llm-foundry of 2023 has the first FlashAttention, in Triton; the second one is twice as fast (Dao 2023, arXiv:2307.08691).
FIRST_FLASH = Software(attention=0.45)
# The recipes of Megatron-Bridge overlap tensor-parallel exchange and sends, and send tokens with DeepEP.
TUNED = Software(tensor_forward=1.0, pipeline=1.0, sends_once=True)


@dataclass(frozen=True)
class TimedRun:
    """A measured step: file, device, the setting, and a group of rows that differ in layout only."""

    file: str
    device: str
    name: str
    measured_s: float
    setting: LargeSetting
    software: Software
    group: str = ""


def _gpt(name: str, width: int, heads: int, layers: int, length: int) -> ModelDescription:
    keys = {"model_type": "gpt2", "n_embd": width, "n_head": heads, "n_layer": layers, "n_positions": length}
    return describe({**keys, "vocab_size": 51200, "architectures": ["GPT2LMHeadModel"]}, name)


def _packaged(name: str, **changes: Any) -> ModelDescription:
    return describe(load(packaged()[name]), name, changes)


def _setting(
    model: ModelDescription, name: str, sequence: int, training: dict[str, Any], cluster: dict[str, Any], **large: Any
) -> LargeSetting:
    job = from_dict(
        {
            "network": {"name": name},
            "data": {"name": "tokens", "shape": [sequence]},
            "training": {"optimizer": "adamw", **training},
            "cluster": cluster,
            "large": large,
            "backend": "ddp" if cluster["count"] > 1 else "single",
        }
    )
    setting = LargeSetting(model, job)
    check(setting)
    return setting


def _vtrain(row: Columns) -> Iterator[TimedRun]:
    n = {key: int(row[key]) for key in row if key not in ("group", "iteration_ms")}
    accumulation = n["global_batch"] // (n["dp"] * n["micro_batch"])
    layout = {"tensor": n["tp"], "pipeline": n["pp"], "sequence": False}
    setting = _setting(
        _gpt("gpt", n["hidden"], n["heads"], n["layers"], n["seq_length"]), "gpt", n["seq_length"],
        {"batch": n["global_batch"], "accumulation": accumulation, "precision": "fp16"},
        {"device": "a100-80", "count": n["gpus"], "layout": layout},
        attention="plain", dropout=0.1, gradient_dtype="fp32",
    )  # fmt: skip
    name = f"{row['group']} tp{n['tp']} pp{n['pp']} mb{n['micro_batch']}"
    yield TimedRun("vtrain", "a100-80", name, float(row["iteration_ms"]) / 1e3, setting, WAITING, row["group"])


def _llm_foundry(row: Columns) -> Iterator[TimedRun]:
    size, length, count = row["model"].removeprefix("mpt-"), int(row["seq_length"]), int(row["num_gpus"])
    width, heads, layers = MPT[size]
    keys = {"model_type": "mpt", "d_model": width, "n_heads": heads, "n_layers": layers, "max_seq_len": length}
    model = describe({**keys, "vocab_size": 50368, "attn_config": {"alibi": False}}, row["model"])
    is_pure = row["mp_mode"] == "PURE"
    device = {"a100_40gb": "a100-40", "a100_80gb": "a100-80"}[row["gpu"]]
    setting = _setting(
        model, row["model"], length,
        {
            "batch": int(row["global_batch"]), "accumulation": int(row["grad_accum"]), "precision": "bf16", "zero_stage": 3,
            "param_dtype": "bf16" if is_pure else "fp32",
            "activation_checkpointing": "blocks" if row["activation_checkpointing"] == "1" else "none",
        },
        {"device": device, "count": count, "link": "roce-1600g"},
        master=not is_pure,
    )  # fmt: skip
    seconds = int(row["global_batch"]) * length / float(row["tokens_per_s"])
    yield TimedRun("llm_foundry", device, f"{row['model']} {count} {length}", seconds, setting, FIRST_FLASH)


def _simumax(row: Columns) -> Iterator[TimedRun]:
    name = {"llama3_70b": "llama-3-70b", "llama3_405b": "llama-3.1-405b", "deepseekv3": "deepseek-v3"}[
        _prefix(row["case"])
    ]
    n = {
        key: int(row[key])
        for key in ("layers", "tp", "pp", "cp", "ep", "etp", "world_size", "zero", "seq_length", "sp")
    }
    dense = {"first_k_dense_replace": int(row["dense_layers"])} if row["model_type"] == "moe" else {}
    layout = {
        "tensor": n["tp"], "pipeline": n["pp"], "context": n["cp"], "expert": n["ep"], "expert_tensor": n["etp"], "sequence": n["sp"] == 1,
    }  # fmt: skip
    setting = _setting(
        _packaged(name, num_hidden_layers=n["layers"], **dense), name, n["seq_length"],
        {"batch": int(row["global_batch"]), "accumulation": int(row["num_microbatches"]), "precision": "bf16", "zero_stage": n["zero"]},
        {"device": "b200", "count": n["world_size"], "layout": layout},
        loss="fused", gradient_dtype="fp32",
    )  # fmt: skip
    yield TimedRun("simumax", "b200", row["case"], float(row["measured_step_ms"]) / 1e3, setting, NOTHING)


def _prefix(case: str) -> str:
    return "deepseekv3" if case.startswith("deepseekv3") else "_".join(case.split("_")[:2])


def _seqsel(row: Columns) -> Iterator[TimedRun]:
    n = {
        key: int(row[key])
        for key in (
            "num_gpus",
            "hidden",
            "heads",
            "layers",
            "seq_length",
            "tp",
            "pp",
            "dp",
            "micro_batch",
            "global_batch",
        )
    }
    chunks = int(row["virtual_stages"])
    layout = {
        "tensor": n["tp"],
        "pipeline": n["pp"],
        "chunks": chunks,
        "schedule": "interleaved" if chunks > 1 else "1f1b",
    }
    ways = (
        ("step_s_full_recompute", False, "full"),
        ("step_s_selective_recompute_and_sequence_parallel", True, "selective"),
    )
    for column, sequence, recompute in ways:
        setting = _setting(
            _gpt(row["model"], n["hidden"], n["heads"], n["layers"], n["seq_length"]), row["model"], n["seq_length"],
            {"batch": n["global_batch"], "accumulation": n["global_batch"] // (n["dp"] * n["micro_batch"]), "precision": "fp16"},
            {"device": "a100-80", "count": n["num_gpus"], "layout": {**layout, "sequence": sequence}, "link": "roce-1600g"},
            attention="plain", dropout=0.1, recompute=recompute, gradient_dtype="fp32",
        )  # fmt: skip
        yield TimedRun("seqsel", "a100-80", f"{row['model']} {recompute}", float(row[column]), setting, AFTER_BACKWARD)


def _bridge(row: Columns) -> Iterator[TimedRun]:
    name, count = BRIDGE[row["model"]], int(row["num_gpus"])
    model = _packaged(name)
    t, p, c, chunks, e = (int(row[key] or 1) for key in ("tp", "pp", "cp", "vp", "ep"))
    layout: dict[str, Any] = {"tensor": t, "pipeline": p, "context": c, "expert": e, "expert_tensor": 1}
    num_layers = sum(len(group.places) for group in model.groups)
    if num_layers % (p * chunks):  # the embedding and the loss count as layers, so the first and last stages have fewer
        each, rest = divmod(num_layers, p)
        layout["stage_layers"] = [each + (0 < i <= rest) for i in range(p)]
    elif p > 1 and chunks > 1:
        layout |= {"chunks": chunks, "schedule": "interleaved"}
    batch, micro = int(row["global_batch"]), int(row["micro_batch"])
    adapters = {"adapter_rank": 16} if row["task"] == "lora" else {}
    sharded = int(row["fsdp"] or 0) > 0
    setting = _setting(
        model, name, int(row["seq_length"]),
        {"batch": batch, "accumulation": batch // (count // (t * p * c) * micro), "precision": "bf16", "zero_stage": 3 if sharded else 1},
        {"device": "h100", "count": count, "layout": layout},
        fp8=row["precision"].startswith("FP8"), loss="fused", **adapters,
    )  # fmt: skip
    seconds = batch * int(row["seq_length"]) / (float(row["tokens_per_s_per_gpu"]) * count)
    label = f"{row['task']} {name} {count} {row['release']} {row['model_note']}"
    yield TimedRun("bridge", "h100", label, seconds, setting, TUNED, f"{row['task']} {name}")


READERS: dict[str, Callable[[Columns], Iterator[TimedRun]]] = {
    "vtrain_single.csv": _vtrain,
    "llm_foundry.csv": _llm_foundry,
    "simumax_b200.csv": _simumax,
    "seqsel_tab5.csv": _seqsel,
    "megatron_bridge.csv": _bridge,
}


def timed(folder: Path) -> list[TimedRun]:
    """Return the measured steps of all files in the folder `large_models`."""
    found: list[TimedRun] = []
    for name, reader in READERS.items():
        with (folder / name).open(encoding="utf-8", newline="") as file:
            found += [one for row in csv.DictReader(file) for one in reader(row)]
    return found


def measured_peaks(folder: Path) -> dict[str, tuple[str, float]]:
    """Return the measurement and the reserved bytes of each of SimuMax's runs. Runs of one layout share a measurement."""
    with (folder / "simumax_b200.csv").open(encoding="utf-8", newline="") as file:
        return {
            row["case"]: (row["memory_source_case"] or row["case"], 2**30 * float(row["measured_max_reserved_gib"]))
            for row in csv.DictReader(file)
        }

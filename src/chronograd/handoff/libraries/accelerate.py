"""Hugging Face Accelerate: the YAML file of `accelerate launch --config_file`, with FSDP 2 and its sizes of parallelism."""

from __future__ import annotations

from typing import Any

import numpy as np

from chronograd.files import dump_yaml
from chronograd.handoff.library import TrainingLibrary, nodes_of
from chronograd.large.layouts import Expressible, LayoutGrid
from chronograd.large.setting import LargeSetting

FILE = "accelerate.yaml"
# Words of Accelerate for a precision; tf32 is a switch of PyTorch.
_PRECISION = {"bf16": "bf16", "fp16": "fp16", "fp32": "no", "tf32": "no"}


def _expressible(grid: LayoutGrid) -> np.ndarray:
    """Return whether Accelerate can express each layout.

    Its tensor parallelism is that of Transformers, without sequence parallelism. It composes with FSDP only. Only FSDP
    recomputes layers by configuration, and whole ones.
    """
    t = grid.column("tensor")
    found = (grid.column("pipeline") == 1) & (grid.column("expert") == 1) & ((t == 1) | (not grid.sequence))
    if grid.zero_stage == 3:
        return np.asarray(found & (grid.recompute != "selective"))
    is_plain = (t == 1) & (grid.column("context") == 1)
    return np.asarray(found & is_plain & (grid.zero_stage == 0 and grid.recompute == "none"))


def _write(setting: LargeSetting) -> str:
    nodes, is_sharded = nodes_of(setting), setting.training.zero_stage == 3
    kind = "FSDP" if is_sharded else "MULTI_GPU" if setting.ranks > 1 else "NO"
    document: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "distributed_type": kind}
    if is_sharded:
        document["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": True,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": setting.options.recompute == "full",
            "fsdp_offload_params": False,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
        sizes = {"dp_replicate": 1, "dp_shard": setting.data, "tp": setting.layout.tensor, "cp": setting.layout.context}
        document["parallelism_config"] = {f"parallelism_config_{name}_size": size for name, size in sizes.items()}
    document |= {
        "mixed_precision": _PRECISION[setting.training.precision],
        "num_machines": nodes.count,
        "num_processes": setting.ranks,
        "same_network": False,
    }
    return dump_yaml(document)


def _start(setting: LargeSetting) -> str:
    # Of the configuration, version 1.15.0 ignores rdzv_backend.
    meeting = ' --rdzv_backend c10d --main_process_ip "$MASTER_ADDR" --main_process_port 29500'
    return f"accelerate launch --config_file {FILE}{meeting if nodes_of(setting).count > 1 else ''} train.py"


def _yours(setting: LargeSetting) -> list[str]:
    found = [
        f"micro-batches of {setting.micro_batch} × {setting.sequence:,} tokens",
        f"Accelerator(gradient_accumulation_steps={setting.micro_batches})",
    ]
    if setting.layout.tensor > 1:
        found.append('from_pretrained(..., tp_plan="auto", device_mesh=accelerator.torch_device_mesh["tp"])')
    if setting.layout.context > 1:
        found.append("the step within accelerator.maybe_context_parallel(...)")
    options = setting.options
    if options.adapter_rank:
        found.append(f"LoRA of rank {options.adapter_rank} on the model in {options.base_bits} bits")
    if options.optimizer_bits not in (None, 32):
        found.append(f"an optimizer with {options.optimizer_bits}-bit state")
    return found


LIBRARY = TrainingLibrary(
    title="Accelerate",
    version="1.15.0",
    source="options of `accelerate launch` and ParallelismConfig of version 1.15.0, 2026-11-27",
    expressible=Expressible(
        "Accelerate",
        "data parallelism, and ZeRO 3 with tensor parallelism (without sequence parallelism), context parallelism and full "
        "recomputation",
        _expressible,
    ),
    file=lambda setting: FILE,
    write=_write,
    refused=lambda setting: ["fp8"] if setting.options.fp8 else [],
    start=_start,
    yours=_yours,
    usual={"large.kernels=eager": "norms and loss of Transformers, without fused kernels (large.kernels)"},
)

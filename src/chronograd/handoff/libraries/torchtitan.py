"""torchtitan: a Python module with a function that returns its Trainer.Config, for `--module NAME --config layout`."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import numpy as np

from chronograd.handoff.library import TrainingLibrary, short_name, torchrun
from chronograd.large.layouts import Expressible, LayoutGrid
from chronograd.large.setting import LargeSetting

# Folder of torchtitan.models and flavour of a packaged model, and its tokenizer on Hugging Face. The flavours are those of
# version 0.3.0; a test compares the number of parameters. Llama 3 and 3.1 have the same tensors.
_MODELS = {
    "llama-3-8b": ("llama3", "8B", "Llama-3.1-8B"),
    "llama-3.1-8b": ("llama3", "8B", "Llama-3.1-8B"),
    "llama-3-70b": ("llama3", "70B", "Llama-3.1-70B"),
    "llama-3.1-70b": ("llama3", "70B", "Llama-3.1-70B"),
    "llama-3.3-70b": ("llama3", "70B", "Llama-3.1-70B"),
    "llama-3.1-405b": ("llama3", "405B", "Llama-3.1-405B"),
    "llama-3.2-1b": ("llama3", "1B", "Llama-3.2-1B"),
    "llama-3.2-3b": ("llama3", "3B", "Llama-3.2-3B"),
    "qwen3-0.6b": ("qwen3", "0.6B", "Qwen3-0.6B"),
    "qwen3-4b": ("qwen3", "4B", "Qwen3-4B"),
    "qwen3-8b": ("qwen3", "8B", "Qwen3-8B"),
    "qwen3-14b": ("qwen3", "14B", "Qwen3-14B"),
    "qwen3-32b": ("qwen3", "32B", "Qwen3-32B"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B", "Qwen3-30B-A3B"),
    "qwen3-235b-a22b": ("qwen3", "235B-A22B", "Qwen3-235B-A22B"),
    "deepseek-v3": ("deepseek_v3", "671B", "DeepSeek-V3"),
    "gpt-oss-20b": ("gpt_oss", "20b", "gpt-oss-20b"),
    "gpt-oss-120b": ("gpt_oss", "120b", "gpt-oss-120b"),
}
_LAYERS = """
def layers(first: int, end: int) -> list[str]:
    return [f"layers.{number}" for number in range(first, end)]

"""
_DTYPES = {"bf16": "bfloat16", "fp32": "float32", "tf32": "float32"}
_TEMPLATE = """\
from torchtitan.components.loss import {losses}
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
{recompute_import}from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.{folder} import model_registry
from torchtitan.trainer import Trainer

{layers}
def layout() -> Trainer.Config:
    model = model_registry("{flavour}")
    loss = CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model))
    return Trainer.Config(
        model_spec=model,
        hf_assets_path="./assets/hf/{assets}",
        loss={loss},
        optimizer=default_adamw(lr={rate!r}),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
        training=TrainingConfig(
{training}
        ),
        parallelism=ParallelismConfig(
{parallelism}
        ),
        activation_checkpoint={recompute},
    )
"""


def _expressible(grid: LayoutGrid) -> np.ndarray:
    """Return whether torchtitan can express each layout.

    It replicates parameters or shards them with gradients and optimizer state. Context and expert ranks are among those that
    shard. Tied embeddings cannot be in two stages.
    """
    t, p, e, model = grid.column("tensor"), grid.column("pipeline"), grid.column("expert"), grid.base.model
    if grid.recompute == "selective" or grid.zero_stage not in (0, 3):
        return np.zeros(len(t), dtype=bool)
    found = (grid.column("context") == 1) & (e == 1) if grid.zero_stage == 0 else np.ones(len(t), dtype=bool)
    if grid.base.has_experts:
        found &= (grid.column("expert_tensor") == 1) & ((e > 1) | (t == 1))
    if any(getattr(part, "is_tied", False) for part in model.last):
        found &= p == 1
    if grid.base.layout.schedule == "zero-bubble":
        found &= p == 1
    return np.asarray(found)


def _refused(setting: LargeSetting) -> list[str]:
    options, training = setting.options, setting.training
    wrong = {
        f"{setting.job.network.name} (it has Llama 3, Qwen3, DeepSeek-V3 and gpt-oss)": setting.job.network.name
        not in _MODELS,
        "keys of the config.json": bool(setting.job.network.options),
        f"precision {training.precision}": training.precision not in _DTYPES,
        f"optimizer {training.optimizer}": training.optimizer != "adamw",
        "LoRA": options.adapter_rank > 0,
        "fp8": options.fp8,
        f"{options.optimizer_bits}-bit optimizer state": options.optimizer_bits not in (None, 32),
        "plain attention": options.attention == "plain",
        "fused loss": options.loss == "fused",
        "dropout": options.dropout > 0,
        "hybrid sharding": setting.layout.shard_ranks is not None,
    }
    return [what for what, is_wrong in wrong.items() if is_wrong]


def _module(setting: LargeSetting) -> str:
    return f"{short_name(setting).replace('-', '_')}_torchtitan"


def _arguments(values: dict[str, object]) -> str:
    return "\n".join(f"            {name}={value}," for name, value in values.items())


def _parallelism(setting: LargeSetting) -> dict[str, object]:
    """Return the arguments of ParallelismConfig, as Python expressions."""
    layout, is_sharded = setting.layout, setting.training.zero_stage == 3
    found: dict[str, object] = {
        "data_parallel_replicate_degree": 1 if is_sharded else setting.data,
        "data_parallel_shard_degree": setting.data if is_sharded else 1,
        "fsdp_reshard_after_forward": '"always"' if is_sharded else '"default"',
        "tensor_parallel_degree": layout.tensor,
        "enable_sequence_parallel": layout.sequence,
        "context_parallel_degree": layout.context,
        "expert_parallel_degree": layout.expert,
        "pipeline_parallel_degree": layout.pipeline,
    }
    if layout.pipeline > 1:
        found |= {
            "pipeline_parallel_schedule": '"Interleaved1F1B"' if layout.chunks > 1 else '"1F1B"',
            "pipeline_parallel_microbatch_size": setting.micro_batch,
            "module_fqns_per_model_part": _stages(setting),
        }
    return found


def _stages(setting: LargeSetting) -> str:
    """Return the modules of each piece of the pipeline, in order."""
    sizes = [len(stage.chunks[chunk]) for chunk in range(setting.layout.chunks) for stage in setting.stages]
    pieces = [f"*layers({end - size}, {end})" for size, end in zip(sizes, accumulate(sizes), strict=True)]
    pieces[0], pieces[-1] = f'"tok_embeddings", {pieces[0]}', f'{pieces[-1]}, "norm", "lm_head"'
    lines = "".join(f"                [{piece}],\n" for piece in pieces)
    return f"[\n{lines}            ]"


def _write(setting: LargeSetting) -> str:
    folder, flavour, assets = _MODELS[setting.job.network.name]
    is_chunked, is_full = setting.options.loss == "chunked", setting.options.recompute == "full"
    # A pipeline divides the local batch into its micro-batches; without one, the trainer accumulates over several.
    local = setting.micro_batch * (setting.micro_batches if setting.layout.pipeline > 1 else 1)
    training: dict[str, object] = {
        "local_batch_size": local,
        "global_batch_size": setting.training.batch,
        "seq_len": setting.sequence,
        "mixed_precision_param": f'"{_DTYPES[setting.training.precision]}"',
        "disable_cuda_graphs": True,  # as in the prediction; pipelines and most exchanges of experts require it
    }
    return _TEMPLATE.format(
        layers=_LAYERS if setting.layout.pipeline > 1 else "",
        losses="ChunkedLossWrapper, CrossEntropyLoss" if is_chunked else "CrossEntropyLoss",
        recompute_import="from torchtitan.distributed.activation_checkpoint import FullAC\n" if is_full else "",
        folder=folder,
        flavour=flavour,
        assets=assets,
        loss="ChunkedLossWrapper.Config(loss_fn=loss)" if is_chunked else "loss",
        rate=setting.training.learning_rate,
        training=_arguments(training),
        parallelism=_arguments(_parallelism(setting)),
        recompute="FullAC.Config()" if is_full else "None",
    )


def _start(setting: LargeSetting) -> str:
    return torchrun(setting, f"-m torchtitan.train --module {_module(setting)} --config layout")


def _yours(setting: LargeSetting) -> list[str]:
    assets = Path("assets/hf") / _MODELS[setting.job.network.name][2]
    return [f"the tokenizer in {assets}", "--dataloader.dataset", "--training.steps", "the learning rate in the file"]


LIBRARY = TrainingLibrary(
    title="torchtitan",
    version="0.3.0",
    source="torchtitan/config/configs.py and trainer.py of version 0.3.0, 2026-11-27",
    expressible=Expressible(
        "torchtitan",
        "data, tensor and pipeline parallelism, ZeRO 3 also with context and expert parallelism, and full recomputation",
        _expressible,
    ),
    file=lambda setting: f"{_module(setting)}.py",
    write=_write,
    start=_start,
    yours=_yours,
    refused=_refused,
)

"""Megatron-LM: the arguments of a layout for `pretrain_gpt.py`, one per line; those of the model and its data are the user's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chronograd.handoff.library import TrainingLibrary, torchrun
from chronograd.large.layouts import Expressible, LayoutGrid
from chronograd.large.setting import LargeSetting, layers_of

FILE = "megatron.args"


def _expressible(grid: LayoutGrid) -> np.ndarray:
    """Return whether Megatron-LM can express each layout.

    Its stages have equal layers. Experts on several ranks need sequence parallelism if they also have tensor parallelism.
    """
    p, t, e = grid.column("pipeline"), grid.column("tensor"), grid.column("expert")
    is_equal = len(layers_of(grid.base.model)) % (p * grid.column("chunks")) == 0
    is_known = grid.zero_stage in (0, 1) and grid.base.layout.schedule != "zero-bubble"
    return np.asarray(is_known & is_equal & (grid.sequence | (e == 1) | (t == 1)))


def _refused(setting: LargeSetting) -> list[str]:
    options = setting.options
    wrong = {
        "LoRA": options.adapter_rank > 0,
        "fp8": options.fp8,
        f"{options.optimizer_bits}-bit optimizer state": options.optimizer_bits not in (None, 32),
        f"optimizer {setting.training.optimizer}": setting.training.optimizer != "adamw",
        "a chunked loss": options.loss == "chunked",
    }
    return [what for what, is_wrong in wrong.items() if is_wrong]


def _arguments(setting: LargeSetting) -> Iterator[str]:
    layout, options, precision = setting.layout, setting.options, setting.training.precision
    degrees = {
        "tensor-model-parallel-size": layout.tensor,
        "pipeline-model-parallel-size": layout.pipeline,
        "context-parallel-size": layout.context,
    }
    yield from (f"--{name} {ranks}" for name, ranks in degrees.items())
    if setting.has_experts:
        yield f"--expert-model-parallel-size {layout.expert}"
        yield f"--expert-tensor-parallel-size {setting.expert_tensor}"
    if layout.chunks > 1:
        yield f"--num-layers-per-virtual-pipeline-stage {len(setting.stages[0].chunks[0])}"
    yield f"--micro-batch-size {setting.micro_batch}"
    yield f"--global-batch-size {setting.training.batch}"
    yield f"--seq-length {setting.sequence}"
    if precision in ("bf16", "fp16"):
        yield f"--{precision}"
    if layout.tensor > 1 and layout.sequence:
        yield "--sequence-parallel"
    if setting.training.zero_stage:
        yield "--use-distributed-optimizer"
        yield "--overlap-param-gather"
    if setting.data * layout.context > 1:
        yield "--overlap-grad-reduce"
    if options.recompute != "none":
        yield f"--recompute-granularity {options.recompute}"
    if options.recompute == "full":
        yield "--recompute-method uniform"
        yield "--recompute-num-layers 1"
    if options.loss == "fused":
        yield "--cross-entropy-loss-fusion"


LIBRARY = TrainingLibrary(
    title="Megatron-LM",
    version="d98e8a64ddf3",
    source="the configurations of its regression tests at this commit, 2026-11-27; arguments of degrees, batch and length from memory",
    expressible=Expressible(
        "Megatron-LM", "ZeRO 0 and 1 with all parallelism and recomputation, and stages of equal layers", _expressible
    ),
    file=lambda setting: FILE,
    write=lambda setting: "".join(f"{line}\n" for line in _arguments(setting)),
    start=lambda setting: torchrun(setting, f'pretrain_gpt.py $(grep -v "^#" {FILE}) $MODEL_ARGS'),
    yours=lambda setting: ["MODEL_ARGS, with the arguments of the model, its data and its optimizer"],
    refused=_refused,
)

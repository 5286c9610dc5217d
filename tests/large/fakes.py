"""Predictions without physics, for the text of answers: memory falls with every remedy, and time has round parts."""

from __future__ import annotations

import pytest

from chronograd.large import answer, defaults, prediction
from chronograd.large.memory import MemoryPart, StageMemory
from chronograd.large.setting import LargeSetting
from chronograd.large.step import Collective, StepTime

GIB = 2.0**30


def memory(setting: LargeSetting) -> list[StageMemory]:
    shards = setting.ranks if setting.training.zero_stage == 3 else 1
    state = 120 * GIB / (shards * setting.layout.tensor * setting.layout.pipeline)
    logits = setting.micro_batch * (1 if setting.options.loss == "chunked" else 8) * GIB
    parts = (
        MemoryPart("optimizer state", state, "two fp32 numbers per parameter", "training.zero_stage=3"),
        MemoryPart(
            "logits",
            logits,
            f"logits of {setting.sequence:,} × {setting.model.vocabulary:,} in fp32",
            "large.loss=chunked",
        ),
        MemoryPart("inputs", GIB / 4, "tokens"),
    )
    sizes = [sum(part.bytes for part in parts) * (1 - 0.1 * stage) for stage in range(setting.layout.pipeline)]
    return [StageMemory(stage, parts, size, size * 1.05, size * 1.05 + GIB, 0.05) for stage, size in enumerate(sizes)]


def fit(memory: StageMemory, memory_bytes: float) -> float:
    return 1.0 if memory.used_bytes < memory_bytes else 0.0


def step(setting: LargeSetting) -> StepTime:
    work = 2.0 * setting.micro_batches * (1.3 if setting.options.recompute == "full" else 1.0)
    work *= 1.5 if setting.options.attention == "plain" else 1.0
    parts = {"forward": work, "backward": 2 * work, "exposed exchange": 0.5}
    exchange = Collective("all-gather of parameters", 64, 2.5e8, setting.ranks, "nvlink4", 1.5, 0.5, "forward")
    flops = 0.4 * setting.ranks * 989.4e12 * 6.0 * setting.micro_batches
    return StepTime(sum(parts.values()), parts, (exchange,), flops, 1.1 * flops, 0.1, ("the fake has no physics",))


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (defaults, prediction):
        monkeypatch.setattr(module, "memory_of", memory)
        monkeypatch.setattr(module, "probability_of_fit", fit)
    monkeypatch.setattr(prediction, "step_of", step)
    monkeypatch.setattr(answer, "probability_of_fit", fit)

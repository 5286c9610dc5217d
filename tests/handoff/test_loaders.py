"""The loaders of Accelerate and torchtitan read the layouts that were written for them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from chronograd.configs.work import params_by_kind
from chronograd.handoff.libraries.torchtitan import _MODELS
from chronograd.handoff.library import TrainingLibrary, library
from chronograd.large.layout_asking import ask_layouts
from chronograd.large.layouts import grids_of
from chronograd.large.setting import LargeSetting

pytestmark = pytest.mark.handoff
RANKS = 16
LOADERS = Path(__file__).parent


def load(name: str, folder: Path, words: Sequence[str]) -> list[dict[str, Any]]:
    """Return what a library's own loader makes of files."""
    command = [sys.executable, "-P", "-W", "ignore", str(LOADERS / f"load_{name}.py"), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def layouts(of: TrainingLibrary, model: str, number: int) -> list[LargeSetting]:
    """Return layouts of a model that a library can express, drawn at random, one from each grid in turn."""
    asked = ask_layouts(model, [], {"batch": 64, "sequence": 4096}, f"{RANKS}xh100")
    grids, random = grids_of(asked.setting, asked.fixed, of.expressible), Random(0)
    chosen = [grids[place % len(grids)] for place in range(number)]
    return [grid.one(random.randrange(len(grid.degrees))) for grid in chosen]


def test_accelerate_reads_its_configurations(tmp_path: Path) -> None:
    accelerate = library("accelerate")
    settings = [*layouts(accelerate, "llama-3-8b", 24), *layouts(accelerate, "mixtral-8x7b", 8)]
    for number, setting in enumerate(settings):
        (tmp_path / f"{number}.yaml").write_text(accelerate.write(setting))
    found = load("accelerate", tmp_path, [f"{number}.yaml" for number in range(len(settings))])
    assert {one["kind"] for one in found} == {"FSDP", "MULTI_GPU"}
    assert max(one["sizes"]["tp"] * one["sizes"]["cp"] for one in found if "sizes" in one) > 1
    for setting, one in zip(settings, found, strict=True):
        assert (one["nodes"], one["ranks"], one["per_node"], one["precision"]) == (2, RANKS, "8", "bf16")
        assert one["meeting"] == ["c10d", "10.0.0.1:29500"]
        if setting.training.zero_stage == 0:
            assert one["kind"] == "MULTI_GPU"
            continue
        assert one["fsdp"] == {"version": 2, "reshard": True, "recompute": setting.options.recompute == "full"}
        degrees = {"dp_shard": setting.data, "tp": setting.layout.tensor, "cp": setting.layout.context}
        assert one["sizes"] == {"dp_replicate": 1, "sp": 1, **degrees}


def test_torchtitan_reads_its_configurations(tmp_path: Path) -> None:
    torchtitan = library("torchtitan")
    settings = [layouts(torchtitan, name, 1)[0] for name in sorted(_MODELS)]
    for name in ("llama-3-8b", "qwen3-30b-a3b", "deepseek-v3"):
        settings += layouts(torchtitan, name, 8)
    for number, setting in enumerate(settings):
        (tmp_path / f"layout_{number}.py").write_text(torchtitan.write(setting))
    found = load("torchtitan", tmp_path, [str(RANKS), *(f"layout_{number}" for number in range(len(settings)))])
    for setting, one in zip(settings, found, strict=True):
        layout, is_sharded = setting.layout, setting.training.zero_stage == 3
        assert one["params"] == sum(params_by_kind(setting.model).values()), setting.job.network.name
        assert one["sizes"] == {
            "dp_replicate": 1 if is_sharded else setting.data,
            "dp_shard": setting.data if is_sharded else 1,
            "cp": layout.context,
            "tp": layout.tensor,
            "pp": layout.pipeline,
            "ep": layout.expert,
        }
        assert one["recomputes"] == (setting.options.recompute == "full")
        local = setting.micro_batch * (setting.micro_batches if layout.pipeline > 1 else 1)
        assert one["batch"] == [local, 64, 4096]
        if layout.pipeline > 1:
            check_pipeline(setting, one)
    assert {one["schedule"] for one in found} == {"1F1B", "Interleaved1F1B"}


def check_pipeline(setting: LargeSetting, loaded: dict[str, Any]) -> None:
    """Check the micro-batches and the pieces of a pipeline, whose modules are those of the model."""
    layout = setting.layout
    assert loaded["micro_batch"] == setting.micro_batch
    assert loaded["schedule"] == ("Interleaved1F1B" if layout.chunks > 1 else "1F1B")
    assert len(loaded["pieces"]) == layout.pipeline * layout.chunks
    layers = sum(len(stage.layers) for stage in setting.stages)
    modules = ["tok_embeddings", *(f"layers.{layer}" for layer in range(layers)), "norm", "lm_head"]
    assert [name for piece in loaded["pieces"] for name in piece] == modules
    assert {name.partition(".")[0] for name in modules} == set(loaded["modules"])

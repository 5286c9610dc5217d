"""`plan --layouts --write`: the fastest layout that a library can express, and the files that start it."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.large.settings import setting

import chronograd
from chronograd.cli.main import main
from chronograd.errors import InputError
from chronograd.handoff.answer import HandedOff
from chronograd.handoff.library import library, names, short_name, starter
from chronograd.hardware import catalog
from chronograd.large.asking import with_changes
from chronograd.large.layouts import grids_of, used_bytes
from chronograd.large.memory import SIGMA_LOG, memory_of
from chronograd.large.search import FIT
from chronograd.large.setting import LargeSetting
from chronograd.large.step import step_of
from chronograd.large.timing import StepTimer
from chronograd.record import normal_quantile

SETTING: dict[str, Any] = {"on": "16xh100", "batch": 64, "sequence": 4096, "layouts": True}


def handed(model: str = "llama-3-8b", **options: Any) -> HandedOff:
    result: HandedOff = chronograd.plan(model, **{**SETTING, **options}).result
    return result


def large(**changes: Any) -> LargeSetting:
    return setting("llama-3-8b", **{"ranks": 16, "batch": 64, "length": 4096, **changes})


@pytest.mark.parametrize("name", names("libraries"))
def test_the_layout_is_the_fastest_that_the_library_expresses(name: str) -> None:
    result, of = handed(write=name), library(name)
    grids = grids_of(result.search.best.setting, {}, of.expressible)
    assert result.search.legal == sum(len(grid.degrees) for grid in grids)
    room = catalog.device("h100").usable_bytes * math.exp(-normal_quantile(FIT) * SIGMA_LOG)
    timer = StepTimer(result.search.best.setting)
    small = [(grid, used_bytes(grid) <= room) for grid in grids]
    fastest = min(float(timer.seconds(grid)[fits].min()) for grid, fits in small if fits.any())
    assert result.search.best.step_s == pytest.approx(fastest)
    assert result.search.best.step_s == pytest.approx(step_of(result.search.best.setting).step_s)


def test_libraries_express_different_layouts() -> None:
    base = large()
    of = {name: grids_of(base, {}, library(name).expressible) for name in names("libraries")}
    degrees = {name: np.concatenate([grid.column("pipeline") for grid in grids]).max() for name, grids in of.items()}
    assert degrees == {"accelerate": 1, "torchtitan": 16, "megatron": 16}
    stages = {name: {grid.zero_stage for grid in grids} for name, grids in of.items()}
    assert stages == {"accelerate": {0, 3}, "torchtitan": {0, 3}, "megatron": {0, 1}}
    recomputed = {(grid.zero_stage, grid.recompute) for grid in of["accelerate"]}
    assert recomputed == {
        (0, "none"),
        (3, "none"),
        (3, "full"),
    }  # only FSDP recomputes by configuration, and whole layers
    assert all(grid.sequence or (grid.column("tensor") > 1).all() for grid in of["accelerate"])
    tied = grids_of(setting("llama-3.2-1b", ranks=16, batch=64), {}, library("torchtitan").expressible)
    assert max(grid.column("pipeline").max() for grid in tied) == 1


def test_accelerate_has_the_kernels_of_transformers() -> None:
    eager, fused = handed(write="accelerate"), handed(write="accelerate", overrides=("large.kernels=fused",))
    assert eager.search.best.setting.options.kernels == "eager"
    assert any("large.kernels" in text for text in eager.assumed)
    best = eager.search.best
    same = memory_of(with_changes(best.setting, ["large.kernels=fused"]))
    assert max(stage.used_bytes for stage in same) < best.used_bytes
    assert not any(text.startswith("norms and loss of Transformers") for text in fused.assumed)


def test_accelerate_states_the_sizes() -> None:
    layout = {"tensor": 2, "context": 2, "sequence": False}
    one = large(layout=layout, zero_stage=3, large={"recompute": "full"}, accumulation=8)
    document = yaml.safe_load(library("accelerate").write(one))
    assert document["parallelism_config"] == {
        "parallelism_config_dp_replicate_size": 1,
        "parallelism_config_dp_shard_size": 4,
        "parallelism_config_tp_size": 2,
        "parallelism_config_cp_size": 2,
    }
    assert (document["num_machines"], document["num_processes"], document["mixed_precision"]) == (2, 16, "bf16")
    assert document["fsdp_config"]["fsdp_activation_checkpointing"]
    assert library("accelerate").yours(one)[:2] == [
        "micro-batches of 2 × 4,096 tokens",
        "Accelerator(gradient_accumulation_steps=8)",
    ]


def test_megatron_states_the_degrees() -> None:
    layout = {"tensor": 2, "pipeline": 2, "chunks": 4, "schedule": "interleaved"}
    one = large(layout=layout, zero_stage=1, large={"recompute": "full"}, accumulation=8)
    assert library("megatron").write(one).splitlines() == [
        "--tensor-model-parallel-size 2",
        "--pipeline-model-parallel-size 2",
        "--context-parallel-size 1",
        "--num-layers-per-virtual-pipeline-stage 4",
        "--micro-batch-size 2",
        "--global-batch-size 64",
        "--seq-length 4096",
        "--bf16",
        "--sequence-parallel",
        "--use-distributed-optimizer",
        "--overlap-param-gather",
        "--overlap-grad-reduce",
        "--recompute-granularity full",
        "--recompute-method uniform",
        "--recompute-num-layers 1",
    ]


def test_torchtitan_names_the_modules_of_each_stage() -> None:
    layout = {"pipeline": 4, "stage_layers": (9, 8, 8, 7)}
    job = large(layout=layout, accumulation=4).job.model_dump(mode="json")
    job["network"]["name"] = "llama-3-8b"
    one = LargeSetting(large().model, chronograd.job.from_dict(job, "the job"))
    text = library("torchtitan").write(one)
    scope: dict[str, Any] = {}
    start = text.index("def layers")
    exec(text[start : text.index("\n\n\n", start)], scope)
    pieces = eval(text.partition("module_fqns_per_model_part=")[2].partition(",\n        ),")[0], scope)
    assert [len(piece) for piece in pieces] == [10, 8, 8, 9]
    assert pieces[0][:2] == ["tok_embeddings", "layers.0"]
    assert pieces[3] == [*(f"layers.{number}" for number in range(25, 32)), "norm", "lm_head"]
    assert "local_batch_size=16,\n            global_batch_size=64," in text


@pytest.mark.parametrize("name", names("libraries"))
@pytest.mark.parametrize("ranks", [8, 16])
def test_starters_run_the_line_on_each_node(name: str, ranks: int, tmp_path: Path) -> None:
    job = large(ranks=ranks).job.model_dump(mode="json")
    job["network"]["name"] = "llama-3-8b"
    one = LargeSetting(large().model, chronograd.job.from_dict(job, "the job"))
    line = library(name).start(one)
    assert ("$MASTER_ADDR" in line) == (ranks > 8)
    for way in ("torchrun", "slurm"):
        script = starter(way).write(one, line)
        assert line in script
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    assert f"#SBATCH --nodes={ranks // 8}\n" in starter("slurm").write(one, line)
    task = yaml.safe_load(starter("skypilot").write(one, line))
    assert (task["num_nodes"], task["resources"]) == (ranks // 8, {"accelerators": "H100:8"})
    assert task["run"].splitlines()[-1] == line


def test_adapters_are_left_to_the_script() -> None:
    one = large(zero_stage=3, large={"adapter_rank": 16, "base_bits": 4, "optimizer_bits": 8})
    assert library("accelerate").yours(one)[2:] == [
        "LoRA of rank 16 on the model in 4 bits",
        "an optimizer with 8-bit state",
    ]


def test_start_script_asks_for_the_first_node(tmp_path: Path) -> None:
    (tmp_path / "start.sh").write_text(starter("torchrun").write(large(), 'echo at "$MASTER_ADDR"'))
    (tmp_path / "bin").mkdir()
    run = ["bash", str(tmp_path / "start.sh")]
    without = subprocess.run(run, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"})
    assert without.returncode != 0
    assert "the address of the first node" in without.stderr


def test_files_are_written_or_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "llama-3-8b", "--on", "16xh100", "--layouts", "--batch", "64", "--write", "torchtitan,slurm"]
    assert main([*words, "--out", str(tmp_path / "job")]) == 0
    assert {path.name for path in (tmp_path / "job").iterdir()} == {"llama_3_8b_torchtitan.py", "slurm.sh"}
    text = (tmp_path / "job" / "llama_3_8b_torchtitan.py").read_text()
    compile(text, "layout", "exec")
    shown = capsys.readouterr().out
    assert "def layout()" not in shown
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert text in printed
    assert (tmp_path / "job" / "slurm.sh").read_text() in printed
    assert main([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [file["text"] for file in data["files"]] == [text, (tmp_path / "job" / "slurm.sh").read_text()]
    assert data["files"][0]["path"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"write": "slurm"}, "names no training libraries"),
        ({"write": "accelerate,megatron"}, "names 2 training libraries"),
        ({"write": "acelerate"}, "unknown target of --write"),
        ({"write": "accelerate", "pipeline": 2}, "no layout of Accelerate with pipeline 2 is possible"),
        ({"write": "torchtitan", "lora": 8}, "cannot be configured for LoRA"),
        ({"write": "accelerate", "overrides": ("large.fp8=true",)}, "cannot be configured for fp8"),
        ({"write": "torchtitan", "overrides": ("num_hidden_layers=16",)}, "keys of the config.json"),
        ({"write": "megatron", "on": "12xh100", "batch": 48}, "12 devices do not fill nodes of 8"),
        ({"write": "torchtitan", "layouts": False}, "--write is for the layout that --layouts finds"),
        ({"out": "job"}, "--out is the folder of the files of --write"),
    ],
)
def test_wrong_requests_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        handed(**options)


def test_names_of_jobs_are_plain() -> None:
    given = {"llama-3-8b": "llama-3-8b", "/models/My Model/config.json": "my-model", "x/tiny.json": "tiny"}
    for name, short in given.items():
        job = large().job.model_copy(update={"network": large().job.network.model_copy(update={"name": name})})
        assert short_name(LargeSetting(large().model, job)) == short

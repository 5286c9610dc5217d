"""Training of models in Hugging Face's Transformers on one GPU without published runs: predicted first, then measured.

    python -m benchmarks.large_models.own_gpu predict --on h100 --out FOLDER        anywhere: FOLDER/predicted-h100.json
    python -m benchmarks.large_models.own_gpu measure --out FOLDER                  on the machine: FOLDER/measured.json, resumable
    python -m benchmarks.large_models.own_gpu score FOLDER/predicted-h100.json FOLDER/measured.json

Weights are random, for time and memory do not depend on them. A plain loop takes the steps: forward and backward under autocast or in
pure bf16, then AdamW with one fused kernel. LoRA is that of PEFT, its matrices in fp32 on a base in bf16. A step lasts from one CUDA event to
the next. A case that cannot run, for lack of memory for example, is a row with its error.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from chronograd.configs.find import load, packaged
from chronograd.large.asking import ask_large
from chronograd.large.prediction import LargePrediction
from chronograd.predict.prediction import likely_by

WARM_UP, STEPS = 3, 8
TARGETS = {
    "query-value": ["q_proj", "v_proj"],
    "attention": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "all": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}
Row = dict[str, Any]


def cases() -> Iterator[Row]:
    """Yield the cases, as fields of a job: the name, the length and number of sequences, and what differs from autocast of all weights."""
    yield _case("gpt2-medium", 1024, 8)
    yield _case("qwen2.5-0.5b", 1024, 1)
    yield _case("qwen2.5-0.5b", 1024, 8)
    yield _case("llama-3.2-1b", 2048, 1)
    yield _case("llama-3.2-1b", 2048, 4)
    yield _case("llama-3.2-1b", 2048, 4, recompute="full")
    yield _case("llama-3.2-1b", 4096, 2, is_pure=True)
    yield _case("llama-3.2-3b", 2048, 2, is_pure=True)
    yield _case("llama-3.2-3b", 4096, 1, rank=32, on="query-value")
    yield _case("llama-3-8b", 1024, 1, rank=8, on="query-value")
    yield _case("llama-3-8b", 2048, 1, rank=16)
    yield _case("llama-3-8b", 2048, 1, rank=16, on="attention")
    yield _case("llama-3-8b", 2048, 4, rank=16, recompute="full")
    yield _case("llama-3-8b", 8192, 1, rank=16, recompute="full")
    yield _case("qwen2.5-7b", 2048, 1, rank=64)
    yield _case("mistral-7b", 2048, 2, rank=16)


def _case(network: str, length: int, batch: int, recompute: str = "none", **how: Any) -> Row:
    return {
        "network": network,
        "length": length,
        "batch": batch,
        "recompute": recompute,
        "rank": 0,
        "on": "all",
        "is_pure": False,
        **how,
    }


def name_of(case: Row) -> str:
    way = f"LoRA {case['rank']} on {case['on']}" if case["rank"] else "pure bf16" if case["is_pure"] else "autocast"
    again = ", full recomputation" if case["recompute"] == "full" else ""
    return f"{case['network']}, {case['batch']} × {case['length']}, {way}{again}"


# -- before --------------------------------------------------------------------------------------


def prediction_of(case: Row, device: str) -> LargePrediction:
    words = ["large.kernels=eager", f"large.recompute={case['recompute']}"]
    if case["network"].startswith("gpt2"):
        words.append("large.dropout=0.1")  # as its config.json says
    if case["rank"]:
        words += [f"large.adapter_rank={case['rank']}", f"large.adapter_on={case['on']}"]
    words.append("training.param_dtype=bf16" if case["is_pure"] else "training.param_dtype=fp32")
    short = {"sequence": case["length"], "batch": case["batch"]}
    asked = ask_large(case["network"], words, short, f"1x{device}", case["batch"])
    return LargePrediction(asked.setting)


def predicted(case: Row, device: str) -> Row:
    """Return step time, with its interval of 80 %, and memory of a case."""
    found = prediction_of(case, device)
    time = likely_by("", found.step.sigma_log)(found.step.step_s, "s")
    return {
        "case": name_of(case), "step_s": time.value, "low_s": time.low, "high_s": time.high,
        "allocated_bytes": found.fullest.allocated_bytes, "used_bytes": found.fullest.used_bytes, "fit": found.fit,
    }  # fmt: skip


# -- on the machine --------------------------------------------------------------------------------------


def measured(case: Row) -> Row:
    """Return the median time of a step and the peaks of the allocator, in seconds and bytes."""
    import torch

    torch.cuda.empty_cache()
    network = _network(case)
    trained = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    vocabulary = network.get_input_embeddings().num_embeddings
    tokens = torch.randint(vocabulary, (case["batch"], case["length"]), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    event: Any = torch.cuda.Event
    marks = [event(enable_timing=True) for _ in range(WARM_UP + STEPS + 1)]
    for mark in marks[:-1]:
        mark.record()
        with torch.autocast("cuda", torch.bfloat16, enabled=not case["is_pure"]):
            loss = network(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    marks[-1].record()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(marks[WARM_UP:])]
    free, total = torch.cuda.mem_get_info()
    return {
        "step_s": statistics.median(times), "steps_s": times, "loss": loss.item(),
        "trained": sum(p.numel() for p in trained), "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(), "used_bytes": total - free,
    }  # fmt: skip


def _network(case: Row) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    keys = load(packaged()[case["network"]])
    config = AutoConfig.for_model(keys.pop("model_type"), **keys)
    config.use_cache = False
    is_half = case["is_pure"] or case["rank"]
    torch.set_default_dtype(torch.bfloat16 if is_half else torch.float32)
    try:
        with torch.device("cuda"):
            network = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    finally:
        torch.set_default_dtype(torch.float32)
    network.to(torch.bfloat16 if is_half else torch.float32).train()
    if case["recompute"] == "full":
        network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if case["rank"]:
            network.enable_input_require_grads()
    if not case["rank"]:
        return network
    from peft import LoraConfig, get_peft_model

    return get_peft_model(network, LoraConfig(r=case["rank"], target_modules=TARGETS[case["on"]], lora_dropout=0.0))


def measure(out: Path) -> None:
    import torch
    import transformers

    from chronograd.measure import environment

    path = out / "measured.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    done = {row["case"] for row in known}
    for case in cases():
        if name_of(case) in done:
            continue
        try:
            row = measured(case)
        except Exception as error:  # the other cases still run
            row = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        known.append({"case": name_of(case), **row})
        gc.collect()
        torch.cuda.empty_cache()
        own = environment.environment()
        own["versions"]["transformers"] = transformers.__version__
        content = {"rows": known, "environment": own, "created": datetime.now(UTC).isoformat(timespec="seconds")}
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        print(name_of(case), row.get("step_s"), row.get("allocated_bytes"), row.get("error", ""), flush=True)


# -- after --------------------------------------------------------------------------------------


def score(before: Path, after: Path) -> None:
    """Print the errors of the predictions made beforehand and of this version, with their signs."""
    beforehand = json.loads(before.read_text())
    measured = {row["case"]: row for row in json.loads(after.read_text())["rows"] if "error" not in row}
    versions = {
        "beforehand": {row["case"]: row for row in beforehand["rows"]},
        "now": {name_of(case): predicted(case, beforehand["device"]) for case in cases()},
    }
    table = Table("case", "step", "beforehand", "now", "inside", "memory", "beforehand", "now")
    for name, row in measured.items():
        own = [versions[one][name] for one in versions]
        inside = ["yes" if one["low_s"] <= row["step_s"] <= one["high_s"] else "no" for one in own]
        steps, memory = ([f"{one[key] / row[key] - 1:+.1%}" for one in own] for key in ("step_s", "allocated_bytes"))
        shown = [
            f"{1e3 * row['step_s']:.1f} ms",
            *steps,
            inside[1],
            f"{row['allocated_bytes'] / 2**30:.2f} GiB",
            *memory,
        ]
        table.add_row(name, *shown)
    console = Console()
    console.print(table)
    for version, rows in versions.items():
        for key in ("step_s", "allocated_bytes", "used_bytes"):
            errors = np.array([rows[name][key] / row[key] - 1 for name, row in measured.items()])
            console.print(
                f"{version}, {key}: n {len(errors)}, mean |error| {np.mean(np.abs(errors)):.1%}, median {np.median(np.abs(errors)):.1%}, "
                f"bias {np.mean(errors):+.1%}"
            )
        held = [rows[name]["low_s"] <= row["step_s"] <= rows[name]["high_s"] for name, row in measured.items()]
        console.print(f"{version}, steps inside their interval of 80 %: {sum(held)} of {len(held)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    ask = commands.add_parser("predict")
    ask.add_argument("--on", required=True)
    run = commands.add_parser("measure")
    for command in (ask, run):
        command.add_argument("--out", type=Path, required=True)
    compare = commands.add_parser("score")
    compare.add_argument("files", nargs=2, type=Path)
    asked = parser.parse_args()
    if asked.command == "score":
        score(*asked.files)
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.command == "measure":
        measure(asked.out)
        return
    content = {"device": asked.on, "rows": [predicted(case, asked.on) for case in cases()]}
    (asked.out / f"predicted-{asked.on}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

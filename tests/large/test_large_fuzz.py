"""Random damage to config.json, layouts and options of a large model: an answer or one clear error, never a traceback."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.configs.examples import per_family

from chronograd.errors import ChronogradError
from chronograd.job import LargeModel, Layout, Training
from chronograd.large.answer import predict_large
from chronograd.large.asking import AskedLarge, ask_large

ROUNDS = 300
FAMILIES = list(per_family().items())
VALUES: list[Any] = [None, True, False, 0, -1, 1, 3, 7, 10**6, 10**12, 10**30, -(10**18), 0.5, -0.0, 1e308, "", "8", "bf16", "\x1b[2J", "ü" * 999,
                     [], [[]], [0], [1, 2], {}, {"a": {"b": {}}}, {"factor": "8"}, [None] * 50]  # fmt: skip
WORDS = ["true", "false", "null", "0", "-1", "1", "2", "3", "4", "8", "16", "64", "10000000", "1e30", "0.5", ".inf", "none", "full",
         "selective", "plain", "chunked", "interleaved", "zero-bubble", "all", "fp32", "[1]", "[4, 4]", "{}", "text", "", "[", "8192"]  # fmt: skip
FIELDS = [*(f"cluster.layout.{name}" for name in Layout.model_fields), *(f"large.{name}" for name in LargeModel.model_fields),
          *(f"training.{name}" for name in Training.model_fields), "data.shape", "data.name", "cluster.count", "cluster.per_node",
          "cluster.link", "network.name", "network.options", "cluster", "large", "task", "mode", "backend", "hidden_size",
          "num_hidden_layers", "vocab_size"]  # fmt: skip
SHORT: dict[str, list[Any]] = {"sequence": [1, 7, 128, 4096, 10**9], "batch": [1, 8, 48, 10**9], "fsdp": [True], "zero": [0, 1, 2, 3],
                               "tensor": [1, 2, 3, 8, 16], "pipeline": [1, 2, 5, 64], "context": [1, 2, 3], "expert": [1, 2, 8],
                               "recompute": ["none", "selective", "full"], "lora": [1, 16, 10**9], "qlora": [1, 64],
                               "precision": ["fp32", "tf32", "bf16", "fp16", "fp8"]}  # fmt: skip
PLACES = [
    None,
    "h100",
    "8xh100",
    "16xa100-80",
    "64xh100",
    "3xv100",
    "100000xh100",
    "4xt4",
    "cpu",
    "99999999xh100",
    "2xnothing",
]


def answered(*words: Any, **how: Any) -> AskedLarge | None:
    """Return the setting, or None for an error of the product. Any other exception fails the test."""
    try:
        asked = ask_large(*words, **how)
        assert asked.setting.stages
        predict_large([asked], [None])
    except ChronogradError:
        return None
    return asked


def damaged(data: dict[str, Any], random: Random) -> dict[str, Any]:
    """Return a configuration with one to three changes: a key that is missing, unknown, or has another value."""
    found = copy.deepcopy(data)
    for _ in range(random.randint(1, 3)):
        key = random.choice([*found])
        if (kind := random.randrange(4)) == 0:
            del found[key]
        elif kind == 1 and isinstance(found[key], int):
            found[key] = random.choice(
                [found[key] * 2, found[key] // 2, found[key] + 1, -found[key], found[key] * 10**6, str(found[key])]
            )
        elif kind == 2:
            found[random.choice([key.upper(), f"{key}_", "text_config", "quantization_config"])] = random.choice(
                [found[key], data, 3]
            )
        else:
            found[key] = random.choice(VALUES)
        if not found:
            break
    return found


def test_damaged_configurations(tmp_path: Path) -> None:
    path, random, num_answered = tmp_path / "config.json", Random(0), 0
    for _ in range(ROUNDS):
        name, data = random.choice(FAMILIES)
        path.write_text(json.dumps({"model_type": name, **damaged(data, random)}))
        num_answered += answered(str(path), place="8xh100", short={"sequence": 128}) is not None
    assert 0.05 < num_answered / ROUNDS < 0.95


def test_damaged_layouts_and_options() -> None:
    random, num_answered = Random(1), 0
    for _ in range(ROUNDS):
        words = [f"{random.choice(FIELDS)}={random.choice(WORDS)}" for _ in range(random.choice([0, 0, 1, 2, 4]))]
        short = {name: random.choice(SHORT[name]) for name in random.sample([*SHORT], random.randint(0, 3))}
        name = random.choice(
            [
                "llama-3-8b",
                "mixtral-8x7b",
                "gpt2",
                "t5-small",
                "deepseek-v2-lite",
                "nemotron-h-56b",
                "bert-base",
                "vit-base",
            ]
        )
        micro_batch = random.choice([None, None, 1, 2, 10**6])
        num_answered += answered(name, words, short, random.choice(PLACES), micro_batch) is not None
    assert 0.03 < num_answered / ROUNDS < 0.95


@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", "network: 3", "network: {name: 3}", "network: {name: llama-3-8b}\nlarge: 3",
     "network: {name: llama-3-8b}\ncluster: [h100]", "network: {name: llama-3-8b, options: [1]}",
     "network: {name: llama-3-8b}\ntraining: {batch: true}", "network: {name: no-such}", "a: &a [*a]"],
)  # fmt: skip
def test_damaged_job_files(text: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(ChronogradError):
        ask_large(tmp_path / "job.yaml", ["hidden_size=8"], {"tensor": 2}, "8xh100")

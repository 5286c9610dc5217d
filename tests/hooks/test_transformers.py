"""Hugging Face's Trainer with a small GPT-2, run on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chronograd.rundir import RunDir

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = [pytest.mark.hooks, pytest.mark.filterwarnings("ignore")]


def test_every_step_is_recorded(tmp_path: Path) -> None:
    from chronograd.hooks.transformers import RecordTrainerCallback

    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=32, n_positions=8)
    network = transformers.GPT2LMHeadModel(config)
    masked = {"attention_mask": torch.ones(8, dtype=torch.int64)}  # as tokenizers return it
    tokens = [{"input_ids": (ids := torch.randint(0, 32, (8,))), "labels": ids, **masked} for _ in range(24)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), num_train_epochs=2, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        eval_strategy="epoch", save_strategy="no", logging_steps=2, report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    callback = RecordTrainerCallback(tmp_path / "run", warmup=2, what_if=False)
    trainer = transformers.Trainer(
        model=network, args=arguments, train_dataset=tokens, eval_dataset=tokens, callbacks=[callback]
    )
    trainer.train()
    record = RunDir.open(tmp_path / "run").record()
    assert record["step_time_s"].n == 10  # two epochs of six steps, two of them warm-up
    assert record.value("update_s") > 0
    assert record.value("throughput_samples_per_s") == pytest.approx(4 / record.value("step_time_s"))
    # FLOPs of a token: 12 d² per layer for weights, three times with backward, plus attention and the head.
    weights = 2 * 12 * 16**2 + 32 * 16
    flops = record.provenance.flops_per_step_per_rank
    assert flops is not None
    assert flops >= 3 * 2 * weights * 4 * 8 * 0.98
    assert flops <= 1.5 * 3 * 2 * weights * 4 * 8

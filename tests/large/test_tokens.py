"""The tokens of a training: stated, of epochs, to a loss by the scaling law or by a log, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.large.settings import setting

import chronograd
from chronograd.errors import InputError
from chronograd.large.states import checkpoint_bytes
from chronograd.large.tokens import FEWEST_TOKENS, LAWS, MOST_TOKENS, billions, of_epochs, to_loss
from chronograd.plan.effort import tokens_of_curve


def test_epochs_need_the_tokens_of_one() -> None:
    assert of_epochs(3, 2e9).tokens == 6e9
    with pytest.raises(InputError, match="--tokens-per-epoch"):
        of_epochs(3, None)


def test_law_has_the_losses_of_its_paper() -> None:
    """Chinchilla: 1.69 + 406.4 / 70e9^0.34 + 410.7 / 1.4e12^0.28 = 1.69 + 0.083 + 0.163 (Hoffmann et al. 2022, table A3)."""
    assert LAWS[0].loss(70e9, 1.4e12) == pytest.approx(1.936, abs=0.001)
    assert LAWS[0].loss(280e9, 300e9) == pytest.approx(1.993, abs=0.001)  # Gopher


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.authors)
def test_tokens_reach_the_loss(law: object) -> None:
    assert law.loss(1e9, law.tokens(1e9, 2.6)) == pytest.approx(2.6)  # type: ignore[attr-defined]
    assert law.tokens(1e9, law.limit(1e9)) == math.inf  # type: ignore[attr-defined]


def test_both_fits_are_the_ends_of_the_interval() -> None:
    found = to_loss(setting("llama-3-8b"), 2.3)
    params = 8_030_261_248
    ends = sorted(law.tokens(params, 2.3) for law in LAWS)
    spread = math.exp(1.2816 * found.sigma_log)
    assert [found.tokens / spread, found.tokens * spread] == pytest.approx(ends)
    assert FEWEST_TOKENS < ends[0] < ends[1] < MOST_TOKENS
    assert "128,256" in found.notes[1]


@pytest.mark.parametrize(
    ("name", "large", "reason"),
    [
        ("llama-3-70b", {}, "70.6 billion parameters"),
        ("gpt2", {}, None),
        ("mixtral-8x7b", {}, "no experts"),
        ("bert-base", {}, "predict the next token"),
        ("nemotron-h-56b", {}, "attention in every layer"),
        ("llama-3-8b", {"adapter_rank": 8}, "without adapters"),
    ],
)
def test_law_is_refused_outside_its_models(name: str, large: dict[str, int], reason: str | None) -> None:
    asked = setting(name, large=large)
    if reason is None:
        assert to_loss(asked, 3.1).tokens > FEWEST_TOKENS
    else:
        with pytest.raises(InputError, match=reason):
            to_loss(asked, 2.3)


@pytest.mark.parametrize("loss", [1.7, 2.05, 2.7, 9.0])
def test_law_is_refused_outside_its_data(loss: float) -> None:
    with pytest.raises(InputError, match="outside the data of the scaling law"):
        to_loss(setting("llama-3-8b"), loss)


def log(folder: Path, unit: str) -> Path:
    """Write the first 60 points of 2 + 8 / k by hundreds of steps, or by epochs."""
    rows = [f"{k * (100 if unit == 'step' else 1)},{2 + 8 / k:.6f}" for k in range(1, 61)]
    path = folder / "log.csv"
    path.write_text("\n".join([f"{unit},loss", *rows]))
    return path


def test_log_gives_the_steps_to_a_loss(tmp_path: Path) -> None:
    """A loss of 2.2 was reached at step 4,000, of 1,000 tokens each; 2.1 is forecast at step 8,000."""
    path = log(tmp_path, "step")
    assert tokens_of_curve(path, 2.2, 1000, None).tokens == pytest.approx(4e6)
    later = tokens_of_curve(path, 2.1, 1000, None)
    assert later.tokens == pytest.approx(8e6, rel=0.3)
    assert later.sigma_log > 0
    with pytest.raises(InputError, match=r"not forecast to reach 1\.5"):
        tokens_of_curve(path, 1.5, 1000, None)


def test_log_by_epoch_needs_the_tokens_of_one(tmp_path: Path) -> None:
    path = log(tmp_path, "epoch")
    with pytest.raises(InputError, match="--tokens-per-epoch"):
        tokens_of_curve(path, 2.2, 1000, None)
    assert tokens_of_curve(path, 2.2, 1000, 1e9).tokens == pytest.approx(4e10)


def test_predict_states_the_source_of_the_tokens() -> None:
    record = chronograd.predict("llama-3-8b", on="8xh100", fsdp=True, target_loss=2.3).result
    assert any("Besiroglu" in note and note.startswith("Assumed") for note in record.notes)
    stated = chronograd.predict("llama-3-8b", on="8xh100", fsdp=True, epochs=2, tokens_per_epoch=1e9).result
    assert stated.value("training_time_s") == pytest.approx(2e9 / stated.value("throughput_tokens_per_s"))
    width = [one["training_time_s"].high / one.value("training_time_s") for one in (record, stated)]
    assert width[0] > width[1]


def test_options_that_contradict_each_other() -> None:
    for options, said in (
        ({"tokens": 1e9, "epochs": 2}, "--tokens and --epochs"),
        ({"curve": "log.csv"}, "--target-loss"),
    ):
        with pytest.raises(InputError, match=said):
            chronograd.predict("llama-3-8b", on="8xh100", **options)
    with pytest.raises(InputError, match="lenet5 is a network of code"):
        chronograd.predict("lenet5", on="h100", target_loss=2.0)


def test_checkpoint_has_an_exact_copy_and_the_optimizer() -> None:
    """AdamW in bf16: 4 + 8 bytes a parameter. LoRA of rank 8 on a matrix of a × b: 8 (a + b) parameters of 12 bytes."""
    assert checkpoint_bytes(setting("llama-3-8b")) == 12 * 8_030_261_248
    assert checkpoint_bytes(setting("llama-3-8b", precision="fp32")) == 12 * 8_030_261_248
    assert checkpoint_bytes(setting("llama-3-8b", large={"adapter_rank": 8, "adapter_on": "query-value"})) == (
        12 * 8 * 32 * ((4096 + 4096) + (4096 + 1024))
    )


def test_numbers_in_words() -> None:
    assert [billions(one) for one in (950, 2.5e5, 7e12)] == ["950 tokens", "250,000 tokens", "7 trillion tokens"]

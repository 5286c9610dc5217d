"""The first setting of a large model that fits: the values that the user did not state, in their order, by every door."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import chronograd
from chronograd import job as jobs
from chronograd.large.asking import AskedLarge, ask_large
from chronograd.large.defaults import SHORTEST, SURE, first_that_fits
from chronograd.large.prediction import LEAST_FIT, LargePrediction, record_of
from chronograd.record import DOES_NOT_FIT


def chosen(name: str, place: str | None, *words: str, micro_batch: int | None = None, **short: Any) -> AskedLarge:
    return first_that_fits(ask_large(name, words, short, place, micro_batch))


def fit(asked: AskedLarge) -> float:
    return LargePrediction(asked.setting).fit


@pytest.mark.parametrize(
    ("name", "place", "words"),
    [
        # 8 G parameters of 16 bytes, over 4 ranks: 32 GB. Activations of 32 layers × 8,192 tokens take more than the rest.
        ("llama-3-8b", "4xa100-80", ("fully sharded", "8,192 tokens", "full recomputation")),
        ("llama-3-8b", "8xh100", ("fully sharded", "8,192 tokens", "no recomputation")),
        # Logits of 131,072 tokens × 128,256 words take 101 GB in 6 bytes.
        ("llama-3.1-8b", "8xh100", ("fully sharded", "32,768 tokens", "full recomputation")),
        ("gpt2", "t4", ()),
        ("vit-huge", "8xa100-80", ()),
    ],
)
def test_defaults_fit(name: str, place: str, words: tuple[str, ...]) -> None:
    asked = chosen(name, place)
    assert (asked.chosen, asked.enough) == (words, ())
    assert fit(asked) >= SURE


@pytest.mark.parametrize(
    ("short", "words"),
    [
        ({"zero": 1}, ("8,192 tokens", "full recomputation")),
        ({"sequence": 16_384}, ("fully sharded", "full recomputation")),
        ({"recompute": "none"}, ("fully sharded", "4,096 tokens")),
        ({"fsdp": True, "sequence": 2_048}, ()),
        ({"fsdp": True, "recompute": "none"}, ("4,096 tokens",)),
    ],
)
def test_stated_values_do_not_change(short: dict[str, Any], words: tuple[str, ...]) -> None:
    place = "4xa100-80" if "zero" not in short else "16xh100"
    usual, asked = ask_large("llama-3-8b", (), short, place), chosen("llama-3-8b", place, **short)
    assert asked.chosen == words
    for name in usual.stated & {"training.zero_stage", "data.shape", "large.recompute"}:
        section, field = name.split(".")
        assert getattr(getattr(asked.setting.job, section), field) == getattr(
            getattr(usual.setting.job, section), field
        )


def test_order_is_sharding_then_length_then_recomputation() -> None:
    """A longer sequence does not fit, and less recomputation does not, either."""
    asked = chosen("llama-3.1-8b", "8xh100")
    assert asked.setting.sequence == 32_768
    for short in ({"sequence": 65_536, "recompute": "full"}, {"sequence": 32_768, "recompute": "none"}):
        assert fit(ask_large("llama-3.1-8b", (), {**short, "fsdp": True}, "8xh100")) < SURE


def test_stated_batch_has_the_largest_micro_batches_that_fit() -> None:
    assert chosen("llama-3-8b", "8xh100", sequence=1024, batch=8, fsdp=True).setting.micro_batches == 1
    large = chosen("llama-3-8b", "8xh100", sequence=8192, batch=64, fsdp=True)
    assert (large.setting.micro_batch, large.setting.micro_batches) == (1, 8)
    assert large.chosen == ("micro-batches of 1 sequence",)
    assert any("micro-batches of 1 sequence" in text for text in large.assumed)
    stated = chosen("llama-3-8b", "4xh100", sequence=1024, batch=8, fsdp=True, micro_batch=1)
    assert stated.setting.micro_batches == 2


def test_pipeline_shards_optimizer_states() -> None:
    asked = chosen("llama-3-70b", "64xh100", tensor=8, pipeline=2)
    assert asked.chosen == ("optimizer states sharded", "8,192 tokens", "no recomputation")
    assert asked.setting.training.zero_stage == 1


def test_answer_proposes_devices_or_adapters_if_no_setting_fits() -> None:
    asked = chosen("mistral-7b", "2xa100-40")
    assert (asked.setting.sequence, asked.setting.options.recompute, asked.setting.training.zero_stage) == (
        SHORTEST,
        "full",
        3,
    )
    assert asked.enough == ("4 × NVIDIA A100 SXM4 40 GB", "--lora 16")
    for other in (chosen("mistral-7b", "4xa100-40"), chosen("mistral-7b", "2xa100-40", lora=16)):
        assert fit(other) >= SURE
    text = chronograd.predict("mistral-7b", on="2xa100-40").sections[0].takeaway
    assert "in the smallest setting that we tried (fully sharded, 512 tokens, full recomputation)" in text
    assert "4 × NVIDIA A100 SXM4 40 GB or --lora 16 would be enough" in text


def test_all_doors_and_both_verbs_choose_the_same(tmp_path: Path) -> None:
    """A job file, a job, and a name; `predict` and `judge`."""
    words = "Assumed: fully sharded, 8,192 tokens, full recomputation: the first setting that fits."
    path = tmp_path / "job.yaml"
    path.write_text("network: {name: llama-3-8b}\ncluster: {device: a100-80, count: 4}\ntraining: {batch: 4}\n")
    job = jobs.from_dict(
        {"task": "language", "network": {"name": "llama-3-8b"}, "data": {"name": "tokens"}, "backend": "ddp",
         "training": {"recipe": "large-model", "batch": 4}, "cluster": {"device": "a100-80", "count": 4}}
    )  # fmt: skip
    named = chronograd.predict("llama-3-8b", on="4xa100-80")
    for answer in (named, chronograd.predict(path), chronograd.predict(job)):
        assert answer.sections[0].takeaway.startswith(words)
        assert answer.result.value("step_time_s") == named.result.value("step_time_s")
    judged = chronograd.judge("llama-3-8b", "40% mfu", on="4xa100-80")
    assert judged.sections[0].takeaway.startswith(words)
    assert judged.result.expected.value == named.result.value("throughput_tokens_per_s")


def test_a_saved_job_has_the_chosen_values(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    first = chronograd.predict("llama-3-8b", on="4xa100-80", save_job=path).result
    again = chronograd.predict(path)
    assert again.result.quantities == first.quantities
    assert "first setting" not in again.sections[0].takeaway


def test_a_job_that_states_no_sharding_keeps_it(tmp_path: Path) -> None:
    """`training.zero_stage: 0` is stated, although it is the default of a job."""
    path = tmp_path / "job.yaml"
    path.write_text(
        "network: {name: llama-3-8b}\ncluster: {device: h100, count: 8}\ntraining: {batch: 8, zero_stage: 0}\n"
        "data: {shape: [8192]}\nlarge: {recompute: none}\n"
    )
    assert "does not fit: a rank needs" in chronograd.predict(path).sections[0].takeaway


@pytest.mark.parametrize("figure", ["38% mfu", "94 tokens/s", "9 s/step"])
def test_a_setting_that_cannot_run_has_no_verdict(figure: str) -> None:
    answer = chronograd.judge("llama-3-8b", figure, on="8xh100", zero=0, sequence=8192, recompute="none")
    judged = answer.result
    assert (judged.verdict, judged.of_expected, judged.quantile) == ("does not fit", None, None)
    assert judged.expected.value is None
    assert "training in this setting. It does not fit: a rank needs" in answer.sections[0].takeaway
    assert [row[0] for row in answer.sections[0].table.rows] == ["this figure"]


def test_explanations_can_run() -> None:
    """Plain attention stores 32 heads × 8,192² scores in each layer, which no H100 has memory for."""
    judged = chronograd.judge("llama-3-8b", "4900 tokens/s/gpu", on="8xh100", fsdp=True, sequence=8192).result
    assert {one.words for one in judged.others} >= {"recomputation full", "arithmetic in fp8"}
    for one in judged.others:
        assert one.words not in ("plain attention", "ZeRO 1", "micro-batch 2")


def test_slow_figures_are_compared_with_training() -> None:
    section = chronograd.judge("llama-3-8b", "94 tokens/s", on="8xh100").sections[0]
    assert section.title.endswith(", training")
    assert "tokens/s of training (" in section.takeaway
    assert "generating text" in section.lines[0]


def test_selective_recomputation_is_defined() -> None:
    options = {"on": "8xh100", "fsdp": True, "sequence": 4096, "recompute": "selective"}
    for answer in (chronograd.predict("llama-3-8b", **options), chronograd.judge("llama-3-8b", "9 s/step", **options)):
        assert "selective recomputation as in Megatron" in " ".join(answer.sections[0].lines)
        assert "torchtitan" in " ".join(answer.sections[0].lines)


@pytest.mark.parametrize(("fit", "is_refused"), [(LEAST_FIT, False), (LEAST_FIT - 0.01, True)])
def test_even_odds_do_not_count_as_too_small(fit: float, is_refused: bool) -> None:
    """Memory that equals the need exactly fits with a probability of a half."""
    asked = chosen("gpt2", "t4")
    prediction = LargePrediction(asked.setting)
    vars(prediction)["fit"] = fit
    assert any(note.startswith(DOES_NOT_FIT) for note in record_of(prediction, asked).notes) == is_refused

"""Answers of `predict` and `judge` about a large model, on predictions without physics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.large import fakes

import chronograd
from chronograd.cli.main import main
from chronograd.hardware import catalog
from chronograd.record import Record
from chronograd.units import memory


@pytest.fixture(autouse=True)
def without_physics(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.use(monkeypatch)
    monkeypatch.setenv("COLUMNS", "100")


def text_of(capsys: pytest.CaptureFixture[str], words: str) -> str:
    assert main(words.split()) == 0
    return " ".join(capsys.readouterr().out.split())


def test_the_record_has_quantities_with_intervals(tmp_path: Path) -> None:
    answer = chronograd.predict("llama-3-8b", on="8xh100", fsdp=True, out=tmp_path / "r.json")
    record = answer.result
    assert record.value("throughput_tokens_per_s") == pytest.approx(8 * 8192 / record.value("step_time_s"))
    assert record.value("throughput_tokens_per_s_per_device") == pytest.approx(
        record.value("throughput_tokens_per_s") / 8
    )
    assert record.value("hfu") == pytest.approx(1.1 * record.value("mfu"))
    for name in ("step_time_s", "throughput_tokens_per_s", "mfu", "memory_peak_bytes", "cost_usd_per_million_tokens"):
        own = record[name]
        assert (own.low or 0) < record.value(name) < (own.high or 0)
    assert sum(part["seconds"] for part in record.tables.step) == pytest.approx(record.value("step_time_s"))
    assert Record.load(tmp_path / "r.json").quantities == record.quantities
    assert "cost_usd" not in record.quantities


def test_tokens_give_hours_and_dollars() -> None:
    record = chronograd.predict("llama-3-8b", on="8xh100", fsdp=True, tokens=1e12).result
    assert record.value("training_time_s") == pytest.approx(1e12 / record.value("throughput_tokens_per_s"))
    assert record.value("cost_usd") == pytest.approx(1e6 * record.value("cost_usd_per_million_tokens"))


@pytest.mark.parametrize("tokens", ["nan", "inf", "0", "-1", "1e300", "many"])
def test_tokens_that_are_no_number(tokens: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "llama-3-8b", "--on", "8xh100", "--tokens", tokens]) == 2
    assert "write 1e12 or 300B" in capsys.readouterr().err


def test_a_setting_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of(capsys, "predict llama-3-8b --on 8xh100 --fsdp")
    assert "and it fits with a probability of over 99 %" in text
    assert "Assumed, because you did not state it: sequences of 8,192 tokens (--sequence)" in text
    assert "most of it is backward with 62 %" in text
    assert "8 GiB logits of 8,192 × 128,256 in fp32; large.loss=chunked saves 7.35 GiB." in text
    assert "Ranks wait 500 ms for collectives" in text
    assert "Stages" not in text


def test_a_setting_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of(capsys, "predict llama-3-8b --on 8xh100 --zero 0 --sequence 8192 --recompute none")
    room = memory(catalog.device("h100").usable_bytes)
    assert (
        f"It does not fit: a rank needs 136 GiB, and a device has {room} (probability that it fits: under 1 %)" in text
    )
    assert "With training.zero_stage=3 it fits." in text
    assert "training.zero_stage=3 makes it fit: over 99 % to fit" in text


def test_stages(capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of(capsys, "predict llama-3-8b --on 16xh100 --tensor 8 --pipeline 2")
    assert "Memory by part of stage 0, the fullest" in text
    assert "stage 1 needs 15.9 GiB" in text


def test_several_places_are_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of(capsys, "predict llama-3-8b --on 16xh100 --on 8xa100-80 --fsdp cluster.per_node=8")
    assert "16 × h100 8 × a100-80" in text
    assert "16 × h100 is the fastest, with 20,165 tokens/s" in text
    assert text.count("Assumed") == text.count("AdamW") == 1
    assert "all logits in memory (large.loss); for 16 × h100: nodes joined by efa-3200g (cluster.link)." in text


def test_the_peak_has_a_prefix() -> None:
    record = chronograd.predict("llama-3-8b", on="8xh100", fsdp=True).result
    assert record["mfu"].source == "of 989 TFLOP/s, bf16, dense attention, without recomputation"
    assert record["hfu"].source == "of 989 TFLOP/s, bf16, dense attention"


def test_json_is_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "llama-3-8b", "--on", "8xh100", "--fsdp", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["tables"]["collectives"][0]["name"] == "all-gather of parameters"
    assert data["tables"]["stages"][0]["parts"][0]["remedy"] == "training.zero_stage=3"
    assert data["job"]["large"]["attention"] == "fused"


def test_a_saved_job_has_the_same_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "job.yaml")
    words = [
        "predict",
        "llama-3-8b",
        "num_hidden_layers=16",
        "--on",
        "16xh100",
        "--pipeline",
        "2",
        "--zero",
        "0",
        "--qlora",
        "8",
    ]
    assert main([*words, "--save-job", path, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(["predict", path, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["job"], again["quantities"]) == (first["job"], first["quantities"])
    assert main(["predict", path, "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert "adapter_rank: 8" in printed
    (tmp_path / "printed.yaml").write_text(printed)
    assert chronograd.predict(tmp_path / "printed.yaml").result.quantities == chronograd.predict(path).result.quantities
    judged = chronograd.judge(path, "9 s/step", batch=64).result
    assert judged.step_s == 9


@pytest.mark.parametrize(
    ("figure", "verdict"),
    [
        ("1200 tokens/s/gpu", "as expected"),
        ("9,700 tokens/s", "as expected"),
        ("6.5 s/step", "as expected"),
        ("6500 ms", "as expected"),
        ("36.9% mfu", "as expected"),
        ("0.369 MFU", "as expected"),
        ("36.9 mfu", "as expected"),
        ("365 TFLOP/s/GPU", "as expected"),
        ("365 tflops", "as expected"),
        ("900 tokens/s/gpu", "slow"),
        ("12 s/step", "slow"),
        ("20% mfu", "slow"),
        ("50% mfu", "suspicious"),
        # 989.4 TFLOP/s divided by 51.5 GFLOP of a token, with causal attention.
        ("19100 tokens/s/gpu", "suspicious"),
        ("19300 tokens/s/gpu", "impossible"),
        ("99999 tokens/s/gpu", "impossible"),
    ],
)
def test_verdicts(figure: str, verdict: str) -> None:
    judged = chronograd.judge("llama-3-8b", figure, on="8xh100", fsdp=True).result
    assert judged.verdict == verdict
    assert judged.tokens_per_s == pytest.approx(8 * 8192 / judged.step_s)
    assert judged.mfu / judged.of_expected == pytest.approx(0.369, abs=0.001)
    assert 0 <= judged.quantile <= 1


def test_settings_that_explain_a_figure(capsys: pytest.CaptureFixture[str]) -> None:
    judged = chronograd.judge("llama-3-8b", "900 tokens/s/gpu", on="8xh100", fsdp=True).result
    assert judged.others[0].words == "plain attention"
    assert {one.words for one in judged.others} >= {"no overlap of the exchange", "recomputation full", "micro-batch 2"}
    for one in judged.others:
        assert one.of_expected == pytest.approx(judged.tokens_per_s / one.tokens_per_s)
    assert main(["judge", "llama-3-8b", "--on", "8xh100", "--fsdp", "900 tokens/s/gpu"]) == 0
    assert "Plain attention comes nearest: 6,899 tokens/s" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("figure", "words"), [("9500 tokens/s", "The stated setting explains it."), ("50% mfu", "None of the settings")]
)
def test_explanations_are_only_near_settings(figure: str, words: str) -> None:
    answer = chronograd.judge("llama-3-8b", figure, on="8xh100", fsdp=True)
    assert answer.sections[1].takeaway.startswith(words)


def test_tera_flops_are_those_of_one_device_and_of_the_model() -> None:
    judged = chronograd.judge("llama-3-8b", "494.7 TFLOP/s/gpu", on="8xh100", fsdp=True).result
    assert judged.mfu == pytest.approx(494.7 / 989.4, abs=1e-3)


@pytest.mark.parametrize("figure", ["0% mfu", "9 apples", "0 tokens/s", "0 TFLOPS", "11200", "11,200.5"])
def test_figures_that_are_none(figure: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A number alone is refused. Samples per second, its usual meaning, would multiply it by the 8,192 tokens of a sequence."""
    assert main(["judge", "llama-3-8b", "--on", "8xh100", figure]) == 2
    error = capsys.readouterr().err
    assert figure in error
    assert "11200 tokens/s/gpu" in error

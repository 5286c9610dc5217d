"""Verdicts: twelve figures with a known answer, each compared with a prediction; then the rules of a verdict."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
from torch import nn

import chronograd
from chronograd.cli.main import main
from chronograd.count.tracing import trace
from chronograd.errors import InputError, NotFoundError
from chronograd.hardware import catalog
from chronograd.job import changed, parse_on
from chronograd.judge import published
from chronograd.judge.answer import answer_of
from chronograd.judge.ask import Traces, job_of_network
from chronograd.judge.claim import parse
from chronograd.judge.limits import WINOGRAD, limit_of
from chronograd.judge.published import PublishedRow, PublishedSource
from chronograd.judge.verdict import OTHER_SETUP, Judged, Stated, expected_of, judge, verdict_of
from chronograd.predict.calibration import calibrations
from chronograd.record import Z80, Quantity, Record

INPUTS = Path(__file__).parents[1] / "golden" / "inputs"
TRACES = Traces()
RESNET = "torchvision:resnet50"


def judged(figure: str, on: str, precision: str, batch: int | None = None, *changes: str, network: str = RESNET,
           mode: str = "training", rows: tuple[PublishedRow, ...] | None = None, with_advice: bool = True) -> Judged:  # fmt: skip
    given, device = parse_on(on)
    count = given or 1
    words = [f"cluster.device={device}", f"cluster.count={count}", f"training.precision={precision}", *changes]
    if count > 1:
        words.append("backend=ddp")
    if batch is not None:
        words.append(f"training.batch={batch}")
    job = changed(job_of_network(network), words)
    return judge(parse(figure), job, TRACES, mode=mode, stated=Stated(has_batch=batch is not None), rows=rows,
                 with_advice=with_advice)  # fmt: skip


# -- twelve cases ---------------------------------------------------------------------------------------------


def test_impossible_in_fp32_but_not_fp16() -> None:
    """Judge 812 images/s on a V100 in fp32; NVIDIA published 367 in fp32 and 1,200 in fp16."""
    one = judged("812 images/s", "v100", "fp32")
    assert one.verdict == "impossible"
    assert one.rate * one.limit.flops_per_sample > 15.7e12
    assert one.explanations[0].words == ("fp16 (autocast)",)
    assert 0.9 < one.rate / one.explanations[0].samples_per_s < 1.1


def test_impossible_inference_figure_as_training() -> None:
    """Judge NVIDIA's T4 inference figure as training."""
    one = judged("1198 images/s", "t4", "fp16", 128, with_advice=False)
    assert one.verdict == "impossible"
    assert next((row.source.mode, row.samples_per_s) for row in one.same_elsewhere) == ("inference", 1190)


def test_impossible_by_bytes_but_not_flops() -> None:
    """Use depthwise convolutions at three times the rate that the A100's bandwidth allows."""
    one = judged("6000 images/s", "a100-80", "fp32", 256, network="torchvision:mobilenet_v2", with_advice=False)
    assert one.verdict == "impossible"
    assert one.rate * one.limit.flops_per_sample < one.limit.peak_flops_per_s


def test_far_too_slow() -> None:
    """Judge 100 images/s; 367 are published."""
    one = judged("100 images/s", "v100", "fp32", 112, with_advice=False)
    assert one.verdict == "slow"
    assert one.of_expected == pytest.approx(0.28, abs=0.03)


def test_slow_without_autocast() -> None:
    """Judge NVIDIA's fp32 figure for 8 × V100 as mixed precision, for which they published 8,322."""
    one = judged("2855 images/s", "8xv100", "fp16", 896, "training.channels_last=true")
    assert one.verdict == "slow"
    assert one.explanations[0].words == ("fp32",)


def test_slow_with_tf32_instead_of_fp16() -> None:
    """Judge NVIDIA's TF32 figure for the A100 as mixed precision, for which they published 2,470."""
    one = judged("938 images/s", "a100-80", "fp16", 256, "training.channels_last=true")
    assert one.verdict == "slow"
    assert "TF32" in one.explanations[0].words


# Predicted without these published figures. The calibrations come from other networks' timings (kernels; another
# device's networks).
@pytest.mark.parametrize(
    ("figure", "on", "precision", "batch", "changes", "mode"),
    [
        ("367 images/s", "v100", "fp32", 112, (), "training"),
        ("1200 images/s", "v100", "fp16", 256, ("training.channels_last=true",), "training"),
        ("426 images/s", "t4", "fp32", 128, (), "inference"),
    ],
)
def test_published_figures_are_expected(
    figure: str, on: str, precision: str, batch: int, changes: tuple[str, ...], mode: str
) -> None:
    one = judged(figure, on, precision, batch, *changes, mode=mode, rows=(), with_advice=False)
    assert one.verdict == "as expected"
    assert not one.alike


@pytest.mark.parametrize(
    ("figure", "on", "precision", "batch"),
    [("938 images/s", "a100-80", "tf32", 256), ("219 images/s", "p100", "fp32", 64), ("51.9 images/s", "k80-gk210", "fp32", 64)],
)  # fmt: skip
def test_devices_without_calibration(figure: str, on: str, precision: str, batch: int) -> None:
    assert not calibrations(catalog.device(on))
    one = judged(figure, on, precision, batch, rows=(), with_advice=False)
    assert one.verdict == "as expected"
    ten_times = judged(f"{0.1 * one.rate}/s", on, precision, batch, rows=(), with_advice=False)
    assert ten_times.verdict == "slow"


# -- rules of a verdict -----------------------------------------------------------------------------------------


def test_limit_is_flops_over_peak_and_bytes_over_bandwidth() -> None:
    side, batch, v100 = 4096, 8192, catalog.device("v100")
    product = trace(nn.Linear(side, side, bias=False), [(side,)])
    # Forward and the weight gradients; the input needs no gradient. 2 FLOPs per MAC.
    work_s = 2 * 2 * batch * side * side / v100.peak("fp16")
    assert limit_of(product, batch, v100, "fp16").flops_s == pytest.approx(work_s)
    activation = trace(nn.Sequential(nn.ReLU()), [(side,)], mode="inference")
    bytes_s = (2 * batch * side * 4 - v100.l2_bytes) / v100.bandwidth_bytes_per_s
    assert limit_of(activation, batch, v100, "fp32").least_s == pytest.approx(bytes_s)


def test_limit_allows_winograd() -> None:
    """VGG-16 was measured above the nominal peak: 124 images/s × 92.5 GFLOP on a Titan X of 11 TFLOP/s."""
    one = judged("124.4 images/s", "titan-x-pascal", "fp32", 16, network="torchvision:vgg16", with_advice=False)
    assert one.rate * one.limit.flops_per_sample > one.limit.peak_flops_per_s
    assert one.verdict == "as expected"
    assert one.most > one.rate
    assert WINOGRAD == 4


def test_desktop_card_may_exceed_its_clock() -> None:
    side, batch = 4096, 8192
    product = trace(nn.Linear(side, side, bias=False), [(side,)])
    card, server = catalog.device("gtx1080ti"), catalog.device("p100")
    share = [limit_of(product, batch, d, "fp32").flops_s * d.peak("fp32") for d in (card, server)]
    assert share[0] * 1.2 == pytest.approx(share[1])


def test_verdict_from_interval_and_published_figures() -> None:
    expected = Quantity(value=100.0, unit="sample/s", low=80.0, high=125.0)
    verdicts = [verdict_of(rate, 500.0, expected, []) for rate in (79, 80, 125, 126, 500, 501)]
    assert verdicts == ["slow", "as expected", "as expected", "suspicious", "suspicious", "impossible"]
    assert verdict_of(140.0, 500.0, expected, [90.0, 150.0]) == "as expected"
    assert verdict_of(160.0, 500.0, expected, [90.0, 150.0]) == "suspicious"
    assert verdict_of(75.0, 500.0, expected, [70.0]) == "as expected"


def test_published_figures_are_weighted_by_spread() -> None:
    one = judged("367/s", "v100", "fp32", 112, with_advice=False)
    (row,) = one.alike
    own, sigma = one.predicted.samples_per_s, one.predicted.record.provenance.sigma_log
    assert sigma is not None
    weight = (1 / OTHER_SETUP**2) / (1 / OTHER_SETUP**2 + 1 / sigma**2)
    middle = math.exp(weight * math.log(row.samples_per_s) + (1 - weight) * math.log(own))
    high = middle * math.exp(Z80 / math.sqrt(1 / OTHER_SETUP**2 + 1 / sigma**2))
    assert one.expected.value == pytest.approx(middle)
    assert one.expected.high == pytest.approx(high)
    assert expected_of(one.predicted, []) == one.predicted.rate
    assert judged(f"{one.expected.value}/s", "v100", "fp32", 112, with_advice=False).quantile == pytest.approx(0.5)
    assert judged(f"{high}/s", "v100", "fp32", 112, with_advice=False).quantile == pytest.approx(0.9, abs=1e-4)


def test_calibration_on_published_figures_is_circular() -> None:
    own = judged("745/s", "rtx3090", "fp16", 384, network="timm:resnet50d", with_advice=False)
    assert own.is_circular
    other = judged("1200/s", "v100", "fp16", 256, "training.channels_last=true", with_advice=False)
    assert other.alike
    assert not other.is_circular


def test_assumed_batch_fits_and_is_a_power_of_two() -> None:
    sizes = {
        on: judged("100/s", on, "fp32", with_advice=False).job.training.batch for on in ("v100", "a100-80", "2xv100")
    }
    assert sizes == {"v100": 128, "a100-80": 256, "2xv100": 256}
    with pytest.raises(InputError, match="needs the batch of a step"):
        judged("78 ms", "v100", "fp32")


def test_first_sentence_has_the_batch_of_predict() -> None:
    """256 samples need 21 GiB in fp32. An A100 has 40, so nothing is chosen there."""
    words = "Assumed: batch 128, the largest power of two that fits. "
    slow = chronograd.judge(RESNET, "150 images/s", on="v100")
    assert slow.sections[0].takeaway.startswith(f"{words}Slow: 150 samples/s")
    predicted = chronograd.predict("resnet50", on="v100")
    assert predicted.sections[0].takeaway.startswith(f"{words}Predicted: ")
    assert predicted.result.job.training.batch == slow.result.job.training.batch == 128
    assert chronograd.predict("resnet50", on="a100").result.job.training.batch == 256
    assert chronograd.judge(RESNET, "300 images/s", on="a100").sections[0].takeaway.startswith("Slow")


@pytest.mark.parametrize(("short", "words"), [({"batch": 256}, ()), ({}, ("training.batch=256",))])
def test_stated_batch_is_never_changed(short: dict[str, int], words: tuple[str, ...]) -> None:
    answer = chronograd.predict("resnet50", *words, on="v100", **short)
    assert answer.result.job.training.batch == 256
    assert answer.sections[0].takeaway.startswith("It does not fit: a rank needs ")


def test_setting_that_does_not_fit_has_no_verdict() -> None:
    answer = chronograd.judge(RESNET, "300 images/s", on="v100", batch=1024, precision="fp32")
    one, section = answer.result, answer.sections[0]
    assert one.verdict == "does not fit"
    assert section.takeaway.startswith("No verdict, because 300 samples/s cannot be of this setting. It does not fit: ")
    assert [row[0] for row in section.table.rows] == ["this figure", "maximum of the device"]
    assert (one.explanations, one.gains) == ((), ())
    card = chronograd.judge(RESNET, "1150 images/s", on="a100", batch=640, precision="tf32").result
    assert (card.verdict, card.device.name) == ("as expected", "a100-80")


def test_card_of_an_ambiguous_name_is_stated_by_both_verbs() -> None:
    for answer in (chronograd.predict("resnet50", on="a100"), chronograd.judge(RESNET, "800 images/s", on="a100")):
        assert "a100 is the NVIDIA A100 SXM4 40 GB (a100-40)" in " ".join(answer.sections[0].lines)


def test_figure_of_another_batch_is_reported() -> None:
    """Small batches of this network leave the device idle; the user gave no batch."""
    usual = judged("1/s", "v100", "fp32", network="small-cnn", with_advice=False)
    small = judged("1/s", "v100", "fp32", 16, network="small-cnn", with_advice=False).predicted.samples_per_s
    one = judged(f"{small}/s", "v100", "fp32", network="small-cnn")
    assert (usual.job.training.batch, one.verdict) == (256, "slow")
    assert one.explanations[0].words == ("batch 16",)


def test_gains_are_ranked_and_above_three_per_cent() -> None:
    one = judged("367/s", "v100", "fp32", 112)
    rates = [option.samples_per_s / (one.expected.value or 0.0) for option in one.gains]
    assert rates == sorted(rates, reverse=True)
    assert 1 <= len(rates) <= 3
    assert min(rates) > 1.03
    half = judged("367/s", "v100", "fp16", 112, with_advice=False)
    assert one.gains[0].changes == ("training.precision=fp16",)
    assert one.gains[0].samples_per_s == pytest.approx(half.predicted.samples_per_s)
    small = judged("100/s", "v100", "fp32", 16)
    assert len(small.gains) > 1
    assert small.together is not None
    assert small.together.samples_per_s > small.gains[0].samples_per_s


def test_fewer_exchanges_gain_on_a_slow_link() -> None:
    one = judged("60/s", "2xv100", "fp32", 64, "cluster.per_node=1", "cluster.link=ethernet-1g")
    changes = [change for option in one.gains for change in option.changes]
    assert "training.accumulation=4" in changes or "communication.compression=fp16" in changes


# -- published figures --------------------------------------------------------------------------------------------


def test_published_table_has_sources_and_devices() -> None:
    assert published.FILE.stat().st_size < 300_000
    rows = published.published()
    assert len(rows) == 3040
    assert {row.device for row in rows} <= {device.name for device in catalog.devices()}
    assert all(row.source.address and row.source.date and row.samples_per_s > 0 for row in rows)
    with published.FILE.open() as stream:
        assert {line["source"] for line in csv.DictReader(stream)} == set(published.sources())
    tables = {c.provenance.get("table") for device in catalog.devices() for c in calibrations(device)}
    assert {source["fitted"] for source in published.sources().values() if "fitted" in source} <= tables


def test_other_network_of_the_same_name_is_excluded() -> None:
    source = PublishedSource("mine", "me", "here", "2026", "MIT", "PyTorch", "training")
    like = [
        PublishedRow(source, "ResNet-50", 224, "v100", 1, "fp32", 112, 367.0, params) for params in (None, 25.56, 11.69)
    ]
    one = judged("367/s", "v100", "fp32", 112, rows=tuple(like), with_advice=False)
    assert [row.params_m for row in one.alike] == [None, 25.56]


# -- the verb -------------------------------------------------------------------------------------------------------


def test_verdict_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["judge", RESNET, "--on", "v100", "--precision", "fp32", "812 images/s"]
    assert main(words) == 0
    first = " ".join(capsys.readouterr().out.partition("\n")[2].split())
    assert first.startswith(
        "Impossible: 812 samples/s × 24.3 GFLOP = 19.7 TFLOP/s, above the 15.7 TFLOP/s peak of v100 in fp32"
    )
    assert "with fp16 (autocast)" in first
    assert main([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"] == "impossible"
    assert data == chronograd.judge(RESNET, "812 images/s", on="v100", precision="fp32").data


def test_fp32_states_pytorch_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", RESNET, "--on", "a100-80", "800/s"]) == 0
    assert "fp32 excludes TF32" in capsys.readouterr().out
    assert main(["judge", RESNET, "--on", "v100", "300/s"]) == 0
    assert "TF32" not in capsys.readouterr().out


def test_run_supplies_settings_and_trace_supplies_network(tmp_path: Path) -> None:
    """The record supplies throughput, batch, ranks, and the device if the driver's name is in the catalogue."""
    record = Record.load(INPUTS / "measured-1" / "record.json")
    record.cluster.ran_on = "Tesla V100-SXM2-16GB"
    record.save(tmp_path / "on-v100.json")
    data = chronograd.judge(None, tmp_path / "on-v100.json", trace=INPUTS / "net.json.gz").data
    assert data["setting"] | {"device": "v100", "batch": record.global_batch, "network": "small-cnn"} == data["setting"]
    assert data["samples_per_s"] == record.value("throughput_samples_per_s")
    assert not data["setting"]["is_batch_assumed"]
    record.job = type(record.job)()
    record.save(tmp_path / "loop.json")
    with pytest.raises(InputError, match="does not state its network"):
        chronograd.judge(None, tmp_path / "loop.json")
    assert chronograd.judge("lenet5", tmp_path / "loop.json").data["setting"]["network"] == "lenet5"


def test_pure_bf16_is_distinguished_from_autocast() -> None:
    """Step times in pure bf16 and with autocast differ."""
    asked = [RESNET, "1500 images/s", "training.precision=bf16"]
    autocast, pure = (chronograd.judge(*asked, *more, on="a100-80") for more in ((), ("training.param_dtype=bf16",)))
    assert "on a100-80 in bf16: training" in autocast.sections[0].title
    assert "on a100-80 in pure bf16: training" in pure.sections[0].title
    assert [one.data["setting"]["param_dtype"] for one in (autocast, pure)] == ["fp32", "bf16"]
    predicted = [one.data["predicted_samples_per_s"]["value"] for one in (autocast, pure)]
    assert predicted[1] > predicted[0]


def test_table_is_judged_by_row(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    table.write_text(
        "model,batch,image_size,samples_per_s\n"
        "torchvision:resnet50,112,224,367\ntorchvision:resnet50,112,224,812\ntorchvision:resnet50,112,224,10\nnothing,1,224,5\n"
    )
    answer = chronograd.judge(None, table, on="v100", precision="fp32")
    assert [one["verdict"] for one in answer.data["verdicts"]] == ["as expected", "impossible", "slow"]
    assert answer.sections[0].takeaway == "1 impossible, 1 slow and 1 as expected."
    assert "nothing@224" in answer.data["left_out"]


def test_table_rows_with_other_settings_are_skipped(tmp_path: Path) -> None:
    """Skip other devices, precisions, phases and device counts."""
    table = tmp_path / "mixed.csv"
    rows = ["v100,training,fp32,1,367", "v100,inference,fp32,1,1100", "v100,training,amp,1,800",
            "t4,training,fp32,1,110", "v100,training,fp32,8,2900"]  # fmt: skip
    header = "model,batch_per_device,image_size,device,phase,precision,devices,samples_per_s"
    table.write_text("\n".join([header, *(f"torchvision:resnet50,112,224,{row}" for row in rows)]) + "\n")
    answer = chronograd.judge(None, table, on="v100", precision="fp32")
    assert [one["samples_per_s"] for one in answer.data["verdicts"]] == [pytest.approx(367)]
    assert answer.notes[0].startswith("4 rows of mixed.csv ran under other conditions and are left out")
    (other,) = chronograd.judge(None, table, on="v100", precision="amp").data["verdicts"]
    assert (other["samples_per_s"], other["setting"]["precision"]) == (pytest.approx(800), "fp16")
    with pytest.raises(InputError, match="more than one device: v100, t4"):
        chronograd.judge(None, table, precision="fp32")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([RESNET], "1 network and no figure"),
        ([RESNET, "1/s", "2/s"], "1 network and 2 figures"),
        (["1/s"], "no network"),
        ([RESNET, "lenet5", "1/s"], "2 networks"),
        ([RESNET, "1/s", "--precision", "tf32", "--on", "v100"], "no tf32 arithmetic"),
        ([RESNET, "1/s", "--on", "v1000"], "unknown device"),
        ([RESNET, "1/s", "--on", "v100", "--input", "3xa"], "is not a shape"),
    ],
)
def test_invalid_arguments(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", *words]) == 2
    assert message in capsys.readouterr().err


def test_unknown_network_suggests_near_names() -> None:
    with pytest.raises(NotFoundError, match="lenet6"):
        chronograd.judge("lenet6", "1/s", on="v100")


def test_tokens_per_second_use_the_sequence_length() -> None:
    one = judged("100000 tokens/s", "a100-40", "bf16", 8, network="gpt2-small", with_advice=False)
    (length,) = [size.const for size in TRACES(one.job, "training").input_shapes[0][1:]]
    assert one.rate == pytest.approx(100_000 / length)
    assert one.verdict in ("as expected", "slow")
    with pytest.raises(InputError, match="counts tokens"):
        judged("100 tokens/s", "v100", "fp32", 8)


def test_language_model_shows_tokens_and_samples() -> None:
    one = judged("100000 tokens/s", "a100-40", "bf16", 8, network="gpt2-small", with_advice=False)
    table = answer_of(one).sections[0].table
    assert table is not None
    assert table.columns[2] == "tokens/s"
    rows = {row[0].strip(): row for row in table.rows}
    assert rows["this figure"][2] == "100,000"
    assert rows["predicted"][2] == f"{1024 * one.predicted.samples_per_s:,.0f}"
    images = answer_of(judged("367 images/s", "v100", "fp32", 112, with_advice=False)).sections[0].table
    assert images is not None
    assert "tokens/s" not in images.columns


def test_published_figure_applies_to_other_layouts() -> None:
    """Published figures narrow the result; the wide prediction interval would contain a slow figure for any layout."""
    one = judged("2000/s", "8xv100", "fp32")
    assert one.verdict == "slow"
    assert one.predicted.holds(one.rate)
    assert not [option for option in one.explanations if "channels last" in option.words]
    smaller = next(option for option in one.explanations if option.words == ("batch 8 per device",))
    own = smaller.record.value("throughput_samples_per_s")
    for name in ("value", "low", "high"):
        learnt = getattr(one.expected, name) / one.predicted.samples_per_s
        assert getattr(smaller.rate, name) == pytest.approx(own * learnt)
    half = next(option for option in one.gains if option.words == ("fp16 (autocast)",))
    assert half.samples_per_s == half.record.value("throughput_samples_per_s")


def test_unspecified_layout_is_the_best_match() -> None:
    """NVIDIA's 1,200 on a V100 is not suspicious if the user leaves the layout open."""
    given, unspecified = (
        chronograd.judge(RESNET, "1200/s", *words, on="v100", precision="amp", batch=256).data
        for words in (["training.channels_last=false"], [])
    )
    assert (given["verdict"], unspecified["verdict"]) == ("suspicious", "as expected")
    assert unspecified["setting"]["is_layout_assumed"]
    assert unspecified["setting"]["channels_last"]
    slow = chronograd.judge(RESNET, "100/s", on="v100", precision="amp", batch=256).data
    assert (slow["verdict"], slow["setting"]["channels_last"]) == ("slow", False)


def test_suspiciously_high_figure_gets_no_gains() -> None:
    one = judged("2300/s", "a100-40", "bf16", 256)
    assert one.verdict == "suspicious"
    assert ("channels last",) in [option.words for option in one.explanations]
    assert not one.gains


def test_documented_tf32_gain_is_current() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "predicting.md").read_text().split())
    rates = [
        judged("1/s", "a100-80", name, 256, with_advice=False).predicted.samples_per_s for name in ("fp32", "tf32")
    ]
    assert f"ResNet-50 is predicted with {rates[0]:,.0f} images/s and {rates[1]:,.0f} images/s at batch 256" in page


# -- unspecified settings ---------------------------------------------------------------------------------------


def test_ambiguous_card_name_is_resolved_and_reported() -> None:
    """NVIDIA published 2,470 images/s for the 80 GB card with channels last; `a100` alone means the 40 GB card."""
    answer = chronograd.judge(RESNET, "2500 images/s", on="a100", precision="amp")
    assert (answer.data["verdict"], answer.data["setting"]["device"]) == ("as expected", "a100-80")
    assert set(answer.data["setting"]["assumed"]) == {"cluster.device=a100-80", "training.channels_last=true"}
    lines = " ".join(answer.sections[0].lines)
    assert "Assumed: a100 is the NVIDIA A100 SXM4 80 GB (a100-80)" in lines
    assert "a100-40" in lines


def test_exact_card_name_is_not_changed() -> None:
    answer = chronograd.judge(RESNET, "2500 images/s", "training.channels_last=false", on="a100-40", precision="amp")
    assert answer.data["verdict"] == "suspicious"
    assert answer.data["setting"]["device"] == "a100-40"


def test_figures_of_a_sister_card_are_scaled() -> None:
    there, here = (
        judged("2000/s", name, "fp16", 256, "training.channels_last=true") for name in ("a100-80", "a100-40")
    )
    assert [row.device for row in there.alike] == ["a100-80"]
    assert not here.alike
    ratio = here.predicted.samples_per_s / there.predicted.samples_per_s
    assert here.carried[0].samples_per_s == pytest.approx(there.alike[0].samples_per_s * ratio)
    middle = sorted([here.predicted.samples_per_s, here.carried[0].samples_per_s])
    assert middle[0] < (here.expected.value or 0) < middle[1]


def test_memory_format_is_explained_before_compiler() -> None:
    one = judged("2300/s", "a100-40", "bf16", 256)
    words = [option.words for option in one.explanations]
    assert words.index(("channels last",)) < words.index(("compiled",))


def test_missing_device_is_requested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", RESNET, "2500 images/s"]) == 2
    error = capsys.readouterr().err
    assert "on which device was '2500 images/s' measured?" in error
    assert "--on v100" in error


def test_above_peak_mentions_winograd() -> None:
    one = judged("200/s", "v100", "fp32", 64, network="torchvision:vgg16")
    assert one.verdict == "as expected"
    lines = " ".join(answer_of(one).sections[0].lines)
    assert "118 % of the peak" in lines
    assert "Winograd" in lines
    mfu = one.predicted.record["mfu"]
    assert mfu.value is not None
    assert mfu.value > 1
    assert mfu.high == pytest.approx(mfu.value**2 / (mfu.low or math.nan))
    assert any("Winograd" in note for note in one.predicted.record.notes)


@pytest.mark.parametrize(
    ("device", "figure", "words"),
    [
        ("h100", "11200 tokens/s/gpu", "Arithmetic in fp8 comes nearest"),
        ("h100", "6900 tokens/s/gpu", "Recomputation full comes nearest"),
        ("h100", "4900 tokens/s/gpu", "None of the settings"),  # plain attention does not fit
        ("a100-80", "4500 tokens/s/gpu", "None of the settings"),  # it has no fp8
    ],
)
def test_setting_that_explains_the_speed_of_a_large_model(device: str, figure: str, words: str) -> None:
    judged = chronograd.judge("llama-3-8b", figure, on=f"8x{device}", fsdp=True, sequence=8192)
    assert judged.sections[1].takeaway.startswith(words)

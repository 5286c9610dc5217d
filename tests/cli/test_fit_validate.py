"""`chronograd fit device` and `validate` on a table that follows a known calibration, plus noise."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chronograd.calibrate.tables import join
from chronograd.cli.main import main
from chronograd.fit.tables import ThroughputRow, ThroughputTable
from chronograd.hardware import catalog
from chronograd.hardware.hosts import host_of
from chronograd.predict.calibration import calibrations, from_datasheet

timm = pytest.importorskip("timm")

TIMM_NAME = "benchmark-infer-amp-nhwc-pt240-cu124-rtx3090.csv"
NOISE = 0.02
FIELDS = {"n", "mape", "median_ape", "p90_ape", "worst", "coverage80", "families", "worst_rows"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def rows(home: Path) -> list[ThroughputRow]:
    """Return timm's test networks at two sizes on a GPU slower than its data sheet."""
    sheet = from_datasheet(catalog.device("rtx3090"), "fp16")
    classes = {
        name: replace(rate, compute=0.6 * rate.compute, bandwidth=0.8 * rate.bandwidth, launch_s=2 * rate.launch_s)
        for name, rate in sheet.classes.items()
    }
    launch_s = host_of(catalog.device("rtx3090")).launch_s("inference")
    truth = replace(sheet, classes=classes, host_launch_s=launch_s)
    asked = [ThroughputRow(name, size, 64, 1.0) for name in timm.list_models("test_*") for size in (160, 192)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home))
        timed = join(ThroughputTable("t.csv", tuple(asked), "inference", "fp16", "nhwc"), asked).timed
    assert len(timed) >= 20
    noise = np.exp(NOISE * np.random.default_rng(0).standard_normal(len(timed)))
    seconds = [t.sample.work.total_seconds(truth) * float(n) for t, n in zip(timed, noise, strict=True)]
    return [replace(t.row, seconds=s) for t, s in zip(timed, seconds, strict=True)]


@pytest.fixture(autouse=True)
def _place(home: Path, tmp_path: Path, rows: list[ThroughputRow], monkeypatch: pytest.MonkeyPatch) -> None:
    """Write timm's form of the table, and one with times only."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    write(TIMM_NAME, "model,infer_img_size,infer_batch_size,infer_samples_per_sec", [
        (r.model, r.image_size, r.batch, r.batch / r.seconds) for r in rows
    ])  # fmt: skip
    write("mine.csv", "network,size,batch,step_time_ms", [
        (r.model, r.image_size, r.batch, 1e3 * r.seconds) for r in rows
    ])  # fmt: skip


def write(name: str, header: str, lines: list[tuple[Any, ...]]) -> None:
    with Path(name).open("w", newline="") as stream:
        csv.writer(stream).writerows([header.split(","), *lines])


def validated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["validate", *arguments, "--prior", "datasheet", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_few_rows_predict_a_table_that_follows_the_model(
    rows: list[ThroughputRow], capsys: pytest.CaptureFixture[str]
) -> None:
    found = validated(capsys, TIMM_NAME, "--calibrate", "20")
    assert set(found) >= FIELDS
    assert found["n"] == len(rows) - 20
    assert found["mape"] < 0.08  # 2 % is noise; twenty rows cannot separate thirty classes
    assert found["median_ape"] <= found["p90_ape"] <= found["worst"]
    assert 0.6 <= found["coverage80"] <= 1.0
    assert (found["device"], found["precision"], found["mode"], found["layout"]) == (
        *("rtx3090", "fp16", "inference", "nhwc"),
    )
    assert sum(family["n"] for family in found["families"].values()) == found["n"]
    assert len(found["worst_rows"]) == 10
    worst = found["worst_rows"][0]
    assert abs(np.log(worst["predicted_over_measured"])) >= abs(
        np.log(found["worst_rows"][-1]["predicted_over_measured"])
    )
    assert 0.5 < sum(worst["share_by_family"].values()) <= 1.01
    untaught = validated(capsys, TIMM_NAME, "--calibrate", "0")
    assert untaught["n"] == len(rows)
    assert untaught["mape"] < 0.08  # predicted with the shipped calibration only


def test_row_choice_depends_on_the_seed_only(capsys: pytest.CaptureFixture[str]) -> None:
    first, again, other = (validated(capsys, TIMM_NAME, "--calibrate", "12", "--seed", s) for s in "334")
    assert first == again
    assert first["calibrated_on"] != other["calibrated_on"]
    assert len(set(first["calibrated_on"])) == 12
    predicted = {f"{w['model']}@{w['image_size']}" for w in first["worst_rows"]}
    assert not predicted & set(first["calibrated_on"])
    assert validated(capsys, TIMM_NAME, "--calibrate", "12", "--seed", "3", "--rows", "5")["n"] == 5


@pytest.mark.slow
def test_stated_options_equal_those_in_the_file_name(capsys: pytest.CaptureFixture[str]) -> None:
    stated = ["--device", "rtx3090", "--precision", "amp", "--layout", "nhwc", "--phase", "inference"]
    mine = validated(capsys, "mine.csv", "--calibrate", "12", *stated)
    inferred = validated(capsys, TIMM_NAME, "--calibrate", "12")
    assert mine["calibrated_on"] == inferred["calibrated_on"]
    assert mine["mape"] == pytest.approx(inferred["mape"], rel=1e-6)
    assert validated(capsys, TIMM_NAME, "--calibrate", "12", "--layout", "nchw")["layout"] == "nchw"
    assert validated(capsys, TIMM_NAME, "--calibrate", "0", "--compiled")["is_compiled"] is True


def test_rows_with_other_settings_are_reported(rows: list[ThroughputRow], capsys: pytest.CaptureFixture[str]) -> None:
    lines = [(r.model, r.image_size, r.batch, r.seconds, ("rtx3090", "t4")[i % 2]) for i, r in enumerate(rows)]
    write("cards.csv", "model,size,batch,step_time_s,device", lines)
    stated = ["--precision", "amp", "--phase", "inference", "--layout", "nhwc", "--calibrate", "0", "--rows", "2"]
    assert main(["validate", "cards.csv", "--device", "rtx3090", *stated, "--prior", "datasheet"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert (
        f"{len(rows) // 2} rows of cards.csv ran under other conditions and are left out: {len(rows) // 2} device t4"
        in text
    )


def test_text_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", TIMM_NAME, "--calibrate", "12"]) == 0
    printed = capsys.readouterr()
    text = printed.out + printed.err
    assert "inference, fp16, nhwc, eager, torch 2.4.0" in text
    assert "80 % interval covers" in text
    assert "mean error bias median" in " ".join(text.split())
    assert "predicted / measured" in text


def test_fitted_device_works_with_on(rows: list[ThroughputRow], capsys: pytest.CaptureFixture[str]) -> None:
    fit = ["fit", "device", TIMM_NAME, "--prior", "datasheet", "--out", "mine.toml"]
    assert main(fit) == 0
    text = capsys.readouterr().out
    assert f"Fitted to {len(rows)} networks; 0 rows left out" in text
    assert "use it with --on" in text
    (setting,) = calibrations(catalog.device("mine.toml"))
    assert (setting.origin, setting.precision, setting.mode, setting.channels_last) == (
        *("fitted", "fp16", "inference", True),
    )
    assert setting.provenance["table"] == TIMM_NAME
    assert setting.sigma < 4 * NOISE
    # A second layout is added; an equal layout replaces the first.
    for layout, settings in (("nchw", 2), ("nchw", 2), ("nhwc", 2)):
        assert main([*fit, "--layout", layout, "--rows", "12", "--seed", "1", "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed["calibration"]["provenance"]["samples"] == 12
        assert printed["left_out"] == {}
        assert len(calibrations(catalog.device("mine.toml"))) == settings
    Path("job.yaml").write_text(
        "mode: inference\nnetwork: {name: resnet20}\ndata: {name: synthetic, shape: [3, 32, 32], classes: 10}\n"
        "training: {recipe: sgd, batch: 128, precision: fp16, channels_last: true}\ncluster: {device: v100}\n"
    )
    assert main(["predict", "job.yaml", "--on", "mine.toml", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["provenance"]["calibration"]["table"] == TIMM_NAME
    assert record["cluster"]["device"] == "rtx3090"


def test_fit_needs_four_rows(capsys: pytest.CaptureFixture[str]) -> None:
    fit = ["fit", "device", TIMM_NAME, "--prior", "datasheet", "--json"]
    assert main([*fit, "--rows", "4"]) == 0
    assert json.loads(capsys.readouterr().out)["calibration"]["provenance"]["samples"] == 4
    assert main([*fit, "--rows", "3"]) == 2
    assert "not in the range x>=4" in capsys.readouterr().out
    assert len(validated(capsys, TIMM_NAME, "--calibrate", "4", "--rows", "2")["calibrated_on"]) == 4
    for verb in (["fit", "device"], ["validate"]):
        assert main([*verb, "--help"]) == 0
        assert "at least four" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine.csv"], "does not state its device"),
        (["mine.csv", "--device", "rtx3090"], "does not state the precision"),
        (["mine.csv", "--device", "rtx309"], "did you mean rtx3090"),
        (["mine.csv", "--device", "rtx3090", "--layout", "nwhc"], "'nwhc' is not one of"),
        (["mine.csv", "--device", "rtx3090", "--precision", "fp32"], "for inference or training"),
        (["mine.csv", "--device", "k80", "--precision", "amp", "--phase", "inference"], "no fp16 arithmetic"),
        (["nothing.csv", "--device", "rtx3090"], "there is no file nothing.csv"),
        (["few.csv", "--device", "rtx3090", "--precision", "fp32", "--phase", "inference"], "rows|samples"),
    ],
)
@pytest.mark.parametrize("verb", [["fit", "device"], ["validate"]], ids=["fit", "validate"])
def test_mistakes_get_one_message(
    verb: list[str], arguments: list[str], message: str, rows: list[ThroughputRow], capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        "few.csv", "model,img_size,batch,step_time_s", [(r.model, r.image_size, r.batch, r.seconds) for r in rows[:3]]
    )
    assert main([*verb, *arguments]) == 2
    error = capsys.readouterr().err
    assert any(word in error for word in message.split("|"))
    assert "Traceback" not in error

"""Excessive numbers and shapes, and missing folders: one clear error, quickly, and no file written."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronograd.cli.main import main

JOB = str(Path(__file__).parent.parent.parent / "examples" / "digits.yaml")
SYNTHETIC = ("data.name=synthetic", "data.classes=10")
HUGE = "data.shape=[3,100000,100000]"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("trace") / "net.json.gz")
    assert main(["count", JOB, "--out", path]) == 0
    return path


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(list(words)) == 2
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    return printed


@pytest.mark.parametrize(
    "words",
    [
        ("predict", JOB, "--on", "v100", *SYNTHETIC, HUGE),
        ("count", "resnet20", "--input", "3,100000,100000"),
        ("count", "resnet20", "--input", "3,99999999999999999999,10"),
        ("count", "resnet20", "--fixed-batch", "99999999999999999999"),
    ],
)
def test_input_beyond_addressable_memory(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    printed = refused(capsys, *words)
    assert "is too large to trace" in printed
    assert "To fix: " in printed


@pytest.mark.parametrize("verb", ["train", "measure"])
def test_images_larger_than_memory(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = refused(capsys, verb, JOB, *SYNTHETIC, HUGE, "cluster.device=cpu")
    # 1024 training and 256 test images of 3e10 bytes.
    assert "1,280 synthetic images of 3 × 100000 × 100000 take 38.4 TB" in printed
    assert list(tmp_path.iterdir()) == []


def test_samples_larger_than_memory(capsys: pytest.CaptureFixture[str]) -> None:
    printed = refused(capsys, "data", "synthetic", "shape=[1,8,8]", "classes=10", "samples=800000000000")
    assert "1,000,000,000,000 synthetic images of 1 × 8 × 8 take 64 TB" in printed


def test_excessive_number_of_classes(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("predict", JOB, "--on", "v100", "--trace", trace, "data.name=synthetic", "data.shape=[1,8,8]")
    printed = refused(capsys, *words, "data.classes=1000000000")
    assert "data.classes" in printed
    assert "1000000" in printed
    # The largest allowed number; the trace has 10.
    assert "is of 10 classes; the job has 1000000" in refused(capsys, *words, "data.classes=1000000")


@pytest.mark.parametrize("option", ["--batches", "--counts"])
def test_excessive_plan_settings(option: str, trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", JOB, "--trace", trace, "--on", "v100", option)
    # The largest readable number exceeds the samples of digits.
    for number in ("99999999999999999999", "1000000001"):
        assert f"{option}" in (printed := refused(capsys, *words, number))
        assert "at most 1,000,000,000" in printed
    why = {
        "--batches": "so no batch is full",
        "--counts": "batch 64 cannot be divided evenly among 1000000000 devices",
    }[option]
    assert why in refused(capsys, *words, "1000000000")


def test_excessive_device_counts(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "predict",
        JOB,
        "--on",
        "v100",
        "--trace",
        trace,
        "--on",
        "v100",
        "--scaling",
        "weak",
        "--counts",
        "99999999999999999999",
    )
    assert "at most 1,000,000,000" in refused(capsys, *words)


def test_record_for_a_missing_folder(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "nowhere" / "record.json"
    printed = refused(capsys, "predict", JOB, "--trace", trace, "--on", "v100", "--out", str(out))
    assert f"cannot write {out}: No such file or directory" in printed
    assert "To fix: name a file in a folder that exists" in printed
    assert not out.parent.exists()

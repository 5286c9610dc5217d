"""`chronograd data`: the card as a table, as JSON, and as an HTML page with pictures."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from chronograd.cli.main import main
from chronograd.data import datasets
from chronograd.data.answer import data_set, describe
from chronograd.data.labels import write_labels
from chronograd.job import Data


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    status = main(["data", *map(str, arguments)])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    return printed.out


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "digits", "samples=100", "label_noise=0.5")
    loaded = datasets.load(Data(name="digits", samples=100, label_noise=0.5))
    assert "1 × 8 × 8 (channels, height, width), whole numbers 0 … 16" in out
    assert f"{loaded.mean_C[0]:.4f}" in out
    counts = np.bincount(loaded.train_labels.numpy(), minlength=10)
    for name, count in zip("0123456789", counts, strict=True):
        assert re.search(rf"^ *{name} +{count} +3[567]$", out, re.M)
    assert "note: label noise of 0.5" in out


def test_json_matches_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    card: dict[str, Any] = json.loads(run(capsys, "digits", "normalisation=raw", "--json"))
    assert (card["shape"], card["num_classes"], card["train_size"], card["test_size"]) == ([1, 8, 8], 10, 1437, 360)
    assert sum(c["train_images"] for c in card["classes"]) == 1437
    assert sum(c["test_images"] for c in card["classes"]) == 360
    assert card["scale"] == [255 / 16]
    assert card["shift"] == [0]
    labels = datasets.load(Data(name="digits")).train_labels
    assert [s["class"] for s in card["sample_images"]] == ["0", "1"]
    for shown in card["sample_images"]:
        expected = np.flatnonzero(labels.numpy() == int(shown["class"]))[:4]
        assert shown["samples"] == expected.tolist()


def test_only_the_terminal_shortens_many_classes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("synthetic", "shape=[1,2,2]", "classes=60")
    assert "… and 20 more; --json has all" in run(capsys, *words)
    assert len(json.loads(run(capsys, *words, "--json"))["classes"]) == 60


def test_python_gets_the_same_answer() -> None:
    data = Data(name="digits", normalisation="raw")
    shown = describe(data, data_set(data), is_page=True)
    card, classes, pixels = shown.sections
    assert card.takeaway == "1,437 training and 360 test images of 10 classes; one image is 1 × 8 × 8 = 64 numbers."
    assert card.figure is not None
    assert len(card.figure.rows()) == 8
    largest = max(shown.data["classes"], key=lambda row: row["train_images"])
    assert (
        f"guessing {largest['name']} is right for {largest['test_images'] / 3.6:.1f} % of the test" in classes.takeaway
    )
    assert pixels.takeaway == "With normalisation raw, pixels of 0 … 16 become 0 … 255."
    assert describe(data, data_set(data)).sections[0].figure is None


def test_probabilities_are_summed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_labels(
        tmp_path / "soft.npz", np.array([1, 2]), probability=np.array([[0.5, 0.5, *[0] * 8], [0.25, 0, 0.75, *[0] * 7]])
    )
    out = run(capsys, "digits", f"labels={tmp_path}/soft.npz")
    assert re.search(r"^ *0 +0\.8 +\d+$", out, re.M)
    card = json.loads(run(capsys, "digits", f"labels={tmp_path}/soft.npz", "--json"))
    assert [c["train_images"] for c in card["classes"]][:3] == [0.75, 0.5, 0.75]


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_page_shows_four_pictures_of_two_classes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, channels: int
) -> None:
    out = tmp_path / "new" / "card.html"
    words = ("synthetic", f"shape=[{channels},6,5]", "classes=3", "samples=60", "--out", out)
    assert f"saved {out}" in run(capsys, *words)
    page = out.read_text()
    loaded = datasets.load(Data(name="synthetic", shape=(channels, 6, 5), classes=3, samples=60))
    found = re.findall(r"data:image/png;base64,([A-Za-z0-9+/=\s]+)", page)
    shown = [Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB") for text in found]
    numbers = [n for c in (0, 1) for n in np.flatnonzero(loaded.train_labels.numpy() == c)[:4]]
    assert len(shown) == 8
    for picture, number in zip(shown, numbers, strict=True):
        pixels_CHW = loaded.train.batch(np.array([number]))[0].numpy()
        expected = pixels_CHW.transpose(1, 2, 0) if channels == 3 else np.repeat(pixels_CHW[0][:, :, None], 3, axis=2)
        assert np.array_equal(np.asarray(picture), expected)
        assert re.search(rf"number\s{number}\b", page)
    assert "http" not in re.sub(r"http://www\.w3\.org|arxiv\.org", "", page)


def test_folder_with_damaged_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, folder: Callable[..., Path]
) -> None:
    folder(tmp_path, {"ants": 5, "bees": 5}, {"ants": 1, "bees": 1})
    (tmp_path / "train/ants/000.png").write_text("no picture")
    out = run(capsys, f"folder:{tmp_path}", "image_size=16", "--out", tmp_path / "card.html")
    assert re.search(r"^ *ants +4 +1$", out, re.M)
    assert "note: left out 1 file" in out
    assert "left out 1 file" in (tmp_path / "card.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cifar"], "did you mean cifar10 or cifar100"),
        (["digits", "sampels=3"], "did you mean samples"),
        (["digits", "samples=0"], "data.samples"),
        (["digits", "samples"], "write name=value"),
        (["digits", "--out", "{tmp}/file/card.html"], "cannot write"),
    ],
)
def test_mistakes_are_explained(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], message: str
) -> None:
    (tmp_path / "file").touch()
    assert main(["data", *(word.format(tmp=tmp_path) for word in words)]) == 2
    assert message in capsys.readouterr().err

"""Default training of a job, its assumptions, and the figures that `predict` then omits."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from chronograd import api, ask
from chronograd.data import datasets


def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return torchvision's file of ResNet-18 in an own cache; the file exists, but is empty."""
    monkeypatch.setenv("TORCH_HOME", str(folder))
    file = folder / "hub" / "checkpoints" / "resnet18-f37072fd.pth"
    file.parent.mkdir(parents=True)
    file.touch()
    return file


def test_folder_of_few_pictures_is_fine_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ants", "bees"):
        (tmp_path / "imgs" / name).mkdir(parents=True)
        for i in range(120):
            Image.new("RGB", (8, 8)).save(tmp_path / "imgs" / name / f"{i}.png")
    data = {"data": f"folder:{tmp_path / 'imgs'}"}
    weights = cache(tmp_path, monkeypatch)
    tuned = ask.ask("torchvision:resnet18", short=data)
    assert (tuned.job.network.weights, tuned.job.training.recipe) == ("torchvision", "fine-tuning")
    assert (tuned.job.training.batch, tuned.job.training.epochs, tuned.job.training.schedule) == (16, 20, "multi_step")
    assert tuned.notes == ()
    weights.unlink()
    fresh = ask.ask("torchvision:resnet18", short=data)
    assert fresh.job.network.weights is None
    assert "network.weights=torchvision" in fresh.notes[0]
    assert ask.ask("torchvision:resnet18", short=data, can_download=True).job.network.weights == "torchvision"


def test_epoch_of_very_few_pictures_has_four_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate scales with the batch: 0.01 at 64."""
    for i in range(40):
        (tmp_path / f"imgs/{i % 2}").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / f"imgs/{i % 2}/{i}.png")
    cache(tmp_path, monkeypatch)
    job = ask.ask("torchvision:resnet18", short={"data": f"folder:{tmp_path / 'imgs'}"}).job
    pictures = datasets.card(job.data).train_size
    assert (job.training.batch, pictures // job.training.batch) == (pictures // 4, 4)
    assert job.training.learning_rate == pytest.approx(0.01 * job.training.batch / 64, abs=1e-6)


def test_default_optimizer_of_the_family_is_stated() -> None:
    asked = ask.ask("timm:vit_small_patch16_224", short={"data": "cifar10"})
    assert asked.job.training.optimizer == "adamw"
    assert asked.assumed["optimizer"].startswith("AdamW")
    assert not asked.has_epochs
    stated = ask.ask("resnet20", ["training.optimizer=adamw"], {"batch": 32})
    assert not {"optimizer", "batch"} & stated.assumed.keys()
    assert stated.assumed["data"] == "data set cifar10"


def test_no_total_without_data_or_epochs() -> None:
    made_up = api.predict("gpt2-small", on="v100").records["v100"]
    known_data = api.predict("torchvision:googlenet", on="v100").records["v100"]
    for record in (made_up, known_data):
        assert record["training_time_s"].value is record["cost_usd"].value is None
        assert record["step_time_s"].value
        assert any(note.startswith("Assumed, because you did not state it: ") for note in record.notes)
    assert made_up["epoch_time_s"].value is None
    assert known_data["epoch_time_s"].value
    assert api.predict("torchvision:googlenet", "training.epochs=3", on="v100").records["v100"]["cost_usd"].value


def test_saved_trace_equals_its_network(tmp_path: Path) -> None:
    from chronograd.count.network import trace_network

    path = tmp_path / "net.json.gz"
    trace_network("resnet20").save(path)
    network, trace = (api.predict(one, on="v100").records["v100"] for one in ("resnet20", str(path)))
    assert network["training_time_s"].value == pytest.approx(trace["training_time_s"].value)
    assert network.notes[0] == trace.notes[0]


def test_layout_of_a_trace_overrides_the_recipe(tmp_path: Path) -> None:
    from chronograd.count.network import trace_network

    path = tmp_path / "net.json.gz"
    trace_network("resnet50").save(path)
    answer = api.plan(str(path), on=["v100"], counts=[8], target_accuracy=0.75, budget_usd=500)
    assert answer.data["verdict"] == "rent"
    assert any("images as counted" in text for text in answer.data["assumed"])

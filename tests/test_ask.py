"""A network's name in place of a job file: the resulting job, and refusals before torch is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from chronograd import ask, known
from chronograd import job as jobs
from chronograd.cli.main import main
from chronograd.data import catalogue, datasets
from chronograd.errors import InputError, JobError, NotFoundError
from chronograd.job import Data
from chronograd.models import names, registry
from chronograd.plan.effort import effort_of, other_recipe
from chronograd.usual import ENOUGH

MINE = """
from torch import nn
import beside

class Mine(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, beside.WIDTH, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(beside.WIDTH, num_classes)

    def forward(self, x):
        return self.head(self.layers(x))
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "beside.py").write_text("WIDTH = 6\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return "mine.py:Mine"


def test_name_and_data_set_use_the_published_recipe() -> None:
    job = ask.job_of("resnet50", short={"data": "imagenet", "precision": "bf16"})
    assert (job.network.name, job.data.name) == ("resnet50", "imagenet")
    assert (job.training.batch, job.training.epochs, job.training.schedule) == (256, 90, "multi_step")
    assert job.training.precision == "bf16"
    assert datasets.card(job.data).train_size == 1_281_167


def test_name_alone_uses_its_published_data_set() -> None:
    assert ask.job_of("resnet20").data.name == "cifar10"
    assert ask.job_of("torchvision:mobilenet_v2").data.name == "imagenet"
    assert ask.job_of("timm:vit_base_patch16_224").data.name == "imagenet"
    larger = ask.job_of("timm:vit_base_patch16_384").data
    assert (larger.name, larger.shape) == ("synthetic", (3, 384, 384))
    assert datasets.card(ask.job_of("lenet5").data).shape == (1, 28, 28)


def test_network_of_tokens_reads_tokens_of_the_stated_length() -> None:
    data = ask.job_of("gpt2-small", ["data.shape=[512]"]).data
    assert (data.name, data.shape, data.classes) == ("tokens", (512,), 50257)
    assert ask.job_of("small-cnn", ["data.shape=[3,16,16]"]).data.name == "synthetic"


def test_other_size_of_a_known_set() -> None:
    job = ask.job_of("torchvision:resnet50", short={"data": "imagenet", "input": (3, 160, 160)})
    assert datasets.card(job.data).shape == (3, 160, 160)


def test_overrides_win_and_short_forms_work_for_files(tmp_path: Path) -> None:
    assert ask.job_of("resnet20", ["training.epochs=3"]).training.epochs == 3
    assert ask.job_of("resnet20", ["data.name=cifar100"]).data.name == "cifar100"
    path = tmp_path / "job.yaml"
    path.write_text(jobs.to_yaml(ask.job_of("resnet20")))
    assert ask.job_of(path, short={"batch": 32, "data": "cifar100"}).training.batch == 32
    with pytest.raises(JobError, match="no job file at"):
        ask.job_of(tmp_path / "other.yaml")


def test_resolved_job_is_saved_and_equal(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    assert main(["plan", "resnet18-cifar", "--data", "cifar10", "--batch", "64", "--largest-batch", "--on", "v100",
                 "--save-job", str(path), "--json"]) == 0  # fmt: skip
    assert len(path.read_text().splitlines()) < 12
    assert jobs.load(path) == ask.job_of("resnet18-cifar", short={"data": "cifar10", "batch": 64})


def test_user_file_as_a_network(mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", mine, "--input", "3,16,16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["params"] == 6 * 3 * 9 + 6 + 6 * 10 + 10
    assert main(["predict", mine, "--input", "3,16,16", "--classes", "7", "--on", "v100", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["job"]["data"]["classes"] == 7
    with pytest.raises(InputError, match="sample shape of") as refused:
        ask.job_of(mine)
    assert "--input" in refused.value.hint
    with pytest.raises(InputError, match="cannot import nowhere"):
        ask.job_of("nowhere.py:Mine")


def test_changed_file_is_read_again(mine: str) -> None:
    from chronograd.models import registry

    path = Path(mine.partition(":")[0])
    assert registry.build(mine).head.out_features == 10
    path.write_text(MINE.replace("num_classes=10", "num_classes=11 "))
    assert registry.build(mine).head.out_features == 11


def test_wrong_names_are_refused_before_torch_is_imported(capsys: pytest.CaptureFixture[str]) -> None:
    for words, near in (
        (["predict", "resnet51", "--on", "v100"], "resnet50"),
        (["predict", "mobilenet_v22", "--on", "v100"], "mobilenet_v2"),
        (["predict", "resnet50", "--on", "v1000"], "v100"),
        (["plan", "gpt2", "--on", "v100"], "gpt2-small"),
        (["predict", "gpt2-small", "--on", "v1000"], "v100"),
        (["predict", "resnet50", "--data", "imagenette2", "--on", "v100"], "imagenette"),
        (["predict", "resnet50", "--data", "c4", "--on", "v100"], "is text"),
    ):
        code = f"import sys; from chronograd.cli.main import main; main({words}); print('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert near in done.stderr, words
        assert done.stdout == "False\n", words


def test_several_devices_for_one_rank_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["resnet20", "cluster.count=2", "cluster.device=v100"]
    assert main(["predict", *words]) == 2
    assert "backend is single, which has one rank" in capsys.readouterr().err
    assert main(["predict", *words[:1], "--on", "2xv100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["job"]["backend"] == "ddp"


# -- data sets of plans -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(catalogue.sets()))
def test_catalogue_set_works_for_plans_without_its_files(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    one = catalogue.sets()[name]
    assert one.source
    assert one.date
    assert one.tag in ("verified", "recalled")
    assert (one.tokens is None) == (one.classes is not None)
    assert main(["data", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["train_size"] == one.train_size
    data = Data(name=name)
    if one.classes is None:
        with pytest.raises(InputError, match="is text"):
            datasets.card(data)
        return
    assert datasets.card(data).train_size == one.train_size
    for read in (datasets.fetch, datasets.load):
        with pytest.raises(InputError, match="is for planning only"):
            read(data)


def test_list_has_every_data_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "--list", "--json"]) == 0
    listed = {row["name"] for row in json.loads(capsys.readouterr().out)}
    assert listed == {*catalogue.sets(), "cifar10", "cifar100", "digits", "fashion-mnist"}
    with pytest.raises(NotFoundError, match="did you mean imagenet"):
        datasets.card(Data(name="imagenett"))


# -- recipes with a known result ----------------------------------------------------------------------------


def test_target_uses_the_recipe_with_the_least_work() -> None:
    for target, name in ((0.74, "MosaicML Mild, 29 epochs"), (0.77, "FFCV rn50, 56 epochs"), (0.80, "torchvision v2")):
        result = known.cheapest("resnet50", "imagenet", target, ENOUGH) or known.cheapest(
            "resnet50", "imagenet", target
        )
        assert result is not None
        job = ask.job_of("resnet50", short={"data": "imagenet"}, target=target)
        assert (result.name, job.training.epochs, job.training.batch) == (name, result.epochs, result.batch)
        assert job.data.image_size == result.image_size
        assert known.of_job(job) is result


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("efficientnet_b0", "torchvision:efficientnet_b0"),
        ("resnet152", "torchvision:resnet152"),
        ("convnext_tiny", "torchvision:convnext_tiny"),
        ("vit_small_patch16_224", "timm:vit_small_patch16_224"),
        ("resnet50", "resnet50"),
        ("alexnet", "alexnet"),
        ("timm:resnet50", "timm:resnet50"),
        ("mine.py:Net", "mine.py:Net"),
    ],
)
def test_bare_name_prefers_zoo_then_torchvision_then_timm(name: str, full: str) -> None:
    assert names.resolved(name) == full
    if "mine" not in name:
        assert ask.job_of(name).network.name == full
        assert registry.build(name, device="meta") is not None


def test_unknown_name_suggests_names_of_all_libraries() -> None:
    for name, near in (
        ("efficientnet_b99", "efficientnet_b"),
        ("vit_smal_patch16_224", "vit_small_patch16_224"),
        ("resnet21", "resnet20"),
    ):
        with pytest.raises(NotFoundError) as refused:
            ask.job_of(name)
        assert near in refused.value.hint


def test_default_recipe_has_a_batch_for_one_device() -> None:
    job = ask.job_of("timm:vit_small_patch16_224", short={"data": "imagenet"})
    assert (job.training.optimizer, job.training.batch, job.training.epochs) == ("adamw", 256, 90)
    assert job.training.learning_rate == pytest.approx(1e-3 / 4)
    assert datasets.card(ask.job_of("torchvision:wide_resnet50_2").data).shape == (3, 224, 224)
    assert datasets.card(ask.job_of("torchvision:efficientnet_b7").data).shape == (3, 600, 600)
    named = ask.job_of("torchvision:efficientnet_b7", short={"data": "imagenet"})
    assert datasets.card(named.data).shape == (3, 600, 600)
    assert datasets.card(ask.job_of("torchvision:efficientnet_b7", short={"data": "cifar10"}).data).shape == (3, 32, 32)
    assert datasets.card(ask.job_of("torchvision:efficientnet_b7", short={"input": (3, 64, 64)}).data).shape == (
        3,
        64,
        64,
    )


def test_reachable_goal_takes_the_recipes_epochs() -> None:
    job = ask.job_of("resnet50", short={"data": "imagenet"})
    effort = effort_of(job, 1_281_167, target=0.75)
    assert effort.reached > 0.99
    assert effort.note == ""
    for batch in (256, 2048, 8192):
        steps, sigma = effort.steps(batch)
        assert steps == pytest.approx(90 * 1_281_167 / batch)
        assert sigma < 0.02
    beyond, sigma = effort.steps(32_768)
    at_most = 90 * 1_281_167 / 8192
    assert at_most / 4 < beyond < at_most
    assert sigma > 0.4


def test_unreachable_goal_and_unknown_schedule() -> None:
    job = ask.job_of("resnet50", short={"data": "imagenet"})
    effort = effort_of(job, 1_281_167, target=0.79)
    assert effort.reached < 0.01
    assert "reaches 76.26 % in published runs, not 79 %" in effort.note
    constant = ask.job_of("resnet50", ["training.recipe=sgd-momentum", "training.milestones=[]",
                                       "training.schedule=constant"], {"data": "imagenet"})  # fmt: skip
    note = effort_of(constant, 1_281_167, target=0.75).note
    assert note.startswith("A recipe that reaches 76.19 % is MosaicML Mild, 29 epochs")
    assert "training.epochs=29" in note
    assert other_recipe(constant, None, None) == ""


def test_existing_folder_is_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imgs").mkdir()
    (tmp_path / "digits").mkdir()
    names = ("imgs", str(tmp_path / "imgs"), "digits", "absent", "imagenet:imgs")
    assert [ask.set_named(name) for name in names] == [
        "folder:imgs",
        f"folder:{tmp_path / 'imgs'}",
        "digits",
        "absent",
        "imagenet:imgs",
    ]
    assert ask.as_overrides({"data": "imgs"}) == ["data.name=folder:imgs"]


def test_code_file_without_a_name_lists_its_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_unet.py").write_text("class UNet: ...\ndef small(): ...\ndef _own(): ...\nraise SystemExit('it ran')\n")
    Path("broken.py").write_text("class (\n")
    with pytest.raises(JobError, match=r"my_unet\.py is Python code, not a job file") as told:
        ask.ask("my_unet.py")
    assert told.value.hint == "name the class or function: my_unet.py:NAME (it defines UNet, small)"
    with pytest.raises(JobError) as told:
        ask.ask("broken.py")
    assert told.value.hint == "name the class or function: broken.py:NAME"

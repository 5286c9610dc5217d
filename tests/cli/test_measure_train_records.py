"""The verbs measure, train and records on real processes, with data from scikit-learn."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from chronograd.cli.main import main
from chronograd.record import STEP_PARTS
from chronograd.rundir import RunDir

JOB = """
network: {name: "tiny_networks:plain"}
data: {name: digits}
training: {recipe: sgd-one-cycle, epochs: 2, batch: 64}
cluster: {device: cpu, threads: 1}
"""
TRUSTED = ("--trust", "tiny_networks")
NETWORKS = Path(__file__).parent.parent / "train"


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(NETWORKS), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(NETWORKS))
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)


def test_train_then_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "job.yaml", "--out", "runs/mine"]) == 0
    printed = capsys.readouterr()
    assert [line.split()[1] for line in printed.err.splitlines()] == ["runs/mine", "1/2", "2/2"]
    assert "\x1b" not in printed.out + printed.err
    assert main(["train", "--resume", "runs/mine", "--json"]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert trained["run"] == "runs/mine"
    assert trained["quantities"]["test_accuracy"]["value"] > 0.5
    assert main(["records", "--json", "--kind", "measured", "--job", "plain"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed["path"] == "runs/mine"
    for nothing in (["--job", "resnet"], ["--kind", "predicted"], ["--device", "k80"], ["--in", "elsewhere"]):
        assert main(["records", *nothing]) == 0
        assert "no records" in capsys.readouterr().out
    assert main(["records", "mine"]) == 0
    assert "accuracy on the test split" in capsys.readouterr().out
    assert main(["records"]) == 0
    assert "mine" in capsys.readouterr().out


def test_finished_run_can_be_extended(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "job.yaml", "--out", "runs/mine"]) == 0
    capsys.readouterr()
    before = {path.name: path.read_bytes() for path in Path("runs/mine").iterdir() if path.is_file()}
    for words, message in (
        (["training.epochs=1"], "can only get more training.epochs than its 2; this would change: training.epochs=1"),
        (["training.batch=32"], "this would change: training.batch"),
        (["training.epochs=3", "training.seed=7"], "this would change: training.epochs, training.seed"),
        (["training.epoch=3"], "did you mean epochs"),
    ):
        assert main(["train", "--resume", "runs/mine", *words]) == 2
        assert message in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in Path("runs/mine").iterdir() if path.is_file()} == before
    assert main([*TRUSTED, "train", "--resume", "runs/mine", "training.epochs=3", "--json"]) == 0
    printed = capsys.readouterr()
    # With 44 steps, 8.8 are warm-up and 1 of the other 35.2 is left at the last step; with 66 steps, 22 of 52.8.
    assert (
        "the schedule one_cycle ended at a learning rate of 0.0028 after epoch 2; it now spans 3 epochs" in printed.err
    )
    assert "epochs and goes on at 0.042, so the result differs" in printed.err
    record = json.loads(printed.out)
    assert record["quantities"]["epochs"]["value"] == 3
    assert record["curves"]["training"]["columns"]["epoch"] == [1, 2, 3]
    assert "the run had ended after epoch 2 and was then extended to 3 epochs" in record["notes"]
    assert record["job"]["training"]["epochs"] == 3
    again = Path("runs/mine/record.json").read_bytes()
    assert main(["train", "--resume", "runs/mine", "training.epochs=3"]) == 0
    assert Path("runs/mine/record.json").read_bytes() == again


def test_interrupted_extension_loses_nothing() -> None:
    assert main(["train", "job.yaml", "training.schedule=constant", "--out", "runs/mine"]) == 0
    Path("runs/mine/record.json").unlink()  # as if killed before the job was written
    assert main([*TRUSTED, "train", "--resume", "runs/mine"]) == 0
    record = json.loads(Path("runs/mine/record.json").read_text())
    assert record["quantities"]["epochs"]["value"] == 2


def test_run_at_its_target_is_not_extended(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "job.yaml", "training.target_accuracy=0.2", "--out", "runs/mine"]) == 0
    assert main(["train", "--resume", "runs/mine", "training.epochs=9"]) == 2
    assert "would not train on with more epochs: the target accuracy was reached" in capsys.readouterr().err
    assert Path("runs/mine/record.json").exists()


def test_measure_two_ranks_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["backend=ddp", "cluster.count=2", "--steps", "6", "--warmup", "2", "--launcher", "local", "--json"]
    assert main(["measure", "job.yaml", *arguments, "--out", "runs/two"]) == 0
    record = json.loads(capsys.readouterr().out)
    quantities = record["quantities"]
    assert quantities["step_time_s"]["n"] == 6
    assert RunDir.open("runs/two").read_steps(0).steps[0].step == 3  # after two of warm-up
    assert record["cluster"]["count"] == 2
    # The convolution forward and for its weights (the image takes no gradient), the linear layer three times; 32 samples a rank.
    flops = 2 * 32 * (2 * 8 * 8 * 8 * 9 + 3 * 128 * 10)
    assert record["provenance"]["flops_per_step_per_rank"] == flops
    assert quantities["achieved_flops_per_s"]["value"] == pytest.approx(flops / quantities["step_time_s"]["value"])
    parts = [quantities[name]["value"] for name in STEP_PARTS]
    assert all(part is not None and part >= 0 for part in parts)
    assert quantities["communication_overlapped_s"]["value"] is None
    assert quantities["communication_overlapped_s"]["reason"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["train"], 2, "name a JOB"),
        (["train", "--resume", "nowhere"], 1, "no run directory"),
        (["train", "job.yaml", "training.epoch=3"], 2, "did you mean epochs"),
        (["measure", "job.yaml", "network.name=resnet21"], 2, "did you mean resnet"),
        (["records", "nowhere"], 2, "no record"),
    ],
)
def test_errors_have_no_traceback(
    arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == status
    told = capsys.readouterr().err
    assert message in told
    assert "Traceback" not in told
    assert not Path("runs").exists()


def test_print_config_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "job.yaml", "training.epochs=5", "--print-config"]) == 0
    assert "epochs: 5" in capsys.readouterr().out
    assert not Path("runs").exists()

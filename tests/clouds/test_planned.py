"""Platform files from a plan: `launch` renders the choice of `plan --platforms`."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from chronograd.cli.main import main
from chronograd.clouds import rendering
from chronograd.hardware import market

INPUTS = Path(__file__).parents[1] / "golden" / "inputs"
JOB = str(INPUTS / "job.yaml")
AWS = ["--image", "a/b:1", "--role", "arn:aws:iam::123456789012:role/training", "--output", "s3://lab/digits",
       "--checkpoints", "s3://lab/checkpoints"]  # fmt: skip
SKY = ["--image", "a/b:1", "--checkpoints", "s3://lab/checkpoints", "--output", "s3://lab/digits"]


def printed(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> Any:
    """Return the JSON that a command line prints, or its errors for another status."""
    capsys.readouterr()
    ended = main([*words, "--json"])
    out, err = capsys.readouterr()
    assert ended == status, err
    return json.loads(out) if status == 0 else err


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A plan for eight A100, which AWS rents as one node; the spot price is the lowest."""
    monkeypatch.setattr(market, "today", lambda: date(2026, 11, 23))
    answer = printed(capsys, "plan", JOB, "--trace", str(INPUTS / "net.json.gz"), "--platforms", "aws,gcp", "--on", "a100-40",
                     "--counts", "8", "--batches", "32", "--epochs-to-target", "2000", "--data-in", "aws",
                     "--save", str(tmp_path / "saved.json"))  # fmt: skip
    assert answer["chosen"]["prices"] == "spot"
    (tmp_path / "plan.json").write_text(json.dumps(answer))
    return tmp_path / "plan.json"


def changed(plan: Path, **fields: Any) -> str:
    data = json.loads(plan.read_text())
    data["chosen"] |= fields
    other = plan.with_name("changed.json")
    other.write_text(json.dumps(data))
    return str(other)


def test_sagemaker_gets_the_planned_instance(plan: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    chosen = json.loads(plan.read_text())["chosen"]
    said = printed(capsys, "launch", "sagemaker", JOB, "--plan", str(plan), "--dry-run", *AWS)
    request = json.loads(said["text"])
    assert request["ResourceConfig"]["InstanceType"] == chosen["instance"] == "ml.p4d.24xlarge"
    assert request["ResourceConfig"]["InstanceCount"] == chosen["machines"] == 1
    assert request["EnableManagedSpotTraining"] is True
    assert said["lines"][-1] == f"The plan of plan.json is for aws in {chosen['region']}, spot: submit it there."
    (tmp_path / "sagemaker.json").write_text(said["text"])
    job = rendering.opened(tmp_path / "sagemaker.json").asked.job
    assert (job.cluster.device, job.cluster.count, job.cluster.per_node, job.backend) == ("a100-40", 8, 8, "ddp")
    assert (job.training.batch, job.training.precision) == (8 * 32, chosen["precision"])
    # The command may omit the platform, which the plan names; its other options still apply.
    saved = str(tmp_path / "saved.json")
    other = printed(capsys, "launch", JOB, "training.batch=96", "--plan", saved, "--dry-run", *AWS)
    assert json.loads(other["text"])["HyperParameters"]["training.batch"] == "96"
    assert other["platform"] == "sagemaker"


def test_multi_cloud_platform_uses_its_own_instance_name(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(capsys, "launch", "skypilot", JOB, "--plan", str(plan), "--dry-run", *SKY)
    assert "accelerators: A100:8" in said["text"]
    assert "use_spot: true" in said["text"]


def test_batch_counts_augmented_copies_like_the_plan(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan counts images on a device, a job counts samples: 8 × 32 images are 128 samples with two copies."""
    copies = ["training.augmentation.copies=2", "training.augmentation.flip=true"]
    said = printed(capsys, "launch", "sagemaker", JOB, *copies, "--plan", str(plan), "--dry-run", *AWS)
    assert json.loads(said["text"])["HyperParameters"]["training.batch"] == "128"


def test_on_demand_plan_uses_spot_only_on_request(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["launch", "sagemaker", JOB, "--plan", changed(plan, prices="on-demand"), "--dry-run", *AWS]
    assert "EnableManagedSpotTraining" not in printed(capsys, *line)["text"]
    assert "EnableManagedSpotTraining" in printed(capsys, *line, "--spot")["text"]


def test_incompatible_plan_is_one_error(plan: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words, message in (
        (["launch", "vertex", JOB, "--plan", str(plan)], "chose ml.p4d.24xlarge of aws, and Vertex AI has machines of GCP"),
        (["launch", "sagemaker", JOB, "network.name=lenet5", "--plan", str(plan)], "is a plan for network small-cnn, and the job has lenet5"),
        (["launch", "sagemaker", JOB, "--plan", JOB], "cannot read the plan"),
        (["launch", "sagemaker", JOB, "--plan", str(INPUTS / "predicted.json")], "is no plan among platforms"),
        (["launch", "sagemaker", JOB, "--plan", changed(plan, count="many")], "count"),
    ):  # fmt: skip
        assert message in printed(capsys, *words, "--dry-run", *AWS, status=2), words
    data = json.loads(plan.read_text())
    (tmp_path / "none.json").write_text(json.dumps({**data, "chosen": None}))
    words = ["launch", "sagemaker", JOB, "--plan", str(tmp_path / "none.json"), "--dry-run", *AWS]
    assert "chose nothing" in printed(capsys, *words, status=2)

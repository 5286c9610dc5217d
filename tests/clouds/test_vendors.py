"""Rendered files in the vendors' own software: accepted and read back unchanged, and wrong jobs refused.

The tests contact no vendor, so they check no quotas, images or permissions.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.clouds.cases import JOBS, PLATFORMS, ROOT, WRONG, submission_of
from tools import vendors

from chronograd import job as jobs
from chronograd.cli.main import main
from chronograd.clouds import entry, fields, registry
from chronograd.clouds.submission import ENTRY
from chronograd.hardware.instances import catalogue
from chronograd.launch import jobs as local
from chronograd.rundir import RunDir

pytestmark = pytest.mark.vendors
# The environment and the script that check a platform's documents.
CHECKERS = {
    "sagemaker": ("aws", "sagemaker"),
    "vertex": ("google", "vertex"),
    "azureml": ("azure", "azureml"),
    "watsonx": ("ibm", "watsonx"),
    "skypilot": ("skypilot", "skypilot"),
    "kubernetes": ("kubernetes", "kubernetes"),
    "pytorchjob": ("kubernetes", "kubernetes"),
}
NASTY = 'it\'s "$(id)" `id`; rm -rf /\n- é漢😀: ${HOME} $$(HOME) {{x}} #%'
GOOD = (*JOBS, "hostile")
Answers = Callable[[str], dict[str, dict[str, Any]]]

TINY = jobs.from_dict(
    {
        "network": {"name": "small-cnn"},
        "data": {"name": "digits", "samples": 256, "test_samples": 64},
        "training": {"epochs": 1, "batch": 64, "learning_rate": 0.05},
        "cluster": {"threads": 1},
    }
)


@functools.cache
def cases(platform: str) -> dict[str, fields.Document]:
    """Return every document for a platform's checker: the jobs, one with hostile text, and the wrong ones."""
    where = registry.platform(platform)
    good = {name: fields.document(where, submission_of(platform, name)) for name in JOBS}
    hostile = submission_of(
        platform, "digits", name=NASTY, tags={"note": NASTY, NASTY: "x"}, environment={"NOTE": NASTY}, spot=False
    )
    wrong = {one.name: one.document() for one in WRONG if one.platform == platform}
    if platform == "sagemaker":
        good["tiny"] = fields.document(where, submission_of(platform, "digits").model_copy(update={"job": TINY}))
    return {**good, "hostile": fields.document(where, hostile), **wrong}


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Return the software's answer for each case of a platform. All test processes share one run."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    @functools.cache
    def checked(name: str, script: str) -> dict[str, dict[str, Any]]:
        kept = shared / f"checked-{script}.json"
        with (shared / f"checked-{script}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                kept.write_text(json.dumps(ask(name, script)))
            return dict(json.loads(kept.read_text()))

    return lambda platform: checked(*CHECKERS[platform])[platform]


def ask(name: str, script: str) -> dict[str, dict[str, Any]]:
    """Return the answers of one process to the documents of all its platforms, which also receive the file's text."""
    of = [(platform, case) for platform in PLATFORMS if CHECKERS[platform][1] == script for case in cases(platform)]
    documents = [cases(platform)[case] for platform, case in of]
    texts = [fields.dump(registry.platform(platform), cases(platform)[case]) for platform, case in of]
    given = {"documents": documents, "texts": texts, "enumerations": ["TrainingInstanceType"]}
    said = vendors.ask(name, script, given)
    answers: dict[str, dict[str, Any]] = {platform: {"enumerations": said.get("enumerations")} for platform, _ in of}
    for (platform, case), answer in zip(of, said["answers"], strict=True):
        answers[platform][case] = answer
    return answers


@pytest.mark.parametrize("platform", PLATFORMS)
def test_vendor_software_accepts_every_job(platform: str, answers: Answers) -> None:
    assert {name: answers(platform)[name]["refused"] for name in GOOD} == dict.fromkeys(GOOD)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_vendor_software_refuses_wrong_jobs(platform: str, answers: Answers) -> None:
    """Our software refuses all of them; `vendor` states whether theirs does so offline."""
    wrong = {one.name: one.vendor for one in WRONG if one.platform == platform}
    refused = {name: answers(platform)[name]["refused"] for name in wrong}
    assert {name: bool(why) for name, why in refused.items()} == wrong, refused


def test_page_states_the_checked_versions() -> None:
    table = " ".join((ROOT / "docs" / "platforms.md").read_text().partition("## How it is checked")[2].split())
    for package in (*vendors.PACKAGES.values(), *vendors.NODE_PACKAGES.values()):
        name, _, version = package[0].rpartition("@" if package[0].startswith("@") else "==")
        assert re.search(rf"`{re.escape(name.partition('[')[0])}` {re.escape(version)}\b", table), package[0]
    assert f"Of {len(WRONG)} files" in table
    assert f"the vendors' software, offline, refuses {sum(one.vendor for one in WRONG)}" in table


@pytest.mark.parametrize("name", GOOD)
def test_moto_describes_the_created_job(name: str, answers: Answers) -> None:
    where, document = registry.platform("sagemaker"), cases("sagemaker")[name]
    described = answers("sagemaker")[name]["described"]
    described["TrainingJobName"] = document["TrainingJobName"]  # the fake service made it unique
    described["AlgorithmSpecification"].pop("MetricDefinitions")  # moto's own
    for word in document.keys() - described.keys():  # moto does not describe these
        described[word] = document[word]
    assert described == document
    assert fields.read_document(where, described) == fields.read_document(where, document)


def test_job_described_by_moto_matches_the_local_loss(tmp_path: Path, answers: Answers) -> None:
    """The fake service returns the saved request; its container's command and the local launcher give equal losses."""
    described = answers("sagemaker")["tiny"]["described"]
    config = tmp_path / "ml" / "input" / "config"
    config.mkdir(parents=True)
    (config / "hyperparameters.json").write_text(json.dumps(described["HyperParameters"]))
    assert tuple(described["AlgorithmSpecification"]["ContainerEntrypoint"]) == ENTRY
    assert entry.main([], {}, tmp_path / "ml") == 0
    (tmp_path / "sagemaker.json").write_text(json.dumps(described))
    assert main(["job", "from", str(tmp_path / "sagemaker.json"), "--out", str(tmp_path / "job.yaml")]) == 0
    runs = [
        local.train(TINY, out=tmp_path / "original", launcher="local"),
        local.train(jobs.load(tmp_path / "job.yaml"), out=tmp_path / "read", launcher="local"),
        RunDir.open(tmp_path / "ml" / "checkpoints"),
    ]
    losses = [[step.needed("loss") for step in run.read_steps().steps] for run in runs]
    assert losses[0] == losses[1] == losses[2]
    assert len(losses[0]) == 4


# AWS' own command line. moto's service ends with the command, so the script first saves its description.
AWS = """#!{python} -P
import json, os, sys
import awscli.clidriver, boto3, moto
if not os.environ.get("DESCRIBED"):
    sys.exit(awscli.clidriver.main())
with moto.mock_aws():
    status = awscli.clidriver.main()
    if "create-training-job" in sys.argv and status == 0:
        described = boto3.client("sagemaker").describe_training_job(TrainingJobName="digits-resnet20")
        open(os.environ["DESCRIBED"], "w").write(json.dumps(described, default=str))
    sys.exit(status)
"""


def test_submit_to_sagemaker_and_its_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "bin" / "aws"
    program.parent.mkdir()
    program.write_text(AWS.format(python=vendors.folder("aws") / "bin" / "python"))
    program.chmod(0o755)
    for name in [name for name in os.environ if name.startswith(("AWS_", "PYTHON"))]:
        monkeypatch.delenv(name)
    environment = {"HOME": tmp_path, "AWS_EC2_METADATA_DISABLED": "true", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    wanted = submission_of("sagemaker", "digits")
    words = [f"--image={wanted.image}", f"--role={wanted.role}", f"--output={wanted.output}", "--name=digits-resnet20"]
    words += ["--submit", f"--out={tmp_path / 'rendered'}"]
    job = str(ROOT / "examples" / "digits.yaml")
    assert main(["launch", "sagemaker", job, *words]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "nothing was sent: aws has no credentials for SageMaker" in told
    assert "aws configure" in told
    monkeypatch.setenv("DESCRIBED", str(tmp_path / "described.json"))
    assert main(["launch", "sagemaker", job, *words]) == 0
    assert "arn:aws:sagemaker:us-east-1:123456789012:training-job/digits-resnet20" in capsys.readouterr().err
    described = json.loads((tmp_path / "described.json").read_text())
    document = json.loads((tmp_path / "rendered" / "sagemaker.json").read_text())
    assert {word: described[word] for word in ("HyperParameters", "ResourceConfig", "RoleArn")} == {
        word: document[word] for word in ("HyperParameters", "ResourceConfig", "RoleArn")
    }


def test_instance_types_exist_in_botocore(answers: Answers) -> None:
    known = set(answers("sagemaker")["enumerations"]["TrainingInstanceType"])
    assert {one.name for one in catalogue("sagemaker").instance} <= known


def test_accelerators_exist_in_vertex_ai(answers: Answers) -> None:
    known = set(answers("vertex")["enumerations"]["AcceleratorType"])
    assert {one.accelerator for one in catalogue("vertex").instance if one.accelerator} <= known


@pytest.mark.parametrize("name", GOOD)
def test_vertex_ai_round_trips_the_file(name: str, answers: Answers) -> None:
    """The JSON is equal, but its 64-bit numbers are text."""
    where = registry.platform("vertex")
    assert fields.read_document(where, _numbers(answers("vertex")[name]["parsed"])) == fields.read_document(
        where, cases("vertex")[name]
    )


def _numbers(given: Any) -> Any:
    if isinstance(given, dict):
        return {k: int(v) if k in ("replicaCount", "bootDiskSizeGb") else _numbers(v) for k, v in given.items()}
    return [_numbers(one) for one in given] if isinstance(given, list) else given


def test_azure_reads_hostile_text_unchanged(answers: Answers) -> None:
    read, written = answers("azureml")["hostile"]["read"]["component"], cases("azureml")["hostile"]
    assert read["display_name"] == NASTY == written["display_name"]
    assert read["environment_variables"] == {"NOTE": NASTY}
    assert read["tags"]["note"] == NASTY
    assert shlex.split(read["command"]) == shlex.split(written["command"])


def test_skypilot_reads_the_written_file(answers: Answers) -> None:
    read, written = answers("skypilot")["hostile"]["read"], cases("skypilot")["hostile"]
    assert read["envs"]["NOTE"] == NASTY
    assert read["run"] == written["run"]
    read = answers("skypilot")["scaling"]["read"]
    assert (read["num_nodes"], read["resources"]["accelerators"]) == (2, {"H100": 8})

"""`--submit`: the platform's program receives the file; without program or credentials, an error names the command.

Stand-ins for the programs record their input; `test_vendors` uses AWS' own program.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from tests.clouds.cases import PLATFORMS, ROOT

from chronograd.cli.main import main
from chronograd.clouds import fields, registry
from chronograd.clouds.example import OPTIONS

SENT = {
    "sagemaker": "aws sagemaker create-training-job --cli-input-json file://{folder}/sagemaker.json",
    "vertex": "gcloud ai custom-jobs create --display-name=a --config={folder}/vertex.jobSpec.json --labels=team=vision",
    "azureml": "az ml job create --file {folder}/azureml.yaml",
    "skypilot": "sky jobs launch --yes --detach-run --secret HF_TOKEN {folder}/skypilot.yaml",
    "kubernetes": "kubectl create --filename {folder}/kubernetes.yaml",
    "pytorchjob": "kubectl create --filename {folder}/pytorchjob.yaml",
}
# Prints its name and a token, records the file, and answers.
PROGRAM = """#!/bin/bash
printf '%s\\n' "$(basename "$0") $*" >> {folder}/asked
case "$*" in
  *whoami*|*identity*|*token*|*show*) echo T0KEN; {who} ;;
  *) {send} ;;
esac
"""


def submit(platform: str, folder: Path) -> int:
    """Submit the digits job, with a secret and a tag, from the command line."""
    options = OPTIONS[platform]
    words = [f"--{word}={options[word]}" for word in ("image", "role", "output", "project") if word in options]
    words += [f"--secret={name}={reference}" for name, reference in options["secrets"].items()]
    job = str(ROOT / "examples" / "digits.yaml")
    return main(["launch", platform, job, *words, "--name=a", "--tag=team=vision", "--submit", f"--out={folder}"])


def stand_in(platform: str, folder: Path, monkeypatch: pytest.MonkeyPatch, who: str, send: str) -> None:
    program = folder / "bin" / SENT[platform].split()[0]
    program.parent.mkdir()
    program.write_text(PROGRAM.format(folder=shlex.quote(str(folder)), who=who, send=send))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")


@pytest.mark.parametrize("platform", SENT)
def test_platform_program_receives_the_file(
    platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(platform, tmp_path, monkeypatch, "true", "printf '\\e[32mcreated 17\\e[0m'")
    assert submit(platform, tmp_path) == 0
    *_, sent = (tmp_path / "asked").read_text().splitlines()
    assert sent == SENT[platform].format(folder=tmp_path)
    printed = capsys.readouterr()
    assert f"{sent.split()[0]} sent it, and says: created 17\n" in printed.err
    assert "nobody has accepted it" not in printed.err
    assert "T0KEN" not in printed.out + printed.err
    where = registry.platform(platform)
    document = fields.load(where, (tmp_path / where.file).read_text())
    if platform == "vertex":
        assert json.loads((tmp_path / "vertex.jobSpec.json").read_text()) == document["jobSpec"]


@pytest.mark.parametrize("platform", SENT)
def test_missing_program_error_names_the_command(
    platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert submit(platform, tmp_path) == 1
    tool = registry.platform(platform).tool
    assert tool is not None
    told = " ".join(capsys.readouterr().err.split())
    assert f"nothing was sent: {registry.platform(platform).title} is reached with {tool.program}, which is not" in told
    for step in (tool.install, tool.login, SENT[platform].format(folder=tmp_path)):
        assert step in told
    assert "sent it" not in told


@pytest.mark.parametrize("platform", [name for name in SENT if name != "skypilot"])
def test_missing_credentials_error_names_the_command(
    platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(platform, tmp_path, monkeypatch, "echo log in first >&2; exit 1", "echo created")
    assert submit(platform, tmp_path) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "has no credentials" in told
    assert "log in first" in told
    assert "T0KEN" not in told
    assert len((tmp_path / "asked").read_text().splitlines()) == 1


def test_platform_error_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in("skypilot", tmp_path, monkeypatch, "true", "echo no cloud is enabled >&2; exit 3")
    assert submit("skypilot", tmp_path) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "SkyPilot did not take the job; sky says: no cloud is enabled" in told
    assert "sky check" in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["watsonx", "JOB", "--out", "there", "--submit"], "--submit is not there for watsonx"),
        (["skypilot", "JOB", "--dry-run", "--submit"], "--out FOLDER --submit also sends it"),
        (["skypilot", "JOB", "--submit"], "--out FOLDER --submit also sends it"),
    ],
)
def test_invalid_uses_of_submit(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    job = str(ROOT / "examples" / "digits.yaml")
    assert main(["launch", *(job if word == "JOB" else word for word in words)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_every_platform_submits_or_states_why_not() -> None:
    assert {name for name in PLATFORMS if registry.platform(name).tool is None} == {*PLATFORMS} - {*SENT}

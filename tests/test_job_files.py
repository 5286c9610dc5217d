"""A job file is one for every verb, whatever the name of the file and the kind of its network."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from chronograd.cli.main import main
from chronograd.job import is_job_file

DIGITS = Path(__file__).parents[1] / "examples" / "digits.yaml"
LARGE = """
network: {name: llama-3.2-1b}
training: {batch: 8, zero_stage: 3}
cluster: {device: h100, count: 8}
data: {shape: [1024]}
"""
LINES = {
    "digits": ["count {}", "predict {} --on v100", "judge {} --on v100 '9000 images/s'"],
    "large": ["count {}", "predict {}", "judge {} '9000 tokens/s/gpu'", "plan {} --layouts"],
}


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a folder with an ordinary job and a large one: with the usual ending, without it, and in a folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    for name in ("digits.yaml", "digits", "jobs/digits"):
        shutil.copy(DIGITS, name)
    for name in ("large.yaml", "large", "jobs/large"):
        Path(name).write_text(LARGE)
    return tmp_path


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in LINES.items() for line in lines])
def test_the_ending_does_not_matter(name: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`predict` once said that a large job without an ending lacks a data set; `count` and `judge` looked for a network."""
    outputs = []
    for path in (f"{name}.yaml", name, f"jobs/{name}"):
        assert main([*shlex.split(line.format(path)), "--json"]) == 0
        output = json.loads(capsys.readouterr().out.replace(path, name))
        outputs.append({key: value for key, value in output.items() if key != "created"})
    assert outputs[1] == outputs[2] == outputs[0]


@pytest.mark.usefixtures("jobs")
def test_names_code_and_json_are_no_job_files() -> None:
    Path("net.json").touch()
    others = ("resnet50", "timm:vit_b", "net.py:Net", "net.json", "a/b.json.gz")
    assert not [what for what in others if is_job_file(what)]


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("count large", "count llama-3.2-1b --input 1024"),
        ("count large --input 2048 --batch 3", "count llama-3.2-1b --input 2048 --batch 3"),
        ("count large training.batch=32", "count llama-3.2-1b --input 1024 --batch 4"),
        ("count large num_hidden_layers=2", "count llama-3.2-1b --input 1024 num_hidden_layers=2"),
        ("count large data.shape=[512] network.name=llama-3-8b", "count llama-3-8b --input 512"),
    ],
)
def test_a_large_job_is_counted_as_its_model(line: str, same: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`count` of a large job said "data: is required and not there". The batch is that of one of its 8 ranks."""
    outputs = []
    for words in (line, same):
        assert main([*shlex.split(words), "--json"]) == 0
        outputs.append(json.loads(capsys.readouterr().out))
    assert outputs[0] == outputs[1]


@pytest.mark.usefixtures("jobs")
def test_refused_fsdp_backend_shows_how_to_shard(capsys: pytest.CaptureFixture[str]) -> None:
    """The hint `write backend=ddp` led to a model that is not sharded."""
    assert main(["predict", "large", "backend=fsdp", "training.zero_stage=0"]) == 2
    assert "To fix: write backend=ddp training.zero_stage=3 (or --fsdp)" in capsys.readouterr().err

"""Untrusted code in files never runs: each verb, on runs and records whose network is such code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

import chronograd
from chronograd import job as jobs
from chronograd import trust
from chronograd.cli.main import main, verbs
from chronograd.errors import InputError
from chronograd.record import Record
from chronograd.rundir import RunDir

GOOD = """\
from torch import nn

def Net(num_classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
Net.input_shape = (1, 8, 8)
"""
EVIL = GOOD + "\nimport pathlib\npathlib.Path({harmed!r}).touch()\n"
# Command lines of each verb that read a run, a record, a saved answer or a table; empty if it reads none.
LINES: dict[str, list[str]] = {
    "count": [],
    "predict": ["resnet20 --on v100 --measured-on run", "resnet20 --on v100 --measured-on record.json"],
    "plan": ["resnet20 --data cifar10 --on v100 --to 50% --curve run"],
    "judge": ["run", "record.json", "run --on v100", "table.csv --on v100 --precision fp32"],
    "devices": [],
    "platforms": [],
    "weights": [],
    "doctor": ["run"],
    "run": [],
    "measure": [],
    "train": ["--resume unfinished", "resnet20 --data digits training.epochs=1 network.weights=run --out new"],
    "launch": ["resume unfinished", "status unfinished", "collect unfinished", "collect run"],
    "job": ["from job.json"],
    "explain": ["run", "record.json", "run record.json"],
    "forecast": ["run --to 50%"],
    "evaluate": ["run"],
    "compare": ["run record.json", "run record.json --fail-if step_time>5%"],
    "report": ["run --out page.html", "record.json --out page.html", "run --out page.html --notebook"],
    "records": ["run", "--in ."],
    "export": ["run --onnx net.onnx"],
    "serve": [],
    "annotate": ["0.png --model run"],
    "load": [],
    "fit": ["loss run", "speed run record.json", "batch run", "device table.csv --device v100"],
    "study": [],
    "hand-in": [],
    "simulate": [],
    "schedule": ["workload.csv --on 2xv100 --draws 2", "jobs --on 2xv100 --draws 2"],
    "label": ["run --per-class 1 --out labels.npz"],
    "data": [],
    "validate": ["table.csv --device v100 --precision fp32"],
    "calibrate": ["table table.csv"],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of a network in a file, and its record; running that file now does harm."""
    folder = tmp_path_factory.mktemp("made")
    code = folder / "net.py"
    code.write_text(GOOD)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        line = "data.samples=64 data.test_samples=32 training.epochs=2 training.batch=32 cluster.device=cpu cluster.threads=1"
        assert main(["train", f"{code}:Net", "--data", "digits", *line.split(), "--out", "run"]) == 0
    code.write_text(EVIL.format(harmed=str(folder / "harmed")))
    shutil.copy(folder / "run" / "record.json", folder / "record.json")
    shutil.copytree(folder / "run", folder / "unfinished")
    (folder / "unfinished" / "record.json").unlink()
    for step in list((folder / "unfinished" / "checkpoints").iterdir())[1:]:
        shutil.rmtree(step)
    (folder / "table.csv").write_text(f"model,batch_size,throughput\n{code}:Net,32,1000\n{code}:Net,64,1500\n")
    (folder / "jobs").mkdir()
    (folder / "jobs" / "job.yaml").write_text(f"network: {{name: '{code}:Net'}}\ndata: {{name: digits}}\n")
    (folder / "workload.csv").write_text(f"job,data,epochs\n{code}:Net,digits,2\n")
    fields = {"network.name": f"{code}:Net", "data.name": "digits"}
    (folder / "job.json").write_text(
        json.dumps({"AlgorithmSpecification": {"TrainingImage": "an-image"}, "HyperParameters": fields})
    )
    Image.new("RGB", (8, 8)).save(folder / "0.png")
    return folder


def test_every_verb_has_command_lines() -> None:
    assert set(LINES) == set(verbs())


@pytest.mark.parametrize(
    ("verb", "line"),
    [
        pytest.param(verb, line, marks=pytest.mark.onnx if verb == "export" else ())
        for verb, lines in LINES.items()
        for line in lines
    ],
)
def test_no_verb_runs_code_named_by_a_file(
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verb: str,
    line: str,
) -> None:
    folder = tmp_path / "here"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    status = main([verb, *line.split()])
    said = capsys.readouterr()
    assert not (made / "harmed").exists(), said
    assert status in (0, 1, 2), said
    assert "No such option" not in said.err
    assert "Missing" not in said.err


@pytest.mark.parametrize(
    "line",
    [
        "judge run --on v100 --trust {code}",
        "evaluate run --trust {code}",
        pytest.param("export run --onnx net.onnx --trust {code}", marks=pytest.mark.onnx),
        "evaluate --trust={code} run",
        "evaluate run --trust={code}",
        "--trust {code} evaluate run",
        "--trust={code} evaluate run",
    ],
)
def test_trusted_code_runs(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """The same files do harm with --trust, so the tests above can fail."""
    folder = tmp_path / "here"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    (made / "net.py").touch()  # a file is run once for each of its versions
    try:
        main(line.format(code=made / "net.py").split())
        assert (made / "harmed").exists()
    finally:
        (made / "harmed").unlink(missing_ok=True)


def test_refusal_names_the_code_and_the_option(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(made)
    assert main(["judge", "record.json", "--on", "v100"]) == 2
    said = capsys.readouterr().err
    assert f"{made / 'net.py'}:Net is code that you did not name" in said
    assert f"chronograd --trust {made / 'net.py'}" in said


def test_module_and_function_are_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`os:mkdir` with options calls a function with any arguments."""
    monkeypatch.chdir(tmp_path)
    network = {"name": "os:mkdir", "options": {"path": "harmed"}}
    job = jobs.from_dict({"network": network, "data": {"name": "digits"}})
    run = RunDir.create(job, out=tmp_path / "run")
    record = Record(kind="measured", title="t", job=jobs.resolved(job), cluster={"device": "v100"},
                    quantities={"throughput_samples_per_s": {"value": 9.0, "unit": "sample/s"}})  # fmt: skip
    run.save_record(record)
    for argv in (["judge", "run"], ["evaluate", "run"], ["explain", "run"], ["report", "run", "--out", "page.html"]):
        main(argv)
    with pytest.raises(InputError, match="did not name"):
        chronograd.judge(None, tmp_path / "run", on="v100")
    assert not (tmp_path / "harmed").exists()


@pytest.mark.gymnasium
def test_environment_of_a_module_is_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from chronograd.reinforce import environments

    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evilenv.py").write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'harmed')!r}).touch()\n")
    job = jobs.from_dict(
        {"task": "reinforcement", "network": {"name": "table"}, "data": {"name": "gymnasium:evilenv:Env-v0"}}
    )
    with trust.only(()), pytest.raises(InputError, match="did not name"):
        environments.make(job)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    ("words", "is_named"),
    [
        (["nets.py:Net"], True),
        (["./nets.py:Other"], True),
        (["network.name=nets.py:Net"], True),
        (["nets.py"], False),
        (["nets"], False),
        (["other.py:Net"], False),
        (["a:b"], False),
    ],
)
def test_words_that_name_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], is_named: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    with trust.only(words):
        if is_named:
            trust.check(f"{tmp_path}/nets.py:Net")
        else:
            with pytest.raises(InputError):
                trust.check("nets.py:Net")
    trust.check("nets.py:Net")  # outside of verbs the calling program decides


def test_job_file_named_by_the_user_is_trusted(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("{network: {name: mine.py:Net}, data: {name: digits}}")
    with trust.only(()):
        jobs.read(path)
        with pytest.raises(InputError):
            trust.check("mine.py:Net")
        jobs.load(path)
        trust.check("mine.py:Net")

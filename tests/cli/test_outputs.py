"""Output to full, closed or limited encodings, and escape sequences in foreign text: one line each."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from chronograd import job as jobs
from chronograd.answer import Answer, Section, Table
from chronograd.cli import main as cli
from chronograd.cli.main import main, verbs
from chronograd.errors import ChronogradError, RunError
from chronograd.files import as_asked
from chronograd.launch import silence
from chronograd.report.terminal import render_terminal
from chronograd.rundir import RunDir
from chronograd.rundir.steps import Epoch, Error, NoteLine, StepLine
from chronograd.verbs import serve

ESCAPE = "\x1b]0;owned\x07\x1b[2J"


@pytest.mark.parametrize("verb", [*verbs(), ""])
def test_full_output_is_one_error_line(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys, "stdout", Full())
    assert main([*([verb] if verb else []), "--help"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("Error: cannot write the output: No space left on device")
    assert "Traceback" not in said


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
@pytest.mark.parametrize("line", ["count resnet20", "devices v100", "plan --help", "predict resnet20 --on nothing"])
def test_output_works_in_every_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str, line: str) -> None:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    assert main(line.split()) in (0, 2)
    out.flush()
    err.flush()
    assert out.buffer.getvalue() or err.buffer.getvalue()  # type: ignore[attr-defined]


def test_closed_and_full_outputs_of_a_process() -> None:
    command = f"{sys.executable} -m chronograd devices v100"
    for redirected, told in ((">&-", "standard output is closed"), (">/dev/full", "No space left on device")):
        done = subprocess.run(["sh", "-c", f"{command} {redirected}"], capture_output=True, text=True, check=False)
        assert done.returncode == 1, done
        assert told in done.stderr
        assert len(done.stderr.splitlines()) <= 2


@pytest.mark.parametrize("verb", verbs())
def test_unwritable_folder_is_one_error_line_for_every_verb(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A system error names the file and has no traceback."""

    def fail(**_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/closed/file")

    monkeypatch.setattr(cli.command, "main", fail)
    assert main([verb]) == 2
    assert "Error: cannot use /closed/file: Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    ["report loop --out page.html", "explain loop", "forecast loop --to 50%", "fit loss loop", "fit batch loop",
     "compare loop loop", "judge loop", "records --in loop", "evaluate loop", "train --resume loop", "launch status loop",
     "data folder:loop", "count loop/net.yaml", "job from loop", "doctor loop/job.yaml", "validate loop", pytest.param("export loop --onnx a.onnx", marks=pytest.mark.onnx),
     "label loop --out l.npz", "predict resnet20 --on v100 --measured-on loop", "hand-in --out loop/x"],
)  # fmt: skip
def test_link_loop_is_one_error_line(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    status = main(line.split())
    said = capsys.readouterr()
    assert status in (0, 1, 2) if line.startswith("records") else status in (1, 2), said
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.EACCES, "may write"),
        (errno.EROFS, "may write"),
        (errno.ENOSPC, "free some space"),
        (errno.ENOENT, "exists"),
    ],
)
def test_unwritable_file_has_a_remedy(number: int, told: str) -> None:
    with pytest.raises(ChronogradError, match=told), as_asked(Path("nowhere/a")):
        raise OSError(number, os.strerror(number), "a")


def test_foreign_text_cannot_control_the_terminal() -> None:
    table = Table((ESCAPE, "b"), [[ESCAPE, "2\u00a0ms"]], {1}, (ESCAPE,))
    section = Section(ESCAPE, ESCAPE, lines=[ESCAPE], intro=ESCAPE, caption=ESCAPE, table=table)
    text = render_terminal(Answer(ESCAPE, sections=[section], notes=[ESCAPE]))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "owned" in text
    assert "\x1b" not in str(RunError(ESCAPE, ESCAPE))


@pytest.mark.parametrize("line", ["records --in .", "compare a.json b.json", "report a.json --out p.html", "explain a.json",
                                  "judge a.json --on v100", "forecast a.json"])  # fmt: skip
def test_record_cannot_control_the_terminal(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = {
        "kind": "measured", "title": f"a{ESCAPE}", "backend": ESCAPE, "notes": [ESCAPE],
        "job": {"network": {"name": ESCAPE}, "data": {"name": ESCAPE}, "backend": ESCAPE},
        "cluster": {"device": ESCAPE, "ran_on": ESCAPE, "count": 1},
        "quantities": {"step_time_s": {"value": 1.0, "unit": "s", "source": ESCAPE}},
    }  # fmt: skip
    for name in ("a.json", "b.json"):
        Path(name).write_text(json.dumps({"format": "chronograd-record", "version": 1, **data}))
    main(line.split())
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "\x07" not in said.out + said.err


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write runs, records, jobs, a log and a platform's file with escape sequences in every text."""
    monkeypatch.chdir(tmp_path)
    fields = {
        "network": {"name": f"lenet5{ESCAPE}"}, "data": {"name": "synthetic", "shape": [1, 28, 28], "classes": 10},
        "backend": "single", "training": {"recipe": "sgd-momentum", "batch": 32, "epochs": 2},
    }  # fmt: skip
    run = RunDir.create(jobs.from_dict(fields), {"versions": {f"torch{ESCAPE}": ESCAPE}}, out="run")
    with run.step_writer(0) as lines:
        lines.write(NoteLine(text=ESCAPE))
        for step in range(1, 9):
            lines.write(StepLine(step=step, epoch=1, seconds=step / 10, step_time_s=0.1, loss=1.0, samples=32))
        lines.write(
            Epoch(step=8, epoch=1, seconds=1.0, epoch_time_s=1.0, train_loss=1.0, test_loss=1.0, test_accuracy=0.5)
        )
        lines.write(Error(text=ESCAPE))
    run.output_path(0).write_text(ESCAPE)
    (run.path / "slurm.json").write_text(json.dumps({"job_id": ESCAPE, "options": {"partition": ESCAPE}}))
    shutil.copytree("run", "done")
    record = {
        "kind": "measured", "title": f"a{ESCAPE}", "backend": ESCAPE, "notes": [ESCAPE], "job": fields,
        "cluster": {"device": ESCAPE, "ran_on": ESCAPE, "count": 1},
        "quantities": {"step_time_s": {"value": 1.0, "unit": "s", "source": ESCAPE},
                       "throughput_samples_per_s": {"value": None, "unit": "sample/s", "reason": ESCAPE}},
    }  # fmt: skip
    Path("done/record.json").write_text(json.dumps({"format": "chronograd-record", "version": 1, **record}))
    Path("job.yaml").write_text(jobs.to_yaml(jobs.from_dict(fields)))
    data = [{"name": f"lenet5{ESCAPE}", "value": ESCAPE}]
    Path("cloud.json").write_text(json.dumps({"AlgorithmSpecification": {"TrainingImage": ESCAPE}, "TrainingJobName": ESCAPE,
                                              "HyperParameters": {"network.name": ESCAPE, ESCAPE: ESCAPE}, "data": data}))  # fmt: skip
    Path("log.csv").write_text(
        f"epoch,val_acc,{ESCAPE}\n1,0.5,{ESCAPE}\n2,0.6,{ESCAPE}\n3,0.65,x\n4,0.68,x\n5,0.69,x\n"
    )
    event = {
        "ph": "X",
        "name": ESCAPE,
        "cat": "kernel",
        "ts": 1,
        "dur": 5,
        "pid": ESCAPE,
        "tid": ESCAPE,
        "args": {"stream": ESCAPE},
    }
    Path("trace.json").write_text(json.dumps({"traceEvents": [event, {**event, "cat": ESCAPE, "ts": 9}]}))
    Path("traced.json").write_text(
        json.dumps({"format": "chronograd-trace", "version": 2, "network": ESCAPE, ESCAPE: 1})
    )
    Path("config.json").write_text(json.dumps({"model_type": "llama", "architectures": [ESCAPE], ESCAPE: 1}))
    Path("mine.toml").write_text(f"name = {json.dumps(ESCAPE)}\n{json.dumps(ESCAPE)} = 1\n")
    save_file({ESCAPE: np.zeros(2, np.float32)}, "w.safetensors")
    Path("answer.json").write_text(
        json.dumps({"format": "chronograd-answer", "version": 1, "title": ESCAPE, ESCAPE: 1})
    )
    Path("workload.csv").write_text(f"name,job,data,epochs\n{ESCAPE},lenet5{ESCAPE},digits,2\n")
    Path("texts").mkdir()
    Path("texts", f"a{ESCAPE[:4]}.txt").write_bytes(b"\xff" + ESCAPE.encode())
    Path("table.csv").write_text(f"model,batch_size,throughput\n{ESCAPE},32,1000\nresnet50,{ESCAPE},1500\n")
    Path(f"net{ESCAPE[:4]}.py").write_text("x = 1\n")
    Path("classes").mkdir()
    for split in ("train", "val"):
        for name in ("a\x1b]0;owned\x07", "b"):
            folder = Path("classes", split, name)
            folder.mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(folder / f"1{ESCAPE[:4]}.png")
            (folder / f"2{ESCAPE[:4]}.png").write_text("no picture")
    return tmp_path


@pytest.mark.parametrize(
    "line",
    ["records --in .", "records run", "records done", "records done --full", "explain run", "explain done", "report run --out p.html",
     "report done --out p.html", "forecast run --to 90%", "forecast done --to 90%", "forecast log.csv --to 90%", "compare done done",
     "judge done --on v100", "judge table.csv --on v100", "evaluate run", pytest.param("export run --onnx n.onnx", marks=pytest.mark.onnx), "train --resume run",
     "train job.yaml --out new", "launch status run", "launch collect run", "launch resume run", "launch status done",
     "launch collect done", "launch slurm job.yaml --dry-run", "launch kubernetes job.yaml --image i --dry-run",
     "launch skypilot job.yaml --image i --dry-run", "job from cloud.json", "job log log.csv", "doctor job.yaml",
     "count job.yaml", "predict job.yaml --on v100", "predict job.yaml --print-config", "plan job.yaml --on v100",
     "measure job.yaml", "run job.yaml", "run job.yaml --print-config", "label run --out l.npz", "annotate x.png --model run",
     "fit loss run", "fit speed run done", "fit batch run", "fit device table.csv --device v100", "calibrate table table.csv",
     "validate table.csv --device v100", "hand-in", "data folder:classes", "data classes", pytest.param("serve run", marks=pytest.mark.serve), "study list",
     "predict resnet20 --on v100 --measured-on done", "export net.onnx --int8 a", "explain trace.json", "count traced.json",
     "count config.json", "predict resnet20 --on mine.toml", "train lenet5 --data digits network.weights=w.safetensors --out w",
     "calibrate links --from table.csv --name mine", "fit speed table.csv", "report answer.json --out p.html",
     "schedule workload.csv --on 2xv100", "data text:texts", "doctor run", "weights resnet20", "weights none\x1b[2J"],
)  # fmt: skip
def test_no_verb_prints_foreign_escape_sequences(foreign: Path, capsys: pytest.CaptureFixture[str], line: str) -> None:
    status = main(line.split())
    said = capsys.readouterr()
    assert status in (0, 1, 2), said
    assert said.out + said.err
    assert not set("\x1b\x07") & set(said.out + said.err)


def test_file_name_cannot_control_the_terminal(foreign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Checks an answer, an error, and an error about options."""
    os.rename("done", f"done{ESCAPE}")
    for words in (["records", f"done{ESCAPE}"], ["explain", f"none{ESCAPE}"], ["report", f"done{ESCAPE}", "--out", f"p{ESCAPE}"],
                  ["count", "resnet20", "--save-job", f"j{ESCAPE}.yaml"], [f"verb{ESCAPE}"],
                  ["count", "resnet20", f"--input={ESCAPE}"]):  # fmt: skip
        main(words)
        said = capsys.readouterr()
        assert said.out + said.err
        assert not set("\x1b\x07") & set(said.out + said.err), words


def test_verbs_print_through_one_function() -> None:
    """`common.echo` removes control characters; the two files that call click directly print errors and JSON."""
    folder = Path(cli.__file__).parent
    own = sorted(path.name for path in folder.glob("*.py") if re.search(r"click\.s?echo\(|\bprint\(", path.read_text()))
    assert own == ["common.py", "main.py"]


def test_server_and_launcher_lines_cannot_control_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    line = logging.makeLogRecord({"msg": "model %s failed", "args": (ESCAPE,)})
    assert serve.Printable("%(message)s").format(line) == r"model \x1b]0;owned\x07\x1b[2J failed"
    silence.tell(f"rank 1 goes on in {ESCAPE}")
    assert capsys.readouterr().err == "rank 1 goes on in \\x1b]0;owned\\x07\\x1b[2J\n"

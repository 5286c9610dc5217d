"""Output that cannot be written, or cannot say every letter, and text of others that would steer a terminal: a line each."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chronograd.answer import Answer, Section, Table
from chronograd.cli import main as cli
from chronograd.cli.main import VERBS, main
from chronograd.errors import ChronogradError, RunError
from chronograd.files import as_asked
from chronograd.report.terminal import render_terminal

ESCAPE = "\x1b]0;owned\x07\x1b[2J"


@pytest.mark.parametrize("verb", [*VERBS, ""])
def test_a_full_output_is_one_line(
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
def test_every_encoding_takes_the_output(monkeypatch: pytest.MonkeyPatch, encoding: str, line: str) -> None:
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


@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_that_cannot_be_written_is_one_line_of_any_verb(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever a verb does with files: an error of the system names the file, and is no traceback."""

    def fail(**_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/closed/file")

    monkeypatch.setattr(cli.command, "main", fail)
    assert main([verb]) == 2
    assert "Error: cannot use /closed/file: Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    ["report loop --out page.html", "explain loop", "forecast loop --to 50%", "fit loss loop", "fit batch loop",
     "compare loop loop", "judge loop", "records --in loop", "evaluate loop", "train --resume loop", "launch --status loop",
     "data folder:loop", "count loop/net.yaml", "job from loop", "doctor loop/job.yaml", "validate loop", "export loop --onnx a.onnx",
     "label loop --out l.npz", "predict resnet20 --on v100 --measured-on loop", "hand-in --out loop/x"],
)  # fmt: skip
def test_a_loop_of_links_is_one_line(
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
def test_what_to_do_about_a_file_that_cannot_be_written(number: int, told: str) -> None:
    with pytest.raises(ChronogradError, match=told), as_asked(Path("a")):
        raise OSError(number, os.strerror(number), "a")


def test_text_of_others_does_not_steer_the_terminal() -> None:
    table = Table((ESCAPE, "b"), [[ESCAPE, "2\u00a0ms"]], {1}, (ESCAPE,))
    section = Section(ESCAPE, ESCAPE, lines=[ESCAPE], intro=ESCAPE, caption=ESCAPE, table=table)
    text = render_terminal(Answer(ESCAPE, sections=[section], notes=[ESCAPE]))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "owned" in text
    assert "\x1b" not in str(RunError(ESCAPE, ESCAPE))


@pytest.mark.parametrize("line", ["records --in .", "compare a.json b.json", "report a.json --out p.html", "explain a.json",
                                  "judge a.json --on v100", "forecast a.json"])  # fmt: skip
def test_a_record_does_not_steer_the_terminal(
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

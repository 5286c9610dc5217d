"""Attacks by a stranger's files: each test is an attack that acted on unprotected code, or would act without one protection.

SECURITY.md states what we protect. Attacks by names of code are in test_trust.py, by modules of the working directory in
test_started_python.py, by git in test_environment.py, and by markup in test_strangers.py; these are of other forms.
"""

from __future__ import annotations

import ast
import gzip
import io
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from markdown_it import MarkdownIt
from PIL import Image

from chronograd import trust
from chronograd.answer import Answer, Section
from chronograd.cli.main import main
from chronograd.clouds.collect import collect
from chronograd.clouds.complaints import _SECRET_VALUE
from chronograd.clouds.entry import JOB, STEP
from chronograd.configs.keys import Keys
from chronograd.data.layouts import MAX_KIT_BYTES, _devkit_truth
from chronograd.detect import sets
from chronograd.errors import ChronogradError, FileFormatError, InputError
from chronograd.figure import Figure, Lines, Series
from chronograd.forecast.log_rows import read_rows
from chronograd.job import from_dict, parse_on
from chronograd.measure.environment import environment
from chronograd.models.weights import load_pretrained
from chronograd.record import Record
from chronograd.report import plots
from chronograd.report.html import render_html
from chronograd.report.markdown import write_markdown
from chronograd.report.notebook import _cells

LONG = 300_000  # letters of a line: in quadratic time they would take minutes to hours
TITLE = "\x1b]0;taken\x07"  # sets the title of a terminal
ESCAPES = f"{TITLE}[link=http://evil]x[/link]\u202e\x9b2J"
DRAWING = Figure([Lines("x", "y", [Series("a", "measured", [1.0, 2.0], [1.0, 2.0])])])


# -- code ------------------------------------------------------------------------------------------------------------------


def run_python(folder: Path, code: str, *, timeout_s: float = 120) -> str:
    """Run code in a Python that starts in a folder, as every process that we start, and return its output."""
    command = trust.python("-c", code)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=True)
    return done.stdout


def test_packages_and_compiled_modules_of_the_folder(tmp_path: Path) -> None:
    """Modules may be folders, compiled files or archives, instead of `NAME.py`."""
    for name in ("json", "chronograd"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('a stranger')")
    for name in ("random.pyc", "secrets.so", "socket.cpython-311-x86_64-linux-gnu.so"):
        (tmp_path / name).write_bytes(b"\0")
    assert run_python(tmp_path, "import json, random, secrets, socket, chronograd; print(json.__name__)") == "json\n"


def test_settings_of_matplotlib_in_the_folder_run_no_latex(tmp_path: Path) -> None:
    """`matplotlibrc` of the working directory can have all text set by the program latex, which reads and writes files."""
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nsvg.image_inline: False\n")
    code = "from chronograd.report import plots; import os, matplotlib; print(matplotlib.rcParams['text.usetex'], os.getcwd())"
    assert run_python(tmp_path, code) == f"False {tmp_path.resolve()}\n"


def test_settings_of_matplotlib_that_are_a_pipe_do_not_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "matplotlibrc")
    assert run_python(tmp_path, "from chronograd.report import plots; print('read')") == "read\n"


def test_drawing_ignores_settings_of_its_process() -> None:
    """A notebook's kernel has read `matplotlibrc` of its folder before our code runs."""
    import matplotlib

    expected = plots.svg(DRAWING)
    with matplotlib.rc_context({"text.usetex": True, "svg.image_inline": False}):
        assert plots.svg(DRAWING) == expected


def test_git_folder_elsewhere_runs_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`.git` may be a file that leads to another repository, and its configuration may include others."""
    for words in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"],
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / ".git").rename(tmp_path / "elsewhere")
    (tmp_path / ".git").write_text("gitdir: elsewhere\n")
    (tmp_path / "harm").write_text(f"#!/bin/sh\ntouch {tmp_path / 'harmed'}\n")
    (tmp_path / "harm").chmod(0o755)
    (tmp_path / "more").write_text(f'[core]\n    fsmonitor = "{tmp_path / "harm"}"\n')
    with (tmp_path / "elsewhere" / "config").open("a") as stream:
        stream.write(f"[include]\n    path = {tmp_path / 'more'}\n[core]\n    worktree = {tmp_path}\n")
    monkeypatch.chdir(tmp_path)
    assert environment()["git_is_dirty"] is False
    assert not (tmp_path / "harmed").exists()
    subprocess.run(["git", "status"], check=False, capture_output=True)
    assert (tmp_path / "harmed").exists(), "this repository does no harm"


# -- markup and notebooks --------------------------------------------------------------------------------------------------


def test_name_of_a_record_is_no_code_of_a_notebook() -> None:
    """A cell of the notebook names a record, and the cell is run."""
    name = "'] + [__import__('os').system('touch harmed')] + ['\n!touch harmed\n%run harm"
    job = {"network": {"name": "lenet5"}, "data": {"name": "mnist"}, "cluster": {"device": "v100"}}
    record = Record(kind="predicted", title="t", job=job, cluster={"device": "v100"})
    page = Answer("T", sections=[Section("S", "It is so.")], records={name: record})
    code = [cell.source for cell in _cells(page, Path("page.json")) if cell.cell_type == "code"]
    assert any(repr(name) in source for source in code)
    for source in code:
        lines = [line for line in source.splitlines() if not line.startswith(("%matplotlib", "%config"))]
        called = {
            ast.unparse(node.func) for node in ast.walk(ast.parse("\n".join(lines))) if isinstance(node, ast.Call)
        }
        assert not called & {"__import__", "__import__('os').system"}
        assert not any(line.lstrip().startswith(("!", "%")) for line in lines)


@pytest.mark.parametrize(
    "text",
    [
        "[x](javascript:alert(1))",
        "![x](http://evil/x.png)",
        "<http://evil>",
        "[a]: http://evil\n\n[a]",
        "| [x](data:,y) |",
    ],
)
def test_links_and_pictures_in_text_stay_text(text: str, tmp_path: Path) -> None:
    answer = Answer(text, text, [(text, text)], sections=[Section(text, f"It is {text}.")], notes=[text], footer=text)
    readme = write_markdown(answer, tmp_path)[0].read_text()
    parsed = MarkdownIt("commonmark", {"html": True}).enable("table").render(readme)
    assert "<a " not in parsed
    assert "<img" not in parsed


def test_comment_in_a_title_does_not_swallow_the_page() -> None:
    """`<!--<script>` within a script element makes a browser read on after its end."""
    page = render_html(Answer("<!--<script>", sections=[Section("S", "It is so.")]))
    assert "<!--<script" not in page
    assert "<!--<script" not in page.lower().replace("&lt;", "")


# -- names as paths --------------------------------------------------------------------------------------------------------


def coco_file(folder: Path, name: str) -> Path:
    path = folder / "annotations.json"
    images = [{"id": 1, "width": 2, "height": 2, "file_name": name}]
    path.write_text(json.dumps({"categories": [{"id": 1, "name": "cat"}], "images": images, "annotations": []}))
    return path


@pytest.mark.parametrize(
    "name", ["../private.png", "/etc/private.png", "a/../../private.png", "..\\private.png", "C:/p.png"]
)
def test_annotations_name_no_picture_outside_of_their_folder(name: str, tmp_path: Path) -> None:
    """The picture would be trained on and drawn into a page."""
    with pytest.raises(FileFormatError, match="leaves the folder"):
        sets.coco(coco_file(tmp_path, name), tmp_path / "pictures")
    (tmp_path / "class-descriptions-boxable.csv").write_text("/m/1,Cat\n")
    (tmp_path / "train-annotations-bbox.csv").write_text(
        f"ImageID,LabelName,XMin,XMax,YMin,YMax,IsGroupOf\n{name},/m/1,0,1,0,1,0\n"
    )
    with pytest.raises(FileFormatError, match="leaves the folder"):
        sets.open_images(tmp_path, "train", ["Cat"])
    for part in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "ImageSets/Main/train.txt").write_text(f"{name}\n")
    with pytest.raises(FileFormatError, match="leaves the folder"):
        sets.voc(tmp_path, "train", ["cat"])


def log_of_cloud(folder: Path, *lines: str) -> Path:
    job = {"network": {"name": "lenet5"}, "data": {"name": "mnist"}}
    (folder / "log").write_text("\n".join([f"{JOB} {json.dumps({'job': job})}", *lines]))
    return folder / "log"


def test_log_of_a_cloud_makes_no_file_for_each_named_rank(tmp_path: Path) -> None:
    """Each rank has a file of steps: a million lines would make a million files."""
    log = log_of_cloud(tmp_path, f"{STEP} 999999 {{}}")
    with pytest.raises(FileFormatError, match="steps of rank 999999, and its job has at most 2 processes"):
        collect(log, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# -- the terminal ----------------------------------------------------------------------------------------------------------


def hostile_record(folder: Path) -> None:
    Record(
        kind="measured", title=ESCAPES, backend=ESCAPES, cluster={"device": ESCAPES}, versions={ESCAPES: ESCAPES},
        notes=[ESCAPES], quantities={ESCAPES: {"value": 1.0, "unit": "s", "source": ESCAPES}},
    ).save(folder / "record.json")  # fmt: skip


def hostile_files(folder: Path) -> None:
    """Write files with escape sequences and markup of rich in each text."""
    hostile_record(folder)
    (folder / "log.csv").write_text(f"epoch,{ESCAPES} loss\n1,2\n2,1\n3,0.5\n4,0.4\n5,0.3\n")
    (folder / "runs.jsonl").write_text(
        "".join(f'{{"epoch": {i}, "run": "{i}\\u001b]0;taken\\u0007"}}\n' for i in range(9))
    )
    (folder / "table.csv").write_text(f"model,batch_size,throughput\n{ESCAPES},32,1000\nresnet50,32,300\n")
    (folder / "workload.csv").write_text(f"name,arrival,job,data,gpus,epochs\n{ESCAPES},0,resnet20,cifar10,1,1\n")
    (folder / "jobs.csv").write_text(f"name,arrival,job,data,gpus,epochs\na,0,{ESCAPES},cifar10,1,1\n")
    (folder / "config.json").write_text(json.dumps({"model_type": ESCAPES}))
    (folder / "llama.json").write_text(json.dumps({"model_type": "llama", "hidden_size": ESCAPES}))
    (folder / "job.yaml").write_text(f"network: {{name: {json.dumps(ESCAPES)}}}\ndata: {{name: digits}}\n")
    events = [
        {"ph": "X", "cat": "kernel", "name": ESCAPES, "pid": ESCAPES, "tid": 1, "ts": i, "dur": 1} for i in range(9)
    ]
    (folder / "trace.json").write_text(json.dumps({"traceEvents": events, ESCAPES: 1}))
    for name in (f"a{TITLE}", "b"):
        (folder / "pictures" / name).mkdir(parents=True)
        (folder / "pictures" / name / f"x{TITLE}.png").write_bytes(b"\x89PNG")


@pytest.mark.parametrize(
    "line",
    [
        "records record.json", "records --in .", "explain record.json", "explain trace.json", "compare record.json record.json",
        "judge record.json", "judge table.csv --on v100 --precision fp32", "forecast log.csv", "forecast log.csv --metric x",
        "forecast runs.jsonl", "schedule workload.csv --on 2xv100 --draws 2", "schedule jobs.csv --on 2xv100 --draws 2",
        "count config.json", "count llama.json", "count job.yaml", "predict job.yaml --on v100", "launch local job.yaml",
        "data pictures", "report record.json --out page.html",
    ],
)  # fmt: skip
def test_names_in_files_do_not_steer_the_terminal(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    main(line.split())
    printed = "".join(capsys.readouterr())
    assert printed
    assert not set(printed) & set("\x1b\x07\x9b\u202e")


# -- memory ----------------------------------------------------------------------------------------------------------------

DEEP = "[" * 200_000


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("line", ["explain {}", "forecast {}", "count {}", "records {}", "report {} --out page.html"])
def test_deep_json_is_refused(
    line: str, pack: Callable[[bytes], bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "deep.json"
    path.write_bytes(pack(b'{"traceEvents":' + DEEP.encode()))
    assert main(line.format(path).split()) == 2
    assert "Error: " in capsys.readouterr().err


def test_entities_of_an_annotation_do_not_multiply(tmp_path: Path) -> None:
    """Nine entities that repeat each other ten times make a gigabyte of a kilobyte."""
    entities = '<!ENTITY a0 "ha">' + "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 10))
    path = tmp_path / "a.xml"
    path.write_text(f"<!DOCTYPE x [{entities}]><annotation><name>&a9;</name></annotation>")
    with pytest.raises(FileFormatError, match="document type"):
        sets._xml(path)


def test_compressed_table_of_a_kit_is_refused_by_its_size(tmp_path: Path) -> None:
    """Arrays in meta.mat are compressed, so that megabytes can make gigabytes."""
    (tmp_path / "meta.mat").write_bytes(b"\0" * (MAX_KIT_BYTES + 1))
    with pytest.raises(FileFormatError, match="it has more than 500,000 bytes"):
        _devkit_truth(tmp_path)


def test_log_with_millions_of_events_is_refused_before_parsing(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("[" + "{}," * 3_000_000 + "{}]")
    with pytest.raises(FileFormatError, match="values"):
        collect(tmp_path / "log", tmp_path / "run")


@pytest.mark.parametrize(
    "header",
    [
        (2**62).to_bytes(8, "little") + b"{}",
        (99).to_bytes(8, "little")
        + b'{"a":{"dtype":"F32","shape":[99999999,99999999],"data_offsets":[0,4]}}'.ljust(99),
    ],
    ids=["length", "shape"],
)
def test_header_of_weights_is_not_read_by_its_stated_size(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(header)
    with pytest.raises(FileFormatError, match=r"w\.safetensors"):
        load_pretrained(torch.nn.Linear(1, 1), str(path), "linear")


def test_picture_bomb_is_no_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A picture of 20,000 × 20,000 pixels takes 50 kB on the disk and 1.2 GB in memory."""
    stream = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(stream, format="PNG")
    for name in ("a", "b"):
        for i in range(6):
            path = tmp_path / "pictures" / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(stream.getvalue())
    assert main(["data", str(tmp_path / "pictures"), "--out", str(tmp_path / "page.html")]) != 0
    assert "pixels" in capsys.readouterr().err


# -- time: expressions on long lines (test_patterns.py checks all expressions) ----------------------------------------------


def test_key_of_a_config_repeats_a_word() -> None:
    keys = Keys({"dropout" * (LONG // 7) + " ": 1}, "config.json", "llama")
    with pytest.raises(ChronogradError, match="unknown key 'dropout"):
        keys.check_rest()


def test_value_of_a_job_file_looks_like_the_start_of_many_keys() -> None:
    for text in (
        "eyJ" * (LONG // 3),
        "a" * LONG,
        "a://" * (LONG // 4),
        "-----BEGIN " * (LONG // 11),
        "a+" * (LONG // 2),
    ):
        assert _SECRET_VALUE.search(text) is None
    for text in ("redis://user:pass@host", f"Bearer {'eyJ' + 'a' * 12}.{'eyJ' + 'b' * 12}.c"):
        assert _SECRET_VALUE.search(text) is not None


def test_line_of_a_cloud_begins_many_steps_and_ends_none(tmp_path: Path) -> None:
    log = log_of_cloud(tmp_path, f"{STEP} 0 {{" * (LONG // 18))
    assert collect(log, tmp_path / "run").ranks() == []


@pytest.mark.parametrize(
    "text", ["1" * LONG, "1" + " " * LONG + "a b", "1x" * (LONG // 2), "1" * LONG + "x", "x" * LONG + " 1"]
)
def test_device_of_a_job_file_is_long(text: str) -> None:
    try:
        parse_on(text)
    except InputError:
        pass
    else:
        assert " " not in text


@pytest.mark.parametrize(
    "piece",
    ["1", " ", "a", "[", "(", '"', "'", "-", "=", ":", "|", ",", ".", "/", "%", "1,", "a=", "1/", "loss ", "[1/", "\t"],
)
def test_line_of_a_log_repeats_a_piece(piece: str, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(f"epoch 1 loss 2{piece * (LONG // len(piece))}x\n")
    try:
        rows, _ = read_rows(path)
    except InputError:
        return
    assert len(rows) <= 2


def test_job_of_a_log_is_checked_like_a_job_file() -> None:
    with pytest.raises(InputError, match=r"cluster\.count"):
        from_dict({"network": {"name": "lenet5"}, "data": {"name": "mnist"}, "cluster": {"count": 10**9}})

"""Files of users are read through `chronograd.files` and `chronograd.door`: nothing waits for a pipe, and errors name the file."""

from __future__ import annotations

import ast
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from chronograd import files
from chronograd.backends.plan import RankPlan
from chronograd.cli import main as cli
from chronograd.cli.main import main
from chronograd.errors import RunError
from chronograd.launch import local
from chronograd.rundir import RunDir

SOURCES = Path(__file__).parent.parent / "src" / "chronograd"
READERS = {
    "open",
    "read_text",
    "read_bytes",
    "fdopen",
    "loadtxt",
    "genfromtxt",
    "fromfile",
    "memmap",
    "loadmat",
    "imread",
}
LIBRARY_READERS = {"load_file", "safe_open", "np.load", "torch.load", "onnx.load", "json.load", "tomllib.load", "ZipFile",
                   "zipfile.ZipFile", "tarfile.open", "gzip.open", "gzip.GzipFile", "Image.open", "opener.open"}  # fmt: skip
# Reads that need no door, by file and the beginning of the call.
WITHOUT_DOOR = {
    # Files of this package and of installed libraries.
    ("__init__.py", "file.read_text("): "a file of this package",
    ("clouds/comparing.py", "path.read_text("): "a file of this package",
    ("configs/find.py", "(packaged()["): "a file of this package",
    ("count/cached.py", "path.read_bytes("): "files of this package, and traces in the user's own cache",
    ("count/packaged.py", "path.read_bytes("): "a file of this package",
    ("forecast/published_curves.py", "file.read_text("): "a file of this package",
    (
        "hardware/catalog.py",
        "path.read_bytes(",
    ): "a file of this package; one of the user goes through files.read_bytes",
    ("hardware/catalog.py", "fitted[path.name].read_text("): "a file of this package",
    ("hardware/instances.py", "path.read_text("): "a file of this package",
    ("report/html.py", "(folder / "): "files of this package",
    ("models/names.py", "path.read_text("): "the source of an installed library",
    ("verbs/request.py", "Path(source).read_bytes("): "the source of an imported module",
    ("backends/horovod/build.py", ""): "folders that only this program and pip write",
    # Files of the operating system.
    ("calibrate/machine.py", "path.read_text("): "/sys",
    ("calibrate/processor.py", ""): "/proc and /sys",
    ("doctor/cores.py", ""): "/proc and /sys",
    ("measure/process.py", "Path(path).read_text("): "/proc",
    # Files that this process, or the one that started it, has just written.
    ("backends/ray_session.py", "note.read_text("): "in a folder of Ray that this user owns",
    ("train/largest_batch.py", "Path(argv[0]).read_text("): "a temporary file of the caller",
    ("deploy/export.py", "onnx.load("): "a file that this process has exported",
    ("deploy/suppression.py", "onnx.load("): "a file that this process has exported",
    ("deploy/timing.py", "json.load(answer)"): "an answer of a server",
    # Libraries that open a path by its name, after a check of its kind.
    ("models/weights.py", ""): "after door.check",
    ("train/check.py", "safe_open("): "after door.check",
    ("backends/tensorflow/prepared.py", ""): "after door.check",
    ("train/step.py", "load_file("): "after door.check of initial weights, or newest_sound",
    ("train/shards.py", "safe_open("): "checkpoints after newest_sound, which compares digests of all files",
    ("backends/gorila/group.py", "load_file("): "checkpoints after newest_sound",
    ("backends/tensorflow/checkpoint.py", "load_file("): "checkpoints after newest_sound",
    ("reinforce/dqn.py", ""): "checkpoints after newest_sound",
    ("reinforce/tabular.py", "load_file("): "checkpoints after newest_sound",
    # Streams that are open already, and archives with a fixed digest.
    ("door.py", ""): "the door itself",
    ("files.py", ""): "the door itself",
    ("data/downloads.py", "tarfile.open("): "an archive whose digest is fixed",
    ("data/folders.py", "Image.open(stream"): "a stream of open_plain",
    ("data/labels.py", "np.load(stream"): "a stream of open_plain",
    ("data/layouts.py", "loadmat(kit"): "bytes of files.read_bytes",
    ("deploy/pictures.py", "Image.open(io.BytesIO("): "bytes of a request",
    ("detect/pictures.py", "opener.open(stream"): "a stream of open_plain",
    ("figure.py", "Image.open(stream"): "a stream of open_plain",
    ("report/plots.py", "Image.open(io.BytesIO("): "bytes of an answer",
}


def reads(tree: ast.AST) -> Iterator[str]:
    """Yield the calls that read a file by other means than the door: not of files of the package, /proc and /sys, nor writes."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function, name = ast.unparse(node.func), ast.unparse(node.func).rpartition(".")[2]
        receiver = function.rpartition(".")[0]
        of_class = (
            receiver.isidentifier() and receiver[:1].isupper() and not receiver.isupper()
        )  # RunDir.open, but not FILE.open
        if name not in READERS and function not in LIBRARY_READERS and name not in LIBRARY_READERS:
            continue
        if receiver in ("files", "door") or (of_class and function not in LIBRARY_READERS):
            continue
        if function in ("read_text", "read_bytes") or function.startswith(("self.machines.", "machines.")):
            continue  # imported from files; an object that is no path
        if receiver.lstrip("_").isupper() or "resources.files(" in function:
            continue  # a constant path of this package or of /proc
        text = ast.unparse(node)
        modes = [word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
        is_write = any(set(mode) & set("wax+") and len(mode) <= 3 for mode in modes) or "os.O_" in text
        if is_write or "'/proc/" in text or "'/sys/" in text or "f'/proc/" in text:
            continue
        yield text


def test_files_of_users_are_read_through_the_door() -> None:
    used = set()
    for path in sorted(SOURCES.rglob("*.py")):
        place = str(path.relative_to(SOURCES))
        for text in reads(ast.parse(path.read_text())):
            reasons = [key for key in WITHOUT_DOOR if key[0] == place and text.startswith(key[1])]
            assert reasons, f"{place}: {text} bypasses chronograd.files; use it, or give a reason here"
            used.update(reasons)
    assert used == set(WITHOUT_DOOR), "reasons without a read"


@pytest.mark.parametrize(
    "code", ["path.open()", "open(path)", "(a / b).read_text()", "np.load(path)", "safe_open(p, 'pt')", "json.load(s)"]
)
def test_search_sees_each_kind_of_read(code: str) -> None:
    assert list(reads(ast.parse(code)))


# -- pipes and devices where files are expected ------------------------------------------------------------------------


def folder_of_texts(folder: Path) -> str:
    (folder / "texts").mkdir()
    os.mkfifo(folder / "texts" / "a.txt")
    return "texts"


def open_images(folder: Path) -> str:
    for part in ("train", "validation", "test"):
        (folder / part).mkdir()
        (folder / f"{part}-annotations-bbox.csv").write_text("ImageID,LabelName,XMin,XMax,YMin,YMax\n")
    os.mkfifo(folder / "class-descriptions-boxable.csv")
    return str(folder)


@pytest.mark.parametrize(
    "line",
    [
        "data text:texts",
        "data text:zero",
        "predict gpt2-small --data text:texts --on v100",
        "train gpt2-small --data text:texts --out run",
        "data open-images:. class_names=[Cat]",
        "fit speed pipe.csv",
        "calibrate links --from pipe.csv --name mine",
        "explain pipe.csv",
        "forecast pipe.csv --to 50%",
        "schedule pipe.csv --on 2xv100",
        "judge pipe.csv --on v100",
        "report pipe.csv --out page.html",
        "records pipe.csv",
        "measure pipe.yaml",
        "validate pipe.csv --device v100 --precision fp32",
    ],
)
def test_error_names_pipe_and_device(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder_of_texts(tmp_path)
    open_images(tmp_path)
    os.mkfifo(tmp_path / "pipe.csv")
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "zero").symlink_to("/dev/zero")
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "a named pipe (FIFO)" in said or "it is a device" in said
    assert "Errno" not in said
    assert "cannot write the output" not in said


def test_errors_of_reading_name_their_file(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"12345")
    os.mkfifo(tmp_path / "pipe")
    for call in (
        lambda: files.read_bytes(tmp_path / "pipe"),
        lambda: files.open_plain(tmp_path),
        lambda: files.read_bytes(tmp_path / "large", 4),
        lambda: files.read_bytes("/proc/self/mem"),  # opened, but not readable at its start
        lambda: files.open_plain("a\0b"),
    ):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.filename
        assert caught.value.errno not in (errno.EPIPE, errno.ENOSPC)
    with pytest.raises(OSError, match=r"^it has more than 4 bytes$"):
        files.read_bytes(tmp_path / "large", 4)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "cannot write the output: No space left on device"),
        (OSError(errno.EINVAL, "it is a named pipe"), "the system refused: it is a named pipe"),
        (files.NotPlainError(errno.EINVAL, "it is a folder", "x"), "cannot use x: it is a folder"),
    ],
)
def test_only_errors_of_writing_are_errors_of_the_output(
    error: OSError, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli.os, "dup2", lambda *_: None)
    assert cli._cannot(error, []) in (1, 2)
    assert words in capsys.readouterr().err


def test_output_of_ranks_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "output.0.txt").symlink_to(tmp_path / "precious")
    plan = RankPlan(("echo", "overwritten"), world_size=1)
    with pytest.raises(RunError, match=r"cannot write .*output\.0\.txt: it is a link, or no file"):
        local.launch(plan, RunDir(tmp_path / "run"))
    assert (tmp_path / "precious").read_text() == "precious\n"


def test_downloads_are_not_written_through_a_link(tmp_path: Path) -> None:
    from chronograd.data.downloads import Sums

    (tmp_path / "precious").write_text("precious\n")
    for name in ("SHA256SUMS", "a.txt.part"):
        (tmp_path / name).symlink_to(tmp_path / "precious")
    (tmp_path / "source").write_text("text")
    with pytest.raises((OSError, RunError)):
        Sums(tmp_path).fetch((tmp_path / "source").as_uri(), "a.txt")
    assert (tmp_path / "precious").read_text() == "precious\n"

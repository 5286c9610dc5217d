"""Input files of the wrong kind: one sentence names the actual kind."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import socket
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from chronograd import door
from chronograd.errors import FileFormatError

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:085ec00b\nsize 15972\n"
TEXT = b"epoch,loss\n1,0.5\n"


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


def tarred(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


REFUSED: dict[str, tuple[bytes, str, str]] = {
    "LFS": (POINTER, "a Git LFS pointer", "git lfs pull"),
    "zipped LFS": (zipped({"log": POINTER}), "a zip file of a Git LFS pointer", "git lfs pull"),
    "zip of two": (zipped({"a": TEXT, "b": TEXT}), "a zip file of 2 files (a, b)", "unzip"),
    "cut zip": (zipped({"a": TEXT})[:60], "a zip file that is damaged or was cut off", "copy"),
    "cut gzip": (gzip.compress(TEXT)[:-6], "a gzip file that is damaged or was cut off", "copy"),
    "gzip of zip": (gzip.compress(zipped({"a": TEXT})), "a gzip file of a zip file", "unzip"),
    "gzip of nothing": (gzip.compress(b""), "a gzip file of an empty file", "copy"),
    "tar": (tarred({"log": TEXT}), "a tar archive", "tar -xf"),
    "tar.gz": (gzip.compress(tarred({"log": TEXT})), "a gzip file of a tar archive", "tar -xf"),
    "weights": (
        zipped({"archive/data.pkl": b"x"}),
        "a file of PyTorch",
        "another",
    ),
    "workbook": (zipped({"[Content_Types].xml": b"x", "a": b"y"}), "an Excel workbook", "CSV"),
    "7z": (b"7z\xbc\xaf\x27\x1c\0\0", "a 7-Zip archive", "7z x"),
    "zstd": (b"\x28\xb5\x2f\xfd\0\0", "a Zstandard file", "unzstd"),
    "pickle": (b"\x80\x04\x95\x10", "a Python pickle", "CSV"),
    "hdf5": (b"\x89HDF\r\n\x1a\n", "an HDF5 file", "CSV"),
    "sqlite": (b"SQLite format 3\0", "an SQLite database", "CSV"),
    "parquet": (b"PAR1\x15\x04", "a Parquet file", "to_csv"),
    "picture": (b"\x89PNG\r\n\x1a\n\0", "a picture", "another"),
    "wandb": (b":W&B\x10", "W&B's own file", "CSV"),
    "binary": (b"\1\0\2\0" * 50, "a binary file", "text"),
    "shell": (b"#!/bin/bash\npython train.py\n", "a script (`#!/bin/bash`)", "the file that it writes"),
    "python": (b"# train\nimport torch\n\nloss = 1\n", "a Python program", "the file that it writes"),
    "notebook": (b'{"cells": [], "nbformat": 4}', "a Jupyter notebook", "the file that it writes"),
    "html": (b"\n<!DOCTYPE html>\n<html>", "a web page", "raw file"),
    "empty": (b"", "is empty", "copy"),
    "blank": (b"\n \n", "only blanks", "copy"),
    "large": (b"1" * 2_000, "2,000 bytes; a log may have at most 1,000", "smaller"),
    "bomb": (gzip.compress(b"1" * 100_000), "more than 1,000 bytes unpacked", "smaller"),
    "ratio": (gzip.compress(b"1,2\n" * 5_000_000), "unpacks to more than 100 times that", "unpack it"),
    "ratio in a zip": (
        zipped({"log": b"1,2\n" * 5_000_000}, zipfile.ZIP_DEFLATED),
        "unpacks to more than 100 times that",
        "unpack it",
    ),
    "lines": (b"1\n" * 2_000_001, "2,000,002 lines; a log may have at most 2,000,000", "shorter"),
    "values": (b"{}," * 3_000_000, "about 6,000,001 values; a log may have at most 5,000,000", "shorter"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_error_names_the_actual_file_kind(name: str, tmp_path: Path) -> None:
    data, what, to_do = REFUSED[name]
    path = tmp_path / "log"
    path.write_bytes(data)
    with pytest.raises(FileFormatError) as caught:
        door.read_text(path, "a log", most_bytes=1_000 if name in ("large", "bomb") else door.MAX_BYTES)
    assert what in caught.value.message
    assert to_do in caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "pack",
    [bytes, gzip.compress, bz2.compress, lzma.compress, lambda data: zipped({"log": data, "__MACOSX/log": b"x"})],
    ids=["plain", "gzip", "bzip2", "xz", "zip"],
)
def test_reads_a_single_compressed_file(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(pack(TEXT))
    assert door.read_text(path) == TEXT.decode()


def test_small_file_may_unpack_to_any_multiple(tmp_path: Path) -> None:
    path = tmp_path / "log.csv.gz"
    path.write_bytes(gzip.compress(b"1,2\n" * 250_000))
    assert path.stat().st_size * 500 < 1_000_000
    assert len(door.read_text(path)) == 1_000_000


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029"])
def test_every_line_that_a_reader_separates_is_counted(end: str) -> None:
    """A file with the line ends of old Macs had one line for the limit, and millions for `str.splitlines`."""
    text = f"1{end}" * 8
    assert len(text.splitlines()) == 8
    door.check_amount(text, "log", "a log", most_lines=9)
    with pytest.raises(FileFormatError, match="has 9 lines; a log may have at most 8"):
        door.check_amount(text, "log", "a log", most_lines=8)


def test_limits_of_lines_and_values_are_chosen_by_the_caller(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("[" + "1,\n" * 5 + "1]")
    assert door.read_text(path, most_lines=6, most_values=7)
    assert door.read_text(path, most_lines=None, most_values=7)
    with pytest.raises(FileFormatError, match="has 6 lines; a text file may have at most 5"):
        door.read_text(path, most_lines=5)
    with pytest.raises(FileFormatError, match="has about 7 values; a text file may have at most 6"):
        door.read_text(path, most_values=6)


@pytest.mark.parametrize("coding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252"])
def test_reads_text_in_other_encodings(coding: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes("epoch,ü\n".encode(coding))
    assert door.read_text(path) == "epoch,ü\n"


def places(folder: Path) -> dict[str, Path]:
    os.mkfifo(folder / "fifo")
    with socket.socket(socket.AF_UNIX) as unbound, contextlib.chdir(folder):  # a socket's path is short
        unbound.bind("socket")
    (folder / "loop").symlink_to("loop")
    (folder / "broken").symlink_to("nowhere")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "folder").mkdir()
    return {name: folder / name for name in ("fifo", "socket", "loop", "broken", "zero", "folder", "missing")}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fifo", "is a named pipe (FIFO)"),
        ("socket", "is a socket"),
        ("loop", "leads back to itself"),
        ("broken", "a symbolic link to nowhere, which does not exist"),
        ("zero", "is a device"),
        ("folder", "is a folder"),
        ("missing", "there is no file"),
    ],
)
def test_paths_that_are_not_files_are_reported(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileFormatError) as caught:
        door.opened(places(tmp_path)[name])
    assert message in caught.value.message
    assert caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_missing_permission_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(TEXT)
    path.chmod(0)
    with pytest.raises(FileFormatError, match="no permission"):
        door.opened(path)


def test_expected_file_kinds_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(zipped({"archive/data.pkl": b"x"}))
    with door.opened(path, "weights", expects=("zip",), most_bytes=None) as stream:
        assert stream.read(2) == b"PK"
    with pytest.raises(FileFormatError, match="a zip file, not a log"):
        door.check(path, "a log")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": [1, 2', "cut off in line 1"),
        ('{"a": "tex', "cut off in line 1"),
        ('{"a": 1,\n "b": tru', "cut off in line 2"),
        ('{"a": 1,\n', "cut off in line 2"),
        ('{"a" 1, "b": [1, 2, 3, 4]}', "line 1, column 6"),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_truncated_or_invalid_json(text: str, message: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        door.parse_json(text, "a.json", "a log")
    assert message in caught.value.message


def test_json_with_bare_nan_and_control_characters() -> None:
    data = door.parse_json(b'{"a": NaN, "b": -Infinity, "c": "x\ty"}', "a.json", "a log")
    assert data["a"] != data["a"]
    assert data["b"] == float("-inf")
    assert data["c"] == "x\ty"


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress, lambda data: zipped({"a": data})])
def test_memory_depends_on_the_file_and_not_on_its_limit(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(pack(TEXT))
    door.read_text(path, "a log")
    tracemalloc.start()
    try:
        assert door.read_text(path, "a log", most_bytes=10**9) == TEXT.decode()
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()

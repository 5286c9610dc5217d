"""A path that is not a regular file is refused at once, without waiting."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chronograd.data.folders import decode, header
from chronograd.errors import FileFormatError


@pytest.mark.parametrize("kind", ["pipe", "device", "loop", "folder"])
def test_special_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "0.jpg"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"device": "/dev/zero", "loop": path.name}[kind])
    for read in (header, lambda one: decode(one, 8)):
        with pytest.raises(FileFormatError, match=r"0\.jpg"):
            read(path)

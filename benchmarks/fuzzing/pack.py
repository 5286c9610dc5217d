"""A folder as one input of a fuzzer: entries of text or bytes, so a corpus file can be read and edited.

    ==== job.yaml file
    network: {name: lenet5}
    ==== steps.0.jsonl link
    outside

Kinds: `file`, `dir`, `fifo`, and `link` to one of TARGETS. A sha256 written as FITTING becomes that of the neighbouring file.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

KINDS = ("file", "dir", "fifo", "link")
# Targets of a link: a file and a folder that must not change, itself, a missing file, and an endless file.
TARGETS = ("outside", "outside-folder", "self", "nothing", "endless", "up")
FITTING = b"FITTING"
MAX_ENTRIES = 24
_HEAD = re.compile(rb"(?:\A|\n)==== ([^\n ]{1,120}) (file|dir|fifo|link)(?:\n|\Z)")


@dataclass(frozen=True)
class Entry:
    name: str
    content: bytes = b""
    kind: str = "file"


def packed(entries: Sequence[Entry]) -> bytes:
    return b"\n".join(b"==== %s %s\n%s" % (e.name.encode(), e.kind.encode(), e.content) for e in entries)


def unpacked(data: bytes) -> list[Entry]:
    """Return the entries of an input; anything before the first header is dropped."""
    heads = list(_HEAD.finditer(data))[:MAX_ENTRIES]
    ends = [*(head.start() for head in heads[1:]), len(data)][: len(heads)]
    return [
        Entry(head[1].decode("utf-8", "replace"), data[head.end() : end], head[2].decode())
        for head, end in zip(heads, ends, strict=True)
    ]


def lay_out(entries: Sequence[Entry], folder: Path, outside: Path) -> None:
    """Write the entries to a folder. Skips impossible ones, such as a file within a file."""
    for entry in entries:
        parts = [part for part in PurePosixPath(entry.name.replace("\0", "")).parts if part not in ("/", "..", ".")]
        if not parts:
            continue
        path = folder.joinpath(*parts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _make(entry, path, outside)
        except OSError:
            continue
    _fit_sums(folder)


def _make(entry: Entry, path: Path, outside: Path) -> None:
    if os.path.lexists(path) or not path.parent.resolve().is_relative_to(outside.parent):
        return
    if entry.kind == "dir":
        path.mkdir()
    elif entry.kind == "fifo":
        os.mkfifo(path)
    elif entry.kind == "link":
        wanted = entry.content.strip().decode("ascii", "replace")
        targets = {
            "outside": str(outside / "file"),
            "outside-folder": str(outside),
            "self": path.name,
            "endless": "/dev/zero",
            "up": "..",
        }
        path.symlink_to(targets.get(wanted, "nothing-there"))
    else:
        path.write_bytes(entry.content)


def _fit_sums(folder: Path) -> None:
    """Replace FITTING in a state.json with real checksums, so that inputs pass this check and reach the code after it."""
    for state in folder.glob("**/state.json"):
        if not state.is_file() or state.is_symlink() or FITTING not in (text := state.read_bytes()):
            continue
        for name in (b"model.safetensors", b"optimizer.safetensors", b"ema.safetensors"):
            path = state.parent / name.decode()
            if path.is_file() and not path.is_symlink():
                digest = hashlib.sha256(path.read_bytes()).hexdigest().encode()
                text = text.replace(b'"%s": "%s"' % (name, FITTING), b'"%s": "%s"' % (name, digest))
        state.write_bytes(text)

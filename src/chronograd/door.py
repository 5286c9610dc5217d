"""The door for files of other programs: logs, traces, tables, weights and platforms' job files pass it before a parser sees
them.

`opened` checks the kind of the path and the first bytes, and returns a stream. For a wrong file it raises a FileFormatError
that names the kind of the file, its path and what to do. `read_bytes` also unpacks a single compressed file, `read_text`
decodes, and `parse_json` detects a truncated file. None of them waits (a FIFO), reads without end (a device) or reads more than
`most_bytes`, packed or unpacked. A compressed file may not unpack to more than `MAX_RATIO` times its size. A text may have
`MAX_LINES` lines and `files.MAX_VALUES` values, because a parser needs up to 100 bytes of memory for a value of two letters.

Other readers call `chronograd.files`, whose `open_plain` this door also uses. They read our own formats (records, runs, job
files, catalogs), which `files.check_plain` limits to plain data; and ONNX models, COCO annotations, pictures, tables of `fit
speed` and links.

    stream = door.opened(path, "weights", expects=("zip", "pickle"))
    text = door.read_text(path, "a training log")
"""

from __future__ import annotations

import bz2
import codecs
import errno
import gzip
import io
import json
import lzma
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from chronograd.errors import FileFormatError
from chronograd.files import MAX_BYTES, MAX_VALUES, irregular, num_values, open_plain

HEAD_BYTES = 4096
# gzip reduces logs and traces 5 to 30 times, and zeros 1,030 times. Small files may have any ratio.
MAX_RATIO = 100
MIN_UNPACKED_BYTES = 1_000_000
# A row of a parsed table takes 200 to 400 bytes, so that this limit is below 1 GB of memory.
MAX_LINES = 2_000_000
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"  # characters at which `str.splitlines` separates lines
_PIECE_BYTES = 2**20
EMPTY_HINT = "copy or write it again"
_EXPORT = "export its content as CSV or JSON"


@dataclass(frozen=True)
class Kind:
    """A kind of file identified by its first bytes: `magic` at byte `at`."""

    key: str
    what: str
    magic: bytes
    hint: str
    at: int = 0

    def fits(self, head: bytes) -> bool:
        return head[self.at : self.at + len(self.magic)] == self.magic


# The first match wins. `read_bytes` reads through "packed" kinds.
KINDS = (
    Kind("lfs", "a Git LFS pointer (the file itself was not downloaded)", b"version https://git-lfs.github.com/spec",
         "run `git lfs pull` in its repository"),
    Kind("gzip", "a gzip file", b"\x1f\x8b", "unpack it with `gunzip`"),
    Kind("bzip2", "a bzip2 file", b"BZh", "unpack it with `bunzip2`"),
    Kind("xz", "an xz file", b"\xfd7zXZ\0", "unpack it with `unxz`"),
    Kind("zip", "a zip file", b"PK\x03\x04", "unpack it with `unzip`, and name one of its files"),
    Kind("zip", "an empty zip file", b"PK\x05\x06", EMPTY_HINT),
    Kind("zstd", "a Zstandard file", b"\x28\xb5\x2f\xfd", "unpack it with `unzstd`"),
    Kind("7z", "a 7-Zip archive", b"7z\xbc\xaf\x27\x1c", "unpack it with `7z x`, and name one of its files"),
    Kind("rar", "a RAR archive", b"Rar!", "unpack it, and name one of its files"),
    Kind("tar", "a tar archive", b"ustar", "unpack it with `tar -xf`, and name one of its files", at=257),
    Kind("picture", "a picture (PNG)", b"\x89PNG", "name another file"),
    Kind("picture", "a picture (JPEG)", b"\xff\xd8\xff", "name another file"),
    Kind("picture", "a picture (GIF)", b"GIF8", "name another file"),
    Kind("pdf", "a PDF document", b"%PDF-", "name another file"),
    Kind("program", "a compiled program or library", b"\x7fELF", "name another file"),
    Kind("hdf5", "an HDF5 file", b"\x89HDF", _EXPORT),
    Kind("sqlite", "an SQLite database", b"SQLite format 3", _EXPORT),
    Kind("parquet", "a Parquet file", b"PAR1", "convert it: pandas.read_parquet(…).to_csv(…)"),
    Kind("numpy", "a NumPy array", b"\x93NUMPY", _EXPORT),
    Kind("wandb", "W&B's own file of a run (.wandb)", b":W&B", "export the run's history as CSV or JSON lines"),
    *(Kind("pickle", "a Python pickle, which is never loaded because it may run code", bytes([0x80, version]), _EXPORT)
      for version in range(2, 6)),
)  # fmt: skip
_UNPACK: dict[str, Callable[[IO[bytes]], io.BufferedIOBase]] = {
    "gzip": lambda stream: gzip.GzipFile(fileobj=stream),
    "bzip2": lambda stream: bz2.BZ2File(stream),
    "xz": lambda stream: lzma.LZMAFile(stream),  # noqa: SIM115, as the reader closes its source
}
# Byte order marks; the longer ones first, because one of UTF-16 begins one of UTF-32.
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
# nan and inf as values; searched only in text that is not valid JSON.
_NO_NUMBER = re.compile(r"(?<=[:\[,\s])(-?)(?:(nan)|inf(?:inity)?)(?=\s*[,\]}])", re.IGNORECASE)
_WEB_PAGE = re.compile(r"\s*(<!doctype html|<html\b)", re.IGNORECASE)
_PYTHON = re.compile(r"(import \w[\w.]*( as \w+)?|from [\w.]+ import .+|def \w+\(.*|class \w+[(:].*|@\w.*)\s*")


def opened(
    path: str | os.PathLike[str],
    what: str = "a text file",
    *,
    expects: Collection[str] = (),
    most_bytes: int | None = MAX_BYTES,
    hint: str = "",
) -> io.BufferedReader:
    """Open a file of at most `most_bytes` that is none of `KINDS`; return a stream at its start.

    Args:
        what: the expected file, with an article, for the message: "a trace of torch.profiler".
        expects: keys of `KINDS` that are allowed, such as `zip` for weights; `any` for all but Git LFS pointers.
        most_bytes: None if the reader itself reads little of a large file.
        hint: what to do, if the kind has no better advice.

    Raises: FileFormatError, also for a missing or forbidden file.
    """
    stream = _opened(Path(path), what)
    try:
        size = os.fstat(stream.fileno()).st_size
        if most_bytes is not None and size > most_bytes:
            raise _too_large(path, what, size, most_bytes)
        head = stream.read(HEAD_BYTES)
        if not head:
            raise FileFormatError(f"{path} is empty, not {what}", hint or EMPTY_HINT)
        kind = kind_of(head)
        if kind is not None and kind.key not in expects and ("any" not in expects or kind.key == "lfs"):
            raise FileFormatError(f"{path} is {kind.what}, not {what}", kind.hint)
        stream.seek(0)
    except OSError as error:
        stream.close()
        raise FileFormatError(f"cannot read {path}: {error.strerror}", hint) from None
    except BaseException:
        stream.close()
        raise
    return stream


def check(path: str | os.PathLike[str], what: str, *, expects: Collection[str] = ()) -> None:
    """Raise the errors of `opened` for a file of any size, before a library opens it by its name."""
    opened(path, what, expects=expects, most_bytes=None).close()


def read_bytes(
    path: str | os.PathLike[str], what: str = "a text file", *, most_bytes: int = MAX_BYTES, hint: str = ""
) -> bytes:
    """Read a file as `opened` does; unpack one that gzip, bzip2 or xz compressed, or the only file of a zip."""
    with opened(path, what, expects=("zip", *_UNPACK), most_bytes=most_bytes, hint=hint) as stream:
        kind = kind_of(stream.read(HEAD_BYTES))
        stream.seek(0)
        if kind is None:
            return _limited(stream, path, what, most_bytes)
        try:
            data = _unpacked(stream, kind, path, what, most_bytes)
        except (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, OSError, NotImplementedError) as error:
            told = " ".join(str(error).split())[:120]
            raise FileFormatError(f"{path} is {kind.what} that is damaged or was cut off: {told}", EMPTY_HINT) from None
    inner = kind_of(data)
    if inner is not None:
        raise FileFormatError(f"{path} is {kind.what} of {inner.what}, not {what}", inner.hint)
    if not data:
        raise FileFormatError(f"{path} is {kind.what} of an empty file, not {what}", EMPTY_HINT)
    return data


def read_text(
    path: str | os.PathLike[str],
    what: str = "a text file",
    *,
    most_bytes: int = MAX_BYTES,
    most_lines: int | None = MAX_LINES,
    most_values: int = MAX_VALUES,
    hint: str = "",
) -> str:
    """Return the text of a file as `read_bytes`: UTF-8, UTF-16 or UTF-32 by its byte order mark, else Latin-1.

    Args:
        most_lines: None for JSON that may have a line for each value.

    Raises: FileFormatError for binary data, a program, a notebook, a web page, and too many lines or values.
    """
    data = read_bytes(path, what, most_bytes=most_bytes, hint=hint)
    text = decoded(data)
    if text is None:
        raise FileFormatError(f"{path} is a binary file, not {what}", hint or "name a text file")
    check_amount(text, path, what, most_lines=most_lines, most_values=most_values)
    if (problem := _program(text, Path(path))) is not None:
        raise FileFormatError(f"{path} is {problem[0]}, not {what}", hint or problem[1])
    if not text[:HEAD_BYTES].strip() and not text.strip():
        raise FileFormatError(f"{path} has only blanks, not {what}", hint or EMPTY_HINT)
    return text


def num_lines(text: str) -> int:
    r"""Return the lines of a text as `str.splitlines` separates them, counting an empty last line.

    >>> num_lines("a\nb"), num_lines("a\r\nb\r"), num_lines("a\u2028b")
    (2, 3, 2)
    """
    return 1 + sum(map(text.count, LINE_ENDS)) - text.count("\r\n")


def check_amount(
    text: str,
    path: str | os.PathLike[str],
    what: str,
    *,
    most_lines: int | None = MAX_LINES,
    most_values: int = MAX_VALUES,
) -> None:
    """Raise FileFormatError for a text of more lines or values (`files.num_values`) than a parser should hold in memory."""
    lines = num_lines(text)
    if most_lines is not None and lines > most_lines:
        raise FileFormatError(
            f"{path} has {lines:,} lines; {what} may have at most {most_lines:,}", "name a shorter file"
        )
    if (values := num_values(text)) > most_values:
        raise FileFormatError(
            f"{path} has about {values:,} values; {what} may have at most {most_values:,}", "name a shorter file"
        )


def decoded(data: bytes) -> str | None:
    r"""Return the text of bytes, without its byte order mark; None for binary data.

    >>> decoded("ä".encode("utf-16")), decoded(b"caf\xe9"), decoded(b"a\0b")
    ('ä', 'café', None)
    """
    coding = next((name for mark, name in _MARKS.items() if data.startswith(mark)), None)
    if coding is None and b"\0" in data:
        return None
    for name in (coding,) if coding else ("utf-8", "cp1252", "latin-1"):
        try:
            return data.decode(name)
        except UnicodeDecodeError:
            continue
    return None


def parse_json(text: str | bytes, path: str | os.PathLike[str], what: str) -> Any:
    """Return the data of a JSON text. Bare NaN and Infinity are allowed, and control characters in strings.

    Raises: FileFormatError that states where it was cut off, or the line of the error.
    """
    if isinstance(text, bytes):
        found = decoded(text)
        if found is None:
            raise FileFormatError(f"{path} is a binary file, not {what}", "name a JSON file")
        text = found
    try:
        return loads(text)
    except RecursionError:
        raise FileFormatError(f"{path} is nested too deep to be {what}", "write it again") from None
    except json.JSONDecodeError as error:
        if is_cut_off(text, error):
            raise FileFormatError(
                f"{path} is cut off in line {text.count(chr(10)) + 1:,}: its JSON has no end",
                "copy or write it again in full",
            ) from None
        raise FileFormatError(
            f"{path} is no {what.removeprefix('a ').removeprefix('an ')}: in line {error.lineno:,}, column {error.colno:,} its JSON is not valid ({error.msg})",
            "write it again",
        ) from None
    except ValueError as error:  # a number of too many digits
        raise FileFormatError(f"{path} is no {what}: {error}", "write it again") from None


def loads(text: str) -> Any:
    """Parse JSON, also with control characters in strings and bare NaN and infinity, as C++ writes them.

    >>> loads('[nan, -inf, NaN]')
    [nan, -inf, nan]
    """
    try:
        return json.loads(text, strict=False)
    except ValueError:
        mended = _NO_NUMBER.sub(lambda found: "NaN" if found[2] else f"{found[1]}Infinity", text)
        if mended == text:
            raise
        return json.loads(mended, strict=False)


def is_cut_off(text: str, error: json.JSONDecodeError) -> bool:
    """Return whether a JSON text failed because it ends too early: within a string, a word, a number or a list."""
    rest = text[error.pos :].rstrip()
    is_string_without_end = error.msg.startswith("Unterminated string")
    return is_string_without_end or not rest or (len(rest) < 12 and re.fullmatch(r"[-+\w.\"\\]*", rest) is not None)


def kind_of(head: bytes) -> Kind | None:
    """Return the kind in `KINDS` of a file that begins with these bytes; None for any other."""
    return next((kind for kind in KINDS if kind.fits(head)), None)


def _opened(path: Path, what: str) -> io.BufferedReader:
    """Open a file. Raises FileFormatError if it is not a file, does not exist, or may not be read."""
    try:
        if place := irregular(os.stat(path).st_mode):
            to_do = "name a file in it" if place == "a folder" else "write its content to a file, and name that"
            raise FileFormatError(f"{path} is {place}, not {what}", to_do)
        return open_plain(path)
    except (OSError, ValueError) as error:
        raise FileFormatError(*_unreadable(path, error)) from None


def _unreadable(path: Path, error: Exception) -> tuple[str, str]:
    """Return message and hint for a path that cannot be opened."""
    number = getattr(error, "errno", None)
    if number == errno.ENOENT and path.is_symlink():
        return (
            f"{path} is a symbolic link to {os.readlink(path)}, which does not exist",
            "mend the link, or name the file",
        )
    if number == errno.ENOENT:
        return f"there is no file {path}", "check the path"
    if number == errno.ELOOP:
        return f"{path} is a symbolic link that leads back to itself", "mend the link, or name the file"
    if number in (errno.EACCES, errno.EPERM):
        return f"you have no permission to read {path}", f"chmod u+r {path}, or ask its owner"
    if number == errno.ENOTDIR:
        return f"cannot read {path}: a part of this path is a file, not a folder", "check the path"
    if number == errno.ENAMETOOLONG:
        return f"cannot read {str(path)[:60]}…: the path is too long", "check the path"
    return f"cannot read {path}: {getattr(error, 'strerror', None) or error}", "check the path"


def _too_large(path: str | os.PathLike[str], what: str, size: int | None, most_bytes: int) -> FileFormatError:
    has = f"{size:,} bytes" if size is not None else f"more than {most_bytes:,} bytes unpacked"
    return FileFormatError(f"{path} has {has}; {what} may have at most {most_bytes:,}", "name a smaller file")


def _limited(stream: IO[bytes] | io.BufferedIOBase, path: str | os.PathLike[str], what: str, most_bytes: int) -> bytes:
    data = _up_to(stream, most_bytes + 1)
    if len(data) > most_bytes:
        raise _too_large(path, what, None, most_bytes)
    return data


def _up_to(stream: IO[bytes] | io.BufferedIOBase, most_bytes: int) -> bytes:
    """Return the rest of a stream, at most `most_bytes`, piece by piece: `read(n)` allocates n bytes before it reads any."""
    data = io.BytesIO()
    while piece := stream.read(min(_PIECE_BYTES, most_bytes - data.tell())):
        data.write(piece)
    return data.getvalue()


def _inflated(
    stream: io.BufferedIOBase | IO[bytes], packed: int, path: str | os.PathLike[str], what: str, most_bytes: int
) -> bytes:
    """Return the content of a compressed stream of `packed` bytes, at most MAX_RATIO times `packed`."""
    most_for_ratio = max(MAX_RATIO * packed, MIN_UNPACKED_BYTES)
    if most_for_ratio >= most_bytes:
        return _limited(stream, path, what, most_bytes)
    data = _up_to(stream, most_for_ratio + 1)
    if len(data) > most_for_ratio:
        raise FileFormatError(
            f"{path} has {packed:,} bytes and unpacks to more than {MAX_RATIO} times that, which {what} never does",
            "if you trust it, unpack it, and name the unpacked file",
        )
    return data


def _unpacked(stream: IO[bytes], kind: Kind, path: str | os.PathLike[str], what: str, most_bytes: int) -> bytes:
    if kind.key in _UNPACK:
        packed = os.fstat(stream.fileno()).st_size
        return _inflated(_UNPACK[kind.key](stream), packed, path, what, most_bytes)
    with zipfile.ZipFile(stream) as archive:
        members = [m for m in archive.infolist() if not m.is_dir() and not m.filename.startswith("__MACOSX/")]
        names = [member.filename for member in members]
        if any(name.endswith("data.pkl") for name in names):
            raise FileFormatError(
                f"{path} is a file of PyTorch (weights or a checkpoint), not {what}", "name another file"
            )
        if "[Content_Types].xml" in names:
            raise FileFormatError(f"{path} is an Excel workbook or another Office file, not {what}", "save it as CSV")
        if len(members) != 1:
            shown = ", ".join(names[:3]) + ", …" * (len(names) > 3)
            raise FileFormatError(f"{path} is a zip file of {len(names):,} files ({shown}), not {what}", kind.hint)
        if members[0].flag_bits & 1:
            raise FileFormatError(f"{path} is a zip file with a password", "unpack it, and name the file in it")
        with archive.open(members[0]) as member:
            return _inflated(member, members[0].compress_size, path, what, most_bytes)


def _program(text: str, path: Path) -> tuple[str, str] | None:
    """Return the kind of a text that is not data, and what to do; None for data."""
    if text.startswith("#!"):
        return f"a script (`{text.splitlines()[0][:60]}`)", "name the file that it writes"
    if _WEB_PAGE.match(text[:HEAD_BYTES]):
        return "a web page (HTML)", "download the raw file"
    if text.lstrip().startswith("{") and '"nbformat"' in text and '"cells"' in text:
        return "a Jupyter notebook", "name the file that it writes"
    first = next((line for line in text[:HEAD_BYTES].splitlines() if line.strip() and not line.startswith("#")), "")
    if path.suffix == ".py" or _PYTHON.fullmatch(first) or first.startswith(('"""', "'''")):
        return "a Python program", "name the file that it writes"
    return None

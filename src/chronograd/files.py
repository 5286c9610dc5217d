"""Files that others may have made, read as plain data: nothing in them is executed, nothing waits, nothing multiplies.

The input is a file (a pipe would wait forever, a device never end) of a bounded size. JSON and YAML give None, booleans, finite
numbers of 64 bits, strings, lists and mappings; YAML's tags, aliases and duplicate keys are refused.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import json
import math
import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import IO, Any

import yaml

from chronograd.errors import DiskFullError, FileFormatError, InputError

# Our largest files, records with their tables, have a few megabytes.
MAX_BYTES = 50_000_000
MAX_LEVELS = 30
# A value of two letters takes 60 to 100 bytes once it is parsed, so that this limit is 500 MB of memory.
MAX_VALUES = 5_000_000
_FORMAT = re.compile(rb'"format"\s*:\s*"(chronograd-[a-z]+)"')
DOWNLOAD_TIMEOUT_S = 20.0
_PLACES = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe (FIFO)", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a disk device",
}  # fmt: skip


def irregular(mode: int) -> str:
    """Return the name of the kind of thing with this mode, such as a folder; empty for a regular file."""
    return "" if stat.S_ISREG(mode) else _PLACES.get(stat.S_IFMT(mode), "no regular file")


class NotPlainError(OSError):
    """A path that may not be read or written as a file: a pipe, or too many bytes. Its text is the reason alone."""

    def __init__(self, number: int, reason: str, path: str | os.PathLike[str]) -> None:
        super().__init__(number, reason, os.fspath(path))

    def __str__(self) -> str:
        return str(self.strerror)


def open_plain(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file for reading, through symbolic links. Raises OSError with the path, also for a folder, a pipe or a device."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags)
    except ValueError as error:  # an impossible file name, such as one with a NUL
        raise NotPlainError(errno.EINVAL, str(error), path) from None
    if place := irregular(os.fstat(handle).st_mode):
        os.close(handle)
        raise NotPlainError(errno.EINVAL, f"it is {place}, not a file", path)
    return open(handle, "rb")


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file whose name stands in another file. Raises FileFormatError for a name that leaves the folder.

    >>> inside(Path("pictures"), "train/1.jpg").as_posix()
    'pictures/train/1.jpg'
    """
    parts = name.replace("\\", "/").split("/")
    if ".." in parts or parts[0] == "" or parts[0].endswith(":") or "\0" in name:
        raise FileFormatError(f"the name {name!r:.200} leaves the folder {folder}", "name files within that folder")
    return folder / name


def open_text(path: str | os.PathLike[str], errors: str = "strict") -> TextIOWrapper:
    """Open a file of UTF-8 as `open_plain`, for tables that are too long to be read at once; line ends stay, as csv wants it."""
    return TextIOWrapper(open_plain(path), "utf-8", errors, newline="")


def open_to_append(path: Path) -> IO[bytes]:
    """Open a file for appending; create it if needed. Raises OSError, also for a symbolic link or anything but a file."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
        flags |= getattr(os, name, 0)
    handle = os.open(path, flags, 0o644)
    if place := irregular(os.fstat(handle).st_mode):
        os.close(handle)
        raise NotPlainError(errno.EINVAL, f"it is {place}, not a file", path)
    return os.fdopen(handle, "ab")


def read_bytes(path: str | os.PathLike[str], most_bytes: int = MAX_BYTES) -> bytes:
    """Read all of a file. Raises OSError as `open_plain`, and for a larger file."""
    try:
        with open_plain(path) as stream:
            data = stream.read(most_bytes + 1)
    except OSError as error:
        error.filename = os.fspath(path)  # reading names no file, and is no error of the output
        raise
    if len(data) > most_bytes:
        raise NotPlainError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", path)
    return data


def read_text(path: str | os.PathLike[str], errors: str = "strict", most_bytes: int = MAX_BYTES) -> str:
    """Return the text of a file of UTF-8. Raises OSError as `read_bytes`, UnicodeDecodeError."""
    return read_bytes(path, most_bytes).decode(errors=errors)


def digest(path: Path, kind: str = "sha256") -> str:
    """Return the checksum of a file in hexadecimal digits."""
    with open_plain(path) as stream:
        return hashlib.file_digest(stream, kind).hexdigest()


def num_values(text: str | bytes) -> int:
    """Return the most values that a JSON text or a table can hold: the marks that begin or separate values, also in quotes.

    >>> num_values('{"a": [1, 2]}'), num_values(b"x;y")
    (4, 2)
    """
    marks = ",;\t[{"
    return 1 + (sum(map(text.count, marks)) if isinstance(text, str) else sum(map(text.count, marks.encode())))


def read_json(path: str | os.PathLike[str], most_bytes: int = MAX_BYTES) -> Any:
    """Return the data of a JSON file. Raises OSError as `read_bytes`, ValueError for invalid JSON or data that is not plain, and
    for too many values.
    """
    text = read_bytes(path, most_bytes)
    if (values := num_values(text)) > MAX_VALUES:
        raise ValueError(f"it has about {values:,} values, more than {MAX_VALUES:,}")
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    check_plain(data)
    return data


def format_of(path: Path) -> str:
    """Return the format that a file names in its first words, such as `chronograd-record`, or an empty text. Traces may be
    gigabytes.

    Raises FileFormatError if it cannot be read.
    """
    try:
        with open_plain(path) as stream:
            stated = _FORMAT.search(stream.read(200))
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror}") from None
    return stated[1].decode() if stated else ""


def parse_yaml(text: str, is_ours: bool = True) -> Any:
    """Return the data of a YAML text. Raises ValueError for invalid YAML or data that is not plain.

    Args:
        is_ours: refuse 0100 and 1:30. YAML 1.1 reads them as 64 and 90, but people mean 100 and a time. In files of other
            programs they
            stay text.

    >>> parse_yaml("{a: [1, 0.5], b: 2001-01-01}")
    {'a': [1, 0.5], 'b': '2001-01-01'}
    """
    try:
        data = yaml.load(text, _OwnLoader if is_ours else _PlainLoader)
    except (yaml.YAMLError, ArithmeticError) as error:
        raise ValueError(" ".join(str(error).split())) from None
    check_plain(data)
    return data


def dump_yaml(data: Any) -> str:
    """Write plain data as YAML in its order; `parse_yaml` reads the same data."""
    text = str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True))
    # PyYAML adds spaces to a next-line character that it does not escape.
    return text if "\x85" not in text else str(yaml.dump(data, Dumper=_Dumper, sort_keys=False))


# System errors for a full disk, an exhausted quota, and a file that a limit (`ulimit -f`) cuts.
_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "your quota is used up",
    errno.EFBIG: "the limit of a file's size is reached",
}


def disk_full(path: Path, error: OSError) -> DiskFullError | None:
    """Return the error to raise if a path could not be written because there is no space; None for another reason."""
    if error.errno not in _FULL:
        return None
    free = ""
    for folder in (path, *path.absolute().parents):
        with contextlib.suppress(OSError):
            disk = os.statvfs(folder)
            free = f"; {disk.f_bavail * disk.f_frsize:,} bytes are free there"
            break
    hint = "free some space there, or name a folder on another disk"
    if error.errno == errno.EFBIG:
        free, hint = "", "raise the limit (`ulimit -f unlimited`)"
    return DiskFullError(f"cannot write {path}: {_FULL[error.errno]}{free}", hint)


@contextmanager
def filling(path: Path) -> Iterator[None]:
    """Wrap the writing of a path. Raises DiskFullError if there is no space; other errors pass."""
    try:
        yield
    except OSError as error:
        if (full := disk_full(path, error)) is not None:
            raise full from None
        raise


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Return a stream whose content replaces a file atomically: written to another file, synced, renamed. A reader never sees
    half of it.

    Raises: OSError; DiskFullError if there is no space.
    """
    with filling(path):
        handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(aside, 0o644)
            os.replace(aside, path)
        except BaseException:
            Path(aside).unlink(missing_ok=True)
            raise


def write_aside(path: Path, text: str | bytes) -> None:
    """Replace a file atomically; see `replacing`."""
    with replacing(path) as stream:
        stream.write(text.encode() if isinstance(text, str) else text)


def write_json(path: Path, data: Any) -> None:
    """Write data as JSON by `write_aside`. Infinities and NaN are refused."""
    write_aside(path, json.dumps(data, indent=1, allow_nan=False))


@contextmanager
def as_asked(path: Path) -> Iterator[None]:
    """Wrap the writing of a file that the user named. Raises InputError if it fails, DiskFullError if there is no space."""
    try:
        with filling(path):
            yield
    except OSError as error:
        if error.errno == errno.ENOENT and path.parent.is_dir() and not path.is_symlink():  # as in /proc
            raise InputError(f"cannot write {path}: its folder takes no new files", "name another folder") from None
        raise InputError(f"cannot write {path}: {error.strerror or error}", _to_write(error)) from None


def _to_write(error: OSError) -> str:
    """Return what to do if a file cannot be written for another reason than space."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "name a file in a folder that you may write to"
    return "name a file, not a folder" if error.errno == errno.EISDIR else "name a file in a folder that exists"


@contextmanager
def impatient() -> Iterator[None]:
    """Give downloads by libraries a time-out: a network that swallows packets must not hang a job."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def check_plain(value: Any, where: str = "", levels: int = MAX_LEVELS) -> None:
    """Raise ValueError for data that JSON cannot express, 64 bits cannot hold, or with more than `levels` levels.

    The message names the field and the given value; `where` is the name of the value itself.
    """
    if levels < 0:
        raise ValueError(f"it is nested deeper than {MAX_LEVELS} levels")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{where}: keys must be text, got {key!r:.80}")
            check_plain(key, where)
            check_plain(item, f"{where}.{key}" if where else key, levels - 1)
    elif isinstance(value, list | tuple):
        for item in value:
            check_plain(item, where, levels - 1)
    elif problem := _problem(value):
        raise ValueError(f"{where}: {problem}" if where else problem)


def _problem(value: Any) -> str:
    """Return what is wrong with a single value; empty if nothing is."""
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, str):
        is_whole = value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)
        return "" if is_whole else f"half of a surrogate pair is no character, got {value[:80]!r}"
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"must be a finite number, got {value}"
    if isinstance(value, int):
        return "" if -(2**63) <= value < 2**63 else f"a whole number of {value.bit_length()} bits is too large"
    return f"must be text, a number, a list or a mapping, got {value!r:.80}; put it in quotes"


# Numbers that YAML 1.1 reads to an unexpected base: 0100 as 64, 1:30 as 90.
_READ_OTHERWISE = re.compile(r"[-+]?(0[0-9_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")


class _PlainLoader(yaml.SafeLoader):
    """A loader that keeps dates, times and numbers with a leading 0 as text. It refuses aliases, which can make gigabytes of a
    few lines, and tags, which ask for more than data.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012, as its parent has it
        first: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:timestamp"]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _levels = 0

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode and implicit[0] and _READ_OTHERWISE.fullmatch(value):
            return "tag:yaml.org,2002:str"
        return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None:
            what = "an alias" if isinstance(event, yaml.AliasEvent) else f"the tag {event.tag:.40}"
            raise yaml.MarkedYAMLError(None, None, f"{what} is not allowed: write the value", event.start_mark)
        if self._levels > MAX_LEVELS:
            raise yaml.MarkedYAMLError(None, None, "it is nested too deep", event.start_mark)
        self._levels += 1
        try:
            node: yaml.Node | None = super().compose_node(parent, index)
        finally:
            self._levels -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        if len(found) < len(node.value):
            raise yaml.MarkedYAMLError(None, None, "the same key is given twice", node.start_mark)
        return found


class _OwnLoader(_PlainLoader):
    """A loader that refuses ambiguous numbers; in quotes they are text."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.ScalarEvent) and event.implicit[0] and _READ_OTHERWISE.fullmatch(event.value):
            mark = event.start_mark
            where = f" in line {mark.line + 1}" if mark is not None and mark.line else ""
            base = "60" if ":" in event.value else "8"
            raise ValueError(
                f"{event.value:.40}{where} is ambiguous, because YAML also reads such numbers to base {base}: "
                "write the number without leading zeros or colons, or put text in quotes"
            )
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    """A dumper that quotes text that `_OwnLoader` would refuse."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, "'" if _READ_OTHERWISE.fullmatch(text) else None)


_Dumper.add_representer(str, _represent_text)


@contextmanager
def without_collection() -> Iterator[None]:
    """Pause garbage collection while thousands of objects are made, none of them garbage: a scan takes as long as making them.
    A pause also keeps it from freeing tensors in reference cycles at an unexpected moment.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def parsed_options(words: Iterable[str]) -> dict[str, Any]:
    """Return keyword arguments from words such as `width=64`, their values read as YAML. Raises InputError."""
    found = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise InputError(f"cannot read {word[:200]!r}", "write name=value")
        try:
            found[name] = parse_yaml(value)
        except ValueError as error:
            raise InputError(
                f"cannot read {word[:200]!r}: {error}", "write name=value, with a value as in YAML"
            ) from None
    return found


def save_json(path: Path, data: Any) -> None:
    """Write data to a file that the user named. Raises InputError if it cannot be written."""
    with as_asked(path):
        path.write_text(json.dumps(data, allow_nan=False))

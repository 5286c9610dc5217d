"""The installed package as a wheel, so that an archive brings what its notebooks import."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import chronograd
import chronograd_lab
from chronograd import __version__
from chronograd.errors import InputError
from chronograd_lab.exercises.pages import shipped

_METADATA = ("METADATA", "WHEEL", "entry_points.txt")
_EPOCH = (2020, 1, 1, 0, 0, 0)  # the same package gives the same bytes
_HERE = "chronograd_lab/exercises"


def wheel_name() -> str:
    return f"chronograd-{__version__}-py3-none-any.whl"


def write_wheel(folder: Path) -> Path:
    """Write a wheel of the installed package to a folder, and return its path. Raises InputError if it is not installed."""
    path = folder / wheel_name()
    info, record = f"chronograd-{__version__}.dist-info", io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in (*_modules(), *_metadata(info)):
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.writerow((name, f"sha256={digest}", len(content)))
            _write(wheel, name, content)
        rows.writerow((f"{info}/RECORD", "", ""))
        _write(wheel, f"{info}/RECORD", record.getvalue().encode())
    return path


def _write(wheel: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
    wheel.writestr(entry, content)


def _modules() -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of both packages, with the concept pages and the published results of studies."""
    for package in (chronograd, chronograd_lab):
        root = Path(str(package.__file__)).parent
        for path in _files(root):
            yield f"{root.name}/{path.relative_to(root).as_posix()}", path.read_bytes()
    for name in ("concepts", "studies"):  # an installed package has them among its modules
        folder = shipped(name)
        if not folder.is_relative_to(Path(__file__).parent):
            for path in _files(folder):
                if name == "concepts" or path.name == "results.json":
                    yield f"{_HERE}/{name}/{path.relative_to(folder).as_posix()}", path.read_bytes()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _metadata(info: str) -> Iterator[tuple[str, bytes]]:
    """Yield the metadata of the installed package, without the files that name places on this machine."""
    try:
        installed = distribution("chronograd")
    except PackageNotFoundError:
        raise InputError(
            "chronograd is not installed, so its wheel cannot be in the archive", "install it with pip"
        ) from None
    for name in _METADATA:
        text = installed.read_text(name)
        if text is not None:
            yield f"{info}/{name}", text.encode()
    for file in installed.files or []:
        if "licenses" in file.parts:
            yield f"{info}/licenses/{file.name}", Path(str(file.locate())).read_bytes()

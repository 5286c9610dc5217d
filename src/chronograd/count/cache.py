"""Traces kept on disk: a network is traced once per version of torch, its library and the trace format."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import platformdirs

from chronograd.count.network import trace_network
from chronograd.errors import FileFormatError
from chronograd.trace import VERSION, Trace


def cached_trace(
    reference: str,
    options: dict[str, Any] | None = None,
    *,
    input_shape: Sequence[int] | None = None,
    mode: str = "training",
    channels_last: bool = False,
) -> Trace:
    """`trace_network`, kept in the user's cache folder (XDG_CACHE_HOME). A damaged file is made again."""
    path = _path(reference, options, input_shape, mode, channels_last)
    if path.exists():
        try:
            return Trace.load(path)
        except FileFormatError:
            path.unlink(missing_ok=True)
    found = trace_network(reference, options, input_shape=input_shape, mode=mode, channels_last=channels_last)
    path.parent.mkdir(parents=True, exist_ok=True)
    found.save(path)
    return found


def _path(
    reference: str,
    options: dict[str, Any] | None,
    input_shape: Sequence[int] | None,
    mode: str,
    channels_last: bool,
) -> Path:
    library = reference.partition(":")[0] if ":" in reference else "chronograd"
    versions = {name: _version(name) for name in ("torch", "chronograd", library)}
    key = json.dumps(
        [reference, options or {}, list(input_shape or ()), mode, channels_last, versions, VERSION, _source()]
    )
    digest = hashlib.sha256(key.encode()).hexdigest()[:24]
    return Path(platformdirs.user_cache_path("chronograd")) / "traces" / f"{digest}.json.gz"


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""


@functools.cache
def _source() -> str:
    """Changes with the counting code itself."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.[pt]*")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]

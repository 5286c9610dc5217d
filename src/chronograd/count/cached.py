"""Traces by the name of a network: from the package, else from the user's cache, else counted.

Only counting imports torch, which takes seconds. The cache holds a trace for one version of torch, its library and this code.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import sys
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any, Unpack

import platformdirs

from chronograd.count import packaged, packed
from chronograd.count.settings import DEFAULTS, TraceSettings
from chronograd.files import as_asked, write_aside
from chronograd.inputs import is_reference
from chronograd.models import names
from chronograd.trace import VERSION, Trace


def cached_trace(reference: str, options: dict[str, Any] | None = None, **settings: Unpack[TraceSettings]) -> Trace:
    """Return the result of `trace_network`: a packaged trace if one fits, else one from the cache folder (XDG_CACHE_HOME).

    A network that the user wrote is traced each time, because its code may have changed. A damaged file is replaced. Arguments
    and errors are those of `chronograd.count.network.trace_network`; MissingExtraError if torch or the library is missing.
    """
    names.check(reference)
    if (inside := packaged.find(reference, options, settings)) is not None:
        return inside
    library, _ = names.split(reference)
    if library == "function" or any(map(is_reference, (*settings.get("inputs", ()), settings.get("loss", "")))):
        return _traced(reference, options, settings)
    versions = [VERSION, _source(), sys.version, *(_version(name) for name in ("torch", "chronograd", library))]
    key = json.dumps([reference, options or {}, sorted((DEFAULTS | settings).items()), versions], default=str)
    name = f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.trace"
    path = Path(platformdirs.user_cache_path("chronograd")) / "traces" / name
    if path.exists():
        try:
            return packed.unpack(path.read_bytes())
        except (OSError, ValueError, EOFError, TypeError):
            path.unlink(missing_ok=True)
    made = _traced(reference, options, settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    with as_asked(path):
        write_aside(path, packed.pack(made))
    return made


def _traced(reference: str, options: dict[str, Any] | None, settings: TraceSettings) -> Trace:
    names.require_library(reference)
    from chronograd.count.network import trace_network

    return trace_network(reference, options, **settings)


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""


@functools.cache
def _source() -> str:
    """Return a digest of the counting code and of the networks of the zoo."""
    digest = hashlib.sha256()
    for room in ("count", "models"):
        files: Iterable[Any] = (resources.files("chronograd") / room).iterdir()
        for path in sorted(
            (one for one in files if one.name.endswith((".py", ".toml"))), key=lambda one: str(one.name)
        ):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]

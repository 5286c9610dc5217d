"""Traces that are part of this package: of the zoo, and of the most popular networks of torchvision and timm.

A question about one of these networks needs neither torch nor the library. `models/traces` has one file per network, compressed
with xz. The first line lists the settings of each trace, and each further line is one trace, column by column. The traces of a
network repeat most of each other's text, so together they compress to little more than one of them. `python tools/traces.py`
writes the files, and tests compare every trace with a fresh count.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from chronograd.count.packed import of_tables, tables
from chronograd.count.settings import DEFAULTS, TraceSettings
from chronograd.files import without_collection, write_aside
from chronograd.models import names
from chronograd.trace import Trace

FOLDER = resources.files("chronograd.models") / "traces"
# All other settings must have their defaults.
VARIED = ("input_shape", "num_classes", "mode", "channels_last")
_SEPARATORS = (",", ":")


def find(reference: str, options: dict[str, Any] | None, settings: TraceSettings) -> Trace | None:
    """Return the packaged trace for these arguments of `cached_trace`; None if there is none."""
    if options or (wanted := _varied(reference, settings)) is None:
        return None
    for variant, read in _variants(reference):
        if variant == wanted:
            trace = read()
            trace.network = reference
            return trace
    return None


def settings_of(reference: str) -> list[TraceSettings]:
    """Return the settings of all packaged traces of a network."""
    return [variant for variant, _ in _variants(reference)]


def write(folder: Path, reference: str, traces: Sequence[tuple[TraceSettings, Trace]]) -> None:
    """Write the traces of a network, each with its settings, and replace those in the folder."""
    lines: list[Any] = [[variant for variant, _ in traces], *(_columns(trace) for _, trace in traces)]
    text = "\n".join(json.dumps(line, separators=_SEPARATORS) for line in lines)
    packed = lzma.compress(text.encode(), check=lzma.CHECK_CRC32, preset=9 | lzma.PRESET_EXTREME)
    write_aside(folder / _file(reference), packed)


def _varied(reference: str, settings: TraceSettings) -> TraceSettings | None:
    """Return the settings that distinguish traces of a network; None for a network or a setting without packaged traces."""
    network = names.known(reference)
    if network is None:
        return None
    full = DEFAULTS | settings
    shape = list(full["input_shape"] or network.shape)
    if len(shape) == 1 and full["input_dtype"] == "int64":  # the type of tokens
        full["input_dtype"] = None
    full["inputs"] = tuple(full["inputs"])
    if any(value != DEFAULTS.get(name) for name, value in full.items() if name not in VARIED):
        return None
    return {
        "input_shape": shape,
        "num_classes": network.classes and (full["num_classes"] or network.classes),
        "mode": full["mode"],
        "channels_last": full["channels_last"],
    }


def _variants(reference: str) -> Iterator[tuple[TraceSettings, Callable[[], Trace]]]:
    """Yield the settings of each trace of a network and a function that reads the trace."""
    path = FOLDER / _file(names.resolved(reference))
    if not path.is_file():
        return
    head, *lines = lzma.decompress(path.read_bytes()).split(b"\n")
    for variant, line in zip(json.loads(head), lines, strict=True):
        yield variant, partial(_of_columns, line)


def _file(reference: str) -> str:
    return f"{reference.replace(':', '-')}.xz"


def _columns(trace: Trace) -> list[Any]:
    """Return the tables of a trace with each column of rows together: it compresses a quarter better."""
    amounts, shapes, plain, inputs, *rows = tables(trace)
    return [amounts, shapes, plain, inputs, *(list(zip(*table, strict=True)) for table in rows)]


def _of_columns(line: bytes) -> Trace:
    with without_collection():
        amounts, shapes, plain, inputs, *columns = json.loads(line)
        return of_tables((amounts, shapes, plain, inputs, *(_rows(table) for table in columns)))


def _rows(columns: Iterable[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    return zip(*columns, strict=True)

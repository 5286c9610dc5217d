"""Tables of throughputs that others measured: any CSV with model, batch, image size and samples/s or step time.

What timm's file names and columns say (phase, precision, layout, device) is inferred; an option overrides it.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from chronograd.errors import FileFormatError, InputError
from chronograd.files import read_bytes

# More seconds, samples or pixels than anybody measured.
_MOST = 1e15
T = TypeVar("T")
# timm: benchmark-infer-amp-nhwc-pt240-cu124-rtx3090.csv, with -dynamo for a compiled network.
_TIMM_NAME = re.compile(
    r"benchmark-(?P<phase>infer|train)-(?P<precision>amp|amp_bf16|fp32|fp16|bf16|tf32)-(?P<layout>nchw|nhwc)"
    r"-pt(?P<torch>\d+)(-cu\d+)?(-cpu)?-(?P<device>.+?)(?P<compiled>-dynamo)?\.csv$"
)
_PRECISIONS = {"amp": "fp16", "amp_bf16": "bf16"}
_PHASES = {"infer": "inference", "train": "training"}
_COLUMNS = {
    "model": ("model", "network", "name"),
    "size": ("img_size", "image_size", "size", "resolution"),
    "batch": ("batch_size", "batch", "global_batch"),
    "rate": ("samples_per_sec", "samples_per_s", "throughput", "images_per_sec", "img_per_sec"),
    "step_ms": ("step_time_ms", "latency_ms", "step_time"),
    "step_s": ("step_time_s", "latency_s"),
    "params_m": ("param_count",),
}


@dataclass(frozen=True)
class Row:
    """One measured network: `seconds` of one batch. `params_m` is in millions where the table has it."""

    model: str
    image_size: int
    batch: int
    seconds: float
    params_m: float | None = None

    @property
    def key(self) -> str:
        return f"{self.model}@{self.image_size}"


@dataclass(frozen=True)
class Table:
    """Rows, and what they were measured on. Fields not known are None; `skipped` counts rows without a figure.

    Attributes:
        phase: `inference` or `training`. `layout`: `nchw` or `nhwc`.
        torch: version of PyTorch, such as `2.4.0`.
        precision: fp16 where timm says amp: autocast to half precision.
    """

    path: str
    rows: tuple[Row, ...]
    phase: str | None = None
    precision: str | None = None
    layout: str | None = None
    device: str | None = None
    torch: str | None = None
    is_compiled: bool = False
    skipped: int = 0

    @property
    def name(self) -> str:
        return Path(self.path).name

    @property
    def mode(self) -> str:
        return self.phase or "inference"

    @property
    def stated_precision(self) -> str:
        """Raises InputError where neither the file's name nor an option says it."""
        if self.precision is None:
            raise InputError(f"{self.name} does not say in which precision it was timed", "give --precision")
        return self.precision

    @property
    def channels_last(self) -> bool:
        return self.layout == "nhwc"

    @property
    def has_fused_attention(self) -> bool:
        """PyTorch computes attention as one kernel since version 2."""
        return self.torch is None or int(self.torch.partition(".")[0]) >= 2

    def stated(self, **options: Any) -> Table:
        """With what the user states in place of what was inferred."""
        return replace(self, **{k: v for k, v in options.items() if v is not None})


def read_table(path: str | Path) -> Table:
    """Read a table of throughputs. Raises FileFormatError naming what is missing, and the line of a bad figure."""
    path = Path(path)
    try:
        text = read_bytes(path).decode("utf-8")
        lines = list(csv.DictReader(io.StringIO(text, newline=""), restkey=""))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileFormatError(f"cannot read {path}: {error}") from None
    if not lines:
        raise FileFormatError(f"{path} has no rows", "give a CSV with a header and a row for each network")
    said = _TIMM_NAME.search(path.name)
    named: dict[str, Any] = said.groupdict() if said else {}
    columns = _find_columns(list(lines[0]), named.get("phase") or "", path)
    rows = [_row(line, columns, path, number) for number, line in enumerate(lines, 2)]
    precision = named.get("precision")
    return Table(
        str(path),
        tuple(row for row in rows if row),
        phase=_PHASES.get(named.get("phase") or ""),
        precision=_PRECISIONS.get(precision or "", precision),
        layout=named.get("layout"),
        device=named.get("device"),
        torch=_version(named["torch"]) if named.get("torch") else None,
        is_compiled=bool(named.get("compiled")),
        skipped=rows.count(None),
    )


def _version(digits: str) -> str:
    """timm writes 2.4.0 as 240 and 1.12 as 112.

    >>> _version("240"), _version("112"), _version("2101")
    ('2.4.0', '1.12', '2.10.1')
    """
    major, rest = digits[0], digits[1:]
    if major == "1":
        return f"1.{rest}"
    return f"{major}.{rest[:-1]}.{rest[-1]}" if len(rest) > 1 else f"{major}.{rest}"


def _find_columns(header: list[str], prefix: str, path: Path) -> dict[str, str]:
    """Columns of the table by meaning; timm prefixes those of a phase with its name."""
    found: dict[str, str] = {}
    for meaning, names in _COLUMNS.items():
        for name in names:
            for candidate in (f"{prefix}_{name}", f"infer_{name}", f"train_{name}", name):
                if candidate in header and meaning not in found:
                    found[meaning] = candidate
    if "model" not in found:
        raise FileFormatError(
            f"{path} has no column for the model", f"columns are {', '.join(header)}; name one `model`"
        )
    if not {"rate", "step_ms", "step_s"} & set(found):
        raise FileFormatError(f"{path} has no throughput or step time", "name a column samples_per_sec or step_time_s")
    return found


def _row(line: Mapping[str, str | None], found: Mapping[str, str], path: Path, number: int) -> Row | None:
    """One row; None where it has no figure."""

    def value(meaning: str) -> float | None:
        text = (line.get(found[meaning]) or "").strip() if meaning in found else ""
        if not text:
            return None
        try:
            number_of = float(text)
        except ValueError:
            number_of = math.nan
        if not 0 <= number_of < _MOST:
            raise FileFormatError(f"{path}, line {number}: {found[meaning]} is {text!r:.80}, not a number above 0")
        return number_of

    rate, step_s, step_ms = value("rate"), value("step_s"), value("step_ms")
    batch = int(value("batch") or 1)
    if rate:
        seconds = batch / rate
    elif step_s or step_ms:
        seconds = step_s or (step_ms or 0.0) / 1e3
    else:
        return None
    if not 0 < seconds < _MOST or batch < 1:
        raise FileFormatError(f"{path}, line {number}: a time of {seconds} s for batch {batch}")
    return Row((line[found["model"]] or "").strip(), int(value("size") or 224), batch, seconds, value("params_m"))


def shuffled(rows: Sequence[T], seed: int) -> list[T]:
    """Rows in an order that the seed alone decides."""
    return [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]

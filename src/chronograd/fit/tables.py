"""Published tables of throughput: any CSV with model, batch, image size and samples/s or step time.

Names of timm's files and columns determine phase, precision, layout and device; an option overrides them. Columns that state
the phase, device, precision, layout or number of devices of each row select rows: `ThroughputTable.matched`.
"""

from __future__ import annotations

import csv
import functools
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from chronograd import door
from chronograd.errors import ChronogradError, FileFormatError, InputError
from chronograd.hardware import catalog
from chronograd.words import how_many

# No realistic number of seconds, samples or pixels is larger.
_MAX_NUMBER = 1e15
T = TypeVar("T")
# timm: benchmark-infer-amp-nhwc-pt240-cu124-rtx3090.csv, with -dynamo for a compiled network.
_TIMM_NAME = re.compile(
    r"benchmark-(?P<phase>infer|train)-(?P<precision>amp|amp_bf16|fp32|fp16|bf16|tf32)-(?P<layout>nchw|nhwc)"
    r"-pt(?P<torch>\d+)(-cu\d+)?(-cpu)?-(?P<device>.+?)(?P<compiled>-dynamo)?\.csv$"
)
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3}){1,4}(\.\d{1,15})?")  # 1,312.4
# Names in other tables for our precisions.
_PRECISIONS = {
    "amp": "fp16", "amp_bf16": "bf16", "half": "fp16", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float": "fp32",
}  # fmt: skip
_PHASES = {
    "infer": "inference", "inf": "inference", "eval": "inference", "inference": "inference",
    "train": "training", "training": "training",
}  # fmt: skip
_LAYOUTS = {
    "0": "nchw", "false": "nchw", "nchw": "nchw", "contiguous": "nchw",
    "1": "nhwc", "true": "nhwc", "nhwc": "nhwc", "channels_last": "nhwc",
}  # fmt: skip
_COLUMNS = {
    "model": ("model", "network", "name"),
    "size": ("img_size", "image_size", "size", "resolution"),
    "batch": ("batch_size", "batch", "global_batch", "batch_per_device", "batch_per_gpu"),
    "rate": (
        "samples_per_sec",
        "samples_per_s",
        "throughput",
        "images_per_sec",
        "images_per_s",
        "img_per_sec",
        "img_per_s",
        "imgs_per_sec",
        "samples_per_second",
        "images_per_second",
    ),
    "step_ms": ("step_time_ms", "latency_ms", "step_time"),
    "step_s": ("step_time_s", "latency_s"),
    "params_m": ("param_count",),
    "phase": ("phase", "mode"),
    "device": ("device", "gpu"),
    "precision": ("precision", "dtype"),
    "layout": ("layout", "channels_last", "memory_format"),
    "devices": ("devices", "num_devices", "num_gpus", "gpus", "world", "ranks"),
}
_FIGURES = ("rate", "step_ms", "step_s")
_PREFIXES = ("infer", "train")
# Run conditions that rows and tables state, in the order in which they select rows.
_RAN = ("device", "phase", "precision", "layout")
# Fields whose option has another name in some verbs.
_OPTIONS = {"device": "--device, or --on", "layout": "--layout, or training.channels_last="}


def precision_of(text: str) -> str:
    """Return our name of a precision.

    >>> precision_of("amp"), precision_of("BFloat16"), precision_of("tf32")
    ('fp16', 'bf16', 'tf32')
    """
    name = text.strip().lower()
    return _PRECISIONS.get(name, name)


@dataclass(frozen=True)
class ThroughputRow:
    """One measured network: `seconds` of one batch. `params_m` is in millions if the table has it.

    Run conditions are None if the row does not state them. The device has its catalogue name if the catalogue lists it.
    """

    model: str
    image_size: int
    batch: int
    seconds: float
    params_m: float | None = None
    device: str | None = None
    phase: str | None = None
    precision: str | None = None
    layout: str | None = None
    devices: int = 1

    @property
    def key(self) -> str:
        return f"{self.model}@{self.image_size}"


@dataclass(frozen=True)
class ThroughputTable:
    """Rows and their run conditions. Unknown fields are None; `skipped` counts rows without a figure.

    `unmatched` counts the rows with other run conditions, which are left out, by reason.

    Attributes:
        phase: `inference` or `training`. `layout`: `nchw` or `nhwc`.
        torch: version of PyTorch, such as `2.4.0`.
        precision: fp16 for timm's amp: autocast to half precision.
    """

    path: str
    rows: tuple[ThroughputRow, ...]
    phase: str | None = None
    precision: str | None = None
    layout: str | None = None
    device: str | None = None
    torch: str | None = None
    is_compiled: bool = False
    skipped: int = 0
    unmatched: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        return Path(self.path).name

    @property
    def mode(self) -> str:
        """Return the phase. Raises InputError if file name, columns and options do not state it."""
        if self.phase is None:
            raise InputError(
                f"{self.name} does not state whether its times are for inference or training",
                "give --phase inference or --phase training",
            )
        return self.phase

    @property
    def stated_precision(self) -> str:
        """Return the precision. Raises InputError if file name, columns and options do not state it."""
        if self.precision is None:
            raise InputError(f"{self.name} does not state the precision of its times", "give --precision")
        return self.precision

    @property
    def channels_last(self) -> bool:
        return self.layout == "nhwc"

    @property
    def has_fused_attention(self) -> bool:
        """Return whether PyTorch computes attention as one kernel, as it does since version 2."""
        return self.torch is None or int(self.torch.partition(".")[0]) >= 2

    def stated(self, **options: Any) -> ThroughputTable:
        """Return the table with the user's options instead of inferred values."""
        return replace(self, **{k: v for k, v in options.items() if v is not None})

    def matched(self) -> ThroughputTable:
        """Return the rows on one device whose conditions match the table or the options. A condition that only the rows state
        becomes the table's if they agree.

        Raises InputError if no row remains, or if rows differ in a condition that no option states.
        """
        rows: Sequence[ThroughputRow] = [row for row in self.rows if row.devices == 1]
        others = Counter(f"on {how_many(row.devices, 'devices')}" for row in self.rows if row.devices != 1)
        found: dict[str, str] = {}
        for field in _RAN:
            stated = _stated(field, rows)
            wanted = getattr(self, field)
            if not stated:
                continue
            if wanted is None and len(stated) > 1:
                raise InputError(
                    f"{self.name} has rows of more than one {field}: {', '.join(stated)}",
                    f"give one of them to {_OPTIONS.get(field, f'--{field}')}",
                )
            wanted = found[field] = stated[0] if wanted is None else str(wanted)
            name = catalog.device(wanted).name if field == "device" else wanted
            others += Counter(f"{field} {v}" for row in rows if (v := getattr(row, field)) not in (None, name))
            rows = [row for row in rows if getattr(row, field) in (None, name)]
            if not rows:
                raise InputError(
                    f"no row of {self.name} has {', '.join(f'{field} {value}' for field, value in found.items())}",
                    f"these rows have {field} {', '.join(stated)}",
                )
        if not rows:
            raise InputError(
                f"no row of {self.name} ran on one device: {', '.join(others)}", "give rows of one device; links are fitted "
                "to several by `calibrate links --from`",
            )  # fmt: skip
        return replace(self, rows=tuple(rows), unmatched=tuple(others.items())).stated(**found)

    @property
    def notes(self) -> list[str]:
        """Return notes on rows that were left out."""
        if not self.unmatched:
            return []
        why = ", ".join(f"{count} {reason}" for reason, count in self.unmatched)
        return [
            f"{sum(count for _, count in self.unmatched)} rows of {self.name} ran under other conditions and are left out: {why}"
        ]


def read_table(path: str | Path, phase: str | None = None) -> ThroughputTable:
    """Read a table of throughputs. Raises FileFormatError that names a missing column, or the line of an invalid figure.

    Args:
        phase: selects between timm's columns `infer_` and `train_`; by default the phase of the file name, or the only one.
    """
    path = Path(path)
    try:
        text = door.read_text(path, "a table of throughputs")
        table = csv.DictReader(io.StringIO(text, newline=""), restkey="")
        lines = [{_plain(name): cell for name, cell in line.items()} for line in table]
    except csv.Error as error:
        raise FileFormatError(f"cannot read {path}: {error}") from None
    if not lines:
        raise FileFormatError(f"{path} has no rows", "give a CSV with a header and a row for each network")
    match = _TIMM_NAME.search(path.name)
    named: dict[str, Any] = match.groupdict() if match else {}
    header = list(lines[0])
    phase = _phase_of(header, phase or _PHASES.get(named.get("phase") or ""), path)
    columns = _find_columns(header, phase, path)
    device_name = functools.cache(_device_name)
    rows = [_row(line, columns, path, number, device_name) for number, line in enumerate(lines, 2)]
    alike = {field: values[0] for field in _RAN if len(values := _stated(field, filter(None, rows))) == 1}
    precision = named.get("precision") or alike.get("precision")
    return ThroughputTable(
        str(path),
        tuple(row for row in rows if row),
        phase=phase or alike.get("phase"),
        precision=None if precision is None else precision_of(precision),
        layout=named.get("layout") or alike.get("layout"),
        device=named.get("device") or alike.get("device"),
        torch=_version(named["torch"]) if named.get("torch") else None,
        is_compiled=bool(named.get("compiled")),
        skipped=rows.count(None),
    )


def _plain(name: str) -> str:
    """Return the name of a column in small letters, with `_` between its words and `per` for a stroke.

    >>> _plain("Batch Size"), _plain("Images/sec"), _plain("step_time")
    ('batch_size', 'images_per_sec', 'step_time')
    """
    return re.sub(r"[\s_-]{1,20}", "_", name.strip().lower().replace("/", " per "))


def _stated(field: str, rows: Iterable[ThroughputRow]) -> list[str]:
    """Return the distinct values of a run condition in the rows."""
    return list(dict.fromkeys(value for row in rows if (value := getattr(row, field))))


def _version(digits: str) -> str:
    """Return the version for timm's digits: 2.4.0 is written as 240 and 1.12 as 112.

    >>> _version("240"), _version("112"), _version("2101")
    ('2.4.0', '1.12', '2.10.1')
    """
    major, rest = digits[0], digits[1:]
    if major == "1":
        return f"1.{rest}"
    return f"{major}.{rest[:-1]}.{rest[-1]}" if len(rest) > 1 else f"{major}.{rest}"


def _phase_of(header: Sequence[str], phase: str | None, path: Path) -> str | None:
    """Return the given phase, or the only phase of prefixed columns. Raises FileFormatError for another."""
    figures = {f"{prefix}_{name}": prefix for prefix in _PREFIXES for m in _FIGURES for name in _COLUMNS[m]}
    columns = {_PHASES[figures[name]]: name for name in header if name in figures}
    if not columns or phase in columns:
        return phase
    if phase is not None:
        other, column = next(iter(columns.items()))
        raise FileFormatError(f"{path} has figures for {other} ({column}), not for {phase}", f"give --phase {other}")
    if len(columns) > 1:
        raise FileFormatError(
            f"{path} has figures for inference and training ({', '.join(columns.values())})", "give --phase"
        )
    return next(iter(columns))


def _find_columns(header: list[str], phase: str | None, path: Path) -> dict[str, str]:
    """Return the columns of the table by meaning; timm prefixes those of a phase with its name."""
    own = [prefix for prefix in _PREFIXES if _PHASES[prefix] == phase]
    found: dict[str, str] = {}
    for meaning, names in _COLUMNS.items():
        candidates = [f"{prefix}_{name}" for prefix in own for name in names] + list(names)
        column = next((name for name in candidates if name in header), None)
        if column is not None:
            found[meaning] = column
    if "model" not in found:
        raise FileFormatError(
            f"{path} has no column for the model", f"columns are {', '.join(header)}; name one `model`"
        )
    if not set(_FIGURES) & set(found):
        raise FileFormatError(f"{path} has no throughput or step time", "name a column samples_per_sec or step_time_s")
    if "batch" not in found:
        raise FileFormatError(
            f"{path} has no column for the batch size; its columns are {', '.join(header)}",
            f"name one of {', '.join(_COLUMNS['batch'])}",
        )
    return found


def _row(
    line: Mapping[str, str | None],
    found: Mapping[str, str],
    path: Path,
    number: int,
    device_name: Callable[[str], str | None],
) -> ThroughputRow | None:
    """Return one row; None if it has no figure."""

    def text_of(meaning: str) -> str:
        return (line.get(found[meaning]) or "").strip() if meaning in found else ""

    def value(meaning: str) -> float | None:
        text = text_of(meaning)
        if not text:
            return None
        try:
            number_of = float(text.replace(",", "") if _THOUSANDS.fullmatch(text) else text)
        except ValueError:
            number_of = math.nan
        if not 0 <= number_of < _MAX_NUMBER:
            raise FileFormatError(f"{path}, line {number}: {found[meaning]} is {text!r:.80}, not a number above 0")
        return number_of

    def word(meaning: str, names: Mapping[str, str]) -> str | None:
        text = text_of(meaning)
        if text and text.lower() not in names:
            known = ", ".join(dict.fromkeys(names.values()))
            raise FileFormatError(f"{path}, line {number}: {found[meaning]} is {text!r:.80}", f"write one of {known}")
        return names[text.lower()] if text else None

    rate, step_s, step_ms = value("rate"), value("step_s"), value("step_ms")
    if not (rate or step_s or step_ms):
        return None
    batch = int(value("batch") or 0)
    if batch < 1:
        raise FileFormatError(
            f"{path}, line {number}: {found['batch']} is {text_of('batch')!r:.80}, not a number of samples"
        )
    devices = int(value("devices") or 1)
    samples = batch * devices if found["batch"].startswith("batch_per_") else batch
    seconds = samples / rate if rate else step_s or (step_ms or 0.0) / 1e3
    if not 0 < seconds < _MAX_NUMBER:
        raise FileFormatError(f"{path}, line {number}: a time of {seconds} s for batch {batch}")
    return ThroughputRow(
        text_of("model"),
        int(value("size") or 224),
        samples,
        seconds,
        value("params_m"),
        device=device_name(text_of("device")),
        phase=word("phase", _PHASES),
        precision=precision_of(text_of("precision")) or None,
        layout=word("layout", _LAYOUTS),
        devices=devices,
    )


def _device_name(text: str) -> str | None:
    """Return the catalogue name of a device; an unknown name stays. No file is read."""
    if not text or text.endswith(".toml"):
        return text or None
    try:
        return catalog.device(text).name
    except ChronogradError:
        found = catalog.of_driver_name(text)
        return text if found is None else found.name


def shuffled(rows: Sequence[T], seed: int) -> list[T]:
    """Return the rows in an order that depends only on the seed."""
    return [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]

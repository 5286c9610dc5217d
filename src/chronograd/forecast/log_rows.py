"""The rows of a log file of any kind: JSON, a table, or printed output; and the selection of one of several runs."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chronograd import door
from chronograd.errors import FileFormatError, InputError, NotFoundError
from chronograd.forecast.log_formats import renamed, with_episodes
from chronograd.forecast.log_lines import rows_of_lines
from chronograd.forecast.log_tables import MISSING, LogRows, left_out, table_of
from chronograd.forecast.log_times import number_of
from chronograd.forecast.log_words import STEPS, named, words
from chronograd.words import how_many

WHAT = "a training log"
MAX_LINES, MAX_VALUES = 500_000, 3_000_000  # about 0.5 GB of rows
HINT = "give columns such as epoch,loss"
# Names of columns as words, in search order.
RUNS = (
    "run",
    "run id",
    "run uuid",
    "run name",
    "experiment",
    "experiment name",
    "trial",
    "trial id",
    "seed",
    "fold",
    "model",
    "name",
)
SPLITS = ("mode", "split", "phase", "subset", "stage")
KERAS = {"loss", "val_loss", "accuracy"}
KEYS = ("key", "metric", "metric name", "metricname", "tag", "name")
VALUES = ("value", "metric value", "metricvalue")
# Colours and cursor movements of terminals, and other characters that are not text.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_TAG = re.compile(r"-tag-(.+?)\.(csv|json)$")  # of TensorBoard's downloads

Row = Mapping[str, Any]


def read_rows(path: Path, run: str | None = None) -> tuple[list[Row], list[str]]:
    """Read rows by the names of their columns, and notes on omitted parts.

    Args:
        run: the name of one of several runs in the file.
    Raises: FileFormatError for a file that is not a log; InputError for several runs, and for a table of runs; NotFoundError
    for a
        missing run.
    """
    text = re.sub(
        r"(?<!\x08)\x08++ (\d++/\d++)\s?(?=[\r\n])", r" \1", door.read_text(path, WHAT)
    )  # a count over the bar
    text = _CONTROL.sub("", re.sub(r"\r+\n?|\x08+", "\n", text))
    door.check_amount(text, path, WHAT, most_lines=MAX_LINES, most_values=MAX_VALUES)
    try:
        found = _of_json(text, path) if text.lstrip().startswith(("{", "[")) else None
    except RecursionError:
        raise FileFormatError(f"{path} is nested too deeply for {WHAT}", HINT) from None
    is_json = found is not None
    found = found or _of_mlflow(text) or table_of(text, path) or rows_of_lines(text)
    renamed_rows = (renamed(row) for row in found.rows if isinstance(row, dict))
    rows: list[Row] = with_episodes([_flat(row) for row in renamed_rows if row])
    if not rows:
        raise FileFormatError(
            f"{path} has no curve: {_problem(text, is_json)}",
            f"{HINT}, JSON lines, or lines such as `epoch 3 loss: 0.5`",
        )
    rows = _of_one_run(_by_split(_by_key(_by_tag(rows, path))), run, path)
    return rows, found.notes


def _problem(text: str, is_json: bool) -> str:
    """Return why a text has no rows."""
    if is_json:
        return "its JSON has neither rows nor lists of numbers"
    count = sum(bool(line.strip()) for line in text.split("\n"))
    lines = "its line names no metric" if count == 1 else f"none of its {count:,} lines names a metric"
    return f"{lines} (loss, accuracy, reward, ...) or a counter with a number after it"


# -- JSON ---------------------------------------------------------------------------------------------------


def _of_json(text: str, path: Path) -> LogRows | None:
    """Return the rows of a JSON file or of JSON lines; None if lines begin with brackets for another reason."""
    try:
        data = door.loads(text)
    except ValueError as error:
        return _of_json_lines(text, path, error)
    return LogRows(_of_object(data) if isinstance(data, dict) else _of_list(data))


def _of_json_lines(text: str, path: Path, error: Exception) -> LogRows | None:
    found = LogRows()
    bad: list[int] = []
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    for number, line in lines:
        try:
            row = door.loads(line)
            if isinstance(row, dict):
                found.rows.append(row)
                continue
        except ValueError:
            pass
        bad.append(number)
    if len(found.rows) < len(lines) / 2:
        is_json = isinstance(error, json.JSONDecodeError) and (error.lineno > 1 or not found.rows)
        if is_json and isinstance(error, json.JSONDecodeError) and door.is_cut_off(text, error):
            raise FileFormatError(f"{path} is cut off in line {len(lines):,}: its JSON has no end", door.EMPTY_HINT)
        return None
    if bad and bad[-1] == lines[-1][0]:
        found.notes.append(f"line {bad.pop():,} is cut off, so it is left out")
    if bad:
        found.notes.append(left_out(bad, "is not a JSON object", "are not JSON objects"))
    return found


def _of_object(data: dict[str, Any]) -> list[Any]:
    """Return the rows of trainer_state.json, of lists by name, of a pandas frame (values by row number), or of a single row."""
    for name in ("log_history", "history", "metrics", "logs"):
        inner = data.get(name)
        if isinstance(inner, list) and inner and isinstance(inner[0], dict):
            return inner
        if isinstance(inner, dict) and inner and all(isinstance(values, list) for values in inner.values()):
            return _of_object(inner)
    if data and all(isinstance(values, dict) for values in data.values()):
        data = {name: list(values.values()) for name, values in data.items()}
    lists = {name: values for name, values in data.items() if isinstance(values, list)}
    length = max(map(len, lists.values()), default=0)
    if KERAS & set(lists) and not named(lists, STEPS):  # a history has a value for each epoch, and does not count them
        lists = {"epoch": list(range(1, length + 1)), **lists}
    rows = [{name: values[i] for name, values in lists.items() if i < len(values)} for i in range(length)]
    return rows or [data]


def _of_list(data: Any) -> list[Any]:
    """Return the rows of a list: objects; wall time, step and value (TensorBoard downloads); step and value; or values."""
    names = {3: ("Wall time", "Step", "Value"), 2: ("Step", "Value")}
    if not isinstance(data, list) or not data or isinstance(data[0], dict):
        return data if isinstance(data, list) else []
    if isinstance(data[0], list) and len(data[0]) in names:
        return [dict(zip(names[len(data[0])], row, strict=False)) for row in data if isinstance(row, list)]
    return [{"Value": value} for value in data if isinstance(value, int | float)]


def _of_mlflow(text: str) -> LogRows | None:
    """Return one metric of an MLflow run: lines of milliseconds since 1970, value and step."""
    if not re.match(r"\d{12,20} \S{1,40} \d{1,20}\s", text + "\n"):
        return None
    return LogRows(
        [dict(zip(("timestamp", "value", "step"), line.split(), strict=False)) for line in text.splitlines()]
    )


def _flat(row: Mapping[str, Any], before: str = "", levels: int = 5) -> dict[str, Any]:
    """Flatten objects within a row to columns: `{"val": {"loss": 1}}` becomes `val/loss`. Strip names, and empty blank cells."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        place = f"{before}{str(name).strip()}"
        if isinstance(value, Mapping) and levels:
            flat |= _flat(value, f"{place}/", levels - 1)
        else:
            flat[place] = None if isinstance(value, str) and value.strip().lower() in MISSING else value
    return flat


# -- rows from their columns -----------------------------------------------------------------------------------


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _by_tag(rows: list[Row], path: Path) -> list[Row]:
    """Rename the column Value of TensorBoard's downloads after the file name."""
    tag = _TAG.search(path.name)
    if tag is None or not any(words(name) == "value" for name in rows[0]):
        return rows
    return [{tag[1] if words(name) == "value" else name: value for name, value in row.items()} for row in rows]


def _by_key(rows: list[Row]) -> list[Row]:
    """Return rows of a metric's name and its value, as MLflow writes them, with the value in a column of that name."""
    by_words = {words(name): name for name in rows[0]}
    key = next((by_words[one] for one in KEYS if one in by_words), None)
    value = next((by_words[one] for one in VALUES if one in by_words), None)
    if key is None or value is None or len(by_words) < 3:
        return rows
    return [
        {**{n: v for n, v in row.items() if n not in (key, value)}, str(row.get(key)): row.get(value)} for row in rows
    ]


def _by_split(rows: list[Row]) -> list[Row]:
    """Put the split's name before columns that several splits have, if a column names the split of each row."""
    column = next(iter(named(_names(rows), SPLITS)), None)
    if column is None or not all(isinstance(row.get(column) or "", str) for row in rows):
        return rows
    keys = {name: words(name).replace(" ", "") for name in _names(rows)}  # acc1 and Acc@1 are the same
    splits: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            if value not in (None, ""):
                splits.setdefault(keys[name], set()).add(row.get(column) or "")
    kept = {name for name, key in keys.items() if len(splits.get(key, "")) < 2 or _is_place(name)} | {column}
    return [
        {name if name in kept or not row.get(column) else f"{row[column]}/{name}": value for name, value in row.items()}
        for row in rows
    ]


def _is_place(name: str) -> bool:
    """Return whether a column holds the position, time or learning rate of a row, not a result."""
    text = words(name)
    return text in STEPS or text in RUNS or bool({"time", "timestamp", "lr", "rate", "iterations"} & set(text.split()))


def _of_one_run(rows: list[Row], run: str | None, path: Path) -> list[Row]:
    """Return the rows, or columns, of one run. Raises InputError if there are several and the user names none."""
    names = _names(rows)
    prefixes = list(dict.fromkeys(name.rpartition(" - ")[0] for name in names if " - " in name))
    column = next((name for name in named(names, RUNS) if _names_runs(rows, names, name)), None)
    runs = prefixes if column is None else list(dict.fromkeys(str(row.get(column)) for row in rows if row.get(column)))
    if run is not None:
        if len(runs) < 2:
            raise InputError(f"{path} holds one run, not several", "leave out --run")
        if run not in runs:
            raise NotFoundError("run", run, runs)
        if column is not None:
            return [row for row in rows if str(row.get(column)) == run]
        return [{n: v for n, v in row.items() if " - " not in n or n.rpartition(" - ")[0] == run} for row in rows]
    if len(runs) < 2:
        return rows
    shown = ", ".join(runs[:5]) + ", …" * (len(runs) > 5)
    if column is not None and len(runs) == len(rows):
        raise InputError(
            f"{path} is a table of runs, one row for each of {len(runs):,} (column {column}: {shown}), not the log of one",
            "export the history of one run: a row for each epoch or step",
        )
    raise InputError(f"{path} holds {how_many(len(runs), 'runs')}: {shown}", f"name one, such as --run '{runs[0]}'")


def _names_runs(rows: Sequence[Row], names: Sequence[str], column: str) -> bool:
    """Return whether a column names several runs: it has several values, and steps do not rise from the first row to the last."""
    values = {str(row.get(column)) for row in rows if row.get(column) not in (None, "")}
    if len(values) < 2:
        return False
    for place in named(names, STEPS):
        steps = [number_of(row.get(place)) for row in rows]
        if all(a is not None and b is not None and a < b for a, b in itertools.pairwise(steps)):
            return False
    return True

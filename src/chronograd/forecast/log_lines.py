"""Rows from the lines that programs print while they train: `Epoch 3/90 [10/500] loss: 0.52 acc 71.3 %`, progress bars, JSON
lines.

A line is a row if it has a metric, or names the epoch of the lines after it. `mode` is the split that a line names (train, val,
test). A line without a position belongs to the last split named.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from chronograd.forecast.log_tables import LogRows

_EPOCH = re.compile(
    r"(?<!num )(?<!total )(?<!max )\bepochs?\b\s*(?:\(\s*\w+\s*\))?[\s:=#\[]*(\d+(?:\.\d+)?)(?:\s*/\s*\d+)?\]?",
    re.IGNORECASE,
)
_STEP = re.compile(
    r"\b(?:iter(?:ation)?s?|(?:global[ _])?steps?|it|updates?|batch)\b[\s:=#\[]*(\d+)(?:\s*/\s*(\d+))?\]?",
    re.IGNORECASE,
)
_COUNT = re.compile(r"(\d+)\s*/\s*(\d+)\b")
_STAMP = re.compile(r"\d{4}[-/]\d\d[-/]\d\d[ T_]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?")
_SPLIT = re.compile(
    r"(?<![A-Za-z])(train|training|val|valid|validation|eval|evaluation|test|testing)(?![A-Za-z])", re.IGNORECASE
)
_NAME = r"(?<![\w.])([A-Za-z][\w@/.()%-]*(?: [A-Za-z(][\w@/.()%-]*){0,3})"
_SHARE = re.compile(_NAME + r"\s*[:=]\s*(\d+)\s*/\s*(\d+)")
_PAIR = re.compile(
    _NAME
    + r"\s*[:=]?\s*([-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|[-+]?(?:nan|inf(?:inity)?)\b)\s?(%|ms\b)?",
    re.IGNORECASE,
)
_HELD_OUT = {"val", "valid", "validation", "eval", "evaluation", "test", "testing"}


def rows_of_lines(text: str) -> LogRows:
    """Return rows from the lines about training; no rows if there are none."""
    found = LogRows()
    split = ""
    for line in text.split("\n"):
        if not line.strip():
            continue
        row = _of_object(line)
        if row is None:
            row, split = _of_words(line, split)
        if row:
            found.rows.append(row)
    return found


def _of_object(line: str) -> dict[str, Any] | None:
    """Return the JSON object, or Python dictionary, at the end of a line, with the time stamp before it."""
    before, bracket, after = line.strip().partition("{")
    if not bracket or not after.endswith("}"):
        return None
    try:
        row = json.loads("{" + after)
    except ValueError:
        try:
            row = ast.literal_eval("{" + after)  # accepts literals only; no code runs
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
    if not isinstance(row, dict) or not all(isinstance(name, str) for name in row):
        return None
    stamp = _STAMP.search(before)
    return {"timestamp": _iso(stamp[0]), **row} if stamp else row


def _iso(stamp: str) -> str:
    return stamp.replace("/", "-").replace("_", "T").replace(",", ".")


def _of_words(line: str, split: str) -> tuple[dict[str, Any], str]:
    """Return the row of a line, empty if the line is not about training, and its split. A line with neither a position nor a
    split uses the last split.
    """
    row: dict[str, Any] = {}

    def cut(pattern: re.Pattern[str]) -> re.Match[str] | None:
        nonlocal line
        match = pattern.search(line)
        if match is not None:
            line = f"{line[: match.start()]}  {line[match.end() :]}"
        return match

    if stamp := cut(_STAMP):
        row["timestamp"] = _iso(stamp[0])
    if epoch := cut(_EPOCH):
        row["epoch"] = epoch[1]
    share = _SHARE.search(line)
    if share and share[0].split()[0].lower() not in ("iter", "step", "batch", "it") and not _STEP.match(share[0]):
        cut(_SHARE)
        row[share[1].strip()] = float(share[2]) / max(float(share[3]), 1.0)
    count = cut(_STEP) or cut(_COUNT)
    if count:
        row["iter"], row["of iterations"] = count[1], count[2] or ""
    pairs = list(_PAIR.finditer(line))
    head = line[: pairs[0].start()] if pairs else line
    named = _SPLIT.search(f"{epoch[0]} {head}" if epoch else head)
    mode = named[1].lower() if named else "" if epoch or count else split
    if count and mode in _HELD_OUT and count[2] not in (None, count[1]):  # only part of the split
        return {}, mode
    for pair in pairs:
        name = pair[1].strip() + (" (ms)" if pair[3] == "ms" else "")
        row.setdefault(name, pair[2].replace(",", "") + ("%" if pair[3] == "%" else ""))
    if not (epoch or count or share) and not (pairs and _has_metric(pairs)):
        return {}, split
    return ({**row, "mode": mode} if mode or split else row), mode


def _has_metric(pairs: list[re.Match[str]]) -> bool:
    """Return whether a line without an epoch or step has a metric, such as the last line of an evaluation."""
    return any(
        re.search(r"loss|acc|top.?[15]|ppl|perplexity|error|map|iou|f1", pair[1], re.IGNORECASE) for pair in pairs
    )

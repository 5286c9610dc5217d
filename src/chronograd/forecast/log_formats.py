"""Formats whose lines or columns need a declaration, because their words alone would be misread.

A `LineFormat` names the numbers of a printed line; the other formats rename what a tool writes. All other tools are read by the
words of their lines and columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NUMBER = r"([-+]?\d{1,15}+(?:\.\d{1,20}+)?+(?:e[-+]?\d{1,3}+)?+|-?nan|-?inf)"


@dataclass(frozen=True)
class LineFormat:
    """Lines with a fixed order of numbers, and the column of each."""

    tool: str
    pattern: re.Pattern[str]
    columns: tuple[str, ...]

    def row_of(self, line: str) -> dict[str, str] | None:
        match = self.pattern.match(line)
        return None if match is None else dict(zip(self.columns, match.groups(), strict=True))


LINE_FORMATS = (
    LineFormat(
        "darknet",
        re.compile(rf"\s{{0,9}}(\d{{1,12}}): {_NUMBER}, {_NUMBER} avg(?: loss)?, {_NUMBER} rate, {_NUMBER} seconds"),
        ("iter", "loss", "avg loss", "lr", "iter time"),
    ),
    LineFormat(  # the first line of pycocotools' summary, which many detectors print
        "pycocotools",
        re.compile(rf"\s{{0,9}}Average Precision  \(AP\) @\[ IoU=0\.50:0\.95 \| area=   all \| maxDets=\s?\d+ \] = {_NUMBER}"),
        ("val/mAP",),
    ),
    LineFormat("llm.c", re.compile(rf"s:(\d{{1,12}}) tel:{_NUMBER}"), ("step", "val loss")),
    LineFormat("llm.c", re.compile(rf"s:(\d{{1,12}}) trl:{_NUMBER} lr:{_NUMBER} norm:{_NUMBER}"),
               ("step", "train loss", "lr", "norm")),
    LineFormat("llm.c", re.compile(rf"s:(\d{{1,12}}) eval:{_NUMBER}"), ("step", "hellaswag")),
    LineFormat(  # an estimator of TensorFlow 1: the seconds since the last such line
        "estimator",
        re.compile(rf"(?:INFO:tensorflow:|I\d{{4}} .{{1,80}}\] )?loss = {_NUMBER}, step = (\d{{1,12}}) \({_NUMBER} sec\)"),
        ("loss", "iter", "duration"),
    ),
)  # fmt: skip
_WENET = re.compile(r"\b(TRAIN|CV) Batch (\d{1,9})/(\d{1,9}) (loss \d)")
COMPOSER = {"time/batch", "time/sample"}  # counters of Composer; `time/epoch` is one, too
# Names in headers that contain a separator.
SPELLINGS = {"mAP@.5:.95": "mAP50-95", "mAP@0.5:0.95": "mAP50-95", "mAP@.5": "mAP50", "mAP@0.5": "mAP50"}
SPACY = {"E": "epoch", "#": "step"}
MONITOR = {"r", "l", "t"}  # Stable-Baselines3: return, length and end (seconds since the start) of each episode


def known_line(line: str) -> dict[str, str] | None:
    """Return the row of a line in one of `LINE_FORMATS`; None for another line."""
    return next((row for form in LINE_FORMATS if (row := form.row_of(line)) is not None), None)


def plain(line: str) -> str:
    """Return a line of Marian or WeNet with its counters in words: `Ep. 1 : Up. 500` are the epoch and the update, and
    `TRAIN Batch 1/500` the epoch and its batch. An evaluation of a TensorFlow estimator gets its name.
    """
    line = _WENET.sub(r"\1 epoch \2 batch \3 \4", line)
    line = line.replace("Saving dict for global step", "eval at global step")
    return line.replace("Ep. ", "epoch ").replace(": Up. ", ": update ") if ": Up. " in line else line


def spelled(line: str) -> str:
    for name, plain in SPELLINGS.items():
        line = line.replace(name, plain)
    return line


def renamed(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the row of a tool that does not name its counters: a line of dllogger, or of a monitor of Stable-Baselines3.

    >>> renamed({"type": "LOG", "step": [3, 200], "data": {"loss": 2.5}})
    {'epoch': 3, 'iter': 200, 'loss': 2.5}
    """
    data, step = row.get("data"), row.get("step")
    if isinstance(data, Mapping) and "type" in row and step in ([], (), "PARAMETER"):
        return {}  # the summary at the end, and the settings at the start
    if isinstance(data, Mapping) and "type" in row and (isinstance(step, list | tuple | int) or step is None):
        counts = step if isinstance(step, list | tuple) else [step]
        names = ("epoch", "iter") if len(counts) > 1 else ("step",)
        times = {name: row[name] for name in ("datetime", "elapsedtime", "timestamp") if name in row}
        return dict(zip(names, counts, strict=False)) | times | dict(data)
    if row.keys() >= COMPOSER:
        others = {name: value for name, value in row.items() if not name.startswith("time/")}
        return {"global_step": row["time/batch"], **others}
    return row


def with_episodes(rows: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows of a monitor with the number of the episode and its time by name; other rows are unchanged."""
    if not rows or not set(rows[0]) >= MONITOR or "episode" in rows[0]:
        return rows
    return [{"episode": number, **row, "elapsed": row.get("t")} for number, row in enumerate(rows, 1)]

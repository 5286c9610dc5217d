"""Lines of others may be long: the time to read one grows in proportion to its length."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from chronograd.errors import InputError
from chronograd.forecast.logs import read_log

LENGTH = 100_000  # letters
MOST_SECONDS = 1.0  # of the processor; a pattern that is tried again at every letter takes a minute
MOST_TRIES = 3  # other work makes one of them slow, not all
# Lines that make patterns start, or try again, at every letter.
REPEATED = {
    "digits": "1",
    "digits and dots": "1.",
    "digits and commas": "1,234",
    "digits and slashes": "1/",
    "counts": "10/20 ",
    "letters": "a",
    "words": "a ",
    "names joined": "a-",
    "names in brackets": "a(",
    "names and signs": "loss=",
    "blanks": " ",
    "tabs": "\t",
    "bars": "|",
    "cells": "| a | 1 ",
    "brackets": "[",
    "objects": "{",
    "stamps": "2024-01-01 ",
    "short stamps": "I0101 10:00:00 ",
    "percent": "10%|",
    "progress": "10%|##| 1/2 [0",
    "keras": "1/2 [===",
    "pairs": "loss: 0.5 ",
    "durations": "1h 2m ",
    "clocks": "10:00",
    "places": "a.py:",
    "module places": "a:b:1",
    "exponents": "1e",
    "signs": "+-",
    "quotes": '"',
    "separators": ",;",
    "parts": "loss[loss=0.5] tot_loss[loss=0.6] ",
    "splits": "[train] a=1 [valid] a=2 ",
    "means": "Test: [1/2] acc 0.5 (0.6) ",
    "ordinals": "1epoch ",
    "backspaces": "\b",
    "bars of two": "[==>..]  Step: 1ms | Tot: 1s | ",
    "items": "'a': 1, ",
    "best": "best metric, ",
    "names before brackets": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa[",
}


@pytest.mark.parametrize("start", ["", "loss ", "{", "metrics,loss\n"], ids=repr)
@pytest.mark.parametrize("part", REPEATED.values(), ids=REPEATED)
def test_time_of_a_long_line(start: str, part: str, tmp_path: Path) -> None:
    """Read lines that end in a letter, so that no pattern fits them as a whole."""
    log = tmp_path / "log.txt"
    log.write_text(f"epoch 1 loss 0.5\nepoch 2 loss 0.4\n{start}{part * (LENGTH // len(part))}x\n")
    assert any(seconds_to_read(log) < MOST_SECONDS for _ in range(MOST_TRIES))


def seconds_to_read(log: Path) -> float:
    """Return the processor seconds to read a log and its first two metrics, or to refuse it."""
    began = time.process_time()
    try:
        curve = read_log(log)
        for name in curve.names[:2]:
            curve.read(name)
    except InputError:
        pass
    return time.process_time() - began

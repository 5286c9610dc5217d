"""Twelve questions about large models as people ask them: the first line of each answer, and its seconds.

    python -m benchmarks.large_models.questions

Each command runs in this process, so that seconds are those of the answer, without the start of Python. The exit status is 1 if an answer
lacks the words that `questions.toml` expects.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
import time
import tomllib
from pathlib import Path

from chronograd.cli.main import main as chronograd

WIDTH = "400"  # so that a sentence is one line
QUESTIONS = Path(__file__).with_name("questions.toml")


def answered(words: str) -> tuple[str, float]:
    """Return what a command prints, and its seconds."""
    os.environ["COLUMNS"] = WIDTH
    out, start = io.StringIO(), time.perf_counter()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        chronograd(shlex.split(words))
    return out.getvalue(), time.perf_counter() - start


def main() -> int:
    missing = 0
    for question in tomllib.loads(QUESTIONS.read_text(encoding="utf-8"))["question"]:
        text, seconds = answered(question["words"])
        is_right = question["expect"] in " ".join(text.split())
        missing += not is_right
        first = next((line for line in text.splitlines()[1:] if line.strip()), text.strip())
        print(f"{question['asks']}\n  chronograd {question['words']}\n  {seconds:.1f} s  {first.strip()}")
        if not is_right:
            print(f"  MISSING: {question['expect']}")
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main())

"""Twenty questions to `plan`: the first line of our answer, the published answers, and whether they agree.

    python -m benchmarks.plan_questions [--json]

Questions and sources are in `plan_questions.toml`. An answer is right if its verdict is that of the sources, and if its epochs
lie within those of published trainings. `FILE` is a small network in a separate file, `FOLDER` a folder of 240 pictures. Both
are created for the run.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from chronograd.cli.main import main as chronograd
from chronograd.data.datasets import card
from chronograd.job import Data

NETWORK = """from torch import nn


def net(num_classes: int = 10) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(64, num_classes))
"""


def make_inputs(folder: Path) -> dict[str, str]:
    """Write the file and the folder of pictures, and return their paths by the words of a question."""
    (folder / "net.py").write_text(NETWORK)
    draw = np.random.default_rng(0)
    for name in ("ants", "bees"):
        (folder / "pictures" / name).mkdir(parents=True)
        for i in range(120):
            pixels = draw.integers(0, 256, (48, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "pictures" / name / f"{i}.jpg")
    return {"FILE": f"{folder / 'net.py'}:net", "FOLDER": str(folder / "pictures")}


def printed(arguments: list[str]) -> str:
    """Return the output of a command. Raises RuntimeError if it fails."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = chronograd(arguments)
    if status:
        raise RuntimeError(f"{' '.join(arguments)}: {errors.getvalue()}")
    return out.getvalue()


def ask(question: dict[str, Any], paths: dict[str, str], folder: Path) -> dict[str, Any]:
    """Return the answer to a question: its verdict, first line and epochs, and whether they agree with the sources."""
    words = question["words"]
    for name, path in paths.items():
        words = words.replace(name, path)
    saved = folder / "answer.json"
    printed(["plan", *words.split(), "--save", str(saved)])
    answer = json.loads(saved.read_text())
    data, first = answer["data"], answer["sections"][0]["takeaway"]
    samples = data["effort"]["samples"]
    epochs = None if samples is None else samples / epoch_of(words)
    low, high = question.get("epochs", (0, float("inf")))
    is_right = data["verdict"] == question["verdict"] and (epochs is None or low <= epochs <= high)
    for name, path in paths.items():
        first = first.replace(path, name)
    return {"question": question["words"], "verdict": data["verdict"], "epochs": epochs, "first_line": first,
            "published": question["published"], "is_right": is_right}  # fmt: skip


def epoch_of(words: str) -> int:
    """Return the training samples in an epoch of the data set that a question names."""
    named = words.split()
    stated = [int(word.partition("=")[2]) for word in named if word.startswith("data.samples=")]
    return stated[0] if stated else card(Data(name=named[named.index("--data") + 1])).train_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    questions = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["question"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = make_inputs(folder)
        rows = [ask(question, paths, folder) for question in questions]
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    print(
        "| `chronograd plan …` | first line of the answer | epochs | published | right |\n| --- | --- | ---: | --- | --- |"
    )
    for row in rows:
        epochs = "–" if row["epochs"] is None else f"{row['epochs']:.3g}"
        print(
            f"| `{row['question']}` | {row['first_line']} | {epochs} | {row['published']} | {'yes' if row['is_right'] else 'NO'} |"
        )
    print(f"\n{sum(row['is_right'] for row in rows)} of {len(rows)} answers agree with the sources.")


if __name__ == "__main__":
    main()

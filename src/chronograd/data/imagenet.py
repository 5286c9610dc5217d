"""Ground truth of ImageNet's validation images where they are not sorted into class folders (ILSVRC 2012)."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from chronograd.errors import FileFormatError, InputError

# In the folder of train and val; the only names that are looked for.
KAGGLE_TRUTH = "LOC_val_solution.csv"
DEVKIT = "ILSVRC2012_devkit_t12/data"
DEVKIT_TRUTH = "ILSVRC2012_validation_ground_truth.txt"


def ground_truth(root: Path) -> dict[str, str]:
    """File name without its ending → WordNet id, from the table of Kaggle or from the development kit."""
    if (root / KAGGLE_TRUTH).is_file():
        return _kaggle_truth(root / KAGGLE_TRUTH)
    if (root / DEVKIT / DEVKIT_TRUTH).is_file():
        return _devkit_truth(root / DEVKIT)
    raise InputError(
        f"{root / 'val'} is flat, and there is no ground truth for it",
        f"put {KAGGLE_TRUTH} or {DEVKIT}/ (with meta.mat and {DEVKIT_TRUTH}) into {root}, or sort val into class folders",
    )


def _kaggle_truth(path: Path) -> dict[str, str]:
    """Rows `ILSVRC2012_val_00000001,n01751748 111 108 230 230 ...`: the class, then a box."""
    truth = {}
    with path.open(newline="", encoding="utf-8", errors="replace") as stream:
        for number, row in enumerate(csv.reader(stream), 1):
            if number == 1 and row[:1] == ["ImageId"]:
                continue
            if len(row) != 2 or not re.match(r"n\d{8}\b", row[1]):
                raise FileFormatError(
                    f"line {number} of {path} is {','.join(row)[:80]!r}",
                    "lines are like ILSVRC2012_val_00000001,n01751748 1 2 3 4",
                )
            truth[row[0]] = row[1].split()[0]
    return truth


def _devkit_truth(folder: Path) -> dict[str, str]:
    """Line i of the ground truth is the ILSVRC2012_ID of image i; meta.mat has the WordNet id of each."""
    from scipy.io import loadmat

    try:
        synsets = loadmat(folder / "meta.mat", squeeze_me=True)["synsets"]
        wordnet = {int(i): str(w) for i, w in zip(synsets["ILSVRC2012_ID"], synsets["WNID"], strict=True)}
        lines = (folder / DEVKIT_TRUTH).read_text().split()
        return {f"ILSVRC2012_val_{i:08d}": wordnet[int(line)] for i, line in enumerate(lines, 1)}
    except Exception as error:
        raise FileFormatError(
            f"{folder} is not the data folder of the ILSVRC2012 kit: {error!r}", "unpack the kit again"
        ) from None

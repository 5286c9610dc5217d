"""The files of an archive besides its notebooks and data: the package, the code of the studies, logs, and a README."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import chronograd_lab
from chronograd.errors import InputError
from chronograd_lab.common.published_runs import CIFAR_RESNETS, HELD_BACK, MEASURED_VARIABLE, measured_folder
from chronograd_lab.exercises.pages import Library
from chronograd_lab.exercises.questions import Exercise
from chronograd_lab.exercises.wheel import wheel_name, write_wheel

CODE, LOGS, RUNS = "code", "logs", "runs"
FINE_TUNED = "fine-tuned.onnx"
DETECTION = "detection-transfer"
# Extras of chronograd that the cells of an exercise import.
EXTRAS = {"1": "vision,report", "2": "vision,report", "3": "vision,report,serve,reinforcement,ray"}
_LOGGED = ("job.yaml", "record.json", "steps.*.jsonl", "events.jsonl")  # of a run, without its weights
_README = """\
# {title}

## Run it again

```sh
python -m venv env
env/bin/pip install -r requirements.txt
env/bin/jupyter execute {notebooks}
```

The comment of a cell that trains names the command of the full size. All cells read only files of this archive. They train
again, since the folder `runs` is not in it.

## Files

| file | content |
| --- | --- |
| `{stem}*.ipynb` | a notebook for each problem, executed |
| `{wheel}`, `requirements.txt` | the package that the cells import, and its extras |
| `{code}/` | its files that made the results: `studies/NAME/study.py`, and the code that the studies share |
| `data/` | results of each study: settings, a row for each run, learning curves |
| `{logs}/` | {log_text} |{more}
"""


def before(folder: Path, exercise: Exercise, library: Library) -> list[str]:
    """Write the files that cells read: published logs, and the fine-tuned detector. Return a note for each missing one."""
    if exercise.number == "1":
        return _published_logs(folder)
    return _detector(folder, library) if exercise.number == "3" else []


def _published_logs(folder: Path) -> list[str]:
    measured = measured_folder()
    names = [(measured / name) for name in (CIFAR_RESNETS, HELD_BACK)] if measured else []
    files = [file for name in names for file in sorted(name.glob("history*.json"))]
    for file in files:
        target = folder / LOGS / "published" / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    if files:
        return []
    return [
        f"The full logs of problem 4 are not in the archive, so its fits use the epochs stored in data/depth-and-device.json. Put "
        f"{CIFAR_RESNETS} and {HELD_BACK} in the folder that {MEASURED_VARIABLE} names, and run hand-in again."
    ]


def _detector(folder: Path, library: Library) -> list[str]:
    try:
        page = library.study(DETECTION)
    except InputError:  # the notebook states it
        return []
    place = page.file.parent / FINE_TUNED
    if place.is_file():
        shutil.copyfile(place, folder / FINE_TUNED)
        return []
    study, size = f"studies/{DETECTION}", page.results.size
    return [
        f"{FINE_TUNED}, the detector of the reported precisions, is not in the archive, so the cells of problem 3 export the small "
        f"one that they train. To make it: `chronograd study run {DETECTION} --size {size} --out {study}`, `chronograd export "
        f"{study}/runs/fine-tuned-on-the-two/seed-0 --onnx {study}/{FINE_TUNED}`, and hand-in again with `--studies studies`."
    ]


def after(
    folder: Path, exercise: Exercise, notebooks: Sequence[str], studies: Sequence[str], notes: Sequence[str]
) -> None:
    """Write the package, the code of the studies, the logs of the runs, and the README; remove the weights of the runs."""
    write_wheel(folder)
    (folder / "requirements.txt").write_text(f"./{wheel_name()}[{EXTRAS[exercise.number]}]\n")
    _code(folder / CODE, studies)
    _run_logs(folder)
    shutil.rmtree(folder / RUNS, ignore_errors=True)
    (folder / "README.md").write_text(_readme(folder, exercise, notebooks, notes), encoding="utf-8")


def _code(target: Path, studies: Sequence[str]) -> None:
    package = Path(str(chronograd_lab.__file__)).parent
    unwanted = shutil.ignore_patterns("__pycache__")
    for name in ("common", *(f"studies/{study.replace('-', '_')}" for study in studies)):
        if (package / name).is_dir():  # a study of another package is not there
            shutil.copytree(package / name, target / name, ignore=unwanted)


def _run_logs(folder: Path) -> None:
    """Copy the logs of the runs, without the place of the runs on this machine."""
    for kind in _LOGGED:
        for file in (folder / RUNS).rglob(kind):
            study, _, *run = file.relative_to(folder / RUNS).parts  # STUDY/runs/NAME/seed-0/FILE
            target = (folder / LOGS / study).joinpath(*run)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(file.read_text(encoding="utf-8").replace(f"{folder}/", ""), encoding="utf-8")


def _readme(folder: Path, exercise: Exercise, notebooks: Sequence[str], notes: Sequence[str]) -> str:
    logs = ["every step of the runs that the cells trained"]
    logs += ["and in `published/` the training logs of others"] if (folder / LOGS / "published").is_dir() else []
    rows = [f"\n| `{file.name}` | a detector, exported |" for file in sorted(folder.glob("*.onnx"))]
    text = _README.format(
        title=exercise.title, notebooks=" ".join(notebooks), stem=notebooks[0].rpartition("_")[0], wheel=wheel_name(), code=CODE,
        logs=LOGS, log_text=", ".join(logs), more="".join(rows),
    )  # fmt: skip
    return text + "".join(["\n## What is missing\n\n", *(f"- {note}\n" for note in notes)] if notes else [])

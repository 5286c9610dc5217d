"""A study: an experiment as data. One folder of `chronograd_lab.studies` each: a `STUDY` in study.py, and its text in page.md.

`conduct` runs jobs and returns `Results`; the report is made from results alone, so that it can be made again without running
anything.
"""

from __future__ import annotations

import csv
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.errors import InputError, NotFoundError
from chronograd.figure import Figure, Picture, PictureRow, Pictures
from chronograd_lab.common.predictions import Tables, outdated
from chronograd_lab.common.results import Results, Settings
from chronograd_lab.common.rows import plural
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.written import Block, ClaimError, read_page

MISSING = "What is missing"
SIZES = ("smoke", "laptop", "evening", "paper")
# The source of a cell: a field of the item, a field and its format, or a function of the item.
Column = str | tuple[str, Callable[[Any], str]] | Callable[[Any], str]


@dataclass(frozen=True)
class NotRun:
    """The additions of a larger size over the published page.

    Attributes:
        lacks: the missing condition, as a clause.
        on_gpu: whether it is meant for a GPU.
    """

    size: str
    lacks: str
    on_gpu: bool = False

    def hours(self, study: str) -> float:
        """Return the hours on two cores, from the measured cost of an image."""
        return _costs()[study, self.size][0] / 2

    def gpu_hours(self, study: str) -> float | None:
        """Return the predicted hours of the steps alone on one H200, if it is meant for a GPU."""
        return _costs()[study, self.size][1] if self.on_gpu else None

    def cells(self, study: str) -> list[str]:
        """Return the size, its hours on two cores, and those on an H200, for a table."""
        gpu = self.gpu_hours(study)
        return [
            self.size,
            f"{self.hours(study):,.2g}" if self.hours(study) < 10 else f"{self.hours(study):,.0f}",
            f"{gpu:.1f}" if gpu else "",
        ]

    def sentence(self, study: str) -> str:
        _, hours, gpu_hours = self.cells(study)
        gpu = f" On one H200, we predict {gpu_hours} hours for its steps alone." if gpu_hours else ""
        return (
            f"Size {self.size} was not run: {self.lacks}. By the measured cost of an image, “chronograd study run {study} "
            f"--size {self.size}” takes about {hours} hours on two cores.{gpu}"
        )


@cache
def _costs() -> dict[tuple[str, str], tuple[float, float]]:
    """Return the hours of one core and of one H200 by study and size, as `python -m benchmarks.evening` writes them."""
    with Path(__file__).with_name("costs.csv").open(newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return {(row["study"], row["size"]): (float(row["core_hours"]), float(row["h200_hours"])) for row in rows}


@dataclass(frozen=True)
class Study:
    """One question, answered from numbers.

    Attributes:
        hypothesis: the expectation from the sources.
        sizes: settings by size. `smoke` takes seconds and runs in the tests, `laptop` minutes on two cores with real data.
            `evening` takes hours on two cores or minutes on a GPU. `paper` has the published setting.
        conduct: runs a size in a runner.
        text: the page, in the form of `chronograd_lab.common.written`, for results of size `published`; by default `page.md`
            next to the file of `conduct`.
        values: fill-ins and claims of the text, in addition to `settings`. `blocks`: tables and figures by the title of their
            section.
        predictions: tables of results that this version predicts from their settings and their other rows, without runs.
        truth: a description of the files in the runner's `truth`, which score predictions; empty if there are none.
        not_run: the open points of the published results.
    """

    name: str
    question: str
    hypothesis: str
    sizes: Mapping[str, Settings]
    conduct: Callable[[StudyRunner, Settings], Results]
    text: Path | None = None
    published: str = "laptop"
    values: Callable[[Results], Mapping[str, Any]] = lambda results: {}
    blocks: Callable[[Results], Mapping[str, Block]] = lambda results: {}
    predictions: Callable[[Results], Tables] = lambda results: {}
    truth: str = ""
    not_run: Sequence[NotRun] = ()

    def predicted_again(self, results: Results) -> Results:
        """Return results with the predictions of this version; the same results if theirs are within 1 % of these."""
        current = self.predictions(results)
        if not outdated(results.rows, current):
            return results
        today = datetime.now(UTC).date().isoformat()
        rows = {**results.rows, **{name: list(table) for name, table in current.items()}}
        return replace(results, rows=rows, environment={**results.environment, "predicted": today})

    def page(self, results: Results, is_checked: bool = True) -> Answer:
        """Return the report. Raises ClaimError if results of the published size do not support the text, if `is_checked`."""
        text = self.text or Path(inspect.getfile(self.conduct)).with_name("page.md")
        if results.size != self.published or not text.is_file():
            return self.plain(results)
        written = read_page(text, self._values(results), self.blocks(results), is_checked)
        return self.answer(results, written.sections, written.highlights, written.opening)

    def _values(self, results: Results) -> Mapping[str, Any]:
        """Return the values. Raises InputError if results lack the input of a value, such as the minimum of no rows."""
        try:
            return {"settings": results.settings, **self.values(results)}
        except (LookupError, ValueError, TypeError, ArithmeticError) as error:
            raise InputError(f"a value of the page cannot be computed ({error})") from error

    def plain(self, results: Results, reason: str = "") -> Answer:
        """Return tables and figures without a text. `reason`: why there is none; by default the results have another size."""
        reason = reason or f"The text of this study is written for its published results, of size {self.published}."
        sections = [
            Section(title, _rows_shown(block, results.size), figure=block.figure, table=block.table)
            for title, block in self.blocks(results).items()
        ]
        return self.answer(results, sections, summary=[f"These are results of size {results.size}.", reason])

    def page_or_plain(self, results: Results) -> Answer:
        """Return the report; without a text if results do not support it."""
        try:
            return self.page(results)
        except ClaimError as error:
            sentence = error.message.removeprefix("the results do not support ")
            return self.plain(results, f"They do not support a sentence of the published page: {sentence}.")
        except InputError as error:
            return self.plain(results, f"They lack a value that the published page states: {error.message}.")

    def answer(
        self,
        results: Results,
        sections: Sequence[Section],
        highlights: Sequence[Highlight] = (),
        summary: Sequence[str] = (),
    ) -> Answer:
        """Return a page: the study's question, the answers, the sections, and last the setting of the results in words.

        Args:
            summary: the answer, a sentence or two per question; by default the first sentences of the first three sections.
        """
        asked = [("what was expected", self.hypothesis), ("size", results.size)]
        asked += [(_words(key), _shown(value, key)) for key, value in results.settings.items() if value is not None]
        environment = results.environment
        versions = ", ".join(f"{name} {version}" for name, version in environment.get("versions", {}).items())
        gpu = "".join(f"{one['name']}, " for one in environment.get("gpus", [])[:1])
        changes = "".join(f" {change.removeprefix('training.')}," for change in environment.get("changes", []))
        cores = f", {plural(environment['cores'], 'core')}" if "cores" in environment else ""
        runs, threads = environment.get("runs_at_a_time", 1), environment.get("threads_per_run", 1)
        predicted = f", predicted {environment['predicted']}" if "predicted" in environment else ""
        footer = (
            f"{results.created[:10]}{predicted};{changes} {gpu}{environment.get('processor', 'unknown processor')}{cores}; "
            f"{plural(runs, 'run')} at a time with {plural(threads, 'thread')} each. Versions: {versions}"
        )
        opening = summary or Answer(_title(self.name), sections=list(sections)).opening()
        if self.not_run and results.size == self.published:
            sections = [*sections, _missing_section(self)]
        if results.notes:
            first, *others = map(_sentence, results.notes)
            sections = [*sections, Section("What fell short", first, lines=others)]
        return Answer(_title(self.name), self.question, asked, highlights, sections, footer=footer, summary=opening)


def _rows_shown(block: Block, size: str) -> str:
    """Return the takeaway of a section without a text."""
    return f"{plural(len(block.table.rows), 'row')} of size {size}." if block.table else f"Results of size {size}."


def _missing_section(study: Study) -> Section:
    """Describe the larger sizes that were not run: their additions and their cost."""
    return Section(
        MISSING,
        " ".join(one.sentence(study.name) for one in study.not_run),
        table=listed(
            ["size", "two cores, h", "steps alone on an H200, h"], [one.cells(study.name) for one in study.not_run]
        ).without_empty_columns(),
    )


def settings_of(study: Study, size: str) -> Settings:
    """Return the settings of a size. Raises NotFoundError for an unknown size."""
    if size not in study.sizes:
        raise NotFoundError(f"size of study {study.name}", size, study.sizes)
    return study.sizes[size]


def table(items: Iterable[Any], columns: Mapping[str, Column], text: int = 1) -> Table:
    """Return a table with one row per item; the first `text` columns hold text, the others numbers.

    >>> table([{"n": 3, "s": 0.5}], {"n": "n", "time": ("s", "{:.2f} s".format), "twice": lambda row: str(2 * row["n"])}).rows
    [['3', '0.50 s', '6']]
    """
    return listed(list(columns), [[_cell(item, of) for of in columns.values()] for item in items], text)


def _cell(item: Any, of: Column) -> str:
    if callable(of):
        return of(item)
    field, form = (of, str) if isinstance(of, str) else of
    return form(item[field])


def listed(columns: Sequence[str], rows: Sequence[Sequence[str]], text: int = 1, notes: Sequence[str] = ()) -> Table:
    """Return a table of finished rows; the first `text` columns hold text, the others numbers."""
    return Table(columns, rows, set(range(text, len(columns))), notes)


def pictures_shown(results: Results) -> Figure:
    """Show pictures in rows by their names, `ROW/TITLE`; a title that is a number is not shown."""
    rows: dict[str, list[Picture]] = {}
    for name, png in results.pictures.items():
        row, _, title = name.rpartition("/")
        rows.setdefault(row, []).append(Picture("" if title.isdigit() else title, png))
    return Figure([Pictures([PictureRow(row, shown) for row, shown in rows.items()])])


def _shown(value: object, key: str = "") -> str:
    """Return a setting in words: its name if it is on, nothing if it is off or not set.

    >>> _shown({"cosine": {}, "one_cycle": {}, "crop and flip": {"crop": 2, "flip": True, "cutout": None}})
    'cosine, one-cycle, crop and flip (crop 2, flip)'
    >>> _shown({"name": "synthetic", "shape": [3, 64, 64], "classes": 1000, "image_size": None})
    'synthetic (shape 3 × 64 × 64, classes 1,000)'
    >>> _shown([[1, 1], [2, 1]]), _shown([["k80", "pcie3"], ["v100", "nvlink2"]]), _shown(True), _shown([8, 16])
    ('1 × 1, 2 × 1', 'k80 with pcie3, v100 with nvlink2', 'yes', '8, 16')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        if key in _SHAPES:
            return " × ".join(map(str, value))
        return ", ".join(_joined(v) if isinstance(v, list | tuple) else _shown(v) for v in value)
    if isinstance(value, Mapping):
        name, rest = value.get("name"), {k: v for k, v in value.items() if k != "name"}
        if isinstance(name, str):
            return _setting(name, rest) if rest else name
        return ", ".join(filter(None, (_setting(str(name), v) for name, v in value.items())))
    return str(value)


_SHAPES = ("shape", "image_shape")


def _joined(values: Sequence[object]) -> str:
    """Join a few values that belong together: numbers are sizes, names stand together."""
    is_numbers = all(isinstance(v, int | float) for v in values)
    return (" × " if is_numbers else " with ").join(map(_shown, values))


def _setting(name: str, value: object) -> str:
    """Return one entry of a setting; empty if it is off or not set."""
    if isinstance(value, Mapping):  # the text before it is a name, such as one_cycle
        inside = _shown(value)
        return f"{name.replace('_', '-')} ({inside})" if inside else name.replace("_", "-")
    if value is None or value is False:
        return ""
    return _words(name) if value is True else f"{_words(name)} {_shown(value, name)}"


# Readable names of settings whose name is a word of the code.
_NAMES = {
    "worlds": "numbers of ranks here",
    "predicted_worlds": "numbers of GPUs predicted",
    "gpu_data": "data on GPUs, predicted",
    "gpu_batch_per_rank": "batch of a GPU, predicted",
    "gpu_batches": "batches on GPUs, predicted",
    "gpu_network": "network on GPUs, predicted",
    "predicted_batches": "batches of a GPU, predicted",
    "batch_per_rank": "batch of a rank here",
    "steps": "timed steps",
    "warmup": "steps before them",
    "per_node": "GPUs of a node",
}


# Words in names of studies with a special spelling.
_SPELT = {"dqn": "DQN", "onnx": "ONNX", "sgd": "SGD", "gorila": "Gorila", "apex": "Ape-X", "alexnet": "AlexNet",
          "vgg19": "VGG-19"}  # fmt: skip
_TITLES = {"all-reduce-algorithms": "All-reduce algorithms", "teacher-student": "Teacher and student"}


def _title(name: str) -> str:
    """Return the title of a study.

    >>> _title("asynchronous-sgd"), _title("gorila-and-apex")
    ('Asynchronous SGD', 'Gorila and Ape-X')
    """
    first, *others = name.split("-")
    return _TITLES.get(name) or " ".join(
        [_SPELT.get(first, first.capitalize()), *(_SPELT.get(word, word) for word in others)]
    )


def _sentence(note: str) -> str:
    """Return a note as a sentence.

    >>> _sentence("the nodes share two cores"), _sentence("tf_mirrored: it failed.")
    ('The nodes share two cores.', 'tf_mirrored: it failed.')
    """
    text = " ".join(note.split())
    start = text[:1].upper() if text.split(" ")[0].isalpha() else text[:1]
    return start + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _words(key: str) -> str:
    """Return the words of a key.

    >>> _words("is_balance_ablated"), _words("image_size"), _words("warmup")
    ('balance ablated', 'image size', 'steps before them')
    """
    return _NAMES.get(key, key.removeprefix("is_").replace("_", " "))

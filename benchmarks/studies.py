"""Writes docs/studies/README.md: what each study found, what its larger size took or would take, from the results beside it.

python -m benchmarks.studies
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from chronograd.files import write_aside
from chronograd.report.markdown import markdown
from chronograd.units import seconds
from chronograd_lab.common.results import Results, Row
from chronograd_lab.common.rows import matching
from chronograd_lab.exercises.pages import first_sentences
from chronograd_lab.studies import studies

FOLDER = Path(__file__).parent.parent / "docs" / "studies"
_HEAD = """\
# Studies

Each is one question, answered from numbers by jobs that anybody can run again. The reports here are of the size `laptop`, two
cores, real data, minutes, and two of the size `evening`. A page opens with an answer for each question and ends with the
settings. Gains and losses are named alike, and pages say so where an effect that a paper reports is not seen.

```sh
chronograd study list
chronograd study run cutout --size laptop --out studies/cutout
chronograd study run cutout --report-only --out studies/cutout
```
"""
_WITHOUT = "Written, and run by `chronograd study run NAME`, but with no results kept here yet"
_EVENING = """\
## What size `evening` took, and what it would take

Hours on two cores, or minutes on a GPU. What was trained of it was trained within 13 minutes of an H200, ten runs beside each
other:"""
_STOPPED = (
    "`batch-augmentation` was stopped after M = 4 and M = 2 of 20 epochs; without M = 1 it decides nothing, and its page is that of "
    "size `laptop`."
)
_NOT_RUN = """\
Not run. Hours on two cores follow from the measured time of one image on one thread; hours on an H200 are predicted (`python -m benchmarks.evening`):"""
_TAIL = """\
A folder holds `results.json` (every run, curve and picture) and `README.md` with its figures. `make docs` renders the full report of
each study from its results, one self-contained page. `smoke` sizes take seconds and run in the tests. `paper` has the published
settings and wants a GPU. The two tables are made from the results: `python -m benchmarks.studies`.

Which question of the exercises each of them answers: [by exercise](../exercises.md). What the words mean: [concepts](../concepts/README.md).
"""


def studies_page(folder: Path = FOLDER) -> str:
    kept = {name: Results.load(path) for name in studies() if (path := folder / name / "results.json").exists()}
    blocks = [
        _HEAD.strip(),
        _table(["study", "question", "found"], ([_link(name), study.question, _found(name, kept[name])] for name, study in studies().items() if name in kept)),
        *([f"{_WITHOUT}: {', '.join(sorted(f'`{name}`' for name in studies() if name not in kept))}."] if len(kept) < len(studies()) else []),
        _EVENING,
        _table(["study", "runs", "training, all runs together", "decided"], _taken(kept)),
        _STOPPED,
        _NOT_RUN,
        _table(["study", "size", "what is missing without it", "two cores, h", "steps alone on an H200, h"], _not_run()),
        _TAIL.strip(),
    ]  # fmt: skip
    return "\n\n".join(blocks) + "\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _link(name: str) -> str:
    return f"[`{name}`]({name}/README.md)"


def _found(name: str, results: Results) -> str:
    return markdown(first_sentences(studies()[name].page(results).opening()[0]))


def _taken(kept: dict[str, Results]) -> list[list[str]]:
    """Of the results of this size: what of them was trained at it, and the sentence that it is for."""
    body = []
    for name, results in kept.items():
        if results.size == "evening":
            # Of small-networks all but the small CNN has the same jobs at size laptop, where they were run.
            rows: list[Row] = matching(results.rows["runs"], network="small CNN") or results.rows["runs"]
            trained = seconds(sum(row["seconds"] for row in rows))
            body.append([_link(name), str(len(rows)), trained, _found(name, results)])
    return body


def _not_run() -> list[list[str]]:
    return [
        [
            _link(name),
            f"`{one.size}`",
            markdown(one.lacks),
            f"{one.hours:,.0f}",
            f"{one.gpu_hours:.1f}" if one.gpu_hours else "",
        ]
        for name, study in studies().items()
        for one in study.not_run
    ]


def main() -> None:
    write_aside(FOLDER / "README.md", studies_page())
    print((FOLDER / "README.md").relative_to(FOLDER.parent.parent))


if __name__ == "__main__":
    main()

"""Writer of docs/studies/README.md: each study's result, and the cost of its larger size, from the saved results.

python -m benchmarks.studies
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from chronograd.files import write_aside
from chronograd.report.markdown import markdown
from chronograd.units import seconds
from chronograd.words import how_many
from chronograd_lab.common.results import Results, Row
from chronograd_lab.common.rows import matching, processor_s
from chronograd_lab.exercises.pages import first_sentences
from chronograd_lab.studies import studies

FOLDER = Path(__file__).parent.parent / "docs" / "studies"
_HEAD = """\
# Studies

Each study answers one question from numbers, by jobs that anybody can run again. Most reports here have size `laptop`: minutes on
two cores with real data. Some have size `evening`, listed below. A page opens with the answers and ends with the settings. It reports gains and
losses alike, and states when an effect that a paper reports does not appear.

```sh
chronograd study list
chronograd study run cutout --size laptop --out studies/cutout
chronograd study run cutout --report-only --out studies/cutout
```
"""
_WITHOUT = "Run these by `chronograd study run NAME`; there are no published results yet"
_EVENING = """\
## What size `evening` took, and what it would take

This size takes hours on two cores, or minutes on a GPU. The time is that of training, summed over runs, which may share a machine. Processor time includes start and evaluations:"""
_NOT_RUN = """\
We did not run these. Hours on two cores follow from the measured time of one image on one thread. Hours on an H200 are predicted
(`python -m benchmarks.evening`):"""
_TAIL = """\
A folder holds `results.json` (every run, curve and picture) and `README.md` with its figures. A study that still runs has a folder
`finished` with one small file for each finished run. `chronograd study run NAME --size SIZE --out docs/studies/NAME` continues from these
files on any machine. `make docs` renders the full report of
each study from its results, one self-contained page. `smoke` sizes take seconds and run in the tests. `paper` has the published
settings and needs a GPU. `python -m benchmarks.studies` makes the tables of this page from the results.

[Exercises](../exercises.md) lists the question that each study answers. [Concepts](../concepts/README.md) explains the terms.
"""


def studies_page(folder: Path = FOLDER) -> str:
    kept = {name: Results.load(path) for name in studies() if (path := folder / name / "results.json").exists()}
    blocks = [
        _HEAD.strip(),
        _table(["study", "question", "result"], ([_link(name), study.question, _found(name, kept[name])] for name, study in studies().items() if name in kept)),
        *([f"{_WITHOUT}: {', '.join(sorted(f'`{name}`' for name in studies() if name not in kept))}."] if len(kept) < len(studies()) else []),
        _EVENING,
        _table(["study", "runs", "seeds", "on", "training, all runs", "processor time", "what they decide"], _taken(kept)),
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
    """Return for each result of size `evening` its runs, seeds, machine and time, and the sentence with its result."""
    body = []
    for name, results in kept.items():
        if results.size == "evening":
            # Except for the small CNN, small-networks has the same jobs at size laptop, where they ran.
            runs = results.rows.get("runs") or results.rows["networks"]
            rows: list[Row] = matching(runs, network="small CNN") or runs
            rows = matching(rows, set=rows[0].get("set"))  # another machine trained the small set of cutout
            trained, cores = sum(row["seconds"] for row in rows), [processor_s(row) for row in rows]
            used = "not recorded" if None in cores else seconds(sum(filter(None, cores)))
            asked = results.settings.get("seeds")
            seeds = asked if isinstance(asked, int) else len({row["seed"] for row in rows})
            body.append(
                [
                    _link(name),
                    str(len(rows)),
                    str(seeds),
                    _machine(results),
                    seconds(trained),
                    used,
                    _found(name, results),
                ]
            )
    return body


def _machine(results: Results) -> str:
    """Return the GPU or processor that the runs used, and how many runs shared it."""
    environment = results.environment
    gpus = environment.get("gpus")
    processor = f"{environment['processor']}, {how_many(environment['threads_per_run'], 'threads')} a run"
    where = gpus[0]["name"] if gpus else processor
    return f"{where}, {how_many(environment['runs_at_a_time'], 'runs')} at a time"


def _not_run() -> list[list[str]]:
    return [
        [
            _link(name),
            f"`{one.size}`",
            markdown(one.lacks),
            *one.cells(name)[1:],
        ]
        for name, study in studies().items()
        for one in study.not_run
    ]


def main() -> None:
    write_aside(FOLDER / "README.md", studies_page())
    print((FOLDER / "README.md").relative_to(FOLDER.parent.parent))


if __name__ == "__main__":
    main()

"""What the pages of studies share: accuracies as tables and as curves, with their spread over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.figure import Lines, Mark, Series
from chronograd.study.lab import Spread, is_apart, split_seed, spread
from chronograd.study.results import Results, Row
from chronograd.study.study import Study

Curves = Mapping[str, Mapping[str, Sequence[float | None]]]


def distinct(rows: Sequence[Row], key: str) -> list[str]:
    """Values of a column, in the order in which they first come."""
    return list(dict.fromkeys(row[key] for row in rows))


def accuracy_table(rows: Sequence[Row], key: str, heading: str, more: Mapping[str, str] | None = None) -> Table:
    """One row per experiment: accuracy with its spread, seeds, and the means of other columns.

    Args:
        key: the column of `rows` that names the experiment. `more`: heading → column, means of which are printed.
    """
    more = dict(more or {})
    body = []
    for name in distinct(rows, key):
        accuracy = spread(rows, **{key: name})
        means = [f"{spread(rows, column, **{key: name}).mean:,.4g}" for column in more.values()]
        body.append([str(name), accuracy.percent(), str(accuracy.n), *means])
    columns = [heading, "test accuracy", "seeds", *more]
    return Table(columns, body, set(range(1, len(columns))))


def mean_curve(curves: Curves, experiment: str, x: str, y: str = "test_accuracy", scale: float = 100.0) -> Series:
    """Mean over the seeds of an experiment with ± one standard deviation, against a column of the curves."""
    own = [columns for name, columns in curves.items() if split_seed(name)[0] == experiment]
    shortest = min(len(columns[x]) for columns in own)  # a seed that diverged ended early
    own = [{name: values[:shortest] for name, values in columns.items()} for columns in own]
    xs = np.mean([[float(v or 0) for v in columns[x]] for columns in own], axis=0)
    ys = scale * np.array([[float("nan") if v is None else v for v in columns[y]] for columns in own], dtype=float)
    mean = ys.mean(axis=0)
    series = Series(experiment, "measured", xs.tolist(), _plain(mean), is_joined=True)
    if len(own) < 2:
        return series
    std = ys.std(axis=0, ddof=1)
    return Series(
        experiment, "measured", xs.tolist(), _plain(mean), _plain(mean - std), _plain(mean + std), is_joined=True
    )


def _plain(values: np.ndarray) -> list[float | None]:
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values]


def accuracy_panel(
    curves: Curves, experiments: Sequence[str], x: str, x_label: str, marks: Sequence[Mark] = (), log_x: bool = False
) -> Lines:
    """Test accuracy of experiments against epochs, updates, seconds or images."""
    series = [mean_curve(curves, experiment, x) for experiment in experiments]
    return Lines(x_label, "test accuracy, %", series, marks, log_x=log_x)


def points(label: str, xs: Sequence[float], spreads: Sequence[Spread], color: str = "") -> Series:
    """Accuracies in percent with ± one standard deviation, joined."""
    y = [100 * s.mean for s in spreads]
    low, high = ([100 * getattr(s, side) for s in spreads] for side in ("low", "high"))
    return Series(label, "measured", list(xs), y, low, high, color, is_joined=True)


def study_page(
    study: Study, results: Results, sections: Sequence[Section], highlights: Sequence[Highlight] = ()
) -> Answer:
    """The page of a study: its question, its setting, and the sections."""
    asked = [("hypothesis", study.hypothesis), ("size", results.size)]
    asked += [(key.replace("_", " "), _shown(value)) for key, value in results.settings.items()]
    environment = results.environment
    versions = environment.get("versions", {})
    footer = (
        f"{results.created[:10]}; {environment.get('processor', 'unknown processor')}; "
        f"{environment.get('runs_at_a_time', 1)} runs at a time with {environment.get('threads_per_run', 1)} threads each; "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
    )
    if results.notes:
        notes = Table(["note"], [[note] for note in results.notes])
        sections = [
            *sections,
            Section(
                "What fell short",
                "One note." if len(results.notes) == 1 else f"{len(results.notes)} notes.",
                table=notes,
            ),
        ]
    return Answer(
        title=study.name.replace("-", " ").capitalize(),
        subtitle=study.question,
        asked=asked,
        highlights=highlights,
        sections=sections,
        footer=footer,
    )


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_shown(v)}" for k, v in value.items())
    return str(value)


def points_apart(a: Spread, b: Spread) -> str:
    """The difference of two accuracies in words: points, and whether the seeds tell them apart.

    >>> points_apart(Spread(0.82, 0.005, 3), Spread(0.80, 0.005, 3))
    '+2.0 points, more than the seeds differ'
    """
    points = 100 * (a.mean - b.mean)
    sign = "+" if points >= 0 else "−"
    if a.std is None or b.std is None:
        return f"{sign}{abs(points):.1f} points, from one seed"
    verdict = "more than the seeds differ" if is_apart(a, b) else "no more than the seeds differ"
    return f"{sign}{abs(points):.1f} points, {verdict}"


def signed(points: float) -> str:
    """
    >>> signed(1.24), signed(-0.04)
    ('+1.2', '+0.0')
    """
    return f"{round(points, 1) + 0.0:+.1f}"


def seeds(n: int) -> str:
    return f"{n} seeds" if n > 1 else "one seed"

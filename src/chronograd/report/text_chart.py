"""Lines of a figure as characters, for a terminal.

•  measured     ━  predicted     ░  its band     ┄  a mark, such as a target
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chronograd.figure import Lines, Mark, Series

Array = npt.NDArray[np.float64]
WIDTH, HEIGHT = 78, 15
MEASURED, PREDICTED, BAND, MARK = "•━░┄"


def text_chart(lines: Lines, width: int = WIDTH, height: int = HEIGHT) -> str:
    """Draw series against a number, at most `width` characters wide, with a legend below. Of the marks, only horizontal ones
    are drawn.
    """
    drawn = [series for series in lines.series if len(series.x)]
    levels = [mark for mark in lines.marks if mark.axis == "y"]
    low, high = _range([_known(s) for s in drawn] + [np.array([mark.at]) for mark in levels])
    first, last = (float(edge([x for series in drawn for x in series.x])) for edge in (np.min, np.max))
    labels = [f"{value:.3g}" for value in np.linspace(high, low, 3)]
    margin = max(map(len, labels))
    columns = width - margin - 2
    grid = [[" "] * columns for _ in range(height)]

    def row(value: float) -> int:
        return round((high - value) / (high - low) * (height - 1))

    def column(x: float) -> int:
        return round((x - first) / max(last - first, 1e-12) * (columns - 1))

    def put(x: int, y: float, sign: str) -> None:
        if low <= y <= high:
            grid[row(y)][x] = sign

    for mark in levels:
        for x in range(columns):
            put(x, mark.at, MARK)
    for series in sorted(drawn, key=lambda one: one.role != "predicted"):
        if series.role == "measured":
            for x, y in zip(*_points(series), strict=True):
                put(column(x), y, MEASURED)
            continue
        for x in range(column(float(series.x[0])), column(float(series.x[-1])) + 1):
            at = first + x / (columns - 1) * (last - first)
            if series.low and series.high:
                bounds = [float(np.interp(at, *_points(series, bound))) for bound in (series.low, series.high)]
                for y in range(row(min(bounds[1], high)), row(max(bounds[0], low)) + 1):
                    grid[y][x] = BAND if grid[y][x] == " " else grid[y][x]
            put(x, float(np.interp(at, *_points(series))), PREDICTED)
    places = {0: labels[0], height // 2: labels[1], height - 1: labels[2]}
    body = [f"{places.get(y, ''):>{margin}} │{''.join(signs).rstrip()}" for y, signs in enumerate(grid)]
    ends = _short(first), f"{lines.x_label} {_short(last)}"
    axis = [f"{'':>{margin}} └{'─' * columns}", f"{'':>{margin}}  {ends[0]}{ends[1]:>{columns - len(ends[0])}}"]
    return "\n".join([*body, *axis, _legend(drawn, levels, margin)])


def _points(series: Series, values: object = None) -> tuple[Array, Array]:
    pairs = zip(series.x, series.y if values is None else values, strict=True)  # type: ignore[call-overload]
    x, y = np.array([(x, y) for x, y in pairs if y is not None], dtype=float).reshape(-1, 2).T
    return x, y


def _known(series: Series) -> Array:
    """Return the values that the axis must contain. A band may be much wider than its interesting part, so half of it counts."""
    middle = _points(series)[1]
    spread = float(np.ptp(middle)) if len(middle) else 0.0
    bounds = [_points(series, bound)[1] for bound in (series.low, series.high) if bound]
    shown = [np.clip(bound, middle.min() - spread - 1e-9, middle.max() + spread + 1e-9) for bound in bounds]
    return np.concatenate([middle, *shown])


def _short(value: float) -> str:
    """Return a number for an end of the axis: steps and epochs in full, fractions with three digits."""
    return f"{round(value):,}" if value == round(value) or abs(value) >= 1000 else f"{value:.3g}"


def _range(values: list[Array]) -> tuple[float, float]:
    together = np.concatenate([one for one in values if len(one)] or [np.zeros(1)])
    low, high = float(together.min()), float(together.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _legend(drawn: list[Series], levels: list[Mark], margin: int) -> str:
    signs = {"measured": MEASURED, "predicted": PREDICTED}
    parts = [f"{signs.get(series.role, PREDICTED)} {series.label}" for series in drawn]
    if any(series.low for series in drawn):
        parts.append(f"{BAND} 80 % interval")
    return " " * (margin + 2) + "   ".join([*parts, *(f"{MARK} {mark.label}" for mark in levels)])
